"""Choices of which only some are allowed in each state.

Which are allowed is part of the state: its last numbers are one for an allowed choice and zero for
any other. So everything that a policy is asked for in a state, its scores, its Fisher matrix and
its divergence from another policy, is that of the distribution among the allowed choices.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from bayespg._support.types import Array
from bayespg.policies.base import Policy, SparsePolicy
from bayespg.policies.distributions import Distribution

FORBIDDEN = -1e9
"""The logit of a choice that is not allowed: its probability is zero in every precision."""


class Masked(Policy):
    """A policy that chooses among the allowed choices only."""

    policy: Policy
    choices: int = eqx.field(static=True)
    """How many numbers at the end of a state say what is allowed."""

    def __call__(self, state: Float[Array, " d"]) -> Distribution:
        at: Any = self.policy(state[: -self.choices])
        logits = jnp.where(state[-self.choices :] > 0.5, at.logits, FORBIDDEN)
        return eqx.tree_at(lambda d: d.logits, at, logits)


def masked(policy: Any, choices: int) -> Masked:
    """The policy with masks; ValueError if it cannot have any."""
    if not isinstance(policy, Policy) or isinstance(policy, SparsePolicy):
        raise ValueError(
            f"masks: are for policies without memory whose scores are dense, not for "
            f"{type(policy).__name__}; take 'linear', 'fourier' or 'mlp', or give masks=False"
        )
    return Masked(policy, choices)
