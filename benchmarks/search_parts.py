"""Parts of the search: which policies it can train, and why regions of the gradient are too small
with many parameters.

    python benchmarks/search_parts.py policies [--seeds 5] [--jobs 2]
    python benchmarks/search_parts.py calibration [--seeds 40] [--jobs 2]

They append a line of JSON per run to a file, such as results/search-policies.jsonl, and print their
table; with --table they print it alone.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from search import bayespg, every

POLICIES = (
    ("linear", None), ("fourier", None), ("mlp", (8,)), ("mlp", (32,)), ("mlp", (160,)),
)  # fmt: skip
TRAINED = {"CartPole-v1": 200}
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


BANDITS = (4, 16, 64)


def calibration(n: int, seed: int) -> dict[str, Any]:
    """On the bandit of `python benchmarks/experiments.py search`: the squared error of the gradient
    in units of the stated covariance, divided by n; the mean squared residual of episodes that are
    left out, in units of its stated variance; and the noise. Each but the last should be one."""
    rng, M = np.random.default_rng([seed, n]), 4 * n
    e = rng.normal(size=(M // 2, n))
    X = np.concatenate([e, -e])
    y = X.sum(1) / n**0.5 + (X**2).sum(1) / n + 0.3 * rng.normal(size=M)
    posterior = bayespg.search.gradient_posterior(X, y, mean=np.zeros(n), scale=1.0)
    error = np.asarray(posterior.mean) - n**-0.5
    length, amplitude, noise = (
        float(posterior.info[name]) for name in ("length", "amplitude", "noise")
    )
    K = amplitude * np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, -1) / length**2)
    inverse = np.linalg.inv(K + noise * np.eye(M))
    sums = inverse.sum(1)
    P = inverse - np.outer(sums, sums) / sums.sum()  # without the constant
    return {
        "parameters": n, "seed": seed,
        "error": float(error @ np.linalg.solve(posterior.covariance, error)) / n,
        "left_out": float(np.mean((P @ y) ** 2 / np.diag(P))), "noise": noise,
    }  # fmt: skip


def calibration_table(path: Path) -> str:
    """Means and standard errors, in Markdown; the noise is 0.09."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [["parameters", "runs", "squared error", "residual left out", "noise"], ["---"] * 5]
    for n in BANDITS:
        of = np.array([
            [x[name] for name in ("error", "left_out", "noise")]
            for x in lines if x["parameters"] == n
        ])  # fmt: skip
        spread = of.std(0, ddof=1) / len(of) ** 0.5
        shown = (f"{m:.3f} ± {s:.3f}" for m, s in zip(of.mean(0), spread, strict=True))
        rows.append([str(n), str(len(of)), *shown])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("policies", "calibration"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="results/search-policies.jsonl, ...")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    out = given.out or Path(f"results/search-{given.what}.jsonl")
    seeds = range(given.seeds)
    if given.what == "calibration":
        jobs = [(n, s) for n in BANDITS for s in seeds]
        function, shows = calibration, calibration_table
    else:
        jobs = [(t, *p, s) for t in TRAINED for p in POLICIES for s in seeds]
        function, shows = policy, policies_table
    if not given.table:
        every(function, jobs, given.jobs, out)
    print(shows(out))


if __name__ == "__main__":
    main()
