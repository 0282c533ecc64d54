"""Conjugate gradients with a preconditioner, for one right-hand side or for several."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from bayespg._support.types import Array

DEPENDENT = 1e-5
"""The relative size of eigenvalues of directions that are taken for dependent ones."""


def conjugate_gradients(
    multiply: Callable[[Array], Array],
    b: Float[Array, " n"],
    precondition: Callable[[Array], Array],
    *,
    tolerance: float = 0.0,
    most: int = 1000,
) -> Float[Array, " n"]:
    """Solve a symmetric positive definite system; `precondition` is an approximate inverse.

    Ends when the residual is at most `tolerance` times the right-hand side, or after `most`
    products. (Lineax measures the residual entry by entry, which never ends, or ends at once, where
    the right-hand side has zeros.) A right-hand side of zeros has the answer zero, and one that is
    not finite has the answer NaN.
    """
    size = jnp.linalg.norm(b)
    unit = jnp.where(
        size == 0, 1.0, size
    )  # no square of a large or small right-hand side overflows
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
        z = precondition(r)
        following = r @ z
        p = z + jnp.where(rz > 0, following / jnp.where(rz > 0, rz, 1.0), 0.0) * p
        return j + 1, x, r, p, following

    z = precondition(b)
    start = (0, jnp.zeros_like(b), b, z, b @ z)
    return unit * jax.lax.while_loop(going, advance, start)[1]


def together(
    multiply: Callable[[Array], Array],
    B: Float[Array, "k n"],
    precondition: Callable[[Array], Array],
    *,
    tolerance: float = 0.0,
    most: int = 1000,
) -> Float[Array, "k n"]:
    """Solve the same system for the rows of B by block conjugate gradients (O'Leary, 1980).

    Every solution is the best one in the space that the directions of all rows span, so that a few
    rows need fewer iterations than each alone; an iteration has k products. Ends when every
    residual is at most `tolerance` times its right-hand side, or after `most` iterations.
    Directions that depend on one another are left out. A row that is not finite has the answer NaN.
    """
    size = jnp.linalg.norm(B, axis=1, keepdims=True)
    unit = jnp.where(size == 0, 1.0, size)
    precondition = jax.vmap(precondition)

    def going(state):
        j, _, R, _ = state
        return (j < most) & jnp.any(jnp.sum(R**2, 1) > tolerance**2)

    def advance(state):
        j, X, R, P = state
        length = jnp.linalg.norm(P, axis=1, keepdims=True)
        P = P / jnp.where(length > 0, length, 1.0)
        AP = jax.lax.map(multiply, P)
        PAP = P @ AP.T
        inverse = jnp.linalg.pinv((PAP + PAP.T) / 2, rtol=DEPENDENT, hermitian=True)
        step = R @ P.T @ inverse
        X, R = X + step @ P, R - step @ AP
        Z = precondition(R)
        return j + 1, X, R, Z - Z @ AP.T @ inverse @ P

    start = (0, jnp.zeros_like(B), B / unit, precondition(B / unit))
    return unit * jax.lax.while_loop(going, advance, start)[1]
