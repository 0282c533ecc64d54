"""Drawing paths: a scan on the device, or a loop over parallel Gymnasium environments."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments import Environment, observe
from bayespg.environments.host import Lanes
from bayespg.environments.trajectories import Trajectories
from bayespg.paths.persistence import held
from bayespg.policies import AnyPolicy, flatten

Sums = TypeVar("Sums")


def rollout(
    environment: Environment,
    policy: AnyPolicy,
    key: PRNGKeyArray,
    paths: int,
    persistence: Float[Array, ""] | None = None,
) -> Trajectories:
    """Draw `paths` independent paths in the precision of the policy (Algorithm 1, line 4).
    `persistence` is that of exploration; None draws every action with fresh random numbers."""

    def add(sums, *step):
        return sums

    return walk(environment, policy, key, paths, (), add, persistence)[0]


def walk(
    environment: Environment,
    policy: AnyPolicy,
    key: PRNGKeyArray,
    paths: int,
    start: Sums,
    add: Callable[[Sums, Array, Array, Array, Array, Array], Sums],
    persistence: Float[Array, ""] | None = None,
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
        t, key_action, key_step = now
        seen = cast(observe(environment, states))
        at, memories = jax.vmap(policy.step)(memories, seen)
        choices = at.sample(key_action)
        actions, memories = jax.vmap(policy.settle)(memories, choices)
        following, rewards, ends = environment.step(key_step, states, actions)
        _check_step(environment, states, following, rewards, ends)
        rewards = rewards.astype(dtype)

        def hold(new: Array, old: Array) -> Array:
            at = running.reshape(running.shape + (1,) * (old.ndim - 1))
            return jnp.where(at, new.astype(old.dtype), old)

        following = jax.tree.map(hold, following, states)
        sums = add(sums, t, seen, choices, rewards, running)
        return (following, memories, running & ~ends, sums), (seen, choices, rewards, running)

    first = jax.tree.map(cast, environment.reset(key_reset, paths))
    memories = jax.tree.map(lambda m: jnp.broadcast_to(m, (paths, *m.shape)), policy.start())
    times, keys = jnp.arange(environment.horizon), jax.random.split(key_steps, environment.horizon)
    keys = jax.vmap(jax.random.split)(keys)
    keys_action, keys_step = keys[:, 0], keys[:, 1]
    if persistence is not None:
        key_held = jax.random.fold_in(key_steps, environment.horizon)
        keys_action = keys_action[held(key_held, environment.horizon, persistence)]
    (final, _, running, sums), (states, actions, rewards, mask) = jax.lax.scan(
        step, (first, memories, jnp.ones(paths, bool), start), (times, keys_action, keys_step)
    )
    final = cast(observe(environment, final))
    return Trajectories(states, actions, rewards, mask, ~running, final), sums


def _check_step(
    environment: Environment, states: Any, following: Any, rewards: Any, ends: Any
) -> None:
    """ValueError if `step` returns anything but one reward and one boolean per path, and states of
    the same shape; (M, 1) rewards would be broadcast to (M, M) silently. This costs nothing at run
    time: shapes are known when the program is traced."""
    paths = jax.tree.leaves(states)[0].shape[:1]
    ended = jnp.result_type(ends)
    before, after = (jax.tree.map(jnp.shape, x) for x in (states, following))
    for wrong, found, expected in (
        (jnp.shape(rewards) != paths, f"rewards of shape {jnp.shape(rewards)}", paths),
        (jnp.shape(ends) != paths, f"ends of shape {jnp.shape(ends)}", paths),
        (ended != jnp.bool_, f"ends of type {ended}", "bool"),
        (before != after, f"states of shape {after}", before),
    ):
        if wrong:
            name = type(environment).__name__
            raise ValueError(f"environment: {name}.step gave {found}, expected {expected}")


AT_ONCE, GROWTH = 4096, 4
"""Batches of up to `AT_ONCE` steps in all are padded to the horizon, so that their program is
compiled once. Larger ones are padded to that many steps, or to that times a power of `GROWTH`."""


Act = Callable[[np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From observations, the tick, and whether each lane is at the first step of its episode, to the
policy's choices and the resulting actions, which are the same for a policy without memory."""


def certain_length(host: Lanes, episodes: int) -> int | None:
    """Steps to which `play` always pads a batch; None if that depends on the episodes."""
    return host.horizon if host.horizon <= max(AT_ONCE // episodes, 1) else None


def play(host: Lanes, act: Act, seeds: Sequence[int]) -> Trajectories:
    """One episode for each seed, as many at a time as there are lanes.

    `act` chooses for all lanes at once, idle ones included. Arrays are NumPy arrays, observations
    are raw, and the actions are the policy's choices.
    """
    M, T = len(seeds), host.horizon
    states = np.zeros((T, M, host.width), np.float32)
    rewards, mask = np.zeros((T, M), np.float32), np.zeros((T, M), bool)
    terminated, final = np.zeros(M, bool), np.zeros(states.shape[1:], np.float32)
    actions = None
    waiting = iter(range(M))
    seen = np.zeros((host.lanes, host.width), np.float32)
    episode, time = [-1] * host.lanes, [0] * host.lanes

    def begin() -> None:
        free = [lane for lane in range(host.lanes) if episode[lane] < 0]
        if host.together and len(free) < host.lanes:
            return
        starts = list(zip(free, waiting, strict=False))
        for lane, j in starts:
            episode[lane], time[lane] = j, 0
        if starts:
            at = [lane for lane, _ in starts]
            seen[at] = host.begin([(lane, seeds[j]) for lane, j in starts])

    begin()
    tick = 0
    while any(j >= 0 for j in episode):
        chosen, meant = act(seen, tick, np.equal(time, 0))
        told = host.actions.decode(meant)
        if actions is None:
            actions = np.zeros((T, M, *chosen.shape[1:]), chosen.dtype)
        running = [(lane, j, time[lane]) for lane, j in enumerate(episode) if j >= 0]
        answers = host.advance([(lane, told[lane], seeds[j], t) for lane, j, t in running])
        for (lane, j, t), (following, reward, ended, cut) in zip(running, answers, strict=True):
            states[t, j], actions[t, j], mask[t, j] = seen[lane], chosen[lane], True
            seen[lane], rewards[t, j], time[lane] = following, reward, t + 1
            if ended or cut:
                terminated[j], final[j], episode[lane] = ended, following, -1
        begin()
        tick += 1
    assert actions is not None
    if not host.limited and (~terminated & mask[-1]).any():
        warnings.warn(
            f"{host.name} has no time limit: episodes are cut off after {T} steps; set horizon= "
            "for another limit",
            stacklevel=2,
        )
        host.limited = True
    longest, kept = int(mask.sum(0).max()), max(AT_ONCE // M, 1)
    while kept < longest:
        kept *= GROWTH
    return Trajectories(
        states[:kept], actions[:kept], rewards[:kept], mask[:kept], terminated, final
    )
