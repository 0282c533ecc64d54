"""Learning curves of several methods at several sample sizes, shared by Figures 3 to 5 and 7 to
9."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from bayespg._support.precision import to_float64, to_numpy
from bayespg._support.random import fast_key
from bayespg.environments import Environment
from bayespg.learning.estimators import Estimator
from bayespg.learning.training import History, Result, start, step, train
from bayespg.learning.updates import conventional
from bayespg.reproduce.report import (
    Curve,
    Progress,
    Report,
    Settings,
    cell,
    draw_panels,
    summarise,
)
from bayespg.runs import plots

POINTS = 126
"""Points per stored curve: enough for a figure, and few enough for a readable file."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method to compare: an estimator and, for each M, an update."""

    estimator: Estimator
    update: Callable[[int], optax.GradientTransformationExtraArgs]
    look: str


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, for how many updates, and how it is evaluated."""

    environment: Environment
    start: Callable[..., Any]
    """Returns the initial policies of a number of runs; it also takes a key if `drawn`."""
    updates: Mapping[int, int]
    """The number of updates for each M."""
    evaluate: Callable[[Any, Any], Any] | None = None
    every: int | None = None
    drawn: bool = False

    def begin(self, runs: int, key: PRNGKeyArray) -> tuple[Any, PRNGKeyArray]:
        """The initial policies, and the key for training."""
        if not self.drawn:
            return self.start(runs), key
        first, key = jax.random.split(key)
        return self.start(runs, first), key


class Learned(NamedTuple):
    """Values during training, one row per run, and the result of training."""

    updates: np.ndarray
    values: np.ndarray
    result: Result


def learn(
    task: Task, methods: Mapping[str, Method], settings: Settings, progress: Progress
) -> dict[tuple[str, int], Learned]:
    """Train every method at every M from the same initial policies. The `values` are those of
    `task.evaluate`, or the exact expected return before each update."""
    found: dict[tuple[str, int], Learned] = {}
    cells = [(name, M, N) for M, N in task.updates.items() for name in methods]
    total = sum(M * N for _, M, N in cells)
    done = 0
    for name, M, N in cells:
        progress(done / total, f"{name}, M = {M}")
        key = jax.random.fold_in(fast_key(settings.seed), M)
        policies, key = task.begin(settings.runs, key)
        result = train(
            task.environment,
            policies,
            methods[name].estimator,
            methods[name].update(M),
            key=key,
            updates=N,
            paths=M,
            runs=settings.runs,
            evaluate=task.evaluate,
            every=task.every,
            progress=lambda j, _, d=done, m=M: progress((d + m * j) / total, ""),
        )
        if result.evaluations is None:
            at, values = np.arange(N), np.asarray(result.history.expected_return)
        else:
            at, values = result.evaluations
        found[name, M] = Learned(at, np.asarray(values), result)
        done += M * N
    return found


def final_and_average(values: Mapping[tuple[str, int], np.ndarray]) -> dict[str, list[list[str]]]:
    """Two table rows for each method: the final value and the average over all updates, at every
    M."""
    of = {"final": lambda v: v[:, -1], "average": lambda v: v.mean(1)}
    sizes = sorted({M for _, M in values})
    return {
        name: [[name, what, *(cell(f(values[name, M])) for M in sizes)] for what, f in of.items()]
        for name in dict.fromkeys(name for name, _ in values)
    }


def tune(
    task: Task,
    estimators: Mapping[str, Estimator],
    looks: Mapping[str, str],
    rates: Sequence[float],
    judge: Callable[[History], Any],
    settings: Settings,
    progress: Progress,
    update: Callable[[Any], optax.GradientTransformationExtraArgs] = conventional,
) -> Report:
    """Try the same constant learning rates for all methods at every M. The best rate has the
    largest mean over runs of `judge`, a number computed from the history of a run."""
    rows, curves, best = [], [], {}
    cells = [(name, M, N) for M, N in task.updates.items() for name in estimators]
    for i, (name, M, N) in enumerate(cells):
        progress(i / len(cells), f"{name}, M = {M}")
        judged = _judged(task, estimators[name], update, rates, M, N, judge, settings)
        mean, error = summarise(judged, 1)
        best[f"{name}, M = {M}"] = rates[int(np.nanargmax(mean))]
        rows.append(
            [name, str(M), *(f"{m:.4g} ± {e:.2g}" for m, e in zip(mean, error, strict=True))]
        )
        curves.append(
            Curve(f"M = {M}", name, looks[name], list(rates), mean.tolist(), error.tolist())
        )
    return Report(
        columns=["", "M", *(f"rate {rate:g}" for rate in rates)],
        rows=rows,
        curves=curves,
        claims=[],
        figure=lambda: panels(
            curves, "score", columns=len(task.updates), xlabel="rate", xscale="log"
        ),
        notes=[
            f"± is one standard error over {settings.runs} runs of {max(task.updates.values())} "
            f"updates. Best: {best}."
        ],
        extra={"best": best},
    )


def _judged(
    task: Task, estimator: Estimator, update, rates, paths, updates, judge, settings
) -> np.ndarray:
    """The scores as an array (rates, runs), computed side by side; NaN where a run diverged."""

    def run(rate, key, policy):
        optimiser = update(rate)

        def one(state, _):
            state, record = step(task.environment, estimator, optimiser, state, paths, 0.0)
            return state, record._replace(parameters=None)

        first = start(task.environment, policy, estimator, optimiser, key)
        return judge(jax.lax.scan(one, first, None, updates)[1])

    keys = jax.random.split(jax.random.fold_in(fast_key(settings.seed), paths), settings.runs)
    grid = jax.vmap(jax.vmap(run, (None, 0, 0)), (0, None, None))
    with jax.enable_x64(True):
        starts = to_float64(task.start(settings.runs))
        return to_numpy(jax.jit(grid)(np.asarray(rates, float), keys, starts))


def curves(
    found: Mapping[tuple[str, int], Learned],
    methods: Mapping[str, Method],
    value: Callable[[np.ndarray], np.ndarray] = lambda v: v,
) -> list[Curve]:
    """Curves with one panel for each M; long curves keep `POINTS` evenly spaced points."""
    result = []
    for (name, M), learned in found.items():
        some = np.unique(np.linspace(0, len(learned.updates) - 1, POINTS).round().astype(int))
        mean, error = summarise(value(learned.values[:, some]))
        x = learned.updates[some].astype(float).tolist()
        result.append(Curve(f"M = {M}", name, methods[name].look, x, mean.tolist(), error.tolist()))
    return result


def panels(
    curves: list[Curve],
    ylabel: str,
    columns: int = 2,
    xlabel: str = "updates",
    **axes_settings: Any,
):
    """A figure with one panel for each M and bands of two standard errors."""
    rows = -(-len({c.panel for c in curves}) // columns)
    figure, axes = plots.sheet(
        rows, columns, width=4.5 * columns, height=3.0 * rows + 0.5, sharey=True
    )
    draw_panels(axes.flat, curves, **axes_settings)
    for axis in axes[-1]:
        axis.set_xlabel(xlabel)
    for axis in axes[:, 0]:
        axis.set_ylabel(ylabel)
    plots.legend_below(figure, axes[0, 0], 3)
    return figure
