"""A batch of paths, padded to one length, with a mask.

A path that terminated (reached an absorbing state) is not a path that was truncated (cut off by a time
limit): `terminated` keeps them apart.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped


class Trajectories(eqx.Module):
    """M paths of at most T steps."""

    states: Shaped[Array, "M T *state"]
    actions: Shaped[Array, "M T *action"]
    rewards: Float[Array, "M T"]
    mask: Bool[Array, "M T"]
    """True where the step was taken."""
    terminated: Bool[Array, " M"]
    """True where the path ended in an absorbing state."""
    final: Shaped[Array, "M *state"]
    """The state after the last step taken."""

    @property
    def lengths(self) -> Int[Array, " M"]:
        return self.mask.sum(-1)


def returns(paths: Trajectories, discount: float = 1.0) -> Float[Array, " M"]:
    """R(xi) = sum_t gamma^t r_t."""
    T = paths.rewards.shape[-1]
    weights = jnp.asarray(discount, paths.rewards.dtype) ** jnp.arange(T)
    return jnp.sum(jnp.where(paths.mask, paths.rewards, 0.0) * weights, -1)


def returns_to_go(paths: Trajectories, discount: float = 1.0) -> Float[Array, "M T"]:
    """sum_{s >= t} gamma^(s-t) r_s; zero where no step was taken."""
    tails = discounted_tails(jnp.where(paths.mask, paths.rewards, 0.0), discount)
    return jnp.where(paths.mask, tails, 0.0)


def discounted_tails(rewards: Float[Array, "M T"], discount: float) -> Float[Array, "M T"]:
    """sum_{s >= t} gamma^(s-t) r_s along the last axis."""

    def back(tail: Array, reward: Array) -> tuple[Array, Array]:
        tail = reward + discount * tail
        return tail, tail

    _, tails = jax.lax.scan(back, jnp.zeros_like(rewards[:, 0]), rewards.T, reverse=True)
    return tails.T
