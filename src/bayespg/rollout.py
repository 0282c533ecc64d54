"""Drawing paths: a scan on the device."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from bayespg.environments import Environment
from bayespg.policies import Policy, flatten
from bayespg.trajectories import Trajectories
from bayespg.types import Array

Sums = TypeVar("Sums")


def rollout(
    environment: Environment, policy: Policy, key: PRNGKeyArray, paths: int
) -> Trajectories:
    """Draw `paths` independent paths in the precision of the policy (Algorithm 1, line 4)."""
    return walk(environment, policy, key, paths, (), lambda sums, *step: sums)[0]


def walk(
    environment: Environment,
    policy: Policy,
    key: PRNGKeyArray,
    paths: int,
    start: Sums,
    add: Callable[[Sums, Array, Array, Array, Array, Array], Sums],
) -> tuple[Trajectories, Sums]:
    """Draw paths and sum along them: ``sums = add(sums, t, states, actions, rewards, running)``
    after each step.

    What is summed on the way need not be stored: a compiled caller that uses the sums alone never
    holds the paths.
    """
    key_reset, key_steps = jax.random.split(key)
    dtype = flatten(policy)[0].dtype

    def step(carry, now):
        states, running, sums = carry
        t, key = now
        key_action, key_step = jax.random.split(key)
        actions = jax.vmap(policy)(states).sample(key_action)
        following, rewards, ends = environment.step(key_step, states, actions)
        rewards = rewards.astype(dtype)
        going = running.reshape(running.shape + (1,) * (states.ndim - 1))
        following = jnp.where(going, following, states)
        sums = add(sums, t, states, actions, rewards, running)
        return (following, running & ~ends, sums), (states, actions, rewards, running)

    first = environment.reset(key_reset, paths)
    first = first.astype(dtype) if jnp.issubdtype(first.dtype, jnp.floating) else first
    times = (jnp.arange(environment.horizon), jax.random.split(key_steps, environment.horizon))
    (final, running, sums), (states, actions, rewards, mask) = jax.lax.scan(
        step, (first, jnp.ones(paths, bool), start), times
    )
    return Trajectories(states, actions, rewards, mask, ~running, final), sums
