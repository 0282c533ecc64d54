"""Pictures of a learned model: what it promised and what came, and one episode beside what it
predicts."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from bayespg.runs import plots
from bayespg.runs.certainty import Metrics
from bayespg.runs.columns import Column

MOST = 8
"""Numbers of a state that are drawn."""


def known(seeds: Sequence[Metrics]) -> list[Metrics]:
    """Those that have a model and more than one update."""
    return [m for m in seeds if Column.PREDICTED in m and m[Column.STEPS].size > 1]


def draw(seeds: Sequence[Metrics], title: str) -> Figure:
    """Above, real returns and those that the update before had promised, a line for each seed;
    below, how well the model predicted new episodes."""
    with plots.styled():
        figure, axes = plots.sheet(2, 1, width=6.4, height=4.6, sharex=True)
        above, below = axes[:, 0]
        for number, m in enumerate(seeds):
            steps = m[Column.STEPS][1:]
            drawn = (
                (above, m[Column.CAME][1:], "real", "ours"),
                (above, m[Column.PROMISED][1:], "promised", "MC, best baseline"),
                (below, m[Column.PREDICTED][1:], "predicted", "BAC"),
                (below, m[Column.INSIDE][1:], "inside", "BPG"),
            )
            for axis, values, label, look in drawn:
                name = label if number == 0 else f"_{label}"
                plots.curve(axis, steps, values, label=name, look=look, markers=False)
        above.set_title(plots.plain(f"{title}: discounted returns, promised and real"))
        above.legend()
        plots.dotted(below, 0.95)
        below.set_ylim(0, 1.02)
        below.set_title("shares predicted and inside 95 % intervals (dotted: 0.95)")
        below.legend()
        plots.environment_steps(below)
        return figure


def follow(
    real: Float[np.ndarray, "T d"],
    mean: Float[np.ndarray, "T d"],
    deviation: Float[np.ndarray, "T d"],
    title: str,
) -> Figure:
    """The first numbers of the state in a real episode, over what the model predicts from its start
    and its actions, with 95 % bands."""
    count = min(real.shape[1], MOST)
    steps = np.arange(1, len(real) + 1)
    with plots.styled():
        figure, axes = plots.sheet(count, 1, width=6.4, height=1.6 * count + 0.8, sharex=True)
        for i, axis in enumerate(axes[:, 0]):
            reach = 1.96 * deviation[:, i]
            plots.curve(
                axis, steps, mean[:, i], label="model, with 95 % band", look="BAC", markers=False,
                band=(mean[:, i] - reach, mean[:, i] + reach),
            )  # fmt: skip
            plots.curve(axis, steps, real[:, i], label="real episode", look="ours", markers=False)
            axis.set_ylabel(f"observation {i}")
        axes[0, 0].set_title(plots.plain(f"{title}: a new episode and what the model predicts"))
        axes[-1, 0].set_xlabel("steps")
        plots.legend_below(figure, axes[0, 0])
        return figure
