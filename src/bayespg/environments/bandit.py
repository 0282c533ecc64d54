"""The bandit of Section 6.1: one state, a continuous action, any reward function."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.random import normal
from bayespg._support.types import Array
from bayespg.environments.base import Solved, gaussian_fisher

NODES = 80


class Bandit(Solved):
    """r = reward(a) + noise. A path is a single action."""

    known = ("mean", "scale")

    reward: Callable[[Float[Array, ""]], Float[Array, ""]] = eqx.field(static=True)
    reward_noise: float = eqx.field(static=True, default=0.0)
    """Standard deviation of Gaussian noise on the reward."""
    horizon: int = eqx.field(static=True, default=1)
    discount: float = eqx.field(static=True, default=1.0)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, " M"]:
        return jnp.zeros(paths)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, " M"], actions: Float[Array, " M"]
    ) -> tuple[Float[Array, " M"], Float[Array, " M"], Bool[Array, " M"]]:
        rewards = jax.vmap(self.reward)(actions)
        if self.reward_noise:
            rewards += self.reward_noise * normal(key, rewards.shape, rewards.dtype)
        return states, rewards, jnp.ones_like(states, bool)

    def expected_return(self, policy: Any) -> Float[Array, ""]:
        """E[reward(a)] by Gauss-Hermite quadrature: exact for polynomials of degree below 160."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        values = jax.vmap(self.reward)(policy.mean + policy.scale * nodes)
        return jnp.sum(values * (weights / weights.sum()))

    def fisher(self, policy: Any) -> Float[Array, "n n"]:
        return gaussian_fisher(policy, "mean", jnp.ones(()), 1)
