"""The random walk of Section 8.1.

States 0 .. size-1 in a line (the paper's 1 .. 10), the left wall retains, the last state absorbs.
The walk moves only by the policy's choice, so that P of the transient states follows from the
probabilities of going right, and eta, its gradient and both Fisher matrices from linear solves. The
paper's reward of 1 per step is a cost: negated here.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support.random import normal
from bayespg._support.types import Array
from bayespg.environments.base import Solved


class RandomWalk(Solved):
    """Action 1 goes right, 0 left; r = -1 + N(0, reward_noise^2) in every transient state.

    Exact answers are for policies with `right`, the probabilities of going right in the transient
    states, and for walks that run until they are absorbed: `horizon` cuts off drawing only. States
    are integers; rewards are float32.
    """

    known = ("right",)

    size: int = eqx.field(static=True, default=10)
    reward_noise: float = eqx.field(static=True, default=0.1)
    """Standard deviation of Gaussian noise on each reward."""
    horizon: int = eqx.field(static=True, default=1000)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key: PRNGKeyArray, paths: int) -> Int[Array, " M"]:
        return jnp.zeros(paths, jnp.int32)

    def step(
        self, key: PRNGKeyArray, states: Int[Array, " M"], actions: Int[Array, " M"]
    ) -> tuple[Int[Array, " M"], Float[Array, " M"], Bool[Array, " M"]]:
        absorbed = states == self.size - 1
        rewards = jnp.full(states.shape, -1.0, jnp.float32)
        if self.reward_noise:
            rewards += self.reward_noise * normal(key, states.shape, rewards.dtype)
        following = jnp.clip(states + 2 * actions - 1, 0, self.size - 1)
        following = jnp.where(absorbed, states, following)
        return following, jnp.where(absorbed, 0.0, rewards), following == self.size - 1

    @property
    def optimum(self) -> float:
        """The largest expected return, always to the right: -sum_{t < size-1} gamma^t."""
        return -sum(self.discount**t for t in range(self.size - 1))

    def transitions(self, policy: Any) -> Float[Array, "size size"]:
        """Pr(x'|x) with the absorbing state last."""
        right, x = policy.right, jnp.arange(self.size - 1)
        chain = jnp.zeros((self.size, self.size), right.dtype)
        chain = chain.at[x, x + 1].add(right).at[x, jnp.maximum(x - 1, 0)].add(1 - right)
        return chain.at[-1, -1].set(1)

    def values(self, policy: Any) -> Float[Array, " transient"]:
        """V = -(I - gamma P)^-1 1."""
        P = self.transitions(policy)[:-1, :-1]
        return -jnp.linalg.solve(_resolvent(P, self.discount), jnp.ones_like(P[0]))

    def action_values(self, policy: Any) -> Float[Array, "transient 2"]:
        """Q(x, a) = -1 + gamma V(x'); columns are left and right."""
        V = self.values(policy)
        following = jnp.stack([jnp.append(V[:1], V[:-1]), jnp.append(V[1:], 0)], 1)
        return -1 + self.discount * following

    def expected_return(self, policy: Any) -> Float[Array, ""]:
        return self.values(policy)[0]

    def occupancy(self, policy: Any, discount: float | None = None) -> Float[Array, " transient"]:
        """nu(x) = sum_t gamma^t Pr(x_t = x), not normalised: (I - gamma P')^-1 e_0."""
        P = self.transitions(policy)[:-1, :-1]
        gamma = self.discount if discount is None else discount
        return jnp.linalg.solve(_resolvent(P, gamma).T, jnp.zeros_like(P[0]).at[0].set(1))

    def fisher(self, policy: Any) -> Float[Array, "n n"]:
        """sum_x nu(x) E_{a|x}[u u'] with gamma = 1: scores of different steps are uncorrelated."""
        return _information(policy, self.occupancy(policy, 1.0))

    def step_fisher(self, policy: Any) -> Float[Array, "n n"]:
        """G of steps, Eq. 40, weighted by the occupancy, which is not normalised."""
        return _information(policy, self.occupancy(policy))

    def tail(self, policy: Any, steps: int) -> Float[Array, ""]:
        """Pr(an episode lasts longer than `steps`), by repeated squaring of the chain.

        Rows are normalised after each squaring: rounding of Pr(stay) would otherwise swamp a small
        probability of absorption.
        """
        chain = self.transitions(policy)
        distribution = jnp.zeros_like(chain[0]).at[0].set(1)
        with jax.default_matmul_precision("highest"):
            while steps:
                if steps % 2:
                    distribution = distribution @ chain
                steps //= 2
                chain = chain @ chain
                chain /= chain.sum(1, keepdims=True)
        return distribution[:-1].sum()


def _resolvent(P: Float[Array, "k k"], discount: float) -> Float[Array, "k k"]:
    """I - gamma P."""
    return jnp.eye(len(P), dtype=P.dtype) - discount * P


def _information(policy: Any, weights: Float[Array, " k"]) -> Float[Array, "n n"]:
    """sum_x weights_x dp_x dp_x' / (p_x (1 - p_x)), p = policy.right; a deterministic
    action carries no information."""
    theta, rebuild = ravel_pytree(policy)
    J = jax.jacobian(lambda t: rebuild(t).right)(theta)
    variance = policy.right * (1 - policy.right)
    scaled = jnp.where(variance > 0, weights / jnp.where(variance > 0, variance, 1), 0)
    return J.T @ (scaled[:, None] * J)
