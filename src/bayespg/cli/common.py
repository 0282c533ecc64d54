"""The application, and how it shows tables and progress."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
import typer.core
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bayespg._support.files import printable
from bayespg.runs.progress import EVERY

ORDER = (
    "demo", "train", "sweep", "evaluate", "plot", "watch", "report", "compare", "push", "pull",
    "environments", "reproduce",
)  # fmt: skip


class Commands(typer.core.TyperGroup):
    """Commands in the order of first use instead of alphabetical order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: (*ORDER, name).index(name))


class MaybeAddress(typer.core.TyperCommand):
    """A command whose option --ray may have an address, or none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for i, word in enumerate(args):
            following = args[i + 1 : i + 2]
            if word == "--ray" and not any(x == "auto" or ":" in x for x in following):
                args = [*args[:i], "--ray=ray", *args[i + 1 :]]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="bayespg",
    cls=Commands,
    help="Policy gradients with error bars.\n\nStart with [bold]bayespg demo[/bold]. Train on a "
    "task with [bold]bayespg train[/bold]. Reproduce the paper's tables and figures with "
    "[bold]bayespg reproduce[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()


def sentence(*parts: str | tuple[str, str]) -> Text:
    """Text made of parts, each plain or with a style. Nothing in it is interpreted as markup, so
    that names of files and messages are shown as they are."""
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((printable(text), style) for text, style in pairs))


def path_beside(folders: Sequence[Path], ending: str) -> Path:
    """The file for what is made of several folders: next to the first, with all their names."""
    names = [path.absolute().name for path in folders]
    return folders[0].absolute().parent / f"{'-and-'.join(names)[:100]}{ending}"


def say(*parts: str | tuple[str, str]) -> None:
    """Print a `sentence`; the terminal wraps it."""
    console.print(sentence(*parts), soft_wrap=True)


def some_columns(count: int, most: int = 7) -> list[int]:
    """Which of many columns to show: the first, the last and some evenly spaced between them."""
    if count <= most:
        return list(range(count))
    return [0, *(1 + round(i * (count - 2) / (most - 2)) for i in range(most - 1))]


def table(columns: list[str], rows: Sequence[Sequence[str | Text]], whole: int = 0) -> None:
    """Print a table on the terminal; cells of the first `whole` columns are not wrapped."""
    cells = [[sentence(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    lines = any("\n" in cell.plain for row in cells for cell in row)
    shown = Table(header_style="bold", show_lines=lines)
    for i, column in enumerate(columns):
        shown.add_column(sentence(column), overflow="fold", no_wrap=i < whole)
    for row in cells:
        shown.add_row(*row)
    console.print(shown)


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, float, str], None]]:
    """Progress bars on the terminal; `advance(name, fraction, what)` adds a bar or moves it. A file
    or a pipe gets lines."""
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[what]}"),
    )
    with Progress(*columns, console=console) as shown:
        known: dict[str, TaskID] = {}

        def advance(name: str, fraction: float, what: str) -> None:
            if name not in known:
                known[name] = shown.add_task(name, total=1.0, what="")
            shown.update(known[name], completed=fraction)
            if what or fraction >= 1:
                shown.update(known[name], what=what)

        yield advance


class _Lines:
    """Progress as lines of text: the first and the last of every name, and one every few seconds of
    whichever moves."""

    def __init__(self) -> None:
        self._begun, self._last = time.monotonic(), 0.0
        self._ended: dict[str, bool] = {}
        self._first: dict[str, tuple[float, float]] = {}
        """When each name had first moved, for by then its programs are compiled, and how far."""
        self._lock = threading.Lock()

    def __call__(self, name: str, fraction: float, what: str) -> None:
        with self._lock:
            now, end = time.monotonic(), fraction >= 1
            moved = now, fraction
            begun, at = self._first.setdefault(name, moved) if fraction else moved
            news = name not in self._ended or (end and not self._ended[name])
            if not news and (end or now - self._last < EVERY):
                return
            self._ended[name], self._last = end, now
        left = ""
        if at + 0.02 < fraction < 1:
            left = f"about {(now - begun) * (1 - fraction) / (fraction - at):,.0f} s left"
        parts = f"{name}  {fraction:4.0%}", what, f"{now - self._begun:,.0f} s", left
        say("  ".join(part for part in parts if part))


@contextlib.contextmanager
def progress(task: str) -> Iterator[Callable[[float, str], None]]:
    """One progress bar; `advance(fraction, what)` moves it."""
    with bars() as advance:
        advance(task, 0.0, "")
        yield lambda fraction, what: advance(task, fraction, what)
        advance(task, 1.0, "")
