"""Agents in words: what `print(agent)` shows, and signatures and help with every setting."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from bayespg.agents.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def meanings() -> dict[str, str]:
    """What each setting means, as its docstring in `Settings` says; empty without the source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(Settings)))
    except (OSError, SyntaxError):
        return {}
    body, texts = tree.body[0].body, {}  # pyright: ignore[reportAttributeAccessIssue]
    for at, docstring in itertools.pairwise(body):
        if isinstance(at, ast.AnnAssign) and isinstance(docstring, ast.Expr):
            text = docstring.value.value  # pyright: ignore[reportAttributeAccessIssue]
            texts[at.target.id] = " ".join(str(text).split())  # pyright: ignore
    return texts


def default(field: Any) -> str:
    """The default of a setting in words."""
    value = field.metadata["value"]
    words = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return ("" if value is None else words) + field.metadata["shown"]


def with_settings(
    *leading: str, only: tuple[str, ...] | None = None, **defaults: Any
) -> Callable[[F], F]:
    """Give a function or class that takes ``**given`` the signature and the help of its settings:
    the parameters in `leading`, those in `defaults`, and the fields of `Settings`, or `only` some
    of them."""
    fields = [f for f in dataclasses.fields(Settings) if only is None or f.name in only]

    def decorate(function: F) -> F:
        kinds = inspect.Parameter
        own = inspect.signature(function).parameters
        first = [own[name] for name in leading]
        keyword = [kinds(name, kinds.KEYWORD_ONLY, default=v) for name, v in defaults.items()]
        rest = [
            kinds(f.name, kinds.KEYWORD_ONLY, default=f.default, annotation=f.type) for f in fields
        ]
        returned = inspect.signature(function).return_annotation
        function.__signature__ = inspect.Signature(  # pyright: ignore
            [*first, *keyword, *rest], return_annotation=returned
        )
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{_list(fields)}"
        return function

    return decorate


def _list(fields: list[Any]) -> str:
    lines = [f"    {f.name}: {meanings().get(f.name, '')} Default: {default(f)}." for f in fields]
    wrapped = (textwrap.fill(line, 92, subsequent_indent=" " * 8) for line in lines)
    return "Settings; None asks for the default:\n\n" + "\n".join(wrapped)


def settings(config: dict[str, Any], skip: tuple[str, ...] = ()) -> str:
    """The settings that apply, in one line."""
    shown = {k: v for k, v in config.items() if v not in (None, {}) and k not in skip}
    return ", ".join(f"{k} {_plain(v)}" for k, v in shown.items())


def _plain(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple() | list():
            return "x".join(map(str, value))
        case float():
            return f"{value:g}"
    return str(value)


NAMES = ("environment", "policy", "estimator", "update")


def agent(kind: str, task: str, config: dict[str, Any], count: int, state: Any) -> str:
    """An agent in two lines: what it is and how far it has come, and its settings."""
    chosen = ", ".join(str(config[name] or f"{name} of your own") for name in NAMES[2:])
    policy = config["policy"] or "your own"
    return (
        f"{kind} on {task}: {chosen}; {policy} policy with {count:,} parameters\n"
        f"after {int(state.updates):,} updates, {int(state.episodes):,} episodes, "
        f"{int(state.steps):,} steps\n{settings(config, NAMES)}"
    )
