"""Transitions that were observed, in arrays of fixed capacity."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from bayespg._support import checks
from bayespg._support.types import Array
from bayespg.environments.spaces import Actions, Bounded, Choices
from bayespg.environments.trajectories import Trajectories

CAPACITY = 16_384
"""Transitions that are kept unless told otherwise; each further one replaces the oldest."""

CHUNKS = 512
"""Capacities are multiples of this number."""


class Inputs(eqx.Module):
    """How actions of a policy become numbers: a one among zeros for each choice among `sizes`; or
    the draw itself, clipped to [-1, 1] where the environment's action is `bounded`. The environment
    then gets `middle` + `half` times that."""

    sizes: tuple[int, ...] | None = eqx.field(static=True)
    bounded: tuple[bool, ...] = eqx.field(static=True, default=())
    middle: tuple[float, ...] = eqx.field(static=True, default=())
    half: tuple[float, ...] = eqx.field(static=True, default=())

    @property
    def size(self) -> int:
        return len(self.bounded) if self.sizes is None else sum(self.sizes)

    def __call__(self, actions: Shaped[Array, "N *action"]) -> Float[Array, "N k"]:
        # JAX would compile programs for every length of an episode.
        xp: Any = jnp if isinstance(actions, jax.Array) else np
        if self.sizes is None:
            a = actions.reshape(len(actions), len(self.bounded))
            return xp.where(np.array(self.bounded), xp.clip(a, -1.0, 1.0), a)
        a = actions.reshape(len(actions), len(self.sizes))
        parts = [a[:, i, None] == np.arange(size) for i, size in enumerate(self.sizes)]
        return xp.concatenate(parts, 1).astype(jnp.result_type(float))

    def decoded(self, encoded: Float[Array, "N k"]) -> Shaped[Array, "N *action"]:
        """Actions that are encoded like this."""
        if self.sizes is None:
            return encoded
        ends = np.cumsum(self.sizes)[:-1]
        return jnp.stack([jnp.argmax(x, 1) for x in jnp.split(encoded, ends, 1)], 1)

    def told(self, actions: Shaped[Array, "N *action"]) -> Shaped[Array, "N *action"]:
        """What the environment gets; choices are counted from zero."""
        if self.sizes is not None:
            return actions
        inside = self(actions).reshape(actions.shape)
        middle, half = (np.array(x, np.float32) for x in (self.middle, self.half))
        return (middle + half * inside.reshape(len(actions), -1)).reshape(actions.shape)


def choices(*sizes: int) -> Inputs:
    """Actions that are choices, each among as many options as its number says."""
    return Inputs(tuple(checks.whole("sizes", size, 2) for size in sizes))


def numbers(size: int) -> Inputs:
    """Actions of `size` numbers without bounds."""
    size = checks.whole("size", size, 1)
    return Inputs(None, (False,) * size, (0.0,) * size, (1.0,) * size)


def inputs_of(actions: Actions) -> Inputs:
    """The encoding of the actions of a space."""
    if isinstance(actions, Choices):
        return Inputs(actions.sizes)
    assert isinstance(actions, Bounded)
    return Inputs(
        None, tuple(actions.bounded.tolist()), tuple(actions.middle.tolist()),
        tuple(actions.half.tolist()),
    )  # fmt: skip


class Transitions(eqx.Module):
    """(x, a, r, x', terminated), in the order in which they were made until the capacity is
    reached; then each replaces the oldest."""

    inputs: Inputs
    states: Float[np.ndarray, "C d"]
    actions: Float[np.ndarray, "C k"]
    """Encoded by `inputs`."""
    rewards: Float[np.ndarray, " C"]
    following: Float[np.ndarray, "C d"]
    terminated: Bool[np.ndarray, " C"]
    first: Bool[np.ndarray, " C"]
    """Whether the state began an episode."""
    seen: Int[np.ndarray, ""]
    """Transitions in all, those that were replaced included."""

    @property
    def count(self) -> int:
        return min(int(self.seen), len(self.rewards))

    def with_rows(self, *rows: Any) -> "Transitions":
        """These and others: states, encoded actions, rewards, following states, terminated,
        first."""
        capacity = len(self.rewards)
        at = (int(self.seen) + np.arange(len(rows[2]))) % capacity
        before = (
            self.states, self.actions, self.rewards, self.following, self.terminated, self.first
        )  # fmt: skip
        after = []
        for old, new in zip(before, rows, strict=True):
            old = np.array(old)
            old[at[-capacity:]] = new[-capacity:]
            after.append(old)
        seen: Any = np.asarray(int(self.seen) + len(at), np.int64)
        return Transitions(self.inputs, *after, seen)  # pyright: ignore[reportCallIssue]

    def with_paths(self, paths: Trajectories) -> "Transitions":
        """These and those of more paths."""
        mask, ended, final = (np.asarray(x) for x in (paths.mask, paths.terminated, paths.final))
        kept = self
        for m, T in enumerate(mask.sum(0)):
            states = np.asarray(paths.states)[:T, m].reshape(T, -1)
            last = np.arange(T) == T - 1
            kept = kept.with_rows(
                states, self.inputs(np.asarray(paths.actions)[:T, m]),
                np.asarray(paths.rewards)[:T, m],
                np.concatenate([states[1:], final[m].reshape(1, -1)]), last & ended[m],
                np.arange(T) == 0,
            )  # fmt: skip
        return kept


def empty(states: int, inputs: Inputs, capacity: int = CAPACITY) -> Transitions:
    """No transitions yet, for states of `states` numbers."""

    def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return np.zeros((capacity, *shape), dtype)

    return Transitions(
        inputs=inputs, states=zeros(states), actions=zeros(inputs.size), rewards=zeros(),
        following=zeros(states), terminated=zeros(dtype=bool), first=zeros(dtype=bool),
        seen=np.asarray(0, np.int64),
    )  # fmt: skip


def transitions(
    states: Any,
    actions: Any,
    rewards: Any,
    following: Any,
    terminated: Any,
    first: Any = None,
    *,
    inputs: Inputs | None = None,
) -> Transitions:
    """Transitions from arrays: `states` and `following` (N, d), `rewards` (N,), `terminated` (N,)
    and `first` (N,), whether the state began an episode; without it, all states count as such.
    `actions` are those of a policy, and `inputs` says what they are: `choices` or `numbers`;
    without it, whole numbers are choices and others are numbers without bounds."""
    x, y = (
        np.asarray(checks.array(n, v)) for n, v in (("states", states), ("following", following))
    )
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"states: expected shape (N, d) with N and d at least 1, found {x.shape}")
    if y.shape != x.shape:
        raise ValueError(f"following: expected shape {x.shape}, as states, found {y.shape}")
    N = len(x)
    r = np.asarray(checks.vector("rewards", rewards, N, "one for each transition"))
    a = checks.unmasked("actions", actions)
    if len(a) != N:
        raise ValueError(f"actions: expected {N} of them, found {len(a)}")
    if inputs is None:
        whole = a.dtype.kind in "iu" and a.ndim == 1
        inputs = choices(max(int(a.max()) + 1, 2)) if whole else numbers(a.reshape(N, -1).shape[1])
    a = inputs(np.asarray(a))
    if not np.isfinite(a).all():
        raise ValueError("actions: expected finite numbers, found others")
    ended = checks.flags("terminated", terminated, N)
    begun = np.ones(N, bool) if first is None else checks.flags("first", first, N)
    capacity = CHUNKS * math.ceil(N / CHUNKS)
    return empty(x.shape[1], inputs, capacity).with_rows(x, a, r, y, ended, begun)
