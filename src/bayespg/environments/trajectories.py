"""A batch of paths, padded to one length, with a mask.

A path that terminated (reached an absorbing state) is not a path that was truncated (cut off by a
time limit): `terminated` keeps them apart. Time is the first axis: a step of all paths lies
together in memory, which is how paths are drawn and summed.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Shaped

from bayespg._support.precision import traced
from bayespg._support.types import Array


class Trajectories(eqx.Module):
    """M paths of at most T steps, as the policy saw them: where it sees observations, those are the
    states here; where it has a memory, the choices are the actions."""

    states: Shaped[Array, "T M *state"]
    actions: Shaped[Array, "T M *action"]
    rewards: Float[Array, "T M"]
    mask: Bool[Array, "T M"]
    """True where the step was taken."""
    terminated: Bool[Array, " M"]
    """True where the path ended in an absorbing state."""
    final: Shaped[Array, "M *state"]
    """The state after the last step taken."""

    @property
    def lengths(self) -> Int[Array, " M"]:
        return self.mask.sum(0)


def returns(paths: Trajectories, discount: float | Float[Array, ""] = 1.0) -> Float[Array, " M"]:
    """R(xi) = sum_t gamma^t r_t."""
    rewards = jnp.where(paths.mask, paths.rewards, 0.0)
    if not traced(discount) and discount == 1:
        return rewards.sum(0)
    return jnp.asarray(discount, rewards.dtype) ** jnp.arange(len(rewards)) @ rewards


def returns_to_go(
    paths: Trajectories, discount: float | Float[Array, ""] = 1.0
) -> Float[Array, "T M"]:
    """sum_{s >= t} gamma^(s-t) r_s; zero where no step was taken."""
    tails = discounted_tails(jnp.where(paths.mask, paths.rewards, 0.0), discount)
    return jnp.where(paths.mask, tails, 0.0)


def discounted_tails(
    rewards: Float[Array, "T M"], discount: float | Float[Array, ""]
) -> Float[Array, "T M"]:
    """sum_{s >= t} gamma^(s-t) r_s along the first axis."""

    def back(tail: Array, reward: Array) -> tuple[Array, Array]:
        tail = reward + discount * tail
        return tail, tail

    return jax.lax.scan(back, jnp.zeros_like(rewards[0]), rewards, reverse=True)[1]
