"""States of the last batches: where a step must not change the policy too much.

As a policy improves, the states it visits crowd together. A step that looks small on those of one
batch can be large just beside them, where the policy was a few updates ago and may come again. The
trust region, and the metric in which the gradient is followed, are therefore averages over states
of the last `BATCHES` batches.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from bayespg._support.types import Array

BATCHES = 20
KEPT = 48
"""States kept of each batch, at even distances."""


class Recent(eqx.Module):
    """Observations, as the environment or as the policy sees them."""

    states: Shaped[Array, "K *observation"]
    weights: Float[Array, " K"]
    """1 for a state that is there, 0 for a place that is still empty."""

    def seen(
        self, states: Shaped[Array, "T M *observation"], taken: Bool[Array, "T M"]
    ) -> "Recent":
        """With those of another batch, and without those of the oldest."""
        states, taken = states.reshape(-1, *states.shape[2:]), taken.reshape(-1)
        order = jnp.argsort(~taken, stable=True)
        rows = order[(jnp.arange(KEPT) * jnp.sum(taken)) // KEPT]
        return Recent(
            jnp.concatenate([states[rows].astype(self.states.dtype), self.states[:-KEPT]]),
            jnp.concatenate([taken[rows].astype(self.weights.dtype), self.weights[:-KEPT]]),
        )


def nothing(observation: jax.ShapeDtypeStruct) -> Recent:
    """Before the first batch."""
    count = BATCHES * KEPT
    real = jnp.issubdtype(observation.dtype, jnp.floating)
    states = jnp.zeros((count, *observation.shape), jnp.float32 if real else observation.dtype)
    return Recent(states, jnp.zeros(count, jnp.float32))
