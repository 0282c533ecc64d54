"""Exploration that persists over several steps.

Independent noise at each step averages out: it hardly moves a car out of a valley, and a gradient
learns nothing from episodes that all end alike. With persistence rho a step uses the random numbers
of the step before with probability rho, and fresh ones otherwise, whatever the distribution of
actions. The distribution of each action given its state is nearly unchanged, but successive actions
lean the same way, for 1 / (1 - rho) steps on average.

Scores remain those of independent draws, so that with rho > 0 the estimated gradient is only
approximately that of the policy. Without it some tasks show no reward at all; rho fades
during training (`bayespg.learning.advance.fading`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support.types import Array


def held(
    key: PRNGKeyArray, horizon: int, persistence: float | Float[Array, ""]
) -> Int[Array, " T"]:
    """For each step the earlier step, or the step itself, whose random numbers it uses."""
    fresh = jax.random.uniform(key, (horizon,)) >= persistence
    return jax.lax.cummax(jnp.where(fresh, jnp.arange(horizon), 0))
