"""Figures: one look for all of them. No global Matplotlib state is touched."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayespg._support.files import make_directory, printable, write_whole

Series = Sequence[float] | np.ndarray

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
}

LOOKS: dict[str, dict[str, Any]] = {
    "MC": {"color": "#9a9a9a", "marker": "o"},
    "MC, mean baseline": {"color": "#9a9a9a", "linestyle": ":"},
    "MC, best baseline": {"color": "#555555", "linestyle": "--", "marker": "s"},
    "GPOMDP": {"color": "#b8860b", "linestyle": "-.", "marker": "v"},
    "BQ": {"color": "#2166ac", "marker": "D"},
    "BQ natural": {"color": "#67a9cf", "marker": "^"},
    "BQ variant": {"color": "#7b3294", "linestyle": "--", "marker": "P"},
    "MC, fitted values": {"color": "#555555", "linestyle": "--", "marker": "s"},
    "eNAC": {"color": "#8c6d31", "linestyle": ":", "marker": "<"},
    "compatible": {"color": "#637939", "linestyle": "--", "marker": ">"},
    "BPG": {"color": "#67a9cf", "marker": "^"},
    "BAC": {"color": "#2166ac", "marker": "D"},
    "BAC as printed": {"color": "#2166ac", "linestyle": ":", "marker": "x"},
    "BAC variant": {"color": "#7b3294", "linestyle": "--", "marker": "P"},
    "ours": {"color": "#c2410c", "marker": "*", "markersize": 7},
    "ours fixed": {"color": "#c2410c", "linestyle": ":", "marker": "*", "markersize": 6},
    "ours exact": {"color": "#f0a36b", "linestyle": "--", "marker": "*", "markersize": 6},
}
"""Grey for Monte Carlo, blue for the paper's estimators, red for what goes beyond it."""


def sheet(rows: int, columns: int, width: float = 8.0, height: float | None = None, **kwargs: Any):
    """A figure and its axes, in this module's style; use inside `styled()`."""
    figure = _figure(width, height or 2.6 * rows)
    return figure, figure.subplots(rows, columns, squeeze=False, **kwargs)


def mosaic(layout: Any, width: float, height: float, **kwargs: Any):
    """A figure and its axes by name, laid out as the names are; use inside `styled()`."""
    figure = _figure(width, height)
    return figure, figure.subplot_mosaic(layout, **kwargs)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=160)
    FigureCanvasAgg(figure)
    return figure


def styled() -> Any:
    """The style, as a context."""
    return mpl.rc_context(STYLE)


def curve(
    axes: Axes,
    x: Series,
    mean: Series,
    error: Series | None = None,
    *,
    label: str,
    look: str,
    markers: bool = True,
    band: tuple[Series, Series] | None = None,
) -> None:
    """A line with a band: of two standard errors, or between two given curves."""
    style = dict(LOOKS[look])
    if not markers:
        style.pop("marker", None)
        style.pop("markersize", None)
    mean_, x_ = np.asarray(mean, float), np.asarray(x, float)
    axes.plot(x_, mean_, label=label, **style)
    if error is not None:
        reach = 2 * np.asarray(error, float)
        band = (mean_ - reach, mean_ + reach)
    if band is not None:
        axes.fill_between(x_, *band, color=style["color"], alpha=0.18, lw=0)


def bootstrap(
    samples: np.ndarray, resamples: int = 400, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap interval of the mean over runs (the first axis), 95 % by default."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(len(samples), np.full(len(samples), 1 / len(samples)), resamples)
    ends = (50 * (1 - level), 50 * (1 + level))
    low, high = np.percentile(counts @ samples / len(samples), ends, axis=0)
    return low, high


def mean_over_seeds(
    axes: Axes, steps: Series, seeds: np.ndarray, name: str, look: str, markers: bool = False
) -> None:
    """The mean over seeds, one row each, with its 95 % bootstrap interval."""
    count = len(seeds)
    label = plain(f"{name} ({count} seed{'s' * (count > 1)})")
    band = bootstrap(seeds) if count > 1 else None
    curve(axes, steps, seeds.mean(0), label=label, look=look, markers=markers, band=band)


def dotted(axes: Axes, *levels: float) -> None:
    """Thin dotted lines at these heights."""
    for level in levels:
        axes.axhline(level, color="#444444", lw=0.8, ls=":")


def environment_steps(axes: Axes) -> None:
    """Name the horizontal axis, and write its numbers with commas."""
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")


def legend_below(figure: Figure, axes: Axes, columns: int | None = None) -> None:
    """One legend for all panels, under them, in as many columns as names of this length fit."""
    handles, labels = axes.get_legend_handles_labels()
    if columns is None:
        longest = max(len(label) for label in labels) + 6  # for the line in front of it
        columns = max(1, int(14 * figure.get_figwidth()) // longest)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def plain(text: object) -> str:
    """Text as it is, where Matplotlib would read dollars as mathematics and leave out of a legend
    what begins with an underscore."""
    shown = printable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def plain_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Plain numbers on a logarithmic axis, at those of `values` that it shows."""
    low, high = axes.get_ylim()
    shown = [value for value in values if low <= value <= high]
    axes.set_yticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format of its suffix."""
    kinds = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ValueError(
            f"{path}: expected a picture such as learning.png or learning.svg, found the suffix "
            f"{path.suffix!r}"
        )
    make_directory(path.parent)
    if path.suffix == ".svg":
        write_whole(path, svg(figure).encode())
    else:
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix[1:].lower())
        write_whole(path, content.getvalue())


def svg(figure: Figure) -> str:
    """A figure as SVG, reproducible, with coordinates to a hundredth of a point."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "bayespg"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return short(file.getvalue())


def short(svg: str) -> str:
    """Coordinates of paths with two decimals: half the size, without visible difference."""

    def rounded(path: re.Match[str]) -> str:
        return re.sub(
            r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), path[0]
        )

    return re.sub(r' d="[^"]*"', rounded, svg)
