"""The command line: demo and reproduce."""

import contextlib
import difflib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bayespg import __version__
from bayespg import demo as demonstration
from bayespg.reproduce import EXPERIMENTS, Report
from bayespg.reproduce import report as reports

app = typer.Typer(
    name="bayespg",
    help="Policy gradients with error bars.\n\nStart with [bold]bayespg demo[/bold]; "
    "the paper's tables and figures are under [bold]bayespg reproduce[/bold].",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
INTERRUPTED = 130
"""The exit code that Typer gives to Ctrl-C."""

Out = Annotated[Path, typer.Option("--out", help="Folder for the JSON and PNG files.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")]


@app.command()
def demo(
    out: Out = Path("results"),
    seed: Seed = 0,
    runs: Annotated[int, typer.Option(min=2, help="Independent runs to average over.")] = 200,
) -> None:
    """Learn the paper's linear-quadratic problem, with error bars, against Monte Carlo."""
    out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    with _progress("learning LQR") as progress:
        result = demonstration.run(runs, seed, progress)
    _table(result.columns, result.rows)
    path = demonstration.picture(result, out / "demo.png")
    console.print(f"\n{result.summary}\n\nPicture: [bold]{path}[/bold]")


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="Which one; without a name they are listed, 'all' runs every one."),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(min=2, help="Independent runs.", show_default="a few minutes' worth"),
    ] = None,
    seed: Seed = 0,
    out: Out = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="A few runs, to see it work.")] = False,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's sizes and runs.")] = False,
) -> None:
    """Reproduce a table or figure of the paper: a table here, JSON and PNG on disk."""
    if name is None:
        _table(
            ["name", "in the paper", "what it shows", "runs", "paper's runs"],
            [
                [e.name, e.item, e.title, f"{e.runs:,}", f"{e.paper_runs:,}"]
                for e in EXPERIMENTS.values()
            ],
        )
        return
    if quick and paper:
        raise ValueError("--quick and --paper contradict each other; give one")
    names = list(EXPERIMENTS) if name == "all" else [_known(name)]
    out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    for one in names:
        experiment = EXPERIMENTS[one]
        settings = experiment.settings(runs, seed, quick, paper)
        console.rule(
            f"[bold]{experiment.item}[/bold]  {experiment.title}  ({settings.runs:,} runs)"
        )
        started = time.perf_counter()
        with _progress(one) as progress, jax.enable_x64(True):
            report = experiment.run(settings, progress)
        seconds = time.perf_counter() - started
        json_path, png_path = reports.write(experiment, settings, report, out, seconds)
        _show(report)
        console.print(
            f"{seconds:.0f} s. Numbers: [bold]{json_path}[/bold], picture: [bold]{png_path}[/]\n"
        )


def _known(name: str) -> str:
    if name in EXPERIMENTS:
        return name
    close = difflib.get_close_matches(name, [*EXPERIMENTS, "all"], n=1, cutoff=0.4)
    hint = f"did you mean '{close[0]}'?" if close else f"choose from {', '.join(EXPERIMENTS)}"
    raise ValueError(f"no experiment is called '{name}'; {hint}")


def _show(report: Report) -> None:
    shown = _fitting(len(report.columns))
    _table([report.columns[i] for i in shown], [[row[i] for i in shown] for row in report.rows])
    if len(shown) < len(report.columns):
        console.print(f"[dim]{len(shown)} of {len(report.columns)} columns; all are on disk.[/dim]")
    if report.claims:
        _table(
            ["what the paper claims", "measured here", "holds"],
            [
                [c.says, c.measured, "[green]yes[/green]" if c.holds else "[red]no[/red]"]
                for c in report.claims
            ],
        )
    for note in report.notes:
        console.print(f"[dim]{note}[/dim]")


def _fitting(count: int, most: int = 7) -> list[int]:
    """Which of many columns to show: the first, the last and some evenly between."""
    if count <= most:
        return list(range(count))
    return [0, *(1 + round(i * (count - 2) / (most - 2)) for i in range(most - 1))]


def _table(columns: list[str], rows: list[list[str]]) -> None:
    table = Table(header_style="bold", show_lines=any("\n" in cell for row in rows for cell in row))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


@contextlib.contextmanager
def _progress(task: str) -> Iterator[reports.Progress]:
    """A bar on the terminal; `advance(fraction, what)` moves it."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[what]}"),
    )
    with Progress(*columns, console=console, transient=False) as bar:
        identity = bar.add_task(task, total=1.0, what="")

        def advance(fraction: float, what: str) -> None:
            if what:
                bar.update(identity, completed=fraction, what=what)
            else:
                bar.update(identity, completed=fraction)

        yield advance
        bar.update(identity, completed=1.0, what="")


def _version(wanted: bool | None) -> None:
    if wanted:
        console.print(f"bayespg {__version__}, JAX {jax.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = None,
) -> None:
    """Policy gradients with error bars."""


def main() -> None:
    """Errors are one sentence; an interrupt says so."""
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            console.print("Interrupted. Files already written are whole.")
        raise
    except (ValueError, OSError) as problem:
        Console(stderr=True).print(f"[red]bayespg:[/red] {problem}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
