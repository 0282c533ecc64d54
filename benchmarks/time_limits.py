"""What a time limit means to the gradient: cosines with the exact one where states drift away.

    python benchmarks/time_limits.py [--out results/time-limits.jsonl] [--batches 48]

A point mass in the plane is pushed by two continuous actions and earns minus its distance from a
goal, for 100 steps; nothing ends an episode but the time limit. Policies push it away from where it
is, by `outward` per unit of position. Rewards and dynamics can be differentiated, so the exact
gradient of the return is known up to the number of simulated episodes (8,192). Each row has the
cosine of the mean gradient of many batches, the mean cosine of single batches, and the share of
batches whose gradient goes uphill, for the default estimator with an unknown tail after the limit,
as in the paper's equations, and with the limit as the end.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  # noqa: F401  (first, for the thread pool)


import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespg.environments import Environment
from bayespg.learning.batch import draw
from bayespg.learning.estimators import BAC
from bayespg.policies import as_arrays, as_dtype, flatten
from bayespg.policies.features import Linear
from bayespg.policies.heads import Composed, Normals

UNITS = np.array([1.5, 1.5, 0.45, 0.45, 0.58, 0.58], np.float32)
"""Of positions, velocities and goals, so that observations are about of size one."""
OUTWARD, SIZES = (0.0, 0.3, 1.0), (2, 4, 16, 256)


class Navigation(Environment):
    horizon: int = eqx.field(static=True, default=100)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key, paths):
        x, goal = jax.random.uniform(key, (2, paths, 2), minval=-1, maxval=1)
        return jnp.concatenate([x, jnp.zeros_like(x), goal], 1) / UNITS

    def step(self, key, states, actions):
        x, v, goal = jnp.split(states * UNITS, 3, 1)
        v = 0.97 * v + 0.1 * jnp.clip(actions, -1, 1)
        x = x + 0.1 * v
        rewards = -jnp.linalg.norm(x - goal, axis=1)
        return jnp.concatenate([x, v, goal], 1) / UNITS, rewards, jnp.zeros(len(x), bool)


def exact(policy, episodes=2048, repeats=4) -> np.ndarray:
    """The gradient of the undiscounted return, through the dynamics."""
    theta, rebuild = flatten(policy)
    task = Navigation()

    def value(theta, key):
        now, (key_start, key_noise) = rebuild(theta), jax.random.split(key)
        noise = jax.random.normal(key_noise, (task.horizon, episodes, 2))

        def step(states, e):
            at = jax.vmap(now)(states)
            states, rewards, _ = task.step(key, states, at.mean + jnp.exp(at.log_scale) * e)
            return states, rewards

        start = task.reset(key_start, episodes)
        return jnp.mean(jnp.sum(jax.lax.scan(step, start, noise)[1], 0))

    slope = jax.jit(jax.grad(value))
    return np.mean([np.asarray(slope(theta, jax.random.key(i))) for i in range(repeats)], 0)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def rows(batches: int):
    for outward in OUTWARD:
        weights = np.zeros((2, 7))
        weights[0, 0] = weights[1, 1] = outward
        policy = as_dtype(as_arrays(Composed(Linear(6), Normals(7, 2))), jnp.float64)
        policy = eqx.tree_at(lambda p: p.head.weights, policy, jnp.asarray(weights))
        truth = exact(policy)
        for limit, ends in (("unknown tail", False), ("end", True)):
            estimator = BAC(limit_ends=ends)
            for M in SIZES:
                count = max(batches * 4 // M, 8) if M > 16 else batches

                def one(key, estimator=estimator, M=M, policy=policy):
                    return estimator(draw(Navigation(), policy, key, M)).mean

                keys = jax.random.split(jax.random.key(100 + M), count)
                gradients = np.asarray(jax.jit(lambda keys, one=one: jax.lax.map(one, keys))(keys))
                units = gradients / np.linalg.norm(gradients, axis=1, keepdims=True)
                each = [cosine(g, truth) for g in gradients]
                yield {
                    "outward": outward, "limit": limit, "episodes": M, "batches": count,
                    "of_the_mean": round(cosine(units.mean(0), truth), 3),
                    "mean": round(float(np.mean(each)), 3),
                    "error": round(float(np.std(each) / np.sqrt(count)), 3),
                    "uphill": round(float(np.mean(np.array(each) > 0)), 3),
                }  # fmt: skip


def table(path: Path) -> None:
    """The stored rows side by side."""
    stored = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    shown = {(row["outward"], row["episodes"], row["limit"]): row for row in stored}
    print(
        "| outward | episodes | unknown tail: cosine of the mean | uphill "
        "| limit as the end: cosine of the mean | uphill |\n|---|---|---|---|---|---|"
    )
    for outward in OUTWARD:
        for M in SIZES:
            both = [shown[outward, M, limit] for limit in ("unknown tail", "end")]
            cells = [f"{row['of_the_mean']:.2f} | {row['uphill']:.2f}" for row in both]
            print(f"| {outward} | {M} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/time-limits.jsonl"))
    parser.add_argument("--batches", type=int, default=48)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    options.out.parent.mkdir(exist_ok=True)
    with options.out.open("w") as file:
        for row in rows(options.batches):
            file.write(json.dumps(row) + "\n")
    table(options.out)


if __name__ == "__main__":
    main()
