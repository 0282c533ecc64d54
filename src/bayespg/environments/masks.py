"""Which choices an environment allows now.

There are two ways to say so, those of sb3-contrib and of Gymnasium's own tasks: a method
`action_masks()`, or `info["action_mask"]`, which `reset` and `step` return. A mask has a one, or
True, for each choice that is allowed; the masks of a MultiDiscrete space are concatenated.
A vector environment has both for every lane.
"""

from typing import Any

import gymnasium
import numpy as np

METHOD, ENTRY = "action_masks", "action_mask"


def has_method(environment: gymnasium.Env) -> bool:
    return environment.has_wrapper_attr(METHOD)


def of_step(environment: gymnasium.Env, info: dict[str, Any]) -> Any:
    """The mask of the current state; ValueError if there is none."""
    if has_method(environment):
        return environment.get_wrapper_attr(METHOD)()
    return _entry(info)


def lanes_have_method(environment: Any) -> bool:
    """Whether the environments inside a vector environment have the method."""
    try:
        return all(environment.call("has_wrapper_attr", METHOD))
    except (AttributeError, NotImplementedError):
        return False


def of_lanes(environment: Any, info: dict[str, Any], method: bool) -> Any:
    """The masks of all lanes, as they are told."""
    return environment.call(METHOD) if method else _entry(info)


def _entry(info: dict[str, Any]) -> Any:
    if ENTRY not in info:
        raise ValueError(
            f"masks: the environment has no method {METHOD}(), and info no entry {ENTRY!r}"
        )
    return info[ENTRY]


def first_allowed(mask: Any, sizes: tuple[int, ...]) -> list[int]:
    """The first choice that a mask allows in each part; 0 if it allows none."""
    return [int(np.argmax(part)) for part in np.split(np.asarray(mask), np.cumsum(sizes)[:-1])]


def checked(mask: Any, sizes: tuple[int, ...]) -> np.ndarray:
    """A mask as float32; ValueError if it is not one, or if it allows nothing."""
    given = np.asarray(mask)
    if given.shape != (sum(sizes),) or not np.isin(given, (0, 1)).all():
        raise ValueError(
            f"the mask is {mask!r:.80}, expected {sum(sizes)} numbers that are zero or one"
        )
    parts = np.split(given, np.cumsum(sizes)[:-1])
    if not all(part.any() for part in parts):
        raise ValueError("the mask allows no choice")
    return given.astype(np.float32)
