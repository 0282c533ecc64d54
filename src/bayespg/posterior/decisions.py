"""Decisions from a posterior: how many more paths are needed, and which directions are known."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg._support.statistics import normal_quantile
from bayespg._support.types import Array
from bayespg.posterior.agreement import RATIOS, observe, prior, spread


class Episodes(NamedTuple):
    """How many more paths of the same kind are needed if there is a gradient at all, with a 90 %
    interval; infinity where all returns are equal."""

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


def ratio_quantiles(K: Float[Array, "B B"]) -> Float[Array, "3"]:
    """Quantiles of the ratio of signal to noise of one row of contributions: 0.95, 0.5 and 0.05,
    if there is a gradient at all; zero where they say nothing (`bayespg.posterior.agreement`)."""
    of = spread(K)
    weights = jnp.sum(observe(prior(of.paths).astype(K.dtype), of), 1)[1:]
    below = jnp.cumsum(weights) / jnp.sum(weights)
    grid = jnp.log(jnp.asarray(RATIOS[1:], K.dtype))
    half = (grid[1] - grid[0]) / 2
    found = jnp.exp(jnp.interp(jnp.asarray([0.95, 0.5, 0.05], K.dtype), below, grid + half))
    return jnp.where(of.known, found, 0.0)


def episodes_needed(
    ratios: Float[np.ndarray, "3"], rows: int, paths: int, level: float
) -> Episodes:
    """The number of further paths, from the quantiles of the ratio r of signal to noise of each of
    `rows` contributions of M paths together.

    Following the mean of M' paths goes uphill with probability Phi(sqrt(r M' rows / M)).
    """
    z = max(normal_quantile(level), 0.0)
    if z == 0:
        return Episodes(0.0, 0.0, 0.0)
    if not np.all(ratios > 0):
        return Episodes(np.inf, 0.0, np.inf)
    most, middle, least = np.ceil(np.maximum(z**2 * paths / (rows * ratios) - paths, 0.0))
    return Episodes(float(middle), float(most), float(least))


def known_directions(
    W: Float[np.ndarray, "r n"], centre, spread, reach: float | Float[np.ndarray, " r"]
) -> Certain:
    """The rows of W whose interval does not contain zero."""
    width = np.asarray(spread) * reach
    kept = np.flatnonzero((np.abs(centre) > width) & (np.asarray(spread) > 0))
    kept = kept[np.argsort(-np.abs(centre[kept]) / spread[kept])]
    return Certain(W[kept], centre[kept], (centre - width)[kept], (centre + width)[kept])
