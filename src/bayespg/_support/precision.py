"""Float64 where conditioning asks for it, without a global switch.

Kernel matrices with small noise have condition numbers near 1e9, so a function called on plain
arrays works in float64 whatever JAX's setting and returns NumPy arrays. Inside a
transformation (jit, vmap, grad) it is an ordinary JAX function and the caller chooses the
precision, for instance with ``jax.enable_x64``.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bayespg._support import compilation, device


def traced(*trees: Any) -> bool:
    """Whether any leaf is being traced by a JAX transformation."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def to_numpy(tree: Any) -> Any:
    """Arrays of a result as NumPy arrays, so that float64 survives where JAX is set to float32."""
    return jax.tree.map(
        lambda leaf: (
            np.asarray(leaf)
            if isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else leaf
        ),
        tree,
    )


def to_float64(tree: Any) -> Any:
    """Floating-point arrays of a tree in float64, as NumPy arrays."""
    return jax.tree.map(
        lambda leaf: (
            np.asarray(leaf, dtype=np.float64)
            if isinstance(leaf, (jax.Array, np.ndarray))
            and jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
        ),
        tree,
    )


def run(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function: unchanged inside a transformation, in float64 on plain arrays."""
    if traced(args, kwargs):
        return function(*args, **kwargs)
    return in_float64(function)(*to_float64(args), **to_float64(kwargs))


def float64_when_eager(function: Callable) -> Callable:
    """A method that is called through `run`."""
    return functools.wraps(function)(lambda *args, **kwargs: run(function, *args, **kwargs))


@functools.cache
def in_float64(function: Callable) -> Callable:
    """Compile `function` once per shape, run it in float64, and return NumPy arrays."""
    options: dict[str, Any] = {"compiler_options": compilation.fast()}
    compiled = eqx.filter_jit(function, **options)

    def run(*args: Any, **kwargs: Any) -> Any:
        device.require()
        # Constants inside a caller's jit are computed at once too.
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            return to_numpy(compiled(*args, **kwargs))

    return run
