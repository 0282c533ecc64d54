"""A search over settings: which combinations to try, and which of them to stop early.

Combinations are drawn at random, or by Optuna's tree-structured Parzen estimator, which learns from
those that have been tried. All are trained over the same seeds. After a quarter and after half of
the steps, one whose mean return over seeds is below the median of all that came so far is stopped.
If all are tried at once, that is successive halving; one at a time, it is the median rule.
"""

import dataclasses
import importlib.util
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

SHARES = (0.25, 0.5, 1.0)
"""The shares of the steps after which combinations are compared."""
FEW = 4
"""The least number of combinations whose median stops one."""
FIRST = 10
"""The number of combinations that Optuna draws at random before it learns from them."""
DIGITS = 3
"""Significant digits of a number that is drawn."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting that has one of a few values; a search knows them by their numbers."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.nearest(int(rng.integers(len(self.values))))

    def nearest(self, number: float) -> Any:
        return self.values[round(number)]

    def number(self, value: Any) -> int:
        return self.values.index(value)

    def distribution(self, optuna: Any) -> Any:
        return optuna.distributions.CategoricalDistribution(tuple(range(len(self.values))))


@dataclasses.dataclass(frozen=True)
class Range:
    """A setting from `low` to `high`: whole numbers if both are, and on a logarithmic scale if one
    is at least ten times the other."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"set: expected LOW..HIGH with LOW below HIGH, found {self.low}..{self.high}"
            )

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def logarithmic(self) -> bool:
        return 0 < 10 * self.low <= self.high

    def draw(self, rng: np.random.Generator) -> Any:
        ends = (self.low, self.high)
        drawn = np.exp(rng.uniform(*np.log(ends))) if self.logarithmic else rng.uniform(*ends)
        return self.nearest(drawn)

    def nearest(self, number: float) -> Any:
        """The number with few digits, so that names of combinations are short."""
        if self.whole:
            return round(number)
        return float(np.clip(float(f"{number:.{DIGITS}g}"), self.low, self.high))

    def number(self, value: Any) -> Any:
        return value

    def distribution(self, optuna: Any) -> Any:
        kinds = optuna.distributions
        kind = kinds.IntDistribution if self.whole else kinds.FloatDistribution
        return kind(self.low, self.high, log=self.logarithmic)


Space = dict[str, Choice | Range]


@dataclasses.dataclass
class Trial:
    """One combination of settings, and how it did."""

    settings: dict[str, Any]
    scores: list[float] = dataclasses.field(default_factory=list)
    """Its mean return over seeds after each of the shares of the steps that it was trained for."""
    stopped_at: float | None = None
    """The share of the steps after which it was stopped."""
    failed: str | None = None
    """Why it could not be trained, in one line; it has no scores then."""

    @property
    def stopped(self) -> bool:
        return self.stopped_at is not None or self.failed is not None

    def fail(self, why: str) -> None:
        """The first failure is kept."""
        self.failed = self.failed or why
        self.scores.clear()


def every(space: Space) -> list[dict[str, Any]]:
    """All combinations; ValueError if they cannot be listed."""
    for name, values in space.items():
        if isinstance(values, Range):
            raise ValueError(
                f"trials: {name} has a range, so not every combination can be tried; say how many, "
                "as in --trials 20"
            )
    values = [one.values for one in space.values() if isinstance(one, Choice)]
    return [dict(zip(space, one, strict=True)) for one in itertools.product(*values)]


def at_random(
    space: Space, seed: int, known: Sequence[dict[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """Combinations drawn at random, each once, and none of those `known`. It ends where a hundred
    draws give nothing new."""
    rng, tried, vain = np.random.default_rng(seed), list(known), 0
    while vain < 100:
        drawn = {name: values.draw(rng) for name, values in space.items()}
        vain += 1
        if drawn not in tried:
            tried.append(drawn)
            vain = 0
            yield drawn


def optuna_is_installed() -> bool:
    return importlib.util.find_spec("optuna") is not None


def by_optuna(
    space: Space, trials: Sequence[Trial], seed: int, known: Sequence[dict[str, Any]] = ()
) -> dict[str, Any] | None:
    """The next combination by Optuna's sampler, given those that have been tried; one at random
    where that is among those `known`, and None if nothing new is left.

    The study is made anew from the trials, so that nothing but them has to be stored. One that was
    stopped or has failed is a pruned trial, the worst if it has no scores.
    """
    import optuna  # pyright: ignore[reportMissingImports]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: values.distribution(optuna) for name, values in space.items()}
    sampler = optuna.samplers.TPESampler(seed=seed + len(trials), n_startup_trials=FIRST)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    states = optuna.trial.TrialState
    for trial in trials:
        if (trial.scores or trial.failed) and trial.settings.keys() == space.keys():
            past = optuna.trial.create_trial(
                params={name: space[name].number(v) for name, v in trial.settings.items()},
                distributions=distributions,
                state=states.PRUNED if trial.stopped else states.COMPLETE,
                value=None if trial.stopped else trial.scores[-1],
                intermediate_values=dict(enumerate(trial.scores)),
            )
            study.add_trial(past)
    asked = study.ask(distributions).params
    drawn = {name: values.nearest(asked[name]) for name, values in space.items()}
    return next(at_random(space, seed, known), None) if drawn in known else drawn


def batches(
    space: Space, tried: Sequence[Trial], number: int | None, search: str, seed: int, at_once: int
) -> Iterator[list[Trial]]:
    """New combinations, in batches that are trained together: all of a grid, where no `number` of
    trials is given; all that are drawn at random; or as many as Optuna's first draws at random, and
    then `at_once`. Before the next batch is asked for, the one before is among those `tried`."""
    known = [trial.settings for trial in tried]
    if number is None:
        yield [Trial(one) for one in every(space) if one not in known]
    elif search == "random":
        left = max(0, number - len(known))
        yield [Trial(one) for one in itertools.islice(at_random(space, seed, known), left)]
    else:
        yield []
        left, size = number - len(tried), FIRST
        while left > 0:
            more: list[Trial] = []
            for k in range(min(left, size)):
                known = [trial.settings for trial in (*tried, *more)]
                one = by_optuna(space, tried, seed + 1000 * k, known)
                more += [] if one is None else [Trial(one)]
            left, size = left - min(left, size), at_once
            yield more


def stop_poor(trials: Sequence[Trial], judged: Sequence[Trial], point: int) -> None:
    """Stop those of the trials to be `judged` that have been trained for SHARES[point] of the steps
    and scored below the median of all trials that came so far."""
    scores = [trial.scores[point] for trial in trials if len(trial.scores) > point]
    if len(scores) < FEW:
        return
    median = float(np.median(scores))
    for trial in judged:
        if not trial.stopped and trial.scores[point] < median:
            trial.stopped_at = SHARES[point]


def places(trials: Sequence[Trial]) -> np.ndarray:
    """The place of each trial, 0 for the worst: one that was trained for longer is ahead of those
    that were stopped, and equals are ordered by their scores. Those that failed share the last
    places."""
    order = sorted(range(len(trials)), key=lambda i: (len(trials[i].scores), trials[i].scores[-1:]))
    ranks = np.empty(len(trials))
    ranks[order] = np.arange(len(trials))
    failed = [trial.failed is not None for trial in trials]
    ranks[failed] = (sum(failed) - 1) / 2
    return ranks
