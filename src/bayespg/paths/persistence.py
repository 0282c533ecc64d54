"""Exploration that persists over several steps.

Independent noise at each step averages out: it hardly moves a car out of a valley, and a gradient
learns nothing from episodes that all end alike. With persistence rho a step uses the random numbers
of the step before with probability rho, and fresh ones otherwise, whatever the distribution of
actions. The distribution of each action given its state is nearly unchanged, but successive actions
lean the same way, for 1 / (1 - rho) steps on average.

Scores remain those of independent draws, so that with rho > 0 the estimated gradient is only
approximately that of the policy, and where pushing the same way leads astray it is none. Without it
some tasks show no reward at all. So only every second episode of a batch explores persistently, and
rho fades during training, fast if the others return more.

Where rewards say nothing about the actions (`informed`), as on a mountain car that has not reached
the goal, updates look for unfamiliar states instead (`bayespg.learning.advance`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from bayespg._support.types import Array
from bayespg.environments.trajectories import Trajectories, returns

FADE, FAILED = 0.05, 0.75
"""Share of the persistence of exploration that an update takes away: if the episodes that explored
persistently returned at least as much as the others, and if they returned less. Where rewards say
nothing there is still everything to explore, and persistence stays."""


def decayed(
    persistence: Float[Array, ""] | None, paths: Trajectories, informative: Bool[Array, ""]
) -> Float[Array, ""] | None:
    """The persistence of the next batch. `informative` is whether the rewards of this one tell
    actions apart (`informed`)."""
    if persistence is None:
        return None
    R, these = returns(paths), explorers(paths.mask.shape[1])
    persistent, other = (jnp.mean(R, where=who) for who in (these, ~these))
    taken = jnp.where(other > persistent, FAILED, FADE)
    return persistence * (1 - jnp.where(informative, taken, 0.0))


def held(
    key: PRNGKeyArray, horizon: int, persistence: float | Float[Array, ""]
) -> Int[Array, " T"]:
    """For each step the earlier step, or the step itself, whose random numbers it uses."""
    fresh = jax.random.uniform(key, (horizon,)) >= persistence
    return jax.lax.cummax(jnp.where(fresh, jnp.arange(horizon), 0))


def explorers(paths: int, before: int | Int[Array, ""] = 0) -> Bool[Array, " M"]:
    """Which of `paths` episodes, that follow `before` others of their batch, explore persistently:
    the first, and every second after it."""
    return (before + jnp.arange(paths)) % 2 == 0


def among(
    again: Shaped[Array, "M *k"], fresh: Shaped[Array, "M *k"], before: int | Int[Array, ""] = 0
) -> Shaped[Array, "M *k"]:
    """Choices made with held random numbers for the episodes that explore persistently, and with
    fresh ones for the others."""
    these = explorers(len(fresh), before).reshape(-1, *(1 for _ in fresh.shape[1:]))
    return jnp.where(these, again, fresh)


def informed(paths: Trajectories) -> Bool[Array, ""]:
    """Whether the rewards say anything about the actions: False if all rewards are equal and no
    episode ended by itself, or if several episodes have the same lengths and the same rewards, step
    by step; rewards are equal if they differ by rounding only.

    What an episode still earns is then a function of time alone, or unknown. Values of time would
    explain it, and scores, whose mean is zero at each time, cannot: what values of states leave to
    them is an error of these values.
    """
    taken, ended = paths.mask, paths.terminated
    rewards = jnp.where(taken, paths.rewards, 0.0)
    rounding = 10 * jnp.finfo(rewards.dtype).eps * jnp.max(jnp.abs(rewards))
    filled = jnp.where(taken, rewards, rewards[0, 0])
    constant = ~jnp.any(ended) & (jnp.max(filled) - jnp.min(filled) <= rounding)
    if taken.shape[1] == 1:
        return ~constant
    alike = jnp.all(taken == taken[:, :1])
    apart = jnp.max(jnp.max(rewards, 1) - jnp.min(rewards, 1))
    return ~(constant | (alike & (apart <= rounding)))


def only_gains(paths: Trajectories) -> Bool[Array, ""]:
    """Whether every step was rewarded and no episode ended by itself, so that none could have been
    better by ending."""
    return jnp.all(jnp.where(paths.mask, paths.rewards, 1.0) > 0) & ~jnp.any(paths.terminated)
