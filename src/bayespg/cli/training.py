"""bayespg demo and train."""

import inspect
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer

from bayespg._support import device as devices
from bayespg._support.statistics import student_interval
from bayespg.agents import describe, names, pgpe
from bayespg.agents import tuned as tuning
from bayespg.agents.agent import Agent
from bayespg.agents.metrics import Row
from bayespg.agents.settings import DEFAULTS, WHERE
from bayespg.cli import continuing
from bayespg.cli.common import MaybeAddress, app, progress, say, table
from bayespg.cli.options import Imports, Ray, Workers, registered, widths
from bayespg.learning.trust import SIZES
from bayespg.paths.players import LIMIT as EPISODE_TIMEOUT
from bayespg.policies.named import Name
from bayespg.runs import curves, plots
from bayespg.runs import seeds as folders
from bayespg.runs.columns import Column
from bayespg.runs.live import Live
from bayespg.runs.store import summary_writer

SHOWN = {
    "bac": "Bayesian actor-critic",
    "gpomdp": "Monte Carlo",
    "fitted": "Monte Carlo less fitted values",
}
ALGORITHMS = {"bac": "bac", "bpg": "model2", "mcpg": "mcpg", pgpe.NAME: pgpe.NAME}
STEPS = 100_000
"""Environment steps of a run, unless stated otherwise."""


def _default(setting: str) -> str:
    """The default of a setting, as the command line takes it."""
    value = DEFAULTS[setting]
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Directory for the figure.")] = Path("results"),
    seeds: Annotated[int, typer.Option(min=1, help="Independent runs.")] = 6,
    steps: Annotated[int, typer.Option(min=1000, help="Environment steps per run.")] = 15_000,
) -> None:
    """Learn CartPole from a few dozen episodes, and show how accurate each gradient was."""
    out.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    found: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in SHOWN}
    rows = []
    with progress("CartPole-v1") as advance:
        for i, name in enumerate(found):
            for seed in range(seeds):
                agent = Agent("CartPole-v1", estimator=name, episodes=2, seed=seed)
                done = (i * seeds + seed) / (len(SHOWN) * seeds)
                kept: list[Row] = []

                def show(agent, row, done=done, name=name, kept=kept):
                    kept.append(row)
                    part = min(row[Column.STEPS] / steps, 1.0) / (len(SHOWN) * seeds)
                    advance(done + part, f"{name}, return {row[Column.RETURN]:.0f}")

                agent.learn(steps, callbacks=show, progress=False)
                found[name].append({k: np.array([row[k] for row in kept]) for k in kept[0]})
    for name, label in SHOWN.items():
        last = np.array([m[Column.RETURN][-3:].mean() for m in found[name]])
        low, high = student_interval(last)
        rows.append([label, f"{last.mean():.0f}", f"{max(low, 0):.0f} to {min(high, 500):.0f}"])
    table(["", f"return after {steps:,} steps", "95 % over seeds"], rows)
    pictured = [(label, curves.of_metrics(found[name])) for name, label in SHOWN.items()]
    path = out / "demo.png"
    plots.save(curves.draw(pictured, "CartPole-v1, two episodes per update", 475), path)
    say("\nPicture: ", (str(path), "bold"), ". Now one of yours: bayespg train Acrobot-v1")


@app.command(cls=MaybeAddress)
def train(
    environment: Annotated[
        str | None,
        typer.Argument(help="A name listed by 'bayespg environments', such as a Gymnasium id."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="bac, bpg or mcpg, short names for estimators; or pgpe, search in the space of "
            "parameters."
        ),
    ] = None,
    estimator: Annotated[
        str | None, typer.Option(help=", ".join(names.ESTIMATORS), show_default="bac")
    ] = None,
    update: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(names.UPDATES)}, or another optimiser of optax.",
            show_default="natural",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help=", ".join(get_args(Name)),
            show_default="fourier for choices, mlp for continuous actions; linear for estimators "
            "without a metric",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Environment steps per run, counted from its beginning; with --resume, train a "
            "finished run for longer.",
            show_default=str(STEPS),
        ),
    ] = None,
    max_episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes per run, for pgpe.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The first seed.", show_default="0")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds.", show_default="1"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Seeds trained side by side, in processes or with --ray as its tasks.",
            show_default="1",
        ),
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option(
            help=f"Episodes per update, or auto: {SIZES[0]} to {SIZES[-1]}, fewer the more they "
            "agree.",
            show_default=f"auto; {SIZES[0]} where that is not measured",
        ),
    ] = None,
    discount: Annotated[
        float | None,
        typer.Option(
            help="Discount gamma; an environment in JAX has its own.",
            show_default=_default("discount"),
        ),
    ] = None,
    lambda_: Annotated[
        float | None,
        typer.Option(
            "--lambda", help="Lambda of bac, rebase and gae.", show_default=_default("lambda_")
        ),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option(
            help="Limit of the Kullback-Leibler divergence per update.",
            show_default=_default("limit"),
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Learning rate, for optimisers.", show_default=_default("rate")),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(help="Widths of the layers of policy mlp.", show_default=_default("hidden")),
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Cut episodes off after this many steps.")
    ] = None,
    persistence: Annotated[
        float | None,
        typer.Option(
            help="Persistence of exploration at the start, from 0 to 1.",
            show_default=f"{_default('persistence')}; 0 for estimators without a metric",
        ),
    ] = None,
    workers: Workers = None,
    ray: Ray = None,
    episode_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which a worker's episode is played again.",
            show_default=f"{EPISODE_TIMEOUT:g}",
        ),
    ] = None,
    normalise: Annotated[
        bool | None,
        typer.Option(
            "--normalise/--no-normalise",
            help="Normalise observations.",
            show_default="on Gymnasium",
        ),
    ] = None,
    masks: Annotated[
        bool | None,
        typer.Option(
            "--masks/--no-masks",
            help="Choose among the actions that the environment allows: its action_masks() or "
            "info['action_mask'].",
            show_default="if it has action_masks()",
        ),
    ] = None,
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned",
            help="Settings tuned for this task, where it has some; those given here replace them.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Run directory.", show_default="a new one under runs/")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume this run exactly where it stopped.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option(help="Also write events for TensorBoard; needs bayespg\\[tensorboard].")
    ] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Keep a page, RUN/live.html, that shows training as it goes."),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or gpu: where updates are computed.", show_default="JAX's default"),
    ] = None,
    imports: Imports = None,
) -> None:
    """Train a policy, with error bars on every gradient. Every update is saved immediately."""
    said = _not_default(locals())
    if device is not None:
        devices.choose(device)
    if live and jobs is not None:
        raise ValueError("live: shows one run at a time; leave it out with --jobs")
    if resume is not None:
        if more := said - {
            "resume",
            "steps",
            "tensorboard",
            "imports",
            *WHERE,
            "ray",
            "jobs",
            "device",
        }:
            raise ValueError(
                f"{min(more)}: a resumed run keeps its settings; leave it out with --resume"
            )
        chosen = {"workers": _where(workers, ray, jobs), "episode_timeout": episode_timeout}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if jobs is None:
            continuing.resume(resume, steps, tensorboard, imports or [], chosen)
        else:
            continuing.resume_together(resume, steps, tensorboard, imports or [], jobs, ray)
        return
    if environment is None:
        raise ValueError("give an environment, as in: bayespg train CartPole-v1")
    environment = registered(environment, imports or [])
    if algorithm is not None:
        if "estimator" in said:
            raise ValueError("algorithm: is a short name for an estimator; give one of the two")
        if algorithm not in ALGORITHMS:
            raise names.known("algorithm", algorithm, list(ALGORITHMS))
        estimator = ALGORITHMS[algorithm]
    found = tuning.settings(environment) if tuned else None
    searching = estimator == pgpe.NAME
    if found is not None and (searching or estimator not in (None, "bac")):
        raise ValueError("tuned: is for --algorithm bac; leave it out with another one")
    if max_episodes is not None and not searching:
        raise ValueError("max_episodes: is for --algorithm pgpe; give --steps")
    estimator, seed, seeds = estimator or "bac", seed or 0, seeds or 1
    update = update or (pgpe.UPDATE if searching else "natural")
    settings: dict[str, Any] = {
        "episodes": _whole(episodes),
        "discount": discount,
        "lambda_": lambda_, "limit": limit, "rate": rate,
        "hidden": None if hidden is None else widths(hidden),
        "masks": masks, "horizon": horizon, "normalise": normalise, "persistence": persistence,
        "workers": _where(workers, ray, jobs),
        "episode_timeout": episode_timeout,
    }  # fmt: skip
    if found is not None:
        settings |= {k: v for k, v in found.settings.items() if k not in said}

    def made(k: int) -> Agent:
        if searching:
            more: dict[str, Any] = settings | {"max_episodes": max_episodes}
            return pgpe.PGPE(environment, policy, estimator, update, seed=k, **more)
        return Agent(environment, policy, estimator, update, seed=k, **settings)

    first = made(seed)  # a wrong name fails before a folder is made
    total: int = STEPS if max_episodes is None else max_episodes * first.world.horizon
    total = total if steps is None else steps
    kind = first.config["policy"]
    per_update = len(first.search.ask()) if isinstance(first, pgpe.PGPE) else first.episodes
    growing = " at first" if first.settings.episodes == "auto" else ""
    name = environment.rpartition(":")[2].replace("/", "-")
    if tensorboard:
        summary_writer()  # without its package, fail before a folder is made
    folder = out or _free(Path("runs") / f"{name}-{estimator}-{kind}")
    say(
        (environment, "bold"),
        f": {estimator}, {kind} policy with {first.parameter_count:,} parameters, "
        f"{per_update} episodes per update{growing}. Run: ",
        (str(folder), "bold"),
    )
    say((describe.settings(first.config, describe.NAMES), "dim"))
    if found is not None:
        say(f"Tuned on seeds {found.seeds[0]} to {found.seeds[1]}: report others.")
    told = [Live(folder, folder / "live.html")] if live else []
    if live:
        say("Look at ", ((folder / "live.html").absolute().as_uri(), "bold"))
    if workers and workers > per_update:
        say(
            f"Only {per_update} of {workers} workers have an episode to play at a time; "
            f"--episodes {workers} would use them all."
        )
    folders.plan(folder, range(seed, seed + seeds), first.config | {"steps": total})
    if jobs is not None:
        config = first.config | {"steps": total}
        continuing.train_together(
            folder, config, range(seed, seed + seeds), jobs, ray, imports, tensorboard
        )
        return
    for k in range(seed, seed + seeds):
        agent = first if k == seed else made(k)
        where = folders.directory(folder, k)
        agent.learn(total, run=where, callbacks=told, tensorboard=tensorboard)
        continuing.stop_if_asked(agent, folder)
    continuing.summary(folder)


def _not_default(arguments: dict[str, object]) -> set[str]:
    """The names of the arguments of `train` that were given."""
    known = inspect.signature(train).parameters
    return {name for name, value in arguments.items() if value != known[name].default}


def _where(workers: int | None, ray: str | None, jobs: int | None) -> int | str | None:
    """The setting `workers` of agents. With --jobs every seed has a process or a task of its own,
    and plays its episodes there."""
    if workers is not None and ray is not None:
        raise ValueError("workers: are processes of this machine; give --workers or --ray")
    if workers is not None and jobs is not None:
        raise ValueError("workers: play the episodes of one seed; give --workers or --jobs")
    return workers or (ray if jobs is None else None)


def _free(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that does not exist."""
    found, k = path, 1
    while found.exists():
        k += 1
        found = path.with_name(f"{path.name}-{k}")
    return found


def _whole(text: str | None) -> int | str | None:
    """A whole number, or the text as it is, for the check of the setting."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return text
