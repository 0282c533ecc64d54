"""Policy gradients with error bars.

Bayesian policy gradient and actor-critic algorithms after Ghavamzadeh, Engel and Valko (JMLR 2016).

Train on any Gymnasium task:

    >>> agent = bayespg.BAC("CartPole-v1", policy="linear", seed=0)
    >>> agent.learn(50_000).evaluate(episodes=100)

The array-level functions take scores and returns from anywhere:

    >>> from bayespg import quadrature
    >>> posterior = quadrature.model2(scores, returns, fisher, baseline=float("inf"))
    >>> posterior.mean, posterior.interval(0.95), posterior.natural

Importing this package starts no device and changes no JAX setting. On machines with few cores it
sets the environment variable ``NPROC`` if it is unset, because XLA can deadlock there (see
`bayespg._threads`).
"""

from bayespg import _command, _threads

_command.begin()
_threads.protect()

from bayespg import (  # noqa: E402  (the pool must be safe before JAX is imported)
    actor_critic,
    calibration,
    callbacks,
    environments,
    estimators,
    evidence,
    fisher,
    gptd,
    kernels,
    line_search,
    monte_carlo,
    policies,
    quadrature,
    scores,
    training,
    updates,
)
from bayespg.agents import BAC, BPG, MCPG, Agent, load, resume  # noqa: E402
from bayespg.posterior import GradientPosterior  # noqa: E402
from bayespg.rollout import rollout  # noqa: E402
from bayespg.sparsification import Sparsify  # noqa: E402
from bayespg.trajectories import Trajectories  # noqa: E402
from bayespg.version import __version__  # noqa: E402

__all__ = [
    "BAC",
    "BPG",
    "MCPG",
    "Agent",
    "GradientPosterior",
    "Sparsify",
    "Trajectories",
    "__version__",
    "actor_critic",
    "calibration",
    "callbacks",
    "environments",
    "estimators",
    "evidence",
    "fisher",
    "gptd",
    "kernels",
    "line_search",
    "load",
    "monte_carlo",
    "policies",
    "quadrature",
    "resume",
    "rollout",
    "scores",
    "training",
    "updates",
]
