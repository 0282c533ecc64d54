"""The work of bayespg reproduce and bayespg report: experiments are run, judged and shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from bayespg._support import checks, threads, together
from bayespg.cli.common import bars, beside, console, fitting, progress, say, table
from bayespg.reproduce import EXPERIMENTS, Experiment, Settings, make, page
from bayespg.reproduce import report as reports
from bayespg.runs import overview

Known = Mapping[str, Experiment]
"""The experiments to choose from, by name."""
COLOURED = {
    "holds": Text("holds", "green"),
    "does not hold": Text("does not hold", "red"),
    "not decided": Text("not decided", "yellow"),
}


def reproduce(
    name: str | None, runs: int | None, seed: int, out: Path, *, quick: bool, paper: bool,
    only: list[str] | None, listed: bool, again: bool, jobs: int | None, resume: bool, judge: bool,
    known: Known,
) -> None:  # fmt: skip
    """Check the options, and run those of the known experiments that they ask for."""
    if name is None or listed:
        table(
            ["name", "what it shows", "--paper"],
            [[e.name, f"{e.item}: {e.title}", f"{e.paper_runs:,} runs"] for e in known.values()],
            whole=1,
        )
        return
    if quick and paper:
        raise ValueError("--quick and --paper contradict each other; give one")
    if only and name != "all":
        raise ValueError(
            "--only: works with 'all' only, as in: bayespg reproduce all --only bandit,lqr-noise"
        )
    if name != "all" and (again or jobs is not None):
        raise ValueError(f"--{'again' if again else 'jobs'}: works with 'all' only; leave it out")
    chosen = [one.strip() for some in only or [] for one in some.split(",")] or list(known)
    names = list(
        dict.fromkeys(_checked(one, known) for one in (chosen if name == "all" else [name]))
    )
    if judge:
        if quick or paper or again or resume or jobs is not None or runs is not None:
            raise ValueError("--judge: takes a name and --out only, because nothing is run")
        for one in names:
            if name != "all" or (out / f"{one}.npz").exists():
                _show(reports.judge_again(known[one], out), out)
        page.write(out, list(EXPERIMENTS))
        return
    out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    parts = out / ".parts" if resume else None
    wanted = {one: known[one].settings(runs, seed, quick, paper, parts) for one in names}
    if name == "all" and not again:
        done = [one for one in names if reports.done(known[one], wanted[one], out)]
        if done:
            console.print(f"Already done (--again repeats them): {', '.join(done)}")
        wanted = {one: settings for one, settings in wanted.items() if one not in done}
    jobs = jobs or min(6, max(1, threads.cores() // 2))
    shared = {one: wanted[one] for one in wanted if jobs > 1 and not known[one].timed}
    if len(shared) > 1:
        _side_by_side(shared, known, out, jobs)
        wanted = {one: wanted[one] for one in wanted if one not in shared}
    _in_turn(wanted, known, out)
    path = page.write(out, list(EXPERIMENTS))
    say("All claims with their verdicts: ", (str(path), "bold"))


def _in_turn(wanted: Mapping[str, Settings], known: Known, out: Path) -> None:
    for name, settings in wanted.items():
        console.rule(f"[bold]{known[name].title}[/bold]  ({settings.runs:,} runs)")
        with progress(name) as advance:
            content = make(known[name], settings, out, advance)
        _show(content, out)
        page.write(out, list(EXPERIMENTS))


def _side_by_side(wanted: Mapping[str, Settings], known: Known, out: Path, jobs: int) -> None:
    with bars() as advance:
        longest = sorted(wanted, key=lambda name: -known[name].minutes)
        tasks = {name: (known[name], wanted[name], out) for name in longest}
        for name, content in together.run(tasks, make_named, jobs, advance):
            advance(name, 1.0, "")
            console.rule(f"[bold]{known[name].title}[/bold]")
            _show(content, out)
            page.write(out, list(EXPERIMENTS))


def make_named(name: str, *arguments: Any) -> reports.Content:
    """`make` in another process, which is also given the name."""
    return make(*arguments)


def report(folders: list[Path], out: Path | None) -> None:
    """A page about experiments or about training runs, as the first folder holds."""
    first = folders[0]
    found = page.read(first, list(EXPERIMENTS))
    if found or any((first / f"{name}.json").exists() for name in EXPERIMENTS):
        if len(folders) > 1 or out:
            raise ValueError("give one folder of 'bayespg reproduce', and no --out")
        if not found:
            raise ValueError(
                f"{first}: the results are damaged or from an older version; run 'bayespg "
                "reproduce' again"
            )
        path = page.write(first, list(EXPERIMENTS))
    else:
        own = first / "report.html" if len(folders) == 1 else beside(folders, ".html")
        path = overview.write(folders, out or own)
    say("Page: ", (str(path), "bold"))


def _checked(name: str, known: Known) -> str:
    if name in known:
        return name
    hint = checks.suggestion(name, [*known, "all"], 0.4)
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
