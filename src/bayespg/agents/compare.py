"""Our algorithms beside those of Stable-Baselines3 on one task, with the same evaluations.

At regular intervals of training the current policy plays the same episodes, with its most likely
actions, in separate environments; neither their steps nor their time count. Everything
keeps its default settings: what is compared is what a user gets without tuning.
"""

import functools
import importlib
import itertools
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


class Judge:
    """Evaluates a policy whenever training has passed another point: it plays the same episodes
    each time, all at once."""

    def __init__(self, task: Task, tell: Callable[[float], Any]):
        self._environments = [gymnasium.make(task.environment) for _ in range(task.episodes)]
        self._steps, self._every = task.steps, max(1, task.steps // task.points)
        self._tell = tell
        self.evaluations: Evaluations = []
        self.seconds = 0.0
        """Time spent on evaluations."""

    def __call__(self, steps: int, predict: Callable[[np.ndarray], Any]) -> None:
        """After this many steps of training; `predict` is a function from a batch of observations
        to actions."""
        last = self.evaluations[-1][0] // self._every if self.evaluations else -1
        if steps // self._every > last:
            begun = time.perf_counter()
            self.evaluations.append((steps, self.mean_return(predict)))
            self.seconds += time.perf_counter() - begun
        self._tell(min(steps / self._steps, 1.0))

    def mean_return(self, predict: Callable[[np.ndarray], Any]) -> float:
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


def train_ours(task: Task, judge: Callable[..., Any]) -> None:
    agent = load.made(
        {"environment": task.environment, "estimator": task.estimator, "seed": task.seed}
    )
    judge(0, agent.predict)

    def after(agent: BaseAgent, row: dict[str, float]) -> None:
        judge(int(row["steps"]), agent.predict)

    agent.learn(task.steps, callbacks=after, progress=False)


def train_rival(task: Task, judge: Callable[..., Any]) -> None:
    made = rival(task.algorithm)
    # Networks of this size are slower with more threads than with one.
    importlib.import_module("torch").set_num_threads(1)
    common = importlib.import_module("stable_baselines3.common.callbacks")

    class After(common.BaseCallback):
        def _on_step(self) -> bool:
            judge(self.num_timesteps, lambda x: self.model.predict(x, deterministic=True)[0])
            return True

    model = made("MlpPolicy", task.environment, seed=task.seed, device="cpu", verbose=0)
    judge(0, lambda x: model.predict(x, deterministic=True)[0])
    model.learn(task.steps, callback=After())


def train(
    name: str, task: Task, advance: Callable[[float, str], None]
) -> tuple[Evaluations, float]:
    """The evaluations of one training, and its seconds without them. It may be called in a process
    of its own."""
    import_all(task.imports)
    judge = Judge(task, lambda share: advance(share, name))
    begun = time.perf_counter()
    (train_rival if task.estimator is None else train_ours)(task, judge)
    return judge.evaluations, time.perf_counter() - begun - judge.seconds


def train_all(
    tasks: dict[str, Task], jobs: int, advance: Callable[[str, float, str], None]
) -> Iterator[tuple[str, tuple[Evaluations, float]]]:
    """Train every task, `jobs` at a time in processes with their own cores, and yield the results
    as they finish; one at a time in this process."""
    if jobs > 1:
        arguments = {name: (task,) for name, task in tasks.items()}
        yield from together.run(arguments, train, jobs, advance)
    else:
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
    pairs = itertools.pairwise(evaluations)
    met = (steps for (steps, one), (_, other) in pairs if min(one, other) >= threshold)
    return next(met, math.inf)
