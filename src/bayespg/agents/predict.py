"""Actions for observations from outside training: what `Agent.predict` does."""

from typing import Any

import jax
import numpy as np

from bayespg._support import checks
from bayespg._support.random import host_key
from bayespg.agents import settings
from bayespg.environments import masks
from bayespg.paths.acting import Acting
from bayespg.paths.worlds import World
from bayespg.policies.deterministic import Greedy


def predict(
    agent: Any,
    memory: Any,
    observation: Any,
    deterministic: bool,
    episode_start: Any,
    action_masks: Any,
) -> tuple[Any, Any]:
    """The environment's actions for one observation or a batch of them, and the memory after it.
    `memory` is None before the first observation of an episode."""
    world: World = agent.world
    key = host_key(int(np.random.default_rng().integers(2**31)))
    checks.refuse_masked("observation", observation)
    try:
        rows, several = world.rows(observation)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"observation: {problem}") from None
    rows = _with_masks(world, rows, action_masks)
    if not np.isfinite(rows).all():
        raise ValueError(f"observation: expected finite numbers, found {observation!r}")
    first = _beginning(len(rows), memory, episode_start)
    policy = agent.state.acting
    with agent.precision():
        act = Acting(Greedy(policy) if deterministic else policy, key, memory)
        _, actions = act(rows, 0, 0, first)
    decoded = world.decode(actions)
    return np.stack(decoded) if several else decoded[0], act.memories


def _beginning(rows: int, memory: Any, episode_start: Any) -> np.ndarray:
    """Which rows begin an episode."""
    for leaf in jax.tree.leaves(memory):
        if len(leaf) != rows:
            raise ValueError(
                f"observation: {rows} rows, and the memory is of {len(leaf)}; call "
                "agent.reset() first"
            )
    first = np.full(rows, memory is None)
    if episode_start is not None:
        try:
            first |= np.asarray(episode_start, bool)
        except (TypeError, ValueError):
            raise ValueError(
                f"episode_start: expected {rows} flags, found {episode_start!r}"
            ) from None
    return first


def _with_masks(world: World, observations: np.ndarray, given: Any) -> np.ndarray:
    """Observations with the masks of their states behind them, if the agent uses masks."""
    if world.masks == 0:
        if given is not None:
            raise settings.no_effect("action_masks", given, "this agent uses no masks")
        return observations
    sizes = world.actions.sizes  # pyright: ignore
    rows = np.atleast_2d(np.asarray(given)) if given is not None else []
    if len(rows) != len(observations):
        raise ValueError(
            f"action_masks: expected one mask for each of {len(observations)} observations, found "
            f"{len(rows)}"
        )
    try:
        allowed = np.stack([masks.checked(row, sizes) for row in rows])
    except ValueError as problem:
        raise ValueError(f"action_masks: {problem}") from None
    return np.concatenate([observations, allowed], 1)
