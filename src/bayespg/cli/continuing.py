"""Training the seeds of a folder: one after the other or side by side, resumed, and for longer."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from bayespg.agents import load
from bayespg.agents.base import BaseAgent
from bayespg.agents.imports import resuming
from bayespg.agents.jobs import Runs, side_by_side
from bayespg.cli import looking
from bayespg.cli.common import bars, say
from bayespg.runs import curves, plots
from bayespg.runs import seeds as folders
from bayespg.runs.columns import Column
from bayespg.runs.numbers import over_seeds, shown
from bayespg.runs.store import CONFIG, Run


def stop_if_asked(agent: BaseAgent, folder: Path) -> None:
    if agent.interrupted:
        if waiting := folders.waiting(folder):
            say(
                f"Not started: seed {', '.join(map(str, waiting))}. Resume all with: "
                f"{resuming(folder, agent.config)}"
            )
        raise typer.Exit(130)


def train_runs(runs: Runs, jobs: int, after: str, **how: Any) -> None:
    """Train runs side by side, with a bar for each; `how` are arguments of `side_by_side`, and
    `after` is said if they are interrupted."""
    try:
        with bars() as advance:
            for name, _ in side_by_side(runs, jobs, advance, **how):
                advance(name, 1.0, "")
    except KeyboardInterrupt:
        say(f"Interrupted. {after}")
        raise


def train_together(
    folder: Path, config: dict[str, Any], seeds: Iterable[int], jobs: int, ray: str | None,
    imports: list[str] | None, tensorboard: bool,
) -> None:  # fmt: skip
    """Train seeds of a folder at the same time; those that have begun are resumed."""
    runs = {
        f"seed {k}": (folders.directory(folder, k).absolute(), config | {"seed": k}) for k in seeds
    }
    again = f"{resuming(folder, config)} --jobs {jobs}{' --ray' if ray else ''}"
    train_runs(
        runs, jobs, f"Every seed keeps its whole updates. Resume all with: {again}",
        address=ray, imports=imports or [], tensorboard=tensorboard,
    )  # fmt: skip
    summary(folder)


def resume(
    path: Path, steps: int | None, imports: list[str], tensorboard: bool, chosen: dict[str, Any],
    jobs: int | None, ray: str | None,
) -> None:  # fmt: skip
    """Train the runs of a folder to their end, or to `steps` steps. `chosen` are settings that say
    where episodes are played."""
    members = folders.members(path)
    if jobs is not None and path in members:
        raise ValueError(f"jobs: {path} is one run; give the folder of several seeds")
    if steps is not None:
        extend_all(members, steps, imports)
    wanted = {member: steps_of(member) for member in members}
    if jobs is not None:
        first, _ = load.reopen(members[0], imports=imports)
        seeds = [int(member.name.removeprefix("seed-")) for member in members]
        train_together(
            path, first.config | {"steps": wanted[members[0]]}, [*seeds, *folders.waiting(path)],
            jobs, ray, imports, tensorboard,
        )  # fmt: skip
        return
    for member, total in wanted.items():
        agent, run = load.resume(member, tensorboard=tensorboard, imports=imports, **chosen)
        left = total - int(agent.state.steps)
        if left <= 0:
            say(f"{member}: done, {int(agent.state.steps):,} steps")
            continue
        say(f"{member}: resuming after update {int(agent.state.updates)}")
        agent.learn(left, run=run)
        stop_if_asked(agent, path)
    for k in folders.waiting(path):
        run = folders.directory(path, k)
        say(f"{run}: starting")
        agent, _ = load.reopen(members[0], seed=k, imports=imports, **chosen)
        agent.learn(wanted[members[0]], run=run, tensorboard=tensorboard)
        stop_if_asked(agent, path)
    summary(path)


def extend_all(members: list[Path], steps: int, imports: list[str]) -> None:
    """Write into every run that it ends at `steps` steps, before the first of them is trained."""
    for member in members:
        steps_of(member)  # a saved agent is refused
        done = int(max(Run.open(member).metrics().get(Column.STEPS, ()), default=0))
        if steps < done:
            raise ValueError(
                f"steps: {member} has {done:,} steps, and --steps counts from its beginning; to "
                f"train it for {steps:,} more give --steps {done + steps}"
            )
    for member in members:
        if steps != steps_of(member):
            agent, run = load.resume(member, imports=imports)
            agent.extend(run, steps)


def steps_of(path: Path) -> Any:
    """The number of steps that a run was started with."""
    steps = Run.open(path).config.get("steps")
    if steps is None:
        raise ValueError(
            f"{path}: is a saved agent, and how long to train it is not written there; train it "
            f"in Python: bayespg.load({str(path)!r}).learn(STEPS, run='NEW FOLDER')"
        )
    if type(steps) not in (int, float) or not steps >= 1:
        raise ValueError(f"{path / CONFIG}: steps must be a number from 1, found {steps!r:.40}")
    return steps


def summary(folder: Path) -> None:
    group = folders.group(folder)
    drawn, picture = curves.of(group), looking.picture(folder)
    plots.save(curves.draw([(group.name, drawn)], group.name), picture)
    last = drawn.returns[:, -1]
    spread = f" ({over_seeds(last)})" if last.size > 1 else ""
    say(
        "Return at the end: ", (shown(last.mean())[0], "bold"), f"{spread}. Picture: {picture}"
    )  # fmt: skip
