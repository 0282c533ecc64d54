"""Batches that say nothing.

If all episodes earn the same, step by step, values explain every reward, and what is left of the
gradient are rounding errors. A step of full length along them is a random step. A policy that
returns about the most it ever did can only lose by it, and stays. Any other has nothing to lose:
random steps are how a policy comes to a goal that no episode has reached.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg._support.types import Array

SILENT = 3e-4
"""A gradient below this share of the largest that rewards of this size can have says nothing.
Where all rewards are equal, rounding leaves up to 5e-5 of it in single precision; batches that say
something were seen from 1e-3 on."""


class Earned(eqx.Module):
    """The least and the greatest mean return of a batch so far."""

    lowest: Float[Array, ""]
    highest: Float[Array, ""]

    def seen(
        self, returns: Float[Array, " M"], signal: Float[Array, ""]
    ) -> tuple[Bool[Array, ""], "Earned"]:
        """Whether the policy stays as it is after a batch with these returns and a gradient of this
        share, and the record with it."""
        mean = jnp.mean(returns)
        lowest, highest = jnp.minimum(self.lowest, mean), jnp.maximum(self.highest, mean)
        return (signal < SILENT) & (mean - lowest > highest - mean), Earned(lowest, highest)


def nothing(dtype: jnp.dtype) -> Earned:
    """Before the first batch."""
    return Earned(jnp.asarray(jnp.inf, dtype), jnp.asarray(-jnp.inf, dtype))
