"""The bandit of Section 6.1: one state, a continuous action, any reward function."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from bayespg.environments.base import Solved, gaussian_fisher

NODES = 80


class Bandit(Solved):
    """r = reward(a) + noise. A path is a single action."""

    reward: Callable[[Float[Array, ""]], Float[Array, ""]] = eqx.field(static=True)
    reward_noise: float = eqx.field(static=True, default=0.0)
    """Standard deviation of Gaussian noise on the reward."""
    horizon: int = eqx.field(static=True, default=1)
    discount: float = eqx.field(static=True, default=1.0)

    def reset(self, key: PRNGKeyArray) -> Float[Array, ""]:
        return jnp.zeros(())

    def step(
        self, key: PRNGKeyArray, state: Float[Array, ""], action: Float[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, ""], Bool[Array, ""]]:
        reward = self.reward(action)
        if self.reward_noise:
            reward = reward + self.reward_noise * jax.random.normal(key, (), reward.dtype)
        return state, reward, jnp.asarray(True)

    def expected_return(self, policy: Any) -> Float[Array, ""]:
        """E[reward(a)] by Gauss-Hermite quadrature: exact for polynomials of degree below 160."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        values = jax.vmap(self.reward)(policy.mean + policy.scale * nodes)
        return jnp.sum(values * (weights / weights.sum()))

    def fisher(self, policy: Any) -> Float[Array, "n n"]:
        return gaussian_fisher(policy, "mean", jnp.ones(()), 1)
