"""How often error bars contain the exact gradient.

For an environment whose gradient is known, many batches of paths are drawn. `coverage` counts how
often the regions and intervals of each estimator's posterior contain the exact gradient, and
`reliability` compares how often a step along the mean goes uphill with the stated probability.
Where the gradient has no closed form, `brute_force` estimates it from very many episodes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.precision import to_float64, to_numpy
from bayespg._support.statistics import binomial_interval, f_quantile, student_quantile
from bayespg._support.types import Array
from bayespg.environments import Environment, Solved, exact_gradient
from bayespg.fisher import Isotropic
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator
from bayespg.policies import Policy, flatten
from bayespg.posterior import GradientPosterior, component_statistics, region_statistics, uphill
from bayespg.posterior.agreement import draw_strength

__all__ = [
    "BATCH",
    "LEVELS",
    "ArrayEstimator",
    "Coverage",
    "Reliability",
    "brute_force",
    "coverage",
    "reliability",
    "reliability_of_arrays",
]


def __dir__() -> list[str]:
    return sorted(__all__)


LEVELS = (0.5, 0.9, 0.95)
ENDS = ((-1.0, 0.7), (0.7, 0.9), (0.9, 1.0))
"""Statements between these are counted together."""
BATCH = 500


class Coverage(NamedTuple):
    """The share of runs whose region, or of components whose interval, contains the exact
    gradient."""

    estimator: str
    robust: bool
    level: float
    region: float
    region_interval: tuple[float, float]
    """Exact binomial (Clopper-Pearson) 95 % interval."""
    components: tuple[float, ...]
    width: tuple[float, ...]
    """Median width of each component's interval."""
    runs: int


def coverage(
    environment: Solved,
    policy: Policy,
    estimators: Mapping[str, Estimator],
    *,
    paths: int,
    runs: int,
    key: PRNGKeyArray,
    levels: Sequence[float] = LEVELS,
) -> list[Coverage]:
    """One row for each estimator, kind of error bar (model or robust) and level. All estimators see
    the same paths."""
    with jax.enable_x64(True):
        policy = to_float64(policy)
        truth = np.asarray(exact_gradient(environment, policy))
        given = truth, environment, policy, list(estimators.values()), paths
        each = to_numpy(_over_batches(_held, _of_paths, given, jax.random.split(key, runs)))
    return [
        _row(name, robust, level, truth, *statistics[robust])
        for name, statistics in zip(estimators, each, strict=True)
        for robust in (False, True)
        for level in levels
    ]


def _row(name, robust, level, truth, components, region) -> Coverage:
    centre, spread, freedom = components
    reach = spread * student_quantile(level, freedom)
    distance, scale, rank, nu = region
    held = distance <= scale * f_quantile(level, rank, nu)
    return Coverage(
        estimator=name,
        robust=robust,
        level=level,
        region=float(held.mean()),
        region_interval=binomial_interval(int(held.sum()), held.size),
        components=tuple((np.abs(centre - truth) <= reach).mean(0).tolist()),
        width=tuple(np.median(2 * reach, 0).tolist()),
        runs=held.size,
    )


def _held(posterior: GradientPosterior, truth):
    return [
        (component_statistics(posterior, robust), region_statistics(posterior, truth, robust))
        for robust in (False, True)
    ]


@eqx.filter_jit
def _over_batches(judge, fitted, given, keys):
    """What `judge` says of each posterior, for the batch of every key. `fitted` draws a batch, and
    returns the exact gradient and the posteriors."""

    def run(key):
        truth, posteriors = fitted(key, *given)
        return [judge(p, truth) for p in posteriors]

    return jax.lax.map(run, keys, batch_size=BATCH)


def _of_paths(key, truth, environment, policy, estimators, paths):
    batch = draw(environment, policy, key, paths)
    return truth, [estimator(batch) for estimator in estimators]


class Reliability(NamedTuple):
    """The stated probability of going uphill along the mean, and how often it happened, over many
    batches."""

    estimator: str
    natural: bool
    said: float
    """The mean stated probability of going uphill."""
    counted: float
    """The share of batches whose direction went uphill; one half where the gradient is zero."""
    error: float
    """The standard error of the difference of the two."""
    runs: int
    brier: float
    """The mean squared difference of the statement and what happened."""
    parts: tuple[tuple[int, float, float], ...]
    """For statements up to 0.7, up to 0.9 and above: how many, their mean, and the observed
    frequency; zeros where there is none."""


def reliability(
    environment: Environment,
    policy: Policy,
    estimators: Mapping[str, Estimator],
    *,
    paths: int,
    runs: int,
    key: PRNGKeyArray,
    truth: Float[Array, " n"] | None = None,
) -> list[Reliability]:
    """One row for each estimator, along the mean and, where there is a Fisher matrix, along the
    natural gradient. `truth` is the gradient where it has no closed form."""
    with jax.enable_x64(True):
        policy = to_float64(policy)
        exact = exact_gradient(environment, policy) if truth is None else truth  # pyright: ignore
        given = jnp.asarray(exact), environment, policy, list(estimators.values()), paths
        followed = _over_batches(_followed, _of_paths, given, jax.random.split(key, runs))
    return _rows(estimators, followed)


ArrayEstimator = Callable[[Float[Array, "M n"], Float[Array, " M"], Isotropic], GradientPosterior]


def reliability_of_arrays(
    estimators: Mapping[str, ArrayEstimator],
    *,
    parameters: int,
    paths: int,
    signal: float | None,
    runs: int,
    key: PRNGKeyArray,
    curved: bool = False,
) -> list[Reliability]:
    """The same for scores u ~ N(0, I) and returns 3 + g'u + noise, whose gradient is g.

    `signal` is the squared length of g times the number of paths; None draws one for each batch
    from the hyperprior of `probability_uphill`. The noise is normal, or with `curved` the square of
    one score: it then grows with the score, and is symmetric about nothing.
    """
    with jax.enable_x64(True):
        strength = jnp.asarray(jnp.nan if signal is None else signal)
        given = (
            np.eye(1, parameters)[0],
            list(estimators.values()),
            paths,
            np.asarray(curved),
            strength,
        )
        followed = _over_batches(_followed, _of_arrays, given, jax.random.split(key, runs))
    return _rows(estimators, followed)


def _of_arrays(key, direction, estimators, M, curved, signal):
    key_strength, key = jax.random.split(key)
    z = jnp.where(jnp.isnan(signal), draw_strength(key_strength), jnp.sqrt(signal))
    g = z / np.sqrt(M) * direction
    key_scores, key_noise = jax.random.split(key)
    U = jax.random.normal(key_scores, (M, g.size))
    plain, grows = jax.random.normal(key_noise, (M,)), (U[:, -1] ** 2 - 1) / jnp.sqrt(2.0)
    R = 3 + U @ g + jnp.where(curved, grows, plain)
    return g, [estimator(U, R, Isotropic(g.size, 1.0)) for estimator in estimators]


def _followed(posterior: GradientPosterior, truth):
    """The stated probability of going uphill along the mean, and along the natural gradient where
    that is another direction, each with the exact slope."""
    same = posterior.fisher is None or isinstance(posterior.fisher, Isotropic)
    ways = {False: posterior.mean} if same else {False: posterior.mean, True: posterior.natural}
    return [(uphill(posterior, natural), truth @ along) for natural, along in ways.items()]


def _rows(names, followed) -> list[Reliability]:
    return [
        _reliability(name, bool(natural), said, 0.5 * (1 + np.sign(slope)))
        for name, kinds in zip(names, to_numpy(followed), strict=True)
        for natural, (said, slope) in enumerate(kinds)
    ]


def _reliability(name, natural, said, went) -> Reliability:
    return Reliability(
        estimator=name,
        natural=natural,
        said=float(said.mean()),
        counted=float(went.mean()),
        error=float(np.std(said - went) / np.sqrt(said.size)),
        runs=said.size,
        brier=brier(said, went),
        parts=tuple(_part(said, went, *ends) for ends in ENDS),
    )


def brier(said: Float[np.ndarray, "..."], went: Float[np.ndarray, "..."]) -> float:
    """The mean squared difference of statements and what happened; one half, where there is no
    gradient, is a coin."""
    return float(np.mean((said - went) ** 2 + went * (1 - went)))


def _part(said, went, low, high) -> tuple[int, float, float]:
    inside = (said > low) & (said <= high)
    if not inside.any():
        return 0, 0.0, 0.0
    return int(inside.sum()), float(said[inside].mean()), float(went[inside].mean())


def brute_force(
    environment: Environment,
    policy: Policy,
    estimator: Estimator,
    *,
    batches: int,
    paths: int,
    key: PRNGKeyArray,
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The gradient by the mean over many batches of an unbiased estimator, and its standard
    errors."""
    with jax.enable_x64(True):
        given = environment, to_float64(policy), estimator
        first, second = map(np.asarray, _sums(*given, paths, jax.random.split(key, batches)))
        mean = first / batches
        spread = np.maximum(second / batches - mean**2, 0.0)
    return mean, np.sqrt(spread / max(batches - 1, 1))


@eqx.filter_jit
def _sums(environment, policy, estimator, paths: int, keys):
    """The sums of the gradients of batches, and of their squares."""

    def one(sums, key):
        batch = draw(environment, policy, key, paths, scores=estimator.needs.path_scores)
        g = estimator(batch).mean
        return (sums[0] + g, sums[1] + g**2), None

    zero = jnp.zeros_like(flatten(policy)[0])
    return jax.lax.scan(one, (zero, zero), keys)[0]
