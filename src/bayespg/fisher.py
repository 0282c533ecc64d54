"""The Fisher information matrix G: something one multiplies by and solves with.

    G = E[u(xi) u(xi)']                                                         (Eq. 23)

Rows are vectors throughout: `multiply(V)` is V G, `solve(V)` is V G^-1. The functions at the end
are the ways to obtain G. With G from outer products of the sampled scores, Model 2 is Monte Carlo
in other words and most of its gain is lost; `actions_integrated_out` needs no more samples and no
model, and keeps it.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Float, PRNGKeyArray

from bayespg import checks
from bayespg.environments import Environment, Solved, lqr
from bayespg.policies import Policy, information_root
from bayespg.precision import float64_when_eager, to_float64
from bayespg.trajectories import Trajectories
from bayespg.types import Array


class Fisher(eqx.Module):
    """A symmetric positive definite operator on R^n."""

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

    @abc.abstractmethod
    def matrix(self) -> Float[Array, "n n"]: ...

    @abc.abstractmethod
    def diagonal(self) -> Float[Array, " n"]: ...


class Dense(Fisher):
    """An (n, n) array, factorised once in correlation form.

    G = D (L L') D with D the square roots of its diagonal, so units of the parameters do not spoil
    the conditioning. `jitter` times the identity is added to the correlation matrix, a few rounding
    errors, which lets a singular G act through a generalised inverse on scores in its range. A
    parameter without information (zero on the diagonal) has zero scores and stays at zero.
    """

    G: Float[Array, "n n"]
    D: Float[Array, " n"]
    L: Float[Array, "n n"]
    jitter: Float[Array, ""]
    factors: Float[Array, "M r n"] | None
    """A_i with G = (1/M) sum_i A_i' A_i, where G is an average over the paths it will be used
    with."""

    def __init__(self, G: Float[Array, "n n"], factors: Float[Array, "M r n"] | None = None):
        self.factors = factors
        n = G.shape[-1]
        self.G = jnp.asarray(G)
        self.D = jnp.sqrt(jnp.maximum(jnp.diagonal(G), 0.0))
        units = self._units
        correlation = G / (units[:, None] * units[None]) + jnp.diag(jnp.where(self.D > 0, 0.0, 1.0))
        self.jitter = jnp.asarray(10 * n * jnp.finfo(correlation.dtype).eps, correlation.dtype)
        self.L = jnp.linalg.cholesky(correlation + self.jitter * jnp.eye(n))

    @property
    def size(self) -> int:
        return self.G.shape[-1]

    @property
    def _units(self) -> Float[Array, " n"]:
        return jnp.where(self.D > 0, self.D, 1.0)

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return V @ self.G

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return (
            _rows(lambda columns: cho_solve((self.L, True), columns), V / self._units) / self._units
        )

    def whiten(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Rows s with s s' = v G^-1 v': the Fisher kernel as an inner product."""
        return _rows(lambda columns: solve_triangular(self.L, columns, lower=True), V / self._units)

    def colour(self, S: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """The inverse of `whiten`."""
        return (S @ self.L.T) * self.D

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        return self.colour(jax.random.normal(key, (*shape, self.size), self.G.dtype))

    def matrix(self) -> Float[Array, "n n"]:
        return self.G

    def diagonal(self) -> Float[Array, " n"]:
        return jnp.diagonal(self.G)

    def log_determinant(self) -> Float[Array, ""]:
        return 2 * jnp.sum(jnp.log(jnp.diagonal(self.L)) + jnp.log(self.D))


class LowRank(Fisher):
    """G = V'V + diag(damping): thousands of parameters, few samples, no n x n array.

    G^-1 by Woodbury, at the cost of one (r, r) factorisation.
    """

    V: Float[Array, "r n"]
    damping: Float[Array, " n"]
    L: Float[Array, "r r"]

    def __init__(self, V: Float[Array, "r n"], damping: float | Float[Array, "..."]):
        self.V = jnp.asarray(V)
        self.damping = jnp.broadcast_to(jnp.asarray(damping, self.V.dtype), self.V.shape[-1:])
        self.L = jnp.linalg.cholesky(jnp.eye(self.V.shape[0]) + (self.V / self.damping) @ self.V.T)

    @property
    def size(self) -> int:
        return self.V.shape[-1]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return (V @ self.V.T) @ self.V + V * self.damping

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        first = V / self.damping
        inner = _rows(lambda columns: cho_solve((self.L, True), columns), first @ self.V.T)
        return first - (inner @ self.V) / self.damping

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        key_low, key_diagonal = jax.random.split(key)
        low = jax.random.normal(key_low, (*shape, self.V.shape[0]), self.V.dtype)
        diagonal = jax.random.normal(key_diagonal, (*shape, self.size), self.V.dtype)
        return low @ self.V + jnp.sqrt(self.damping) * diagonal

    def matrix(self) -> Float[Array, "n n"]:
        return self.V.T @ self.V + jnp.diag(self.damping)

    def diagonal(self) -> Float[Array, " n"]:
        return jnp.sum(self.V**2, 0) + self.damping


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

    def matrix(self) -> Float[Array, "n n"]:
        return self.multiply(jnp.eye(self.size))

    def diagonal(self) -> Float[Array, " n"]:
        return jnp.diagonal(self.matrix())


class Implicit(Fisher):
    """A Lineax operator, for instance a Jacobian product plus damping, solved by conjugate
    gradients."""

    operator: lx.AbstractLinearOperator
    solver: lx.AbstractLinearSolver

    def __init__(
        self,
        operator: lx.AbstractLinearOperator,
        solver: lx.AbstractLinearSolver | None = None,
    ):
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
        def one(v: Float[Array, " n"]) -> Float[Array, " n"]:
            return lx.linear_solve(self.operator, v, self.solver).value

        return jnp.vectorize(one, signature="(n)->(n)")(V)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        return Dense(self.matrix()).sample(key, shape)

    def matrix(self) -> Float[Array, "n n"]:
        return self.operator.as_matrix()

    def diagonal(self) -> Float[Array, " n"]:
        return jnp.diagonal(self.matrix())


def _rows(function: Any, V: Float[Array, "*k n"]) -> Float[Array, "*k m"]:
    """Apply a function of columns to the rows of V."""
    flat = V.reshape(-1, V.shape[-1])
    return function(flat.T).T.reshape(V.shape)


def as_fisher(fisher: Any) -> Fisher:
    """An array becomes `Dense`, a Lineax operator `Implicit`, a Fisher object stays itself."""
    if isinstance(fisher, Fisher):
        return fisher
    if isinstance(fisher, lx.AbstractLinearOperator):
        return Implicit(fisher)
    return Dense(fisher)


def checked(fisher: Any, scores: Float[np.ndarray, "M n"]) -> Any:
    """The caller's `fisher`, or a ValueError that says what is wrong with it."""
    n = scores.shape[1]
    if isinstance(fisher, (Fisher, lx.AbstractLinearOperator)):
        size = as_fisher(fisher).size
        if size != n:
            raise ValueError(f"fisher: acts on R^{size} but scores have {n} columns")
        for leaf in jax.tree.leaves(fisher):
            if eqx.is_inexact_array(leaf):
                checks.array("fisher", leaf)
        return fisher
    G = checks.psd("fisher", fisher, n)
    if not _in_range(G, scores):
        raise ValueError(
            "fisher: singular, and the scores have components it gives no information on; estimate "
            "it from these samples or add a small multiple of the identity"
        )
    return G


def checked_problem(scores: Any, returns: Any, fisher: Any) -> tuple[Any, Any, Any]:
    """Scores, returns and Fisher matrix as a caller gave them, in float64 and sound."""
    U = checks.scores(scores)
    R = checks.vector("returns", returns, U.shape[0], "one return a row of scores")
    return U, R, None if fisher is None else to_float64(checked(fisher, U))


def _in_range(G: Float[np.ndarray, "n n"], scores: Float[np.ndarray, "M n"]) -> bool:
    """Whether all scores lie in the range of G; outside it their kernel values would be
    infinite."""
    D = np.sqrt(np.diag(G))
    units = np.where(D > 0, D, 1.0)
    correlation, standardised = G / np.outer(units, units), scores / units
    try:
        np.linalg.cholesky(correlation - 1e-10 * np.eye(D.size))
    except np.linalg.LinAlgError:
        eigenvalues, Q = np.linalg.eigh(correlation)
        outside = standardised @ Q[:, eigenvalues < 1e-10]
        return bool(
            np.abs(outside).max(initial=0.0) <= 1e-5 * np.abs(standardised).max(initial=0.0)
        )
    return True


# Ways to obtain G.


def exact(environment: Solved, policy: Policy) -> Dense:
    """G in closed form, where the environment knows it."""
    return Dense(environment.fisher(policy))


def actions_integrated_out(policy: Policy, paths: Trajectories) -> Dense:
    """mean over paths of sum_t E_{a|x_t}[u u'].

    Scores of different steps are uncorrelated, so this has the expectation of the path's Fisher
    matrix, Eq. 23, without the noise of the actions. The default wherever G is not known.
    """
    roots = jax.vmap(jax.vmap(lambda x: information_root(policy, x)))(paths.states)
    roots = jnp.where(paths.mask[..., None, None], roots, 0.0)
    _, M, _, n = roots.shape
    return _average(jnp.moveaxis(roots, 1, 0).reshape(M, -1, n))


@float64_when_eager
def monte_carlo(scores: Float[Array, "M n"], damping: float = 0.0) -> Fisher:
    """(1/M) sum_i u_i u_i' (Section 4.3); with damping and n > M no n x n array is formed."""
    M, n = scores.shape
    if damping > 0 and n > M:
        return LowRank(scores / jnp.sqrt(M), damping)
    if damping > 0:
        return Dense(scores.T @ scores / M + damping * jnp.eye(n))
    return _average(scores[:, None, :])


def _average(factors: Float[Array, "M r n"]) -> Dense:
    M, _, n = factors.shape
    flat = factors.reshape(-1, n)
    return Dense(flat.T @ flat / M, factors)


@float64_when_eager
def recursive(
    scores: Float[Array, "M n"],
    step_sizes: Float[Array, " M"],
    initial: Float[Array, "n n"],
) -> Dense:
    """G_{i+1} = (1 - zeta_i) G_i + zeta_i u_i u_i' (Section 4.3).

    zeta_i = 1/i with i from 1 forgets `initial` and ends at `monte_carlo`.
    """

    def advance(G, sample):
        u, zeta = sample
        return (1 - zeta) * G + zeta * jnp.outer(u, u), None

    return Dense(jax.lax.scan(advance, jnp.asarray(initial), (scores, step_sizes))[0])


@float64_when_eager
def recursive_inverse(
    scores: Float[Array, "M n"],
    step_sizes: Float[Array, " M"],
    initial: Float[Array, "n n"],
) -> Inverse:
    """The inverse of `recursive` by Sherman-Morrison; `initial` is the first inverse, step sizes
    below 1."""

    def advance(inverse, sample):
        u, zeta = sample
        v = inverse @ u
        correction = zeta * jnp.outer(v, v) / (1 - zeta + zeta * (u @ v))
        return (inverse - correction) / (1 - zeta), None

    final = jax.lax.scan(advance, jnp.asarray(initial), (scores, step_sizes))[0]
    return Inverse(Dense((final + final.T) / 2))


def maximum_likelihood(environment: Environment, policy: Policy, paths: Trajectories) -> Dense:
    """Fit the linear-Gaussian transition model to `paths`, then G exactly under that model (Section
    4.3)."""
    if not isinstance(environment, lqr.LQR):
        raise TypeError(
            "maximum_likelihood: the transition model is linear-Gaussian, "
            f"which fits LQR, not {type(environment).__name__}"
        )
    return exact(lqr.fit(paths, like=environment), policy)
