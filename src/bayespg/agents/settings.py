"""Settings of agents: their defaults, their checks, and a record of the values in force.

A setting that would have no effect is refused, so that `Agent.config` describes what was done.
Each field of `Settings` has its text, its default and its check there and nowhere else: signatures
and help of agents (`bayespg.agents.describe`) and the options of the command line
(`bayespg.cli.options`) are made from them.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from bayespg._support import checks
from bayespg._support.random import LARGEST_SEED
from bayespg.learning import trust
from bayespg.learning.batch import lambda_by_episodes
from bayespg.learning.metric import DAMPING, SHARE
from bayespg.paths.players import LIMIT as EPISODE_TIMEOUT
from bayespg.policies.named import HIDDEN

Check = Callable[[str, Any], Any]
"""From the name of a setting and a value to the value as it is used, or ValueError."""
WHERE = ("workers", "episode_timeout")
"""Settings that say where episodes are played, and change no numbers."""
RENAMED = {
    "processes": "was renamed; use workers=N",
    "smoothing": "was renamed; use lambda_=...",
    "trace": "was renamed; use lambda_=...",
    "reuse": "was deleted: it lost runs; leave it out",
    "lanes": "was deleted: it is chosen by itself; leave it out",
    "bounds": "was deleted: actions are always clipped; leave it out",
    "normalise_rewards": "was deleted: steps do not depend on the scale of rewards; wrap the "
    "environment in gymnasium.wrappers.NormalizeReward if you need it",
}
"""Settings of earlier versions, and what replaces them."""
ELSEWHERE = {
    "learning_rate": "rate=, for updates that are optimisers such as update='adam'; natural steps "
    "have a limit= instead",
    "gamma": "discount=",
    "gae_lambda": "lambda_=",
    "n_steps": "episodes=, whole episodes per update",
    "batch_size": "episodes=, whole episodes per update",
    "n_epochs": "nothing: every batch makes one update",
    "clip_range": "limit=, the Kullback-Leibler divergence per update",
    "target_kl": "limit=",
    "ent_coef": "persistence=, how exploration is correlated in time; there is no entropy bonus",
    "policy_kwargs": "hidden=(64, 64) for the layers of policy='mlp', or a policy of your own",
    "verbose": "learn(..., progress=False) to be quiet",
    "tensorboard_log": "learn(..., run=FOLDER, tensorboard=True)",
    "device": "the environment variable JAX_PLATFORMS, for instance cpu",
    "n_envs": "workers=, processes that play episodes",
    "env": "environment=",
}
"""Arguments of Stable-Baselines3, and what is meant by them here."""
LARGEST_NETWORK = 10**8
"""Weights between layers that `hidden` may ask for, 400 MB of them. A configuration may come from
anywhere, and memory is taken before its checkpoint is read."""


def _widths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
        raise ValueError(f"{name}: expected widths of layers such as (32, 32), found {value!r}")
    widths = tuple(checks.whole(name, width, 1) for width in value)
    if not widths:
        raise ValueError(f"{name}: expected at least one layer, found none")
    weights = sum(a * b for a, b in itertools.pairwise((1, *widths, 1)))
    if weights > LARGEST_NETWORK:
        raise ValueError(
            f"{name}: {widths} is a network of {weights:,} weights or more, at most "
            f"{LARGEST_NETWORK:,} are supported; give smaller widths"
        )
    return widths


_share = functools.partial(checks.real, least=0, most=1)
_positive = functools.partial(checks.real, above=0)
_count = functools.partial(checks.whole, least=1)


def _rate(name: str, value: Any) -> float:
    if callable(value):
        raise ValueError(
            f"{name}: expected a number above 0, found a function; for a schedule give an "
            "optimiser as update=, for instance "
            "update=optax.sgd(optax.linear_schedule(0.1, 0.01, transition_steps=100))"
        )
    return _positive(name, value)


seed = functools.partial(checks.whole, least=0, most=LARGEST_SEED)


def _or_auto(check: Check, expected: str) -> Check:
    """A check that lets "auto" pass."""

    def checked(name: str, value: Any) -> Any:
        if isinstance(value, str) and value != trust.AUTO:
            raise ValueError(f"{name}: expected {expected} or {trust.AUTO!r}, found {value!r}")
        return value if isinstance(value, str) else check(name, value)

    return checked


def _workers(name: str, value: Any) -> int | str:
    if isinstance(value, str):
        if value in ("ray", "auto") or ":" in value:
            return value
        raise ValueError(
            f"{name}: expected a number of processes, 'ray' or the address of a Ray cluster such "
            f"as 'ray://head:10001', found {value!r}"
        )
    return _count(name, value)


def _setting(check: Check, value: Any = None, shown: str = "", default: Any = None) -> Any:
    """A field with its check, the `value` that None stands for unless it depends on other choices,
    and what the help says about the default beyond that value."""
    return dataclasses.field(
        default=default, metadata={"check": check, "value": value, "shown": shown}
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of an agent. None asks for the default; in `Agent.settings` it means that the
    setting does not apply: `hidden` of a linear policy, `rate` of an update with a limit."""

    episodes: int | str | None = _setting(
        _or_auto(_count, "a whole number"),
        shown=f"{trust.AUTO}, {trust.SIZES[0]} to {trust.SIZES[-1]}; {trust.SIZES[0]} where "
        "agreement is not measured",
    )
    """Episodes per update, or auto: fewer the more those of recent updates agree."""
    discount: float | str | None = _setting(
        _or_auto(_share, "a number from 0 to 1"), 0.99,
        shown="; auto, from 0.99 to 0.998, for estimators with a lambda",
    )  # fmt: skip
    """Discount gamma, or auto: larger the longer episodes are; an environment in JAX has its
    own."""
    lambda_: float | str | None = _setting(
        _or_auto(_share, "a number from 0 to 1"), trust.AUTO,
        shown=f", {lambda_by_episodes(2):g} for two episodes",
    )  # fmt: skip
    """Lambda of the estimators bac, rebase and gae: 1 relies on observed returns, 0 on fitted
    values; auto: larger the more episodes there are."""
    damping: float | None = _setting(
        _positive, shown=f"{DAMPING}; {SHARE} n for networks with n parameters"
    )
    """Factor kappa of the metric G + kappa tr(G)/n I, for estimators with a damped metric."""
    limit: float | None = _setting(_rate, 0.05)
    """Limit of the Kullback-Leibler divergence per update, mean over states; for updates that have
    one."""
    rate: float | None = _setting(_rate, 1e-3)
    """Learning rate, for optimisers."""
    hidden: tuple[int, ...] | None = _setting(_widths, HIDDEN)
    """Widths of the layers of the policy mlp."""
    horizon: int | None = _setting(_count, shown="the environment's own limit")
    """Steps after which an episode is cut off. An environment in JAX always has a limit of its
    own."""
    workers: int | str | None = _setting(_workers, shown="none, in this process")
    """Number of processes that play Gymnasium episodes, or "ray" or the address of a Ray cluster.
    Changes no numbers."""
    episode_timeout: float | None = _setting(_positive, shown=f"{EPISODE_TIMEOUT:g}")
    """Seconds after which a worker's episode is played again."""
    normalise: bool | None = _setting(
        checks.flag, shown="yes on Gymnasium and where adapted, no for other environments in JAX"
    )
    """Normalise observations."""
    persistence: float | None = _setting(_share, 0.9, "; 0 for estimators without a metric")
    """Probability that a step explores with the random numbers of the step before, at the start and
    in every second episode. It fades, fast if the other episodes return more."""
    masks: bool | None = _setting(checks.flag, shown="yes if the environment has action_masks()")
    """Choose among the actions that the environment allows: its action_masks() or
    info["action_mask"]."""
    seed: int = _setting(seed, shown="0", default=0)
    """Determines the initial policy and every episode."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, field.metadata["check"](field.name, value))

    def __getitem__(self, name: str) -> Any:
        """The value that was given, or the default."""
        value = getattr(self, name)
        return DEFAULTS[name] if value is None else value

    def in_force(self, facts: dict[str, tuple[Any, str]]) -> "Settings":
        """These settings with the values in force. `facts` holds for each name the value, None if
        it does not apply, and why no other is possible. ValueError if another was given."""
        for name, (value, reason) in facts.items():
            wanted = getattr(self, name)
            if wanted is not None and wanted != value:
                raise no_effect(name, wanted, reason)
        return dataclasses.replace(self, **{name: value for name, (value, _) in facts.items()})


class Given(TypedDict, total=False):
    """The fields of `Settings` as keyword arguments, for type checkers and editors."""

    episodes: int | Literal["auto"] | None
    discount: float | Literal["auto"] | None
    lambda_: float | Literal["auto"] | None
    damping: float | None
    limit: float | None
    rate: float | None
    hidden: Sequence[int] | None
    horizon: int | None
    workers: int | str | None
    episode_timeout: float | None
    normalise: bool | None
    persistence: float | None
    masks: bool | None
    seed: int


class GivenToPGPE(TypedDict, total=False):
    """Those of them that `PGPE` uses."""

    hidden: Sequence[int] | None
    horizon: int | None
    workers: int | str | None
    episode_timeout: float | None
    masks: bool | None
    seed: int


class GivenToMBAC(TypedDict, total=False):
    """Those of them that `MBAC` uses."""

    discount: float | None
    horizon: int | None
    workers: int | str | None
    episode_timeout: float | None
    persistence: float | None
    seed: int


FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
DEFAULTS: dict[str, Any] = {
    name: field.metadata["value"]
    for name, field in FIELDS.items()
    if field.metadata["value"] is not None
}
"""Defaults that do not depend on other choices. Not every setting applies to every agent."""


def from_arguments(given: Mapping[str, Any]) -> Settings:
    """Settings from keyword arguments; ValueError for an unknown name, which says what replaces a
    setting of earlier versions."""
    for name in given:
        if name in RENAMED:
            raise ValueError(f"`{name}` {RENAMED[name]}")
        if name in ELSEWHERE:
            raise ValueError(f"{name}: no such setting; here it is {ELSEWHERE[name]}")
    if unknown := sorted(set(given) - set(FIELDS)):
        hint = checks.suggestion(unknown[0], sorted(FIELDS), cutoff=0.7)
        raise ValueError(f"{unknown[0]}: no such setting; {hint}")
    return Settings(**given)


def of_kind(
    kind: str,
    given: Mapping[str, Any],
    names: Sequence[str],
    beside: Sequence[str],
    parts: Mapping[str, str],
) -> Settings:
    """Settings of a kind of agent that uses those of `names` alone. ValueError, with these and the
    arguments `beside` them, for any other that is given. `parts` are what an agent of this kind
    consists of; a configuration may repeat them."""
    given = {name: value for name, value in given.items() if value is not None}
    for name, own in parts.items():
        if (value := given.pop(name, own)) != own:
            raise no_effect(name, value, f"the {name} of {kind} is {own!r}")
    chosen = from_arguments(given)
    for name in sorted(set(given) - set(names)):
        *most, last = *names, *beside
        raise no_effect(name, given[name], f"{kind} has {', '.join(most)} and {last}")
    return chosen


def no_effect(name: str, wanted: Any, reason: str) -> ValueError:
    """The error for a setting that would be ignored."""
    return ValueError(f"{name}: {wanted!r} would have no effect: {reason}; leave it out")
