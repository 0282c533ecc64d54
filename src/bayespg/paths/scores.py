"""Scores of steps and of paths."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from bayespg._support.types import Array
from bayespg.algebra.sparse import Rows
from bayespg.environments.trajectories import Trajectories
from bayespg.policies import (
    AnyPolicy,
    MemoryPolicy,
    SparsePolicy,
    flatten,
    memory,
    score,
    sparse_score,
)


def of_steps(policy: AnyPolicy, paths: Trajectories) -> Float[Array, "T M n"] | Rows:
    """u(z_t) = grad log mu(a_t|x_t; theta), Eq. 39; zero where no step was taken.

    Those of a sparse policy are sparse rows, with leading axes T and M. Those of a policy with
    memory are the terms of u(xi), with the derivative through the memory.
    """
    if isinstance(policy, SparsePolicy):
        indices, values = jax.vmap(jax.vmap(lambda x, a: sparse_score(policy, x, a)))(
            paths.states, paths.actions
        )
        return Rows(indices, jnp.where(paths.mask[..., None], values, 0.0), policy.weights.size)
    if isinstance(policy, MemoryPolicy):
        u = jax.vmap(lambda o, c: memory.step_scores(policy, o, c), 1, 1)(
            paths.states, paths.actions
        )
    else:
        u = jax.vmap(jax.vmap(lambda x, a: score(policy, x, a)))(paths.states, paths.actions)
    return jnp.where(paths.mask[..., None], u, 0.0)


def of_paths(policy: AnyPolicy, paths: Trajectories) -> Float[Array, "M n"]:
    """u(xi) = grad sum_t log mu(a_t|x_t; theta), Eq. 5.

    Each path gets its own copy of theta, and one differentiation of the joint likelihood gives all
    scores. Through the memory of a policy that has one, that is backpropagation through time.
    """
    theta, rebuild = flatten(policy)
    rebuild: Callable[[Any], Any]

    def log_likelihood(copies: Float[Array, "M n"]) -> Float[Array, ""]:
        def at_one_time(states, actions):
            return jax.vmap(lambda t, x, a: rebuild(t)(x).log_prob(a))(copies, states, actions)

        def along_a_path(t, observations, choices):
            return memory.log_probs(rebuild(t), observations, choices)

        if isinstance(policy, MemoryPolicy):
            along_all = jax.vmap(along_a_path, (0, 1, 1), 1)
            each = along_all(copies, paths.states, paths.actions)
        else:
            each = jax.vmap(at_one_time)(paths.states, paths.actions)
        return jnp.sum(jnp.where(paths.mask, each, 0.0))

    return jax.grad(log_likelihood)(jnp.broadcast_to(theta, (paths.mask.shape[1], theta.size)))
