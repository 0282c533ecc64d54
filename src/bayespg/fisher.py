"""The Fisher information matrix G: something one multiplies by and solves with.

    G = E[u(xi) u(xi)']                                                         (Eq. 23)
    G = sum_t gamma^t E[u(z_t) u(z_t)']                                         (Eq. 40)

for paths and for steps; the second is not normalised, as Algorithm 3 estimates it.

Rows are vectors throughout: `multiply(V)` is V G, `solve(V)` is V G^-1. The functions at the end
are the ways to obtain G. With G from outer products of the sampled scores, Model 2 is Monte Carlo
in other words and most of its gain is lost; `actions_integrated_out` needs no more samples and no
model, and keeps it.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg import checks, sparse
from bayespg.environments import Environment, Solved, lqr
from bayespg.policies import (
    AnyPolicy,
    MemoryPolicy,
    Policy,
    SparsePolicy,
    information_root,
    memory,
    sparse_information_root,
)
from bayespg.precision import float64_when_eager, in_float64, to_float64, traced
from bayespg.sparse import Rows
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


class Sparse(Fisher):
    """G = R'R + damping I with sparse rows R: 40,500 parameters of which nine act a step.

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
            return conjugate_gradients(self.multiply, v, diagonal)

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

    def matrix(self) -> Float[Array, "n n"]:
        R = sparse.dense(self.rows)
        return R.T @ R + self.damping * jnp.eye(self.size)

    def diagonal(self) -> Float[Array, " n"]:
        return sparse.squared_columns(self.rows) + self.damping


def conjugate_gradients(
    multiply: Callable[[Array], Array],
    b: Float[Array, " n"],
    diagonal: Float[Array, " n"],
    *,
    tolerance: float = 1e-10,
    most: int = 1000,
) -> Float[Array, " n"]:
    """Solve a symmetric positive definite system, preconditioned with its diagonal.

    Ends when the residual is below `tolerance` times the right-hand side. (Lineax measures it
    entry by entry, which never ends, or ends at once, where the right-hand side has zeros.)
    """
    target = tolerance**2 * (b @ b)

    def going(state):
        j, _, r, *_ = state
        return (j < most) & (r @ r > target)

    def advance(state):
        j, x, r, p, rz = state
        Ap = multiply(p)
        a = rz / (p @ Ap)
        r = r - a * Ap
        z = r / diagonal
        following = r @ z
        return j + 1, x + a * p, r, z + (following / rz) * p, following

    z = b / diagonal
    start = (0, jnp.zeros_like(b), b, z, b @ z)
    return jax.lax.while_loop(going, advance, start)[1]


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


def rank(fisher: Fisher) -> Float[Array, ""]:
    """Directions that G has information on: tr(G^-1 G), less than n where G is singular."""
    if isinstance(fisher, Dense):
        return jnp.trace(fisher.solve(fisher.G))
    return jnp.asarray(float(fisher.size))


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


def actions_integrated_out(
    policy: AnyPolicy,
    paths: Trajectories,
    discount: float = 1.0,
    *,
    stationary: bool = False,
    damping: float = 1e-6,
) -> Fisher:
    """mean over paths of sum_t gamma^t E_{a|x_t}[u u'].

    Scores of different steps are uncorrelated, so undiscounted this has the expectation of the
    path's Fisher matrix, Eq. 23; discounted it is that of steps, Eq. 40. Either way it lacks the
    noise of the actions. The default wherever G is not known. `stationary` takes the mean over
    steps instead, as Eq. 42 does. `damping` is added to the diagonal of a sparse policy's G
    (Section 8.3), which is singular otherwise.
    """
    M = paths.mask.shape[1]
    weights = step_weights(paths, discount, stationary)
    if isinstance(policy, SparsePolicy):
        active, roots = jax.vmap(jax.vmap(lambda x: sparse_information_root(policy, x)))(
            paths.states
        )
        roots = roots * jnp.sqrt(weights / M)[..., None, None]
        active = jnp.broadcast_to(active[:, :, None], roots.shape)
        k = roots.shape[-1]
        return Sparse(
            Rows(active.reshape(-1, k), roots.reshape(-1, k), policy.weights.size), damping
        )
    if isinstance(policy, MemoryPolicy):
        along = jax.vmap(lambda o, c: memory.information_roots(policy, o, c), 1, 1)
        roots = along(paths.states, paths.actions)
    else:
        roots = jax.vmap(jax.vmap(lambda x: information_root(policy, x)))(paths.states)
    roots = roots * jnp.sqrt(weights)[..., None, None]
    return _average(jnp.moveaxis(roots, 1, 0).reshape(M, -1, roots.shape[-1]))


def step_weights(
    paths: Trajectories, discount: float = 1.0, stationary: bool = False
) -> Float[Array, "T M"]:
    """What each step counts in a mean over paths: gamma^t, or for Eq. 42 all alike and M in
    all."""
    T, M = paths.mask.shape
    dtype = paths.rewards.dtype
    if stationary:
        return paths.mask * (M / jnp.sum(paths.mask)).astype(dtype)
    return paths.mask * (jnp.asarray(discount, dtype) ** jnp.arange(T))[:, None]


def of_step_scores(
    step_scores: Float[Array, "T M n"] | Rows,
    weights: Float[Array, "T M"],
    damping: float = 1e-6,
) -> Fisher:
    """mean over paths of sum_t w_t u_t u_t', from the scores of the steps taken.

    With `step_weights` that is the average of Eq. 42 (`stationary`) or Algorithm 3 in expectation
    over its coins; with `g_est_weights` Algorithm 3 itself.
    """
    M = weights.shape[1]
    root = jnp.sqrt(weights)
    if isinstance(step_scores, Rows):
        k = step_scores.values.shape[-1]
        values = step_scores.values * root[..., None] / jnp.sqrt(M)
        return Sparse(
            Rows(step_scores.indices.reshape(-1, k), values.reshape(-1, k), step_scores.size),
            damping,
        )
    return _average(jnp.moveaxis(step_scores * root[..., None], 1, 0))


def g_est_weights(
    paths: Trajectories,
    discount: float,
    *,
    key: PRNGKeyArray | None = None,
    as_printed: bool = False,
) -> Float[Array, "T M"]:
    """How often Algorithm 3 (G-EST) counts each step: lines 9 to 13.

    Each episode is abandoned after a step with probability 1 - gamma. Without `key` the weights
    are expected ones, gamma^t. The last pair of an episode is counted after the loop; as printed
    it weighs 1 / (1 - gamma), the steps a process that goes on would still take, but nothing
    follows an absorbing state and its weight is 1.
    """
    T, M = paths.mask.shape
    if key is None:
        weights = step_weights(paths, discount)
    else:
        weights = (jnp.arange(T)[:, None] < _lives(key, discount, M)) & paths.mask
    if not as_printed:
        return weights.astype(paths.rewards.dtype)
    last = jnp.arange(T)[:, None] == paths.lengths - 1
    return jnp.where(last, weights / (1 - discount), weights)


def _lives(key: PRNGKeyArray, discount: float, episodes: int) -> Float[Array, " E"]:
    """Steps until an episode is abandoned: P(life > t) = gamma^t."""
    if discount == 1:
        return jnp.full(episodes, jnp.inf)
    u = jax.random.uniform(key, (episodes,), minval=jnp.finfo(float).tiny)
    return jnp.maximum(jnp.ceil(jnp.log(u) / jnp.log(discount)), 1)


def g_est(
    scores: Float[Array, "N n"],
    last: Bool[Array, " N"],
    discount: float,
    *,
    key: PRNGKeyArray | None = None,
    as_printed: bool = False,
) -> Dense:
    """Algorithm 3 (G-EST) from the scores of steps in a row; `last` marks the end of episodes.

    Arguments are those of `g_est_weights`.
    """
    if as_printed and discount == 1:
        raise ValueError("discount: the printed weight of the last pair, 1/(1 - gamma), needs < 1")
    if traced(scores, last):
        raise TypeError("g_est: inside a transformation use g_est_weights and of_step_scores")
    U = checks.scores(scores)
    ends = np.flatnonzero(checks.flags("last", last, U.shape[0]))
    if not 0 <= discount <= 1:
        raise ValueError(f"discount: expected a number from 0 to 1, found {discount}")
    if ends.size == 0 or ends[-1] != U.shape[0] - 1:
        ends = np.append(ends, U.shape[0] - 1)
    lengths = np.diff(ends, prepend=-1)
    time = np.arange(U.shape[0]) - np.repeat(ends - lengths + 1, lengths)
    if key is None:
        weights = np.power(float(discount), time)
    else:
        lives = np.asarray(_lives(key, discount, len(ends)))
        weights = (time < np.repeat(lives, lengths)).astype(float)
    if as_printed:
        weights[ends] /= 1 - discount
    return in_float64(_weighted)(U, weights / len(ends))


def _weighted(U: Float[Array, "N n"], weights: Float[Array, " N"]) -> Dense:
    return Dense((U.T * weights) @ U)


@float64_when_eager
def monte_carlo(scores: Float[Array, "M n"], damping: float = 0.0) -> Fisher:
    """(1/M) sum_i u_i u_i' (Section 4.3); with damping and n > M no n x n array is formed."""
    M, n = scores.shape
    if damping > 0 and n > M:
        return LowRank(scores / jnp.sqrt(M), damping)
    if damping > 0:
        return Dense(scores.T @ scores / M + damping * jnp.eye(n))
    return _average(scores[:, None, :])


def leave_one_out(
    G: Fisher, mean: Float[Array, " n"], influence: Float[Array, "M n"]
) -> Float[Array, "M n"]:
    """Leave path i out of the average G too: the gradient is G w, and without path i

    G_{-i} w_{-i} = g_{-i} - (G_i w_{-i} - g_{-i}) / (M - 1),   g_{-i} = G w_{-i}.
    """
    factors = G.factors if isinstance(G, Dense) else None
    M = influence.shape[0]
    if factors is None or factors.shape[0] != M or M == 1:
        return influence
    g = mean - influence
    w = G.solve(g)
    own = jnp.einsum("irn,ir->in", factors, jnp.einsum("irn,in->ir", factors, w))
    return influence + (own - g) / (M - 1)


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
