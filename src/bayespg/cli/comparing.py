"""bayespg compare: our algorithms beside those of Stable-Baselines3 on any task."""

import shlex
from pathlib import Path

import gymnasium

from bayespg._support.files import make_directory
from bayespg.agents import compare as comparing
from bayespg.agents import names
from bayespg.agents.imports import import_all
from bayespg.cli.common import app, progress, say, table
from bayespg.cli.options import IMPORTS, argument, option
from bayespg.cli.training import ALGORITHMS
from bayespg.runs import comparison, plots

POINTS = 20
"""Evaluations in the course of a training."""


@app.command()
def compare(
    environment: str = argument("A Gymnasium id."),
    algorithms: str = option(f"Ours, separated by commas: {', '.join(ALGORITHMS)}.", "bac,mcpg"),
    rivals: str = option(
        "Of Stable-Baselines3, if it is installed: "
        f"{', '.join(comparing.RIVALS)}; with their default settings.", "", shown="none",
    ),
    steps: int = option("Environment steps per run.", 20_000, min=100),
    seeds: int = option("Seeds of each algorithm.", 3, min=1),
    episodes: int = option("Episodes per evaluation.", 10, min=1),
    threshold: float | None = option(
        "A return that counts as solved.", shown="the environment's own, if any"
    ),
    jobs: int = option(
        "Trainings at a time, each in a process with its own cores. The seconds in the table are "
        "then those of that many at a time.", 1, min=1,
    ),
    out: Path | None = option("Folder.", shown="compare/TASK"),
    imports: list[str] | None = IMPORTS,
) -> None:  # fmt: skip
    """Train several algorithms with the same evaluations, and write one page with curves, bands
    over seeds and a table. Started again, it resumes where it stopped."""
    import_all(imports or [])
    if environment not in gymnasium.registry:
        raise names.unknown("environment", environment, list(gymnasium.registry))
    ours, others = _names(algorithms), _names(rivals)
    for name in ours:
        if name not in ALGORITHMS:
            raise names.unknown("algorithms", name, list(ALGORITHMS))
    for name in others:
        comparing.rival(name)
        comparing.refuse_actions(name, environment)
    if threshold is None:
        threshold = gymnasium.spec(environment).reward_threshold
    folder = out or Path("compare") / environment.replace("/", "-")
    make_directory(folder)
    settings = {
        "task": environment, "steps": steps, "episodes": episodes, "points": POINTS,
        "threshold": threshold,
    }  # fmt: skip
    results = comparing.Comparison(folder / "compare.json", settings)
    every = [(name, seed) for name in (*ours, *others) for seed in range(seeds)]
    tasks = {
        f"{name}, seed {seed}": comparing.Task(
            environment, name, ALGORITHMS.get(name), seed, steps, episodes, POINTS,
            tuple(imports or ()),
        )
        for name, seed in every
        if not results.done(name, seed)
    }  # fmt: skip
    say(_plan(results, tasks, jobs))
    shares = dict.fromkeys(tasks, 0.0)
    done = len(every) - len(tasks)
    with progress(environment) as advance:

        def tell(name: str, share: float, _: str) -> None:
            shares[name] = share
            advance((done + sum(shares.values())) / len(every), name)

        for name, (points, seconds) in comparing.train_all(tasks, jobs, tell):
            shares[name] = 1.0
            results.add(tasks[name].algorithm, tasks[name].seed, points, seconds)
    _show(results, ours, others, folder)


def _plan(results: comparing.Comparison, tasks: dict[str, comparing.Task], jobs: int) -> str:
    """What is going to be done, and how long it will take as far as earlier runs tell."""
    text = f"{len(tasks)} runs of {results.settings['steps']:,} steps, {jobs} at a time"
    text += f"; {len(results.runs)} are done" if results.runs else ""
    known = [[run["seconds"] for run in results.of(task.algorithm)] for task in tasks.values()]
    if tasks and all(known):
        seconds = sum(sum(of) / len(of) for of in known) / min(jobs, len(tasks))
        text += f"; about {seconds / 60:,.0f} min by those, and the evaluations"
    return text


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))


def _show(results: comparing.Comparison, ours: list[str], others: list[str], folder: Path) -> None:
    settings, threshold = results.settings, results.settings["threshold"]
    of = {name: results.of(name) for name in (*ours, *others)}
    runs = {name: [[tuple(e) for e in run["evaluations"]] for run in of[name]] for name in of}
    seconds = {name: [run["seconds"] for run in of[name]] for name in of}
    reached = {}
    if threshold is not None:
        reached = {n: [comparing.steps_to(e, threshold) for e in each] for n, each in runs.items()}
    lines = comparison.rows(runs, reached, seconds)
    figure = comparison.draw(runs, settings["task"], threshold)
    plots.save(figure, folder / "compare.png")
    chosen = {
        "algorithms": ",".join(ours), "rivals": ",".join(others), "steps": settings["steps"],
        "seeds": max(map(len, runs.values())), "episodes": settings["episodes"],
    }  # fmt: skip
    words = [word for k, v in chosen.items() if v for word in (f"--{k}", str(v))]
    command = shlex.join(["bayespg", "compare", settings["task"], *words])
    page = comparison.write(folder / "compare.html", settings, figure, lines, command)
    table(comparison.HEADINGS, lines, whole=1)
    say("Page: ", (str(page), "bold"), f", picture: {folder / 'compare.png'}")
