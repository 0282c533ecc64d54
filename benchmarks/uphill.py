"""What is said of following the gradient, and how often it goes uphill, on tasks without a closed
form: CartPole, Acrobot and Pendulum at three stages of training, against gradients of very many
episodes. One command, best on a GPU:

    python benchmarks/uphill.py --out docs/results/uphill-tasks.jsonl

One line of JSON for each task, stage, number of episodes and estimator. Stages whose brute-force
gradient is itself uncertain say so: `doubt` is its squared standard error over its squared length.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bayespg import estimators, training, updates
from bayespg.calibration import brute_force, reliability
from bayespg.environments import classic
from bayespg.policies.features import Linear
from bayespg.policies.heads import Choice, Composed, Normals

TASKS = {
    "CartPole": (classic.CartPole(), lambda: Composed(Linear(4), Choice(5, (2,), True))),
    "Acrobot": (classic.Acrobot(), lambda: Composed(Linear(6), Choice(7, (3,), True))),
    "Pendulum": (classic.Pendulum(), lambda: Composed(Linear(3), Normals(4, 1))),
}
JUDGED = {
    "Monte Carlo": estimators.MonteCarlo("states"),
    "BAC": estimators.BAC(noise=None),
    "Model 2": estimators.Model2(noise=None, baseline=float("inf")),
}


def stages(environment, policy, count: int, key):
    """Policies after 0, `count` and 5 `count` updates."""
    yield 0, policy
    done = 0
    for many in (count, 5 * count):
        result = training.train(
            environment, policy, estimators.adaptive(), updates.trust_region(0.02),
            paths=8, updates=many - done, key=jax.random.fold_in(key, many),
        )  # fmt: skip
        policy, done = jax.tree.map(jnp.asarray, result.policy), many
        yield many, policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--episodes", type=int, default=100_000, help="of the brute-force gradient")
    parser.add_argument("--batch", type=int, default=500, help="episodes drawn at once")
    parser.add_argument("--runs", type=int, default=500, help="batches that are judged")
    parser.add_argument("--paths", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--updates", type=int, default=10, help="until the second stage")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    key = jax.random.key(0)
    with given.out.open("w", encoding="utf-8") as book:
        for name in given.tasks:
            environment, make = TASKS[name]
            for updates_done, policy in stages(environment, make(), given.updates, key):
                truth, error = brute_force(
                    environment, policy, estimators.MonteCarlo("states"),
                    batches=max(given.episodes // given.batch, 2), paths=given.batch, key=key,
                )  # fmt: skip
                doubt = float(np.sum(error**2) / max(np.sum(truth**2), 1e-300))
                for paths in given.paths:
                    for row in reliability(
                        environment, policy, JUDGED, paths=paths, runs=given.runs,
                        key=jax.random.fold_in(key, paths), truth=truth,
                    ):  # fmt: skip
                        line = {"task": name, "updates": updates_done, "paths": paths}
                        print(json.dumps(line | row._asdict() | {"doubt": doubt}), file=book)
                        book.flush()


if __name__ == "__main__":
    main()
