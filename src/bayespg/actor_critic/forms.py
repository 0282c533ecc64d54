"""The forms that factorise a matrix: dual, weight and dictionary."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support.types import Array
from bayespg.actor_critic.steps import Prior, Steps, score_features
from bayespg.algebra import conditioning, sparse, sparsification
from bayespg.algebra.conditioning import Conditioned, Groups, Regression
from bayespg.algebra.sparse import Rows
from bayespg.algebra.sparsification import Sparsify
from bayespg.posterior import LARGE, Downdate, GradientPosterior

LEFT_OUT = 4e7
"""The largest total size of the per-episode Gram matrices. Beyond it, episodes are left out to
first order."""


def weight(steps: Steps, prior: Prior, noise, Psi, info) -> GradientPosterior:
    """The weight form: features Psi of the states beside whitened scores, which alone determine the
    gradient."""
    whitened, root = score_features(steps, prior)
    c = jnp.sqrt(jnp.asarray(prior.scale, root.dtype))
    features = jnp.concatenate([Psi, c * whitened], -1)
    V = jnp.concatenate([jnp.zeros((root.shape[0], Psi.shape[1]), root.dtype), c * root], -1)
    return _in_weight_space(steps, prior, noise, features, V, jnp.zeros(()), info, Psi.shape[1])


def dictionary(steps: Steps, prior: Prior, noise, sparsify: Sparsify) -> GradientPosterior:
    """The sparse form: features of a dictionary of state-action pairs (Proposition 7)."""
    X, U, taken = steps.states, steps.scores, steps.taken
    if isinstance(U, Rows):
        K = _gram(steps, prior)
        row, variances = (lambda i, members: K[i, members]), jnp.diagonal(K)
    else:
        U = sparse.dense(U)
        kernel = kernels.StateAction(prior.state_kernel, prior.fisher, prior.scale)
        _, solved = kernel.solved((X, U))

        def row(i, members):
            return kernel.between((X[i][None], U[i][None]), (X[members], solved[members]))[0]

        variances = jnp.where(taken, kernel.diagonal((X, U)), 0.0)
    N = variances.size
    built = sparsification.build(row, variances, sparsify.threshold, min(sparsify.capacity or N, N))
    Psi = jnp.where(taken[:, None], built.features, 0.0)
    V = built.functional_of(prior.cross(sparse.dense(sparse.take(U, built.members))).T)
    large = V.shape[0] > LARGE
    if large and prior.information is not None:
        raise ValueError(f"sparsify: more than {LARGE} parameters with a damped Fisher matrix")
    remainder = None if large else prior.covariance() - V @ V.T
    return _in_weight_space(steps, prior, noise, Psi, V, remainder, built.info())


def _gram(steps: Steps, prior: Prior) -> Float[Array, "N N"]:
    G, U = prior.fisher, steps.scores
    if isinstance(U, Rows) and isinstance(G, fishers.Sparse):
        K = G.kernel(U, U)
    else:
        K = kernels.gram(kernels.Linear(G), sparse.dense(U))
    seen = steps.see(steps.see(kernels.gram(prior.state_kernel, steps.states)).T)
    return seen + prior.scale * K


def _in_weight_space(
    steps: Steps, prior: Prior, noise, Psi, V, remainder, info, of_states: int | None = None
) -> GradientPosterior:
    at = conditioning.regress(Psi, steps.y[:, None], noise, steps.tails)
    mean = (V @ at.weights)[:, 0]
    root = at.covariance_root(V)
    if remainder is None:
        covariance: Any = Downdate(prior.spread(), at.explained_root(V))
    else:
        covariance = remainder + root.T @ root
        dense = fishers.as_dense(prior.fisher)
        kept = jnp.sum(dense.whiten(V.T) ** 2) - jnp.sum(dense.whiten(root) ** 2)
        info = info | {"known": kept / prior.scale}
    spread = jnp.sum(solve_triangular(at.factor, jnp.eye(V.shape[1]), lower=True) ** 2)
    freedom = steps.observations - V.shape[1] + spread
    added = None if of_states is None else _added(at, V, of_states, steps.groups)
    left_out = _leave_out(at, steps.groups) @ V.T
    return _posterior(steps, prior, at, mean, covariance, left_out, freedom, info, added)


def _posterior(
    steps: Steps, prior: Prior, at, mean, covariance, left_out, freedom, info, added=None
) -> GradientPosterior:
    """`info["known"]` is the number of directions that the steps determine, where it is known."""
    G = prior.readout
    return GradientPosterior(
        mean=mean,
        covariance=covariance,
        fisher=prior.fisher,
        influence=fishers.leave_one_out(G, mean, left_out),
        explained=info["known"] / prior.directions() if "known" in info else jnp.ones(()),
        freedom=freedom,
        info={
            "evidence": jnp.sum(at.log_evidence),
            "condition": at.condition,
            "rank": fishers.rank(G),
            "observations": steps.observations,
        }
        | info,
        prior=prior.spread(),
        added=added,
    )


def _added(
    at: Regression, V: Float[Array, "n p"], of_states: int, groups: Groups
) -> Float[Array, "E n"]:
    """What each episode adds to the mean, G P^-1 U_e' (A^-1 y)_e: its pull on the score's weights
    once the values of the states are fitted without them.

    The factor of P has that of the states' own precision in its corner, and that of P less what
    the states explain in the opposite one.
    """
    p, L = of_states, at.factor
    values = cho_solve((L[:p, :p], True), at.X[:, :p].T @ at.z)
    pull = groups.sum(at.X[:, p:] * (at.z - at.X[:, :p] @ values))
    return cho_solve((L[p:, p:], True), pull.T).T @ V[:, p:].T


def _leave_out(at: Regression, groups: Groups) -> Float[Array, "E p"]:
    """The change of the weights when an episode is left out: (P - X_e'X_e)^-1 X_e' r_e, exact.

    If there are too many episodes for that, P^-1 X_e' r_e: a single one of many changes P little.
    """
    pull = groups.sum(at.X * at.residuals)
    p = at.X.shape[1]
    if groups.count * p**2 > LEFT_OUT:
        return cho_solve((at.factor, True), pull.T).T
    without = at.factor @ at.factor.T - groups.grams(at.X)
    return jax.vmap(lambda P, b: cho_solve((conditioning.cholesky(P), True), b))(without, pull)


def dual(steps: Steps, prior: Prior, noise) -> GradientPosterior:
    """The dual form: the N x N matrix of all steps (Proposition 6)."""
    K, B = _gram(steps, prior), prior.cross(sparse.dense(steps.scores)).T
    s2 = jnp.where(steps.taken, noise, 1.0)
    at = conditioning.dual(K, B, prior.covariance(), steps.y[:, None], s2, steps.tails)
    mean = (at.gain @ steps.y[:, None])[:, 0]
    info = {"known": jnp.sum(at.gain.T * fishers.as_dense(prior.fisher).solve(B.T)) / prior.scale}
    freedom = at.freedom - jnp.sum(~steps.taken)
    left_out = _leave_out_dual(at, steps)
    return _posterior(steps, prior, at, mean, at.covariance, left_out, freedom, info)


def _leave_out_dual(at: Conditioned, steps: Steps) -> Float[Array, "E n"]:
    """(B C)_e C_ee^+ alpha_e: the change of the mean when an episode is left out, exact.

    C_ee is singular along the tail of a truncated episode, where alpha has nothing.
    """
    groups = steps.groups
    ids = groups.row_ids(steps.y.size)
    assert at.whitener is not None
    C = at.whitener.T @ at.whitener
    unit = steps.segments.unit

    def one(e):
        own = ids == e
        block = jnp.where(own[:, None] & own, C + unit[:, None] * unit, jnp.eye(ids.size))
        x = jnp.linalg.solve(block, jnp.where(own, at.alpha[:, 0], 0.0))
        return at.gain @ jnp.where(own, x, 0.0)

    return jax.lax.map(one, jnp.arange(groups.count))
