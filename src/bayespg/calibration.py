"""How often do the error bars hold the truth?

For an environment whose gradient is known, draw many batches of paths, and count how often the
regions and intervals of each estimator's posterior hold the exact gradient.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from bayespg._support.precision import to_float64, to_numpy
from bayespg._support.statistics import binomial_interval, f_quantile, student_quantile
from bayespg.environments import Solved, exact_gradient
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator
from bayespg.policies import Policy
from bayespg.posterior import component_statistics, region_statistics

LEVELS = (0.5, 0.9, 0.95)
BATCH = 500


class Coverage(NamedTuple):
    """Runs whose region, or share of components whose interval, held the exact gradient."""

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
    """One row for each estimator, model or robust, and level. All see the same paths."""
    with jax.enable_x64(True):
        policy = to_float64(policy)
        truth = np.asarray(exact_gradient(environment, policy))
        found = to_numpy(
            _statistics(
                environment,
                policy,
                list(estimators.values()),
                truth,
                paths,
                jax.random.split(key, runs),
            )
        )
    return [
        _row(name, robust, level, truth, *statistics[robust])
        for name, statistics in zip(estimators, found, strict=True)
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


@eqx.filter_jit
def _statistics(environment, policy, estimators, truth, paths, keys):
    def run(key: PRNGKeyArray):
        batch = draw(environment, policy, key, paths)
        posteriors = [estimator(batch) for estimator in estimators]
        return [
            [
                (component_statistics(p, robust), region_statistics(p, truth, robust))
                for robust in (False, True)
            ]
            for p in posteriors
        ]

    return jax.lax.map(run, keys, batch_size=BATCH)
