"""The application, and how it shows tables and progress."""

import contextlib
from collections.abc import Callable, Iterator

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

from bayespg.reproduce import report as reports

ORDER = ("demo", "train", "evaluate", "plot", "watch", "report", "environments", "reproduce")


class Commands(typer.core.TyperGroup):
    """In the order in which people meet them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    name="bayespg",
    cls=Commands,
    help="Policy gradients with error bars.\n\nStart with [bold]bayespg demo[/bold]; train on a "
    "task of yours with [bold]bayespg train[/bold]; the paper's tables and figures are under "
    "[bold]bayespg reproduce[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()


def fitting(count: int, most: int = 7) -> list[int]:
    """Which of many columns to show: the first, the last and some evenly between."""
    if count <= most:
        return list(range(count))
    return [0, *(1 + round(i * (count - 2) / (most - 2)) for i in range(most - 1))]


def table(columns: list[str], rows: list[list[str]], whole: int = 0) -> None:
    """On the terminal; the first `whole` columns are not broken."""
    found = Table(header_style="bold", show_lines=any("\n" in cell for row in rows for cell in row))
    for i, column in enumerate(columns):
        found.add_column(column, overflow="fold", no_wrap=i < whole)
    for row in rows:
        found.add_row(*row)
    console.print(found)


@contextlib.contextmanager
def bars() -> Iterator[Callable[[str, float, str], None]]:
    """Bars on the terminal; `advance(name, fraction, what)` adds one, or moves it."""
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


@contextlib.contextmanager
def progress(task: str) -> Iterator[reports.Progress]:
    """One bar; `advance(fraction, what)` moves it."""
    with bars() as advance:
        advance(task, 0.0, "")
        yield lambda fraction, what: advance(task, fraction, what)
        advance(task, 1.0, "")
