"""Scores of steps and of paths."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayespg.policies import Policy, score
from bayespg.trajectories import Trajectories


def of_steps(policy: Policy, paths: Trajectories) -> Float[Array, "M T n"]:
    """u(z_t) = grad log mu(a_t|x_t; theta), Eq. 39; zero where no step was taken."""
    u = jax.vmap(jax.vmap(lambda x, a: score(policy, x, a)))(paths.states, paths.actions)
    return jnp.where(paths.mask[..., None], u, 0.0)


def of_paths(policy: Policy, paths: Trajectories) -> Float[Array, "M n"]:
    """u(xi) = sum_t grad log mu(a_t|x_t; theta), Eq. 5."""
    return of_steps(policy, paths).sum(1)
