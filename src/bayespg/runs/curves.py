"""Learning curves of runs over seeds, against environment steps, with the probability that steps go
uphill."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayespg.runs import plots
from bayespg.runs.columns import DRAWN, Column
from bayespg.runs.seeds import Group
from bayespg.runs.store import METRICS, Run

POINTS = 100
LOOKS = ("ours", "BAC", "MC", "compatible", "eNAC", "BQ variant")
STATED = "stated probability that the direction is uphill"
UPHILL = "uphill"
"""What further episodes say about the direction of an update: 1 uphill, 0 downhill, NaN where the
update made no step."""
SIZES = (-0.01, 0.5, 0.7, 0.9, 1.0)
FEW = 5
"""Statements between these are counted together, where there are no fewer."""


@dataclasses.dataclass(frozen=True)
class Curves:
    """One row per seed, on a common grid of steps."""

    steps: np.ndarray
    returns: np.ndarray
    sure: np.ndarray
    """The probability that a step along the gradient goes uphill."""


def of(group: Group) -> Curves:
    metrics = [m for run in group.runs if (m := logged(run))]
    if not metrics:
        raise ValueError(f"{group.name}: no update has been logged yet; there is nothing to draw")
    return of_metrics(metrics)


def logged(run: Run) -> dict[str, np.ndarray]:
    """The metrics of a run, empty before its first update; ValueError if they are not valid."""
    metrics, path = run.metrics(), run.path / METRICS
    if not metrics or not metrics[Column.UPDATE].size:
        return {}
    if missing := [name for name in DRAWN if name not in metrics]:
        raise ValueError(
            f"{path}: has no column {missing[0]}, only {', '.join(metrics)}; expected what "
            "'bayespg train' of this version writes"
        )
    steps = metrics[Column.STEPS]
    if not (np.isfinite(steps).all() and (np.diff(steps) >= 0).all()):
        raise ValueError(
            f"{path}: column steps must hold numbers that grow; repair it or train the run again"
        )
    return metrics


def of_metrics(metrics: Sequence[dict[str, np.ndarray]]) -> Curves:
    """The curves of all seeds, interpolated up to the end of the shortest run."""
    end = min(m[Column.STEPS][-1] for m in metrics)
    start = max(m[Column.STEPS][0] for m in metrics)
    steps = np.linspace(min(start, end), end, POINTS)
    returns, sure = (
        np.stack([along(steps, m[Column.STEPS], m[name]) for m in metrics])
        for name in (Column.RETURN, Column.SURE)
    )
    return Curves(steps, returns, sure)


def along(steps: np.ndarray, at: np.ndarray, x: np.ndarray, share: int = 30) -> np.ndarray:
    """The running means of what was logged at some steps, at other steps. Updates without a number
    are left out; NaN where none has one."""
    known = np.isfinite(x)
    if not known.any():
        return np.full(steps.size, np.nan)
    return np.interp(steps, at[known], smoothed(x[known].astype(float), share))


def smoothed(x: np.ndarray, share: int = 30) -> np.ndarray:
    """Running mean over this share of the updates, by default a thirtieth."""
    width = max(1, x.size // share)
    ends = np.cumsum(np.concatenate([[0.0], x]))
    low = np.maximum(np.arange(x.size) - width + 1, 0)
    return (ends[np.arange(x.size) + 1] - ends[low]) / (np.arange(x.size) + 1 - low)


def draw(drawn: Sequence[tuple[str, Curves]], title: str, threshold: float | None = None) -> Figure:
    """Above, the return; below, the probability that a step goes uphill. Bands are 95 % bootstrap
    intervals of the mean over seeds; below, those of several runs would cover each other."""
    with plots.styled():
        figure, ((above,), (below,)) = plots.sheet(
            2, 1, width=6.4, height=5.2, sharex=True, height_ratios=(2, 1)
        )
        for (name, curves), look in zip(drawn, LOOKS * 10, strict=False):
            seeds = len(curves.returns)
            for axes, each in ((above, curves.returns), (below, curves.sure)):
                markers = len(curves.steps) == 1
                shown = each if axes is above or len(drawn) == 1 else each.mean(0, keepdims=True)
                plots.mean_over_seeds(axes, curves.steps, shown, name, look, markers)
                if 1 < seeds <= 20 and len(drawn) == 1:
                    axes.plot(curves.steps, each.T, color="#888888", lw=0.4, alpha=0.5, zorder=0)
        if threshold is not None:
            plots.dotted(above, threshold)
        above.set_title(plots.plain(title))
        above.set_ylabel("return of an episode")
        plots.legend_below(figure, above)
        _stated(below)
        return figure


def _stated(axes: Axes) -> None:
    axes.set_title(STATED)
    plots.dotted(axes, 0.5)
    axes.set_ylim(-0.03, 1.03)
    axes.set_yticks([0.0, 0.5, 1.0], ["0 (downhill)", "0.5 (coin toss)", "1 (uphill)"])
    plots.environment_steps(axes)


def draw_judged(
    drawn: Sequence[tuple[str, Curves]],
    title: str,
    threshold: float,
    updates: Sequence[dict[str, np.ndarray]],
) -> Figure:
    """Above, the return; below, what was stated about each update of one of the runs, and how often
    directions went uphill (`UPHILL`) among statements of each size."""
    with plots.styled():
        figure, axes = plots.mosaic(
            [["return", "return"], ["stated", "counted"]], width=7.2, height=5.6,
            height_ratios=(1.6, 1), width_ratios=(1.25, 1),
        )  # fmt: skip
        for (name, curves), look in zip(drawn, LOOKS, strict=False):
            plots.mean_over_seeds(axes["return"], curves.steps, curves.returns, name, look)
        plots.dotted(axes["return"], threshold)
        axes["return"].set_title(plots.plain(title))
        axes["return"].set_ylabel("return of an episode")
        plots.environment_steps(axes["return"])
        plots.legend_below(figure, axes["return"])
        steps, sure, uphill = (
            np.concatenate([m[k] for m in updates]) for k in (Column.STEPS, Column.SURE, UPHILL)
        )
        color = plots.LOOKS[LOOKS[0]]["color"]
        axes["stated"].scatter(steps, sure, s=9, color=color, alpha=0.6, lw=0)
        _stated(axes["stated"])
        axes["stated"].set_title("stated: the direction is uphill")
        axes["stated"].locator_params(axis="x", nbins=4)
        _counted(axes["counted"], sure, uphill, color)
        return figure


def _counted(axes: Axes, sure: np.ndarray, uphill: np.ndarray, color: str) -> None:
    """Pairs of bars: the mean of what was stated, and how often directions went uphill, with two
    standard errors."""
    labels = []
    for low, high in itertools.pairwise(SIZES):
        inside = np.isfinite(uphill) & (sure > low) & (sure <= high)
        count = int(inside.sum())
        if count < FEW:
            continue
        said, went = float(sure[inside].mean()), float(uphill[inside].mean())
        for place, height, alpha, ink in ((-0.2, said, 0.35, "black"), (0.2, went, 1.0, "white")):
            x = len(labels) + place
            axes.bar(x, height, 0.38, color=color, alpha=alpha, lw=0)
            axes.text(x, 0.03, f"{height:.2f}", ha="center", fontsize=7, color=ink)
        reach = 2 * math.sqrt(went * (1 - went) / count)
        ends = [[min(reach, went)], [min(reach, 1 - went)]]
        axes.errorbar(len(labels) + 0.2, went, ends, color="#222222", lw=1)
        labels.append(f"{max(low, 0):g} to {high:g}\n{count:,} updates")
    axes.set_title("stated (pale) and counted")
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylim(0, 1.03)
    axes.set_yticks([0.0, 0.5, 1.0])
    axes.grid(visible=False, axis="x")
