"""The column `sure` of runs: CartPole, which is learned until nothing is left to learn, and a task
whose rewards are noise; and what the column costs, in updates from the same paths with and without
it.

    python benchmarks/sure.py --first 30 --out docs/results/sure.jsonl
    python benchmarks/sure.py --tasks --cost --out docs/results/sure.jsonl
    python benchmarks/sure.py --table docs/results/sure.jsonl
"""

import argparse
from collections.abc import Iterator
from typing import Any
from unittest import mock

import equinox as eqx
import gymnasium
import jax.numpy as jnp
import lines
import measure
import numpy as np

import bayespg
from bayespg._support import compilation
from bayespg.agents.agent import _learned
from bayespg.learning.trust import Trust

SEEDS, STEPS = 6, {"CartPole": 12_000, "noise": 8_000}
BEGUN = 100
"""Episodes of pure noise after which a run should have noticed."""
SOLVED = 499.0
TIMED = (
    ("CartPole", "fourier", None, 2), ("CartPole", "fourier", None, 16),
    ("Pendulum", "mlp", (16, 16), 2), ("Pendulum", "mlp", (16, 16), 16),
    ("Pendulum", "mlp", (64, 64), 4), ("Pendulum", "mlp", (256, 256), 4),
)  # fmt: skip
"""Tasks in JAX, policies, hidden layers and episodes whose updates are timed."""
REPEATED = 150


class Noise(gymnasium.Env):
    """Twenty steps of independent observations and rewards, whatever the actions."""

    observation_space = gymnasium.spaces.Box(-3, 3, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def _observation(self):
        return np.clip(self.np_random.normal(size=4), -3, 3).astype(np.float32)

    def step(self, action):
        self.t += 1
        return self._observation(), float(self.np_random.normal()), False, self.t >= 20, {}


def trained(task: str, seed: int) -> dict:
    agent = bayespg.BAC("CartPole-v1" if task == "CartPole" else Noise(), seed=seed)
    rows = []
    while int(agent.state.steps) < STEPS[task]:
        row = agent.update()
        rows.append([int(agent.state.episodes), round(row["return"], 2), round(row["sure"], 4)])
    return {"task": task, "seed": seed, "columns": ["episodes", "return", "sure"], "rows": rows}


def cost(task: str, policy: str, hidden: tuple[int, ...] | None, episodes: int) -> dict:
    """Milliseconds of processor time of one update with and without the column, the least of many:
    the two take turns."""
    name = f"jax/{task}-v1"
    agent = bayespg.BAC(name, policy=policy, hidden=hidden, episodes=episodes, seed=0)
    agent.update()
    quickly: dict[str, Any] = {"compiler_options": compilation.fast(double=agent._double)}
    with agent.precision():
        given = agent._arguments(agent.draw())
        whole, without = (eqx.filter_jit(lambda *a: _learned(*a), **quickly) for _ in range(2))  # pyright: ignore
        with mock.patch.object(Trust, "sure", lambda self, _: (jnp.asarray(0.5), self)):
            measure.once(lambda: without(*given))
        measure.once(lambda: whole(*given))
        took = [
            [measure.once(lambda f=f: f(*given))[0] for f in (whole, without)]
            for _ in range(REPEATED)
        ]
    both, one = (1e3 * measure.fastest(timings).work for timings in zip(*took, strict=True))
    return {
        "task": task, "policy": policy, "hidden": hidden, "parameters": agent.parameter_count,
        "episodes": episodes, "update": round(both, 3), "without": round(one, 3),
    } | lines.machine()  # fmt: skip


def table_of_costs(found: list[dict]) -> str:
    text = [
        "| task | policy | parameters | episodes | ms per update | ms without `sure` | more |",
        "|---" * 7 + "|",
    ]
    for x in found:
        layers = " x ".join(map(str, x["hidden"] or []))
        text.append(
            f"| {x['task']} | {x['policy']} {layers}".rstrip() + f" | {x['parameters']:,} | "
            f"{x['episodes']} | {x['update']:.1f} | {x['without']:.1f} | "
            f"{x['update'] / x['without'] - 1:.0%} |"
        )
    return "\n".join(text)


def table(found: list[dict]) -> str:
    runs = [line for line in found if "rows" in line]
    costs = [line for line in found if "without" in line]
    return "\n\n".join([table_of_runs(runs), *([table_of_costs(costs)] if costs else [])])


def table_of_runs(runs: list[dict]) -> str:
    text = [
        "| seed | CartPole: largest while learning | mean once all episodes last 500 steps "
        "| noise: mean after 100 episodes |",
        "|---|---|---|---|",
    ]
    for seed in dict.fromkeys(run["seed"] for run in runs):
        of = {run["task"]: np.array(run["rows"]) for run in runs if run["seed"] == seed}
        _, returns, sure = of["CartPole"].T
        solved = returns >= SOLVED
        after = f"{sure[solved].mean():.2f}" if solved.any() else ""
        episodes, _, noise = of["noise"].T
        later = noise[episodes > BEGUN].mean()
        text.append(f"| {seed} | {sure[~solved].max():.2f} | {after} | {later:.2f} |")
    return "\n".join(text)


def every(options: argparse.Namespace) -> Iterator[lines.Line]:
    seeds = range(options.first, options.first + SEEDS)
    yield from (trained(task, seed) for task in options.tasks for seed in seeds)
    if options.cost:
        yield from (cost(*one) for one in TIMED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--tasks", nargs="*", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--cost", action="store_true", help="time updates, too")
    lines.run(parser, every, table)
