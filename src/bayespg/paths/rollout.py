"""Drawing paths: a scan on the device, or a loop over parallel Gymnasium environments."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg._support.warning import warn
from bayespg.environments import Environment, observe
from bayespg.environments.host import Lanes
from bayespg.environments.trajectories import Trajectories
from bayespg.paths.persistence import among, held
from bayespg.policies import AnyPolicy, flatten

Sums = TypeVar("Sums")


@eqx.filter_jit
def rollout(
    environment: Environment,
    policy: AnyPolicy,
    key: PRNGKeyArray,
    paths: int,
    persistence: Float[Array, ""] | None = None,
) -> Trajectories:
    """Draw `paths` independent paths in the precision of the policy (Algorithm 1, line 4).
    `persistence` is that of exploration; None draws every action with fresh random numbers."""

    return walk(environment, policy, key, paths, (), lambda sums, *_: sums, persistence)[0]


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
        t, key_action, key_held, key_step = now
        seen = cast(observe(environment, states))
        at, memories = jax.vmap(policy.step)(memories, seen)
        choices = at.sample(key_action)
        if persistence is not None:
            choices = among(at.sample(key_held), choices)
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
    keys_held = None
    if persistence is not None:
        key_held = jax.random.fold_in(key_steps, environment.horizon)
        keys_held = keys_action[held(key_held, environment.horizon, persistence)]
    (final, _, running, sums), (states, actions, rewards, mask) = jax.lax.scan(
        step, (first, memories, jnp.ones(paths, bool), start),
        (times, keys_action, keys_held, keys_step),
    )  # fmt: skip
    final = cast(observe(environment, final))
    return Trajectories(states, actions, rewards, mask, ~running, final), sums


def _check_step(
    environment: Environment, states: Any, following: Any, rewards: Any, ends: Any
) -> None:
    """ValueError if `step` returns anything but one reward and one boolean per path, and states of
    the same shape; (M, 1) rewards would be broadcast to (M, M) silently. This costs nothing at run
    time: shapes are known when the program is traced."""
    paths = jax.tree.leaves(states)[0].shape[:1]
    for what, given, expected in (
        ("rewards of shape", jnp.shape(rewards), paths),
        ("ends of shape", jnp.shape(ends), paths),
        ("ends of type", jnp.result_type(ends), "bool"),
        ("states of shape", _shapes(following), _shapes(states)),
    ):
        if given != expected:
            name = type(environment).__name__
            raise ValueError(f"environment: {name}.step gave {what} {given}, expected {expected}")


def _shapes(tree: Any) -> Any:
    """The shape of an array, or those of the arrays of a tree."""
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
    return shapes[0] if len(shapes) == 1 else shapes


AT_ONCE, GROWTH = 4096, 4
"""Batches of up to `AT_ONCE` steps in all are padded to the horizon, so that their program is
compiled once. Larger ones are padded to that many steps, or to that times a power of `GROWTH`."""
OPEN_ENDED = 16
"""Where the environment has no time limit and the horizon is long, episodes are padded to this
many steps each, or to that times a power of `GROWTH`."""


Act = Callable[[np.ndarray, int, int], tuple[np.ndarray, np.ndarray]]
"""From the observations of all rows, the step and the number of the wave to the policy's choices
and the resulting actions, which are the same for a policy without memory."""


def certain_length(host: Lanes, episodes: int) -> int | None:
    """Steps to which `play` always pads a batch; None if that depends on the episodes."""
    return host.horizon if host.horizon <= least_length(host, episodes) else None


def least_length(host: Lanes, episodes: int) -> int:
    """Steps to which `play` pads a batch at the least, if the horizon is not shorter."""
    return max(min(AT_ONCE // episodes, OPEN_ENDED if host.open_ended else AT_ONCE), 1)


def play(host: Lanes, act: Act, seeds: Sequence[int]) -> Trajectories:
    """One episode for each seed, in waves: as many at a time as there are lanes.

    `act` chooses for all lanes at once, idle ones included. Arrays are NumPy arrays, observations
    are raw, and the actions are the policy's choices.
    """
    buffer = EpisodeBuffer(host, len(seeds))
    for j in range(0, len(seeds), host.lanes):
        rows = range(min(host.lanes, len(seeds) - j))
        wave = [Episode(row, seeds[j + row], j + row) for row in rows]
        play_wave(host, act, j // host.lanes, wave, host.lanes, buffer)
    return buffer.closed(host)


class Episode(NamedTuple):
    """An episode of a wave: its row among the observations that the policy sees, its seed, and its
    column in a batch."""

    row: int
    seed: int
    column: int


def play_wave(
    host: Lanes,
    act: Act,
    wave: int,
    episodes: Sequence[Episode],
    width: int,
    buffer: "EpisodeBuffer",
) -> None:
    """Play episodes that begin together, each in the lane of its place in the list, with a policy
    that sees `width` rows.

    A row of a program does not depend on the others, but may depend on its place and on the number
    of rows, as these decide how the program is vectorised. An episode has the same row of the same
    program wherever it is played, alone or beside others, and so the same numbers. Idle rows hold
    any observation.
    """
    starts = host.begin([(lane, e.seed) for lane, e in enumerate(episodes)])
    seen = np.repeat(starts[:1], width, 0)
    for episode, first in zip(episodes, starts, strict=True):
        seen[episode.row] = first
    running, time = list(enumerate(episodes)), 0
    while running:
        chosen, meant = act(seen, time, wave)
        sent, actions = host.actions.decode(meant), buffer.for_actions(chosen)
        answers = host.advance([(lane, sent[e.row], e.seed, time) for lane, e in running])
        left = []
        for (lane, e), (following, reward, ended, cut) in zip(running, answers, strict=True):
            at = time, e.column
            buffer.states[at], actions[at], buffer.mask[at] = seen[e.row], chosen[e.row], True
            seen[e.row], buffer.rewards[at] = following, reward
            if ended or cut:
                buffer.final[e.column], buffer.terminated[e.column] = following, ended
            else:
                left.append((lane, e))
        running, time = left, time + 1


class EpisodeBuffer:
    """Arrays of a batch of `count` episodes, filled as they are played."""

    def __init__(self, host: Lanes, count: int):
        T, M, size = host.horizon, count, host.width
        self.states, self.final = np.zeros((T, M, size), np.float32), np.zeros((M, size), "f4")
        self.rewards, self.mask = np.zeros((T, M), np.float32), np.zeros((T, M), bool)
        self.terminated, self._actions = np.zeros(M, bool), None

    def for_actions(self, like: np.ndarray) -> np.ndarray:
        """The array of actions, whose shape and type the first rows of them decide."""
        if self._actions is None:
            self._actions = np.zeros((*self.mask.shape, *like.shape[1:]), like.dtype)
        return self._actions

    def insert(self, j: int, played: Trajectories) -> None:
        """An episode that was played elsewhere, without padding."""
        T, actions = len(played.mask), np.asarray(played.actions)
        self.states[:T, j], self.rewards[:T, j] = played.states[:, 0], played.rewards[:, 0]
        self.for_actions(actions[0])[:T, j], self.mask[:T, j] = actions[:, 0], True
        self.final[j], self.terminated[j] = played.final[0], played.terminated[0]

    def alone(self) -> Trajectories:
        """The only episode, without padding, for `insert`."""
        return self.until(int(self.mask.sum()))

    def closed(self, host: Lanes) -> Trajectories:
        """The whole batch, padded; warns where a default limit has cut an episode off."""
        if not host.limited and (~self.terminated & self.mask[-1]).any():
            warn(
                f"{host.name} has no time limit: episodes are cut off after {host.horizon} steps; "
                "set horizon= for another limit"
            )
            host.limited = True
        longest, kept = int(self.mask.sum(0).max()), least_length(host, self.mask.shape[1])
        while kept < longest:
            kept *= GROWTH
        return self.until(kept)

    def until(self, T: int) -> Trajectories:
        """The batch with `T` steps."""
        assert self._actions is not None
        return Trajectories(
            self.states[:T], self._actions[:T], self.rewards[:T], self.mask[:T],
            self.terminated, self.final,
        )  # fmt: skip
