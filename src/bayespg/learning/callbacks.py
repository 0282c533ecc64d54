"""Callbacks: evaluate, save or stop after an update.

A callback is any function of the agent and the update's row; returning False ends training.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayespg.learning.agents import Agent
from bayespg.learning.metrics import Evaluation, Row
from bayespg.runs.columns import Column


class Evaluate:
    """Evaluate every `every` updates, on the same seeds each time, and keep the results.

    `stop_at`, a return, ends training once an evaluation reaches it.
    """

    def __init__(
        self,
        every: int = 10,
        episodes: int = 20,
        *,
        deterministic: bool = False,
        stop_at: float | None = None,
        say: Callable[[str], Any] | None = None,
    ):
        self.every, self.episodes, self.deterministic = every, episodes, deterministic
        self.stop_at, self.say = stop_at, say
        self.found: list[tuple[int, Evaluation]] = []
        """Steps taken before, and the evaluation."""

    def __call__(self, agent: Agent, row: Row) -> bool:
        if row[Column.UPDATE] % self.every:
            return True
        found = agent.evaluate(self.episodes, deterministic=self.deterministic)
        self.found.append((int(row[Column.STEPS]), found))
        if self.say is not None:
            self.say(f"{int(row[Column.STEPS]):,} steps: {found}")
        return self.stop_at is None or found.mean < self.stop_at


class Checkpoint:
    """Save the agent every `every` updates, each time in its own directory, <folder>/<update>."""

    def __init__(self, folder: str | Path, every: int = 50):
        self.folder, self.every = Path(folder), every

    def __call__(self, agent: Agent, row: Row) -> None:
        if row[Column.UPDATE] % self.every == 0:
            agent.save(self.folder / f"{int(row[Column.UPDATE]):06d}")


class StopAtReturn:
    """End training once the mean return of `last` updates reaches a threshold."""

    def __init__(self, threshold: float, last: int = 3):
        self.threshold, self.last = threshold, last
        self._seen: list[float] = []

    def __call__(self, agent: Agent, row: Row) -> bool:
        self._seen = [*self._seen, row[Column.RETURN]][-self.last :]
        enough = len(self._seen) == self.last
        return not (enough and sum(self._seen) / self.last >= self.threshold)
