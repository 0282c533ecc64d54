"""The online dictionary (Sections 4.4 and 7.3).

A sample joins the dictionary if its feature image is farther than tau from the span of those
already there:  delta_i = k(xi_i, xi_i) - k~' K~^-1 k~ > tau.

With K~ = L L' the row A_i L of Proposition 5 is L^-1 k~(xi_i), to which a new member appends
sqrt(delta_i). So sparsification is a Cholesky factorisation of K in order of arrival that drops
pivots below tau, and the rows are features: K is approximated by Psi Psi', Psi = A L. The buffers
have fixed capacity, so everything jits and vmaps.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Bool, Float, Int

from bayespg._support import checks
from bayespg._support.types import Array


@dataclasses.dataclass(frozen=True)
class Sparsify:
    """How to sparsify: the threshold tau, and the largest number of members of a dictionary (None
    for no limit)."""

    threshold: float
    capacity: int | None = None

    def __post_init__(self):
        checks.nonnegative("sparsify: threshold", self.threshold, ())
        if self.capacity is not None:
            capacity = checks.whole("sparsify: capacity", self.capacity, 1)
            object.__setattr__(self, "capacity", capacity)


def checked(sparsify: Any) -> None:
    """Check that the argument is a `Sparsify` or None."""
    if sparsify is not None and not isinstance(sparsify, Sparsify):
        raise ValueError(
            "sparsify: expected None or Sparsify(threshold, capacity), found "
            f"{checks.shown(sparsify)}"
        )


class Dictionary(NamedTuple):
    """A dictionary of m slots, of which the first `size` are used."""

    features: Float[Array, "M m"]
    """Psi = A L; zero in unused columns."""
    members: Int[Array, " m"]
    """The indices of the members; 0 in unused slots."""
    used: Bool[Array, " m"]
    factor: Float[Array, "m m"]
    """L, with ones on the diagonal of unused slots."""
    refused: Int[Array, ""]
    """The number of samples beyond the threshold that found the dictionary full and were projected
    onto it."""
    residual: Float[Array, ""]
    """The largest delta_i that was dropped."""

    @property
    def size(self) -> Int[Array, ""]:
        return jnp.sum(self.used)

    def functional(self, B: Float[Array, "k M"]) -> Float[Array, "k m"]:
        """V = B~ L^-T: a functional with cross-covariance B in terms of the features' weights."""
        return self.functional_of(B[:, self.members])

    def functional_of(self, members: Float[Array, "k m"]) -> Float[Array, "k m"]:
        """The same from B~, its cross-covariance with the members alone."""
        members = jnp.where(self.used, members, 0.0)
        return solve_triangular(self.factor, members.T, lower=True).T

    def info(self) -> dict[str, Array]:
        return {
            "dictionary_size": self.size,
            "dictionary_refused": self.refused,
            "dictionary_residual": self.residual,
        }


class Basis(NamedTuple):
    """The span of the members so far; their indices are kept separately."""

    factor: Float[Array, "m m"]
    """L, with ones on the diagonal of unused slots."""
    size: Int[Array, ""]
    refused: Int[Array, ""]
    residual: Float[Array, ""]

    def visit(
        self,
        k: Float[Array, " m"],
        variance: Float[Array, ""],
        threshold: float | Float[Array, ""],
        counts: bool | Bool[Array, ""] = True,
    ) -> tuple["Basis", Float[Array, " m"], Bool[Array, " m"]]:
        """A sample arrives: the basis after it, its features, and the slot it takes, if any.

        `k` is its kernel with the slots, `variance` that with itself. One that does not count is
        seen through the basis as it is.
        """
        L, size, refused, residual = self
        slots = jnp.arange(k.size)
        psi = solve_triangular(L, jnp.where(slots < size, k, 0.0), lower=True)
        delta = variance - psi @ psi
        novel = (delta > threshold) & counts
        joins = novel & (size < k.size)
        slot = joins & (slots == size)
        psi = jnp.where(slot, jnp.sqrt(jnp.maximum(delta, 0.0)), psi)
        after = Basis(
            factor=jnp.where(slot[:, None], psi, L),
            size=size + joins,
            refused=refused + (novel & ~joins),
            residual=jnp.where(counts & ~joins, jnp.maximum(residual, delta), residual),
        )
        return after, psi, slot


def empty(m: int, dtype: Any = float) -> Basis:
    """A basis of m unused slots."""
    none = jnp.zeros((), int)
    return Basis(jnp.eye(m, dtype=dtype), none, none, jnp.zeros((), dtype))


def build(
    row: Callable[[Int[Array, ""], Int[Array, " m"]], Float[Array, " m"]],
    diagonal: Float[Array, " M"],
    threshold: float,
    capacity: int,
) -> Dictionary:
    """Pass over the samples once, O(m^2) each.

    `row(i, members)` is the kernel between sample i and the members; `diagonal` holds k(xi_i,
    xi_i).
    """
    M, m = diagonal.shape[0], capacity

    def visit(carry, i):
        basis, members = carry
        basis, psi, slot = basis.visit(row(i, members), diagonal[i], threshold)
        return (basis, jnp.where(slot, i, members)), psi

    start = (empty(m, diagonal.dtype), jnp.zeros(m, int))
    ((L, size, refused, residual), members), Psi = jax.lax.scan(visit, start, jnp.arange(M))
    return Dictionary(Psi, members, jnp.arange(m) < size, L, refused, residual)


class LowRank(NamedTuple):
    """K = Psi Psi' up to `residual` on its diagonal."""

    features: Float[Array, "N m"]
    rank: Int[Array, ""]
    residual: Float[Array, ""]


def pivoted(
    row: Callable[[Int[Array, ""]], Float[Array, " N"]],
    diagonal: Float[Array, " N"],
    capacity: int,
    tolerance: float,
) -> LowRank:
    """Cholesky that always takes the worst represented point next, until none misses more than
    `tolerance` times the largest variance; N m^2 in m steps.

    Where all samples are at hand this needs fewer members than the order of arrival.
    """

    least = tolerance * jnp.max(diagonal)

    def visit(carry, j):
        Psi, left, rank = carry
        i = jnp.argmax(left)
        joins = left[i] > least
        pivot = jnp.sqrt(jnp.where(joins, left[i], 1.0))
        column = jnp.where(joins, (row(i) - Psi @ Psi[i]) / pivot, 0.0)
        left = jnp.maximum(left - column**2, 0.0).at[i].multiply(jnp.where(joins, 0.0, 1.0))
        return (Psi.at[:, j].set(column), left, rank + joins), None

    start = (jnp.zeros((diagonal.size, capacity), diagonal.dtype), diagonal, jnp.zeros((), int))
    (Psi, left, rank), _ = jax.lax.scan(visit, start, jnp.arange(capacity))
    return LowRank(Psi, rank, jnp.max(left))


def evenly_spaced(kept: Bool[Array, " N"], count: int) -> Int[Array, " count"]:
    """`count` of the kept rows, evenly spaced."""
    order = jnp.argsort(~kept, stable=True)
    return order[(jnp.arange(count) * jnp.sum(kept)) // count]
