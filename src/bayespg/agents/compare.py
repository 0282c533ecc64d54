"""Our algorithms beside those of Stable-Baselines3 on one task, with the same evaluations.

At regular intervals of training the current policy plays the same episodes, with its most likely
actions, in separate environments; neither their steps nor their time count. Everything
keeps its default settings: what is compared is what a user gets without tuning.
"""

import functools
import importlib
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from bayespg._support import checks, files, together
from bayespg._support.files import write_whole
from bayespg.agents import load
from bayespg.agents.base import BaseAgent
from bayespg.agents.imports import import_all

RIVALS = {
    "ppo": "stable_baselines3", "a2c": "stable_baselines3", "sac": "stable_baselines3",
    "td3": "stable_baselines3", "ddpg": "stable_baselines3", "dqn": "stable_baselines3",
    "trpo": "sb3_contrib", "tqc": "sb3_contrib",
}  # fmt: skip
"""Algorithms of Stable-Baselines3, and their packages."""
SEEDS = 10_000
"""Seeds of evaluation episodes begin here."""

Evaluations = list[tuple[int, float]]
"""Steps of training before, and the mean return."""


def rival(name: str) -> Any:
    """The class of a rival; ValueError or ImportError with what to do about it."""
    name = checks.one_of("rivals", name, tuple(RIVALS))
    try:
        return getattr(importlib.import_module(RIVALS[name]), name.upper())
    except ImportError:
        package = RIVALS[name].replace("_", "-")
        raise ImportError(
            f"rivals: {name} is of {package}, which is missing; pip install {package}, or leave it "
            "out"
        ) from None


def refuse_actions(name: str, task: str) -> None:
    """ValueError if a rival cannot act in a task."""
    continuous = name in ("sac", "td3", "ddpg", "tqc")
    space = gymnasium.make(task).action_space
    if continuous != isinstance(space, gymnasium.spaces.Box) and (continuous or name == "dqn"):
        takes = "continuous" if continuous else "discrete"
        raise ValueError(f"rivals: {name} is for {takes} actions, and those of {task} are {space}")


class Judge:
    """Plays the same episodes with any policy, all at once."""

    def __init__(self, task: str, episodes: int):
        self._environments = [gymnasium.make(task) for _ in range(episodes)]

    def __call__(self, predict: Callable[[np.ndarray], Any]) -> float:
        """The mean return of `predict`, a function from a batch of observations to actions."""
        seen = [e.reset(seed=SEEDS + k)[0] for k, e in enumerate(self._environments)]
        total, running = np.zeros(len(seen)), set(range(len(seen)))
        while running:
            actions = predict(np.stack(seen))
            for k in sorted(running):
                seen[k], reward, ended, cut, _ = self._environments[k].step(actions[k])
                total[k] += float(reward)
                if ended or cut:
                    running.discard(k)
        return float(total.mean())


class Points:
    """Evaluates whenever training has passed another point."""

    def __init__(self, judge: Judge, steps: int, points: int):
        self._judge, self._every = judge, max(1, steps // points)
        self.found: Evaluations = []
        self.seconds = 0.0
        """Time spent on evaluations."""

    def __call__(self, steps: int, predict: Callable[[np.ndarray], Any]) -> None:
        if steps >= self._every * (len(self.found) and self.found[-1][0] // self._every + 1):
            begun = time.perf_counter()
            self.found.append((steps, self._judge(predict)))
            self.seconds += time.perf_counter() - begun


def train_ours(
    task: str, estimator: str, seed: int, steps: int, points: Points, tell: Callable[[float], Any]
) -> None:
    agent = load.made({"environment": task, "estimator": estimator, "seed": seed})
    points(0, agent.predict)

    def after(agent: BaseAgent, row: dict[str, float]) -> None:
        points(int(row["steps"]), agent.predict)
        tell(row["steps"] / steps)

    agent.learn(steps, callbacks=after, progress=False)


def train_rival(
    task: str, name: str, seed: int, steps: int, points: Points, tell: Callable[[float], Any]
) -> None:
    made = rival(name)
    # Networks of this size are slower with more threads than with one.
    importlib.import_module("torch").set_num_threads(1)
    common = importlib.import_module("stable_baselines3.common.callbacks")

    class After(common.BaseCallback):
        def _on_step(self) -> bool:
            points(self.num_timesteps, lambda x: self.model.predict(x, deterministic=True)[0])
            tell(self.num_timesteps / steps)
            return True

    model = made("MlpPolicy", task, seed=seed, device="cpu", verbose=0)
    points(0, lambda x: model.predict(x, deterministic=True)[0])
    model.learn(steps, callback=After())


class Task(NamedTuple):
    """One training of a comparison."""

    environment: str
    algorithm: str
    estimator: str | None
    """Of ours; None of a rival."""
    seed: int
    steps: int
    episodes: int
    points: int
    imports: tuple[str, ...] = ()


def train(
    name: str, task: Task, advance: Callable[[float, str], None]
) -> tuple[Evaluations, float]:
    """The evaluations of one training, and its seconds without them. It may be called in a process
    of its own."""
    import_all(task.imports)
    points = Points(Judge(task.environment, task.episodes), task.steps, task.points)

    def tell(share: float) -> None:
        advance(min(share, 1.0), name)

    begun = time.perf_counter()
    if task.estimator is None:
        train_rival(task.environment, task.algorithm, task.seed, task.steps, points, tell)
    else:
        train_ours(task.environment, task.estimator, task.seed, task.steps, points, tell)
    return points.found, time.perf_counter() - begun - points.seconds


def train_all(
    tasks: dict[str, Task], jobs: int, advance: Callable[[str, float, str], None]
) -> Iterator[tuple[str, tuple[Evaluations, float]]]:
    """Train every task, `jobs` at a time in processes with their own cores, and yield the results
    as they finish; one at a time in this process."""
    if jobs > 1:
        yield from together.run(
            {name: (task,) for name, task in tasks.items()}, train, jobs, advance
        )
        return
    for name, task in tasks.items():
        yield name, train(name, task, functools.partial(advance, name))


def _is_run(entry: Any) -> bool:
    match entry:
        case {
            "name": str(), "seed": int(), "seconds": int() | float(),
            "evaluations": [_, *_] as points,
        }:  # fmt: skip
            return all(
                isinstance(point, list) and [type(x) in (int, float) for x in point] == [True] * 2
                for point in points
            )
    return False


class Comparison:
    """Finished runs of a comparison, in one file, from which an interrupted one continues."""

    def __init__(self, path: Path, settings: dict[str, Any]):
        self.path, self.settings, self.runs = path, settings, []
        if path.exists():
            stored = files.read_json(path, dict)
            if stored.get("settings") != settings:
                raise ValueError(
                    f"out: {path} holds a comparison with other settings "
                    f"({stored.get('settings')}); give another folder"
                )
            self.runs = stored.get("runs")
            if not isinstance(self.runs, list) or not all(map(_is_run, self.runs)):
                raise ValueError(
                    f"{path}: damaged, each of its runs must have a name, a seed, evaluations and "
                    "seconds; remove those that do not, or give another folder"
                )

    def done(self, name: str, seed: int) -> bool:
        return any(run["name"] == name and run["seed"] == seed for run in self.runs)

    def add(self, name: str, seed: int, entry: Evaluations, seconds: float) -> None:
        self.runs.append(
            {"name": name, "seed": seed, "evaluations": entry, "seconds": round(seconds, 2)}
        )
        content = {"settings": self.settings, "runs": self.runs}
        write_whole(self.path, (json.dumps(content, indent=1) + "\n").encode())

    def of(self, name: str) -> list[dict[str, Any]]:
        return [run for run in self.runs if run["name"] == name]


def steps_to(evaluations: Evaluations, threshold: float) -> float:
    """Steps of training before the first of two evaluations in a row that reach the threshold;
    infinite if there are none."""
    met = [value >= threshold for _, value in evaluations]
    for k in range(len(met) - 1):
        if met[k] and met[k + 1]:
            return evaluations[k][0]
    return math.inf
