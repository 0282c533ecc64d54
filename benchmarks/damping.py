"""What damping does to Model 2 when only scores are known: the length of the gradient, and how
often intervals contain it.

    python benchmarks/damping.py --out docs/results/damping.jsonl
    python benchmarks/damping.py --table docs/results/damping.jsonl

Scores are Gaussian with a diagonal Fisher matrix, and returns are 5 + u'w plus noise, so that the
gradient is G w exactly. G is estimated by the outer products of the same scores, with damping from
0 to 100 times its mean eigenvalue. "read out with G" is `fisher.monte_carlo`; "read out with D"
gives Model 2 the damped matrix as if it were the Fisher matrix, as version 0.2 did. Scale and noise
are chosen by evidence and the baseline is flat. One line of JSON for each problem, way and damping;
`length` is that of the mean over the truth's, `along` its component along the truth, `held` the
share of 95 % intervals of components, and `region` that of joint regions, that hold the truth.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import lines
import numpy as np

from bayespg import evidence, fisher
from bayespg._support.statistics import f_quantile, student_quantile
from bayespg.posterior import component_statistics, region_statistics

PROBLEMS = {
    "0.09 I": (2, 30, 1.0),
    "eigenvalues over two decades": (5, 20, 0.1),
    "eigenvalues over two decades, more paths": (40, 60, 0.1),
    "more parameters than paths, 0.09 I": (40, 30, 1.0),
    "more parameters than paths, two decades": (40, 30, 0.1),
}
"""Parameters, paths, and the smallest standard deviation of scores over the largest, 0.3."""
DAMPINGS = (None, 0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
LEVEL = 0.95


def drawn(name: str, runs: int, seed: int):
    """Scores and returns of many batches, and the exact gradient."""
    n, M, least = PROBLEMS[name]
    rng = np.random.default_rng([seed, list(PROBLEMS).index(name)])
    deviations = 0.3 * np.geomspace(1.0, least, n)
    w = rng.normal(size=n)
    w /= np.linalg.norm(deviations * w)  # signal and noise have the same variance
    U = rng.normal(size=(runs, M, n)) * deviations
    return U, 5 + U @ w + rng.normal(size=(runs, M)), deviations**2 * w


@functools.partial(jax.jit, static_argnames="read_out")
def judged(U, R, truth, damping, read_out):
    def one(batch):
        U, R = batch
        if read_out:
            G = fisher.monte_carlo(U, damping)
        else:
            M, n = U.shape
            G = U.T @ U / M + damping * jnp.mean(U**2) * jnp.eye(n)
        found = evidence.model2(U, R, G)
        return found.mean, component_statistics(found), region_statistics(found, truth)

    return jax.lax.map(one, (U, R), batch_size=50)


def measure(name: str, damping: float | None, read_out: bool, runs: int, seed: int) -> lines.Line:
    U, R, truth = drawn(name, runs, seed)
    n, M, _ = PROBLEMS[name]
    used = min(1.0, n / M) if damping is None else damping
    with jax.enable_x64(True):
        found = judged(jnp.asarray(U), jnp.asarray(R), jnp.asarray(truth), used, read_out)
        mean, (centre, spread, freedom), (distance, V, rank, nu) = jax.tree.map(np.asarray, found)
    reach = spread * student_quantile(LEVEL, freedom)
    size = np.linalg.norm(truth)
    return {
        "problem": name,
        "way": "read out with G" if read_out else "read out with D",
        "damping": damping,
        "runs": runs,
        "length": float(np.linalg.norm(mean, axis=1).mean() / size),
        "along": float((mean @ truth).mean() / size**2),
        "error": float(np.sum((mean - truth) ** 2, 1).mean() / size**2),
        "held": float(np.mean(np.abs(centre - truth) <= reach)),
        "region": float(np.mean(distance <= V * f_quantile(LEVEL, rank, nu))),
        "width": float(np.median(2 * reach) / size),
    }


def every(options: argparse.Namespace):
    for name in PROBLEMS:
        for damping in DAMPINGS:
            yield measure(name, damping, True, options.runs, options.seed)
        for damping in (0.1, 1.0, 100.0):
            yield measure(name, damping, False, options.runs, options.seed)


def table(found: list[lines.Line]) -> str:
    rows = [
        "| problem | way | damping | length | along the truth | squared error | intervals that "
        "hold it | regions | median width |",
        "|---" * 9 + "|",
    ]
    for x in found:
        n, M, _ = PROBLEMS[x["problem"]]
        damping = f"default, {min(1, n / M):.2g}" if x["damping"] is None else f"{x['damping']:g}"
        rows.append(
            f"| {x['problem']}, n = {n}, M = {M} | {x['way']} | {damping} | {x['length']:.2f} | "
            f"{x['along']:.2f} | {x['error']:.2f} | {100 * x['held']:.0f} % | "
            f"{100 * x['region']:.0f} % | {x['width']:.2f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    lines.run(parser, every, table)


if __name__ == "__main__":
    main()
