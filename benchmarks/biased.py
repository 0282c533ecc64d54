"""Intervals of the actor-critic with lambda below 1, whose bias is part of the error.

    python benchmarks/biased.py --out docs/results/biased.jsonl
    python benchmarks/biased.py --table docs/results/biased.jsonl
    python benchmarks/biased.py --normal --out docs/results/biased-normal.jsonl

The random walk of the paper and a linear-quadratic regulator, whose gradients are known. How often
intervals of 50 and 95 % hold a component of the gradient, and their width relative to that of Monte
Carlo with fitted values at the same coverage. "Without bias" are the same estimates with
intervals from their spread alone. One line of JSON for each task, number of episodes and estimator.

With `--normal` the same rule where all errors are normal with known variances: an estimate c with
a bias and an error of variance `spread`^2, and h, without a bias, whose difference has variance 1.
The bias, the same in all components, is in standard deviations of c - h.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import lines
import numpy as np
import suite_report
import uphill_tasks

from bayespg._support.precision import to_float64
from bayespg.environments import LQR, RandomWalk, exact_gradient
from bayespg.learning.estimators import BACPaper, Estimator, MonteCarlo, steps_integrated_out
from bayespg.policies import LinearGaussian, Tabular, flatten
from bayespg.posterior.statistics import weight_of_biased
from bayespg.reproduce import random_walk as rw

TASKS = {
    "random walk": (RandomWalk(horizon=100), Tabular(jnp.full(9, rw.START)), rw.STATE_KERNEL),
    "LQR": (LQR(), LinearGaussian(-0.2, 1.0), None),
}
LAMBDAS = (0.0, 0.5, 0.9)


class WithoutBias(Estimator):
    """The same estimate; its intervals do not know of its bias."""

    of: Estimator

    @property
    def needs(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.of.needs

    def __call__(self, batch):
        return dataclasses.replace(self.of(batch), bias_shows=False)


def judged(kernel) -> dict[str, Estimator]:
    found: dict[str, Estimator] = {
        uphill_tasks.MC: MonteCarlo(
            "states", fisher=steps_integrated_out, state_kernel=kernel, noise=rw.NOISE,
            limit_ends=True,
        )
    }  # fmt: skip
    for lambda_ in LAMBDAS:
        ours = BACPaper(kernel, rw.NOISE, 1.0, limit_ends=True, lambda_=lambda_)
        found |= {
            f"lambda {lambda_:g}": ours,
            f"lambda {lambda_:g}, without bias": WithoutBias(ours),
        }
    return found


BIASES, SPREADS, COMPONENTS, DRAWS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0), (0.3, 1.0), (1, 2, 9), 20_000


def normal(rng: np.random.Generator):
    for n in COMPONENTS:
        for spread in SPREADS:
            for bias in BIASES:
                apart = rng.normal(size=(DRAWS, n))
                w, more = map(np.asarray, weight_of_biased(np.mean((bias - apart) ** 2, 1), n))
                error = spread * rng.normal(size=(DRAWS, n)) + apart
                error += w[:, None] * (bias - apart)
                deviation = np.sqrt(spread**2 + (1 - w) ** 2 + w**2 * more)[:, None]
                holds = {
                    f"interval_{level}": float(np.mean(np.abs(error) <= z * deviation))
                    for level, z in ((50, 0.6745), (95, 1.96))
                }
                yield {"components": n, "spread": spread, "bias": bias} | holds


def table_of_normal(found: list[lines.Line]) -> str:
    biases = list(dict.fromkeys(x["bias"] for x in found))
    heads, rows = ["components", "error of c", *(f"bias {bias:g}" for bias in biases)], []
    for n, spread in dict.fromkeys((x["components"], x["spread"]) for x in found):
        same = [x for x in found if (x["components"], x["spread"]) == (n, spread)]
        rows.append([str(n), f"{spread:g}", *map(held, same)])
    return suite_report.table(heads, rows)


def held(cell: lines.Line) -> str:
    """The per cent that intervals of 50 and 95 % hold."""
    return f"{100 * cell['interval_50']:.0f}, {100 * cell['interval_95']:.0f}"


def measure(options: argparse.Namespace):
    if options.normal:
        yield from normal(np.random.default_rng(options.seed))
        return
    for task in options.tasks:
        environment, policy, kernel = TASKS[task]
        with jax.enable_x64(True):
            policy = to_float64(policy)
            truth = np.asarray(exact_gradient(environment, policy))
            estimators = judged(kernel)
            for M in options.paths:
                runs = options.runs // (uphill_tasks.UPDATES - uphill_tasks.BEFORE)
                shape = uphill_tasks.UPDATES, max(runs, 1)
                keys = jax.random.split(jax.random.key(options.seed), shape)
                found = uphill_tasks._statistics(
                    environment, policy, list(estimators.values()),
                    jnp.asarray(truth, flatten(policy)[0].dtype), M, keys,
                )  # fmt: skip
                found = jax.tree.map(lambda x: np.asarray(x, float), found)
                for cell in uphill_tasks._summaries(estimators, found, truth):
                    yield {"task": task, "paths": M, "runs": options.runs} | cell


def table(found: list[lines.Line]) -> str:
    """For each estimator the per cent that intervals of 50 and 95 % hold, and the width."""
    if "bias" in found[0]:
        return table_of_normal(found)
    found = [x for x in found if not x["estimator"].endswith("without bias")]
    estimators = list(dict.fromkeys(x["estimator"] for x in found))
    rows = []
    for task, paths in sorted(dict.fromkeys((x["task"], x["paths"]) for x in found)):
        same = [x for x in found if (x["task"], x["paths"]) == (task, paths)]
        rows.append([task, str(paths), *(f"{held(x)}, {x['width_95']:.2f}" for x in same)])
    return suite_report.table(["task", "M", *estimators], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--paths", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--normal", action="store_true", help="normal errors, no tasks")
    lines.run(parser, measure, table)


if __name__ == "__main__":
    main()
