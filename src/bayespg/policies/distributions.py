"""Distributions of actions. Each knows the Fisher information of its own parameters."""

import abc
import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float, PRNGKeyArray, Shaped

from bayespg.random import normal
from bayespg.types import Array


class Distribution(eqx.Module):
    """A distribution whose array fields are its parameters.

    Fields may have a leading axis, one entry a path; `sample` then draws for all paths from one
    key.
    """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Shaped[Array, "..."]: ...

    @abc.abstractmethod
    def log_prob(self, action: Shaped[Array, " *action"]) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def fisher_root(self) -> Float[Array, "r p"]:
        """A with A'A = E[d log p d log p'], with respect to the fields, flattened in their
        order."""


class Normal(Distribution):
    """N(mean, scale^2) for a scalar action."""

    mean: Float[Array, " *M"]
    scale: Float[Array, " *M"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " *M"]:
        return self.mean + self.scale * normal(key, self.mean.shape, self.mean.dtype)

    def log_prob(self, action: Float[Array, ""]) -> Float[Array, ""]:
        z = (action - self.mean) / self.scale
        return -0.5 * (z**2 + jnp.log(2 * jnp.pi)) - jnp.log(self.scale)

    def fisher_root(self) -> Float[Array, "2 2"]:
        """A'A = diag(1, 2) / scale^2."""
        return jnp.diag(jnp.array([1.0, math.sqrt(2.0)], jnp.result_type(self.scale))) / self.scale
