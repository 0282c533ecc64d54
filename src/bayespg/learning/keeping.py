"""An agent and the directory that keeps it: the run that it trains, or the agent as it is saved.

`bayespg.learning.saved` makes agents from directories.
"""

import json
from pathlib import Path
from typing import Any

from bayespg.learning import copies
from bayespg.learning.extending import agent_of, longer
from bayespg.runs.store import CONFIG, METRICS, Run


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


def extend(agent: Any, run: Run, steps: int, meta: dict[str, Any]) -> None:
    """Write into the agent's run that it ends at `steps` steps, counted from its beginning."""
    with run:
        agree(agent, run, meta)
        run.replace(longer(run.config, steps), agent.state, meta)


def agree(agent: Any, run: Run, meta: dict[str, Any]) -> None:
    """ValueError unless the run is at the agent's update, with the agent's state and the rows that
    belong to it. A new run gets its first checkpoint, so that rows are never without one."""
    run.expect(int(agent.state.updates))
    with agent.precision():
        found = run.restore(agent.state)
    if found is not None and not copies.equal(found[0], agent.state):
        path = str(run.path)
        raise ValueError(
            f"run: {path} holds another state than this agent; go on from there with agent, "
            f"run = bayespg.resume({path!r}) and agent.learn(STEPS, run=run), or choose "
            "another directory"
        )
    run.verify(int(agent.state.updates))
    if found is None:
        run.checkpoint(agent.state, meta)


def save(agent: Any, path: str | Path, meta: dict[str, Any]) -> None:
    """Save the agent; one that was saved there before is replaced."""
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
        run.replace(agent.config, agent.state, meta)
