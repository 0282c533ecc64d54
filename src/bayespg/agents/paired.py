"""Which of two policies is better: `compare`, with paired episodes, and `compare_returns`.

Both policies play episodes of the same seeds, so that what a start contributes to both returns is
not in their difference. The probability that the mean difference has the sign that was observed is
that of `bayespg.posterior.agreement` for a single direction: the differences are contributions to a
number, and the ratio r of its square to their variance has the hyperprior of a batch of `PRIOR`
pairs, with a third of it on policies that are equally good. Since that does not depend on how many
pairs there are, looking after every few episodes and stopping when it is clear does not spoil it,
as it would a t-test.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg._support import checks
from bayespg._support.precision import run
from bayespg._support.statistics import student_interval
from bayespg._support.types import Array
from bayespg.agents.base import BaseAgent
from bayespg.posterior.agreement import DIRECTIONS, observe, prior, probability, spread

PRIOR = 10.0
"""Pairs in which a difference is expected to be of the size of its standard error or larger."""
AT_ONCE = 10
"""Pairs of episodes between two looks at the probability."""


class Comparison(NamedTuple):
    """Two policies, compared on the same episodes."""

    probability: float
    """That the first policy's mean return is larger; one half if nothing says so."""
    difference: float
    """The first policy's mean return less the second's."""
    lower: float
    upper: float
    """Student's 95 % interval of the difference."""
    episodes: int
    """Pairs of episodes."""

    def __str__(self) -> str:
        return (
            f"the first is better with probability {self.probability:.3f}: difference "
            f"{self.difference:.4g} [{self.lower:.4g}, {self.upper:.4g}], {self.episodes} pairs of "
            "episodes"
        )


def compare_returns(first: Any, second: Any) -> Comparison:
    """The comparison of returns of paired episodes: entry i of both is of the same seed."""
    x = np.asarray(checks.array("first", first), float)
    if x.ndim != 1 or x.size < 2:
        raise ValueError(
            "first: expected a vector with the returns of two episodes or more, found shape "
            f"{x.shape}"
        )
    y = np.asarray(checks.vector("second", second, x.size, "one return for each of first"), float)
    apart = x - y
    mean = float(apart.mean())
    sure = float(run(_sign, apart / (np.abs(apart).max() or 1.0)))
    lower, upper = student_interval(apart)
    stated = sure if mean > 0 else 1 - sure
    return Comparison(stated if mean != 0 else 0.5, mean, lower, upper, x.size)


def _sign(apart: Float[Array, " M"]) -> Float[Array, ""]:
    """The probability that the mean has the sign of the mean of these."""
    of = spread(apart[:, None] * apart, jnp.asarray(apart.size, apart.dtype))
    one = prior(PRIOR).astype(apart.dtype) * (DIRECTIONS == 1)
    weights = one / jnp.sum(one)
    return probability(observe(weights, of, additive=True), of)


def compare(
    first: BaseAgent,
    second: BaseAgent,
    *,
    level: float = 0.95,
    episodes: int = 200,
    deterministic: bool = False,
    seed: int = 0,
) -> Comparison:
    """Which of two agents of the same task returns more, with paired episodes.

    Both play the same seeds until one is better with probability `level`, or until each has played
    `episodes`. With `deterministic` they take their most likely actions.

    >>> print(bayespg.compare(agent, other))
    """
    for name, agent in (("first", first), ("second", second)):
        if not hasattr(agent, "evaluate"):
            raise ValueError(f"{name}: expected an agent, found {checks.shown(agent)}")
    tasks = [agent.world.name for agent in (first, second)]
    if tasks[0] != tasks[1]:
        raise ValueError(f"second: expected an agent of {tasks[0]}, found one of {tasks[1]}")
    level = checks.probability("level", level)
    if level <= 0.5:
        raise ValueError(f"level: expected more than 0.5, found {level}")
    episodes = checks.whole("episodes", episodes, 2)
    seed = checks.whole("seed", seed, 0)
    returns: list[np.ndarray] = []
    while True:
        done = sum(pair.shape[1] for pair in returns)
        count = min(AT_ONCE, episodes - done)
        returns.append(
            np.stack([
                agent.evaluate(count, deterministic=deterministic, seed=seed + len(returns)).returns
                for agent in (first, second)
            ])
        )  # fmt: skip
        outcome = compare_returns(*np.concatenate(returns, 1))
        if done + count >= episodes or max(outcome.probability, 1 - outcome.probability) >= level:
            return outcome
