"""Options that several commands share."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import gymnasium
import typer
from rich.markup import escape

from bayespg.agents import describe
from bayespg.agents.imports import import_all
from bayespg.agents.settings import FIELDS


def option(
    help: str, default: Any = None, *names: str, shown: str | bool = True, **how: Any
) -> Any:
    """An option of a command, with its help. `names` are needed where they do not follow from the
    parameter's; the help shows `shown` for the default."""
    return typer.Option(default, *names, help=help, show_default=shown, **how)


def argument(help: str, default: Any = ..., **how: Any) -> Any:
    """An argument of a command, which must be given unless it has a default."""
    return typer.Argument(default, help=help, **how)


IMPORTS = option(
    "Import this module first, for the environments that it registers. An environment that a run "
    "directory names as MODULE:ID is created only if its module is given here.",
    None, "--import", metavar="MODULE", shown=False,
)  # fmt: skip
BEST = option("The best policy of the run instead of the last one.", False, "--best")
RAY = option(
    "Play episodes on Ray: on this machine, or on the cluster at ADDRESS.",
    metavar="[ADDRESS]", shown=False,
)  # fmt: skip
RUN = argument("A run directory written by 'bayespg train'.")


@dataclasses.dataclass(frozen=True)
class Reproduction:
    """The options of `reproduce`."""

    name: str | None = argument("Name of an experiment, or 'all'. Without a name, list them.", None)
    runs: int | None = option("Independent runs.", min=2, shown="takes a few minutes")
    seed: int = option("Seed of all random numbers.", 0, min=0)
    out: Path = option("Directory for the results.", Path("results"))
    quick: bool = option("A small version with few runs.", False, "--quick")
    paper: bool = option("The sizes and numbers of runs of the paper.", False, "--paper")
    only: list[str] | None = option("With 'all': run these only; separate names by commas.")
    listed: bool = option("List the experiments and exit.", False, "--list")
    again: bool = option("With 'all': also repeat finished experiments.", False, "--again")
    jobs: int | None = option(
        "With 'all': experiments in parallel.", min=1, shown="half the cores, at most 6"
    )
    resume: bool = option(
        "Keep finished parts in .parts of the directory and continue from them. Several processes "
        "with the same directory share the work.", False, "--resume",
    )  # fmt: skip
    judge: bool = option(
        "Judge the claims again from the stored samples of an earlier run.", False, "--judge"
    )


def registered(environment: str, imports: list[str]) -> str:
    """The id with the module that registers it, so that processes and resumed runs find it."""
    for module in imports:
        known = environment in gymnasium.registry
        import_all(module)
        if not known and environment in gymnasium.registry:
            return f"{module}:{environment}"
    return environment


def dashed(name: str) -> str:
    """A setting as the command line names it, without dashes in front: lambda_ is a word of Python
    only, and an underscore inside is a dash."""
    return name.rstrip("_").replace("_", "-")


def setting(name: str) -> str:
    """A setting as Python names it."""
    name = name.replace("-", "_")
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
    """Give a command that takes ``**given`` the options that are the defaults of the dataclass
    `written`; with `settings` also one for every setting of agents, None unless it is given."""
    options = [(f.name, f.default, f.type) for f in dataclasses.fields(written)]
    if settings:
        options += [(name, *_of_setting(field)) for name, field in FIELDS.items()]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        kinds, first = inspect.Parameter, inspect.signature(command).parameters.values()
        parameters = [
            *(one.replace(kind=one.KEYWORD_ONLY) for one in first if one.kind != one.VAR_KEYWORD),
            *(kinds(n, kinds.KEYWORD_ONLY, default=v, annotation=t) for n, v, t in options),
        ]
        command.__signature__ = inspect.Signature(parameters)  # pyright: ignore
        return command

    return decorate


def _of_setting(field: Any) -> tuple[Any, Any]:
    """The option of a setting, with its name, its text and its default, and its type. Values are
    texts, for `value`, and flags --x or --no-x."""
    kinds = [kind for kind in get_args(field.type) or (field.type,) if kind is not type(None)]
    name, flag = f"--{dashed(field.name)}", kinds == [bool]
    words = ["widths" if get_args(kind) else kind.__name__ for kind in kinds]
    written = option(
        escape(describe.meanings().get(field.name, "")), None,
        f"{name}/--no-{name.removeprefix('--')}" if flag else name,
        shown=describe.default(field), metavar=None if flag else f"<{' or '.join(words)}>",
        rich_help_panel="Settings of the agent",
    )  # fmt: skip
    return written, bool | None if flag else str | None
