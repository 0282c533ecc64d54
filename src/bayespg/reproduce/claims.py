"""Claims and the measured effects, with intervals over runs, that decide them.

Runs are the unit of replication. The intervals of a claim hold jointly with 95 % confidence: each
has the level 1 - 0.05 / (number of effects). Comparisons of two methods are paired, because their
runs share initial policies and paths.
"""

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Literal, TypedDict

import numpy as np

from bayespg._support.statistics import binomial_interval, student_interval, student_quantile
from bayespg.reproduce import sentences

LEVEL = 0.95
Verdict = Literal["holds", "does not hold", "not decided"]
Kind = Literal["paper", "check", "ours"]
"""About a sentence of the paper; a comparison with a number that it prints; a claim of ours."""


class Bounds(TypedDict):
    above: float
    below: float


ALIKE: Bounds = {"above": 0.8, "below": 1.25}
"""The bounds of a ratio for every claim that two things are alike."""
Samples = np.ndarray
"""One number per run."""


@dataclasses.dataclass(frozen=True)
class Effect:
    """A measured quantity with its interval, at one size or setting."""

    where: str
    value: float
    low: float
    high: float
    words: str = ""
    """The numbers that were compared, as text."""
    narrowest: tuple[float, float] | None = None
    """The interval if the runs had agreed with the claim as much as they can, where its width does
    not follow from that of the interval found."""


def judged(low: float, high: float, above: float | None, below: float | None) -> Verdict:
    """The verdict of one interval; a bound of None is absent."""
    above = -math.inf if above is None else above
    below = math.inf if below is None else below
    if high <= above or low >= below:
        return "does not hold"
    return "holds" if low > above and high < below else "not decided"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement that holds if all its effects lie between two bounds."""

    id: str
    sentence: str
    """The paper's sentence that it tests, by its name in `sentences`; empty if the claim is
    ours."""
    says: str
    effect: str
    """The measured quantity."""
    effects: tuple[Effect, ...]
    above: float = 0.0
    below: float = math.inf
    kind: Kind | None = None
    """None: "paper" if there is a sentence, otherwise "ours"."""
    reading: str = ""
    """Of the sentence; empty if the claim belongs to all of its readings."""

    def __post_init__(self):
        if self.sentence:
            sentences.checked(self.sentence, self.reading)

    @property
    def place(self) -> str:
        """Where in the paper."""
        return sentences.SENTENCES[self.sentence].place if self.sentence else ""

    @property
    def verdict(self) -> Verdict:
        """The claim holds if every interval is within the bounds, does not hold if one is outside,
        and is not decided otherwise."""
        verdicts = {judged(e.low, e.high, self.above, self.below) for e in self.effects}
        if "does not hold" in verdicts:
            return "does not hold"
        return "not decided" if "not decided" in verdicts else "holds"

    @property
    def confirmable(self) -> bool:
        """Whether any outcome could have confirmed the claim with as many runs and as much spread:
        intervals of the same width would have to fit between the bounds."""
        return all(_fits(e, self.above, self.below) for e in self.effects)

    @property
    def measured(self) -> str:
        """The effects as a sentence; of more than four, the smallest and the largest."""
        shown = self.effects
        if len(shown) > 4:
            ordered = sorted(shown, key=lambda e: e.value)
            shown = (ordered[0], ordered[-1])
        return f"{self.effect}: " + "; ".join(_sentence(e) for e in shown)

    def content(self) -> dict[str, Any]:
        """The claim as a dictionary for JSON, with infinite bounds as None."""
        bounds = {"above": self.above, "below": self.below}
        content = dataclasses.asdict(self)
        for effect in content["effects"]:
            del effect["narrowest"]
        return (
            content
            | {"effects": list(content["effects"])}
            | {name: bound if math.isfinite(bound) else None for name, bound in bounds.items()}
            | {"verdict": self.verdict, "measured": self.measured}
            | {"kind": self.kind or ("paper" if self.sentence else "ours")}
            | {"confirmable": self.confirmable, "place": self.place}
        )


def _fits(effect: Effect, above: float, below: float) -> bool:
    if effect.narrowest is not None:
        return above < effect.narrowest[0] and effect.narrowest[1] < below
    if not (math.isfinite(above) and math.isfinite(below)):
        return True
    if above > 0 and effect.low > 0:  # a ratio, whose interval is symmetric in its logarithm
        return effect.high / effect.low < below / above
    return effect.high - effect.low < below - above


def _sentence(effect: Effect) -> str:
    where = f"{effect.where}: " if effect.where else ""
    words = f" ({effect.words})" if effect.words else ""
    return f"{where}{effect.value:.3g} [{effect.low:.3g}, {effect.high:.3g}]{words}"


Pairs = Mapping[str, tuple[Samples, Samples]]
"""The samples of two methods at each size or setting."""


def differences(pairs: Pairs, words: str = "{a:.3g} against {b:.3g}") -> tuple[Effect, ...]:
    """mean(b - a), by how much a is below b. `words` may also use {share}, the percentage of runs
    in which a is below b."""

    def one(where: str, a: Samples, b: Samples, level: float) -> Effect:
        said = words.format(a=np.mean(a), b=np.mean(b), share=100 * np.mean(b > a))
        return Effect(where, *_student(b - a, level), said)

    return _each(pairs, one)


def ratios(pairs: Pairs, words: str = "") -> tuple[Effect, ...]:
    """mean(b) / mean(a) of positive numbers, by the delta method for its logarithm."""

    def one(where: str, a: Samples, b: Samples, level: float) -> Effect:
        said = words.format(a=np.mean(a), b=np.mean(b))
        if not (np.mean(a) > 0 and np.mean(b) > 0):
            return _unknown(where, said)
        ratio, influence = float(np.mean(b) / np.mean(a)), b / np.mean(b) - a / np.mean(a)
        _, low, high = _student(influence - influence.mean(), level)
        return Effect(where, ratio, ratio * math.exp(low), ratio * math.exp(high), said)

    return _each(pairs, one)


def ratios_of_ratios(
    pairs: Mapping[str, tuple[tuple[Samples, Samples], tuple[Samples, Samples]]],
) -> tuple[Effect, ...]:
    """[mean(b) / mean(a)] / [mean(d) / mean(c)] for independent ((a, b), (c, d))."""
    effects = []
    for where, both in pairs.items():
        logs = [math.log(np.mean(b) / np.mean(a)) for a, b in both]
        shifts = [b / np.mean(b) - a / np.mean(a) for a, b in both]
        error = math.sqrt(sum(np.var(x, ddof=1) / x.size for x in shifts))
        freedom = min(x.size for x in shifts) - 1
        reach = student_quantile(shared_level(len(pairs)), freedom) * error
        value = logs[0] - logs[1]
        words = f"{math.exp(logs[0]):.3g} and {math.exp(logs[1]):.3g}"
        low, high = math.exp(value - reach), math.exp(value + reach)
        effects.append(Effect(where, math.exp(value), low, high, words))
    return tuple(effects)


RESAMPLES = 2_000


def times(pairs: Pairs) -> tuple[Effect, ...]:
    """The ratio of the median times of b to those of a, which were measured in turn. Its interval
    is that of the bootstrap over measurements: a few that were disturbed do not decide it."""

    def one(where: str, a: Samples, b: Samples, level: float) -> Effect:
        drawn = np.random.default_rng(0).integers(a.size, size=(RESAMPLES, a.size))
        resampled = np.median(b[drawn], 1) / np.median(a[drawn], 1)
        low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
        first, second = np.median(a), np.median(b)
        said = f"{1e3 * second:.3g} ms over {1e3 * first:.3g} ms"
        return Effect(where, float(second / first), float(low), float(high), said)

    return _each(pairs, one)


def spreads(pairs: Pairs, words: str = "s.d. {a:.3g} against {b:.3g}") -> tuple[Effect, ...]:
    """Ratio of the standard deviations over runs, b to a.

    The interval is the wider of two: that of Pitman and Morgan, which is exact for Gaussian pairs,
    and that of the delta method, which accounts for heavy tails."""

    def one(where: str, a: Samples, b: Samples, level: float) -> Effect:
        sa, sb = (float(np.std(x, ddof=1)) for x in (a, b))
        if sa == 0 or sb == 0:
            return _unknown(where, words.format(a=sa, b=sb))
        squares = [((x - np.mean(x)) / s) ** 2 for x, s in ((a, sa), (b, sb))]
        _, low, high = _student((squares[1] - squares[0]) / 2, level)
        reach = max(high, -low, _pitman_morgan(a, b, level))
        low, high = (sb / sa * math.exp(sign * reach) for sign in (-1, 1))
        return Effect(where, sb / sa, low, high, words.format(a=sa, b=sb))

    return _each(pairs, one)


def _pitman_morgan(a: Samples, b: Samples, level: float) -> float:
    """Half the width of the interval of log(sd_b / sd_a). The interval contains the ratios for
    which the correlation of b / sd_b + a / sd_a with b / sd_b - a / sd_a is not significant."""
    if a.size <= 3:
        return math.inf
    t = float(student_quantile(level, a.size - 2))
    correlation = float(np.corrcoef(a, b)[0, 1])
    return math.acosh(1 + 2 * (1 - correlation**2) * t**2 / (a.size - 2)) / 2


def means(samples: Mapping[str, Samples], words: str = "") -> tuple[Effect, ...]:
    """The mean over runs."""
    level = shared_level(len(samples))
    return tuple(
        Effect(where, *_student(np.asarray(x, float), level), words) for where, x in samples.items()
    )


def shares(counts: Mapping[str, tuple[int, int]], rare: bool = False) -> tuple[Effect, ...]:
    """k of n runs, as a fraction, with the interval of Clopper and Pearson."""
    effects = []
    for where, (k, n) in counts.items():
        level = shared_level(len(counts))
        low, high = binomial_interval(k, n, level)
        best = binomial_interval(0 if rare else n, n, level)
        effects.append(Effect(where, k / n, low, high, f"{k} of {n:,} runs", best))
    return tuple(effects)


Cell = tuple[str, str]
"""What was measured, and of which method."""
Cells = Mapping[tuple[str, str, int], Samples]
"""What was measured, of which method and with how many paths."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim as a row of a table: which samples it compares, how, and at which sizes."""

    id: str
    sentence: str
    says: str
    effect: str
    how: Callable[[Any], tuple[Effect, ...]]
    """`differences`, `ratios`, `spreads`, or `means` of single cells."""
    pairs: Mapping[str, tuple[Cell, ...]]
    """By what is said of them, in which {M} is the size."""
    sizes: Container[int] | None = None
    """None: all that there are."""
    above: float = 0.0
    below: float = math.inf
    kind: Kind | None = None
    reading: str = ""


def pair(what: str, first: str, second: str) -> dict[str, tuple[Cell, ...]]:
    """Two methods at every M."""
    return {"M = {M}": ((what, first), (what, second))}


def stored(samples: Cells, what: str, name: str, M: int) -> Samples:
    return samples[what, name, M]


def judge(table: Iterable[Row], samples: Cells, value: Any = stored) -> list[Claim]:
    """The claims of a table; those for whose sizes there are no samples are left out. `value`
    computes what is compared, where it is not stored as it is."""
    sizes, claims = sorted({M for *_, M in samples}), []
    for row in table:
        compared: dict[str, Any] = {
            label.format(M=M): tuple(value(samples, *cell, M) for cell in cells)
            for label, cells in row.pairs.items()
            for M in sizes
            if row.sizes is None or M in row.sizes
        }
        if not compared:
            continue
        if row.how is means:
            compared = {where: values for where, (values,) in compared.items()}
        effects = row.how(compared)
        text = row.id, row.sentence, row.says, row.effect
        claims.append(Claim(*text, effects, row.above, row.below, row.kind, row.reading))
    return claims


def _each(pairs: Pairs, one: Any) -> tuple[Effect, ...]:
    level = shared_level(len(pairs))
    return tuple(
        one(where, np.asarray(a, float), np.asarray(b, float), level)
        for where, (a, b) in pairs.items()
    )


def shared_level(count: int) -> float:
    """The level of each of `count` intervals, by Bonferroni's correction."""
    return 1 - (1 - LEVEL) / count


def _student(samples: Samples, level: float) -> tuple[float, float, float]:
    return float(samples.mean()), *student_interval(samples, level)


def _unknown(where: str, words: str) -> Effect:
    """A ratio that is undefined because a mean is not positive."""
    return Effect(where, math.nan, 0.0, math.inf, words)
