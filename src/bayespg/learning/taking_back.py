"""Steps that are taken back.

While exploration persists, the gradient is only approximately that of the policy, and a few
episodes can mislead it: a policy that has reached a goal by persistent exploration can lose it with
one step, and then sees nothing but the cost of trying. If the episodes after a step return clearly
less than those before it, the policy becomes again what it was before the step, and so does the
persistence of its exploration; it then learns from fresh episodes.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg._support.types import Array

CLEARLY = 6.0
"""The difference of two mean returns that counts as clear, in its standard errors: many, as these
are estimated from a few episodes and returns have heavy tails."""
MEMORY = 0.9
"""Decay per update of the running mean of the variances of returns."""


class Before(eqx.Module):
    """The policy before the last step, and what its episodes returned."""

    theta: Float[Array, " n"]
    persistence: Float[Array, ""]
    mean: Float[Array, ""]
    variance: Float[Array, ""]
    """Running mean over updates of the variance between the episodes of a batch."""
    weight: Float[Array, ""]
    """Sum of its weights, at most 1; 0 before the first update."""
    back: Bool[Array, ""]
    """Whether the last step was taken back, so that the policy is that of `theta` again. The next
    batch then replaces the record of the first, which may have been lucky."""

    def seen(
        self, theta: Float[Array, " n"], persistence: Float[Array, ""], returns: Float[Array, " M"]
    ) -> tuple[Bool[Array, ""], "Before"]:
        """Whether the last step has to be taken back, and the record after paths of the policy with
        parameters `theta`, with these returns. A single one has no variance and decides nothing."""
        mean = jnp.mean(returns)
        between = jnp.var(returns, ddof=1) if returns.size > 1 else jnp.zeros_like(mean)
        variance = MEMORY * self.variance + (1 - MEMORY) * between
        weight = MEMORY * self.weight + (1 - MEMORY)
        error = jnp.sqrt(2 / returns.size * jnp.maximum(variance / weight, between))
        fell = (self.weight > 0) & ~self.back & (self.mean - mean > CLEARLY * error)
        fell &= returns.size > 1
        theta, persistence, mean = (
            jnp.where(fell, old, new)
            for old, new in (
                (self.theta, theta), (self.persistence, persistence), (self.mean, mean)
            )
        )  # fmt: skip
        return fell, Before(theta, persistence, mean, variance, weight, fell)


def nothing(theta: Float[Array, " n"], persistence: Float[Array, ""]) -> Before:
    """Before the first update."""
    zero = jnp.zeros((), theta.dtype)
    return Before(theta, persistence, zero, zero, zero, jnp.asarray(False))
