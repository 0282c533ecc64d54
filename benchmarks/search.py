"""Episodes to a threshold by search in the space of parameters, beside ARS and CMA-ES.

    python benchmarks/search.py run [--tasks CartPole-v1 lqr3 ...] [--methods ours ars cma]
    python benchmarks/search.py table
    python benchmarks/search.py overhead

`run` appends a line of JSON per finished run to results/search.jsonl, `table` shows them. All
methods search for the gains of the same linear policy, from zero, with one setting for all tasks.
Ours is `bayespg.PGPE`, on lqr3 `bayespg.search.Search`, as they come; its constants were chosen on
seeds 100 to 113. ARS (version 1 with the better half of 4 directions) and CMA-ES (package `cma`)
have the settings below, which were not tuned.

After each iteration the method's own recommendation (the mean) is evaluated on episodes that no
method learns from. A threshold is met at the first of three evaluations in a row that reach it; the
episodes and steps of evaluations are not counted. On lqr3 (Dean et al.: three states and three
inputs, horizon 300, as in GIBO's paper) an evaluation asks whether the closed loop is stable.
Swimmer-v5 needs `pip install 'bayespg[mujoco]'`, CMA-ES `pip install cma`.
"""

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  (first, for the thread pool)

import gymnasium

from bayespg import search

TASKS = {
    "Swimmer-v5": (300.0, 2, 150), "CartPole-v1": (475.0, 20, 100), "lqr3": (0.5, 1, 60),
    "MountainCarContinuous-v0": (90.0, 5, 60), "Pendulum-v1": (-300.0, 10, 150),
}  # fmt: skip
"""Threshold, episodes per evaluation, and budget in episodes."""
A = np.array([[1.01, 0.01, 0.0], [0.01, 1.01, 0.01], [0.0, 0.01, 1.01]])
IN_A_ROW = 3
Recommendation = tuple[int, int, Any]
"""Episodes and steps so far, and what would be used now."""


class Gains:
    """Episodes of a linear policy in NumPy."""

    def __init__(self, name: str):
        self.name = name
        if name == "lqr3":
            self.n = 9
            return
        self.environment = gymnasium.make(name, disable_env_checker=True)
        self.observations = math.prod(self.environment.observation_space.shape)
        space = self.environment.action_space
        self.choice = isinstance(space, gymnasium.spaces.Discrete)
        if self.choice and space.n != 2:
            raise ValueError(f"{name}: only choices of two here")
        self.high = None if self.choice else space.high
        self.n = self.observations * (1 if self.choice else space.shape[0])

    def play(self, theta: np.ndarray, seed: int) -> tuple[float, int]:
        if self.name == "lqr3":
            return self._lqr(theta.reshape(3, 3), seed)
        W = theta.reshape(-1, self.observations)
        x, _ = self.environment.reset(seed=seed)
        total, steps, ended = 0.0, 0, False
        while not ended:
            a = W @ x
            action = int(a[0] > 0) if self.choice else np.clip(a, -1, 1) * self.high
            x, reward, terminated, truncated, _ = self.environment.step(action)
            total, steps, ended = total + float(reward), steps + 1, terminated or truncated
        return total, steps

    def _lqr(self, K: np.ndarray, seed: int) -> tuple[float, int]:
        """x' = A x + u + w, u = K x, cost x'x / 1000 + u'u, its mean over 300 steps."""
        noise = np.random.default_rng(seed).normal(size=(300, 3))
        x, cost = np.zeros(3), 0.0
        for w in noise:
            u = K @ x
            cost += 1e-3 * x @ x + u @ u
            x = A @ x + u + w
            if not cost < 1e12:  # no robot would go on
                cost = 1e12
                break
        return -cost / 300, 300

    def evaluate(self, theta: np.ndarray) -> float:
        if self.name == "lqr3":
            return float(np.abs(np.linalg.eigvals(A + theta.reshape(3, 3))).max() < 1)
        episodes = TASKS[self.name][1]
        return float(np.mean([self.play(theta, 10**6 + k)[0] for k in range(episodes)]))


def ours(task: Gains, seed: int, budget: int) -> Iterator[Recommendation]:
    if task.name != "lqr3":
        agent = bayespg.PGPE(task.name, seed=seed)
        while int(agent.state.episodes) < budget:
            agent.update()
            policy = agent.state.policy
            gains = np.asarray(policy.weights, float) / np.asarray(policy.units, float)
            yield int(agent.state.episodes), int(agent.state.steps), gains.ravel()
        return
    found = search.Search(task.n, seed=seed)
    steps = 0
    while found.episodes < budget:
        asked = found.ask()
        played = [task.play(x, 1000 * seed + found.episodes + k) for k, x in enumerate(asked)]
        steps += sum(length for _, length in played)
        found.tell(asked, [value for value, _ in played])
        yield found.episodes, steps, found.best


ARS = {"directions": 4, "kept": 2, "noise": 0.2, "rate": 0.15}


def ars(task: Gains, seed: int, budget: int) -> Iterator[Recommendation]:
    """Mania et al. 2018: the step is the mean of (r+ - r-) e over the better directions, divided by
    the standard deviation of their returns."""
    rng, theta, episodes, steps = np.random.default_rng(seed), np.zeros(task.n), 0, 0
    while episodes < budget:
        found = []
        for e in rng.normal(size=(ARS["directions"], task.n)):
            pair = []
            for sign in (1, -1):
                value, length = task.play(theta + sign * ARS["noise"] * e, 1000 * seed + episodes)
                episodes, steps = episodes + 1, steps + length
                pair.append(value)
            found.append((*pair, e))
        found = sorted(found, key=lambda f: -max(f[:2]))[: ARS["kept"]]
        spread = np.std([value for plus, minus, _ in found for value in (plus, minus)]) or 1.0
        step = sum((plus - minus) * e for plus, minus, e in found)
        theta = theta + ARS["rate"] / (ARS["kept"] * spread) * step
        yield episodes, steps, theta


def cma(task: Gains, seed: int, budget: int) -> Iterator[Recommendation]:
    import cma as package

    options = {"seed": seed + 1, "verbose": -9}
    strategy = package.CMAEvolutionStrategy(np.zeros(task.n), 0.5, options)
    episodes = steps = 0
    while episodes < budget:
        asked = strategy.ask()
        played = [task.play(x, 1000 * seed + episodes + k) for k, x in enumerate(asked)]
        episodes, steps = episodes + len(asked), steps + sum(length for _, length in played)
        strategy.tell(asked, [-value for value, _ in played])
        yield episodes, steps, np.array(strategy.result.xfavorite)


METHODS: dict[str, Callable[..., Iterator[Recommendation]]] = {"ours": ours, "ars": ars, "cma": cma}


def met(name: str, method: str, seed: int) -> dict[str, Any]:
    """A run until the threshold is met, or the budget spent."""
    threshold, _, budget = TASKS[name]
    task, kept, begun = Gains(name), [], time.perf_counter()
    evaluator = Gains(name)
    for episodes, steps, theta in METHODS[method](task, seed, budget):
        kept.append((episodes, steps, evaluator.evaluate(theta)))
        passed = [value >= threshold for _, _, value in kept[-IN_A_ROW:]]
        if len(passed) == IN_A_ROW and all(passed):
            break
    else:
        passed = [False]
    first = kept[-IN_A_ROW] if all(passed) else (None, None, None)
    return {
        "task": name, "method": method, "seed": seed, "episodes": first[0], "steps": first[1],
        "last": kept[-1][2], "budget": budget, "seconds": time.perf_counter() - begun,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "evaluations": kept,
    }  # fmt: skip


def table(lines: list[dict[str, Any]]) -> None:
    print(f"{'task':26}{'method':8}{'met':>9}{'median episodes':>17}{'range':>14}{'steps':>10}")
    for name in TASKS:
        for method in METHODS:
            found = [x for x in lines if (x["task"], x["method"]) == (name, method)]
            if not found:
                continue
            episodes = sorted(math.inf if x["episodes"] is None else x["episodes"] for x in found)
            steps = [math.inf if x["steps"] is None else x["steps"] for x in found]
            reached = sum(map(math.isfinite, episodes))
            print(
                f"{name:26}{method:8}{reached:>5} of {len(found)}{np.median(episodes):>16.0f}"
                f"{f'{episodes[0]:.0f} to {episodes[-1]:.0f}':>16}{np.median(steps):>10.0f}"
            )


def overhead(n: int = 16, episodes: int = 100) -> None:
    """Milliseconds per episode of asking and telling, the memory full."""
    rng, found = np.random.default_rng(0), search.Search(n)
    X = rng.normal(size=(episodes, n))
    found.tell(X, -np.sum((X - 1) ** 2, 1))
    times = []
    for _ in range(12):
        begun, asked = time.perf_counter(), found.ask()
        found.tell(asked, -np.sum((asked - 1) ** 2, 1) + rng.normal(size=len(asked)))
        times.append(1e3 * (time.perf_counter() - begun) / len(asked))
    print(f"M = {search.MEMORY}, n = {n}: {np.median(times[2:]):.1f} ms per episode")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("run", "table", "overhead"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("results/search.jsonl"))
    given = parser.parse_args()
    if given.what == "overhead":
        overhead()
        return
    if given.what == "run":
        given.out.parent.mkdir(parents=True, exist_ok=True)
        for name in given.tasks:
            for method in given.methods:
                for seed in range(given.first, given.first + given.seeds):
                    line = met(name, method, seed)
                    with given.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(name, method, seed, line["episodes"], f"{line['seconds']:.0f} s")
    lines = [json.loads(line) for line in given.out.read_text().splitlines()]
    table(lines)


if __name__ == "__main__":
    main()
