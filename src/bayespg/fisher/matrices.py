"""The protocol of a Fisher matrix, which multiplies, solves and samples, and its dense form.

Rows are vectors throughout: `multiply(V)` is V G, `solve(V)` is V G^-1.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.batching import in_any_run
from bayespg._support.precision import float64_when_eager, run
from bayespg._support.types import Array
from bayespg.algebra.conditioning import cholesky, diagonal


class Fisher(eqx.Module):
    """A symmetric positive definite operator on R^n. What follows from its products is defined
    here; a matrix that has a cheaper way replaces it."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """n."""

    @abc.abstractmethod
    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """V G."""

    @abc.abstractmethod
    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """V G^-1."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        """Draws from N(0, G)."""

    def solve_roughly(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """What `solve` gives, or for a network what its preconditioner gives, close to it and far
        cheaper."""
        return self.solve(V)

    def matrix(self) -> Float[Array, "n n"]:
        return self.multiply(jnp.eye(self.size))

    def diagonal(self) -> Float[Array, " n"]:
        return diagonal(self.matrix())

    @float64_when_eager
    def trace(self) -> Float[Array, ""]:
        """tr G; for a network it is estimated from a few of its states."""
        return jnp.sum(self.diagonal())

    def damped(self, damping: Float[Array, ""]) -> "Fisher":
        """G + damping I."""
        G = self.matrix()
        return Dense(G + damping * jnp.eye(self.size, dtype=G.dtype))

    def effective(self, G: "Fisher") -> Float[Array, ""]:
        """tr(D^-1 G), with D this matrix: how many directions of G its damping leaves."""
        return jnp.trace(self.solve(G.matrix()))


class Written(Fisher):
    """A matrix that is written out, as the array G."""

    G: Float[Array, "n n"]

    @property
    def size(self) -> int:
        return self.G.shape[-1]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return V @ self.G

    def matrix(self) -> Float[Array, "n n"]:
        return self.G

    def diagonal(self) -> Float[Array, " n"]:
        return diagonal(self.G)


class Dense(Written):
    """An (n, n) array, factorised once in correlation form.

    G = D C D with D the square roots of its diagonal, so units of the parameters do not spoil the
    conditioning, and C = T T'. A singular G acts through its generalised inverse: directions in
    which C has no more than rounding errors (`tolerance`) have no information, and nothing leads
    into them. T is the Cholesky factor where C is certainly regular, and made of eigenvectors where
    it may not be.

    On plain arrays the factorisation is float64 whatever JAX's setting.
    """

    root: Float[Array, "n n"]
    """D T, of which G is the square."""
    inverse: Float[Array, "n n"]
    """W with W W' the generalised inverse of G, and W'D T the projection onto the columns
    `known`."""
    known: Bool[Array, " n"]
    """Columns of T and W that belong to directions with information; the others are zero."""
    factors: Float[Array, "M r n"] | None
    """A_i with G = (1/M) sum_i A_i' A_i, where G is an average over the paths it will be used
    with."""

    def __init__(
        self,
        G: Float[Array, "n n"],
        factors: Float[Array, "M r n"] | None = None,
        *,
        tolerance: float | None = None,
    ):
        """`tolerance` bounds the rounding errors of C's eigenvalues; None means those of G's own
        precision."""
        if tolerance is None:
            tolerance = checks.rounding(G.shape[-1], G.dtype)
        parts = run(_factorise, G, tolerance)
        self.G, self.root, self.inverse, self.known = parts
        self.factors = factors

    @float64_when_eager
    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.whiten(V) @ self.inverse.T

    @float64_when_eager
    def whiten(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Rows s with s s' = v G^-1 v': the Fisher kernel as an inner product."""
        return V @ self.inverse

    @float64_when_eager
    def colour(self, S: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """The inverse of `whiten`."""
        return S @ self.root.T

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        return self.colour(jax.random.normal(key, (*shape, self.size), self.G.dtype))

    @float64_when_eager
    def log_determinant(self) -> Float[Array, ""]:
        return 2 * jnp.linalg.slogdet(self.root)[1]


def _factorise(G: Float[Array, "n n"], tolerance: float | Float[Array, ""]):
    """G, D T, W and which of their columns carry information."""
    n = G.shape[-1]
    G = jnp.asarray(G, jnp.result_type(G, float))
    # Less than this is no information: its inverse, and products with that, would overflow.
    least = jnp.sqrt(jnp.finfo(G.dtype).tiny)
    variances = diagonal(G)[:, None]
    D = jnp.sqrt(jnp.where(variances > least, variances, 0.0))
    units = jnp.where(D > 0, D, 1.0)
    C = G / units / units.T
    L = cholesky(C)
    inverse = solve_triangular(L, jnp.eye(n, dtype=C.dtype), lower=True).T
    # |L^-1|^2 = tr C^-1 is at least one over the smallest eigenvalue.
    regular = 1 / jnp.sum(inverse**2) > tolerance

    def plain():
        return L, inverse, jnp.ones(n, bool)

    def spectral():
        eigenvalues, Q = jnp.linalg.eigh(C, symmetrize_input=False)
        Q = jnp.where(D > 0, Q, 0.0)
        # Negative eigenvalues are rounding too.
        known = eigenvalues > jnp.maximum(tolerance, -2 * eigenvalues[0])
        scale = jnp.sqrt(jnp.where(known, eigenvalues, 0.0))
        roots = Q * scale, Q * jnp.where(known, 1 / jnp.where(known, scale, 1.0), 0.0), known
        return jax.tree.map(lambda a, b: jnp.where(regular, a, b), plain(), roots)

    T, W, known = jax.lax.cond(in_any_run(~regular), spectral, plain)
    return G, D * T, W / units, known


def rows_solved(L: Float[Array, "n n"], V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
    """V (L L')^-1."""
    return cho_solve((L, True), V.reshape(-1, V.shape[-1]).T).T.reshape(V.shape)


class Factorised(Written):
    """A large array that is known to be regular, with its Cholesky factor: one factorisation, and
    two triangular systems a solve. The inverse that `Dense` holds takes three more."""

    root: Float[Array, "n n"]
    """The lower triangle of which G is the square."""

    @float64_when_eager
    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return rows_solved(self.root, V)

    @float64_when_eager
    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        return jax.random.normal(key, (*shape, self.size), self.G.dtype) @ self.root.T


class Damped(Fisher):
    """D = G + damping I, where G is singular or nearly so.

    The damping belongs to the prior of the weights, w ~ N(0, c D^-1); the gradient is G w and not
    the longer D w. This is therefore the matrix D in every respect, and `information` is the matrix
    G that estimators read gradients out with.
    """

    information: Fisher
    """G."""
    solver: Fisher
    """D."""

    def __init__(self, information: Fisher, damping: float | Float[Array, ""]):
        self.information = information
        self.solver = information.damped(jnp.asarray(damping))

    @property
    def size(self) -> int:
        return self.solver.size

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.solver.multiply(V)

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.solver.solve(V)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        return self.solver.sample(key, shape)

    def matrix(self) -> Float[Array, "n n"]:
        return self.solver.matrix()

    def diagonal(self) -> Float[Array, " n"]:
        return self.solver.diagonal()

    def trace(self) -> Float[Array, ""]:
        return self.solver.trace()

    def damped(self, damping: Float[Array, ""]) -> Fisher:
        return self.solver.damped(damping)

    def effective(self, G: Fisher) -> Float[Array, ""]:
        return self.solver.effective(G)

    def solve_roughly(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.solver.solve_roughly(V)


def readout(fisher: Fisher) -> Fisher:
    """G, with which a gradient G w is read out of weights w: the matrix itself, or what it was
    before damping."""
    return fisher.information if isinstance(fisher, Damped) else fisher


def carried(fisher: Fisher, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
    """V D^-1 G, the covariance of V w and the gradient G w for w ~ N(0, D^-1); V where D = G."""
    return readout(fisher).multiply(fisher.solve(V)) if isinstance(fisher, Damped) else V


def reached(fisher: Fisher, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
    """V without what no score reaches: G^+ G V where damping makes a singular G regular."""
    return readout(fisher).solve(readout(fisher).multiply(V)) if isinstance(fisher, Damped) else V


def as_dense(fisher: Fisher) -> Dense:
    """The matrix as an array, factorised; whitening and determinants need that."""
    if isinstance(fisher, Damped):
        return as_dense(fisher.solver)
    return fisher if isinstance(fisher, Dense) else Dense(fisher.matrix())
