"""Settings of agents: their defaults, their checks, and a record of the values in force.

A setting that would have no effect is refused, so that `Agent.config` describes what was done.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from bayespg._support import checks
from bayespg._support.random import LARGEST_SEED
from bayespg.policies.named import HIDDEN

DEFAULTS: dict[str, Any] = {
    "discount": 0.99, "lambda_": 0.9, "limit": 0.05, "rate": 1e-3, "hidden": HIDDEN,
    "persistence": 0.9,
}  # fmt: skip
"""Defaults of settings that do not apply to every agent."""
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
LARGEST_NETWORK = 10**8
"""Weights between layers that `hidden` may ask for, 400 MB of them. A configuration may come from
anywhere, and memory is taken before its checkpoint is read."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of an agent. None asks for the default; in `Agent.settings` it means that the
    setting does not apply: `hidden` of a linear policy, `rate` of an update with a limit."""

    episodes: int | str | None = None
    """Episodes per update. "auto": 2 to 16, fewer the more those of recent updates agree
    (`bayespg.learning.trust`), the default where that is measured; otherwise 2."""
    discount: float | None = None
    """0.99; an environment in JAX has its own."""
    lambda_: float | None = None
    """lambda, 0.9, for estimators that have one."""
    damping: float | None = None
    """kappa of the damped metric G + kappa tr(G)/n I: 0.3, and 0.004 n for networks with n
    parameters; for estimators with such a metric."""
    limit: float | None = None
    """Kullback-Leibler divergence per update, mean over states: 0.05, for updates with a limit."""
    rate: float | None = None
    """Learning rate: 1e-3, for optimisers that have one."""
    hidden: tuple[int, ...] | None = None
    """Widths of the layers of the policy "mlp": 16, 16."""
    horizon: int | None = None
    """Steps after which an episode is cut off; None keeps the environment's own limit, which an
    environment in JAX always has."""
    workers: int | str | None = None
    """Play Gymnasium episodes in so many other processes, or on Ray: "ray" or the address of a
    cluster. Numbers do not depend on it."""
    episode_timeout: float | None = None
    """Seconds after which a worker's episode is given up and played again: 3600."""
    normalise: bool | None = None
    """Normalise observations; None means yes on Gymnasium and no in JAX."""
    persistence: float | None = None
    """Probability that a step explores with the random numbers of the step before, at the start: it
    fades as episodes end by themselves, and with every update. 0.9 for estimators with a damped
    metric, and 0 for those of the paper, whose gradients are those of independent noise."""
    masks: bool | None = None
    """Choose among allowed actions only, as the environment's method action_masks() or
    info["action_mask"] says; None means yes if it has that method."""
    seed: int = 0
    """Determines the initial policy and every episode."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, CHECKS[field.name](field.name, value))

    def __getitem__(self, name: str) -> Any:
        """The value that was given, or the default."""
        value = getattr(self, name)
        return DEFAULTS[name] if value is None else value

    def as_done(self, facts: dict[str, tuple[Any, str]]) -> "Settings":
        """These settings with the values in force. `facts` holds for each name the value, None if
        it does not apply, and why no other is possible. ValueError if another was given."""
        for name, (value, reason) in facts.items():
            wanted = getattr(self, name)
            if wanted is not None and wanted != value:
                raise no_effect(name, wanted, reason)
        return dataclasses.replace(self, **{name: value for name, (value, _) in facts.items()})


def made(given: dict[str, Any]) -> Settings:
    """Settings from keyword arguments; ValueError for an unknown name, which says what replaces a
    setting of earlier versions."""
    for name in given:
        if name in RENAMED:
            raise ValueError(f"`{name}` {RENAMED[name]}")
    known = sorted(field.name for field in dataclasses.fields(Settings))
    if unknown := sorted(set(given) - set(known)):
        hint = checks.suggestion(unknown[0], known, cutoff=0.7)
        raise ValueError(f"{unknown[0]}: no such setting; {hint}")
    return Settings(**given)


def no_effect(name: str, wanted: Any, reason: str) -> ValueError:
    """The error for a setting that would be ignored."""
    return ValueError(f"{name}: {wanted!r} would have no effect: {reason}; leave it out")


def _widths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
        raise ValueError(f"{name}: expected widths of layers such as (32, 32), found {value!r}")
    found = tuple(checks.whole(name, width, 1) for width in value)
    if not found:
        raise ValueError(f"{name}: expected at least one layer, found none")
    weights = sum(a * b for a, b in itertools.pairwise((1, *found, 1)))
    if weights > LARGEST_NETWORK:
        raise ValueError(
            f"{name}: {found} is a network of {weights:,} weights or more, at most "
            f"{LARGEST_NETWORK:,} are supported; give smaller widths"
        )
    return found


_share = functools.partial(checks.real, least=0, most=1)
_positive = functools.partial(checks.real, above=0)
_count = functools.partial(checks.whole, least=1)
seed = functools.partial(checks.whole, least=0, most=LARGEST_SEED)


def _episodes(name: str, value: Any) -> int | str:
    if isinstance(value, str) and value != "auto":
        raise ValueError(f"{name}: expected a whole number or 'auto', found {value!r}")
    return value if isinstance(value, str) else _count(name, value)


def _workers(name: str, value: Any) -> int | str:
    if isinstance(value, str):
        if value in ("ray", "auto") or ":" in value:
            return value
        raise ValueError(
            f"{name}: expected a number of processes, 'ray' or the address of a Ray cluster such "
            f"as 'ray://head:10001', found {value!r}"
        )
    return _count(name, value)


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "episodes": _episodes, "discount": _share, "lambda_": _share, "damping": _positive,
    "limit": _positive, "rate": _positive, "hidden": _widths, "horizon": _count,
    "workers": _workers, "episode_timeout": _positive,
    "normalise": checks.flag, "persistence": _share,
    "masks": checks.flag, "seed": seed,
}  # fmt: skip
"""The check of each setting."""
