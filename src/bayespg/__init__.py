"""Policy gradients with error bars.

Bayesian policy gradient and actor-critic algorithms after Ghavamzadeh, Engel and Valko (JMLR 2016).

Train on any Gymnasium task:

    >>> agent = bayespg.BAC("CartPole-v1", policy="linear", seed=0)
    >>> agent.learn(50_000).evaluate(episodes=100)

The array-level functions take scores and returns from anywhere:

    >>> from bayespg import quadrature
    >>> posterior = quadrature.model2(scores, returns, fisher, baseline=float("inf"))
    >>> posterior.mean, posterior.interval(0.95), posterior.natural

Importing this package loads nothing else, starts no device and changes no JAX setting: a module is
loaded when its name is first used. On machines with few cores the import sets the environment
variable ``NPROC`` if it is unset, because XLA can deadlock there (see `bayespg._support.threads`).
"""

import importlib
from typing import Any

from bayespg._support import command, threads

command.begin()
threads.protect()  # the pool must be safe before JAX is imported

_MODULES = {
    **{
        name: name
        for name in (
            "actor_critic", "calibration", "environments", "evidence", "fisher", "gptd", "kernels",
            "models", "monte_carlo", "policies", "posterior", "quadrature", "search",
        )
    },
    **{
        name: f"learning.{name}" for name in ("estimators", "line_search", "training", "updates")
    },
    "callbacks": "agents.callbacks",
    "random": "_support.random",
    "scores": "paths.scores",
}  # fmt: skip
"""Modules that are attributes of this package, and where they are."""
_NAMES = {
    "BAC": "agents.agent", "BPG": "agents.agent", "MCPG": "agents.agent",
    "PGPE": "agents.pgpe", "MBAC": "agents.mbac", "Agent": "agents.agent", "load": "agents.load",
    "resume": "agents.load", "tuned": "agents.tuned", "compare": "agents.paired",
    "compare_returns": "agents.paired",
    "GradientPosterior": "posterior", "Sparsify": "algebra.sparsification",
    "Trajectories": "environments.trajectories", "rollout": "paths.rollout",
    "__version__": "_support.version",
}  # fmt: skip
"""Classes and functions that are attributes of this package, and their modules."""

__all__ = [*_MODULES, *_NAMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bayespg.{_MODULES[name]}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"bayespg.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'bayespg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
