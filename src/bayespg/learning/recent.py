"""States of the last batches: where a step must not change the policy too much.

As a policy improves, the states it visits crowd together. A step that looks small on those of one
batch can be large just beside them, where the policy was a few updates ago and may be again. The
trust region, and the metric in which the gradient is followed, are therefore averages over states
of the last `BATCHES` batches.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from bayespg._support.types import Array
from bayespg.algebra.sparsification import evenly_spaced

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


def begin(observation: jax.ShapeDtypeStruct) -> Recent:
    """No states yet."""
    count = BATCHES * KEPT
    real = jnp.issubdtype(observation.dtype, jnp.floating)
    states = jnp.zeros((count, *observation.shape), jnp.float32 if real else observation.dtype)
    return Recent(states, jnp.zeros(count, jnp.float32))
