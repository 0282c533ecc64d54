"""The policy of the mountain car, Section 8.2: a softmax of Gaussian features."""

from functools import reduce

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from bayespg._support.types import Array
from bayespg.environments import mountain_car
from bayespg.policies.base import Policy
from bayespg.policies.distributions import Categorical

GRID = (0.0, 0.25, 0.5, 1.0)
"""The paper's uneven grid."""


class Softmax(Policy):
    """mu(a_i|x) proportional to exp(phi(x)'theta_i), theta_i the rows of `weights`:

    phi(x) = exp(-|x - c|^2 / (2 width^2)) for c in the product of `centres`, the last coordinate
    running fastest, x mapped to the unit square from between `low` and `high`.
    """

    weights: Float[Array, "*runs actions features"]
    low: tuple[float, ...] = eqx.field(static=True, default=mountain_car.LOW)
    high: tuple[float, ...] = eqx.field(static=True, default=mountain_car.HIGH)
    centres: tuple[tuple[float, ...], ...] = eqx.field(static=True, default=(GRID, GRID))
    """Coordinates of the grid, for each dimension."""
    width: float = eqx.field(static=True, default=1.3 * 0.25)

    def features(self, state: Float[Array, " d"]) -> Float[Array, " features"]:
        """phi(x): a Gaussian of several dimensions is a product of Gaussians of one."""
        low, high = jnp.array(self.low, state.dtype), jnp.array(self.high, state.dtype)
        unit = (state - low) / (high - low)
        each = [
            jnp.exp(-((x - jnp.array(c, state.dtype)) ** 2) / (2 * self.width**2))
            for x, c in zip(unit, self.centres, strict=True)
        ]
        return reduce(lambda a, b: jnp.outer(a, b).reshape(-1), each)

    def __call__(self, state: Float[Array, " d"]) -> Categorical:
        return Categorical(self.weights @ self.features(state))


def mountain_car_softmax(runs: int | None = None) -> Softmax:
    """The paper's policy, three actions and 16 features, at zero: all actions equally likely."""
    return Softmax(jnp.zeros((*(() if runs is None else (runs,)), 3, len(GRID) ** 2)))
