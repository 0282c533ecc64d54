"""An agent and the directory that keeps it: the run that it trains, or the agent as it is saved.

`bayespg.agents.load` makes agents from directories.

`steps` in the configuration of a run is the number of environment steps at which it ends. If the
run was trained for longer, `extended` lists the numbers that it had before.

The best policy of a run is judged by the episodes it was trained with, so that it costs none. A few
episodes say little about one policy, and the luckiest of many updates is not the best. So an update
counts as the best so far if it ends the ten updates with the highest mean return. The return of
those ten is an optimistic figure for that policy: it was chosen for being high. Evaluate it.
"""

import contextlib
import io
import json
import math
import tempfile
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bayespg._support import files
from bayespg.agents import serialise
from bayespg.runs.store import CHECKPOINT, CONFIG, METRICS, Run

LENGTH = ("steps", "extended")
"""Entries of a run's configuration that do not describe its agent."""
WINDOW = 10
"""Updates whose mean return is compared."""


def agent_of(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the agent alone."""
    return {name: value for name, value in config.items() if name not in LENGTH}


def longer(config: dict[str, Any], steps: int) -> dict[str, Any]:
    """The configuration of a run that is to end at `steps` steps instead."""
    before = config.get("extended") or []
    return config | {"steps": steps, "extended": [*before, config.get("steps")]}


class Best:
    """Tells, update by update, whether the newest is the best so far. Before there are `WINDOW`
    updates it is, and of equally good ones the newest is."""

    def __init__(self, returns: Iterable[float] = ()):
        self._recent, self._highest = deque[float](maxlen=WINDOW), -math.inf
        for value in returns:
            self(value)

    def __call__(self, mean_return: float) -> bool:
        self._recent.append(mean_return)
        if len(self._recent) < WINDOW:
            return True
        mean = math.fsum(self._recent) / WINDOW
        if mean < self._highest:
            return False
        self._highest = mean
        return True


def run_of(agent: Any, path: str | Path, steps: int, tensorboard: bool) -> Run:
    """A new run directory, or the one of this agent, which is to end at `steps` steps."""
    if not (Path(path) / CONFIG).exists():
        return Run.create(path, agent.config | {"steps": steps}, tensorboard=tensorboard)
    run = Run.open(path, tensorboard=tensorboard)
    mine, there = json.loads(json.dumps(agent.config)), agent_of(run.config)
    differ = sorted(k for k in mine | there if mine.get(k) != there.get(k))
    if "steps" not in run.config or differ:
        what = f"a run with {differ[0]} {there.get(differ[0])!r}" if differ else "a saved agent"
        raise ValueError(f"run: {path} already holds {what}; choose another directory")
    agent.extend(run, steps)
    return run


def extend(agent: Any, run: Run, steps: int) -> None:
    """Write into the agent's run that it ends at `steps` steps, counted from its beginning."""
    with run:
        agree(agent, run)
        run.replace(longer(run.config, steps), agent.state, agent._meta())


def agree(agent: Any, run: Run) -> None:
    """ValueError unless the run is at the agent's update, with the agent's state and the rows that
    belong to it. A new run gets its first checkpoint, so that rows are never without one."""
    run.expect(int(agent.state.updates))
    with agent.precision():
        checkpoint = run.restore(agent.state)
    if checkpoint is not None and not serialise.equal(checkpoint[0], agent.state):
        path = str(run.path)
        raise ValueError(
            f"run: {path} belongs to a different state of the agent; continue it with agent, "
            f"run = bayespg.resume({path!r}) and agent.learn(STEPS, run=run), or choose "
            "another directory"
        )
    run.verify(int(agent.state.updates))
    if checkpoint is None:
        run.checkpoint(agent.state, agent._meta())


SUFFIX = ".bayespg"
"""The ending of an agent that is saved as one file."""
MEMBERS = (CONFIG, CHECKPOINT)


def save_file(agent: Any, path: Path) -> None:
    """Save the agent as one file: a zip of what a folder of it holds, nothing compressed."""
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; give another name for the file")
    with tempfile.TemporaryDirectory() as folder:
        save(agent, Path(folder) / "agent")
        parts = {name: files.read(Path(folder) / "agent" / name) for name in MEMBERS}
    files.write_whole(path, packed(parts))


def packed(parts: dict[str, bytes]) -> bytes:
    """Configuration and checkpoint as the content of one file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name in MEMBERS:
            archive.writestr(name, parts[name])
    return content.getvalue()


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[str | Path]:
    """The folder of a saved agent: `path`, or that of the file `path` for as long as it is needed.

    A file may come from anybody: it must hold a configuration in JSON and a checkpoint, nothing
    compressed and nothing else. Both are then checked as those of a folder are.
    """
    file = Path(path)
    if not file.is_file() or file.suffix != SUFFIX:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, part in members(files.read(file), file).items():
            (Path(folder) / name).write_bytes(part)
        try:
            yield Path(folder)
        except ValueError as problem:
            raise ValueError(str(problem).replace(folder, str(path))) from problem


def members(content: bytes, source: Any) -> dict[str, bytes]:
    """Configuration and checkpoint in the content of a file; ValueError if it is anything else."""
    try:
        parts = files.members(content)
        if parts.keys() != set(MEMBERS):
            raise ValueError(f"holds {', '.join(parts)!r:.60}")
        if len(parts[CONFIG]) > files.LARGEST_JSON:
            raise ValueError(f"its {CONFIG} is too large")
        json.loads(parts[CONFIG])
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as problem:
        raise ValueError(
            f"{source}: not a saved agent ({problem}); expected what agent.save(NAME{SUFFIX}) "
            "writes"
        ) from None
    return parts


def save(agent: Any, path: str | Path) -> None:
    """Save the agent; one that was saved there before is replaced."""
    if Path(path).suffix == SUFFIX and not (Path(path) / CONFIG).exists():
        save_file(agent, Path(path))
        return
    if (Path(path) / CONFIG).exists():
        run = Run.open(path)
        if "steps" in run.config or (run.path / METRICS).exists():
            raise ValueError(
                f"{path}: holds a training run, which keeps its own checkpoints; save the "
                "agent in another directory"
            )
        if not agent.names.keys() <= run.config.keys():
            raise ValueError(
                f"{path}: its {CONFIG} is not of a saved agent; choose another directory"
            )
    else:
        run = Run.create(path, agent.config)
    with run:
        run.replace(agent.config, agent.state, agent._meta())
