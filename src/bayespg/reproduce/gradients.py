"""Repeated gradient estimation on the same samples, shared by Table 2 and Figures 1, 2 and 6."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.random import fast_key
from bayespg._support.types import Array
from bayespg.environments import LQR, Environment, Solved, exact_gradient
from bayespg.learning.estimators import Estimator, draw
from bayespg.policies import LinearGaussian, Policy
from bayespg.reproduce import parts
from bayespg.reproduce.report import Curve, Progress, Report, Settings, cell, draw_panels
from bayespg.reproduce.samples import Key, Samples, grouped
from bayespg.runs import plots

BATCH = 500
"""Runs computed side by side; more would not fit in the processor's cache."""
TOGETHER = 3
"""Estimators in one compiled program. Each program draws the same paths again, because with all
estimators at once more factorisations would run concurrently than XLA's pool has threads (see
`_support/threads.py`)."""


def estimates(
    environment: Environment,
    policy: Policy,
    estimators: Mapping[str, Estimator],
    paths: int,
    runs: int,
    key: PRNGKeyArray,
    batch: int = BATCH,
) -> dict[str, Float[np.ndarray, "runs n"]]:
    """The mean of each estimator in each run, all from the same paths."""
    keys = jax.random.split(key, runs)
    names, means = list(estimators), []
    for i in range(0, len(names), TOGETHER):
        some = [estimators[name] for name in names[i : i + TOGETHER]]
        means += _estimates(environment, policy, some, paths, keys, batch)
    return {name: np.asarray(values) for name, values in zip(names, means, strict=True)}


@eqx.filter_jit
def _estimates(environment, policy, estimators, paths, keys, batch):
    def run(key: PRNGKeyArray) -> list[Array]:
        sample = draw(environment, policy, key, paths)
        return [estimator(sample).mean for estimator in estimators]

    return jax.lax.map(run, keys, batch_size=batch)


def squared_error(
    estimate: Float[np.ndarray, "runs n"], exact: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " runs"]:
    return np.sum((estimate - exact) ** 2, -1)


def angular_error(
    estimate: Float[np.ndarray, "runs n"], exact: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " runs"]:
    """Absolute angle between the estimate and the exact gradient, in degrees."""
    lengths = np.linalg.norm(estimate, axis=-1) * np.linalg.norm(exact)
    cosine = estimate @ exact / np.where(lengths > 0, lengths, 1.0)
    return np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))


class Errors(NamedTuple):
    """The estimates of every run, by estimator and M, and the exact gradient."""

    estimates: dict[tuple[str, int], Float[np.ndarray, "runs n"]]
    truth: Float[np.ndarray, " n"]

    def square(self, name: str, M: int) -> Float[np.ndarray, " runs"]:
        return squared_error(self.estimates[name, M], self.truth)

    def angle(self, name: str, M: int) -> Float[np.ndarray, " runs"]:
        return angular_error(self.estimates[name, M], self.truth)

    def scatter(self, name: str, M: int) -> Float[np.ndarray, " runs"]:
        """Squared distances from the estimator's own mean."""
        estimates = self.estimates[name, M]
        return squared_error(estimates, estimates.mean(0))

    def cells(self, task: str = "") -> dict[Key, Float[np.ndarray, " groups"]]:
        """Squared errors, angles and squared distances from the estimator's mean, as means over
        groups of runs; `task` comes before their names."""
        kinds = {"square": self.square, "angle": self.angle, "scatter": self.scatter}
        return {
            (f"{task}: {kind}" if task else kind, name, M): grouped(of(name, M))
            for kind, of in kinds.items()
            for name, M in self.estimates
        }

    def curves(self, looks: Mapping[str, str], Ms: Sequence[int], task: str = "") -> list[Curve]:
        """One panel for squared errors and one for angles, with the task in their titles."""
        panels = {"mean squared error": self.square, "angular error (degrees)": self.angle}
        return [
            Curve.through(
                f"{task}: {panel}" if task else panel, name, look, Ms, [of(name, M) for M in Ms]
            )
            for panel, of in panels.items()
            for name, look in looks.items()
        ]

    def rows(self, names: Iterable[str], Ms: Sequence[int], form: str) -> list[list[str]]:
        """Table rows of mean squared errors; `form` formats a mean and its standard error."""
        return [[name, *(cell(self.square(name, M), form) for M in Ms)] for name in names]


def errors(
    environment: Solved,
    policy: Policy,
    estimators: Mapping[str, Estimator],
    Ms: Sequence[int],
    settings: Settings,
    progress: Progress,
    batch: int = BATCH,
    task: str = "",
) -> Errors:
    """Run all estimators on the same paths, for each M. Each M is a part, whose label begins with
    `task`."""

    def part(M: int, progress: Progress) -> parts.Part:
        key = jax.random.fold_in(fast_key(settings.seed), M)
        return estimates(environment, policy, estimators, M, settings.runs, key, batch)

    labels = {f"{task}, M = {M}" if task else f"M = {M}": M for M in Ms}
    means = parts.compute(labels, part, settings.parts, progress, size=float)
    by_cell = {(name, M): values for M, of in means.items() for name, values in of.items()}
    return Errors(by_cell, np.asarray(exact_gradient(environment, policy)))


def on_tasks(
    tasks: Mapping[str, tuple[Solved, Policy, Mapping[str, Estimator]]],
    Ms: Sequence[int],
    settings: Settings,
    progress: Progress,
    batch: int = BATCH,
) -> dict[str, Errors]:
    """The errors of the estimators of each task, by its name."""
    return {
        name: errors(
            *task, Ms, settings, parts.between(progress, k / len(tasks), (k + 1) / len(tasks)),
            batch, name,
        )
        for k, (name, task) in enumerate(tasks.items())
    }  # fmt: skip


def sizes(settings: Settings, default: Sequence[int]) -> tuple[int, ...]:
    """The paper's M = 5, 10, ..., 100, or fewer values that still show the curve."""
    if settings.paper:
        return tuple(range(5, 101, 5))
    return (5, 20, 100) if settings.quick else tuple(default)


def report(measured: Errors, looks: Mapping[str, str], Ms: Sequence[int], form: str) -> Report:
    """A report with mean squared errors in a table and both kinds of error in a figure."""
    curves = measured.curves(looks, Ms)
    return Report(
        columns=["mean squared error", *(f"M = {M}" for M in Ms)],
        rows=measured.rows(looks, Ms, form),
        curves=curves,
        samples=Samples(measured.cells()),
        figure=lambda: two_panels(curves, "M"),
        notes=["± is one standard error over runs. All estimators of a run see the same paths."],
    )


def two_panels(curves: list[Curve], variable: str, ticks: bool = True):
    """Two logarithmic panels: squared errors on the left, and on the right angles, which get
    plain `ticks`."""
    figure, axes = plots.sheet(1, 2, width=9, height=4.4)
    draw_panels(axes[0], curves, yscale="log", xlabel=f"paths {variable}")
    if ticks:
        plots.plain_ticks(axes[0, 1], (1, 2, 5, 10, 20, 50, 90))
    plots.legend_below(figure, axes[0, 0], 3)
    return figure


def lqr_setting(reward_noise: float = 0.0) -> tuple[LQR, LinearGaussian]:
    return LQR(reward_noise=reward_noise), LinearGaussian(jnp.asarray(-0.2), jnp.asarray(1.0))
