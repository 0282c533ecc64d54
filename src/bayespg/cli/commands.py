"""All commands, their errors and interrupts."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU is shared; first of all

from bayespg._support import command, compilation, device

try:
    device.require()  # the paper's experiments hold arrays, which start JAX when imported
except ValueError as problem:
    print(f"bayespg: {problem}", file=sys.stderr)
    sys.exit(2)

from bayespg._support.version import with_jax
from bayespg.cli import comparing, demo, looking, reproducing, sharing, sweep, training
from bayespg.cli.common import app, console, sentence
from bayespg.environments.host import EnvironmentFailure

__all__ = [
    "app", "comparing", "demo", "looking", "main", "reproducing", "sharing", "sweep", "training",
]  # fmt: skip


def _version(wanted: bool | None) -> None:
    if wanted:
        console.print(with_jax())
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = None,
) -> None:
    """Policy gradients with error bars."""


def main(run: Callable[[], Any] = app) -> None:
    """Run the command line. An error is printed as one sentence; an interrupt is reported whenever
    it happens."""
    try:
        command.ready()
        compilation.remember()
        run()
    except KeyboardInterrupt:
        _interrupted()
        sys.exit(command.INTERRUPTED)
    except SystemExit as stop:
        if stop.code == command.INTERRUPTED:  # Typer uses it for Ctrl-C too
            _interrupted()
        raise
    except (ValueError, OSError, ImportError, EnvironmentFailure) as problem:
        text = str(problem)
        if isinstance(problem, OSError) and problem.strerror and problem.filename:
            text = f"{problem.filename}: {problem.strerror}"
        message = sentence(("bayespg:", "red"), f" {text}")
        Console(stderr=True).print(message, soft_wrap=True)
        sys.exit(2)


def _interrupted() -> None:
    console.print("Interrupted. Files already written are complete.")
