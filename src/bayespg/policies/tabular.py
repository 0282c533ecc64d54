"""The policy of the random walk, Section 8.1: one parameter per state."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from bayespg._support.types import Array
from bayespg.policies.base import Policy
from bayespg.policies.distributions import Bernoulli


class Tabular(Policy):
    """mu(right|x) = 1 / (1 + exp(-theta_x)), theta = `logits` of the transient states.

    No action is chosen in the absorbing state; the distribution there is that of the state before.
    """

    logits: Float[Array, "*runs n"]

    @property
    def right(self) -> Float[Array, "*runs n"]:
        """The probability of action 1 in each state."""
        return jax.nn.sigmoid(self.logits)

    def __call__(self, state: Int[Array, ""]) -> Bernoulli:
        return Bernoulli(jnp.asarray(self.logits).at[..., state].get(mode="clip"))
