"""How certain a run was of its gradients: slopes with intervals, how probable it was that steps
went uphill, in how many directions the gradient was known, how many episodes would have made that
probability 95 %, and by how much updates were predicted to raise the return, and did.

All of it follows from the columns of metrics.csv. `sure` is the probability of going uphill of one
update, given how far episodes have agreed in this and in earlier updates.
The slope along a step is optimistic, since the same episodes chose the step; `confirmed` is the
share of it that other episodes find. So the gradient is d = confirmed slope / error standard errors
long, and M' episodes per update would go uphill with probability Phi(d sqrt(M' / M)).
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from bayespg._support.statistics import normal_quantile
from bayespg.runs import plots
from bayespg.runs.columns import Column
from bayespg.runs.curves import along
from bayespg.runs.numbers import shown

NEEDED = (
    Column.STEPS,
    Column.RETURN,
    Column.EPISODES,
    Column.SLOPE,
    Column.SLOPE_ERROR,
    Column.SURE,
)
LEVEL = 0.95
PARTS = 5
"""Rows of the table: equal parts of the run."""
POINTS = 200
MANY = 100_000
"""Episodes beyond which a number says nothing."""

Metrics = dict[str, np.ndarray]


def known(seeds: Sequence[Metrics]) -> list[Metrics]:
    """The seeds whose metrics have what is needed here."""
    return [m for m in seeds if all(name in m for name in NEEDED) and m[Column.STEPS].size > 1]


def strength(part: Metrics) -> float:
    """d, the length of the confirmed gradient in standard errors of one update, over some updates;
    NaN where the estimator does not measure what is confirmed, and its share is always 1."""
    confirmed = part.get(Column.CONFIRMED, np.ones(1))
    slope, error = part[Column.SLOPE], part[Column.SLOPE_ERROR]
    sound = np.isfinite(slope) & np.isfinite(error)
    spread = math.sqrt(np.mean(error[sound] ** 2)) if sound.any() else 0.0
    if np.all(confirmed == 1) or spread == 0:
        return math.nan
    return float(np.mean(confirmed) * slope[sound].mean()) / spread


def episodes_needed(d: float, episodes: float) -> float:
    """Episodes per update with which a step goes uphill with probability `LEVEL`; infinite where
    nothing shows a gradient."""
    return episodes * (normal_quantile(LEVEL) / d) ** 2 if d > 0 else math.inf


def table(seeds: Sequence[Metrics]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: the run in equal parts, all seeds together."""
    columns = [
        "steps", "return", "slope, 95 %", "probability uphill", "confirmed", "directions known",
        "episodes per update", "needed for 95 %",
    ]  # fmt: skip
    parts = ([{k: v[_part(v.size, i)] for k, v in m.items()} for m in seeds] for i in range(PARTS))
    return columns, [_row(part) for part in parts]


def _part(size: int, part: int) -> slice:
    return slice(part * size // PARTS, max((part + 1) * size // PARTS, part * size // PARTS + 1))


def _row(parts: list[Metrics]) -> list[str]:
    def every(column: str) -> np.ndarray:
        return np.concatenate([m[column] for m in parts if column in m] or [np.array([np.nan])])

    slope, error = every(Column.SLOPE), every(Column.SLOPE_ERROR)
    sound = np.isfinite(slope) & np.isfinite(error)
    reach = 1.96 * math.sqrt(np.sum(error[sound] ** 2)) / max(sound.sum(), 1)
    mean = _mean(slope[sound])
    first = parts[0][Column.EPISODES]
    per_update = float(np.diff(first).mean()) if first.size > 1 else float(first[0])
    d = strength({name: every(name) for name in parts[0]})
    needed = episodes_needed(d, per_update)
    return [
        f"{np.mean([m[Column.STEPS][-1] for m in parts]):,.0f}",
        shown(float(every(Column.RETURN).mean()))[0],
        f"{mean:.3g} ± {reach:.2g}",
        Column.SURE.show(_mean(every(Column.SURE))),
        "" if math.isnan(d) else f"{np.mean(every(Column.CONFIRMED)):.2f}",
        "" if math.isnan(known := _mean(every(Column.KNOWN))) else Column.KNOWN.show(known),
        f"{per_update:.0f}",
        "" if math.isnan(d) else f"{math.ceil(needed):,}" if needed < MANY else f"over {MANY:,}",
    ]


ENDS = (0.0, 0.7, 0.9, 1.0)
"""Updates whose `sure` lies between these are counted together."""


def counted(seeds: Sequence[Metrics]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: what was stated about updates, and what the next update returned."""
    columns = [
        "stated", "updates", "mean stated", "next return higher", "return changed by, 95 %",
        "predicted",
    ]  # fmt: skip
    each = [_pairs(m) for m in seeds]
    sure, change, predicted = (np.concatenate(of) for of in zip(*each, strict=True))
    rows = []
    for low, high in itertools.pairwise(ENDS):
        inside = (sure <= high) & ((sure > low) | (low == 0))
        k = int(inside.sum())
        if k == 0:
            continue
        moved = change[inside]
        reach = f" ± {1.96 * moved.std(ddof=1) / math.sqrt(k):.2g}" if k > 1 else ""
        rows.append([
            f"up to {high:g}" if low == 0 else f"{low:g} to {high:g}", f"{k:,}",
            f"{sure[inside].mean():.2f}",
            f"{np.mean(0.5 + 0.5 * np.sign(moved)):.2f}", f"{moved.mean():.3g}{reach}",
            "" if math.isnan(mean := _mean(predicted[inside])) else f"{mean:.3g}",
        ])  # fmt: skip
    return columns, rows


def _pairs(m: Metrics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each update but the last: `sure`, the next return less this one, and what was predicted of
    that."""
    change = np.diff(m[Column.RETURN].astype(float))
    sure, predicted = m[Column.SURE][:-1], _predicted(m)[0][:-1]
    sound = np.isfinite(sure) & np.isfinite(change)
    return sure[sound], change[sound], predicted[sound]


def _predicted(m: Metrics) -> tuple[np.ndarray, np.ndarray]:
    """By how much each update is predicted to raise the return, and the variance of that: with k
    the share that is confirmed, the slope s along the step is given the episodes normal about k s
    with k times its variance. The gradient of estimators that measure k is a mean over steps: times
    the length of an episode it is about the change of the return. NaN where k is not measured."""
    k, length = m.get(Column.CONFIRMED), m.get(Column.LENGTH)
    if k is None or length is None or np.all(k == 1):
        unknown = np.full(m[Column.SLOPE].size, np.nan)
        return unknown, unknown
    return k * length * m[Column.SLOPE], k * (length * m[Column.SLOPE_ERROR]) ** 2


def _mean(values: np.ndarray) -> float:
    """The mean of those that are finite; NaN if none is."""
    values = values[np.isfinite(values)]
    return float(values.mean()) if values.size else math.nan


def draw(seeds: Sequence[Metrics], title: str) -> Figure:
    """Above, by how much an update was predicted to raise the return, with the 95 % interval, and
    by how much it did; below, the probability of going uphill."""
    steps = np.linspace(
        max(m[Column.STEPS][0] for m in seeds), min(m[Column.STEPS][-1] for m in seeds), POINTS
    )
    predicted, variances, real, sure = map(
        np.stack, zip(*(_along(m, steps) for m in seeds), strict=True)
    )
    with plots.styled():
        figure, axes = plots.sheet(2, 1, width=6.4, height=4.6, sharex=True)
        above, below = axes[:, 0]
        if np.isfinite(predicted).any():
            mean = predicted.mean(0)
            reach = 1.96 * np.sqrt(np.mean(variances, 0) / len(seeds))
            plots.curve(
                above, steps, mean, label="predicted, with its 95 % interval",
                look="MC, best baseline", markers=False, band=(mean - reach, mean + reach),
            )  # fmt: skip
        plots.mean_over_seeds(above, steps, real, "real", "ours")
        plots.dotted(above, 0.0)
        above.legend()
        above.set_title(plots.plain(f"{title}: by how much an update raises the return"))
        plots.mean_over_seeds(below, steps, sure, "sure", "BAC")
        plots.dotted(below, 0.5)
        below.set_ylim(0, 1.02)
        below.set_title("how sure it was that its direction is uphill (dotted: a coin toss)")
        plots.environment_steps(below)
        return figure


def _along(m: Metrics, steps: np.ndarray) -> tuple[np.ndarray, ...]:
    """What was predicted, its variance, what became of the return, and `sure` at these steps, as
    running means over a tenth of the updates; the variance is that of the mean."""
    predicted, variances = _predicted(m)
    width = max(1, int(np.isfinite(variances).sum()) // 10)
    real = np.append(np.diff(m[Column.RETURN].astype(float)), np.nan)
    predicted, variance, real, sure = (
        along(steps, m[Column.STEPS], x, 10) for x in (predicted, variances, real, m[Column.SURE])
    )
    return predicted, variance / width, real, sure
