"""Parts of the search: how perturbations are drawn, which policies it can train, and how good
random policies are.

    python benchmarks/search_parts.py bandit [--seeds 20] [--jobs 2]
    python benchmarks/search_parts.py policies [--seeds 5] [--jobs 2]
    python benchmarks/search_parts.py random [--seeds 100] [--jobs 2]

They append a line of JSON per run to a file, such as results/search-bandit.jsonl, and print their
table; with --table they print it alone.
"""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from search import Gains, bayespg, every, search

from bayespg.search import ascent

FROM = 1000
"""The first seed of random policies."""
POLICIES = (
    ("linear", None), ("fourier", None), ("mlp", (8,)), ("mlp", (32,)), ("mlp", (160,)),
)  # fmt: skip
TRAINED = {"CartPole-v1": 200, "Pendulum-v1": 300}
"""Tasks for policies of other kinds, and episodes of training."""


def policy(name: str, kind: str, hidden: tuple[int, ...] | None, seed: int) -> dict[str, Any]:
    """Train a policy and evaluate it."""
    given = {} if hidden is None else {"hidden": hidden}
    agent = bayespg.PGPE(name, kind, seed=seed, **given)
    agent.learn(episodes=TRAINED[name], progress=False)
    return {
        "task": name, "policy": kind, "hidden": hidden, "parameters": agent.parameter_count,
        "seed": seed, "episodes": int(agent.state.episodes), "return": agent.evaluate(20).mean,
    }  # fmt: skip


def policies_table(path: Path) -> str:
    """Medians and ranges of the returns in a file, in Markdown."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [["task", "policy", "parameters", "return after training"], ["---"] * 4]
    for name in TRAINED:
        for kind, hidden in POLICIES:
            found = [
                x for x in lines
                if (x["task"], x["policy"], x["hidden"]) == (name, kind, hidden and list(hidden))
            ]  # fmt: skip
            if found:
                of = [x["return"] for x in found]
                shown = f"{np.median(of):.0f} ({min(of):.0f} to {max(of):.0f}), {len(of)} runs"
                layer = "" if hidden is None else f", {hidden[0]} hidden"
                rows.append([
                    f"{name}, {TRAINED[name]} episodes", f"{kind}{layer}",
                    str(found[0]["parameters"]), shown,
                ])  # fmt: skip
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


SIZE, ROUNDS = 16, 8


def bandit(draws: str, seed: int) -> dict[str, Any]:
    """Squared errors of the gradient, relative to its square, after each round at a mean that
    stays, on the bandit of `python benchmarks/experiments.py search` with 16 parameters."""
    ascent.STEPS = 0
    rng, found = np.random.default_rng(seed), search.Search(SIZE, scale=1.0, seed=seed, draws=draws)
    errors = []
    for _ in range(ROUNDS):
        X = found.ask()
        y = X.sum(1) / SIZE**0.5 + (X**2).sum(1) / SIZE + 0.3 * rng.normal(size=len(X))
        found.tell(X, y)
        errors.append(float(np.sum((np.asarray(found.posterior.mean) - SIZE**-0.5) ** 2)))
    return {"draws": draws, "seed": seed, "errors": errors}


def bandit_table(path: Path) -> str:
    """Mean errors and their standard errors, in Markdown."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    shown = (1, 3, 5, 7)
    rows = [["draws", *(f"{5 * (k + 1)} episodes" for k in shown)], ["---"] * (1 + len(shown))]
    for draws in search.DRAWS:
        of = np.array([x["errors"] for x in lines if x["draws"] == draws])
        spread = of.std(0, ddof=1) / len(of) ** 0.5
        rows.append([draws, *(f"{of[:, k].mean():.2f} ± {spread[k]:.2f}" for k in shown)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


SIZES = (0.2, 1.0, 5.0)
"""Standard deviations of random gains, for observations in units of their size."""


@functools.cache
def swimmer() -> Gains:
    return Gains("Swimmer-v5", in_units=True)


def random(size: float, seed: int) -> dict[str, Any]:
    """The return of a linear policy of Swimmer-v5 with normal gains."""
    theta = np.random.default_rng(FROM + seed).normal(size=swimmer().n)
    return {"size": size, "seed": seed, "return": swimmer().play(size * theta, FROM + seed)[0]}


def random_table(path: Path) -> str:
    """How many random policies swim, in Markdown."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [["gains", "policies", "median return", "above 50", "above 100", "best"], ["---"] * 6]
    for size in SIZES:
        of = np.array([x["return"] for x in lines if x["size"] == size])
        above = (f"{np.mean(of > level):.0%}" for level in (50, 100))
        rows.append([f"{size:g}", f"{of.size}", f"{np.median(of):.0f}", *above, f"{of.max():.0f}"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("bandit", "policies", "random"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="results/search-bandit.jsonl, ...")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    out = given.out or Path(f"results/search-{given.what}.jsonl")
    seeds = range(given.seeds)
    if given.what == "bandit":
        jobs = [(draws, s) for draws in search.DRAWS for s in seeds]
        function, shows = bandit, bandit_table
    elif given.what == "random":
        jobs = [(size, s) for s in seeds for size in SIZES]
        function, shows = random, random_table
    else:
        jobs = [(t, *p, s) for t in TRAINED for p in POLICIES for s in seeds]
        function, shows = policy, policies_table
    if not given.table:
        every(function, jobs, given.jobs, out)
    print(shows(out))


if __name__ == "__main__":
    main()
