"""The numbers that updates and evaluations report; `runs.columns` lists those of an update."""

import dataclasses
import math
from typing import Any

import numpy as np

from bayespg._support.statistics import student_interval
from bayespg.environments.trajectories import Trajectories
from bayespg.runs.columns import Column
from bayespg.runs.numbers import shown

Row = dict[str, float]
"""What an update reports: a row of metrics.csv."""


def row(
    state: Any, described: dict[str, Any], episodes: "Evaluation", terminated: Any,
    seconds: float, *, drawing: float, learning: float,
) -> Row:  # fmt: skip
    """The row of the update that led to this state, in the order of `Column`. `described` holds the
    columns that depend on how the policy learned from the episodes."""
    returns = episodes.returns
    error = returns.std(ddof=1) / math.sqrt(returns.size) if returns.size > 1 else math.nan
    values = described | {
        Column.UPDATE: int(state.updates),
        Column.STEPS: int(state.steps),
        Column.EPISODES: int(state.episodes),
        Column.SECONDS: seconds,
        Column.RETURN: float(returns.mean()),
        Column.RETURN_ERROR: float(error),
        Column.LENGTH: float(episodes.lengths.mean()),
        Column.TERMINATED: float(np.mean(terminated)),
        Column.SECONDS_DRAWING: drawing,
        Column.SECONDS_LEARNING: learning,
    }
    return {column.value: values[column] for column in Column if column in values}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns of whole episodes."""

    returns: np.ndarray
    lengths: np.ndarray
    level: float = 0.95

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Student's interval over episodes: how well they determine the mean return of this policy.
        It says nothing about training with another seed. It is a normal approximation: where
        returns are bounded, as by 500 on CartPole-v1, it may reach beyond the bound."""
        return student_interval(self.returns, self.level)

    def __repr__(self) -> str:
        return f"Evaluation({self})"

    def __str__(self) -> str:
        mean, low, high = shown(self.mean, *self.interval)
        return f"{mean} [{low}, {high}] over {self.returns.size} episodes"


def evaluation(*played: Trajectories) -> Evaluation:
    """Returns in float64 and lengths of all these episodes."""
    returns = [np.where(p.mask, p.rewards, 0.0).sum(0, dtype=np.float64) for p in played]
    return Evaluation(
        np.concatenate(returns), np.concatenate([np.asarray(p.mask).sum(0) for p in played])
    )
