"""A comparison of algorithms on one task as a page: curves with bands over seeds, and a table."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bayespg.runs import page, plots
from bayespg.runs.numbers import over_seeds, shown

LOOKS = ("ours", "BAC", "compatible", "BQ variant", "MC", "MC, best baseline", "eNAC", "GPOMDP")
POINTS = 100
LAST = 0.2
"""Share of the evaluations over which the return at the end is a mean."""

Runs = Mapping[str, Sequence[list[tuple[int, float]]]]
"""For each name, the evaluations of its seeds: steps, and mean return."""


def draw(runs: Runs, title: str, threshold: float | None) -> Figure:
    with plots.styled():
        figure, ((axes,),) = plots.sheet(1, 1, width=6.4, height=3.8)
        for (name, seeds), look in zip(runs.items(), LOOKS * 10, strict=False):
            end = min(each[-1][0] for each in seeds)
            steps = np.linspace(0, end, POINTS)
            values = np.stack([np.interp(steps, *np.array(each).T) for each in seeds])
            plots.mean_over_seeds(axes, steps, values, name, look)
        if threshold is not None:
            plots.dotted(axes, threshold)
        axes.set_title(plots.plain(title))
        axes.set_ylabel("return of an evaluation")
        plots.environment_steps(axes)
        plots.legend_below(figure, axes)
        return figure


def at_end(evaluations: list[tuple[int, float]]) -> float:
    """The mean of the last evaluations."""
    last = max(1, math.ceil(LAST * len(evaluations)))
    return float(np.mean([value for _, value in evaluations[-last:]]))


def rows(
    runs: Runs, reached: Mapping[str, Sequence[float]], seconds: Mapping[str, Sequence[float]]
) -> list[list[str]]:
    """Name, return at the end, over seeds, steps to the threshold, seconds of training."""
    ends = {name: np.array([at_end(each) for each in seeds]) for name, seeds in runs.items()}
    return [
        [
            name, shown(end.mean())[0], over_seeds(end) or "one seed",
            _reached(reached.get(name, ())), f"{np.mean(seconds[name]):,.0f}",
        ]
        for name, end in ends.items()
    ]  # fmt: skip


def _reached(steps: Sequence[float]) -> str:
    if not steps:
        return ""
    met = [x for x in steps if math.isfinite(x)]
    middle = float(np.median(steps)) if len(met) > len(steps) / 2 else math.inf
    shown = f"{middle:,.0f}" if math.isfinite(middle) else "not reached"
    return f"{shown} ({len(met)} of {len(steps)} seeds)"


HEADINGS = ["algorithm", "return at the end", "over seeds", "steps to the threshold", "seconds"]


def write(
    path: Path, settings: dict[str, Any], figure: Figure, lines: list[list[str]], command: str
) -> Path:
    """The page, complete in one file."""
    task, threshold = settings["task"], settings["threshold"]
    reached = f" The dotted line is the threshold {threshold:g}." if threshold is not None else ""
    about = (
        f"Every algorithm has its default settings and trains for {settings['steps']:,} steps, "
        f"during which the policy of the moment plays {settings['points']} times the same "
        f"{settings['episodes']} episodes, with its most likely actions.{reached} Bands are 95 % "
        "bootstrap intervals of the mean over seeds."
    )
    columns = (
        "Return at the end: mean of the last fifth of the evaluations. Steps to the threshold: "
        "median over seeds, where two evaluations in a row reach it. Seconds: training alone, on "
        "this machine. Algorithms with error bars are bayespg's; the others are of "
        "Stable-Baselines3."
    )
    return page.write(
        path,
        f"bayespg: {task} compared",
        page.fill("<h1>{}: algorithms side by side</h1><p>{}</p>", task, about),
        page.figure(plots.svg(figure), f"Learning on {task}", "curves"),
        page.table(HEADINGS, lines),
        page.note(columns),
        page.command(command),
    )
