"""Learning curves of runs over seeds, against environment steps, with the probability that steps go
uphill."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from bayespg.runs import plots
from bayespg.runs.columns import DRAWN, Column
from bayespg.runs.seeds import Group
from bayespg.runs.store import METRICS, Run

POINTS = 100
LOOKS = ("ours", "BAC", "MC", "compatible", "eNAC", "BQ variant")


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
    intervals of the mean over seeds."""
    with plots.styled():
        figure, ((above,), (below,)) = plots.sheet(
            2, 1, width=6.4, height=5.2, sharex=True, height_ratios=(2, 1)
        )
        for (name, curves), look in zip(drawn, LOOKS * 10, strict=False):
            seeds = len(curves.returns)
            for axes, each in ((above, curves.returns), (below, curves.sure)):
                markers = len(curves.steps) == 1
                plots.mean_over_seeds(axes, curves.steps, each, name, look, markers)
                if 1 < seeds <= 20 and len(drawn) == 1:
                    axes.plot(curves.steps, each.T, color="#888888", lw=0.4, alpha=0.5, zorder=0)
        if threshold is not None:
            plots.dotted(above, threshold)
        above.set_title(plots.plain(title))
        above.set_ylabel("return of an episode")
        plots.legend_below(figure, above)
        below.set_title("how sure the learner was that its step raises the return")
        plots.dotted(below, 0.5)
        below.set_ylim(0.3, 1.02)
        below.set_yticks([0.5, 0.75, 1.0], ["0.5 (coin toss)", "0.75", "1 (certain)"])
        plots.environment_steps(below)
        return figure
