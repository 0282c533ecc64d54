"""Between Gymnasium's spaces and plain vectors.

Observations of any space become one float32 vector. Actions of a policy are whole numbers, vectors
of them, or draws of a Gaussian, which are brought into the bounds of a box here: the policy and its
score do not depend on bounds.
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Observations:
    """How observations become vectors of length `size`."""

    def __init__(self, space: gymnasium.Space):
        if not space.is_np_flattenable:
            raise ValueError(
                f"environment: observations {space} have no fixed length; give a wrapper that "
                "turns them into Box, Discrete, Dict, Tuple, MultiDiscrete or MultiBinary"
            )
        self.space, self.size = space, spaces.flatdim(space)
        if self.size == 0:
            raise ValueError(f"environment: observations {space} hold no number")
        self.shape = space.shape if isinstance(space, spaces.Box) else None
        """The shape of a plain box, whose observations need no conversion."""

    def refuse_images(self) -> None:
        """ValueError if observations are images, of which policies by name would take every pixel
        as a number of its own."""
        space = self.space
        if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) >= 3:
            raise ValueError(
                f"environment: observations are images of shape {space.shape}, and policies by "
                f"name would take their {self.size:,} pixels one by one; give a wrapper that turns "
                "an image into a few numbers (gymnasium.wrappers.TransformObservation), or a "
                "policy= of your own that computes features"
            )

    def encode(self, observation: Any) -> np.ndarray:
        """One observation as a float32 vector; ValueError where it does not fit the space."""
        if self.shape is not None:
            return _box(self.shape, observation, "observation")
        return _vector(self.space, observation, "observation")

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """One observation or a batch of them as rows, and whether it was a batch, which has one
        more axis in front in every part."""
        count = _batch(self.space, observation)
        if count is None:
            return self.encode(observation)[None], False
        if count == 0:
            raise ValueError("a batch of none")
        return np.stack([self.encode(_row(self.space, observation, i)) for i in range(count)]), True


def _batch(space: gymnasium.Space, x: Any) -> int | None:
    """The number of observations in a batch; None if `x` is no batch of this space."""
    match space:
        case spaces.Dict() if isinstance(x, Mapping) and x.keys() == space.spaces.keys():
            counts = {_batch(part, x[k]) for k, part in space.spaces.items()}
        case spaces.Tuple() if isinstance(x, tuple | list) and len(x) == len(space.spaces):
            counts = {_batch(part, x[i]) for i, part in enumerate(space.spaces)}
        case spaces.Dict() | spaces.Tuple():
            return None
        case _:
            try:
                shape = np.shape(x)  # pyright: ignore
            except ValueError:  # rows of different lengths
                return None
            return shape[0] if len(shape) > 0 and shape[1:] == space.shape else None
    return counts.pop() if len(counts) == 1 else None


def _row(space: gymnasium.Space, x: Any, i: int) -> Any:
    """The i-th observation of a batch."""
    match space:
        case spaces.Dict():
            return {k: _row(part, x[k], i) for k, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_row(part, x[k], i) for k, part in enumerate(space.spaces))
    return np.asarray(x)[i]


def _vector(space: gymnasium.Space, x: Any, where: str) -> np.ndarray:
    """Gymnasium's `flatten` in float32, with a ValueError if `x` does not fit the space. Bounds
    of boxes are not checked: many environments exceed theirs a little."""
    match space:
        case spaces.Dict():
            if not isinstance(x, Mapping) or x.keys() != space.spaces.keys():
                given = f"with keys {sorted(map(str, x))}" if isinstance(x, Mapping) else repr(x)
                raise ValueError(f"{where} {given}, the space says keys {sorted(space.spaces)}")
            parts = [_vector(part, x[k], f"{where}[{k!r}]") for k, part in space.spaces.items()]
            return np.concatenate(parts)
        case spaces.Tuple():
            if not isinstance(x, tuple | list) or len(x) != len(space.spaces):
                raise ValueError(f"{where} {x!r}, the space says a tuple of {len(space.spaces)}")
            parts = [_vector(part, x[i], f"{where}[{i}]") for i, part in enumerate(space.spaces)]
            return np.concatenate(parts)
        case spaces.Box():
            return _box(space.shape, x, where)
        case spaces.Discrete():
            return _one_hot(int(space.n), int(space.start), x, where)
        case spaces.MultiDiscrete():
            if np.shape(x) != space.shape:
                raise ValueError(f"{where} of shape {np.shape(x)}, the space says {space.shape}")
            parts = zip(np.ravel(space.nvec), np.ravel(space.start), np.ravel(x), strict=True)
            return np.concatenate([_one_hot(int(n), int(s), k, where) for n, s, k in parts])
        case _:
            if not space.contains(x):
                raise ValueError(f"{where} {x!r}, the space says {space}")
            return np.asarray(spaces.flatten(space, x), np.float32).reshape(-1)


def _box(shape: tuple[int, ...], x: Any, where: str) -> np.ndarray:
    """Numbers of this shape in a row; those beyond float32 are infinite."""
    values = np.asarray(x)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{where} of type {values.dtype}, expected numbers")
    if values.shape != shape:
        raise ValueError(f"{where} of shape {values.shape}, the space says {shape}")
    if values.dtype != np.float32:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
    return values.reshape(-1)


def _one_hot(n: int, start: int, x: Any, where: str) -> np.ndarray:
    """A choice among `n` that are counted from `start`, as zeros and a one."""
    if not isinstance(x, int) and np.size(x) == 1:
        x = np.asarray(x).item()
    if not isinstance(x, int) or not start <= x < start + n:
        raise ValueError(f"{where} {x!r}, the space says {start} to {start + n - 1}")
    row = np.zeros(n, np.float32)
    row[x - start] = 1
    return row


class Choices:
    """A choice of `sizes[0]`, or where not `scalar` one of each of `sizes`."""

    def __init__(self, sizes: list[int], starts: list[int], space: gymnasium.Space, scalar: bool):
        self.sizes, self.scalar = tuple(sizes), scalar
        self._starts, self._space = np.array(starts), space

    def decode(self, actions: np.ndarray) -> list[Any]:
        """The environment's actions, one for each row of the policy's."""
        if self.scalar:
            return (actions + self._starts[0]).tolist()
        shape = (len(actions), *(self._space.shape or ()))
        return list((actions + self._starts).reshape(shape).astype(self._space.dtype))


class Bounded:
    """A box. A draw a becomes mid + half clip(a, -1, 1); a component without both bounds stays
    itself, within the one it has. Integers are rounded."""

    def __init__(self, space: spaces.Box):
        self.size, self._space = math.prod(space.shape), space
        low, high = (b.reshape(-1).astype(float) for b in (space.low, space.high))
        self._low, self._high = low, high
        self.bounded = (space.bounded_below & space.bounded_above).reshape(-1)
        low, high = np.where(self.bounded, (low, high), ([-1.0], [1.0]))
        self.middle, self.half = low / 2 + high / 2, high / 2 - low / 2

    def decode(self, actions: np.ndarray) -> list[Any]:
        """The environment's actions, one for each row of the policy's."""
        if not np.isfinite(actions).all():
            bad = actions[~np.isfinite(actions)][0]
            raise ValueError(f"policy: drew an action that holds {bad}")
        # Rows of a space of shape () would be scalars, which the space does not contain.
        return [np.asarray(a) for a in self.within(actions).astype(self._space.dtype)]

    def within(self, actions: Any, xp: Any = np) -> Any:
        """The environment's actions in one array, computed by `xp`: NumPy or `jax.numpy`."""
        actions = actions.reshape(len(actions), -1)
        inside = xp.where(self.bounded, xp.clip(actions, -1.0, 1.0), actions)
        a = xp.clip(self.middle + self.half * inside, self._low, self._high)
        if np.issubdtype(self._space.dtype, np.integer):
            a = xp.rint(a)
        return a.reshape(len(a), *self._space.shape)


Actions = Choices | Bounded
"""What a policy draws, and how it becomes an action of the environment."""


def actions(space: gymnasium.Space) -> Actions:
    """How a policy acts in a space; ValueError if the space is not supported."""
    match space:
        case spaces.Discrete():
            return Choices([int(space.n)], [int(space.start)], space, True)
        case spaces.MultiDiscrete():
            sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
            return Choices(sizes, starts, space, False)
        case spaces.MultiBinary():
            count = math.prod(space.shape)
            return Choices([2] * count, [0] * count, space, False)
        case spaces.Box() if math.prod(space.shape) > 0:
            return Bounded(space)
    raise ValueError(
        f"environment: actions {space} are not supported; expected Discrete, MultiDiscrete, "
        "MultiBinary or Box, of at least one number"
    )
