"""bayespg train."""

import dataclasses
from pathlib import Path
from typing import Any, get_args

from bayespg._support import device as devices
from bayespg.agents import describe, load, mbac, names, pgpe
from bayespg.agents import tuned as tuning
from bayespg.agents.base import BaseAgent
from bayespg.agents.settings import FIELDS, WHERE
from bayespg.cli import continuing
from bayespg.cli.common import MaybeAddress, app, say
from bayespg.cli.options import IMPORTS, RAY, argument, option, registered, value, with_options
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

    environment: str | None = argument(
        "A name listed by 'bayespg environments', such as a Gymnasium id.", None
    )
    algorithm: str | None = option(
        "bac, bpg or mcpg, short names for estimators; pgpe, search in the space of parameters; or "
        "mbac, with a learned model of the task."
    )
    estimator: str | None = option(", ".join(names.ESTIMATORS), shown="bac")
    update: str | None = option(
        f"{', '.join(names.UPDATES)}, or another optimiser of optax.", shown="natural"
    )
    policy: str | None = option(
        ", ".join(get_args(Name)),
        shown="fourier for choices, mlp for continuous actions; linear for estimators without a "
        "metric",
    )
    steps: int | None = option(
        "Environment steps per run, counted from its beginning; with --resume, train a finished "
        "run for longer.", min=1, shown=str(STEPS),
    )  # fmt: skip
    max_episodes: int | None = option("Episodes per run, for pgpe.", min=1)
    seeds: int | None = option("Number of seeds, from --seed on.", min=1, shown="1")
    jobs: int | None = option(
        "Seeds trained side by side, in processes or with --ray as its tasks.", min=1, shown="1"
    )
    ray: str | None = RAY
    tuned: bool = option(
        "Settings tuned for this task, where it has some; those given here replace them.",
        False, "--tuned",
    )  # fmt: skip
    out: Path | None = option("Run directory.", shown="a new one under runs/")
    resume: Path | None = option("Resume this run exactly where it stopped.")
    tensorboard: bool = option(
        "Also write events for TensorBoard; needs bayespg\\[tensorboard].", False
    )
    live: bool = option(
        "Keep a page, RUN/live.html, that shows training as it goes.", False, "--live"
    )
    device: str | None = option("cpu or gpu: where updates are computed.", shown="JAX's default")
    imports: list[str] | None = IMPORTS


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
    given = {name for name, one in vars(command).items() if one not in (None, False)}
    if more := (given | set(settings)) - RESUMED:
        raise ValueError(
            f"{min(more)}: a resumed run keeps its settings; leave it out with --resume"
        )
    continuing.resume(
        path, command.steps, command.imports or [], command.tensorboard, settings, command.jobs,
        command.ray,
    )  # fmt: skip


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
    callbacks = [Live(folder, folder / "live.html")] if command.live else []
    if callbacks:
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
        agent.learn(total, run=run, callbacks=callbacks, tensorboard=command.tensorboard)
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
    episodes = "episode" if per_update == 1 else "episodes"
    growing = " at first" if agent.settings.episodes == "auto" else ""
    say(
        (config["environment"], "bold"),
        f": {config['estimator']}, {config['policy']} policy with {agent.parameter_count:,} "
        f"parameters, {per_update} {episodes} per update{growing}. Run: ",
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
