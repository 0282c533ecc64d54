"""Many repetitions of gradient estimation on the same samples: what Table 2 and Figures 1, 2 and 6
share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg import plots
from bayespg.environments import LQR, Environment, Solved, exact_gradient
from bayespg.estimators import Estimator, draw
from bayespg.policies import LinearGaussian, Policy
from bayespg.random import fast_key
from bayespg.reproduce.report import Curve, Progress, Settings, draw_panels, summarise
from bayespg.types import Array

BATCH = 500
"""Runs side by side; more would leave the cache."""
TOGETHER = 3
"""Estimators in one program, the same paths drawn anew in each: all at once would have more
factorisations in flight than XLA's pool has threads (see `_threads`)."""


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
    names, found = list(estimators), []
    for i in range(0, len(names), TOGETHER):
        some = [estimators[name] for name in names[i : i + TOGETHER]]
        found += _estimates(environment, policy, some, paths, keys, batch)
    return {name: np.asarray(values) for name, values in zip(names, found, strict=True)}


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
    """Absolute angle between estimate and truth, in degrees."""
    lengths = np.linalg.norm(estimate, axis=-1) * np.linalg.norm(exact)
    cosine = estimate @ exact / np.where(lengths > 0, lengths, 1.0)
    return np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))


class Errors(NamedTuple):
    """Mean and standard error over runs at each M, for each estimator."""

    square: dict[str, list[tuple[float, float]]]
    angle: dict[str, list[tuple[float, float]]]

    def curves(self, looks: Mapping[str, str], Ms: Sequence[int]) -> list[Curve]:
        panels = (("mean squared error", self.square), ("angular error (degrees)", self.angle))
        return [
            Curve(panel, name, looks[name], list(Ms), *(list(c) for c in zip(*found, strict=True)))
            for panel, of in panels
            for name, found in of.items()
        ]


def errors(
    environment: Solved,
    policy: Policy,
    estimators: Mapping[str, Estimator],
    Ms: Sequence[int],
    settings: Settings,
    progress: Progress,
    batch: int = BATCH,
) -> Errors:
    """Squared and angular errors of all estimators on the same paths, for each M."""
    truth = np.asarray(exact_gradient(environment, policy))
    found = Errors({name: [] for name in estimators}, {name: [] for name in estimators})
    for M in Ms:
        progress(sum(m for m in Ms if m < M) / sum(Ms), f"M = {M}")
        key = jax.random.fold_in(fast_key(settings.seed), M)
        means = estimates(environment, policy, estimators, M, settings.runs, key, batch)
        for name, values in means.items():
            found.square[name].append(summarise(squared_error(values, truth)))
            found.angle[name].append(summarise(angular_error(values, truth)))
    return found


def two_panels(curves: list[Curve], variable: str):
    """Squared error left, angle right, both logarithmic."""
    figure, axes = plots.sheet(1, 2, width=9, height=4.4)
    draw_panels(axes[0], curves, yscale="log", xlabel=f"paths {variable}")
    plots.plain_ticks(axes[0, 1], (1, 2, 5, 10, 20, 50, 90))
    plots.legend_below(figure, axes[0, 0], 3)
    return figure


def lqr_setting(reward_noise: float = 0.0) -> tuple[LQR, LinearGaussian]:
    return LQR(reward_noise=reward_noise), LinearGaussian(jnp.asarray(-0.2), jnp.asarray(1.0))
