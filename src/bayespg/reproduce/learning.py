"""Learning curves of several methods at several sample sizes, shared by Figures 3 to 5 and 7 to
9."""

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from bayespg._support.precision import to_float64, to_numpy
from bayespg._support.random import fast_key
from bayespg.environments import Environment
from bayespg.learning.estimators import Estimator
from bayespg.learning.training import History, Result, start, step, train
from bayespg.learning.updates import conventional
from bayespg.reproduce import parts
from bayespg.reproduce.report import Curve, Progress, Report, Settings, cell, draw_panels
from bayespg.reproduce.samples import Key, Samples
from bayespg.runs import plots

Cell = tuple[str, int]
"""A method, and the number of paths of its updates."""
POINTS = 126
"""Points per stored curve: enough for a figure, and few enough for a readable file."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A method to compare: an estimator and, for each M, an update."""

    estimator: Estimator
    update: Callable[[int], optax.GradientTransformationExtraArgs]
    look: str
    start: Callable[..., Any] | None = None
    """Initial policies in place of those of the task."""


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
    ended: Callable[[Result], Any] | None = None
    """One number per run, from what training returned."""
    label: str = ""
    """Comes before the labels of parts."""

    def cells(self, names: Mapping[str, Any]) -> dict[str, Cell]:
        """Every method at every M, by the label of its part."""
        cells = [(name, M) for M in self.updates for name in names]
        return {f"{self.label} {name}, M = {M}".strip(): (name, M) for name, M in cells}


class Learned(NamedTuple):
    """What one method learned at one M."""

    updates: np.ndarray
    """Updates made before each value."""
    values: np.ndarray
    """One row per run."""
    policy: Any = None
    """That of the first run, at the end."""
    ended: np.ndarray | None = None
    """What `Task.ended` says of every run."""


def learn(
    task: Task, methods: Mapping[str, Method], settings: Settings, progress: Progress
) -> dict[Cell, Learned]:
    """Train every method at every M from the same initial policies. The `values` are those of
    `task.evaluate`, or the exact expected return before each update."""

    def part(cell: Cell, progress: Progress) -> parts.Part:
        return _learned(task, methods[cell[0]], cell[1], settings, progress)

    computed = parts.compute(
        task.cells(methods), part, settings.parts, progress,
        lambda cell: cell[1] * task.updates[cell[1]],
    )  # fmt: skip
    return {cell: _unpacked(task, arrays) for cell, arrays in computed.items()}


def _learned(
    task: Task, method: Method, M: int, settings: Settings, progress: Progress
) -> parts.Part:
    key = jax.random.fold_in(fast_key(settings.seed), M)
    begin, updates = method.start or task.start, task.updates[M]
    if task.drawn:
        key_start, key = jax.random.split(key)
        policies = begin(settings.runs, key_start)
    else:
        policies = begin(settings.runs)
    result = train(
        task.environment, policies, method.estimator, method.update(M), key=key, updates=updates,
        paths=M, runs=settings.runs, evaluate=task.evaluate, every=task.every,
        progress=lambda done, of: progress(done / of, ""),
    )  # fmt: skip
    if result.evaluations is None:
        at, values = np.arange(updates), np.asarray(result.history.expected_return)
    else:
        at, values = result.evaluations
    leaves = [np.asarray(leaf)[0] for leaf in jax.tree.leaves(result.policy)]
    arrays = {"updates": np.asarray(at), "values": np.asarray(values)}
    arrays |= {f"policy {i}": leaf for i, leaf in enumerate(leaves)}
    return arrays if task.ended is None else arrays | {"ended": np.asarray(task.ended(result))}


def _unpacked(task: Task, arrays: parts.Part) -> Learned:
    structure = jax.tree.structure(task.start(1, fast_key(0)) if task.drawn else task.start(1))
    leaves = [arrays[f"policy {i}"] for i in range(structure.num_leaves)]
    policy = jax.tree.unflatten(structure, leaves)
    return Learned(arrays["updates"], arrays["values"], policy, arrays.get("ended"))


TOGETHER = 100
"""Runs of `tune` that are computed at once, so that memory does not grow with their number."""
KEPT = 40
"""Longer curves are kept as their end and their mean."""


def cells(
    results: Mapping[Cell, Learned], value: Callable[[np.ndarray], np.ndarray] = np.asarray
) -> dict[Key, np.ndarray]:
    """What claims may look at: the last value and the mean over all updates of every run, and short
    curves in full, with the updates they belong to."""
    kept: dict[Key, np.ndarray] = {}
    for (name, M), learned in results.items():
        values = value(learned.values)
        kept["final", name, M], kept["average", name, M] = values[:, -1], values.mean(1)
        if values.shape[1] <= KEPT:
            kept["curve", name, M], kept["updates", name, M] = values, learned.updates
    return kept


def final_and_average(values: Mapping[Cell, np.ndarray]) -> dict[str, list[list[str]]]:
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
    methods: Mapping[str, Method],
    rates: Sequence[float],
    judge: Callable[[History], Any],
    settings: Settings,
    progress: Progress,
    update: Callable[[Any, int], optax.GradientTransformationExtraArgs] = (
        lambda rate, M: conventional(rate)
    ),
    score: str = "",
    rate: str = "rate",
) -> Report:
    """Try the same learning rates for all methods at every M, each with `update` in place of its
    own. The best rate has the largest mean over runs of `judge`, a number computed from the history
    of a run. `score` and `rate` say what the two are."""

    def part(cell: Cell, progress: Progress) -> parts.Part:
        return {"judged": _judged(task, methods[cell[0]], update, rates, cell[1], judge, settings)}

    computed = parts.compute(task.cells(methods), part, settings.parts, progress)
    rows, curves, best, kept = [], [], {}, {}
    for (name, M), arrays in computed.items():
        judged = arrays["judged"]
        kept |= {(f"rate {of:g}", name, M): each for of, each in zip(rates, judged, strict=True)}
        best[f"{name}, M = {M}"] = rates[int(np.nanargmax(judged.mean(1)))]
        rows.append([name, str(M), *(cell(of, "{:.4g} ± {:.2g}") for of in judged)])
        curves.append(Curve.through(f"M = {M}", name, methods[name].look, rates, judged))
    return Report(
        columns=[score, "M", *(f"{rate} {of:g}" for of in rates)],
        rows=rows,
        curves=curves,
        samples=Samples(kept),
        figure=lambda: panels(
            curves, score or "score", columns=len(task.updates), xlabel=rate, xscale="log"
        ),
        notes=[
            f"± is one standard error over {settings.runs} runs of {max(task.updates.values())} "
            f"updates. Best: {best}."
        ],
        extra={"best": best},
    )


def _judged(task: Task, method: Method, update, rates, M: int, judge, settings) -> np.ndarray:
    """The scores as an array (rates, runs), all rates of `TOGETHER` runs side by side; NaN where a
    run diverged."""
    environment, estimator = task.environment, method.estimator

    def run(rate, key, policy):
        optimiser = update(rate, M)

        def one(state, _):
            state, record = step(environment, estimator, optimiser, state, M, 0.0)
            return state, record._replace(parameters=None)

        first = start(environment, policy, estimator, optimiser, key)
        return judge(jax.lax.scan(one, first, None, task.updates[M])[1])

    keys = jax.random.split(jax.random.fold_in(fast_key(settings.seed), M), settings.runs)
    grid = jax.jit(jax.vmap(jax.vmap(run, (None, 0, 0)), (0, None, None)))
    with jax.enable_x64(True):
        every = keys, to_float64(task.start(settings.runs))
        scores = []
        for first in range(0, settings.runs, TOGETHER):
            some = jax.tree.map(itemgetter(slice(first, first + TOGETHER)), every)
            scores.append(to_numpy(grid(np.asarray(rates, float), *some)))
        return np.concatenate(scores, 1)


def at_best(
    first: str, second: str, sizes: Container[int], label: str, samples: Samples
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What two methods lost at their best rates, from the samples of `tune`, by labels with M and
    these rates a and b. The even runs choose a rate, by the largest mean; the odd ones are
    compared."""
    pairs = {}
    for M in (M for M in samples.sizes() if M in sizes):
        (a, losses), (b, others) = (_best(samples, name, M) for name in (first, second))
        pairs[label.format(M=M, a=a, b=b)] = losses, others
    return pairs


def _best(samples: Samples, name: str, M: int) -> tuple[str, np.ndarray]:
    chosen = max(
        [what for what, of, size in samples if (of, size) == (name, M)],
        key=lambda rate: np.nan_to_num(samples[rate, name, M][::2].mean(), nan=-np.inf),
    )
    return chosen.removeprefix("rate "), -samples[chosen, name, M][1::2]


def curves(
    results: Mapping[Cell, Learned],
    methods: Mapping[str, Method],
    value: Callable[[np.ndarray], np.ndarray] = lambda v: v,
) -> list[Curve]:
    """Curves with one panel for each M; long curves keep `POINTS` evenly spaced points."""
    result = []
    for (name, M), learned in results.items():
        some = np.unique(np.linspace(0, len(learned.updates) - 1, POINTS).round().astype(int))
        x, values = learned.updates[some].astype(float).tolist(), value(learned.values[:, some])
        result.append(Curve.through(f"M = {M}", name, methods[name].look, x, values.T))
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
