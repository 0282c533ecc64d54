"""Choices of which only some are allowed in each state.

Which are allowed is part of the state: its last numbers are one for an allowed choice and zero for
any other. So everything that a policy is asked for in a state, its scores, its Fisher matrix and
its divergence from another policy, is that of the distribution among the allowed choices.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float, Int, PRNGKeyArray, Shaped

from bayespg._support.types import Array
from bayespg.policies.base import Policy, SparsePolicy
from bayespg.policies.distributions import Categorical, Categoricals, Distribution

FORBIDDEN = -1e9
"""The logit of a choice that is not allowed: its probability is zero in every precision."""


class Allowed(Distribution):
    """A distribution among allowed choices; the logits of the others are `FORBIDDEN`."""

    of: Categorical | Categoricals

    def _each(self) -> list[Categorical]:
        return [self.of] if isinstance(self.of, Categorical) else self.of._each()

    def sample(self, key: PRNGKeyArray) -> Int[Array, "..."]:
        """A draw that rounding has moved beyond the last allowed choice becomes the mode."""
        drawn, mode = self.of.sample(key), self.of.mode()
        scalar = isinstance(self.of, Categorical)
        allowed = []
        for i, one in enumerate(self._each()):
            at = drawn if scalar else drawn[..., i]
            logit = jnp.take_along_axis(one.logits, at[..., None], -1)[..., 0]
            allowed.append(logit > FORBIDDEN / 2)
        return jnp.where(allowed[0] if scalar else jnp.stack(allowed, -1), drawn, mode)

    def mode(self) -> Int[Array, "..."]:
        return self.of.mode()

    def log_prob(self, action: Shaped[Array, " *action"]) -> Float[Array, ""]:
        return self.of.log_prob(action)

    def fisher_root(self) -> Float[Array, "r p"]:
        return self.of.fisher_root()

    def divergence(self, other: Any) -> Float[Array, ""]:
        return self.of.divergence(other.of)

    def sizes_of_choices(self) -> tuple[int, ...] | None:
        return self.of.sizes_of_choices()


class Masked(Policy):
    """A policy that chooses among the allowed choices only."""

    policy: Policy
    choices: int = eqx.field(static=True)
    """How many numbers at the end of a state say what is allowed."""

    def __call__(self, state: Float[Array, " d"]) -> Allowed:
        at: Any = self.policy(state[: -self.choices])
        logits = jnp.where(state[-self.choices :] > 0.5, at.logits, FORBIDDEN)
        return Allowed(eqx.tree_at(lambda d: d.logits, at, logits))


def masked(policy: Any, choices: int) -> Masked:
    """The policy with masks; ValueError if it cannot have any."""
    if not isinstance(policy, Policy) or isinstance(policy, SparsePolicy):
        raise ValueError(
            f"masks: are for policies without memory whose scores are dense, not for "
            f"{type(policy).__name__}; take 'linear', 'fourier' or 'mlp', or give masks=False"
        )
    return Masked(policy, choices)
