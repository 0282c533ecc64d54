"""Decisions from a posterior: how many more paths are needed, and which directions are known."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Bool, Float

from bayespg._support.types import Array
from bayespg.posterior.agreement import RATIOS, observe, prior, spread


class Episodes(NamedTuple):
    """How many more paths of the same kind are needed if there is a gradient at all, with a 90 %
    interval; infinity where all returns are equal."""

    more: float | Float[Array, ""]
    lower: float | Float[Array, ""]
    upper: float | Float[Array, ""]


class Certain(NamedTuple):
    """Directions whose slope is known not to be zero, the most certain first."""

    directions: Float[Array, "k n"]
    """Rows of length one in the metric of G."""
    slopes: Float[Array, " k"]
    lower: Float[Array, " k"]
    """Bounds that hold jointly for all directions with the requested probability."""
    upper: Float[Array, " k"]
    known: Bool[Array, " k"]
    """All True. Inside a transformation, where the number of rows cannot depend on their values, k
    is the number of parameters, and the rows that are False are not among the certain ones."""


def ratio_quantiles(K: Float[Array, "B B"]) -> Float[Array, "3"]:
    """The 0.95, 0.5 and 0.05 quantiles of the ratio of signal to noise of one row of contributions,
    if there is a gradient at all; zero where they say nothing. Before the batch a gradient shorter
    than its standard error may as well have one length as another: weak ones need many episodes."""
    of = spread(K)
    weights = jnp.sum(observe(prior(of.paths, 0.0).astype(K.dtype), of), 1)[1:]
    below = jnp.cumsum(weights) / jnp.sum(weights)
    grid = jnp.log(jnp.asarray(RATIOS[1:], K.dtype))
    half = (grid[1] - grid[0]) / 2
    quantiles = jnp.exp(jnp.interp(jnp.asarray([0.95, 0.5, 0.05], K.dtype), below, grid + half))
    return jnp.where(of.known, quantiles, 0.0)


def episodes_needed(ratios: Float[Array, "3"], rows: int, paths: int, level: Any) -> Episodes:
    """The number of further paths, from the quantiles of the ratio r of signal to noise of each of
    `rows` contributions of M paths together.

    Following the mean of M' paths goes uphill with probability Phi(sqrt(r M' rows / M)).
    """
    z = jnp.maximum(ndtri(level), 0.0).astype(ratios.dtype)
    some = ratios > 0
    total = z**2 * paths / (rows * jnp.where(some, ratios, 1.0))
    needed = jnp.ceil(jnp.maximum(jnp.where(some, total, jnp.inf) - paths, 0.0))
    most, middle, least = jnp.where(z == 0, 0.0, needed)
    lower = jnp.where(jnp.all(some), most, 0.0)
    return Episodes(middle, lower, least)


def known_directions(
    W: Float[Array, "r n"], centre: Any, spread: Any, reach: Float[Array, " r"]
) -> Certain:
    """The rows of W, those first whose interval does not contain zero."""
    width = spread * reach
    known = (jnp.abs(centre) > width) & (spread > 0)
    order = jnp.argsort(-jnp.where(known, jnp.abs(centre) / spread, -jnp.inf))
    rows = (W, centre, centre - width, centre + width, known)
    return Certain(*(row[order] for row in rows))
