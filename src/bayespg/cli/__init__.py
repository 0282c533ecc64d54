"""The command line: demo, train, sweep, evaluate, plot, watch, report, compare, environments,
reproduce."""

import importlib
import sys
from typing import Any

from bayespg import __version__


def version() -> str:
    """The versions of this package and of JAX."""
    import importlib.metadata

    return f"bayespg {__version__}, JAX {importlib.metadata.version('jax')}"


def main() -> None:
    """Run the command line; its commands, and JAX with them, are loaded only where needed."""
    if sys.argv[1:] == ["--version"]:
        print(version())
        return
    from bayespg.cli import commands

    commands.main()


def __getattr__(name: str) -> Any:
    if name == "app":
        return importlib.import_module("bayespg.cli.commands").app
    raise AttributeError(f"module 'bayespg.cli' has no attribute {name!r}")
