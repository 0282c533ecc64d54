"""Learning curves of finished or running runs: over seeds, against environment steps, with what
was known of the gradient along the way."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bayespg import plots
from bayespg.runs import CONFIG, Run

POINTS = 100
LOOKS = ("ours", "BAC", "MC", "compatible", "eNAC", "BQ variant")


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ by their seed only."""

    name: str
    runs: list[Run]


def members(path: Path) -> list[Path]:
    """A run directory itself, or those of its seeds."""
    if (path / CONFIG).exists():
        return [path]
    found = sorted(
        (child for child in path.glob("seed-*") if (child / CONFIG).exists()),
        key=lambda child: int(child.name.split("-")[1]),
    )
    if not found:
        raise ValueError(
            f"{path}: no run is here; expected a folder that 'bayespg train' has written"
        )
    return found


def group(path: Path) -> Group:
    return Group(path.name or str(path), [Run.open(member) for member in members(path)])


@dataclasses.dataclass(frozen=True)
class Curves:
    """One row a seed, on a common grid of steps."""

    steps: np.ndarray
    returns: np.ndarray
    noise: np.ndarray
    """Standard error of the gradient along the step, relative to it."""


def of(group: Group) -> Curves:
    found = [run.metrics() for run in group.runs]
    found = [m for m in found if m.get("steps", np.zeros(0)).size]
    if not found:
        raise ValueError(f"{group.name}: no update has been logged yet; there is nothing to draw")
    return of_metrics(found)


def of_metrics(found: Sequence[dict[str, np.ndarray]]) -> Curves:
    """The columns of each seed's metrics, interpolated up to where the shortest has come."""
    end = min(m["steps"][-1] for m in found)
    start = max(m["steps"][0] for m in found)
    steps = np.linspace(min(start, end), end, POINTS)
    returns = [np.interp(steps, m["steps"], smoothed(m["return"])) for m in found]
    noise = []
    for m in found:
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.clip(m["slope_error"] / m["slope"], 1e-3, 10.0)
        known = np.isfinite(each) & (m["slope"] > 0)
        noise.append(
            np.interp(steps, m["steps"][known], smoothed(each[known]))
            if known.any() else np.full(POINTS, np.nan)
        )  # fmt: skip
    return Curves(steps, np.stack(returns), np.stack(noise))


def smoothed(x: np.ndarray, share: int = 30) -> np.ndarray:
    """Running mean over a thirtieth of the updates."""
    width = max(1, x.size // share)
    ends = np.cumsum(np.concatenate([[0.0], x]))
    low = np.maximum(np.arange(x.size) - width + 1, 0)
    return (ends[np.arange(x.size) + 1] - ends[low]) / (np.arange(x.size) + 1 - low)


def draw(found: Sequence[tuple[str, Curves]], title: str, threshold: float | None = None) -> Figure:
    """Above, the return; below, how noisy the gradient was. Bands are 95 % bootstrap intervals of
    the mean over seeds."""
    with plots.styled():
        figure, ((above,), (below,)) = plots.sheet(
            2, 1, width=6.4, height=5.2, sharex=True, height_ratios=(2, 1)
        )
        for (name, curves), look in zip(found, LOOKS * 10, strict=False):
            seeds = len(curves.returns)
            for axes, each in ((above, curves.returns), (below, curves.noise)):
                band = plots.bootstrap(each) if seeds > 1 else None
                label = f"{name} ({seeds} seed{'s' * (seeds > 1)})"
                plots.curve(
                    axes, curves.steps, each.mean(0), label=label, look=look,
                    markers=len(curves.steps) == 1, band=band,
                )  # fmt: skip
                if 1 < seeds <= 20 and len(found) == 1:
                    axes.plot(curves.steps, each.T, color="#888888", lw=0.4, alpha=0.5, zorder=0)
        if threshold is not None:
            above.axhline(threshold, color="#444444", lw=0.8, ls=":")
        above.set_title(title)
        above.set_ylabel("return of an episode")
        above.legend(loc="best")
        below.set_title("standard error of the gradient along the step, relative to it")
        below.axhline(1.0, color="#444444", lw=0.8, ls=":")
        below.set_yscale("log")
        plots.plain_ticks(below, (0.05, 0.1, 0.2, 0.5, 1, 2, 5))
        below.set_xlabel("environment steps")
        below.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        return figure
