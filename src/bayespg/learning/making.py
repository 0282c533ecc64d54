"""What an agent is made of: its world, its policy, and the settings in force.

A setting that would have no effect is refused, with the reason.
"""

import math
from typing import Any

from jaxtyping import PRNGKeyArray

from bayespg.environments.spaces import Actions, Bounded, Choices
from bayespg.learning import batch_size, choices
from bayespg.learning.estimators import Needs
from bayespg.learning.settings import Settings, no_effect
from bayespg.paths.worlds import OnHost, World, world
from bayespg.policies import AnyPolicy, named
from bayespg.policies.masked import masked


def world_of(environment: Any, s: Settings, options: dict[str, Any]) -> World:
    """The world of an environment, which may have the name of one of this package."""
    known = choices.built_in(environment) if isinstance(environment, str) else None
    return world(
        known.environment if known else environment, discount=s["discount"],
        horizon=s.horizon, lanes=min(s["lanes"], most(s)), bounds=s["bounds"],
        options=options, workers=s.workers, episode_timeout=s.episode_timeout, masks=s.masks,
    )  # fmt: skip


def policy_of(
    given: Any, environment: Any, where: World, s: Settings, needs: Needs, key: PRNGKeyArray
) -> tuple[str | AnyPolicy, AnyPolicy]:
    """The name of the policy, or the policy given, and the initial policy."""
    if isinstance(given, AnyPolicy):
        return given, masked(given, where.masks) if where.masks else given
    if not isinstance(given, str | None):
        raise ValueError(
            f"policy: expected a name, a Policy or a MemoryPolicy, found {type(given).__name__}"
        )
    known = choices.built_in(environment) if isinstance(environment, str) else None
    if known is not None and known.policy is not None:
        if given not in (None, choices.PAPER):
            raise no_effect("policy", given, f"{environment} comes with the paper's policy")
        return choices.PAPER, known.policy()
    if where.actions is None:
        raise ValueError("policy: for an environment of your own in JAX give a Policy object")
    name = given or default_policy(where.actions, needs)
    if isinstance(where, OnHost):
        where.host.observations.refuse_images()
    inputs = math.prod(where.observation.shape) - where.masks
    start = named.make(name, inputs, where.actions, key, s["hidden"])
    return name, masked(start, where.masks) if where.masks else start


def default_policy(actions: Actions, needs: Needs) -> str:
    """The name of the policy that learns fastest. Without a damped metric it must have few
    parameters. The best of a few actions is often a nearly linear decision, while the mean of a
    continuous action must itself be accurate, and a network learns where."""
    if not needs.recent:
        return "linear"
    return "fourier" if isinstance(actions, Choices) else "mlp"


def most(s: Settings) -> int:
    """The largest number of episodes of an update."""
    return batch_size.episodes(asked(s), 0.0)


def asked(s: Settings) -> int | str:
    """`episodes` of an agent, which has resolved it."""
    assert s.episodes is not None
    return s.episodes


def persistence(s: Settings, needs: Needs) -> float:
    """As wanted; unless stated otherwise, estimators of the paper explore independently."""
    return s["persistence"] if needs.recent else s.persistence or 0.0


def normalised(s: Settings, where: World) -> bool:
    if s.normalise and not where.real:
        raise ValueError("normalise: the observations are whole numbers; leave it out")
    return isinstance(where, OnHost) if s.normalise is None else s.normalise


def in_force(
    s: Settings, where: World, names: dict[str, Any], needs: Needs
) -> dict[str, tuple[Any, str]]:
    """The settings in force, each with the reason why it can have no other value."""
    task, host = where.name, where if isinstance(where, OnHost) else None
    policy, estimator, update = (
        name if isinstance(name, str) else f"a {type(name).__name__} of your own"
        for name in (names[kind] for kind in ("policy", "estimator", "update"))
    )
    limited, rated = update in choices.LIMITED, isinstance(names["update"], str)
    bounded = isinstance(where.actions, Bounded) and where.actions.bounded
    lanes = f"an update of {most(s)} episodes fills no more lanes"
    if host is None:
        lanes = f"{task} in JAX draws all paths at once"
    elif host.lanes < min(s["lanes"], most(s)):
        lanes = f"the environment that was given is {host.lanes} of them"
    return {
        "discount": (where.discount, f"{task} has its own discount, {where.discount:g}"),
        "horizon": (where.horizon, f"{task} ends episodes after {where.horizon} steps"),
        "lanes": (host and host.lanes, lanes),
        "workers": (s.workers if host is not None else None, f"{task} runs in JAX"),
        "normalise": (normalised(s, where), ""),
        "persistence": (persistence(s, needs), ""),
        "masks": (where.masks > 0, f"{task} runs in JAX"),
        "bounds": (s["bounds"] if bounded else None, f"actions of {task} have no bounds"),
        "hidden": (s["hidden"] if policy == "mlp" else None, f"{policy} has no such layers"),
        "smoothing": (needs.smoothing, f"{estimator} has no lambda to choose"),
        "limit": (s["limit"] if limited else None, f"{update} has no such limit"),
        "rate": (s["rate"] if rated and not limited else None, f"{update} takes no rate"),
    }  # fmt: skip
