"""Agents from disk: as they were saved, or as a run directory holds them."""

from pathlib import Path
from typing import Any

from bayespg.agents import mbac, pgpe, settings
from bayespg.agents.agent import BAC, BPG, MCPG, Agent
from bayespg.agents.base import BaseAgent
from bayespg.agents.imports import Imports, import_all, needed
from bayespg.agents.store import agent_of, opened
from bayespg.runs.store import CONFIG, Run

STORED = {
    "environment": str, "policy": str, "estimator": str, "update": str, "options": dict,
    "hidden": list,
}  # fmt: skip
"""Types of the entries of a stored configuration that are not numbers; `Settings` checks those."""
KINDS: dict[str, type[BaseAgent]] = {
    pgpe.NAME: pgpe.PGPE, mbac.NAME: mbac.MBAC, "bac": BAC, "model2": BPG, "mcpg": MCPG,
}  # fmt: skip
"""The class of an agent by the estimator that its configuration names; `Agent` of all others."""
NAMED = {str: "string", dict: "object", list: "list"}


def load(
    path: str | Path, *, best: bool = False, imports: Imports = (), **objects: Any
) -> BaseAgent:
    """An agent as it was saved, in a folder or as one file, or as a run directory holds it: after
    its last update, or after its `best` (see `bayespg.agents.store`).

    What was given as an object, not a name, must be given again: ``load(path, policy=...)``.

    A directory from somebody else runs no code of theirs. An environment of the form
    ``module:Task-v0`` that is read from it is refused unless the module is named in `imports`, or
    the environment is given again as ``environment=``. Modules in `imports` are imported first.
    """
    with opened(path) as folder:
        agent, run = reopen(folder, imports=imports, **objects)
        if not agent.restore(run, best=best):
            if best and "steps" not in run.config:
                raise ValueError(f"best: {path} is a saved agent, and only runs keep a best one")
            raise ValueError(f"{path}: this run has no checkpoint yet; there is nothing to load")
    return agent


def made(config: dict[str, Any]) -> BaseAgent:
    """The agent of a configuration, at its start."""
    kind: Any = KINDS.get(config.get("estimator"), Agent)  # pyright: ignore
    return kind(**agent_of(config))


def reopen(
    path: str | Path, *, tensorboard: bool = False, imports: Imports = (), **objects: Any
) -> tuple[BaseAgent, Run]:
    """The agent that a run directory describes, before any checkpoint, and the run."""
    run = Run.open(path, tensorboard=tensorboard)
    # Where episodes were played is for the user to say again: the address of a cluster that a
    # stranger's directory names is not called.
    config = {k: v for k, v in agent_of(run.config).items() if k not in settings.WHERE}
    if former := sorted(settings.RENAMED.keys() & config):
        raise ValueError(
            f"{run.path / CONFIG}: has the setting {former[0]} of an earlier version of bayespg, "
            "whose learner had other parts; load it with that version, or train again"
        )
    stored = {k: v for k, v in config.items() if k not in objects}
    for name, kind in STORED.items():
        if not isinstance(stored.get(name), kind | None):
            raise ValueError(
                f"{run.path / CONFIG}: {name}: expected a JSON {NAMED[kind]}, found "
                f"{stored[name]!r:.40}"
            )
    config |= objects
    for name in ("environment", "policy", "estimator", "update"):
        if config.get(name, run.config.get(name)) is None:
            raise ValueError(
                f"{path}: {name} was an object when this was saved; give it again: "
                f"load({str(path)!r}, {name}=...)"
            )
    settings.from_arguments({k: v for k, v in objects.items() if k in settings.FIELDS})
    allowed = import_all(imports)
    for module in needed(stored.get("environment"), stored.get("options")):
        if module not in allowed:
            raise ValueError(
                f"{run.path / CONFIG}: asks to import the module '{module}', which would run its "
                f"code; if you trust it, say so with --import {module} on the command line, or "
                f"bayespg.load({str(path)!r}, imports={module!r}) in Python"
            )
    try:
        return made(config), run
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError) as problem:
        raise ValueError(f"{run.path / CONFIG}: {problem}") from problem


def resume(
    path: str | Path, *, tensorboard: bool = False, imports: Imports = (), **objects: Any
) -> tuple[BaseAgent, Run]:
    """Agent and run as they were after the last whole update, ready for `learn(..., run=run)`.

    `imports` and `objects` are those of `load`.
    """
    agent, run = reopen(path, tensorboard=tensorboard, imports=imports, **objects)
    with run:
        agent.restore(run)
        run.verify(int(agent.state.updates))
        run.truncate(int(agent.state.updates))
    return agent, run
