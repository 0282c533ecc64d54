"""Search in the space of parameters: Bayesian quadrature that keeps every episode.

The parameters of a deterministic policy are drawn once per episode, theta ~ N(m, s^2 I). This is
the bandit of Section 6.1 with a parameter vector as its action: the score is (theta - m) / s^2, the
Fisher matrix is exactly I / s^2, and the return R(theta) does not depend on m, so every episode
ever played stays valid data.
"""

from bayespg.search.search import MEMORY, Search
from bayespg.search.smoothed import gradient_posterior, scores

__all__ = ["MEMORY", "Search", "gradient_posterior", "scores"]


def __dir__() -> list[str]:
    return sorted(__all__)
