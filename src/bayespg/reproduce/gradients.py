"""Many repetitions of gradient estimation on the same samples: what Table 2 and Figures 1 and 2
share."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg.environments import LQR, Environment
from bayespg.estimators import Estimator, draw
from bayespg.policies import LinearGaussian, Policy
from bayespg.types import Array

BATCH = 500
"""Runs side by side; more would leave the cache."""


def estimates(
    environment: Environment,
    policy: Policy,
    estimators: Mapping[str, Estimator],
    paths: int,
    runs: int,
    key: PRNGKeyArray,
) -> dict[str, Float[np.ndarray, "runs n"]]:
    """The mean of each estimator in each run, all from the same paths."""
    names = list(estimators)
    found = _estimates(
        environment,
        policy,
        [estimators[name] for name in names],
        paths,
        jax.random.split(key, runs),
    )
    return {name: np.asarray(values) for name, values in zip(names, found, strict=True)}


@eqx.filter_jit
def _estimates(environment, policy, estimators, paths, keys):
    def run(key: PRNGKeyArray) -> list[Array]:
        sample = draw(environment, policy, key, paths)
        return [estimator(sample).mean for estimator in estimators]

    return jax.lax.map(run, keys, batch_size=BATCH)


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


def lqr_setting(reward_noise: float = 0.0) -> tuple[LQR, LinearGaussian]:
    return LQR(reward_noise=reward_noise), LinearGaussian(jnp.asarray(-0.2), jnp.asarray(1.0))
