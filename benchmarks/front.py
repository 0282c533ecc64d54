"""The picture and the table of the README: scores of the suite's tasks, ours and those of rivals,
from the stored runs of benchmarks/suite.py.

    python benchmarks/front.py docs/results/front.svg

It also writes front-dark.svg, for pages with a dark background, and prints the table.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import suite_report
from suite_tasks import TASKS

from bayespg.runs import plots

RESULTS = Path(__file__).parent.parent / "docs" / "results"
OURS = "bayespg"
NAMES = {OURS: "bayespg, defaults", "ppo": "PPO, tuned", "trpo": "TRPO, tuned"}
"""Ours, and the on-policy rivals that were run on all tasks, the one with the highest score first;
the picture shows the first two."""
PARTS = {"first fifth of the steps": suite_report.EARLY, "all steps": 1.0}
DARK = {
    "figure.facecolor": "#0d1117", "axes.facecolor": "#0d1117", "savefig.facecolor": "#0d1117",
    "text.color": "#e6edf3", "axes.labelcolor": "#e6edf3", "xtick.color": "#9aa4af",
    "ytick.color": "#e6edf3", "axes.edgecolor": "#9aa4af", "grid.color": "#2b323b",
}  # fmt: skip
Scores = dict[str, dict[str, np.ndarray]]
"""By part of the steps and method, one of each task."""


def scores() -> Scores:
    stored = suite_report.stored([RESULTS / "suite.jsonl", RESULTS / "suite-rivals.jsonl"])
    return {
        part: {
            method: np.array([
                suite_report.interquartile_mean(
                    [suite_report.score(line, until) for line in stored[method][task]]
                )
                for task in TASKS
            ])
            for method in NAMES
        }
        for part, until in PARTS.items()
    }  # fmt: skip


def table(of: Scores) -> str:
    whole = of["all steps"]
    rows = [
        [
            "score from 0 (random) to 1 (solved), mean of twelve tasks", *PARTS,
            "bayespg is ahead on",
        ],
        ["---"] * (2 + len(PARTS)),
    ]  # fmt: skip
    for method, name in NAMES.items():
        mark = "**" if method == OURS else ""
        means = (f"{mark}{of[part][method].mean():.2f}{mark}" for part in PARTS)
        ahead = f"{int(np.sum(whole[OURS] > whole[method]))} of {len(TASKS)} tasks"
        rows.append([mark + name + mark, *means, "" if method == OURS else ahead])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(of: Scores, path: Path, dark: bool) -> None:
    colours = ("#f0883e", "#57606a") if dark else ("#c2410c", "#b4b4b4")
    at = np.arange(len(TASKS))
    with plots.styled(), mpl.rc_context(DARK if dark else {}):
        figure, axes = plots.sheet(1, 2, width=7.4, height=4.2)
        for panel, (part, values) in zip(axes.flat, of.items(), strict=True):
            for method, colour, beside in zip(NAMES, colours, (-0.19, 0.19), strict=False):
                panel.barh(at + beside, values[method], 0.38, color=colour, label=NAMES[method])
            panel.set_yticks(at, [task.rpartition("-")[0] for task in TASKS], fontsize=8)
            panel.set(title=part, xlim=(0, 1))
            panel.invert_yaxis()
            panel.grid(visible=False, axis="y")
            panel.tick_params(axis="y", length=0)
        axes.flat[1].set_yticklabels([])
        axes.flat[0].legend(loc="lower right", fontsize=8)
        figure.suptitle("Score from 0 (random) to 1 (solved): long bars are better", fontsize=11)
        plots.save(figure, path)


def main() -> None:
    path = Path(sys.argv[1])
    of = scores()
    draw(of, path, dark=False)
    draw(of, path.with_stem(f"{path.stem}-dark"), dark=True)
    print(table(of))


if __name__ == "__main__":
    main()
