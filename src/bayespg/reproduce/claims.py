"""Claims and the measured effects, with intervals over runs, that decide them.

Runs are the unit of replication. The intervals of a claim hold jointly with 95 % confidence: each
has the level 1 - 0.05 / (number of effects). Comparisons of two methods are paired, because their
runs share initial policies and paths.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Literal, TypedDict

import numpy as np

from bayespg._support.statistics import binomial_interval, student_interval, student_quantile
from bayespg.reproduce import sentences
from bayespg.reproduce.sentences import Verdict

LEVEL = 0.95
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
    not follow from that of the interval."""


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
    def verdict(self) -> Verdict:
        """The claim holds if every interval is within the bounds, does not hold if one is outside,
        and is not decided otherwise."""
        return sentences.worst(
            [judged(e.low, e.high, self.above, self.below) for e in self.effects]
        )

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
        content = dataclasses.asdict(self)
        for effect in content["effects"]:
            del effect["narrowest"]
        return content | {
            "effects": list(content["effects"]),
            "above": self.above if math.isfinite(self.above) else None,
            "below": self.below if math.isfinite(self.below) else None,
            "kind": self.kind or ("paper" if self.sentence else "ours"),
            "verdict": self.verdict,
            "measured": self.measured,
            "confirmable": self.confirmable,
            "place": sentences.SENTENCES[self.sentence].place if self.sentence else "",
        }


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
RESAMPLES = 2_000
UNDEFINED = math.nan, 0.0, math.inf
"""A ratio of numbers that are not positive, with its interval."""


def jointly(one: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Effect, ...]]:
    """The effects of several comparisons by their labels, with intervals that hold jointly. `one`
    takes what is compared and the level of its interval, and returns the effect without its
    label."""

    @functools.wraps(one)
    def effects(compared: Mapping[str, Any], *words: str, **options: Any) -> tuple[Effect, ...]:
        level = 1 - (1 - LEVEL) / len(compared)  # Bonferroni's correction
        return tuple(
            Effect(where, *one(*(of if isinstance(of, tuple) else (of,)), level, *words, **options))
            for where, of in compared.items()
        )

    return effects


@jointly
def differences(a: Samples, b: Samples, level: float, words: str = "{a:.3g} against {b:.3g}"):
    """mean(b - a), by how much a is below b. `words` may also use {share}, the percentage of runs
    in which a is below b."""
    a, b = _double(a, b)
    text = words.format(a=np.mean(a), b=np.mean(b), share=100 * np.mean(b > a))
    return *_student(b - a, level), text


@jointly
def ratios(a: Samples, b: Samples, level: float, words: str = ""):
    """mean(b) / mean(a) of positive numbers, by the delta method for its logarithm."""
    a, b = _double(a, b)
    text = words.format(a=np.mean(a), b=np.mean(b))
    if not (np.mean(a) > 0 and np.mean(b) > 0):
        return *UNDEFINED, text
    ratio, influence = float(np.mean(b) / np.mean(a)), b / np.mean(b) - a / np.mean(a)
    _, low, high = _student(influence - influence.mean(), level)
    return ratio, ratio * math.exp(low), ratio * math.exp(high), text


@jointly
def ratios_of_ratios(first: tuple[Samples, Samples], second: tuple[Samples, Samples], level: float):
    """[mean(b) / mean(a)] / [mean(d) / mean(c)] for independent ((a, b), (c, d))."""
    logs = [math.log(np.mean(b) / np.mean(a)) for a, b in (first, second)]
    shifts = [b / np.mean(b) - a / np.mean(a) for a, b in (first, second)]
    error = math.sqrt(sum(np.var(x, ddof=1) / x.size for x in shifts))
    reach = student_quantile(level, min(x.size for x in shifts) - 1) * error
    words = f"{math.exp(logs[0]):.3g} and {math.exp(logs[1]):.3g}"
    return *(math.exp(logs[0] - logs[1] + of) for of in (0.0, -reach, reach)), words


@jointly
def times(a: Samples, b: Samples, level: float):
    """The ratio of the median times of b to those of a, which were measured in turn. Its interval
    is that of the bootstrap over measurements: a few that were disturbed do not decide it."""
    a, b = _double(a, b)
    drawn = np.random.default_rng(0).integers(a.size, size=(RESAMPLES, a.size))
    resampled = np.median(b[drawn], 1) / np.median(a[drawn], 1)
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    first, second = np.median(a), np.median(b)
    text = f"{1e3 * second:.3g} ms over {1e3 * first:.3g} ms"
    return float(second / first), float(low), float(high), text


@jointly
def spreads(a: Samples, b: Samples, level: float):
    """Ratio of the standard deviations over runs, b to a.

    The interval is the wider of two: that of Pitman and Morgan, which is exact for Gaussian pairs,
    and that of the delta method, which accounts for heavy tails."""
    a, b = _double(a, b)
    sa, sb = (float(np.std(x, ddof=1)) for x in (a, b))
    text = f"s.d. {sa:.3g} against {sb:.3g}"
    if sa == 0 or sb == 0:
        return *UNDEFINED, text
    squares = [((x - np.mean(x)) / s) ** 2 for x, s in ((a, sa), (b, sb))]
    _, low, high = _student((squares[1] - squares[0]) / 2, level)
    reach = max(high, -low, _pitman_morgan(a, b, level))
    return sb / sa, sb / sa * math.exp(-reach), sb / sa * math.exp(reach), text


def _pitman_morgan(a: Samples, b: Samples, level: float) -> float:
    """Half the width of the interval of log(sd_b / sd_a). The interval contains the ratios for
    which the correlation of b / sd_b + a / sd_a with b / sd_b - a / sd_a is not significant."""
    if a.size <= 3:
        return math.inf
    t = float(student_quantile(level, a.size - 2))
    correlation = float(np.corrcoef(a, b)[0, 1])
    return math.acosh(1 + 2 * (1 - correlation**2) * t**2 / (a.size - 2)) / 2


@jointly
def means(x: Samples, level: float):
    """The mean over runs."""
    return _student(np.asarray(x, float), level)


@jointly
def shares(k: int, n: int, level: float, rare: bool = False):
    """k of n runs, as a fraction, with the interval of Clopper and Pearson. The narrowest interval
    is that of no run if the claim is that they are `rare`, otherwise that of all of them."""
    low, high = binomial_interval(k, n, level)
    best = binomial_interval(0 if rare else n, n, level)
    return k / n, low, high, f"{k} of {n:,} runs", best


def _double(a: Samples, b: Samples) -> tuple[Samples, Samples]:
    return np.asarray(a, float), np.asarray(b, float)


def _student(samples: Samples, level: float) -> tuple[float, float, float]:
    return float(samples.mean()), *student_interval(samples, level)


Cell = tuple[str, str] | tuple[str, str, int]
"""What was measured, of which method, and with how many paths if not with those of the row."""
Cells = Mapping[tuple[str, str, int], Samples]
"""What was measured, of which method and with how many paths."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim as a row of a table: which samples it compares, how, and at which sizes."""

    id: str
    sentence: str
    says: str
    """{M} is the largest of the sizes."""
    effect: str
    how: Callable[[Any], tuple[Effect, ...]]
    """`differences`, `ratios`, ..., or another function of what is compared, by its label."""
    pairs: Mapping[str, tuple[Cell, ...]] | Callable[[Any], Mapping[str, Any]]
    """Cells by their label, in which {M} is the size; or a function of all samples that returns
    what is compared by its label."""
    sizes: Container[int] | None = None
    """None: all of which there are samples."""
    above: float = 0.0
    below: float = math.inf
    kind: Kind | None = None
    reading: str = ""


def pair(what: str, first: str, second: str) -> dict[str, tuple[Cell, ...]]:
    """Two methods at every M."""
    return {"M = {M}": ((what, first), (what, second))}


def under(
    rows: Iterable[Row], id: str, reading: str, names: Mapping[str, str] | None = None
) -> tuple[Row, ...]:
    """The rows under a reading: {} in their names is `id`, {} in what they say of the reading is
    `reading`, and methods may have other `names` there."""
    names, changed = names or {}, []
    for row in rows:
        assert not callable(row.pairs)
        pairs = {
            where: tuple((cell[0], names.get(cell[1], cell[1]), *cell[2:]) for cell in cells)
            for where, cells in row.pairs.items()
        }
        id_, reading_ = row.id.format(id), (row.reading or "{}").format(reading)
        changed.append(dataclasses.replace(row, id=id_, reading=reading_, pairs=pairs))
    return tuple(changed)


def stored(samples: Cells, what: str, name: str, M: int) -> Samples:
    return samples[what, name, M]


def judge(
    table: Iterable[Row], samples: Cells, value: Callable[..., Samples | None] = stored
) -> list[Claim]:
    """The claims of a table; those for whose sizes there are no samples are left out. `value`
    computes what is compared where it is not stored as it is, or None where there is nothing."""
    claims = []
    for row in table:
        sizes = _sizes(row, samples)
        if callable(row.pairs):
            compared = row.pairs(samples)
        else:
            every = {
                label.format(M=M): tuple(value(samples, *(*cell, M)[:3]) for cell in cells)
                for label, cells in row.pairs.items()
                for M in sizes
            }
            compared = {where: of for where, of in every.items() if all(x is not None for x in of)}
        if compared:
            text = row.id, row.sentence, row.says.format(M=f"{max(sizes):,}"), row.effect
            bounds = row.above, row.below
            claims.append(Claim(*text, row.how(compared), *bounds, row.kind, row.reading))
    return claims


def _sizes(row: Row, samples: Cells) -> list[int]:
    """The sizes of a row for which its cells are stored, or all sizes if they are computed."""
    every = {M for *_, M in samples}
    if not callable(row.pairs):
        measured = {cell[0] for cells in row.pairs.values() for cell in cells}
        every = {M for what, _, M in samples if what in measured} or every
    return sorted(M for M in every if row.sizes is None or M in row.sizes)
