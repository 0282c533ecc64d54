"""bayespg evaluate, plot, watch and environments."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bayespg._support.files import refuse_link, write_json
from bayespg._support.version import __version__
from bayespg.agents import film, load, mbac, names
from bayespg.cli.common import app, path_beside, say, table
from bayespg.cli.options import BEST, IMPORTS, RUN, argument, option
from bayespg.models import inside
from bayespg.runs import curves, plots, promises
from bayespg.runs import seeds as folders
from bayespg.runs.numbers import over_seeds, shown


def picture(folder: Path) -> Path:
    """The file for the learning curves of a run directory."""
    refuse_link(folder / "plots")
    return folder / "plots" / "learning.png"


@app.command()
def evaluate(
    run: Path = RUN,
    episodes: int = option("Episodes per seed.", 100, min=1),
    deterministic: bool = option("Take the most likely action.", False),
    best: bool = BEST,
    out: Path | None = option("Also write the return of every episode to this JSON file."),
    imports: list[str] | None = IMPORTS,
) -> None:
    """Evaluate a trained policy: one interval over episodes per seed, and one over seeds."""
    rows, means, kept = [], [], {}
    for member in folders.members(run):
        agent = load.load(member, best=best, imports=imports or [])
        evaluation = agent.evaluate(episodes, deterministic=deterministic)
        mean, low, high = shown(evaluation.mean, *evaluation.interval)
        means.append(evaluation.mean)
        rows.append([member.name, mean, f"{low} to {high}"])
        kept[member.name] = {
            "environment": agent.config["environment"], "steps": int(agent.state.steps),
            "mean": evaluation.mean, "interval": list(evaluation.interval),
            "returns": evaluation.returns.tolist(), "lengths": evaluation.lengths.tolist(),
        }  # fmt: skip
    table(["run", "return", f"95 % over {episodes} episodes"], rows)
    if len(means) > 1:
        mean = shown(float(np.mean(means)))[0]
        say(f"Mean over {len(means)} seeds: ", (mean, "bold"), f" ({over_seeds(np.array(means))})")
    if out is not None:
        asked = {"episodes": episodes, "deterministic": deterministic, "best": best}
        write_json(out, asked | {"runs": kept, "version": __version__})
        say("Numbers: ", (str(out), "bold"))


@app.command()
def plot(
    runs: list[Path] = argument("Run directories written by 'bayespg train'."),
    out: Path | None = option(
        "File for the figure.", shown="in the run's plots/, or beside several runs"
    ),
    model: bool = option(
        "Plot what the model of an MBAC run says of a new episode.", False, "--model"
    ),
    seed: int = option("Seed of that episode.", 0, min=0),
    imports: list[str] | None = IMPORTS,
) -> None:
    """Plot returns over seeds and how probable uphill steps were; several runs in one figure."""
    if model:
        return _plot_model(runs, out, seed, imports or [])
    groups = [folders.group(path) for path in runs]
    tasks = sorted({group.task for group in groups})
    if len(tasks) > 1:
        raise ValueError(
            f"runs: of different tasks ({', '.join(tasks)}), whose returns have no common axis; "
            "plot each task by itself, or make one page of all with 'bayespg report'"
        )
    path = out or (picture(runs[0]) if len(runs) == 1 else path_beside(runs, ".png"))
    plots.save(curves.draw([(group.name, curves.of(group)) for group in groups], tasks[0]), path)
    say("Picture: ", (str(path), "bold"))
    return None


def _plot_model(runs: list[Path], out: Path | None, seed: int, imports: list[str]) -> None:
    """A real episode beside the states that the model predicts from its start and its actions."""
    if len(runs) > 1:
        raise ValueError(f"runs: expected one with --model, found {len(runs)}")
    agent = load.load(folders.members(runs[0])[0], imports=imports)
    if not isinstance(agent, mbac.MBAC):
        raise ValueError(f"runs: {runs[0]} has no model; --model is for runs of MBAC")
    real, forecast = agent.forecast(seed)
    path = out or picture(runs[0]).with_name("model.png")
    states = real.following[: real.count]
    plots.save(promises.follow(states, forecast.mean, forecast.deviation, agent.world.name), path)
    shares = {steps: inside(agent.model, real, steps) for steps in (1, 10, 50)}
    rows = [[f"{n}", f"{x:.2f}"] for n, x in shares.items() if np.isfinite(x)]
    table(["steps ahead", "share inside 95 % intervals"], rows)
    say("Picture: ", (str(path), "bold"))


@app.command()
def watch(
    run: Path = RUN,
    out: Path | None = option("File for the GIF.", shown="RUN/watch.gif"),
    episodes: int = option("Episodes to record.", 1, min=1),
    seed: int = option("Seed of the first episode.", 0, min=0),
    deterministic: bool = option("Take the most likely action.", True),
    best: bool = BEST,
    imports: list[str] | None = IMPORTS,
) -> None:
    """Record a trained policy as a GIF; needs pip install 'bayespg\\[render]'."""
    member = folders.members(run)[0]
    path = out or run / "watch.gif"
    agent = load.load(member, best=best, imports=imports or [])
    returns = film.record(agent, path, episodes, seed, deterministic)
    say(f"Return {', '.join(shown(*returns))}. Film: ", (str(path), "bold"))


@app.command()
def environments(
    pattern: str = argument("Show only names that contain this.", ""),
) -> None:
    """List the environments: those of the paper and classic control in JAX, and all that are
    registered with Gymnasium."""
    of = {True: "Gymnasium's, in JAX", False: "the paper's, in JAX"}
    rows = [[name, of[name.startswith("jax/")]] for name in names.BUILT_IN]
    for name, spec in sorted(gymnasium.registry.items()):
        where: Any = spec.entry_point
        if callable(where):
            if where.__name__.startswith("_raise"):
                continue  # registered only to say that it no longer exists
            where = where.__module__
        rows.append([name, str(where).split(":")[0].removeprefix("gymnasium.envs.")])
    rows = [row for row in rows if pattern.lower() in row[0].lower()]
    if not rows:
        raise names.unknown("environment", pattern, [*names.BUILT_IN, *gymnasium.registry])
    table(["name", "where"], rows)
