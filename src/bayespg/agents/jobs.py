"""Many runs side by side: seeds and settings, in processes of this machine or as tasks of Ray.

    for name, last in side_by_side({"seed 0": (path, config), ...}, jobs=4, advance=show): ...

A run that exists is resumed from its last whole update, so that what was stopped is finished by the
same call. On Ray the run directories must be on a disk that all machines share.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayespg._support import together
from bayespg.agents import load
from bayespg.agents.imports import import_all
from bayespg.runs.columns import Column
from bayespg.runs.progress import Goal
from bayespg.runs.store import CONFIG

Runs = Mapping[str, tuple[Path, dict[str, Any]]]
"""For each name a run directory and the configuration of its agent, with its number of steps."""


def side_by_side(
    runs: Runs,
    jobs: int,
    advance: Callable[[str, float, str], None],
    *,
    address: str | None = None,
    imports: Sequence[str] = (),
    tensorboard: bool = False,
    until: int | None = None,
    failed: together.Failed | None = None,
) -> Iterator[tuple[str, float]]:
    """Train runs, `jobs` at a time, and yield each name with the mean return of its last batch as
    it ends. With `address`, "ray" or that of a cluster, they are tasks of Ray. They pause after
    `until` steps, for a later call to continue. A run that raises does not end the others; its
    error is raised after them, or told to `failed` at once."""
    tasks = {name: (*one, list(imports), tensorboard, until) for name, one in runs.items()}
    if address is None:
        yield from together.run(tasks, train, jobs, advance, failed)
    else:
        from bayespg._support import cluster

        yield from cluster.run(tasks, train, jobs, advance, address, failed)


def train(
    name: str,
    path: Path,
    config: dict[str, Any],
    imports: list[str],
    tensorboard: bool,
    until: int | None,
    advance: Callable[[float, str], None],
) -> float:
    """One run, from its last whole update or from its beginning, to its number of steps, or until
    it has `until`."""
    import_all(imports)
    run: Any = path
    if (path / CONFIG).exists():
        agent, run = load.resume(path, tensorboard=tensorboard, imports=imports)
        config, tensorboard = run.config, False
    else:
        agent = load.made(config)
    total, most, last = int(config["steps"]), config.get("max_episodes"), float("nan")
    goal = Goal(total) if most is None else Goal(most, counted=Column.EPISODES)

    def show(agent: Any, row: dict[str, float]) -> bool:
        nonlocal last
        last = row[Column.RETURN]
        advance(goal.share(row), f"{goal.reached(row)}, return {Column.RETURN.show(last)}")
        return until is None or row[Column.STEPS] < until

    done = int(agent.state.steps)
    left = total - done
    if left > 0 and (until is None or done < until):
        agent.learn(left, run=run, callbacks=show, progress=False, tensorboard=tensorboard)
    return last
