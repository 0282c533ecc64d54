"""The settings of the search and of its rivals, each changed alone, with one score over all tasks.

    python benchmarks/search_settings.py [--methods ours ...] [--tasks CartPole-v1 ...] [--jobs 2]
    python benchmarks/search_settings.py --table --out docs/results/search-parts.jsonl

Every line of `SETTINGS` gives constants of a method other values. The runs are those of
`benchmarks/search.py` with seeds from 500: a line of JSON per run is appended to
results/search-settings.jsonl, and the table is printed; with --table it is printed alone. The score
is the geometric mean over tasks of the episodes to the threshold, 1.5 times the budget where it was
not met, in units of those of "as it is" in runs with the same seeds. The stored rows have settings
of parts that did not pay and were deleted; their commit has the switches.
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import search as benchmark
from rivals import local_bo
from search import NAMES, TASKS, cell, every, met

from bayespg.search import process, search

MODULES = (process, search, local_bo, benchmark)
USUAL, NOT_CHOSEN = "as it is", "one draw, not chosen"
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "ours": {
        USUAL: {},
        "narrows from 0.3": {"LOW": 0.3},
        "steps of 0.3": {"STEP": 0.3},
        "two standard deviations": {"OPTIMISM": 2.0},
        "one standard deviation": {"OPTIMISM": 1.0},
        "distances of 0.25 to 1": {"DISTANCES": (0.25, 1.0)},
        NOT_CHOSEN: {"DIRECTIONS": 1, "LENGTHS": 1, "DISTANCES": (1.0, 1.0)},
    },
    "ars": {USUAL: {}}
    | {
        f"{d} directions, {k} kept, noise {s}, rate {r}": {
            "ARS": {"directions": d, "kept": k, "noise": s, "rate": r}
        }
        for d, k, s, r in (
            (2, 1, 0.2, 0.2),
            (2, 1, 0.4, 0.2),
            (1, 1, 0.2, 0.1),
            (4, 2, 0.2, 0.1),
            (2, 2, 0.2, 0.1),
            (2, 1, 0.1, 0.05),
        )
    },
    "cma": {USUAL: {}} | {f"deviation {d}": {"DEVIATION": d} for d in (0.2, 0.5, 1.0)},
    "gibo": {USUAL: {}}
    | {
        f"reach {r}, step {s}": {"REACH": r, "STEP": s}
        for r, s in ((0.2, 0.25), (0.4, 0.25), (0.4, 0.5), (0.1, 0.5))
    },
    "mpd": {USUAL: {}}
    | {
        f"reach {r}, steps {s}": {"REACH": r, "SHORT": s}
        for r, s in ((0.4, 0.05), (0.2, 0.05), (0.4, 0.025), (0.1, 0.1))
    },
    "minucb": {USUAL: {}}
    | {
        f"reach {r}, beta {b}": {"REACH": r, "BETA": b}
        for r, b in ((0.4, 1.0), (0.2, 1.0), (0.2, 2.0), (0.4, 2.0))
    },
    "turbo": {USUAL: {}}
    | {
        f"side {s}, design {d}": {"SIDE": s, "DESIGN": d}
        for s, d in ((0.8, 2), (0.8, 1), (1.6, 2), (3.2, 1))
    },
}
FROM = 500
"""The first seed."""


@functools.cache
def usual() -> dict[tuple[Any, str], Any]:
    """The constants as they are, of all that some setting changes."""
    names = {name for of in SETTINGS.values() for setting in of.values() for name in setting}
    return {(m, name): getattr(m, name) for m in MODULES for name in names if hasattr(m, name)}


def changed(method: str, setting: str, task: str, seed: int) -> dict[str, Any]:
    """A run with the constants of a setting."""
    for (module, name), value in usual().items():
        setattr(module, name, SETTINGS[method][setting].get(name, value))
    return met(task, method, seed) | {"setting": setting}


def effort(run: dict[str, Any]) -> float:
    return np.log(run["episodes"] or 1.5 * run["budget"])


def score(runs: list[dict[str, Any]], others: list[dict[str, Any]]) -> float:
    """The geometric mean over tasks of that over seeds, in units of other runs of these tasks and
    seeds."""
    before = {(x["task"], x["seed"]): effort(x) for x in others}
    tasks: dict[str, list[float]] = {}
    for x in runs:
        if (x["task"], x["seed"]) in before:
            gain = effort(x) - before[x["task"], x["seed"]]
            tasks.setdefault(x["task"], []).append(gain)
    return float(np.exp(np.mean([np.mean(of) for of in tasks.values()])))


def table(path: Path) -> str:
    """A table in Markdown of the runs in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tasks = [name for name in TASKS if any(x["task"] == name for x in lines)]
    rows = [["method", "setting", "score", *tasks], ["---"] * (3 + len(tasks))]
    for method in SETTINGS:
        every_one = [x for x in lines if x["method"] == method]
        before = [x for x in every_one if x["setting"] == USUAL]
        for setting in sorted({x["setting"] for x in every_one}, key=lambda s: (s != USUAL, s)):
            of = [x for x in every_one if x["setting"] == setting]
            if of:
                each = [[x for x in of if x["task"] == t] for t in tasks]
                shown = (cell(runs).split(";")[0] for runs in each)
                rows.append([NAMES[method], setting, f"{score(of, before):.2f}", *shown])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["ours"], choices=SETTINGS)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--settings", nargs="+", help="some of a method's; all are the default")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first", type=int, default=FROM, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("results/search-settings.jsonl"))
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    if not given.table:
        seeds = range(given.first, given.first + given.seeds)
        settings = [(m, s) for m in given.methods for s in given.settings or SETTINGS[m]]
        jobs = [(m, s, t, seed) for seed in seeds for t in given.tasks for m, s in settings]
        every(changed, jobs, given.jobs, given.out)
    print(table(given.out))


if __name__ == "__main__":
    main()
