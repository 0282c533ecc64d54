"""Partial observation of any task (Section 5): through noise, and through a window of the past.

They nest: ``History(Noisy(LQR(), 0.3), 4)`` shows the last four noisy observations.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from bayespg._support.random import normal
from bayespg._support.types import Array
from bayespg.environments.base import Environment, Wrapper, observe


class _Pairs(Wrapper):
    """A wrapper whose states are pairs of a state and what the policy sees."""

    def observe(self, states: tuple[Any, Any]) -> Shaped[Array, "M *observation"]:
        return states[1]


class Noisy(_Pairs):
    """P_o(o|x) = N(x, scale^2 I)."""

    environment: Environment
    scale: float | Float[Array, ""]

    def reset(self, key: PRNGKeyArray, paths: int) -> tuple[Any, Float[Array, "M *state"]]:
        key, key_seen = jax.random.split(key)
        states = self.environment.reset(key, paths)
        return states, self._seen(key_seen, states)

    def step(
        self,
        key: PRNGKeyArray,
        states: tuple[Any, Float[Array, "M *state"]],
        actions: Shaped[Array, "M *action"],
    ) -> tuple[tuple[Any, Float[Array, "M *state"]], Float[Array, " M"], Bool[Array, " M"]]:
        key, key_seen = jax.random.split(key)
        hidden, rewards, ends = self.environment.step(key, states[0], actions)
        return (hidden, self._seen(key_seen, hidden)), rewards, ends

    def _seen(self, key: PRNGKeyArray, states: Any) -> Float[Array, "M *state"]:
        exact = observe(self.environment, states)
        return exact + self.scale * normal(key, exact.shape, exact.dtype)


class History(_Pairs):
    """The policy sees the last k observations, the newest last, with zeros before the first.

    Where `actions` is not zero, it is the number of components of an action: a row is then an
    observation, flattened, followed by the action that led to it. For Gymnasium the same is
    ``gymnasium.wrappers.FrameStackObservation(env, k, padding_type="zero")``.
    """

    environment: Environment
    k: int = eqx.field(static=True)
    actions: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if self.k < 1 or self.actions < 0:
            raise ValueError(
                "History: expected k of at least 1 and a number of action components, "
                f"found k = {self.k}, actions = {self.actions}"
            )

    def reset(self, key: PRNGKeyArray, paths: int) -> tuple[Any, Shaped[Array, "M k *row"]]:
        states = self.environment.reset(key, paths)
        row = self._row(states, jnp.zeros((paths, self.actions)))
        empty = jnp.zeros((paths, self.k, *row.shape[1:]), row.dtype)
        return states, _push(empty, row)

    def step(
        self,
        key: PRNGKeyArray,
        states: tuple[Any, Shaped[Array, "M k *row"]],
        actions: Shaped[Array, "M *action"],
    ) -> tuple[tuple[Any, Shaped[Array, "M k *row"]], Float[Array, " M"], Bool[Array, " M"]]:
        hidden, window = states
        hidden, rewards, ends = self.environment.step(key, hidden, actions)
        row = self._row(hidden, actions).astype(window.dtype)
        return (hidden, _push(window, row)), rewards, ends

    def _row(self, states: Any, actions: Shaped[Array, "M *action"]) -> Shaped[Array, "M *row"]:
        seen = observe(self.environment, states)
        if not self.actions:
            return seen
        M = len(seen)
        return jnp.concatenate([seen.reshape(M, -1), actions.reshape(M, self.actions)], 1)


def _push(
    window: Shaped[Array, "M k *row"], row: Shaped[Array, "M *row"]
) -> Shaped[Array, "M k *row"]:
    return jnp.concatenate([window[:, 1:], row[:, None]], 1)
