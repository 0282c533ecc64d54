"""Decisions from a posterior: how many more paths are needed, and which directions are known."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bayespg._support.statistics import normal_quantile


class Episodes(NamedTuple):
    """How many more paths of the same kind are needed, with a 95 % interval; infinity where the
    paths show no gradient."""

    more: float
    lower: float
    upper: float


class Certain(NamedTuple):
    """Directions whose slope is known not to be zero, the most certain first."""

    directions: Float[np.ndarray, "k n"]
    """Rows of length one in the metric of G."""
    slopes: Float[np.ndarray, " k"]
    lower: Float[np.ndarray, " k"]
    """Bounds that hold jointly for all directions with the requested probability."""
    upper: Float[np.ndarray, " k"]


def episodes_needed(K: Float[np.ndarray, "B B"], paths: int, level: float) -> Episodes:
    """The number of further paths, from the inner products K of contributions in the metric of the
    step.

    Following the mean of M' paths goes uphill with probability Phi(sqrt(lambda M' / M)), where
    lambda is the squared slope along the true gradient divided by its variance. With V the total
    variance of the mean and s^2 its variance along the mean, lambda is estimated by (1'K1 - V) /
    s^2. Its interval inverts the noncentral F distribution of 1'K1 / s^2 with V / s^2 and B - 1
    degrees of freedom.
    """
    B = len(K)
    whole, unbiased = K.sum(), B / (B - 1)
    V = unbiased * (np.trace(K) - whole / B)
    along = K.sum(0)
    s2 = unbiased * np.sum((along - along.mean()) ** 2) / whole if whole > 0 else 0.0
    if not s2 > 0:
        return Episodes(np.inf, 0.0, np.inf) if not whole > 0 else Episodes(0.0, 0.0, 0.0)
    ratio, f = whole / s2, max(V / s2, 1.0)
    most, least = (_noncentrality(ratio, f, B - 1, p) for p in (0.025, 0.975))
    z = max(normal_quantile(level), 0.0)
    return Episodes(*(_more(paths, z, x) for x in (max(ratio - V / s2, 0.0), most, least)))


def _more(paths: int, z: float, noncentrality: float) -> float:
    if z == 0:
        return 0.0
    total = paths * z**2 / noncentrality if noncentrality > 0 else np.inf
    return float(np.ceil(max(total - paths, 0.0)))


def _noncentrality(ratio: float, f: float, freedom: float, p: float) -> float:
    """The noncentrality for which `ratio` is the p-quantile of f times F(f, freedom), by the
    cube-root approximation of Severo and Zelen (1960); 0 where `ratio` is below the quantile at
    noncentrality 0."""

    def z(noncentrality: float) -> float:
        a, b = f + noncentrality, noncentrality / (f + noncentrality)
        w = (ratio / a) ** (1 / 3)
        first, second = 2 * (1 + b) / (9 * a), 2 / (9 * freedom)
        return ((1 - second) * w - (1 - first)) / np.sqrt(first + second * w**2)

    wanted = normal_quantile(p)
    if z(0.0) <= wanted:
        return 0.0
    low, high = 0.0, 2 * ratio + 100
    while z(high) > wanted and high < 1e12 * ratio:
        high *= 4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if z(middle) > wanted else (low, middle)
    return high


def known_directions(
    W: Float[np.ndarray, "r n"], centre, spread, reach: float | Float[np.ndarray, " r"]
) -> Certain:
    """The rows of W whose interval does not contain zero."""
    width = np.asarray(spread) * reach
    kept = np.flatnonzero((np.abs(centre) > width) & (np.asarray(spread) > 0))
    kept = kept[np.argsort(-np.abs(centre[kept]) / spread[kept])]
    return Certain(W[kept], centre[kept], (centre - width)[kept], (centre + width)[kept])
