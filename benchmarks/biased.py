"""Intervals of the actor-critic with lambda below 1, whose bias is part of the error.

    python benchmarks/biased.py --out docs/results/biased.jsonl
    python benchmarks/biased.py --table docs/results/biased.jsonl

The random walk of the paper and a linear-quadratic regulator, whose gradients are known. How often
intervals of 50 and 95 % hold a component of the gradient, and their width relative to that of Monte
Carlo with fitted values at the same coverage. "Without bias" are the same estimates with
intervals from their spread alone. One line of JSON for each task, number of episodes and estimator.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import lines
import numpy as np
import uphill_tasks

from bayespg._support.precision import to_float64
from bayespg.environments import LQR, RandomWalk, exact_gradient
from bayespg.learning.estimators import BACPaper, Estimator, MonteCarlo, steps_integrated_out
from bayespg.policies import LinearGaussian, Tabular, flatten
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


def measure(options: argparse.Namespace):
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
    found = [x for x in found if not x["estimator"].endswith("without bias")]
    estimators = list(dict.fromkeys(x["estimator"] for x in found))
    rows = [f"| task | M | {' | '.join(estimators)} |", "|---|---" + "|---" * len(estimators) + "|"]
    for task, paths in sorted(dict.fromkeys((x["task"], x["paths"]) for x in found)):
        cells = [
            f"{100 * x['interval_50']:.0f}, {100 * x['interval_95']:.0f}, {x['width_95']:.2f}"
            for x in found
            if (x["task"], x["paths"]) == (task, paths)
        ]
        rows.append(f"| {task} | {paths} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--paths", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    lines.run(parser, measure, table)


if __name__ == "__main__":
    main()
