"""Drawing paths: a scan on the device."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from bayespg.environments import Environment, observe
from bayespg.policies import AnyPolicy, MemoryPolicy, flatten
from bayespg.trajectories import Trajectories
from bayespg.types import Array

Sums = TypeVar("Sums")


def rollout(
    environment: Environment, policy: AnyPolicy, key: PRNGKeyArray, paths: int
) -> Trajectories:
    """Draw `paths` independent paths in the precision of the policy (Algorithm 1, line 4)."""
    return walk(environment, policy, key, paths, (), lambda sums, *step: sums)[0]


def walk(
    environment: Environment,
    policy: AnyPolicy,
    key: PRNGKeyArray,
    paths: int,
    start: Sums,
    add: Callable[[Sums, Array, Array, Array, Array, Array], Sums],
) -> tuple[Trajectories, Sums]:
    """Draw paths and sum along them: ``sums = add(sums, t, states, actions, rewards, running)``
    after each step, with what the policy saw for states and what it chose for actions.

    What is summed on the way need not be stored: a compiled caller that uses the sums alone never
    holds the paths.
    """
    key_reset, key_steps = jax.random.split(key)
    dtype = flatten(policy)[0].dtype

    def cast(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def step(carry, now):
        states, memories, running, sums = carry
        t, key = now
        key_action, key_step = jax.random.split(key)
        seen = cast(observe(environment, states))
        if isinstance(policy, MemoryPolicy):
            at, memories = jax.vmap(policy)(memories, seen)
            choices = at.sample(key_action)
            actions, memories = jax.vmap(policy.settle)(memories, choices)
        else:
            actions = choices = jax.vmap(policy)(seen).sample(key_action)
        following, rewards, ends = environment.step(key_step, states, actions)
        rewards = rewards.astype(dtype)

        def hold(new: Array, old: Array) -> Array:
            return jnp.where(running.reshape(running.shape + (1,) * (old.ndim - 1)), new, old)

        following = jax.tree.map(hold, following, states)
        sums = add(sums, t, seen, choices, rewards, running)
        return (following, memories, running & ~ends, sums), (seen, choices, rewards, running)

    first = jax.tree.map(cast, environment.reset(key_reset, paths))
    memory = policy.start() if isinstance(policy, MemoryPolicy) else ()
    memories = jax.tree.map(lambda m: jnp.broadcast_to(m, (paths, *m.shape)), memory)
    times = (jnp.arange(environment.horizon), jax.random.split(key_steps, environment.horizon))
    (final, _, running, sums), (states, actions, rewards, mask) = jax.lax.scan(
        step, (first, memories, jnp.ones(paths, bool), start), times
    )
    final = cast(observe(environment, final))
    return Trajectories(states, actions, rewards, mask, ~running, final), sums
