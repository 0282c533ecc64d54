"""Callbacks: evaluate, save, log or stop during training.

A callback is any function of the agent and the update's row; returning False ends training. One
that must also know when training starts and ends derives from `Callback`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bayespg._support import checks
from bayespg._support.statistics import student_quantile
from bayespg.agents.base import BaseAgent
from bayespg.agents.metrics import Evaluation, Row
from bayespg.agents.pgpe import PGPE
from bayespg.runs.columns import Column

__all__ = [
    "Callback",
    "Checkpoint",
    "Evaluate",
    "JSONLines",
    "StopAtReturn",
    "StopWhenSure",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class Callback:
    """What training tells: write those of the three methods that you need."""

    def start(self, agent: BaseAgent) -> None:
        """Called before the first update of `learn`."""

    def update(self, agent: BaseAgent, row: Row) -> Any:
        """Called after each update; returning False ends training."""

    def end(self, agent: BaseAgent) -> None:
        """Called when `learn` ends, also if it ends with an error."""

    def __call__(self, agent: BaseAgent, row: Row) -> Any:
        return self.update(agent, row)


class Evaluate(Callback):
    """Evaluate every `every` updates, on the same seeds each time, and keep the results.

    `stop_at`, a return, ends training once an evaluation reaches it. `best`, a directory, is where
    the agent with the highest evaluation so far is saved, for `bayespg.load`; that evaluation
    chose it, and so is an optimistic figure for it.
    """

    def __init__(
        self,
        every: int = 10,
        episodes: int = 20,
        *,
        deterministic: bool = False,
        stop_at: float | None = None,
        best: str | Path | None = None,
        say: Callable[[str], Any] | None = None,
    ):
        self.every, self.episodes, self.deterministic = every, episodes, deterministic
        self.stop_at, self.best, self.say = stop_at, best, say
        self.evaluations: list[tuple[int, Evaluation]] = []
        """Steps taken before, and the evaluation."""

    def update(self, agent: BaseAgent, row: Row) -> bool:
        if row[Column.UPDATE] % self.every:
            return True
        evaluation = agent.evaluate(self.episodes, deterministic=self.deterministic)
        earlier = (one.mean for _, one in self.evaluations)
        if self.best is not None and all(evaluation.mean > mean for mean in earlier):
            agent.save(self.best)
        self.evaluations.append((int(row[Column.STEPS]), evaluation))
        if self.say is not None:
            self.say(f"{int(row[Column.STEPS]):,} steps: {evaluation}")
        return self.stop_at is None or evaluation.mean < self.stop_at


class Checkpoint(Callback):
    """Save the agent every `every` updates, each time in its own directory, <folder>/<update>."""

    def __init__(self, folder: str | Path, every: int = 50):
        self.folder, self.every = Path(folder), every

    def update(self, agent: BaseAgent, row: Row) -> None:
        if row[Column.UPDATE] % self.every == 0:
            agent.save(self.folder / f"{int(row[Column.UPDATE]):06d}")


class StopAtReturn(Callback):
    """End training once the mean return of `last` updates reaches a threshold."""

    def __init__(self, threshold: float, last: int = 3):
        self.threshold, self.last = threshold, last
        self._seen: list[float] = []

    def update(self, agent: BaseAgent, row: Row) -> bool:
        self._seen = [*self._seen, row[Column.RETURN]][-self.last :]
        enough = len(self._seen) == self.last
        return not (enough and sum(self._seen) / self.last >= self.threshold)


class StopWhenSure(Callback):
    """End training once no direction is uphill any more, and say what shows it.

    `sure` is the probability of going uphill, given how far episodes have agreed so far. Where
    there is no gradient, it falls towards one half; where there is one, it is larger.
    Training ends when its mean over the `last` updates is below `level` with 95 % confidence. An
    update whose episodes all return the same shows no direction and counts as one half, so give a
    run that must first find a reward a larger `last`. PGPE is refused: its `sure` is low where
    returns are curved, also while it climbs. `evidence` holds the sentence that `say` was called
    with.
    """

    def __init__(
        self, last: int = 50, level: float = 0.6, *, say: Callable[[str], Any] | None = print
    ):
        self.last = checks.whole("last", last, 2)
        self.level = checks.probability("level", level)
        if self.level <= 0.5:
            raise ValueError(
                f"level: expected more than 0.5, the mean where there is no gradient, found {level}"
            )
        self.say, self.evidence = say, ""
        self._seen: list[tuple[float, float]] = []

    def start(self, agent: BaseAgent) -> None:
        if isinstance(agent, PGPE):
            raise ValueError(
                "callbacks: StopWhenSure would end a search that still climbs, because PGPE's sure "
                "is low where returns are curved; use StopAtReturn"
            )

    def update(self, agent: BaseAgent, row: Row) -> bool:
        sure = 0.5 if row[Column.RETURN_ERROR] == 0 else row[Column.SURE]
        self._seen = [*self._seen, (sure, row[Column.RETURN])][-self.last :]
        if len(self._seen) < self.last:
            return True
        sure, returns = np.array(self._seen).T
        error, most = sure.std(ddof=1) / math.sqrt(self.last), student_quantile(0.9, self.last - 1)
        upper = sure.mean() + most * error
        if not upper < self.level:
            return True
        self.evidence = (
            f"Stopped after update {int(row[Column.UPDATE])}, {int(row[Column.STEPS]):,} steps: "
            f"over the last {self.last} updates the probability of going uphill was "
            f"{sure.mean():.2f} on average, below {upper:.2f} with 95 % confidence; mean return "
            f"{Column.RETURN.show(returns.mean())}."
        )
        if self.say is not None:
            self.say(self.evidence)
        return False


class JSONLines(Callback):
    """Append every row to a file, one JSON object per line; NaN becomes null. A run directory has
    the same rows in metrics.csv."""

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()  # an environment may change the working directory

    def update(self, agent: BaseAgent, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: value if value == value else None for name, value in row.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(plain)}\n")
