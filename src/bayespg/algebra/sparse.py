"""Matrices that are never written out: those with few entries per row, and those known through
products alone.

A tile-coded policy has tens of thousands of parameters of which a handful act at a state; its
scores have as many entries. Products with such rows gather, products with their transpose scatter,
and neither ever makes an (N, n) array.
"""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from bayespg._support.types import Array


class Linear(eqx.Module):
    """An (N, n) matrix that is known through its products."""

    @abc.abstractmethod
    def products(self) -> "Products":
        """Both products as functions, prepared for repeated use."""

    @abc.abstractmethod
    def weighted(self, a: Float[Array, " N"]) -> "Linear":
        """diag(a) U."""

    @abc.abstractmethod
    def dense(self) -> Float[Array, "N n"]:
        """The matrix as an array, for small n."""


class Products(NamedTuple):
    """The functions that map w to U w and a to U' a."""

    times: Callable[[Float[Array, " n"]], Float[Array, " N"]]
    transposed_times: Callable[[Float[Array, " N"]], Float[Array, " n"]]


class Rows(Linear):
    """An (N, n) matrix whose row i has `values[i]` at columns `indices[i]`; repeated columns add
    up."""

    indices: Int[Array, "*N k"]
    values: Float[Array, "*N k"]
    size: int = eqx.field(static=True)
    """n."""

    def products(self) -> Products:
        def times(w: Float[Array, " n"]) -> Float[Array, " N"]:
            return jnp.sum(self.values * w[self.indices], -1)

        def transposed_times(a: Float[Array, " N"]) -> Float[Array, " n"]:
            return jnp.zeros(self.size, a.dtype).at[self.indices].add(self.values * a[..., None])

        return Products(times, transposed_times)

    def weighted(self, a: Float[Array, " N"]) -> "Rows":
        return Rows(self.indices, self.values * a[..., None], self.size)

    def dense(self) -> Float[Array, "N n"]:
        one = jax.vmap(lambda i, v: jnp.zeros(self.size, v.dtype).at[i].add(v))
        return one(self.indices, self.values)


Matrix = Linear | Float[Array, "N n"]


def products(U: Matrix) -> Products:
    """Products with any kind of matrix."""
    if isinstance(U, Linear):
        return U.products()
    return Products(lambda w: U @ w, lambda a: U.T @ a)


def times(U: Matrix, w: Float[Array, " n"]) -> Float[Array, " N"]:
    """U w."""
    return products(U).times(w)


def transposed_times(U: Matrix, a: Float[Array, " N"]) -> Float[Array, " n"]:
    """U' a."""
    return products(U).transposed_times(a)


def scaled(U: Matrix, a: Float[Array, " N"]) -> Matrix:
    """diag(a) U."""
    return U.weighted(a) if isinstance(U, Linear) else U * a[:, None]


def take(U: Matrix, rows: Int[Array, " m"]) -> Rows | Float[Array, "m n"]:
    """A matrix of some of its rows."""
    if isinstance(U, Rows):
        return Rows(U.indices[rows], U.values[rows], U.size)
    return dense(U)[rows]


def squared_columns(U: Matrix) -> Float[Array, " n"]:
    """The sums of squares of the columns, where no row repeats a column."""
    if isinstance(U, Rows):
        return jnp.zeros(U.size, U.values.dtype).at[U.indices].add(U.values**2)
    return jnp.sum(dense(U) ** 2, 0)


def gram(U: Rows, V: Rows) -> Float[Array, "M N"]:
    """U V', one row of U written out at a time."""

    def row(u):
        i, v = u
        return times(V, jnp.zeros(U.size, v.dtype).at[i].add(v))

    return jax.lax.map(row, (U.indices, U.values), batch_size=32)


def dense(U: Matrix) -> Float[Array, "N n"]:
    """The matrix as an array, for small n."""
    return U.dense() if isinstance(U, Linear) else U
