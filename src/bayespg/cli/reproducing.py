"""bayespg reproduce and bayespg report. What they do is in `bayespg.cli.experiments`, which takes a
second to import; the other commands do not wait for it."""

from pathlib import Path
from typing import Annotated

import typer
import typer.core

from bayespg.cli.common import app

Out = Annotated[Path, typer.Option("--out", help="Directory for the results.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")]


class Chosen(typer.core.TyperCommand):
    """A command whose context is Typer's own; its `obj` may hold the experiments to choose from."""

    context_class = typer.Context


@app.command(cls=Chosen)
def reproduce(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(help="Name of an experiment, or 'all'. Without a name, list them."),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(min=2, help="Independent runs.", show_default="takes a few minutes"),
    ] = None,
    seed: Seed = 0,
    out: Out = Path("results"),
    quick: Annotated[bool, typer.Option("--quick", help="A small version with few runs.")] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The sizes and numbers of runs of the paper.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="With 'all': run these only; separate names by commas."),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With 'all': also repeat finished experiments.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With 'all': experiments in parallel.",
            show_default="half the cores, at most 6",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep finished parts in .parts of the directory and continue from them. Several "
            "processes with the same directory share the work.",
        ),
    ] = False,
    judge: Annotated[
        bool,
        typer.Option(
            "--judge", help="Judge the claims again from the stored samples of an earlier run."
        ),
    ] = False,
) -> None:
    """Reproduce the paper: a table or figure by its name, or all of them.

    Shows a table, and writes JSON, SVG and PNG files and the samples of all runs (NPZ). 'all' skips
    experiments whose results are in the directory already, and writes report.html with all claims.
    """
    from bayespg.cli import experiments

    experiments.reproduce(
        name, runs, seed, out, quick=quick, paper=paper, only=only, listed=listed, again=again,
        jobs=jobs, resume=resume, judge=judge, known=context.obj or experiments.EXPERIMENTS,
    )  # fmt: skip


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
