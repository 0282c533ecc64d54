"""bayespg train."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from bayespg._support import device as devices
from bayespg.agents import describe, load, mbac, names, pgpe
from bayespg.agents import tuned as tuning
from bayespg.agents.base import BaseAgent
from bayespg.agents.settings import FIELDS, WHERE
from bayespg.cli import continuing
from bayespg.cli.common import MaybeAddress, app, say
from bayespg.cli.options import Imports, Ray, registered, value, with_options
from bayespg.policies.named import Name
from bayespg.runs import seeds as folders
from bayespg.runs.overview import Live
from bayespg.runs.store import summary_writer

ALGORITHMS = {
    "bac": "bac", "bpg": "model2", "mcpg": "mcpg", pgpe.NAME: pgpe.NAME, mbac.NAME: mbac.NAME
}  # fmt: skip
STEPS = 100_000
"""Environment steps of a run, unless stated otherwise."""
RESUMED = {"resume", "steps", "tensorboard", "imports", "ray", "jobs", "device", *WHERE}
"""Options that go with --resume."""


@dataclasses.dataclass(frozen=True)
class Command:
    """The options of `train` that are no settings of an agent."""

    environment: Annotated[
        str | None,
        typer.Argument(help="A name listed by 'bayespg environments', such as a Gymnasium id."),
    ] = None
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="bac, bpg or mcpg, short names for estimators; pgpe, search in the space of "
            "parameters; or mbac, with a learned model of the task."
        ),
    ] = None
    estimator: Annotated[
        str | None, typer.Option(help=", ".join(names.ESTIMATORS), show_default="bac")
    ] = None
    update: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(names.UPDATES)}, or another optimiser of optax.",
            show_default="natural",
        ),
    ] = None
    policy: Annotated[
        str | None,
        typer.Option(
            help=", ".join(get_args(Name)),
            show_default="fourier for choices, mlp for continuous actions; linear for estimators "
            "without a metric",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Environment steps per run, counted from its beginning; with --resume, train a "
            "finished run for longer.",
            show_default=str(STEPS),
        ),
    ] = None
    max_episodes: Annotated[int | None, typer.Option(min=1, help="Episodes per run, for pgpe.")] = (
        None
    )
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds, from --seed on.", show_default="1"),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Seeds trained side by side, in processes or with --ray as its tasks.",
            show_default="1",
        ),
    ] = None
    ray: Ray = None
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned",
            help="Settings tuned for this task, where it has some; those given here replace them.",
        ),
    ] = False
    out: Annotated[
        Path | None, typer.Option(help="Run directory.", show_default="a new one under runs/")
    ] = None
    resume: Annotated[
        Path | None, typer.Option(help="Resume this run exactly where it stopped.")
    ] = None
    tensorboard: Annotated[
        bool, typer.Option(help="Also write events for TensorBoard; needs bayespg\\[tensorboard].")
    ] = False
    live: Annotated[
        bool,
        typer.Option("--live", help="Keep a page, RUN/live.html, that shows training as it goes."),
    ] = False
    device: Annotated[
        str | None,
        typer.Option(help="cpu or gpu: where updates are computed.", show_default="JAX's default"),
    ] = None
    imports: Imports = None


@app.command(cls=MaybeAddress)
@with_options(Command, settings=True)
def train(**given: Any) -> None:
    """Train a policy, with error bars on every gradient. Every update is saved immediately."""
    settings = {name: value(name, given[name]) for name in FIELDS if given[name] is not None}
    command = Command(**{name: one for name, one in given.items() if name not in FIELDS})
    if command.device is not None:
        devices.choose(command.device)
    if command.live and command.jobs is not None:
        raise ValueError("live: shows one run at a time; leave it out with --jobs")
    where = _where(settings.pop("workers", None), command.ray, command.jobs)
    settings |= {} if where is None else {"workers": where}
    if command.resume is not None:
        _resume(command.resume, command, settings)
    else:
        _begin(command, settings)


def _resume(path: Path, command: Command, settings: dict[str, Any]) -> None:
    """Resume a run with the settings that say where episodes are played."""
    said = {f.name for f in dataclasses.fields(Command) if getattr(command, f.name) != f.default}
    if more := (said | set(settings)) - RESUMED:
        raise ValueError(
            f"{min(more)}: a resumed run keeps its settings; leave it out with --resume"
        )
    shared = (path, command.steps, command.tensorboard, command.imports or [])
    if command.jobs is None:
        continuing.resume(*shared, settings)
    else:
        continuing.resume_together(*shared, command.jobs, command.ray)


def _begin(command: Command, settings: dict[str, Any]) -> None:
    """Train the seeds of a new run."""
    arguments = _chosen(command)
    tuned = tuning.settings(arguments["environment"]) if command.tuned else None
    if tuned is not None and arguments.get("estimator", "bac") != "bac":
        raise ValueError("tuned: is for --algorithm bac; leave it out with another one")
    arguments = ({} if tuned is None else tuned.settings) | arguments | settings
    first = load.made(arguments)  # a wrong name fails before a folder is made
    total = command.steps or STEPS
    if command.steps is None and command.max_episodes is not None:
        total = command.max_episodes * first.world.horizon
    if command.tensorboard:
        summary_writer()  # without its package, fail before a folder is made
    name = arguments["environment"].rpartition(":")[2].replace("/", "-")
    chosen = f"{first.config['estimator']}-{first.config['policy']}"
    folder = command.out or _free(Path("runs") / f"{name}-{chosen}")
    _announce(first, folder)
    if tuned is not None:
        say(f"Tuned on seeds {tuned.seeds[0]} to {tuned.seeds[1]}: report others.")
    told = [Live(folder, folder / "live.html")] if command.live else []
    if told:
        say("Look at ", ((folder / "live.html").absolute().as_uri(), "bold"))
    begun = first.settings.seed
    seeds = range(begun, begun + (command.seeds or 1))
    config = first.config | {"steps": total}
    folders.plan(folder, seeds, config)
    if command.jobs is not None:
        continuing.train_together(
            folder, config, seeds, command.jobs, command.ray, command.imports, command.tensorboard
        )
        return
    for k in seeds:
        agent = first if k == begun else load.made(arguments | {"seed": k})
        run = folders.directory(folder, k)
        agent.learn(total, run=run, callbacks=told, tensorboard=command.tensorboard)
        continuing.stop_if_asked(agent, folder)
    continuing.summary(folder)


def _chosen(command: Command) -> dict[str, Any]:
    """The arguments of an agent that were given and are no settings."""
    if command.environment is None:
        raise ValueError("give an environment, as in: bayespg train CartPole-v1")
    environment = registered(command.environment, command.imports or [])
    estimator = command.estimator
    if command.algorithm is not None:
        if estimator is not None:
            raise ValueError("algorithm: is a short name for an estimator; give one of the two")
        if command.algorithm not in ALGORITHMS:
            raise names.unknown("algorithm", command.algorithm, list(ALGORITHMS))
        estimator = ALGORITHMS[command.algorithm]
    if command.max_episodes is not None and estimator != pgpe.NAME:
        raise ValueError("max_episodes: is for --algorithm pgpe; give --steps")
    arguments = {
        "environment": environment, "policy": command.policy, "estimator": estimator,
        "update": command.update, "max_episodes": command.max_episodes,
    }  # fmt: skip
    return {name: one for name, one in arguments.items() if one is not None}


def _announce(agent: BaseAgent, folder: Path) -> None:
    """Say what is trained, and where."""
    config, workers = agent.config, agent.settings.workers
    per_update = agent.episodes
    growing = " at first" if agent.settings.episodes == "auto" else ""
    say(
        (config["environment"], "bold"),
        f": {config['estimator']}, {config['policy']} policy with {agent.parameter_count:,} "
        f"parameters, {per_update} episodes per update{growing}. Run: ",
        (str(folder), "bold"),
    )
    say((describe.settings(config, describe.NAMES), "dim"))
    if isinstance(workers, int) and workers > per_update:
        say(
            f"Only {per_update} of {workers} workers have an episode to play at a time; "
            f"--episodes {workers} would use them all."
        )


def _where(workers: int | str | None, ray: str | None, jobs: int | None) -> int | str | None:
    """The setting `workers` of agents. With --jobs every seed has a process or a task of its own,
    and plays its episodes there."""
    if workers is not None and ray is not None:
        raise ValueError("workers: are processes of this machine; give --workers or --ray")
    if workers is not None and jobs is not None:
        raise ValueError("workers: play the episodes of one seed; give --workers or --jobs")
    return workers or (ray if jobs is None else None)


def _free(path: Path) -> Path:
    """The path, or the first of path-2, path-3, ... that does not exist."""
    free, k = path, 1
    while free.exists():
        k += 1
        free = path.with_name(f"{path.name}-{k}")
    return free
