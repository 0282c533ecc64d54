"""Exploration that persists over several steps.

Independent noise at each step averages out: it hardly moves a car out of a valley, and a gradient
learns nothing from episodes that all end alike. With persistence rho a step uses the random numbers
of the step before with probability rho, and fresh ones otherwise, whatever the distribution of
actions. The distribution of each action given its state is nearly unchanged, but successive actions
lean the same way, for 1 / (1 - rho) steps on average.

Scores remain those of independent draws, so that with rho > 0 the estimated gradient is only
approximately that of the policy, and where pushing the same way leads astray it is none. Without it
some tasks show no reward at all. So only every second episode of a batch explores persistently, and
rho fades during training, fast if the others return more (`bayespg.learning.advance.fading`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from bayespg._support.types import Array


def held(
    key: PRNGKeyArray, horizon: int, persistence: float | Float[Array, ""]
) -> Int[Array, " T"]:
    """For each step the earlier step, or the step itself, whose random numbers it uses."""
    fresh = jax.random.uniform(key, (horizon,)) >= persistence
    return jax.lax.cummax(jnp.where(fresh, jnp.arange(horizon), 0))


def explorers(paths: int, before: int | Int[Array, ""] = 0) -> Bool[Array, " M"]:
    """Which of `paths` episodes, that follow `before` others of their batch, explore persistently:
    the first, and every second after it."""
    return (before + jnp.arange(paths)) % 2 == 0


def among(
    again: Shaped[Array, "M *k"], fresh: Shaped[Array, "M *k"], before: int | Int[Array, ""] = 0
) -> Shaped[Array, "M *k"]:
    """Choices made with held random numbers for the episodes that explore persistently, and with
    fresh ones for the others."""
    these = explorers(len(fresh), before).reshape(-1, *(1 for _ in fresh.shape[1:]))
    return jnp.where(these, again, fresh)
