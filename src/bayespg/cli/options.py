"""Options that several commands share."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import gymnasium
import typer
from rich.markup import escape

from bayespg.agents import describe
from bayespg.agents.imports import import_all
from bayespg.agents.settings import FIELDS

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
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Play episodes on Ray: on this machine, or on the cluster at ADDRESS.",
        show_default=False,
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run directory written by 'bayespg train'.")]


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """The options of `reproduce`."""

    name: Annotated[
        str | None,
        typer.Argument(help="Name of an experiment, or 'all'. Without a name, list them."),
    ] = None
    runs: Annotated[
        int | None,
        typer.Option(min=2, help="Independent runs.", show_default="takes a few minutes"),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0
    out: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("results")
    quick: Annotated[bool, typer.Option("--quick", help="A small version with few runs.")] = False
    paper: Annotated[
        bool, typer.Option("--paper", help="The sizes and numbers of runs of the paper.")
    ] = False
    only: Annotated[
        list[str] | None,
        typer.Option(help="With 'all': run these only; separate names by commas."),
    ] = None
    listed: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False
    again: Annotated[
        bool, typer.Option("--again", help="With 'all': also repeat finished experiments.")
    ] = False
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With 'all': experiments in parallel.",
            show_default="half the cores, at most 6",
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep finished parts in .parts of the directory and continue from them. Several "
            "processes with the same directory share the work.",
        ),
    ] = False
    judge: Annotated[
        bool,
        typer.Option(
            "--judge", help="Judge the claims again from the stored samples of an earlier run."
        ),
    ] = False


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


def value(name: str, given: Any) -> Any:
    """What was given for a setting, as agents take it. Text is a number, true or false, widths such
    as 64x64, or a word; the check of the setting judges it."""
    if not isinstance(given, str):
        return given
    if name == "hidden":
        return _widths(given)
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(given.lower(), given)


def _widths(text: str) -> tuple[int, ...]:
    """Widths of layers as a user writes them: 64x64 or, where commas separate nothing else,
    64,64."""
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"hidden: expected widths such as 64x64, found {text!r}") from None


def with_options(
    written: type, *, settings: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes ``**given`` the options in the fields of the dataclass `written`;
    with `settings` also one for every setting of agents, None unless it is given."""
    options = [(f.name, f.default, f.type) for f in dataclasses.fields(written)]
    if settings:
        options += [(name, None, _annotation(field)) for name, field in FIELDS.items()]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        kinds, first = inspect.Parameter, inspect.signature(command).parameters.values()
        parameters = [
            *(one.replace(kind=one.KEYWORD_ONLY) for one in first if one.kind != one.VAR_KEYWORD),
            *(kinds(n, kinds.KEYWORD_ONLY, default=v, annotation=t) for n, v, t in options),
        ]
        command.__signature__ = inspect.Signature(parameters)  # pyright: ignore
        return command

    return decorate


def _annotation(field: Any) -> Any:
    """The option of a setting: its name, its text and its default. Values are texts, for `value`,
    and flags --x or --no-x."""
    kinds = [kind for kind in get_args(field.type) or (field.type,) if kind is not type(None)]
    name, flag = option(field.name), kinds == [bool]
    words = ["widths" if get_args(kind) else kind.__name__ for kind in kinds]
    shown = typer.Option(
        f"--{name}/--no-{name}" if flag else f"--{name}",
        help=escape(describe.meanings().get(field.name, "")),
        show_default=describe.default(field),
        metavar=None if flag else f"<{' or '.join(words)}>",
        rich_help_panel="Settings of the agent",
    )
    return Annotated[bool | None if flag else str | None, shown]
