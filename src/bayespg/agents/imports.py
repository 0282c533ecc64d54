"""Modules that are imported for the environments that they register, and only if the user names
them: a run directory from somebody else runs no code of theirs."""

import importlib.util
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Imports = str | Iterable[str]
"""Modules, by name, that may be imported because a run directory asks for them."""


def import_all(modules: Imports) -> list[str]:
    """Import modules that the user has named, for the environments that they register."""
    names = [modules] if isinstance(modules, str) else list(modules)
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as problem:
            raise ValueError(
                f"import: {name} cannot be imported ({problem}); install it, or put its folder on "
                "Python's path with PYTHONPATH"
            ) from problem
    return names


def needed(environment: Any, options: Any) -> list[str]:
    """Modules that may be imported for an id and its options: the part before a colon in the id,
    and in any string of the options if there is such a module (C:/models/ant.xml names none)."""
    modules, left = [], [options]
    while left:
        match left.pop():
            case str() as text if ":" in text and _findable(text.partition(":")[0]):
                modules.append(text.partition(":")[0])
            case dict() as parts:
                left += [*parts, *parts.values()]
            case list() | tuple() as parts:
                left += parts
    named = isinstance(environment, str) and ":" in environment
    return [environment.partition(":")[0], *modules] if named else modules


def _findable(module: str) -> bool:
    """Whether there may be such a module; nothing is imported to find out."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:
        return True


def resuming(path: Path, config: dict[str, Any]) -> str:
    """The command that resumes the run of an agent with this configuration."""
    words = ["bayespg", "train", "--resume", str(path)]
    for module in needed(config["environment"], config["options"]):
        words += ["--import", module]
    match config.get("workers"):
        case int(count):
            words += ["--workers", str(count)]
        case str(address):
            words += ["--ray"] + [address] * (address != "ray")
    return shlex.join(words)
