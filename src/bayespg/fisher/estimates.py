"""The ways to obtain G, in closed form or from samples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from bayespg._support import checks
from bayespg._support.precision import in_float64, traced
from bayespg._support.types import Array
from bayespg.algebra.sparse import Rows
from bayespg.environments import Environment, Solved, check_solved, lqr
from bayespg.environments.trajectories import Trajectories
from bayespg.fisher.matrices import Damped, Dense, Fisher
from bayespg.fisher.structured import Inverse, Sparse, Spectral, outer_products
from bayespg.policies import (
    AnyPolicy,
    Policy,
    SparsePolicy,
    information_root,
    memory,
    sparse_information_root,
)


def exact(environment: Solved, policy: Policy) -> Dense:
    """G in closed form, if the environment has one."""
    check_solved(environment, policy)
    return Dense(environment.fisher(policy))


def actions_integrated_out(
    policy: AnyPolicy,
    paths: Trajectories,
    discount: float | Float[Array, ""] = 1.0,
    *,
    stationary: bool = False,
    damping: float = 1e-6,
) -> Fisher:
    """mean over paths of sum_t gamma^t E_{a|x_t}[u u'], free of the noise of the actions; the
    default wherever G is not known.

    Scores of different steps are uncorrelated. Without a discount the result therefore has the
    expectation of the Fisher matrix of paths, Eq. 24; with one it estimates that of steps, Eq. 40;
    with `stationary` it is the mean over steps, as in Eq. 42. `damping` is added to the diagonal of
    a sparse policy's G (Section 8.3), which would be singular otherwise.
    """
    M = paths.mask.shape[1]
    weights = step_weights(paths, discount, stationary)
    if isinstance(policy, SparsePolicy):
        states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), paths.states)
        return of_states(policy, states, (weights / M).reshape(-1), damping)
    along = jax.vmap(lambda o, c: memory.information_roots(policy, o, c), 1, 1)
    roots = along(paths.states, paths.actions)
    roots = roots * jnp.sqrt(weights)[..., None, None]
    return average(jnp.moveaxis(roots, 1, 0).reshape(M, -1, roots.shape[-1]))


def of_states(
    policy: Policy, states: Shaped[Array, "N ..."], weights: Float[Array, " N"], damping: float = 0
) -> Fisher:
    """sum_i w_i E_{a|x_i}[u u'] over states that need not lie on paths; `damping` is added to the
    diagonal of a sparse policy's."""
    if isinstance(policy, SparsePolicy):
        active, roots = jax.vmap(lambda x: sparse_information_root(policy, x))(states)
        roots = roots * jnp.sqrt(weights)[:, None, None]
        active = jnp.broadcast_to(active[:, None], roots.shape)
        k = roots.shape[-1]
        return Sparse(
            Rows(active.reshape(-1, k), roots.reshape(-1, k), policy.weights.size), damping
        )
    roots = jax.vmap(lambda x: information_root(policy, x))(states)
    Z = (roots * jnp.sqrt(weights)[:, None, None]).reshape(-1, roots.shape[-1])
    return Dense(Z.T @ Z)


def step_weights(
    paths: Trajectories, discount: float | Float[Array, ""] = 1.0, stationary: bool = False
) -> Float[Array, "T M"]:
    """The weight of each step in a mean over paths: gamma^t, or for Eq. 42 equal weights that sum
    to M."""
    T, M = paths.mask.shape
    dtype = paths.rewards.dtype
    if stationary:
        return paths.mask * (M / jnp.sum(paths.mask)).astype(dtype)
    return paths.mask * (jnp.asarray(discount, dtype) ** jnp.arange(T))[:, None]


def of_step_scores(
    step_scores: Float[Array, "N n"] | Float[Array, "T M n"] | Rows,
    weights: Float[Array, "T M"] | None = None,
    damping: float = 1e-6,
    *,
    last: Bool[Array, " N"] | None = None,
    discount: float = 1.0,
) -> Fisher:
    """mean over paths of sum_t w_t u_t u_t', from the scores of the steps taken.

    Steps stand in a row, one episode after the other, and `last` marks the end of each; the weight
    of a step is then gamma^t with gamma the `discount`, or `weights`, (N,). Inside a transformation
    episodes stand side by side: scores of shape (T, M, n), or sparse `Rows` to which `damping` is
    added, and (T, M) `weights`: of `step_weights` for the average of Eq. 42 (`stationary`) or the
    expectation of Algorithm 3 over its random stops, of `g_est_weights` for Algorithm 3 itself.
    """
    if last is not None:
        return _of_rows(step_scores, last, discount, weights)
    if weights is None:
        raise ValueError(
            "last: expected flags, one per row of step_scores, that mark the end of each episode"
        )
    M = weights.shape[1]
    root = jnp.sqrt(weights)
    if isinstance(step_scores, Rows):
        k = step_scores.values.shape[-1]
        values = step_scores.values * root[..., None] / jnp.sqrt(M)
        return Sparse(
            Rows(step_scores.indices.reshape(-1, k), values.reshape(-1, k), step_scores.size),
            damping,
        )
    return average(jnp.moveaxis(step_scores * root[..., None], 1, 0))


def _of_rows(scores: Any, last: Any, discount: float, weights: Any) -> Dense:
    """mean over episodes of sum_t w_t u_t u_t' of steps in a row."""
    if traced(scores, last, weights):
        raise TypeError("of_step_scores: inside a transformation give (T, M, n) scores and weights")
    U = checks.scores(scores)
    ends, time = places(last, U.shape[0])
    if weights is None:
        w = np.power(checks.discount(discount), time)
    else:
        w = checks.nonnegative("weights", weights, ((U.shape[0],),))
    return checks.sound("step_scores", in_float64(_weighted)(U, w / len(ends)))


def g_est_weights(
    paths: Trajectories,
    discount: float | Float[Array, ""],
    *,
    key: PRNGKeyArray | None = None,
    as_printed: bool = False,
) -> Float[Array, "T M"]:
    """How often Algorithm 3 (G-EST) counts each step: lines 9 to 13.

    Each episode is abandoned after a step with probability 1 - gamma. Without `key` the weights are
    their expectations, gamma^t. The last pair of an episode is counted after the loop: `as_printed`
    with weight 1 / (1 - gamma), the number of steps that a continuing process would still take; by
    default, as nothing follows an absorbing state, with weight 1.
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


def _lives(
    key: PRNGKeyArray, discount: float | Float[Array, ""], episodes: int
) -> Float[Array, " E"]:
    """The number of steps until an episode is abandoned: P(life > t) = gamma^t."""
    if not traced(discount) and discount == 1:
        return jnp.full(episodes, jnp.inf)
    u = jax.random.uniform(key, (episodes,), minval=jnp.finfo(float).tiny)
    return jnp.maximum(jnp.ceil(jnp.log(u) / jnp.log(discount)), 1)


def g_est(
    scores: Float[Array, "N n"],
    last: Bool[Array, " N"],
    discount: float,
    *,
    key: PRNGKeyArray | int | None = None,
    as_printed: bool = False,
) -> Dense:
    """Algorithm 3 (G-EST) from the scores of steps in a row; `last` marks the end of episodes. For
    the other arguments see `g_est_weights`; `key` may be a seed too."""
    if traced(scores, last):
        raise TypeError("g_est: inside a transformation use g_est_weights and of_step_scores")
    U = checks.scores(scores)
    ends, time = places(last, U.shape[0])
    discount = checks.discount(discount)
    if checks.flag("as_printed", as_printed) and discount == 1:
        raise ValueError("discount: the printed weight of the last pair, 1/(1 - gamma), needs < 1")
    if key is None:
        weights = np.power(discount, time)
    else:
        lives = np.asarray(_lives(checks.key("key", key), discount, len(ends)))
        weights = (time < np.repeat(lives, np.diff(ends, prepend=-1))).astype(float)
    if as_printed:
        weights[ends] /= 1 - discount
    return checks.sound("scores", in_float64(_weighted)(U, weights / len(ends)))


def places(last: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Of steps in a row: where each episode ends, and how many steps of its episode were taken
    before a step. An episode still running at the end of the data ends there."""
    if size == 0:
        raise ValueError("last: expected at least one step, found none")
    ends = np.flatnonzero(checks.flags("last", last, size))
    if ends.size == 0 or ends[-1] != size - 1:
        ends = np.append(ends, size - 1)
    lengths = np.diff(ends, prepend=-1)
    return ends, np.arange(size) - np.repeat(ends - lengths + 1, lengths)


def _weighted(U: Float[Array, "N n"], weights: Float[Array, " N"]) -> Dense:
    return Dense((U.T * weights) @ U)


def monte_carlo(scores: Float[Array, "M n"], damping: float | None = None) -> Fisher:
    """G = (1/M) sum_i u_i u_i' (Section 4.3), for when only scores are known.

    One solves with D = G + delta I, delta = `damping` tr(G) / n, and reads gradients out with G
    itself (`Damped`): along every eigenvector of G the mean of Model 2 is at most that of Monte
    Carlo. None is n / M, at most 1, about the error of the eigenvalues of G; with 0 Model 2 is
    equivalent to Monte Carlo. Coverage hardly depends on it, and the width of intervals does where
    n exceeds M (docs/how-to/scores.md); no n x n array is formed there.
    """
    if traced(scores, damping):
        return _monte_carlo(scores, damping)
    U = checks.scores(scores)
    kappa = None if damping is None else checks.nonnegative("damping", damping, ())
    kappa = 0.0 if kappa is not None and kappa == 0 else kappa
    return checks.sound("scores, damping", in_float64(_monte_carlo)(U, kappa))


def _monte_carlo(scores, damping) -> Fisher:
    M, n = scores.shape
    damping = min(1.0, n / M) if damping is None else damping
    G = outer_products(scores) if n > M else average(scores[:, None, :])
    if not traced(damping) and damping == 0:
        return G
    return Damped(G, damping * G.trace() / n)


def leave_one_out(
    G: Fisher, mean: Float[Array, " n"], influence: Float[Array, "M n"]
) -> Float[Array, "M n"]:
    """Leave path i out of the average G too: the gradient is G w, and without path i

    G_{-i} w_{-i} = g_{-i} - (G_i w_{-i} - g_{-i}) / (M - 1),   g_{-i} = G w_{-i}.
    """
    factors = G.factors if isinstance(G, Dense | Spectral) else None
    M = influence.shape[0]
    if factors is None or factors.shape[0] != M or M == 1:
        return influence
    g = mean - influence
    w = G.solve(g)
    own = jnp.einsum("irn,ir->in", factors, jnp.einsum("irn,in->ir", factors, w))
    return influence + (own - g) / (M - 1)


def average(factors: Float[Array, "M r n"]) -> Dense:
    """(1/M) sum_i A_i' A_i, A_i the factor of path i."""
    M, _, n = factors.shape
    flat = factors.reshape(-1, n)
    return Dense(flat.T @ flat / M, factors)


def recursive(
    scores: Float[Array, "M n"],
    step_sizes: Float[Array, " M"],
    initial: Float[Array, "n n"],
) -> Dense:
    """G_{i+1} = (1 - zeta_i) G_i + zeta_i u_i u_i' (Section 4.3).

    zeta_i = 1/i with i from 1 forgets `initial` and ends at `monte_carlo`.
    """
    if traced(scores, step_sizes, initial):
        return _recursive(scores, step_sizes, initial)
    arrays = _checked_recursion(scores, step_sizes, initial)
    return checks.sound("scores, initial", in_float64(_recursive)(*arrays))


def _checked_recursion(scores, step_sizes, initial):
    U = checks.scores(scores)
    zeta = checks.vector("step_sizes", step_sizes, U.shape[0], "one per row of scores")
    if zeta.min() < 0 or zeta.max() > 1:
        raise ValueError(
            f"step_sizes: expected numbers from 0 to 1, found {zeta.min():.6g} to {zeta.max():.6g}"
        )
    return U, zeta, checks.psd("initial", initial, U.shape[1])


def _recursive(scores, step_sizes, initial) -> Dense:
    def advance(G, sample):
        u, zeta = sample
        return (1 - zeta) * G + zeta * jnp.outer(u, u), None

    return Dense(jax.lax.scan(advance, jnp.asarray(initial), (scores, step_sizes))[0])


def recursive_inverse(
    scores: Float[Array, "M n"],
    step_sizes: Float[Array, " M"],
    initial: Float[Array, "n n"],
) -> Inverse:
    """The inverse of `recursive` by Sherman-Morrison; `initial` is the first inverse, step sizes
    below 1."""
    if traced(scores, step_sizes, initial):
        return _recursive_inverse(scores, step_sizes, initial)
    U, zeta, initial = _checked_recursion(scores, step_sizes, initial)
    if zeta.max() == 1:
        raise ValueError("step_sizes: the inverse needs all of them below 1")
    return checks.sound("scores, initial", in_float64(_recursive_inverse)(U, zeta, initial))


def _recursive_inverse(scores, step_sizes, initial) -> Inverse:
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
