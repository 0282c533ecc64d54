"""What decides a run besides environment, policy, estimator and update: checked, completed, and
recorded as it was done.

A setting that would have no effect is refused, so that what `Agent.config` says is what happened.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, get_args

from bayespg._support import checks
from bayespg.environments.spaces import Bounds

DEFAULTS: dict[str, Any] = {
    "discount": 0.99, "smoothing": 0.9, "limit": 0.05, "rate": 1e-3, "hidden": (32, 32),
    "lanes": 8, "bounds": "clip",
}  # fmt: skip
"""Of settings that do not apply everywhere."""
LARGEST_SEED = 2**63 - 1
"""Of JAX's random numbers."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """None asks for the default. In the settings of an agent, it says that there was nothing to
    set: the `hidden` layers of a linear policy, the `rate` of an update with a limit."""

    episodes: int = 2
    """Per update."""
    discount: float | None = None
    """0.99; an environment in JAX has its own."""
    smoothing: float | None = None
    """lambda, 0.9, for estimators that have one."""
    limit: float | None = None
    """Kullback-Leibler divergence of an update, mean over states: 0.05, for updates that have a
    limit."""
    rate: float | None = None
    """1e-3, for optimisers that have one."""
    hidden: tuple[int, ...] | None = None
    """Widths of the layers of the policy "mlp": 32, 32."""
    horizon: int | None = None
    """Steps after which an episode is cut off; None leaves it to the environment. An environment in
    JAX has its own."""
    lanes: int | None = None
    """Gymnasium environments side by side: 8, and never more than episodes per update."""
    processes: bool = False
    """Each of them in a process of its own."""
    normalise: bool | None = None
    """Observations; None means on Gymnasium, not in JAX."""
    bounds: Bounds | None = None
    """How draws of a Gaussian policy get into the bounds of the actions: "clip" or "squash"."""
    seed: int = 0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, CHECKS[field.name](field.name, value))

    def __getitem__(self, name: str) -> Any:
        """What was given, or the default."""
        value = getattr(self, name)
        return DEFAULTS[name] if value is None else value

    def as_done(self, facts: dict[str, tuple[Any, str]]) -> "Settings":
        """With the values in force: `facts` holds for each name the value, None where there is
        nothing to set, and why it can be no other. ValueError where another was asked for."""
        for name, (value, reason) in facts.items():
            wanted = getattr(self, name)
            if wanted is not None and wanted != value:
                raise no_effect(name, wanted, reason)
        return dataclasses.replace(self, **{name: value for name, (value, _) in facts.items()})


def made(given: dict[str, Any]) -> Settings:
    """From keywords; ValueError where there is no such setting."""
    known = sorted(field.name for field in dataclasses.fields(Settings))
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{unknown[0]}: no such setting; there are {', '.join(known)}")
    return Settings(**given)


def no_effect(name: str, wanted: Any, reason: str) -> ValueError:
    """The complaint that a setting would be ignored."""
    return ValueError(f"{name}: {wanted!r} would have no effect: {reason}; leave it out")


def _widths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
        raise ValueError(f"{name}: expected widths of layers such as (32, 32), found {value!r}")
    found = tuple(checks.whole(name, width, 1) for width in value)
    if not found:
        raise ValueError(f"{name}: expected at least one layer, found none")
    return found


_share = functools.partial(checks.real, least=0, most=1)
_above_zero = functools.partial(checks.real, above=0)
_count = functools.partial(checks.whole, least=1)
seed = functools.partial(checks.whole, least=0, most=LARGEST_SEED)

CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "episodes": _count, "discount": _share, "smoothing": _share, "limit": _above_zero,
    "rate": _above_zero, "hidden": _widths, "horizon": _count, "lanes": _count,
    "processes": checks.flag, "normalise": checks.flag,
    "bounds": functools.partial(checks.one_of, names=get_args(Bounds)), "seed": seed,
}  # fmt: skip
"""What each setting may be."""
