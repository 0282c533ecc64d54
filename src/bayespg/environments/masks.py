"""Which choices an environment allows now.

It says so in one of two ways, those of sb3-contrib and of Gymnasium's own tasks: by a method
`action_masks()`, or by `info["action_mask"]`, which `reset` and `step` return. A mask has a one, or
True, for each choice that is allowed; the masks of a MultiDiscrete space lie one behind another.
"""

from typing import Any

import gymnasium
import numpy as np

METHOD, ENTRY = "action_masks", "action_mask"


def has_method(environment: gymnasium.Env) -> bool:
    return environment.has_wrapper_attr(METHOD)


def found(environment: gymnasium.Env, info: dict[str, Any], sizes: tuple[int, ...]) -> np.ndarray:
    """The mask of the present state as zeros and ones; ValueError if there is none, or if it
    allows nothing."""
    if has_method(environment):
        return checked(environment.get_wrapper_attr(METHOD)(), sizes)
    if ENTRY not in info:
        raise ValueError(
            f"masks: the environment has no method {METHOD}(), and info no entry {ENTRY!r}"
        )
    return checked(info[ENTRY], sizes)


def checked(mask: Any, sizes: tuple[int, ...]) -> np.ndarray:
    """A mask as float32; ValueError if it is not one."""
    given = np.asarray(mask)
    if given.shape != (sum(sizes),) or not np.isin(given, (0, 1)).all():
        raise ValueError(
            f"the mask is {mask!r:.80}, expected {sum(sizes)} numbers that are zero or one"
        )
    parts = np.split(given, np.cumsum(sizes)[:-1])
    if not all(part.any() for part in parts):
        raise ValueError("the mask allows no choice")
    return given.astype(np.float32)
