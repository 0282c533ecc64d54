"""A learned model as an environment in JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from bayespg._support.random import normal
from bayespg._support.types import Array
from bayespg.environments import Environment
from bayespg.models.data import Inputs
from bayespg.models.features import Circles, Quadratic, Terms, Units
from bayespg.models.networks import Networks

HORIZON, DISCOUNT = 200, 0.99


class Knowledge(NamedTuple):
    """What a user knows of a task, as functions of one state, one action as the environment gets
    it, and the state that follows, written in JAX; None is learned."""

    reward: Callable[[Any, Any, Any], Any] | None = None
    terminated: Callable[[Any, Any, Any], Any] | None = None


class Observed(eqx.Module):
    """Where states and rewards were observed. Predictions stay within these ranges, which are
    widened a little, so that simulated episodes cannot diverge."""

    circles: Circles
    low: Float[Array, " d"]
    high: Float[Array, " d"]
    lowest: Float[Array, ""]
    """Range of rewards."""
    highest: Float[Array, ""]
    firsts: Float[Array, "F d"]
    """First states of episodes."""
    first_count: Int[Array, ""]
    width: Float[Array, " d"]
    """Standard deviation of the noise that is added to these."""
    visited: Float[Array, "S d"]

    def states(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """The nearest states that are within the range and on the circles."""
        return self.circles(jnp.clip(x, self.low, self.high))

    def rewards(self, r: Float[Array, " N"]) -> Float[Array, " N"]:
        """The nearest rewards that are within the range."""
        return jnp.clip(r, self.lowest, self.highest)

    def starts(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M d"]:
        """Half of them observed first states, with a little noise (that of a kernel density
        estimate), the others any observed states."""
        key_first, key_noise, key_any = jax.random.split(key, 3)
        half = paths // 2
        first = self.firsts[jax.random.randint(key_first, (paths - half,), 0, self.first_count)]
        first = first + self.width * normal(key_noise, first.shape, first.dtype)
        anywhere = self.visited[jax.random.randint(key_any, (half,), 0, len(self.visited))]
        return jnp.concatenate([self.states(first), anywhere])


class Bonus(eqx.Module):
    """What the last step of an episode earns more or less than others of its kind, linear in the
    features by which termination is predicted: a goal pays, a wall does not."""

    weights: Float[Array, " q"]
    least: Float[Array, ""]
    most: Float[Array, ""]

    def __call__(self, psi: Float[Array, "N q"]) -> Float[Array, " N"]:
        return jnp.clip(psi @ self.weights, self.least, self.most)

    def times(self, factor: Float[Array, ""]) -> "Bonus":
        return jax.tree.map(lambda x: x * factor, self)


class Linear(eqx.Module):
    """What a step leads to by a regression in features: the change of the state and the reward,
    without noise; the standard deviation of the noise; and that of the next state under the
    posterior, by the disagreement of draws, in units of the standard deviation of observed states.
    """

    features: Terms
    weights: Float[Array, "p o"]
    """Of the changes of the state, of the reward, and of what draws of the model differ by."""
    constant: Float[Array, " d1"]
    noise: Float[Array, " d1"]
    """Standard deviations."""

    def __call__(
        self, x: Float[Array, "M d"], encoded: Float[Array, "M k"]
    ) -> tuple[Float[Array, "M d1"], Float[Array, "*M d1"], Float[Array, " M"]]:
        y, many = self.features(x, encoded) @ self.weights, self.constant.size
        apart = jnp.sqrt(jnp.mean(y[:, many:] ** 2, 1))
        return y[:, :many] + self.constant, self.noise, apart


class Ensemble(eqx.Module):
    """The same by networks. Each path follows one member, or all of them the same one."""

    networks: Networks
    units: Units
    """Of the changes of the state and the reward."""
    ratio: Float[Array, " d"]
    """Standard deviations of changes in those of states."""
    member: Int[Array, ""]
    """Which one; each path has its own where it is negative."""

    def __call__(
        self, x: Float[Array, "M d"], encoded: Float[Array, "M k"]
    ) -> tuple[Float[Array, "M d1"], Float[Array, "M d1"], Float[Array, " M"]]:
        means, variances = self.networks(x, encoded)
        E, M = means.shape[:2]
        rows = jnp.arange(M)
        member = jnp.where(self.member < 0, rows % E, self.member)
        mean, deviation = means[member, rows], jnp.sqrt(variances[member, rows])
        spread = jnp.var(means[:, :, :-1], 0, ddof=1) * self.ratio**2
        apart = jnp.sqrt(jnp.median(spread, 1))
        return mean * self.units.scale + self.units.mean, deviation * self.units.scale, apart


class Learned(Environment):
    """The mean or a draw of a model. Its episodes begin as `Observed.starts` says. Changes of the
    state have the noise that the model has found, rewards are those that it expects: noise would
    not change the expected return, but hide it, and be cut off at the least and largest reward."""

    inputs: Inputs
    states: Units
    outcome: Linear | Ensemble
    offset: Float[Array, ""]
    bonus: Bonus
    ends: Quadratic
    end_weights: Float[Array, " q"]
    can_end: Bool[Array, ""]
    observed: Observed
    paid: Float[Array, ""]
    """The share of learned rewards that is paid."""
    curiosity: Float[Array, ""]
    horizon: int = eqx.field(static=True)
    discount: float = eqx.field(static=True)
    known: Knowledge = eqx.field(static=True, default=Knowledge())

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M d"]:
        return self.observed.starts(key, paths)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M d"], actions: Shaped[Array, "M *action"]
    ) -> tuple[Float[Array, "M d"], Float[Array, " M"], Bool[Array, " M"]]:
        return self.transition(key, states, actions)[:3]

    def transition(
        self, key: PRNGKeyArray, states: Float[Array, "M d"], actions: Shaped[Array, "M *action"]
    ) -> tuple[Float[Array, "M d"], Float[Array, " M"], Bool[Array, " M"], Float[Array, " M"]]:
        """What `step` returns, and the standard deviation of the next state under the posterior, by
        the disagreement of draws, in units of the standard deviation of observed states."""
        key_noise, key_end = jax.random.split(key)
        M, d = states.shape
        encoded = self.inputs(actions).astype(states.dtype)
        mean, noise, unknown = self.outcome(self.states(states), encoded)
        y = mean + noise * normal(key_noise, mean.shape, mean.dtype)
        following = self.observed.states(states + y[:, :d])

        def ends() -> Any:
            psi = self.ends(self.states(following))
            chance = jax.nn.sigmoid(psi @ self.end_weights)
            return jax.random.uniform(key_end, (M,), chance.dtype) < chance, self.bonus(psi)

        never = jnp.zeros(M, bool), jnp.zeros(M, y.dtype)
        ended, bonus = jax.lax.cond(self.can_end, ends, lambda: never)
        if self.known.terminated is not None:
            ended = self._told(self.known.terminated, states, actions, following).astype(bool)
        if self.known.reward is None:
            rewards = self.observed.rewards(mean[:, d])
            rewards = self.paid * (rewards + jnp.where(ended, self.offset + bonus, 0.0))
        else:
            rewards = self._told(self.known.reward, states, actions, following)
        return following, rewards + self.curiosity * unknown, ended, unknown

    def _told(self, function: Callable[..., Any], states: Any, actions: Any, following: Any) -> Any:
        return jax.vmap(function)(states, self.inputs.told(actions), following).reshape(len(states))
