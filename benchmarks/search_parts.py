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


BANDITS = (1, 4, 16, 64)
RETURNS = ("bandit", "prior")


def drawn(n: int, returns: str, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Parameters in antithetic pairs, returns with noise of variance 0.09, and the gradient: of the
    bandit of `python benchmarks/experiments.py search`, or of a function that is drawn from the
    prior, with a length of 3 sqrt(n) and an amplitude of 9."""
    M = 4 * n
    e = rng.normal(size=(M // 2, n))
    X, noise = np.concatenate([e, -e]), 0.3 * rng.normal(size=M)
    if returns == "bandit":
        return X, X.sum(1) / n**0.5 + (X**2).sum(1) / n + noise, np.full(n, n**-0.5)
    a, l2 = 9.0, 9.0 * n
    K = a * np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, -1) / l2)
    near = a * np.exp(-0.5 * (np.sum(X**2, 1) / (l2 + 1) + n * np.log1p(1 / l2)))
    B = near[:, None] * X / (l2 + 1)
    b0 = a * np.exp(-0.5 * n * np.log1p(2 / l2)) / (l2 + 2)
    both = np.block([[K, B], [B.T, b0 * np.eye(n)]])
    f = np.linalg.cholesky(both + 1e-9 * a * np.eye(M + n)) @ rng.normal(size=M + n)
    return X, f[:M] + noise, f[M:]


def calibration(returns: str, n: int, seed: int) -> dict[str, Any]:
    """Whether the 95 % regions contain the gradient, that of the model and the default one; the
    squared error in units of the stated covariance, divided by n; the mean squared residual of the
    differences of pairs that are left out, in units of its stated variance; and the noise."""
    X, y, gradient = drawn(n, returns, np.random.default_rng([seed, n]))
    posterior = bayespg.search.gradient_posterior(X, y, mean=np.zeros(n), scale=1.0)
    error = np.asarray(posterior.mean) - gradient
    length, amplitude, noise = (
        float(posterior.info[name]) for name in ("length", "amplitude", "noise")
    )
    K = amplitude * np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, -1) / length**2)
    inverse = np.linalg.inv(K + noise * np.eye(len(y)))
    sums = inverse.sum(1)
    P = inverse - np.outer(sums, sums) / sums.sum()  # without the constant
    half, opposite, pairs = len(y) // 2, np.array([1.0, -1.0]), []
    for i in range(half):
        both = [i, i + half]
        left = np.linalg.pinv(P[np.ix_(both, both)])
        pairs.append((opposite @ left @ (P @ y)[both]) ** 2 / (opposite @ left @ opposite))
    return {
        "returns": returns, "parameters": n, "seed": seed,
        "model": bool(posterior.contains(gradient, 0.95, robust=False)),
        "default": bool(posterior.contains(gradient, 0.95)),
        "error": float(error @ np.linalg.solve(posterior.covariance, error)) / n,
        "left_out": float(np.mean(pairs)), "noise": noise,
    }  # fmt: skip


def calibration_table(path: Path) -> str:
    """Shares, means and standard errors, in Markdown; the noise is 0.09."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = ("model", "default", "error", "left_out", "noise")
    rows = [
        ["returns of", "parameters", "runs", "model's region", "default region", "squared error",
         "pair left out", "noise"], ["---"] * 8,
    ]  # fmt: skip
    for returns in RETURNS:
        for n in BANDITS:
            of = np.array([
                [x[name] for name in names]
                for x in lines if (x["returns"], x["parameters"]) == (returns, n)
            ], float)  # fmt: skip
            if len(of):
                mean, spread = of.mean(0), of.std(0, ddof=1) / len(of) ** 0.5
                shown = [f"{m:.2f} ± {s:.2f}" for m, s in zip(mean, spread, strict=True)]
                rows.append([returns, str(n), str(len(of)), *shown])
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
        jobs = [(r, n, s) for s in seeds for r in RETURNS for n in BANDITS]
        function, shows = calibration, calibration_table
    else:
        jobs = [(t, *p, s) for t in TRAINED for p in POLICIES for s in seeds]
        function, shows = policy, policies_table
    if not given.table:
        every(function, jobs, given.jobs, out)
    print(shows(out))


if __name__ == "__main__":
    main()
