"""Policies whose actions do not depend on chance."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PRNGKeyArray, Shaped
from scipy.linalg import helmert

from bayespg._support.types import Array
from bayespg.environments.spaces import Actions, Choices
from bayespg.policies import named
from bayespg.policies.base import AnyPolicy, Choice, Observation, Policy
from bayespg.policies.distributions import Fixed
from bayespg.policies.features import Features
from bayespg.policies.heads import Composed

CONSTANT = 0.3
"""What a linear policy has beside the observations in units, whose size is one. It is less than
they are, because most tasks are symmetric and need no constant."""


class Greedy(AnyPolicy):
    """Another policy's most likely choices."""

    policy: AnyPolicy

    def start(self) -> Any:
        return self.policy.start()

    def step(self, memory: Any, observation: Observation) -> Any:
        at, memory = self.policy.step(memory, observation)
        return Fixed(at.mode()), memory

    def settle(self, memory: Any, choice: Choice) -> Any:
        return self.policy.settle(memory, choice)


class Deterministic(Policy):
    """Actions linear in features of the observation, or in the observation itself and a constant,
    for a search in the space of their parameters.

    k discrete actions are the corners of a regular simplex in k - 1 dimensions, and the outputs
    choose the corner in whose direction they lie: with two actions the sign of one output decides.
    With `masks` only allowed corners are chosen; the last numbers of an observation then say which
    these are. Continuous actions are clipped to their bounds by the environment.
    """

    weights: Float[Array, "o k"]
    features: Features | None
    units: Float[np.ndarray, " d"] | Float[Array, " d"]
    """Observations are divided by these, except where they are zero."""
    sizes: tuple[int, ...] | None = eqx.field(static=True)
    scalar: bool = eqx.field(static=True)
    masks: bool = eqx.field(static=True, default=False)

    def theta(self) -> Float[np.ndarray, " n"]:
        """The parameters that the search changes: all except the units."""
        return np.asarray(self._ravelled()[0], np.float64)

    def at(self, theta: Float[np.ndarray, " n"]) -> "Deterministic":
        """The same policy with other parameters."""
        _, unravel, rest = self._ravelled()
        weights, features = eqx.combine(unravel(jnp.asarray(theta, jnp.float32)), rest)
        return Deterministic(weights, features, self.units, self.sizes, self.scalar, self.masks)

    @property
    def gains(self) -> Float[np.ndarray, "o d"]:
        """The matrix that a linear policy multiplies raw observations by, before it adds `offset`.
        Of more than two choices each has a row, and the one of the largest result is taken; with
        two, the second is taken if the result of the only row is positive."""
        return self._affine()[:, :-1] / divisors(np.asarray(self.units, np.float64))

    @property
    def offset(self) -> Float[np.ndarray, " o"]:
        """What a linear policy adds to the product of `gains` and an observation."""
        return CONSTANT * self._affine()[:, -1]

    def _affine(self) -> Float[np.ndarray, "o k"]:
        """The weights of a linear policy, with a row for each of more than two choices."""
        if self.features is not None:
            raise ValueError("policy: only a linear one has gains and an offset")
        W = np.asarray(self.weights, np.float64)
        if self.sizes is None:
            return W
        parts = _parts(W, self.sizes)
        return np.concatenate([x if size == 2 else corners(size) @ x for size, x in parts])

    @property
    def directional(self) -> bool:
        """Whether only the direction of the parameters matters: a multiple of them chooses the
        same."""
        fixed = not jax.tree.leaves(eqx.filter(self.features, eqx.is_inexact_array))
        return self.sizes is not None and fixed

    def _ravelled(self) -> Any:
        parameters, rest = eqx.partition((self.weights, self.features), eqx.is_inexact_array)
        return *ravel_pytree(parameters), rest

    def __call__(self, state: Shaped[Array, "..."]) -> Fixed:
        units = divisors(jnp.asarray(self.units))
        flat = state.reshape(-1)
        x, allowed = flat[: units.size] / units, flat[units.size :]
        inputs = jnp.append(x, CONSTANT) if self.features is None else self.features(x)
        outputs = self.weights @ inputs
        if self.sizes is None:
            return Fixed(outputs)
        scores = [corners(k).astype(x.dtype) @ part for k, part in _parts(outputs, self.sizes)]
        if self.masks:
            each = jnp.split(allowed > 0.5, np.cumsum(self.sizes)[:-1])
            scores = [jnp.where(a, s, -jnp.inf) for a, s in zip(each, scores, strict=True)]
        chosen = [jnp.argmax(score) for score in scores]
        return Fixed(chosen[0] if self.scalar else jnp.stack(chosen))


def divisors(units):
    """Units to divide by: one instead of zero."""
    return units + (units == 0)


def _outputs(size: int) -> int:
    return max(size - 1, 1)


def _parts(outputs: Any, sizes: tuple[int, ...]) -> list[tuple[int, Any]]:
    """The size of each choice, and the outputs that belong to it."""
    ends = np.cumsum([_outputs(size) for size in sizes])
    return [(k, outputs[end - _outputs(k) : end]) for k, end in zip(sizes, ends, strict=True)]


def corners(size: int) -> Float[np.ndarray, "k o"]:
    """The corners of a regular simplex, one per row."""
    return np.zeros((1, 1)) if size == 1 else -helmert(size).T


def make(
    name: str,
    inputs: int,
    actions: Actions,
    key: PRNGKeyArray,
    hidden: tuple[int, ...],
    masks: bool = False,
) -> Deterministic:
    """The initial policy of that name, from `inputs` numbers and, with `masks`, those that say what
    is allowed."""
    of = named.make(name, inputs, actions, key, hidden)
    assert isinstance(of, Composed)
    features = None if name == "linear" else of.features
    chosen = isinstance(actions, Choices)
    outputs = sum(map(_outputs, actions.sizes)) if chosen else actions.size
    return Deterministic(
        jnp.zeros((outputs, inputs + 1 if features is None else features.size), jnp.float32),
        features,
        np.ones(inputs, np.float32),
        actions.sizes if chosen else None,
        chosen and actions.scalar,
        masks,
    )
