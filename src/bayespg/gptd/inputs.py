"""Checks of the arguments of the critic."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from bayespg._support import checks
from bayespg._support.precision import to_float64
from bayespg.kernels import Kernel

SIGNS = {"length_scale": True, "scale": False, "variance": False}
"""Kernel parameters that must not be negative, and whether they must not be zero."""


def checked_steps(rewards: Any, last: Any, terminated: Any, discount: Any):
    """Rewards, ends of episodes and discount from the caller, checked and converted to NumPy."""
    r = checks.array("rewards", rewards)
    if r.ndim != 1 or r.size == 0:
        raise ValueError(f"rewards: expected shape (N,) with at least one step, found {r.shape}")
    last = checks.flags("last", last, r.size)
    terminated = checks.flags("terminated", terminated, r.size)
    astray = terminated & ~last
    if astray.any():
        raise ValueError(
            f"terminated: step {int(astray.argmax())} is terminated but not last; an absorbing "
            "state ends its episode"
        )
    return r, last, terminated, np.asarray(checks.discount(discount))


def as_arrays(name: str, points: Any) -> Any:
    """The arrays of a tree of points in float64; lists count as arrays."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: checks.array(name + jax.tree_util.keystr(path), leaf),
        points,
        is_leaf=lambda value: value is None or isinstance(value, list),
    )


def checked_points(name: str, points: Any, size: int) -> Any:
    """Points in rows, one for each reward."""
    arrays = as_arrays(name, points)
    shapes = [leaf.shape for leaf in jax.tree.leaves(arrays)]
    if not shapes or any(shape[:1] != (size,) for shape in shapes):
        raise ValueError(f"{name}: expected {size} rows, one per reward, found shapes {shapes}")
    return arrays


def like(name: str, points: Any, known: Any, axes: int) -> Any:
    """Points of the same kind as those a critic holds in rows, with `axes` leading axes."""
    arrays = as_arrays(name, points)
    leaves, structure = jax.tree.flatten(arrays)
    expected, known_structure = jax.tree.flatten(known)
    shapes, inner = [leaf.shape for leaf in leaves], [leaf.shape[1:] for leaf in expected]
    rows = {shape[:axes] for shape in shapes}
    if structure != known_structure or len(rows) != 1 or [s[axes:] for s in shapes] != inner:
        kind = "points in rows, each" if axes else "a point"
        raise ValueError(f"{name}: expected {kind} of shape {inner}, found {shapes}")
    return arrays


def accepts(name: str, kernel: Kernel, point: Any) -> None:
    try:
        shape = jax.eval_shape(kernel, point, point).shape
    except (TypeError, ValueError, IndexError) as problem:
        raise ValueError(f"{name}: the kernel does not take such points ({problem})") from None
    if shape != ():
        raise ValueError(f"{name}: the kernel gives shape {shape} for two points, not one number")


def checked_kernel(name: str, kernel: Any) -> Kernel:
    """The kernel in float64, with its parameters as arrays so that other values need no new
    compilation."""
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"{name}: expected a kernel of bayespg.kernels, found {checks.shown(kernel)}"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(kernel):
        if isinstance(leaf, (int, float)) or eqx.is_inexact_array(leaf):
            least = SIGNS.get(getattr(path[-1], "name", ""))
            values = checks.array(name, leaf)
            if least is not None and not (values > 0 if least else values >= 0).all():
                kind = "positive" if least else "not negative"
                raise ValueError(
                    f"{name}: {path[-1].name} must be {kind}, found {values.min():.6g}"
                )
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, float) else leaf, to_float64(kernel)
    )
