"""What the configuration of a run says about its length, and training a run for longer.

`steps` is the number of environment steps at which the run ends. If it was trained for longer,
`extended` lists the numbers that it had before.
"""

from typing import Any

LENGTH = ("steps", "extended")
"""Entries of a run's configuration that do not describe its agent."""


def agent_of(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the agent alone."""
    return {name: value for name, value in config.items() if name not in LENGTH}


def longer(config: dict[str, Any], steps: int) -> dict[str, Any]:
    """The configuration of a run that is to end at `steps` steps instead."""
    before = config.get("extended") or []
    return config | {"steps": steps, "extended": [*before, config.get("steps")]}
