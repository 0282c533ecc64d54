"""Rates and limits that change from update to update.

A schedule is written as text, so that a run directory can hold it:

    linear:START:END:UPDATES     from START to END, in a straight line over so many updates
    hyperbolic:START:HALVING     START c / (c + j) at update j, the paper's schedule; c is HALVING

Updates are counted from the beginning of the run, so that a run that is resumed or trained for
longer goes on where it was.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from bayespg._support import checks
from bayespg.learning.updates import hyperbolic

KINDS = {"linear": 3, "hyperbolic": 2}
"""Schedules, and how many numbers each takes."""


def check(name: str, value: Any) -> float | str:
    """A number above zero, or the text of a schedule; ValueError for anything else."""
    if not isinstance(value, str):
        return checks.real(name, value, above=0)
    _parts(name, value)
    return value


def of(value: float | str) -> float | Callable[[Any], Any]:
    """The number itself, or a function of the number of updates made before."""
    if not isinstance(value, str):
        return value
    kind, numbers = _parts("schedule", value)
    if kind == "hyperbolic":
        return hyperbolic(*numbers)
    start, end, updates = numbers
    return lambda j: start + (end - start) * jnp.minimum(j / updates, 1.0)


def _parts(name: str, text: str) -> tuple[str, list[float]]:
    kind, *rest = text.split(":")
    try:
        numbers = [float(part) for part in rest]
    except ValueError:
        numbers = []
    sound = all(0 < number < float("inf") for number in numbers)
    if kind not in KINDS or len(numbers) != KINDS[kind] or not sound:
        raise ValueError(
            f"{name}: expected a number above 0, linear:START:END:UPDATES or "
            f"hyperbolic:START:HALVING, found {text!r}"
        )
    return kind, numbers
