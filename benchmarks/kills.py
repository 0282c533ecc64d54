"""Kill a run at its writes, resume it, and compare it with the same run left alone.

    python benchmarks/kills.py --kills 500

A kill is an exception at one of the calls that change the disk, after which the process changes
nothing more; a call that writes has then written half. On a full disk, which is tried in turn, all
writes fail from that call on. After each kill the newest checkpoint and the best one must be those
of the undisturbed run at that update; at the end all numbers must be equal, bit for bit, and no
other file may be left. A run is killed once at each of its calls, or again and again after a random
number of them, also while it is being resumed.
"""

import argparse
import errno
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from bayespg.agents import load, serialise
from bayespg.agents.agent import Agent
from bayespg.agents.store import Best
from bayespg.runs.store import CONFIG, Run

CALLS = ("write", "fsync", "replace", "ftruncate", "unlink")
"""Functions of `os` that change the disk."""
STEPS = 180
"""Environment steps of a run, about 15 updates."""
FILES = {
    "config.json", "metrics.csv", "checkpoint.npz", "checkpoint.previous.npz", "best.npz",
    "best.previous.npz",
}  # fmt: skip


class Walk(gymnasium.Env):
    """Six steps towards zero."""

    observation_space = spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(), 0
        return np.array([self.x], np.float32), {}

    def step(self, action):
        self.x, self.t = self.x + 0.3 * float(action), self.t + 1
        return np.array([self.x], np.float32), -abs(self.x), False, self.t >= 6, {}


class Killed(BaseException):
    pass


class Disk:
    """Counts the calls that change the disk, and ends the process at one of them."""

    def __init__(self, last: int, full: bool = False):
        self.last, self.full, self.calls, self.dead = last, full, 0, False

    def __enter__(self) -> "Disk":
        self._sound = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, self._mortal(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._sound.items():
            setattr(os, name, function)

    def _mortal(self, name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            if not self.dead and self.calls >= self.last and (name in CALLS[:2] or not self.full):
                self.dead = True
                if name == "write":
                    file, content = arguments
                    self._sound[name](file, bytes(content)[: len(content) // 2])
                if not self.full:
                    raise Killed
            if self.dead and not self.full:
                raise Killed
            if self.dead and name in CALLS[:2]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self._sound[name](*arguments, **more)

        return call


def made() -> Agent:
    return Agent("Kills-v0", "linear", "gpomdp", episodes=2, seed=3)


class Undisturbed:
    """The run left alone: its state after each update, and which update was the best then."""

    def __init__(self, path: Path, steps: int = STEPS):
        agent, best, self.steps = made(), Best(), steps
        self.template, self.precision = agent.state, agent.precision
        self.states, self.best = [agent.state], [0]

        def look(agent: Agent, row: dict[str, float]) -> None:
            self.states.append(agent.state)
            newest = len(self.states) - 1
            self.best.append(newest if best(row["return"]) else self.best[-1])

        with Disk(10**9) as disk:
            agent.learn(steps, run=path, callbacks=look, progress=False)
        self.calls, self.metrics = disk.calls, Run.open(path).metrics()

    def wrong(self, path: Path, finished: bool = False) -> str:
        """What is wrong in the directory of a run that was disturbed; empty if nothing is."""
        if not (path / CONFIG).exists():
            return ""
        run = Run.open(path)
        with self.precision():
            newest, best = run.restore(self.template), run.best(self.template)
        if newest is None:
            return "finished without a checkpoint" if finished else ""
        at = int(newest[0].updates)
        if not self._is(newest[0], at):
            return f"the checkpoint is not that of update {at}"
        if at and (best is None or not self._is(best[0], self.best[at])):
            found = best and int(best[0].updates)
            return f"the best of update {at} is {self.best[at]}, found {found}"
        if finished and at != len(self.states) - 1:
            return f"ended at update {at} instead of {len(self.states) - 1}"
        if finished:
            rows = run.metrics()
            if not all(
                np.array_equal(rows[name], self.metrics[name], equal_nan=True)
                for name in self.metrics
                if not name.startswith("seconds")
            ):
                return "metrics.csv has other rows"
            if more := {entry.name for entry in path.iterdir()} - FILES:
                return f"left behind: {', '.join(sorted(more))}"
        return ""

    def _is(self, state: Any, update: int) -> bool:
        return serialise.equal(state, self.states[update])


def train(path: Path, steps: int) -> None:
    """A run from its beginning, or from where it was stopped."""
    agent, run = made(), path
    if (path / CONFIG).exists():
        agent, run = load.resume(path)
    left = steps - int(agent.state.steps)
    if left > 0:
        agent.learn(left, run=run, progress=False)


def disturbed(path: Path, reference: Undisturbed, moments: Any, full: bool) -> tuple[int, str]:
    """Train to the end, killed after each of these numbers of calls; the number of kills, and what
    was wrong first."""
    kills, wrong = 0, ""
    for last in moments:
        with Disk(last, full) as disk:
            try:
                train(path, reference.steps)
            except Killed:
                pass
            except OSError:
                assert full
        if not disk.dead:
            break
        kills += 1
        wrong = wrong or reference.wrong(path)
    else:
        train(path, reference.steps)
    return kills, wrong or reference.wrong(path, finished=True)


def trials(
    kills: int, reference: Undisturbed, folder: Path, seed: int = 0
) -> tuple[int, list[str]]:
    """At least this many kills; their number, and for each run what was wrong, or nothing."""
    done, problems, rng = 0, [], np.random.default_rng(seed)
    for number in itertools.count():
        if done >= kills:
            break
        once, path = number < reference.calls, folder / f"run-{number}"
        moments = [number + 1] if once else iter(lambda: int(rng.integers(1, 25)), None)
        count, wrong = disturbed(path, reference, moments, full=number % 2 == 1)
        done += count
        how = f"killed at call {number + 1}" if once else f"killed {count} times"
        problems.append(wrong and f"{how}{', disk full' if number % 2 else ''}: {wrong}")
        shutil.rmtree(path, ignore_errors=True)
    return done, problems


gymnasium.register("Kills-v0", lambda **_: Walk())

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Kill runs and resume them.")
    parser.add_argument("--kills", type=int, default=500)
    with tempfile.TemporaryDirectory() as place:
        reference = Undisturbed(Path(place) / "undisturbed")
        done, problems = trials(parser.parse_args().kills, reference, Path(place))
    wrong = list(filter(None, problems))
    print(f"{done} kills, {len(wrong)} of {len(problems)} runs wrong", *wrong, sep="\n")
