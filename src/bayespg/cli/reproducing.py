"""bayespg reproduce and bayespg report. What they do is in `bayespg.cli.experiments`, which takes a
second to import; the other commands do not wait for it."""

from pathlib import Path
from typing import Any

import typer
import typer.core

from bayespg.cli.common import app
from bayespg.cli.options import Reproduction, argument, option, with_options


class WithContext(typer.core.TyperCommand):
    """A command whose context is Typer's own; its `obj` may hold the experiments to choose from."""

    context_class = typer.Context


@app.command(cls=WithContext)
@with_options(Reproduction)
def reproduce(context: typer.Context, **given: Any) -> None:
    """Reproduce the paper: a table or figure by its name, or all of them.

    Shows a table, and writes JSON, SVG and PNG files and the samples of all runs (NPZ). 'all' skips
    experiments whose results are in the directory already, and writes report.html with all claims.
    """
    from bayespg.cli import experiments

    experiments.reproduce(Reproduction(**given), context.obj or experiments.EXPERIMENTS)


@app.command()
def report(
    folders: list[Path] = argument(
        "A directory of 'bayespg reproduce', or run directories of 'bayespg train'."
    ),
    out: Path | None = option("File for the page.", shown="RUN/report.html, or beside several"),
) -> None:
    """Write one self-contained HTML page about reproduced experiments or training runs."""
    from bayespg.cli import experiments

    experiments.report(folders, out)
