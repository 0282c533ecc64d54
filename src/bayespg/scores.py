"""Scores of steps and of paths."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from bayespg.policies import Policy, SparsePolicy, flatten, score, sparse_score
from bayespg.sparse import Rows
from bayespg.trajectories import Trajectories
from bayespg.types import Array


def of_steps(policy: Policy, paths: Trajectories) -> Float[Array, "T M n"] | Rows:
    """u(z_t) = grad log mu(a_t|x_t; theta), Eq. 39; zero where no step was taken.

    Those of a sparse policy are sparse rows, with leading axes T and M.
    """
    if isinstance(policy, SparsePolicy):
        indices, values = jax.vmap(jax.vmap(lambda x, a: sparse_score(policy, x, a)))(
            paths.states, paths.actions
        )
        return Rows(indices, jnp.where(paths.mask[..., None], values, 0.0), policy.weights.size)
    u = jax.vmap(jax.vmap(lambda x, a: score(policy, x, a)))(paths.states, paths.actions)
    return jnp.where(paths.mask[..., None], u, 0.0)


def of_paths(policy: Policy, paths: Trajectories) -> Float[Array, "M n"]:
    """u(xi) = grad sum_t log mu(a_t|x_t; theta), Eq. 5.

    Each path gets its own copy of theta, and one differentiation of the joint likelihood gives all
    scores.
    """
    theta, rebuild = flatten(policy)

    def log_likelihood(copies: Float[Array, "M n"]) -> Float[Array, ""]:
        def at_one_time(states, actions):
            return jax.vmap(lambda t, x, a: rebuild(t)(x).log_prob(a))(copies, states, actions)

        each = jax.vmap(at_one_time)(paths.states, paths.actions)
        return jnp.sum(jnp.where(paths.mask, each, 0.0))

    return jax.grad(log_likelihood)(jnp.broadcast_to(theta, (paths.mask.shape[1], theta.size)))
