"""The picture and the table of the README: environment steps until a task is solved, ours and
Stable-Baselines3's, from the stored runs of benchmarks/learning.py and benchmarks/rivals/sb3.py.

python benchmarks/solved.py docs/results/solved.svg

It also writes solved-dark.svg, for pages with a dark background, and prints the table.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

from bayespg.runs import plots

RESULTS = Path(__file__).parent.parent / "docs" / "results"
TASKS = {
    "CartPole-v1": 475, "Acrobot-v1": -100, "MountainCarContinuous-v0": 90, "Pendulum-v1": -200
}  # fmt: skip
"""With the return at which each counts as solved."""
OURS = "bayespg"
ON_POLICY = ("PPO", "A2C", "TRPO", "DQN", "ARS")
"""The rivals of the table; SAC, which learns from old steps too, is in the picture."""
DARK = {
    "figure.facecolor": "#0d1117", "axes.facecolor": "#0d1117", "savefig.facecolor": "#0d1117",
    "text.color": "#e6edf3", "axes.labelcolor": "#e6edf3", "xtick.color": "#9aa4af",
    "ytick.color": "#e6edf3", "axes.edgecolor": "#9aa4af", "grid.color": "#2b323b",
}  # fmt: skip


def medians() -> dict[str, dict[str, float]]:
    """For each task the median of the steps of each algorithm; infinite where it is "never"."""
    steps: dict[str, dict[str, list[float]]] = {task: {} for task in TASKS}
    for file in ("ours", "rivals"):
        for line in map(json.loads, (RESULTS / f"{file}.jsonl").read_text("utf-8").splitlines()):
            if line["task"] in TASKS and line.get("settings_name", "defaults") == "defaults":
                reached = line["steps_to_threshold"]["stochastic"][str(TASKS[line["task"]])]
                name = line.get("algorithm", OURS)
                steps[line["task"]].setdefault(name, []).append(reached or np.inf)
    return {task: {k: float(np.median(v)) for k, v in of.items()} for task, of in steps.items()}


def table(found: dict[str, dict[str, float]]) -> str:
    best = {task: min(of.get(rival, np.inf) for rival in ON_POLICY) for task, of in found.items()}
    rows = [
        ["steps until solved, median of ten seeds", *(task.rpartition("-")[0] for task in found)],
        ["---"] * (1 + len(found)),
        ["**bayespg**, defaults", *(f"**{of[OURS]:,.0f}**" for of in found.values())],
        [
            f"the best of {', '.join(ON_POLICY)}, tuned",
            *(f"{steps:,.0f}" for steps in best.values()),
        ],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(found: dict[str, dict[str, float]], path: Path, dark: bool) -> None:
    colours = ("#f0883e", "#57606a") if dark else ("#c2410c", "#b4b4b4")
    with plots.styled(), mpl.rc_context(DARK if dark else {}):
        figure, axes = plots.sheet(2, 2, width=7.4, height=3.9)
        for panel, (task, of) in zip(axes.flat, found.items(), strict=True):
            names = sorted(of, key=lambda name: (-of[name], name))
            longest = max(steps for steps in of.values() if np.isfinite(steps))
            for name in names:
                colour = colours[0] if name == OURS else colours[1]
                panel.barh(name, min(of[name], 1.12 * longest), color=colour, height=0.66)
                text = f"{of[name]:,.0f}" if np.isfinite(of[name]) else "never"
                panel.annotate(
                    text, (min(of[name], 1.12 * longest), name), (3, 0),
                    textcoords="offset points", va="center", fontsize=8,
                )  # fmt: skip
            panel.set_title(task.rpartition("-")[0])
            panel.set_xlim(0, 1.5 * longest)
            panel.set_xticks([])
            panel.grid(visible=False)
            panel.spines["bottom"].set_visible(False)
            panel.tick_params(length=0)
        figure.suptitle(
            "Steps of experience until the task is solved (short bars are better)", fontsize=11
        )
        plots.save(figure, path)


def main() -> None:
    path = Path(sys.argv[1])
    found = medians()
    draw(found, path, dark=False)
    draw(found, path.with_stem(f"{path.stem}-dark"), dark=True)
    print(table(found))


if __name__ == "__main__":
    main()
