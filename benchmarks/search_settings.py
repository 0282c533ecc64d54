"""The settings of the search, each changed alone, on seeds that no other table uses.

    python benchmarks/search_settings.py [--tasks CartPole-v1 ...] [--seeds 10] [--jobs 2] [--table]

Every line of `SETTINGS` gives constants of `bayespg.search` other values. The runs are those of
`benchmarks/search.py` with seeds from 100: a line of JSON per run is appended to
results/search-settings.jsonl, and the table is printed; with --table it is printed alone.
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import jax
from scipy import special
from search import TASKS, cell, every, met

from bayespg.search import ascent, search

MODULES = (ascent, search)
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "steps of 0.25": {"STEP": 0.25},
    "up to 10 steps": {"STEPS": 10},
    "steps with probability 0.8": {"QUANTILE": special.ndtri(0.8)},
    "steps never shortened by noise": {"SIGNAL": 1e-9},
    "rounds of 2 perturbations": {"LEAST": 1, "PER_PAIR": 24},
    "rounds of 8 perturbations": {"LEAST": 4},
    "the scale never changes": {"NARROWER": 1.0, "WIDER": 1.0},
    "on a sphere, a reach of 1": {"REACH": 1.0},
    "on a sphere, a reach of 2": {"REACH": 2.0},
}
FROM = 100
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
    jax.clear_caches()  # compiled programs contain the constants


def changed(setting: str, task: str, seed: int) -> dict[str, Any]:
    """A run with the constants of a setting."""
    use(setting)
    return met(task, "ours", seed) | {"setting": setting}


def table(path: Path) -> str:
    """A table in Markdown of the runs in a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tasks = [name for name in TASKS if any(x["task"] == name for x in lines)]
    rows = [["setting", *tasks], ["---"] * (1 + len(tasks))]
    for setting in SETTINGS:
        found = [[x for x in lines if (x["setting"], x["task"]) == (setting, t)] for t in tasks]
        if any(found):
            rows.append([setting, *(cell(runs).split(";")[0] for runs in found)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=["lqr3", "CartPole-v1"], choices=TASKS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("results/search-settings.jsonl"))
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    if not given.table:
        seeds = range(FROM, FROM + given.seeds)
        jobs = [(s, t, seed) for s in given.settings for t in given.tasks for seed in seeds]
        every(changed, jobs, given.jobs, given.out)
    print(table(given.out))


if __name__ == "__main__":
    main()
