"""bayespg reproduce and bayespg report. What they do is in `bayespg.cli.experiments`, which takes a
second to import; the other commands do not wait for it."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from bayespg.cli.common import app
from bayespg.cli.options import with_options


class Chosen(typer.core.TyperCommand):
    """A command whose context is Typer's own; its `obj` may hold the experiments to choose from."""

    context_class = typer.Context


@dataclasses.dataclass(frozen=True)
class Options:
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


@app.command(cls=Chosen)
@with_options(Options)
def reproduce(context: typer.Context, **given: Any) -> None:
    """Reproduce the paper: a table or figure by its name, or all of them.

    Shows a table, and writes JSON, SVG and PNG files and the samples of all runs (NPZ). 'all' skips
    experiments whose results are in the directory already, and writes report.html with all claims.
    """
    from bayespg.cli import experiments

    experiments.reproduce(Options(**given), context.obj or experiments.EXPERIMENTS)


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="A directory of 'bayespg reproduce', or run directories of 'bayespg train'."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File for the page.", show_default="RUN/report.html, or beside several"),
    ] = None,
) -> None:
    """Write one self-contained HTML page about reproduced experiments or training runs."""
    from bayespg.cli import experiments

    experiments.report(folders, out)
