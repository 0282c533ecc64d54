"""The column `sure` of runs: CartPole, which is learned until nothing is left to learn, and a task
whose rewards are noise.

    python benchmarks/sure.py --first 30 --out docs/results/sure.jsonl
    python benchmarks/sure.py --table docs/results/sure.jsonl
"""

import argparse
from collections.abc import Iterator

import gymnasium
import lines
import numpy as np

import bayespg

SEEDS, STEPS = 6, {"CartPole": 12_000, "noise": 8_000}
BEGUN = 100
"""Episodes of pure noise after which a run should have noticed."""
SOLVED = 499.0


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


def table(runs: list[dict]) -> str:
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
    return (trained(task, seed) for task in options.tasks for seed in seeds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--tasks", nargs="*", default=list(STEPS), choices=list(STEPS))
    lines.run(parser, every, table)
