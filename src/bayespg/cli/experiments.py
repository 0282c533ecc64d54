"""The work of bayespg reproduce and bayespg report: experiments are run, judged and shown."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from bayespg._support import checks, threads, together
from bayespg._support.files import make_directory
from bayespg.cli.common import bars, console, path_beside, progress, say, some_columns, table
from bayespg.cli.options import Reproduction
from bayespg.reproduce import EXPERIMENTS, Experiment, Settings, make, page, sentences
from bayespg.reproduce import report as reports
from bayespg.runs import overview

Known = Mapping[str, Experiment]
"""The experiments to choose from, by name."""
COLOURS = {"holds": "green", "does not hold": "red", "not decided": "yellow"}


def reproduce(options: Reproduction, known: Known) -> None:
    """Run those of the known experiments that the options ask for."""
    if options.only and options.name != "all":
        raise ValueError(
            "--only: works with 'all' only, as in: bayespg reproduce all --only bandit,lqr-noise"
        )
    if options.name is None or options.listed:
        table(
            ["name", "what it shows", "--paper"],
            [[e.name, f"{e.item}: {e.title}", f"{e.paper_runs:,} runs"] for e in known.values()],
            whole=1,
        )
        return
    names, out = _chosen(options, known), options.out
    if options.judge:
        if options.name == "all":
            names = [name for name in names if (out / f"{name}.npz").exists()]
        if not names:
            raise ValueError(f"--judge: {out} holds no samples (.npz); run the experiments first")
        for name in names:
            _show(known[name], reports.judge_again(known[name], out), out)
        _finish(out)
        return
    make_directory(out)  # fail before the work, not after it
    parts = out / ".parts" if options.resume else None
    size = options.runs, options.seed, options.quick, options.paper, parts
    wanted = {name: known[name].settings(*size) for name in names}
    if options.name == "all" and not options.again:
        done = [name for name in names if reports.done(known[name], wanted[name], out)]
        if done:
            console.print(f"Already done (--again repeats them): {', '.join(done)}")
        wanted = {name: settings for name, settings in wanted.items() if name not in done}
    jobs = options.jobs or min(6, max(1, threads.cores() // 2))
    shared = {name: wanted[name] for name in wanted if jobs > 1 and not known[name].timed}
    if len(shared) > 1:
        _side_by_side(shared, known, out, jobs)
        wanted = {name: wanted[name] for name in wanted if name not in shared}
    _one_after_another(wanted, known, out)
    _finish(out)


def _finish(out: Path) -> None:
    """Write the page of a folder, and say how many of the paper's sentences hold."""
    path = page.write(out, list(EXPERIMENTS))
    _say_left_out(out)
    judged = sentences.tested(page.read(out, list(EXPERIMENTS)))
    if judged:
        counted = sentences.counts(judged).items()
        words = ", ".join(f"{count} {sentences.OUTCOMES[outcome]}" for outcome, count in counted)
        say(f"Sentences of the paper with results in {out}: {words}.")
    say("All sentences and claims with their verdicts: ", (str(path), "bold"))


def _chosen(options: Reproduction, known: Known) -> list[str]:
    """The experiments that the options name; ValueError where options contradict each other."""
    every, jobs = options.name == "all", options.jobs is not None
    if options.quick and options.paper:
        raise ValueError("--quick and --paper contradict each other; give one")
    if not every and (options.again or jobs):
        wrong = "again" if options.again else "jobs"
        raise ValueError(f"--{wrong}: works with 'all' only; leave it out")
    sized = options.quick or options.paper or options.runs is not None
    if options.judge and (sized or options.again or options.resume or jobs):
        raise ValueError("--judge: takes a name and --out only, because nothing is run")
    if not every:
        return [_checked(str(options.name), known)]
    named = [name.strip() for some in options.only or [] for name in some.split(",")]
    return list(dict.fromkeys(_checked(name, known) for name in named or known))


def _one_after_another(wanted: Mapping[str, Settings], known: Known, out: Path) -> None:
    for name, settings in wanted.items():
        console.rule(f"[bold]{known[name].title}[/bold]  ({settings.runs:,} runs)")
        with progress(name) as advance:
            content = make(known[name], settings, out, advance)
        _show(known[name], content, out)
        page.write(out, list(EXPERIMENTS))


def _side_by_side(wanted: Mapping[str, Settings], known: Known, out: Path, jobs: int) -> None:
    with bars() as advance:
        longest = sorted(wanted, key=lambda name: -known[name].minutes)
        tasks = {name: (known[name], wanted[name], out) for name in longest}
        for name, content in together.run(tasks, make_named, jobs, advance):
            advance(name, 1.0, "")
            console.rule(f"[bold]{known[name].title}[/bold]")
            _show(known[name], content, out)
            page.write(out, list(EXPERIMENTS))


def make_named(name: str, *arguments: Any) -> reports.Content:
    """`make` in another process, which is also given the name."""
    return make(*arguments)


def _say_left_out(folder: Path) -> None:
    left_out = page.unreadable(folder, list(EXPERIMENTS))
    if left_out:
        say(f"Left out, because damaged or from another version: {', '.join(left_out)}.")


def report(folders: list[Path], out: Path | None) -> None:
    """A page about experiments or about training runs, as the first folder holds."""
    missing = [str(folder) for folder in folders if not folder.exists()]
    if missing:
        raise ValueError(f"{', '.join(missing)}: there is no such directory")
    first = folders[0]
    contents = page.read(first, list(EXPERIMENTS))
    if contents or any((first / f"{name}.json").exists() for name in EXPERIMENTS):
        if len(folders) > 1 or out:
            raise ValueError("give one folder of 'bayespg reproduce', and no --out")
        if not contents:
            raise ValueError(
                f"{first}: the results are damaged or from an older version; run 'bayespg "
                "reproduce' again"
            )
        path = page.write(first, list(EXPERIMENTS))
        _say_left_out(first)
    else:
        own = first / "report.html" if len(folders) == 1 else path_beside(folders, ".html")
        path = overview.write(folders, out or own)
    say("Page: ", (str(path), "bold"))


def _checked(name: str, known: Known) -> str:
    if name in known:
        return name
    if name in sentences.SENTENCES:
        raise ValueError(
            f"'{name}' is a sentence of the paper, not an experiment; docs/reproduction.md names "
            "those that judge it, and 'bayespg reproduce' lists all"
        )
    if close := difflib.get_close_matches(name, [*known, *sentences.SENTENCES, "all"], 1, 0.6):
        hint = f"did you mean '{close[0]}'?"
    else:
        hint = checks.suggestion(name, [*known, "all"], 0.4)
    raise ValueError(f"no experiment or sentence of the paper is called '{name}'; {hint}")


def _show(experiment: Experiment, content: reports.Content, out: Path) -> None:
    columns, rows = content["table"]["columns"], content["table"]["rows"]
    shown = some_columns(len(columns))
    table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows])
    if len(shown) < len(columns):
        say((f"{len(shown)} of {len(columns)} columns; all are on disk.", "dim"))
    if content["claims"]:
        table(
            ["sentence", "claim", "measured here", "verdict"],
            [
                [
                    c["sentence"] or c["kind"],
                    f"{c['says']} [{c['reading']}]" if c["reading"] else c["says"],
                    c["measured"],
                    Text(page.verdict(c), COLOURS[c["verdict"]]),
                ]
                for c in content["claims"]
            ],
        )
    elif experiment.judge is not reports.no_claims:
        say("No claim can be judged at these sizes; --paper has those of the paper.")
    for note in content["notes"]:
        say((note, "dim"))
    files = out / content["experiment"]
    say(
        f"{content['seconds']:.0f} s. Numbers: ", (f"{files}.json", "bold"),
        ", picture: ", (f"{files}.png", "bold"), "\n",
    )  # fmt: skip
