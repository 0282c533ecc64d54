"""Between Gymnasium's spaces and plain vectors.

Observations of any space become one float32 vector. Actions of a policy are whole numbers, vectors
of them, or draws of a Gaussian, which are brought into the bounds of a box here: the policy and its
score never hear of bounds.
"""

import math
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

Bounds = Literal["clip", "squash"]


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
        """Of a plain box, whose observations need no translation."""

    def encode(self, observation: Any) -> np.ndarray:
        """One observation as a float32 vector."""
        if self.shape is None:
            found = np.asarray(spaces.flatten(self.space, observation), np.float32).reshape(-1)
            if found.size != self.size:
                raise ValueError(f"observation of {found.size} numbers, the space says {self.size}")
            return found
        found = np.asarray(observation, np.float32)
        if found.shape != self.shape:
            raise ValueError(f"observation of shape {found.shape}, the space says {self.shape}")
        return found.reshape(-1)


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
    """A box. A draw a becomes mid + half clip(a, -1, 1), or mid + half tanh(a) where squashed; a
    component without both bounds stays itself, within the one it has. Integers are rounded."""

    def __init__(self, space: spaces.Box, bounds: Bounds):
        self.size, self.bounds = math.prod(space.shape), bounds
        self._space = space
        low, high = (b.reshape(-1).astype(float) for b in (space.low, space.high))
        self._low, self._high = low, high
        self._bounded = (space.bounded_below & space.bounded_above).reshape(-1)
        self.bounded = bool(self._bounded.any())
        """Whether any component has both bounds."""
        low, high = np.where(self._bounded, (low, high), ([-1.0], [1.0]))
        self._mid, self._half = low / 2 + high / 2, high / 2 - low / 2

    def decode(self, actions: np.ndarray) -> list[Any]:
        """The environment's actions, one for each row of the policy's."""
        actions = actions.reshape(len(actions), -1)
        inside = np.tanh(actions) if self.bounds == "squash" else np.clip(actions, -1.0, 1.0)
        a = self._mid + self._half * np.where(self._bounded, inside, actions)
        a = np.clip(a, self._low, self._high)
        if np.issubdtype(self._space.dtype, np.integer):
            a = np.rint(a)
        return list(a.reshape(len(a), *self._space.shape).astype(self._space.dtype))


Actions = Choices | Bounded
"""What a policy draws, and how the environment is told."""


def actions(space: gymnasium.Space, bounds: Bounds = "clip") -> Actions:
    """How to act in a space; ValueError where there is no way."""
    match space:
        case spaces.Discrete():
            return Choices([int(space.n)], [int(space.start)], space, True)
        case spaces.MultiDiscrete():
            sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
            return Choices(sizes, starts, space, False)
        case spaces.MultiBinary():
            count = math.prod(space.shape)
            return Choices([2] * count, [0] * count, space, False)
        case spaces.Box():
            return Bounded(space, bounds)
    raise ValueError(
        f"environment: actions {space} are not supported; expected Discrete, MultiDiscrete, "
        "MultiBinary or Box"
    )
