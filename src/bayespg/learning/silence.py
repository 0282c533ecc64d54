"""Batches that say nothing.

If all episodes earn the same, step by step, values explain every reward, and what is left of the
gradient may be rounding errors, as for a network, which computes in single precision. A step of
full length along them is a random step. A policy that returns about the most it ever did can only
lose by it, and stays. Any other has nothing to lose: random steps are how a policy comes to a goal
that no episode has reached.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg._support.types import Array

ROUNDING = 2500
"""A gradient within this many rounding errors of the largest that rewards of this size can have
says nothing. In single precision that is a share of 3e-4: where all rewards are equal, networks
were left with up to 6e-5 of it, and with 1e-3 or more by other batches."""


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
        rounding = signal < ROUNDING * jnp.finfo(signal.dtype).eps
        return rounding & (mean - lowest > highest - mean), Earned(lowest, highest)


def nothing(dtype: jnp.dtype) -> Earned:
    """Before the first batch."""
    return Earned(jnp.asarray(jnp.inf, dtype), jnp.asarray(-jnp.inf, dtype))
