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
from typing import TYPE_CHECKING, Any

from bayespg._support import command, threads

if TYPE_CHECKING:  # what type checkers and editors see; `__getattr__` below loads the same
    from bayespg import actor_critic as actor_critic
    from bayespg import calibration as calibration
    from bayespg import environments as environments
    from bayespg import evidence as evidence
    from bayespg import fisher as fisher
    from bayespg import gptd as gptd
    from bayespg import kernels as kernels
    from bayespg import models as models
    from bayespg import monte_carlo as monte_carlo
    from bayespg import policies as policies
    from bayespg import posterior as posterior
    from bayespg import quadrature as quadrature
    from bayespg import search as search
    from bayespg._support import random as random
    from bayespg._support.version import __version__ as __version__
    from bayespg.agents import callbacks as callbacks
    from bayespg.agents.agent import BAC as BAC
    from bayespg.agents.agent import BPG as BPG
    from bayespg.agents.agent import MCPG as MCPG
    from bayespg.agents.agent import Agent as Agent
    from bayespg.agents.load import load as load
    from bayespg.agents.load import resume as resume
    from bayespg.agents.mbac import MBAC as MBAC
    from bayespg.agents.paired import compare as compare
    from bayespg.agents.paired import compare_returns as compare_returns
    from bayespg.agents.pgpe import PGPE as PGPE
    from bayespg.agents.sweep import sweep as sweep
    from bayespg.agents.tuned import tuned as tuned
    from bayespg.algebra.sparsification import Sparsify as Sparsify
    from bayespg.environments.trajectories import Trajectories as Trajectories
    from bayespg.learning import estimators as estimators
    from bayespg.learning import line_search as line_search
    from bayespg.learning import partitions as partitions
    from bayespg.learning import training as training
    from bayespg.learning import updates as updates
    from bayespg.paths import scores as scores
    from bayespg.paths.rollout import rollout as rollout
    from bayespg.posterior import GradientPosterior as GradientPosterior

command.begin()
threads.protect()  # the pool must be safe before JAX is imported

_MODULES = {
    place.rpartition(".")[2]: place
    for place in (
        "actor_critic", "calibration", "environments", "evidence", "fisher", "gptd", "kernels",
        "models", "monte_carlo", "policies", "posterior", "quadrature", "search",
        "learning.estimators", "learning.line_search", "learning.partitions", "learning.training",
        "learning.updates", "agents.callbacks", "_support.random", "paths.scores",
    )
}  # fmt: skip
"""Modules that are attributes of this package, and where they are."""
_NAMES = {
    "BAC": "agents.agent", "BPG": "agents.agent", "MCPG": "agents.agent",
    "PGPE": "agents.pgpe", "MBAC": "agents.mbac", "Agent": "agents.agent", "load": "agents.load",
    "resume": "agents.load", "tuned": "agents.tuned", "compare": "agents.paired",
    "compare_returns": "agents.paired", "sweep": "agents.sweep",
    "GradientPosterior": "posterior", "Sparsify": "algebra.sparsification",
    "Trajectories": "environments.trajectories", "rollout": "paths.rollout",
    "__version__": "_support.version",
}  # fmt: skip
"""Classes and functions that are attributes of this package, and their modules."""

__all__ = [*_MODULES, *_NAMES]  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of Any

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"bayespg.{_MODULES[name]}")
        if name in _NAMES:
            return getattr(importlib.import_module(f"bayespg.{_NAMES[name]}"), name)
        raise AttributeError(f"module 'bayespg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
