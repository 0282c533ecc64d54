"""Rewards in units of their own, for learning only: metrics report what the environment gave.

As Stable-Baselines3's VecNormalize does, rewards are divided by the standard deviation of the
discounted sums of past rewards, R_t = gamma R_{t-1} + r_t, over all steps of the run so far, and
clipped. The mean is not subtracted: that would make long episodes worth more or less than short
ones.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from bayespg._support.types import Array
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.advance import CLIP, Normaliser


def scaled(
    paths: Trajectories, statistics: Normaliser, discount: float
) -> tuple[Trajectories, Normaliser]:
    """The paths with rewards in units of their spread, and the statistics, these paths included."""
    rewards = jnp.where(paths.mask, paths.rewards, 0.0)

    def add(total: Array, reward: Array) -> tuple[Array, Array]:
        total = discount * total + reward
        return total, total

    sums = jax.lax.scan(add, jnp.zeros_like(rewards[0]), rewards)[1]
    statistics = statistics.seen(sums.reshape(-1), jnp.asarray(paths.mask).reshape(-1))
    unit = statistics.scale.astype(rewards.dtype)
    return eqx.tree_at(
        lambda p: p.rewards, paths, jnp.clip(rewards / unit, -CLIP, CLIP)
    ), statistics
