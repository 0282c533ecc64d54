"""Why the intervals are as they are: other small-sample corrections, also on rewards that were not
used to choose ours, in plain NumPy.

    python benchmarks/intervals.py --out docs/results/intervals.jsonl
    python benchmarks/intervals.py --table docs/results/intervals.jsonl

A bandit with a Gaussian policy, scores u = (a, a^2 - 1), and least squares of the return on a
constant and u: Model 2 with a weak prior. The spread comes from residuals divided by 1 - h, with h
the leverage (the jackknife, HC3), or by its square root (CR2). The degrees of freedom come from the
kurtosis of the influences (ours) or from the design (Bell and McCaffrey); the bootstrap of the
studentised error needs none. `exact` is the critical value with which HC3 would hold the gradient
in 95 % of the runs: a procedure can be right on all rewards only if it can tell them apart.
One line of JSON for each reward, number of paths and procedure.
"""

import argparse

import lines
import numpy as np
from scipy import stats

G = np.diag([1.0, 2.0])
REWARDS = {
    "a² + noise": lambda a, e: a**2 + e,
    "sin 3a": lambda a, e: np.sin(3 * a),
    "exp(a/2)": lambda a, e: np.exp(a / 2),
    "a³": lambda a, e: a**3,
    "|a - 0.3|": lambda a, e: np.abs(a - 0.3),
    "a + |a| noise": lambda a, e: a + np.abs(a) * e,
}
"""The first three are those of `calibration.py`, on which ours was chosen."""
RESAMPLES = 200


def exact_gradient(reward) -> np.ndarray:
    a, w = np.polynomial.hermite_e.hermegauss(120)
    return (w / w.sum() * reward(a, 0 * a)) @ np.stack([a, a**2 - 1], 1)


def fitted(U, R, power=1.0):
    """Gradients G w, the influence of each path on them, and what Bell and McCaffrey need."""
    X = np.concatenate([np.ones_like(R)[..., None], U], -1)
    A = np.linalg.inv(X.swapaxes(1, 2) @ X + 1e-9 * np.eye(3))
    XA = X @ A
    w = np.einsum("bmi,bm->bi", XA, R)
    left = np.maximum(1 - np.sum(XA * X, -1), 1e-9) ** power
    residuals = R - np.einsum("bmi,bi->bm", X, w)
    influence = (residuals / left)[..., None] * XA[..., 1:] @ G
    return w[:, 1:] @ G, influence, (X, XA, left)


def by_kurtosis(influence) -> np.ndarray:
    M = influence.shape[1]
    squares = influence**2
    kurtosis = M * np.sum((squares / squares.sum(1, keepdims=True)) ** 2, 1)
    return np.clip(np.minimum(2 * M / np.maximum(kurtosis - 1, 1e-3), M - 3), 1, M - 1)


def by_design(X, XA, left) -> np.ndarray:
    """(tr B)^2 / tr B^2 for the quadratic form B of equal noise (Bell and McCaffrey, 2002)."""
    M = X.shape[1]
    rest = np.eye(M) - XA @ X.swapaxes(1, 2)
    found = []
    for j in (1, 2):
        Q = rest * (XA[..., j] / left)[..., None]
        B = Q @ Q.swapaxes(1, 2)
        found.append(np.trace(B, axis1=1, axis2=2) ** 2 / np.sum(B**2, (1, 2)))
    return np.clip(np.stack(found, -1), 1, M - 1)


def studentised(U, R, g, rng, level) -> np.ndarray:
    """The quantile of |g* - g| / s* over resampled paths."""
    runs, M = R.shape
    found = np.empty((RESAMPLES, runs, 2))
    for k in range(RESAMPLES):
        rows = rng.integers(0, M, (runs, M))
        drawn = np.take_along_axis(U, rows[..., None], 1), np.take_along_axis(R, rows, 1)
        again, influence, _ = fitted(*drawn)
        spread = np.sqrt(np.sum(influence**2, 1))
        found[k] = np.abs(again - g) / np.maximum(spread, 1e-12)
    return np.quantile(found, level, axis=0)


def measure(name: str, M: int, runs: int, rng) -> list[dict]:
    a, noise = rng.normal(size=(2, runs, M))
    U, R, truth = (
        np.stack([a, a**2 - 1], -1),
        REWARDS[name](a, noise),
        exact_gradient(REWARDS[name]),
    )
    g, influence, design = fitted(U, R)
    spread, error = np.sqrt(np.sum(influence**2, 1)), np.abs(g - truth)
    _, adjusted, half = fitted(U, R, 0.5)
    ours = by_kurtosis(influence)

    def t(freedom):
        return lambda level: stats.t.ppf(0.5 + level / 2, freedom)

    ways = {
        "HC3, kurtosis (ours)": (spread, t(ours)),
        "HC3, the smaller of both": (spread, t(np.minimum(ours, by_design(*design)))),
        "CR2, Bell and McCaffrey": (np.sqrt(np.sum(adjusted**2, 1)), t(by_design(*half))),
        "bootstrap-t": (spread, lambda level: studentised(U, R, g, rng, level)),
    }
    found = []
    for way, (s, quantile) in ways.items():
        line = {"reward": name, "paths": M, "procedure": way, "runs": runs}
        for level in (0.5, 0.95):
            reach = s * quantile(level)
            line[f"held_{100 * level:.0f}"] = np.mean(error <= reach, 0).tolist()
            line[f"width_{100 * level:.0f}"] = np.median(2 * reach, 0).tolist()
        line["exact"] = np.quantile(error / np.maximum(spread, 1e-300), 0.95, axis=0).tolist()
        found.append(line)
    return found


def table(found: list[lines.Line]) -> str:
    ways = list(dict.fromkeys(x["procedure"] for x in found))
    cells = {(x["reward"], x["paths"], x["procedure"]): x for x in found}
    rows = ["| reward | M | " + " | ".join(ways) + " | critical value needed |"]
    rows.append("|---" * (3 + len(ways)) + "|")
    for reward, M in dict.fromkeys((x["reward"], x["paths"]) for x in found):
        first = cells[reward, M, ways[0]]
        shown = []
        for way in ways:
            x = cells[reward, M, way]
            held = [f"{100 * np.mean(x[f'held_{level}']):.0f}" for level in (50, 95)]
            wider = np.mean(np.divide(x["width_95"], first["width_95"]))
            times = f"{wider:.1f}" if wider < 100 else "> 100"
            shown.append(f"{held[0]} / {held[1]}" + ("" if x is first else f" ({times})"))
        needed = " and ".join(f"{q:.1f}" if q < 100 else "> 100" for q in first["exact"])
        escaped = reward.replace("|", "\\|")
        rows.append(f"| {escaped} | {M} | " + " | ".join(shown) + f" | {needed} |")
    return "\n".join(rows)


def every(options: argparse.Namespace):
    rng = np.random.default_rng(options.seed)
    for name in REWARDS:
        for paths in options.paths:
            yield from measure(name, paths, options.runs, rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--paths", type=int, nargs="*", default=[5, 10, 20, 50])
    parser.add_argument("--seed", type=int, default=0)
    lines.run(parser, every, table)


if __name__ == "__main__":
    main()
