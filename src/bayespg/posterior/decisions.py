"""Decisions from a posterior: how many more paths are needed, and which directions are known."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Bool, Float

from bayespg._support.types import Array


class Episodes(NamedTuple):
    """How many more paths of the same kind are needed, with a 95 % interval; infinity where the
    paths show no gradient."""

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


def episodes_needed(K: Float[Array, "B B"], paths: int, level: Any) -> Episodes:
    """The number of further paths, from the inner products K of contributions in the metric of the
    step.

    Following the mean of M' paths goes uphill with probability Phi(sqrt(lambda M' / M)), where
    lambda is the squared slope along the true gradient divided by its variance. With V the total
    variance of the mean and s^2 its variance along the mean, lambda is estimated by (1'K1 - V) /
    s^2. Its interval inverts the noncentral F distribution of 1'K1 / s^2 with V / s^2 and B - 1
    degrees of freedom.
    """
    B = len(K)
    whole, unbiased = jnp.sum(K), B / (B - 1)
    V = unbiased * (jnp.trace(K) - whole / B)
    along, some = K.sum(0), whole > 0
    s2 = unbiased * jnp.sum((along - along.mean()) ** 2) / jnp.where(some, whole, jnp.inf)
    spread = s2 > 0
    s2 = jnp.where(spread, s2, 1.0)
    ratio, f = whole / s2, jnp.maximum(V / s2, 1.0)
    most, least = (_noncentrality(ratio, f, B - 1, p) for p in (0.025, 0.975))
    z = jnp.maximum(ndtri(level), 0.0).astype(K.dtype)
    needed = (_more(paths, z, x) for x in (jnp.maximum(ratio - V / s2, 0.0), most, least))
    without = (jnp.where(some, 0.0, x) for x in (jnp.inf, 0.0, jnp.inf))
    return Episodes(*(jnp.where(spread, a, b) for a, b in zip(needed, without, strict=True)))


def _more(paths: int, z: Float[Array, ""], noncentrality: Float[Array, ""]) -> Float[Array, ""]:
    total = paths * z**2 / jnp.where(noncentrality > 0, noncentrality, 1.0)
    total = jnp.where(noncentrality > 0, total, jnp.inf)
    return jnp.where(z == 0, 0.0, jnp.ceil(jnp.maximum(total - paths, 0.0)))


def _noncentrality(ratio: Any, f: Any, freedom: float, p: float) -> Float[Array, ""]:
    """The noncentrality for which `ratio` is the p-quantile of f times F(f, freedom), by the
    cube-root approximation of Severo and Zelen (1960); 0 where `ratio` is below the quantile at
    noncentrality 0."""

    def z(noncentrality: Any) -> Any:
        a, b = f + noncentrality, noncentrality / (f + noncentrality)
        w = (ratio / a) ** (1 / 3)
        first, second = 2 * (1 + b) / (9 * a), 2 / (9 * freedom)
        return ((1 - second) * w - (1 - first)) / jnp.sqrt(first + second * w**2)

    def beyond(high: Any) -> Any:
        return (z(high) > wanted) & (high < 1e12 * ratio)

    def halve(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = (low + high) / 2
        above = z(middle) > wanted
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    ratio = jnp.asarray(ratio)
    wanted = ndtri(jnp.asarray(p, ratio.dtype))
    high = jax.lax.while_loop(beyond, lambda high: 4 * high, 2 * ratio + 100)
    high = jax.lax.fori_loop(0, 60, halve, (jnp.zeros_like(high), high))[1]
    return jnp.where(z(jnp.zeros_like(high)) <= wanted, 0.0, high)


def known_directions(
    W: Float[Array, "r n"], centre: Any, spread: Any, reach: Float[Array, " r"]
) -> Certain:
    """The rows of W, those first whose interval does not contain zero."""
    width = spread * reach
    known = (jnp.abs(centre) > width) & (spread > 0)
    order = jnp.argsort(-jnp.where(known, jnp.abs(centre) / spread, -jnp.inf))
    rows = (W, centre, centre - width, centre + width, known)
    return Certain(*(row[order] for row in rows))
