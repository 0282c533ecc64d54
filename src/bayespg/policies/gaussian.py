"""Gaussian policies of Section 6."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from bayespg._support.types import Array
from bayespg.policies.base import Policy
from bayespg.policies.distributions import Normal


def _parameter(value: float | Float[Array, " *runs"]) -> Float[Array, " *runs"]:
    return value if isinstance(value, jax.Array) else jnp.asarray(value, jnp.result_type(float))


class Gaussian(Policy):
    """a ~ N(mean, scale^2) whatever the state: the bandit's policy, theta = (mean, scale)."""

    mean: Float[Array, " *runs"]
    scale: Float[Array, " *runs"]

    def __init__(self, mean: float | Array = 0.0, scale: float | Array = 1.0):
        self.mean, self.scale = _parameter(mean), _parameter(scale)

    def __call__(self, state: Float[Array, ""]) -> Normal:
        return Normal(self.mean, self.scale)


class LinearGaussian(Policy):
    """a ~ N(gain x, scale^2), theta = (lambda, sigma)."""

    gain: Float[Array, " *runs"]
    scale: Float[Array, " *runs"]

    def __init__(self, gain: float | Array, scale: float | Array):
        self.gain, self.scale = _parameter(gain), _parameter(scale)

    def __call__(self, state: Float[Array, ""]) -> Normal:
        return Normal(self.gain * state, self.scale)


class VectorGaussian(Policy):
    """a ~ N(gain'x, scale^2) for a vector x, theta = (gain, log scale) without bounds.

    An array of several axes, such as a history of observations, counts as one vector.
    """

    gain: Float[Array, "*runs d"]
    log_scale: Float[Array, " *runs"]

    def __init__(self, gain: Float[Array, "*runs d"], scale: float | Array):
        self.gain, self.log_scale = _parameter(gain), jnp.log(_parameter(scale))

    @property
    def scale(self) -> Float[Array, " *runs"]:
        return jnp.exp(self.log_scale)

    def __call__(self, state: Float[Array, " *state"]) -> Normal:
        return Normal(jnp.asarray(self.gain) @ state.reshape(-1), self.scale)


class BoundedLinearGaussian(Policy):
    """The same with lambda in (-1.999, -0.001) and sigma in (0.001, 1.001), theta = kappa in R^2:

    lambda = -1.999 + 1.998 / (1 + e^kappa_1),   sigma = 0.001 + 1 / (1 + e^kappa_2)   (Section
    6.2.2).
    """

    kappa: Float[Array, "*runs 2"]

    @property
    def gain(self) -> Float[Array, " *runs"]:
        return -1.999 + 1.998 * jax.nn.sigmoid(-self.kappa[..., 0])

    @property
    def scale(self) -> Float[Array, " *runs"]:
        return 0.001 + jax.nn.sigmoid(-self.kappa[..., 1])

    def __call__(self, state: Float[Array, ""]) -> Normal:
        return Normal(self.gain * state, self.scale)
