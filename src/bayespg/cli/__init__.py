"""The command line: demo, train, sweep, evaluate, plot, watch, report, compare, environments,
reproduce."""

import importlib
import sys
from typing import Any

from bayespg._support.version import with_jax


def main() -> None:
    """Run the command line; its commands, and JAX with them, are loaded only where needed."""
    if sys.argv[1:] == ["--version"]:
        print(with_jax())
        return
    from bayespg.cli import commands

    commands.main()


def __getattr__(name: str) -> Any:
    if name == "app":
        return importlib.import_module("bayespg.cli.commands").app
    raise AttributeError(f"module 'bayespg.cli' has no attribute {name!r}")
