"""Conjugate gradients with a preconditioner."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from bayespg._support.types import Array


def conjugate_gradients(
    multiply: Callable[[Array], Array],
    b: Float[Array, " n"],
    near: Callable[[Array], Array],
    *,
    tolerance: float = 0.0,
    most: int = 1000,
) -> Float[Array, " n"]:
    """Solve a symmetric positive definite system; `near` is an approximate inverse.

    Ends when the residual is at most `tolerance` times the right-hand side, or after `most`
    products. (Lineax measures the residual entry by entry, which never ends, or ends at once, where
    the right-hand side has zeros.) A right-hand side of zeros has the answer zero.
    """
    size = jnp.linalg.norm(b)
    unit = jnp.where(size > 0, size, 1.0)  # no square of a large or small right-hand side overflows
    b = b / unit

    def going(state):
        j, _, r, *_ = state
        return (j < most) & (r @ r > tolerance**2)

    def advance(state):
        j, x, r, p, rz = state
        Ap = multiply(p)
        pAp = p @ Ap
        a = jnp.where(pAp > 0, rz / jnp.where(pAp > 0, pAp, 1.0), 0.0)
        x, r = x + a * p, r - a * Ap
        z = near(r)
        following = r @ z
        p = z + jnp.where(rz > 0, following / jnp.where(rz > 0, rz, 1.0), 0.0) * p
        return j + 1, x, r, p, following

    z = near(b)
    start = (0, jnp.zeros_like(b), b, z, b @ z)
    return unit * jax.lax.while_loop(going, advance, start)[1]
