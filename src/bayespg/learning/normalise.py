"""Observations in units of their own: running statistics, and policies that use them."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from bayespg._support.types import Array
from bayespg.policies import AnyPolicy, flatten

CLIP = 10.0
"""Standard deviations beyond which a normalised observation is clipped."""


class Normaliser(eqx.Module):
    """Running mean and variance of observations."""

    mean: Float[Array, " *d"]
    variance: Float[Array, " *d"]
    count: Float[Array, ""]
    exempt: int = eqx.field(static=True, default=0)
    """This many numbers at the end of an observation stay as they are: masks of actions."""

    def __call__(self, x: Shaped[Array, "..."]) -> Float[Array, "..."]:
        scale = jnp.sqrt(self.variance + 1e-8)
        units = jnp.clip((x - self.mean) / scale, -CLIP, CLIP).astype(self.mean.dtype)
        if self.exempt:
            last = jnp.arange(x.shape[-1]) >= x.shape[-1] - self.exempt
            units = jnp.where(last, x.astype(units.dtype), units)
        return units

    def observe(self, x: Shaped[Array, "T M *d"], taken: Shaped[Array, "T M"]) -> "Normaliser":
        """The statistics after another batch (Chan et al.)."""
        dtype = self.mean.dtype
        x, taken = x.reshape(-1, *self.mean.shape), taken.reshape(-1)
        count = taken.sum().astype(dtype)
        weights = (taken / jnp.maximum(count, 1)).astype(dtype)
        weights = weights.reshape(-1, *(1 for _ in self.mean.shape))
        mean = jnp.sum(weights * x, 0)
        variance = jnp.sum(weights * (x - mean) ** 2, 0)
        total = self.count + count
        old, new = self.count / total, count / total
        away = mean - self.mean
        spread = old * self.variance + new * variance + old * new * away**2
        mean = (self.mean + new * away).astype(dtype)
        return Normaliser(mean, spread.astype(dtype), total, self.exempt)


def begin(shape: tuple[int, ...], exempt: int = 0) -> Normaliser:
    """Statistics before the first batch, which leave observations unchanged."""
    zeros = jnp.zeros(shape, jnp.float32)
    return Normaliser(zeros, zeros + 1, jnp.asarray(1e-4, jnp.float32), exempt)


def as_input(
    x: Shaped[Array, "..."], normaliser: Normaliser | None, dtype: Any
) -> Shaped[Array, "..."]:
    """Observations as the policy receives them: normalised, in the precision of its parameters."""
    x = x if normaliser is None else normaliser(x)
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


class Normalised(AnyPolicy):
    """A policy that takes raw observations and normalises them."""

    policy: AnyPolicy
    normaliser: Normaliser | None

    def start(self) -> Any:
        return self.policy.start()

    def step(self, memory: Any, observation: Shaped[Array, " *observation"]) -> Any:
        dtype = flatten(self.policy)[0].dtype
        return self.policy.step(memory, as_input(observation, self.normaliser, dtype))

    def settle(self, memory: Any, choice: Shaped[Array, " *choice"]) -> Any:
        return self.policy.settle(memory, choice)
