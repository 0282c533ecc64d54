"""The linear-quadratic regulator of Section 6.2.

    x_0 ~ N(0.3, 0.001),   x_{t+1} = x_t + a_t + n_x,   n_x ~ N(0, 0.01),   cost x_t^2 + 0.1 a_t^2

over 20 steps (N(m, v) is mean and variance). The cost is negated, so the return is maximised. For a
policy a ~ N(gain x, scale^2) the first two moments of x_t follow a linear recursion, which gives
the expected return and the Fisher matrix in closed form.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.random import normal
from bayespg._support.types import Array
from bayespg.environments.base import Solved, gaussian_fisher
from bayespg.environments.trajectories import Trajectories


class LQR(Solved):
    """x' = state_gain x + action_gain a + offset + N(0, state_noise^2)."""

    known = ("gain", "scale")

    state_gain: float | Float[Array, ""] = 1.0
    action_gain: float | Float[Array, ""] = 1.0
    offset: float | Float[Array, ""] = 0.0
    state_noise: float | Float[Array, ""] = 0.1
    """Standard deviation of the transition."""
    initial_mean: float | Float[Array, ""] = 0.3
    initial_variance: float | Float[Array, ""] = 0.001
    action_cost: float = 0.1
    reward_noise: float = eqx.field(static=True, default=0.0)
    """Standard deviation sigma_r of Gaussian noise on each reward."""
    horizon: int = eqx.field(static=True, default=20)
    discount: float = eqx.field(static=True, default=1.0)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, " M"]:
        return self.initial_mean + self.initial_variance**0.5 * normal(key, (paths,))

    def step(
        self, key: PRNGKeyArray, states: Float[Array, " M"], actions: Float[Array, " M"]
    ) -> tuple[Float[Array, " M"], Float[Array, " M"], Bool[Array, " M"]]:
        key_state, key_reward = jax.random.split(key)
        rewards = -(states**2 + self.action_cost * actions**2)
        if self.reward_noise:
            rewards += self.reward_noise * normal(key_reward, states.shape, states.dtype)
        n_x = self.state_noise * normal(key_state, states.shape, states.dtype)
        following = self.state_gain * states + self.action_gain * actions + self.offset + n_x
        return following, rewards, jnp.zeros_like(states, bool)

    def second_moments(self, policy: Any) -> Float[Array, " T"]:
        """E[x_t^2] for t < T, with k = state_gain + action_gain gain:

        E[x'] = k E[x] + c,   E[x'^2] = k^2 E[x^2] + 2 k c E[x] + c^2 + (action_gain scale)^2 +
        state_noise^2.
        """
        k = self.state_gain + self.action_gain * policy.gain
        noise = (self.action_gain * policy.scale) ** 2 + self.state_noise**2

        def advance(moments: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
            m, s = moments
            second = k**2 * s + 2 * k * self.offset * m + self.offset**2 + noise
            return (k * m + self.offset, second), s

        m0 = jnp.asarray(self.initial_mean, jnp.result_type(k))
        start = (m0, m0**2 + self.initial_variance)
        return jax.lax.scan(advance, start, None, self.horizon)[1]

    def expected_return(self, policy: Any) -> Float[Array, ""]:
        s = self.second_moments(policy)
        costs = s + self.action_cost * (policy.gain**2 * s + policy.scale**2)
        return -jnp.sum(costs * self.discount ** jnp.arange(self.horizon))

    def fisher(self, policy: Any) -> Float[Array, "n n"]:
        """sum_t E[x_t^2] dgain dgain' / scale^2 + 2 T dscale dscale' / scale^2."""
        visited = jnp.sum(self.second_moments(policy))
        return gaussian_fisher(policy, "gain", visited, self.horizon)


def return_over_history(
    environment: LQR, noise: float | Float[Array, ""], policy: Any
) -> Float[Array, ""]:
    """eta of a ~ N(gain'(o_{t-k+1}, ..., o_t), scale^2), which sees o = x + N(0, noise^2) and
    zeros before the first: of ``History(Noisy(environment, noise), k)``.

    z = (1, x, o_{t-k+1}, ..., o_t) follows z' = F z + N(0, Q), so S = E[z z'] becomes F S F' + Q.
    """
    e, gain = environment, jnp.asarray(policy.gain)
    zero = jnp.zeros(gain.size + 2, gain.dtype)
    one, o = zero.at[0].set(1), zero.at[-1].set(1)
    x = zero.at[1].set(1) + o
    acts = zero.at[2:].set(gain)
    moves = jnp.asarray(e.action_gain * acts + e.offset * one + zero.at[1].set(e.state_gain))
    shift = jnp.diag(zero[1:].at[2:].set(1), 1)  # o_s moves one place forward
    F = jnp.outer(one, one) + jnp.outer(x, moves) + shift
    seen = noise**2 * jnp.outer(o, o)
    Q = (e.state_noise**2 + (e.action_gain * policy.scale) ** 2) * jnp.outer(x, x) + seen
    mean = one + e.initial_mean * x
    S = jnp.outer(mean, mean) + e.initial_variance * jnp.outer(x, x) + seen

    def advance(S: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        cost = S[1, 1] + e.action_cost * (acts @ S @ acts + policy.scale**2)
        return F @ S @ F.T + Q, cost

    costs = jax.lax.scan(advance, S, None, e.horizon)[1]
    return -jnp.sum(costs * e.discount ** jnp.arange(e.horizon))


def fit(paths: Trajectories, like: LQR) -> LQR:
    """Maximum likelihood of P(x'|x, a) = N(c_1 x + c_2 a + c_3, c_4^2) and of P_0 (Section 6.2.2).

    `like` gives what is not learned: horizon, discount and costs.
    """
    following = jnp.concatenate([paths.states[1:], paths.final[None]])
    dtype = jnp.result_type(float)
    x, a, y, w = (
        z.reshape(-1).astype(dtype) for z in (paths.states, paths.actions, following, paths.mask)
    )
    # Means first: the normal equations of what is left are well conditioned.
    mean_x, mean_a, mean_y = (jnp.sum(w * z) / jnp.sum(w) for z in (x, a, y))
    x, a, y = x - mean_x, a - mean_a, y - mean_y
    A = jnp.stack([x, a], 1)
    c_1, c_2 = jnp.linalg.solve((w * A.T) @ A, A.T @ (w * y))
    c_3 = mean_y - c_1 * mean_x - c_2 * mean_a
    residuals = (y - c_1 * x - c_2 * a) * w
    first = paths.states[0]
    c_4 = jnp.sqrt(jnp.sum(residuals**2) / jnp.sum(w))
    return dataclasses.replace(
        like, state_gain=c_1, action_gain=c_2, offset=c_3, state_noise=c_4,
        initial_mean=first.mean(), initial_variance=first.var(),
    )  # fmt: skip
