"""Steps of the last batches, as further data for the critic.

At trace 0 the model of a step, r = V(x) + u(x, a)'w - gamma V(x') + noise, holds whoever chose the
action a, because u is the score of the policy of now, recomputed for every step kept. An older
batch thus needs no importance weights.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bayespg._support.types import Array
from bayespg.environments.trajectories import Trajectories
from bayespg.paths.rollout import AT_ONCE
from bayespg.policies import flatten

AXES = {"states": 1, "actions": 1, "rewards": 1, "mask": 1, "terminated": 0, "final": 0}
"""The axis of the paths in each array of `Trajectories`; where it is the second, time is the
first."""


def kept(horizon: int, episodes: int) -> int:
    """Steps kept of each older episode, the first ones: at most `AT_ONCE` of a batch."""
    return min(horizon, max(AT_ONCE // episodes, 1))


def nothing(
    policy: Any, observation: jax.ShapeDtypeStruct, horizon: int, episodes: int, batches: int
) -> Trajectories:
    """Room for so many batches of paths drawn with this policy, without steps yet."""
    T, M, dtype = kept(horizon, episodes), batches * episodes, flatten(policy)[0].dtype
    real = jnp.issubdtype(observation.dtype, jnp.floating)
    seen = jnp.zeros(observation.shape, dtype if real else observation.dtype)
    action = jax.eval_shape(lambda key: policy(seen).sample(key), jax.random.key(0))
    states = jnp.zeros((T, M, *seen.shape), jnp.float32 if real else seen.dtype)
    return Trajectories(
        states, jnp.zeros((T, M, *action.shape), action.dtype), jnp.zeros((T, M), jnp.float32),
        jnp.zeros((T, M), bool), jnp.zeros(M, bool), states[0],
    )  # fmt: skip


def seen(older: Trajectories, raw: Trajectories) -> Trajectories:
    """These with another batch in place of the oldest. An episode that is longer than what is kept
    of it counts as cut off there."""
    T, M = older.mask.shape[0], raw.mask.shape[1]
    ended = raw.terminated & (jnp.sum(raw.mask, 0) <= T)

    def put(new: Array, old: Array, axis: int) -> Array:
        new, old = (_padded(new[:T], T), old[:, :-M]) if axis else (new, old[:-M])
        return jnp.concatenate([new.astype(old.dtype), old], axis)

    return _each(put, eqx.tree_at(lambda p: p.terminated, raw, ended), older)


def as_long(paths: Trajectories, older: Trajectories | None) -> Trajectories:
    """The paths of this batch, padded to as many steps as are kept of older ones."""
    if older is None:
        return paths
    T = max(len(paths.mask), len(older.mask))
    return _each(lambda new, _, axis: _padded(new, T) if axis else new, paths, older)


def joined(paths: Trajectories, older: Trajectories | None) -> Trajectories:
    """The paths of this batch, then those of the older ones, padded to the same number of steps."""
    if older is None:
        return paths
    missing = paths.mask.shape[0] - older.mask.shape[0]
    for name in ("states", "actions"):
        ours, theirs = (getattr(of, name).shape[2:] for of in (paths, older))
        if ours != theirs or missing < 0:
            raise ValueError(
                f"older: expected {name} of shape {ours} in episodes of at most "
                f"{paths.mask.shape[0]} steps, found {theirs} in {older.mask.shape[0]}"
            )

    def put(new: Array, old: Array, axis: int) -> Array:
        old = _padded(old, len(paths.mask)) if axis else old
        return jnp.concatenate([new, old.astype(new.dtype)], axis)

    return _each(put, paths, older)


def _padded(x: Array, T: int) -> Array:
    """With zeros after its last step."""
    return jnp.pad(x, [(0, T - len(x))] + [(0, 0)] * (x.ndim - 1))


def _each(
    put: Callable[[Array, Array, int], Array], new: Trajectories, old: Trajectories
) -> Trajectories:
    return Trajectories(
        **{name: put(getattr(new, name), getattr(old, name), axis) for name, axis in AXES.items()}
    )
