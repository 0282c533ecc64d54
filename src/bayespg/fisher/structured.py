"""Fisher matrices whose structure makes large ones affordable, and conversion to a `Fisher`."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.precision import float64_when_eager, run, traced
from bayespg._support.types import Array
from bayespg.algebra import sparse
from bayespg.algebra.conjugate_gradients import conjugate_gradients
from bayespg.algebra.sparse import Rows
from bayespg.fisher.matrices import Damped, Dense, Fisher, rows_solved

NEEDED = (
    "fisher: None, but this estimate needs the Fisher matrix; give an (n, n) array or one of "
    "bayespg.fisher, for instance fisher.monte_carlo(scores)"
)
TOLERANCE = 1e-10
"""The tolerance of the conjugate gradients of a sparse matrix."""
WORST = 1e13
"""The largest ratio of V'V to the damping, which is the condition number of the low-rank form."""


class LowRank(Fisher):
    """G = V'V + diag(damping): thousands of parameters, few samples, no n x n array.

    G^-1 by Woodbury, at the cost of one (r, r) factorisation, which is float64 on plain arrays
    whatever JAX's setting: its condition number is that of G.
    """

    V: Float[Array, "r n"]
    damping: Float[Array, " n"]
    L: Float[Array, "r r"]

    def __init__(self, V: Float[Array, "r n"], damping: float | Float[Array, "..."]):
        if not traced(V, damping):
            V = checks.array("V", V)
            if V.ndim != 2 or 0 in V.shape:
                raise ValueError(f"V: expected shape (r, n), neither of them 0, found {V.shape}")
            damping = checks.positive("damping", damping, (V.shape[1:],))
            with np.errstate(over="ignore"):
                ratio = np.max(np.sum(V / damping * V, 1), initial=0.0)
            if not ratio < WORST:
                raise ValueError(
                    f"damping: {np.min(damping):.3g} is {ratio:.1e} times smaller than V'V, which "
                    "float64 cannot tell apart; give a larger damping"
                )
        self.V, self.damping, self.L = run(_woodbury, V, damping)

    @property
    def size(self) -> int:
        return self.V.shape[-1]

    @float64_when_eager
    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return (V @ self.V.T) @ self.V + V * self.damping

    @float64_when_eager
    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        first = V / self.damping
        inner = rows_solved(self.L, first @ self.V.T)
        return first - (inner @ self.V) / self.damping

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        key_low, key_diagonal = jax.random.split(key)
        low = jax.random.normal(key_low, (*shape, self.V.shape[0]), self.V.dtype)
        diagonal = jax.random.normal(key_diagonal, (*shape, self.size), self.V.dtype)
        return low @ self.V + jnp.sqrt(self.damping) * diagonal

    @float64_when_eager
    def diagonal(self) -> Float[Array, " n"]:
        return jnp.sum(self.V**2, 0) + self.damping


def _woodbury(V: Float[Array, "r n"], damping: float | Float[Array, "..."]):
    V = jnp.asarray(V)
    damping = jnp.broadcast_to(jnp.asarray(damping, V.dtype), V.shape[-1:])
    L = jnp.linalg.cholesky(jnp.eye(V.shape[0], dtype=V.dtype) + (V / damping) @ V.T)
    return V, damping, L


class Spectral(Fisher):
    """sum_j l_j q_j q_j' + rest (I - sum_j q_j q_j'), q_j orthonormal: the average of a few outer
    products, or with a `rest` the same with damping, without an n x n array.

    Where an eigenvalue is zero it acts through its generalised inverse.
    """

    directions: Float[Array, "r n"]
    """q_j."""
    eigenvalues: Float[Array, " r"]
    """l_j."""
    rest: Float[Array, ""]
    """The eigenvalue of every direction orthogonal to all q_j."""
    factors: Float[Array, "M r n"] | None = None
    """As of `Dense`."""

    @property
    def size(self) -> int:
        return self.directions.shape[-1]

    def mapped(self, function: Callable[[Array], Array]) -> "Spectral":
        """The matrix whose eigenvalues are a function of these."""
        return Spectral(self.directions, function(self.eigenvalues), function(self.rest))

    def over(self, D: "Spectral") -> "Spectral":
        """D^-1 G for a matrix D with the same eigenvectors."""
        inverse = D.mapped(_inverse)
        return Spectral(
            self.directions, self.eigenvalues * inverse.eigenvalues, self.rest * inverse.rest
        )

    @float64_when_eager
    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        along = (self.eigenvalues - self.rest) * (V @ self.directions.T)
        return self.rest * V + along @ self.directions

    @float64_when_eager
    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.mapped(_inverse).multiply(V)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        z = jax.random.normal(key, (*shape, self.size), self.directions.dtype)
        return self.mapped(jnp.sqrt).multiply(z)

    @float64_when_eager
    def diagonal(self) -> Float[Array, " n"]:
        return self.rest + (self.eigenvalues - self.rest) @ self.directions**2

    @float64_when_eager
    def damped(self, damping: Float[Array, ""]) -> "Spectral":
        return self.mapped(lambda l: l + damping)

    @float64_when_eager
    def effective(self, G: Fisher) -> Float[Array, ""]:
        Q, inverse = self.directions, self.mapped(_inverse)
        along = jnp.sum(Q * G.multiply(Q), -1)
        outside = jnp.maximum(G.trace() - jnp.sum(along), 0.0)
        return along @ inverse.eigenvalues + outside * inverse.rest


def _inverse(eigenvalues: Float[Array, "*r"]) -> Float[Array, "*r"]:
    known = eigenvalues > 0
    return jnp.where(known, 1 / jnp.where(known, eigenvalues, 1.0), 0.0)


def outer_products(scores: Float[Array, "M n"]) -> Spectral:
    """(1/M) sum_i u_i u_i' of fewer paths than parameters."""
    M, n = scores.shape
    largest = jnp.max(jnp.abs(scores))
    unit = jnp.where(largest > 0, largest, 1.0)
    _, values, Q = jnp.linalg.svd(scores / unit, full_matrices=False)
    known = values > n * jnp.finfo(values.dtype).eps * values[0]
    eigenvalues = jnp.where(known, (unit * values / jnp.sqrt(M)) ** 2, 0.0)
    return Spectral(Q, eigenvalues, jnp.zeros((), Q.dtype), scores[:, None, :])


class Sparse(Fisher):
    """G = R'R + damping I with sparse rows R: 40,500 parameters of which nine act at a step.

    Products gather and scatter; `solve` is conjugate gradients with the diagonal as
    preconditioner.
    """

    rows: Rows
    damping: float | Float[Array, ""]

    @property
    def size(self) -> int:
        return self.rows.size

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        def one(v: Float[Array, " n"]) -> Float[Array, " n"]:
            return sparse.transposed_times(self.rows, sparse.times(self.rows, v))

        return jnp.vectorize(one, signature="(n)->(n)")(V) + self.damping * V

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        diagonal = self.diagonal()

        def one(v: Float[Array, " n"]) -> Float[Array, " n"]:
            return conjugate_gradients(
                self.multiply, v, lambda r: r / diagonal, tolerance=TOLERANCE
            )

        return jnp.vectorize(one, signature="(n)->(n)")(V)

    def kernel(self, U: Rows, V: Rows) -> Float[Array, "M N"]:
        """U G^-1 V' = [U V' - U R' (damping I + R R')^-1 R V'] / damping."""
        R = self.rows
        inner = sparse.gram(R, R) + self.damping * jnp.eye(R.values.shape[0])
        correction = jnp.linalg.solve(inner, sparse.gram(R, V))
        return (sparse.gram(U, V) - sparse.gram(U, R) @ correction) / self.damping

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        key_rows, key_diagonal = jax.random.split(key)
        z = jax.random.normal(key_rows, (*shape, self.rows.values.shape[0]), self.rows.values.dtype)
        low = jnp.vectorize(lambda a: sparse.transposed_times(self.rows, a), signature="(r)->(n)")
        diagonal = jax.random.normal(key_diagonal, (*shape, self.size), z.dtype)
        return low(z) + jnp.sqrt(self.damping) * diagonal

    def diagonal(self) -> Float[Array, " n"]:
        return sparse.squared_columns(self.rows) + self.damping

    def damped(self, damping: Float[Array, ""]) -> "Sparse":
        return Sparse(self.rows, self.damping + damping)

    def effective(self, G: Fisher) -> Float[Array, ""]:
        if isinstance(G, Sparse):  # tr(R D^-1 R'), without an n x n array
            return jnp.trace(self.kernel(G.rows, G.rows))
        return super().effective(G)


class Isotropic(Spectral):
    """I / scale^2: the exact Fisher matrix of parameters theta ~ N(mean, scale^2 I)."""

    scale: float | Float[Array, ""] = 1.0

    def __init__(self, parameters: int, scale: float | Float[Array, ""]):
        # A count such as 1.0 is a scale in the wrong place.
        if not isinstance(parameters, int | np.integer):
            raise ValueError(
                f"parameters: expected a whole number, found {checks.shown(parameters)}; the "
                "order is Isotropic(parameters, scale)"
            )
        n = checks.whole("parameters", parameters, 1)
        self.scale = scale if traced(scale) else np.asarray(checks.deviation("scale", scale))
        dtype, rest = jnp.result_type(self.scale, float), 1 / self.scale**2
        rest = rest if isinstance(rest, jax.Array) else np.asarray(rest)
        super().__init__(jnp.zeros((0, n), dtype), jnp.zeros(0, dtype), rest)

    @property
    def parameters(self) -> int:
        return self.size


class Inverse(Fisher):
    """G known through its inverse, as the recursive estimate gives it."""

    of: Dense

    @property
    def size(self) -> int:
        return self.of.size

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.of.solve(V)

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.of.multiply(V)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        """G z with z ~ N(0, G^-1)."""
        return self.of.solve(self.of.sample(key, shape))


class Implicit(Fisher):
    """A Lineax operator, for instance a Jacobian product plus damping, solved by conjugate
    gradients."""

    operator: Any
    solver: Any
    """A solver of Lineax, which is imported only here because most users never need it."""

    def __init__(self, operator: Any, solver: Any = None):
        import lineax as lx

        if not lx.is_positive_semidefinite(operator):
            operator = lx.TaggedLinearOperator(operator, lx.positive_semidefinite_tag)
        self.operator = operator
        self.solver = lx.CG(rtol=1e-10, atol=1e-12) if solver is None else solver

    @property
    def size(self) -> int:
        return self.operator.in_size()

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return jnp.vectorize(self.operator.mv, signature="(n)->(n)")(V)

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        import lineax as lx

        def one(v: Float[Array, " n"]) -> Float[Array, " n"]:
            return lx.linear_solve(self.operator, v, self.solver).value

        return jnp.vectorize(one, signature="(n)->(n)")(V)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        return Dense(self.matrix()).sample(key, shape)

    def matrix(self) -> Float[Array, "n n"]:
        return self.operator.as_matrix()


def rank(fisher: Fisher) -> Float[Array, ""]:
    """The number of directions in which G has information, less than n where G is singular."""
    if isinstance(fisher, Inverse):
        return rank(fisher.of)
    if isinstance(fisher, Damped):
        return rank(fisher.information)
    if isinstance(fisher, Spectral):
        r, n = fisher.directions.shape
        known = jnp.sum(fisher.eigenvalues > 0) + (n - r) * (fisher.rest > 0)
        return known.astype(fisher.eigenvalues.dtype)
    if isinstance(fisher, Dense):
        return jnp.sum(fisher.known).astype(fisher.G.dtype)
    return jnp.asarray(float(fisher.size))


def directions(fisher: Fisher) -> Float[Array, ""]:
    """The rank as a divisor, at least 1 for a policy without any information."""
    return jnp.maximum(rank(fisher), 1.0)


def overlap(fisher: Fisher) -> Float[Array, ""]:
    """tr(D^-1 G D^-1 G): the rank of G for D = G, and less with damping."""
    if not isinstance(fisher, Damped):
        return rank(fisher)
    D, G = fisher.solver, fisher.information
    if isinstance(D, Spectral) and isinstance(G, Spectral):
        return G.over(D).mapped(jnp.square).trace()
    S = D.solve(G.matrix())
    return jnp.sum(S * S.T)


def is_operator(fisher: Any) -> bool:
    """Whether the argument is a Lineax operator, which exists only if Lineax has been imported."""
    lineax = sys.modules.get("lineax")
    return lineax is not None and isinstance(fisher, lineax.AbstractLinearOperator)


def as_fisher(fisher: Any) -> Fisher:
    """An array becomes `Dense`, a Lineax operator `Implicit`, a Fisher object stays itself."""
    if fisher is None:
        raise ValueError(NEEDED)
    if isinstance(fisher, Fisher):
        return fisher
    if is_operator(fisher):
        return Implicit(fisher)
    return Dense(fisher)
