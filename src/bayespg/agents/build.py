"""What an agent is made of: its world, its policy, and the settings in force.

A setting that would have no effect is refused, with the reason.
"""

import math
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from bayespg.agents import names
from bayespg.agents.settings import DEFAULTS, Settings, no_effect
from bayespg.environments import Adapted
from bayespg.environments.spaces import Actions, Choices
from bayespg.learning import trust
from bayespg.learning.estimators import BAC, Estimator, Metric, Needs
from bayespg.paths.worlds import OnHost, World, world
from bayespg.policies import AnyPolicy, SparsePolicy, named
from bayespg.policies.masked import masked
from bayespg.policies.network import FORMS, is_network, network

LANES = 8
"""Gymnasium episodes for which the policy chooses at once."""


def world_of(environment: Any, s: Settings, options: dict[str, Any]) -> World:
    """The world of an environment, which may have the name of one of this package."""
    known = names.built_in(environment) if isinstance(environment, str) else None
    return world(
        known.environment if known else environment,
        discount=DEFAULTS["discount"] if s.discount == trust.AUTO else s["discount"],
        horizon=s.horizon, lanes=min(LANES, most(s)),
        options=options, workers=s.workers, episode_timeout=s.episode_timeout, masks=s.masks,
    )  # fmt: skip


def policy_of(
    given: Any, environment: Any, where: World, s: Settings, needs: Needs, key: PRNGKeyArray
) -> tuple[str | AnyPolicy, AnyPolicy]:
    """The name of the policy, or the policy given, and the initial policy."""
    if isinstance(given, AnyPolicy):
        return given, masked(given, where.masks) if where.masks else given
    if not isinstance(given, str | None):
        if not is_network(given):
            raise ValueError(
                "policy: expected a name, a Policy, a MemoryPolicy or a network, that is "
                f"{FORMS}; found {type(given).__name__}"
            )
        if where.actions is None:
            raise ValueError(
                "policy: the actions of this environment are not known; give "
                "policies.network(network, actions)"
            )
        made = network(given, where.actions, _unmasked(where))
        return made, masked(made, where.masks) if where.masks else made
    known = names.built_in(environment) if isinstance(environment, str) else None
    if known is not None and known.policy is not None:
        if given not in (None, names.PAPER):
            raise no_effect("policy", given, f"{environment} comes with the paper's policy")
        return names.PAPER, known.policy()
    if where.actions is None:
        raise ValueError("policy: for an environment of your own in JAX give a Policy object")
    name = given or default_policy(where.actions, needs)
    if isinstance(where, OnHost):
        where.host.observations.refuse_images()
    inputs = math.prod(where.observation.shape) - where.masks
    start = named.make(name, inputs, where.actions, key, s["hidden"])
    return name, masked(start, where.masks) if where.masks else start


def _unmasked(where: World) -> jax.ShapeDtypeStruct:
    """Shape and type of an observation without its mask of actions."""
    *outer, last = where.observation.shape or (1,)
    if not where.masks:
        return where.observation
    return jax.ShapeDtypeStruct((*outer, last - where.masks), where.observation.dtype)


def default_policy(actions: Actions, needs: Needs) -> str:
    """The name of the policy that learns fastest. Without a damped metric it must have few
    parameters. The best of a few actions is often a nearly linear decision, while the mean of a
    continuous action must itself be accurate, and a network learns where."""
    if not needs.recent:
        return "linear"
    return "fourier" if isinstance(actions, Choices) else "mlp"


def episodes(asked: int | str | None, estimator: Estimator, policy: Any) -> int | str:
    """The number of episodes asked for; unless stated otherwise "auto", or two where the estimator
    does not measure how far they agree. `policy` may be a name. ValueError for "auto" there."""
    measured = isinstance(estimator, BAC) and estimator.advantage is not None
    measured = measured and policy != "tiles" and not isinstance(policy, SparsePolicy)
    if asked is None:
        return trust.AUTO if measured else trust.SIZES[0]
    if asked == trust.AUTO and not measured:
        raise ValueError(
            f"episodes: {trust.AUTO!r} needs the agreement of episodes, which the estimators bac "
            "and bac-returns measure, except for sparse policies such as tiles; give a number"
        )
    return asked


def discount(asked: float | str | None, estimator: Estimator) -> float | str:
    """The discount asked for; unless stated otherwise "auto" for an estimator with values, whose
    lambda bounds the noise of long sums of rewards. ValueError for "auto" with any other."""
    valued = estimator.needs.lambda_ is not None
    if asked == trust.AUTO and not valued:
        raise ValueError(
            f"discount: {trust.AUTO!r} needs an estimator with a lambda (bac, rebase or gae); give "
            "a number"
        )
    default = trust.AUTO if valued else DEFAULTS["discount"]
    return default if asked is None else asked


def most(s: Settings) -> int:
    """The largest number of episodes per update."""
    return s.episodes if isinstance(s.episodes, int) else trust.SIZES[-1]


def persistence(s: Settings, needs: Needs) -> float:
    """As wanted; unless stated otherwise, estimators of the paper explore independently."""
    return s["persistence"] if needs.recent else s.persistence or 0.0


def normalised(s: Settings, where: World) -> bool:
    if s.normalise and not where.real:
        raise ValueError("normalise: the observations are whole numbers; leave it out")
    foreign = isinstance(where, OnHost) or (isinstance(where.environment, Adapted) and where.real)
    return foreign if s.normalise is None else s.normalise


Facts = dict[str, tuple[Any, str]]
"""The settings in force, each with the reason why it can have no other value."""


def of_world(s: Settings, where: World) -> Facts:
    """Those that depend on the environment alone."""
    task, host = where.name, isinstance(where, OnHost)
    own = f"{task} has its own discount, {where.discount:g}"
    return {
        "discount": (where.discount, "it must be a number" if host else own),
        "horizon": (where.horizon, f"{task} ends episodes after {where.horizon} steps"),
        "workers": (s.workers if host else None, f"{task} runs in JAX"),
        "masks": (where.masks > 0, f"{task} runs in JAX"),
    }


def in_force(
    s: Settings, where: World, chosen: dict[str, Any], of: Estimator, start: AnyPolicy
) -> Facts:
    """Those of `Agent`."""
    policy, estimator, update = (
        name if isinstance(name, str) else f"a {type(name).__name__} of your own"
        for name in (chosen[kind] for kind in ("policy", "estimator", "update"))
    )
    metric = getattr(of, "metric", None)
    damping = metric.damping_of(start) if isinstance(metric, Metric) else None
    limited, rated = update in names.LIMITED, isinstance(chosen["update"], str)
    facts = of_world(s, where)
    if isinstance(where, OnHost):
        facts["discount"] = discount(s.discount, of), ""
    return facts | {
        "normalise": (normalised(s, where), ""),
        "persistence": (persistence(s, of.needs), ""),
        "hidden": (s["hidden"] if policy == "mlp" else None, f"{policy} has no such layers"),
        "lambda_": (of.needs.lambda_, f"{estimator} has no lambda to choose"),
        "damping": (damping, f"{estimator} has no damping to choose"),
        "limit": (s["limit"] if limited else None, f"{update} has no such limit"),
        "rate": (s["rate"] if rated and not limited else None, f"{update} takes no rate"),
    }  # fmt: skip
