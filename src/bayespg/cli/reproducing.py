"""bayespg reproduce: the paper's tables and figures."""

import time
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.markup import escape

from bayespg import checks, overview
from bayespg.cli.common import app, console, fitting, progress, table
from bayespg.reproduce import EXPERIMENTS, Experiment, Report, Settings, page
from bayespg.reproduce import report as reports

COLOURED = {
    "holds": "[green]holds[/]",
    "does not hold": "[red]does not hold[/]",
    "not decided": "[yellow]not decided[/]",
}
Out = Annotated[Path, typer.Option("--out", help="Folder for the JSON and PNG files.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")]


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
    only: Annotated[
        list[str] | None, typer.Option("--only", help="With 'all': these, given one by one.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what there is, and stop.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With 'all': also what is in the folder already.")
    ] = False,
) -> None:
    """Reproduce a table or figure of the paper: a table here, JSON, SVG and PNG on disk. 'all' runs
    every one, skips what the folder holds already, and writes report.html, claim by claim."""
    if name is None or listed:
        table(
            ["name", "in the paper", "what it shows", "runs", "paper's runs"],
            [
                [e.name, e.item, e.title, f"{e.runs:,}", f"{e.paper_runs:,}"]
                for e in EXPERIMENTS.values()
            ],
        )
        return
    if quick and paper:
        raise ValueError("--quick and --paper contradict each other; give one")
    if only and name != "all":
        raise ValueError("--only: say what to choose from, as in: bayespg reproduce all --only lqr")
    names = [_known(one) for one in only or EXPERIMENTS] if name == "all" else [_known(name)]
    out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    for one in names:
        experiment = EXPERIMENTS[one]
        settings = experiment.settings(runs, seed, quick, paper)
        if name == "all" and not again and reports.done(experiment, settings, out):
            console.print(f"{one}: done before (--again runs it anew)")
            continue
        _run(experiment, settings, out)
        page.write(out, list(EXPERIMENTS))
    path = page.write(out, list(EXPERIMENTS))
    console.print(f"All claims with their verdicts: [bold]{path}[/bold]")


def _run(experiment: Experiment, settings: Settings, out: Path) -> None:
    console.rule(f"[bold]{experiment.item}[/bold]  {experiment.title}  ({settings.runs:,} runs)")
    started = time.perf_counter()
    with progress(experiment.name) as advance, jax.enable_x64(True):
        report = experiment.run(settings, advance)
    seconds = time.perf_counter() - started
    json_path, png_path = reports.write(experiment, settings, report, out, seconds)
    _show(report)
    console.print(
        f"{seconds:.0f} s. Numbers: [bold]{json_path}[/bold], picture: [bold]{png_path}[/]\n"
    )


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="A folder of 'bayespg reproduce', or folders of 'bayespg train'."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page.", show_default="report.html in the first folder")
    ] = None,
) -> None:
    """One self-contained page: the paper claim by claim, or training runs."""
    first = folders[0]
    if any((first / f"{name}.json").exists() for name in EXPERIMENTS):
        if len(folders) > 1 or out:
            raise ValueError("a folder of 'bayespg reproduce' is reported alone, and in itself")
        path = page.write(first, list(EXPERIMENTS))
    else:
        path = overview.write(folders, out or first / "report.html")
    console.print(f"Page: [bold]{path}[/bold]")


def _known(name: str) -> str:
    if name in EXPERIMENTS:
        return name
    hint = checks.suggestion(name, [*EXPERIMENTS, "all"], 0.4)
    raise ValueError(f"no experiment is called '{name}'; {hint}")


def _show(report: Report) -> None:
    shown = fitting(len(report.columns))
    table([report.columns[i] for i in shown], [[row[i] for i in shown] for row in report.rows])
    if len(shown) < len(report.columns):
        console.print(f"[dim]{len(shown)} of {len(report.columns)} columns; all are on disk.[/dim]")
    if report.claims:
        table(
            ["", "claim", "measured here", "verdict"],
            [
                ["paper" if c.place else "ours", c.says, escape(c.measured), COLOURED[c.verdict]]
                for c in report.claims
            ],
        )
    for note in report.notes:
        console.print(f"[dim]{note}[/dim]")
