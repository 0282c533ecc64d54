"""Raw observations: statistics that normalise them, and those of recent batches.

As a policy improves, the states it visits crowd together. A step that looks small on those of one
batch can be large just beside them, where the policy was a few updates ago and may be again. The
trust region, and the metric in which the gradient is followed, are therefore averages over states
of the last `BATCHES` batches.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from bayespg._support.types import Array
from bayespg.algebra.sparsification import evenly_spaced
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

    def observe(self, x: Shaped[Array, "..."], taken: Shaped[Array, "..."]) -> "Normaliser":
        """The statistics after more observations, of which some were `taken` (Chan et al.)."""
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


def no_statistics(shape: tuple[int, ...], exempt: int = 0) -> Normaliser:
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


BATCHES = 20
KEPT = 48
"""States kept of each batch, evenly spaced."""


class Recent(eqx.Module):
    """Observations of recent batches, raw or normalised."""

    states: Shaped[Array, "K *observation"]
    weights: Float[Array, " K"]
    """1 for a state, 0 for an empty place."""

    def observe(
        self, states: Shaped[Array, "T M *observation"], taken: Bool[Array, "T M"]
    ) -> "Recent":
        """These with the states of another batch in place of the oldest."""
        states, taken = states.reshape(-1, *states.shape[2:]), taken.reshape(-1)
        rows = evenly_spaced(taken, KEPT)
        return Recent(
            jnp.concatenate([states[rows].astype(self.states.dtype), self.states[:-KEPT]]),
            jnp.concatenate([taken[rows].astype(self.weights.dtype), self.weights[:-KEPT]]),
        )

    def distances(self, states: Shaped[Array, "T M *observation"]) -> Float[Array, "T M"]:
        """How unfamiliar states are: the mean square of their numbers, in units of how far these
        spread around their means."""
        units = no_statistics(self.states.shape[1:]).observe(self.states, self.weights)
        return jnp.mean(units(states).reshape(*states.shape[:2], -1) ** 2, -1)


def no_states(observation: jax.ShapeDtypeStruct) -> Recent:
    """No states yet."""
    count = BATCHES * KEPT
    real = jnp.issubdtype(observation.dtype, jnp.floating)
    states = jnp.zeros((count, *observation.shape), jnp.float32 if real else observation.dtype)
    return Recent(states, jnp.zeros(count, jnp.float32))
