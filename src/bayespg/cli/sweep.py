"""bayespg sweep: every combination of some settings, over seeds."""

import itertools
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bayespg._support.files import refuse_link, write_json
from bayespg._support.version import __version__
from bayespg.agents import load
from bayespg.agents.jobs import Runs, side_by_side
from bayespg.cli.common import MaybeAddress, app, bars, say, table
from bayespg.cli.options import Imports, Ray, option, registered, setting, value
from bayespg.runs import curves, overview
from bayespg.runs import seeds as folders
from bayespg.runs.columns import Column
from bayespg.runs.numbers import over_seeds, shown
from bayespg.runs.store import CONFIG, Run

NAMES = ("policy", "estimator", "update")
"""What can be varied besides the settings of agents."""
TABLE = "sweep.json"
"""The returns of every seed, in the folder of the sweep."""


@app.command(cls=MaybeAddress)
def sweep(
    environment: Annotated[str, typer.Argument(help="A name listed by 'bayespg environments'.")],
    varied: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE,VALUE...",
            help="A setting and its values; repeat it for more settings. Also policy, estimator "
            "and update.",
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Environment steps per run.")] = 100_000,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every combination.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 1,
    ray: Ray = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder.", show_default="runs/ENVIRONMENT-sweep")
    ] = None,
    imports: Imports = None,
) -> None:
    """Train every combination of settings over several seeds, and compare them.

    The same command finishes a sweep that was stopped; with more values or seeds it trains what is
    missing. Each combination is a folder of seeds, as 'bayespg train' writes it.
    """
    task = registered(environment, imports or [])
    out = out or Path("runs") / f"{environment.rpartition(':')[2].replace('/', '-')}-sweep"
    places: dict[str, tuple[Path, dict[str, Any]]] = {}
    runs: dict[str, tuple[Path, dict[str, Any]]] = {}
    for chosen in combinations(varied):
        name = ", ".join(f"{option(k)}={_word(v)}" for k, v in chosen.items())
        folder = out / name.replace("/", "-")
        refuse_link(folder)
        places[name] = folder, chosen
        config = load.made({"environment": task} | chosen | {"seed": seed}).config
        folders.plan(folder, range(seed, seed + seeds), config | {"steps": steps})
        for k in range(seed, seed + seeds):
            path = folders.directory(folder, k).absolute()
            runs[f"{name}, seed {k}"] = path, config | {"seed": k, "steps": steps}
    missing = {name: one for name, one in runs.items() if not _done(*one)}
    say((task, "bold"), f": {len(places)} combinations, {seeds} seeds each, {len(missing)} of "
        f"{len(runs)} runs to train. Folder: ", (str(out), "bold"))  # fmt: skip
    _train(missing, jobs, ray, imports or [])
    page = overview.write([folder for folder, _ in places.values()], out / "report.html")
    settings = {"environment": task, "steps": steps, "seeds": [seed, seed + seeds - 1]}
    write_json(out / TABLE, settings | {"combinations": _compare(places), "version": __version__})
    say("Page: ", (str(page), "bold"), ". Numbers: ", (str(out / TABLE), "bold"))


def combinations(varied: list[str]) -> list[dict[str, Any]]:
    """Every combination of ``name=value,value`` with the others."""
    values: dict[str, list[Any]] = {}
    for text in varied:
        name, equals, rest = text.partition("=")
        name = setting(name.strip())
        if not equals or not rest:
            raise ValueError(
                f"set: expected NAME=VALUE,VALUE as in limit=0.01,0.03, found {text!r}"
            )
        if name in values or name in ("seed", "workers", "episode_timeout", "environment"):
            raise ValueError(f"set: {name} cannot be varied here, or was given twice")
        values[name] = [
            word.strip() if name in NAMES else value(name, word.strip()) for word in rest.split(",")
        ]
    return [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]


def _word(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _done(path: Path, config: dict[str, Any]) -> bool:
    """Whether a run has all its steps."""
    if not (path / CONFIG).exists():
        return False
    steps = curves.logged(Run.open(path)).get(Column.STEPS)
    return steps is not None and bool(steps[-1] >= config["steps"])


def _train(runs: Runs, jobs: int, ray: str | None, imports: list[str]) -> None:
    try:
        with bars() as advance:
            for name, _ in side_by_side(runs, jobs, advance, address=ray, imports=imports):
                advance(name, 1.0, "")
    except KeyboardInterrupt:
        say("Interrupted. Every run keeps its whole updates; the same command finishes the sweep.")
        raise


def _compare(places: dict[str, tuple[Path, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Show the combinations side by side; the numbers of each seed."""
    rows, ends, kept = [], [], []
    for name, (folder, chosen) in places.items():
        drawn = curves.of(folders.group(folder))
        last, mean = drawn.returns[:, -1], drawn.returns.mean(1)
        ends.append(float(last.mean()))
        rows.append([name, shown(last.mean())[0], over_seeds(last), shown(mean.mean())[0]])
        kept.append({
            "settings": chosen, "returns_at_the_end": last.round(3).tolist(),
            "returns_over_the_run": mean.round(3).tolist(),
        })  # fmt: skip
    table(["settings", "return at the end", "over seeds", "mean over the run"], rows)
    best = rows[int(np.argmax(ends))][0]
    say("Best at the end: ", (best, "bold"), ". Its seeds were used to choose it; train it on "
        "others before you report it.")  # fmt: skip
    return kept
