"""Matrices with few entries a row.

A tile-coded policy has tens of thousands of parameters of which a handful act at a state; its
scores have as many entries. Products with such rows gather, products with their transpose scatter,
and neither ever makes an (N, n) array.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from bayespg._support.types import Array


class Rows(eqx.Module):
    """An (N, n) matrix whose row i has `values[i]` at columns `indices[i]`; repeated columns add
    up."""

    indices: Int[Array, "*N k"]
    values: Float[Array, "*N k"]
    size: int = eqx.field(static=True)
    """n."""


Matrix = Rows | Float[Array, "N n"]


def times(U: Matrix, w: Float[Array, " n"]) -> Float[Array, " N"]:
    """U w."""
    if isinstance(U, Rows):
        return jnp.sum(U.values * w[U.indices], -1)
    return U @ w


def transposed_times(U: Matrix, a: Float[Array, " N"]) -> Float[Array, " n"]:
    """U' a."""
    if isinstance(U, Rows):
        return jnp.zeros(U.size, a.dtype).at[U.indices].add(U.values * a[..., None])
    return U.T @ a


def scaled(U: Matrix, a: Float[Array, " N"]) -> Matrix:
    """diag(a) U."""
    if isinstance(U, Rows):
        return Rows(U.indices, U.values * a[..., None], U.size)
    return U * a[:, None]


def take(U: Matrix, rows: Int[Array, " m"]) -> Rows | Float[Array, "m n"]:
    """Some of its rows."""
    if isinstance(U, Rows):
        return Rows(U.indices[rows], U.values[rows], U.size)
    return U[rows]


def squared_columns(U: Matrix) -> Float[Array, " n"]:
    """The sums of squares of the columns, where no row repeats a column."""
    if isinstance(U, Rows):
        return jnp.zeros(U.size, U.values.dtype).at[U.indices].add(U.values**2)
    return jnp.sum(U**2, 0)


def gram(U: Rows, V: Rows) -> Float[Array, "M N"]:
    """U V', one row of U written out at a time."""

    def row(u):
        i, v = u
        return times(V, jnp.zeros(U.size, v.dtype).at[i].add(v))

    return jax.lax.map(row, (U.indices, U.values), batch_size=32)


def dense(U: Matrix) -> Float[Array, "N n"]:
    """Written out, for small n."""
    if isinstance(U, Rows):
        one = jax.vmap(lambda i, v: jnp.zeros(U.size, v.dtype).at[i].add(v))
        return one(U.indices, U.values)
    return U
