"""Drawing paths: a scan on the device."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from bayespg.environments import Environment
from bayespg.policies import Policy
from bayespg.trajectories import Trajectories


def rollout(
    environment: Environment, policy: Policy, key: PRNGKeyArray, paths: int
) -> Trajectories:
    """Draw `paths` independent paths (Algorithm 1, line 4)."""
    return jax.vmap(lambda k: _path(environment, policy, k))(jax.random.split(key, paths))


def _path(environment: Environment, policy: Policy, key: PRNGKeyArray) -> Trajectories:
    key_reset, key_steps = jax.random.split(key)

    def step(carry, keys):
        state, running = carry
        key_action, key_step = keys
        action = policy(state).sample(key_action)
        following, reward, ends = environment.step(key_step, state, action)
        following = jax.tree.map(lambda new, old: jnp.where(running, new, old), following, state)
        return (following, running & ~ends), (state, action, reward, running)

    start = (environment.reset(key_reset), jnp.asarray(True))
    keys = jax.random.split(key_steps, (environment.horizon, 2))
    (final, running), (states, actions, rewards, mask) = jax.lax.scan(step, start, keys)
    return Trajectories(states, actions, rewards, mask, ~running, final)
