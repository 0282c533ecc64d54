"""bayespg reproduce: the paper's tables and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from bayespg._support import checks, threads, together
from bayespg.cli.common import app, bars, beside, console, fitting, progress, say, table
from bayespg.reproduce import EXPERIMENTS, Settings, make, page
from bayespg.reproduce import report as reports
from bayespg.runs import overview

COLOURED = {
    "holds": Text("holds", "green"),
    "does not hold": Text("does not hold", "red"),
    "not decided": Text("not decided", "yellow"),
}
Out = Annotated[Path, typer.Option("--out", help="Directory for the results.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all random numbers.")]


@app.command()
def reproduce(
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
    if name is None or listed:
        table(
            ["name", "what it shows", "--paper"],
            [
                [e.name, f"{e.item}: {e.title}", f"{e.paper_runs:,} runs"]
                for e in EXPERIMENTS.values()
            ],
            whole=1,
        )
        return
    if quick and paper:
        raise ValueError("--quick and --paper contradict each other; give one")
    if only and name != "all":
        raise ValueError(
            "--only: works with 'all' only, as in: bayespg reproduce all --only bandit,lengths"
        )
    if name != "all" and (again or jobs is not None):
        raise ValueError(f"--{'again' if again else 'jobs'}: works with 'all' only; leave it out")
    chosen = [one.strip() for some in only or [] for one in some.split(",")] or list(EXPERIMENTS)
    names = list(dict.fromkeys(_known(one) for one in (chosen if name == "all" else [name])))
    if judge:
        if quick or paper or again or resume or jobs is not None or runs is not None:
            raise ValueError("--judge: takes a name and --out only, because nothing is run")
        for one in names:
            if name != "all" or (out / f"{one}.npz").exists():
                _show(reports.judge_again(EXPERIMENTS[one], out), out)
        page.write(out, list(EXPERIMENTS))
        return
    out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    parts = out / ".parts" if resume else None
    wanted = {one: EXPERIMENTS[one].settings(runs, seed, quick, paper, parts) for one in names}
    if name == "all" and not again:
        done = [one for one in names if reports.done(EXPERIMENTS[one], wanted[one], out)]
        if done:
            console.print(f"Already done (--again repeats them): {', '.join(done)}")
        wanted = {one: settings for one, settings in wanted.items() if one not in done}
    jobs = jobs or min(6, max(1, threads.cores() // 2))
    shared = {one: wanted[one] for one in wanted if jobs > 1 and not EXPERIMENTS[one].timed}
    if len(shared) > 1:
        _side_by_side(shared, out, jobs)
        wanted = {one: wanted[one] for one in wanted if one not in shared}
    _in_turn(wanted, out)
    path = page.write(out, list(EXPERIMENTS))
    say("All claims with their verdicts: ", (str(path), "bold"))


def _in_turn(wanted: Mapping[str, Settings], out: Path) -> None:
    for name, settings in wanted.items():
        console.rule(f"[bold]{EXPERIMENTS[name].title}[/bold]  ({settings.runs:,} runs)")
        with progress(name) as advance:
            content = make(name, settings, out, advance)
        _show(content, out)
        page.write(out, list(EXPERIMENTS))


def _side_by_side(wanted: Mapping[str, Settings], out: Path, jobs: int) -> None:
    with bars() as advance:
        longest = sorted(wanted, key=lambda name: -EXPERIMENTS[name].minutes)
        tasks = {name: (wanted[name], out) for name in longest}
        for name, content in together.run(tasks, make, jobs, advance):
            advance(name, 1.0, "")
            console.rule(f"[bold]{EXPERIMENTS[name].title}[/bold]")
            _show(content, out)
            page.write(out, list(EXPERIMENTS))


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
    first = folders[0]
    if any((first / f"{name}.json").exists() for name in EXPERIMENTS):
        if len(folders) > 1 or out:
            raise ValueError("give one folder of 'bayespg reproduce', and no --out")
        if not page.read(first, list(EXPERIMENTS)):
            raise ValueError(
                f"{first}: the results are damaged or from an older version; run 'bayespg "
                "reproduce' again"
            )
        path = page.write(first, list(EXPERIMENTS))
    else:
        own = first / "report.html" if len(folders) == 1 else beside(folders, ".html")
        path = overview.write(folders, out or own)
    say("Page: ", (str(path), "bold"))


def _known(name: str) -> str:
    if name in EXPERIMENTS:
        return name
    hint = checks.suggestion(name, [*EXPERIMENTS, "all"], 0.4)
    raise ValueError(f"no experiment is called '{name}'; {hint}")


def _show(content: reports.Content, out: Path) -> None:
    columns, rows = content["table"]["columns"], content["table"]["rows"]
    shown = fitting(len(columns))
    table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows])
    if len(shown) < len(columns):
        say((f"{len(shown)} of {len(columns)} columns; all are on disk.", "dim"))
    if content["claims"]:
        table(
            ["", "claim", "measured here", "verdict"],
            [
                [
                    c["kind"], c["says"], c["measured"], COLOURED[c["verdict"]],
                ]
                for c in content["claims"]
            ],
        )  # fmt: skip
    for note in content["notes"]:
        say((note, "dim"))
    files = out / content["experiment"]
    say(
        f"{content['seconds']:.0f} s. Numbers: ", (f"{files}.json", "bold"),
        ", picture: ", (f"{files}.png", "bold"), "\n",
    )  # fmt: skip
