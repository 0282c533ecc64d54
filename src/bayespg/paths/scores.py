"""Scores of steps and of paths."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Shaped

from bayespg._support.types import Array
from bayespg.algebra.conditioning import Groups
from bayespg.algebra.sparse import Linear, Products, Rows
from bayespg.environments.trajectories import Trajectories
from bayespg.policies import AnyPolicy, Policy, SparsePolicy, flatten, memory, sparse_score

__all__ = ["Jacobian", "Linearised", "hessians", "of_paths", "of_steps"]


def __dir__() -> list[str]:
    return sorted(__all__)


def of_steps(policy: AnyPolicy, paths: Trajectories) -> Float[Array, "T M n"] | Rows:
    """u(z_t) = grad log mu(a_t|x_t; theta), Eq. 39; zero where no step was taken.

    Those of a sparse policy are sparse rows, with leading axes T and M.
    """
    if isinstance(policy, SparsePolicy):
        indices, values = jax.vmap(jax.vmap(lambda x, a: sparse_score(policy, x, a)))(
            paths.states, paths.actions
        )
        return Rows(indices, jnp.where(paths.mask[..., None], values, 0.0), policy.weights.size)
    along = jax.vmap(lambda o, c: memory.step_scores(policy, o, c), 1, 1)
    return jnp.where(paths.mask[..., None], along(paths.states, paths.actions), 0.0)


class Jacobian(Linear):
    """Scores of N steps of a network, known through products with its Jacobian.

    With J_i the Jacobian of the distribution's parameters phi at state i, u_i = J_i' s_i where
    s_i = d log p(a_i; phi) / d phi: a derivative along a direction costs a few evaluations of the
    network, and no (N, n) array is ever made.
    """

    policy: Policy
    states: Shaped[Array, "N ..."]
    actions: Shaped[Array, "N *action"] | None
    """None for states alone, which have a Fisher matrix and no scores."""
    weights: Float[Array, " N"]
    """Factor of each row: 0 for padding."""

    @property
    def size(self) -> int:
        return flatten(self.policy)[0].size

    def weighted(self, a: Float[Array, " N"]) -> "Jacobian":
        return Jacobian(self.policy, self.states, self.actions, self.weights * a)

    def products(self) -> Products:
        at = self.linearise()
        if at.scores is None:
            raise ValueError("actions: none are given, and states alone have no scores")
        S = at.scores * self.weights[:, None]
        return Products(lambda w: jnp.sum(S * at.push(w), -1), lambda a: at.pull(S * a[:, None]))

    def sums(self, a: Float[Array, " N"], groups: Groups) -> Float[Array, "E n"]:
        """sum_i a_i u_i over the rows of each group, for as much as one gradient of all rows."""
        rows = groups.rows(a.size)
        of = jax.tree.map(lambda x: x[rows], (self.states, self.actions, self.weights * a))
        return jax.vmap(_credited(self.policy))(*of)

    def dense(self) -> Float[Array, "N n"]:
        return jax.vmap(self.products().times, 1, 1)(jnp.eye(self.size))

    def linearise(self) -> "Linearised":
        """The network's derivative at its parameters, ready for products."""
        theta, rebuild = flatten(self.policy)
        example = jax.tree.map(lambda x: x[0], self.states)
        unravel = ravel_pytree(self.policy(example))[1]

        def parameters(t):
            return jax.vmap(lambda x: ravel_pytree(rebuild(t)(x))[0])(self.states)

        phi, push = jax.linearize(parameters, theta)
        pull = jax.linear_transpose(push, theta)
        scores = None
        if self.actions is not None:
            scores = jax.vmap(jax.grad(lambda p, a: unravel(p).log_prob(a)))(phi, self.actions)
        roots = jax.vmap(lambda p: unravel(p).fisher_root())(phi)
        return Linearised(push, lambda v: pull(v)[0], scores, roots)


class Linearised(NamedTuple):
    """A network's derivative at N states."""

    push: Callable[[Float[Array, " n"]], Float[Array, "N p"]]
    """w to J w."""
    pull: Callable[[Float[Array, "N p"]], Float[Array, " n"]]
    """v to J' v."""
    scores: Float[Array, "N p"] | None
    """s_i, of the actions taken; None without actions."""
    roots: Float[Array, "N r p"]
    """A_i, roots of the Fisher information of phi."""


def of_paths(
    policy: AnyPolicy, paths: Trajectories, credit: Float[Array, "T M"] | float = 1.0
) -> Float[Array, "M n"]:
    """u(xi) = grad sum_t log mu(a_t|x_t; theta), Eq. 5; with `credit`, sum_t credit_t u(z_t).

    Through the memory of a policy that has one, that is backpropagation through time.
    """
    dtype = flatten(policy)[0].dtype
    weights = jnp.where(paths.mask, jnp.asarray(credit, dtype), 0.0)
    return jax.vmap(_credited(policy), 1)(paths.states, paths.actions, weights)


def hessians(policy: AnyPolicy, paths: Trajectories) -> Float[Array, "M n n"]:
    """grad u(xi) = grad^2 sum_t log mu(a_t|x_t; theta), for policies with few parameters."""
    of_path = _credited(policy, jax.hessian)
    return jax.vmap(of_path, 1)(paths.states, paths.actions, paths.mask)


def _credited(
    policy: AnyPolicy, derivative: Callable[..., Any] = jax.grad
) -> Callable[..., Float[Array, "..."]]:
    """A function of the observations, choices and credits of one path: the derivative of sum_t
    credit_t log mu(a_t|x_t; theta)."""
    theta, rebuild = flatten(policy)

    def of_path(observations, choices, credits):
        def log_likelihood(t):
            each = memory.log_probs(rebuild(t), observations, choices)
            return jnp.sum(jnp.where(credits != 0, credits * each, 0.0))

        return derivative(log_likelihood)(theta)

    return of_path
