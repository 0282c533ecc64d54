"""The mountain car of Section 8.2, after Sutton and Barto."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments.base import Environment

LOW, HIGH = (-1.2, -0.07), (0.5, 0.07)
"""Bounds of position and velocity."""


class MountainCar(Environment):
    """State (position, velocity); actions 0, 1, 2 are forward, reverse and zero, a = 1, -1, 0:

    v' = bound[v + 0.001 a - 0.0025 cos(3 x)],   x' = bound[x + v'],   r = -1.

    At the left boundary v' = 0; the right one is the goal.
    """

    horizon: int = eqx.field(static=True, default=200)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M 2"]:
        low, high = jnp.array(LOW), jnp.array(HIGH)
        return jax.random.uniform(key, (paths, 2), low.dtype, low, high)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M 2"], actions: Int[Array, " M"]
    ) -> tuple[Float[Array, "M 2"], Float[Array, " M"], Bool[Array, " M"]]:
        x, v = states[:, 0], states[:, 1]
        a = jnp.array([1, -1, 0], states.dtype)[actions]
        v = jnp.clip(v + 0.001 * a - 0.0025 * jnp.cos(3 * x), LOW[1], HIGH[1])
        x = jnp.clip(x + v, LOW[0], HIGH[0])
        v = jnp.where(x <= LOW[0], 0.0, v)
        return jnp.stack([x, v], 1), jnp.full_like(x, -1.0), x >= HIGH[0]

    def unit(self, states: Float[Array, "*M 2"]) -> Float[Array, "*M 2"]:
        """States on the unit square."""
        low, high = jnp.array(LOW, states.dtype), jnp.array(HIGH, states.dtype)
        return (states - low) / (high - low)
