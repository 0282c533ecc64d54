"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import gymnasium
import typer

from bayespg.agents.imports import import_all

Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, for the environments that it registers. An environment "
        "that a run directory names as MODULE:ID is created only if its module is given here.",
        show_default=False,
    ),
]
Best = Annotated[
    bool, typer.Option("--best", help="The best policy of the run instead of the last one.")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Play episodes in this many processes. Changes no numbers."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Play episodes on Ray: on this machine, or on the cluster at ADDRESS.",
        show_default=False,
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run directory written by 'bayespg train'.")]


def registered(environment: str, imports: list[str]) -> str:
    """The id with the module that registers it, so that processes and resumed runs find it."""
    for module in imports:
        known = environment in gymnasium.registry
        import_all(module)
        if not known and environment in gymnasium.registry:
            return f"{module}:{environment}"
    return environment


def option(name: str) -> str:
    """A setting as the command line names it, without dashes in front: lambda_ is a word of Python
    only, and an underscore inside is a dash."""
    return name.rstrip("_").replace("_", "-")


def setting(option: str) -> str:
    """A setting as Python names it."""
    name = option.replace("-", "_")
    return "lambda_" if name == "lambda" else name


def widths(text: str) -> tuple[int, ...]:
    """Widths of layers as a user writes them: 64x64 or, where commas separate nothing else,
    64,64."""
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"hidden: expected widths such as 64x64, found {text!r}") from None
