"""The settings of the search, each changed alone, with one score over all tasks.

    python benchmarks/search_settings.py [--tasks CartPole-v1 ...] [--seeds 12] [--jobs 2] [--table]

Every line of `SETTINGS` gives constants of `bayespg.search` other values. The runs are those of
`benchmarks/search.py` with seeds from 500: a line of JSON per run is appended to
results/search-settings.jsonl, and the table is printed; with --table it is printed alone. The score
is the geometric mean over tasks and seeds of the episodes to the threshold, 1.5 times the budget
where it was not met.
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from search import TASKS, cell, every, met

from bayespg.search import process, search

MODULES = (process, search)
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "steps of 0.3": {"STEP": 0.3},
    "half a standard deviation": {"OPTIMISM": 0.5},
    "two standard deviations": {"OPTIMISM": 2.0},
    "distances of 0.25 to 1": {"DISTANCES": (0.25, 1.0)},
    "one direction": {"DIRECTIONS": 1},
    "32 directions": {"DIRECTIONS": 32},
    "the scale never changes": {"NARROWER": 1.0, "WIDER": 1.0},
    "one length and ratio, no average": {"PARTS": 1},
}
FROM = 500
"""The first seed."""


@functools.cache
def usual() -> dict[tuple[Any, str], Any]:
    """The constants as they are, of all that some setting changes."""
    names = {name for setting in SETTINGS.values() for name in setting}
    return {(m, name): getattr(m, name) for m in MODULES for name in names if hasattr(m, name)}


@functools.lru_cache(maxsize=1)
def use(setting: str) -> None:
    """Give the constants of this process the values of a setting."""
    for (module, name), value in usual().items():
        setattr(module, name, SETTINGS[setting].get(name, value))


def changed(setting: str, task: str, seed: int) -> dict[str, Any]:
    """A run with the constants of a setting."""
    use(setting)
    return met(task, "ours", seed) | {"setting": setting}


def score(runs: list[dict[str, Any]]) -> float:
    """The geometric mean over tasks of that over seeds."""
    tasks = {x["task"] for x in runs}
    each = [
        [np.log(x["episodes"] or 1.5 * x["budget"]) for x in runs if x["task"] == t] for t in tasks
    ]
    return float(np.exp(np.mean([np.mean(of) for of in each])))


def table(path: Path) -> str:
    """A table in Markdown of the runs in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tasks = [name for name in TASKS if any(x["task"] == name for x in lines)]
    rows = [["setting", "score", *tasks], ["---"] * (2 + len(tasks))]
    for setting in SETTINGS:
        of = [x for x in lines if x["setting"] == setting]
        if of:
            each = [[x for x in of if x["task"] == t] for t in tasks]
            shown = (cell(runs).split(";")[0] for runs in each)
            rows.append([setting, f"{score(of):.1f}", *shown])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("results/search-settings.jsonl"))
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    if not given.table:
        seeds = range(FROM, FROM + given.seeds)
        jobs = [(s, t, seed) for seed in seeds for t in given.tasks for s in given.settings]
        every(changed, jobs, given.jobs, given.out)
    print(table(given.out))


if __name__ == "__main__":
    main()
