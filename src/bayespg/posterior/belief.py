"""What a run knows before an update: how strong its gradients are, and where the last ones pointed.

The ratio r of signal to noise changes slowly from update to update, so that a run learns it
(`bayespg.posterior.agreement` has the likelihood of one batch). It begins with `NOTHING` for the
probability of no gradient: its updates can show that there is none.

The gradient itself changes slowly, too. Let S be the sum of the contributions of M paths, M g plus
noise of variance 1 in each of f directions, and E the same of earlier updates, in units of M paths:
M g_0 plus noise of variance 1 / rho, where later updates count for more. With mu the expected
squared signal of S in each direction, and kappa the coherence of g with g_0,

    M g | E ~ N(p, q),   p = kappa m E,   q = kappa^2 m / rho + (1 - kappa^2) mu,
    m = mu / (mu + 1 / rho),

independently in each direction. What S adds to E along E has the variance q + 1, and its density
there, relative to that without E, N(0, mu + 1), is the likelihood of r, f and kappa: gradients of
updates that agree are no noise. Along a direction d, chosen by this batch or not,

    P(uphill) = Phi(t),   t = (q S'd + p'd) / sqrt(q (q + 1)) / |d|,

which is Phi(sqrt(k) S'd / |d|) with k = mu / (1 + mu) where nothing is coherent, as for one batch.
The probability is the average over a grid of r, f and kappa.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespg._support.types import Array
from bayespg.posterior.agreement import (
    DIRECTIONS,
    HIDDEN,
    RATIOS,
    Metric,
    Spread,
    cosine_of,
    largest,
    log_likelihood,
    odds,
    prior,
    products,
    spread,
    student,
)

COHERENCES = np.array([0.0, 0.5, 0.8, 1.0])
"""The grid of kappa."""
COHERENT = np.array([0.5, 0.15, 0.15, 0.2])
"""Their probabilities before the first update."""
DECAY = 0.9
"""What an update counts for at the next one, as part of the gradient of earlier updates."""
NOTHING = 1 / 3
"""The probability of no gradient at the beginning of a run."""
MOVES, TURNS, RENEWED = 0.05, 0.005, 0.003
"""How r and kappa change between updates: the probabilities of moving to the next larger value of
the grid of r (and to the next smaller one), the same for kappa, and of fresh values. log r has then
a random walk with a standard deviation of 0.15 per update."""

Weights = Float[Array, "r f kappa"]
"""Probabilities of the values of `RATIOS`, `DIRECTIONS` and `COHERENCES`."""


class Belief(NamedTuple):
    """What the updates so far say; all zero before the first."""

    weights: Weights
    total: Float[Array, " n"]
    """The sum of the contributions of the paths of earlier updates, later ones with more weight."""
    paths: Float[Array, ""]
    """The sum of their weights, and that of the squared weights."""
    squares: Float[Array, ""]


class Across(NamedTuple):
    """How a batch lies to the gradient of earlier updates, in the metric of the step."""

    cosine: Float[Array, ""]
    """Of S with E."""
    along: Float[Array, ""]
    """Of the direction with E."""
    length: Float[Array, ""]
    """|E| / |S|."""
    batches: Float[Array, ""]
    """rho."""
    known: Bool[Array, ""]
    """Whether there are earlier updates, and neither S nor E is zero."""


def no_belief(parameters: int, dtype: Any) -> Belief:
    """Before the first update."""
    shape = (RATIOS.size, DIRECTIONS.size, COHERENCES.size)
    zero = jnp.zeros((), dtype)
    return Belief(jnp.zeros(shape, dtype), jnp.zeros(parameters, dtype), zero, zero)


def updated(
    belief: Belief, C: Float[Array, "M n"], mean: Float[Array, " n"], metric: Metric = None
) -> tuple[Float[Array, ""], Belief]:
    """The probability of going uphill along the mean, where the rows of C are the contributions of
    paths, and the belief after this update. Contributions that say nothing change nothing."""
    earlier = belief.total / jnp.where(belief.paths > 0, belief.paths, 1.0)
    P = products(jnp.concatenate([C, mean[None], earlier[None]]), mean, metric, [len(C), 1, 1])
    K, cosine = P[:-2, :-2], cosine_of(P[:-1, :-1])
    of = spread(K)
    lies = _across(belief, P, largest(earlier) / largest(C), of)
    weights = learn(belief.weights, of, lies)
    stated = probability(weights, of, cosine, lies)
    count = of.paths.astype(belief.paths.dtype)
    after = Belief(
        weights, DECAY * belief.total + jnp.sum(C, 0).astype(belief.total.dtype),
        DECAY * belief.paths + count, DECAY**2 * belief.squares + count,
    )  # fmt: skip
    sound = of.known & jnp.all(jnp.isfinite(after.total))
    return stated, jax.tree.map(lambda new, old: jnp.where(sound, new, old), after, belief)


def _across(belief: Belief, P: Float[Array, "B B"], unit: Float[Array, ""], of: Spread) -> Across:
    """P holds the products of contributions, of the direction and of the mean contribution of
    earlier updates, whose unit is this multiple of that of contributions."""
    S, d, E = jnp.sum(P[:-2, :-2]), P[-2, -2], P[-1, -1]
    known = (belief.paths > 0) & (S > 0) & (E > 0)

    def share(product, one, other):
        size = jnp.sqrt(jnp.where(known & (one > 0) & (other > 0), one * other, 1.0))
        return jnp.clip(product / size, -1.0, 1.0)

    length = of.paths * unit * jnp.sqrt(jnp.where(known, E / jnp.where(known, S, 1.0), 0.0))
    squares = jnp.where(known, of.paths * belief.squares, 1.0)
    batches = jnp.where(known, belief.paths**2 / squares, 1.0)
    across = Across(
        share(jnp.sum(P[:-2, -1]), S, E), share(P[-2, -1], d, E), length, batches, known
    )
    return across._replace(known=known & jnp.all(jnp.isfinite(jnp.stack(across[:-1]))))


def learn(weights: Weights, of: Spread, across: Across) -> Weights:
    """The weights after another update; all are zero before the first."""
    first = prior(of.paths, nothing=NOTHING).astype(weights.dtype)
    fresh = first[..., None] * COHERENT.astype(weights.dtype)
    weights = jnp.where(jnp.any(weights > 0), _drift(weights, fresh), fresh)
    likelihood = (log_likelihood(of)[..., None] + _coherence(of, across)).astype(weights.dtype)
    new = weights * jnp.exp(likelihood - jnp.max(jnp.where(weights > 0, likelihood, -jnp.inf)))
    new = new / jnp.sum(new)
    return jnp.where(of.known & jnp.all(jnp.isfinite(new)), new, weights)


def _drift(weights: Weights, fresh: Weights) -> Weights:
    """What is known about the next update, from what is known about this one."""
    moved = jnp.concatenate([weights[:1], _spread_out(weights[1:], MOVES, 0)])
    return (1 - RENEWED) * _spread_out(moved, TURNS, 2) + RENEWED * fresh


def _spread_out(weights: Weights, share: float, axis: int) -> Weights:
    """This share of each value's weight goes to the next larger and to the next smaller one."""
    w = jnp.moveaxis(weights, axis, 0)
    up, down = jnp.concatenate([w[:1], w[:-1]]), jnp.concatenate([w[1:], w[-1:]])
    return jnp.moveaxis((1 - 2 * share) * w + share * (up + down), 0, axis)


def _parts(of: Spread, across: Across, r: Float[Array, " r"]):
    """mu; |S|, with the noise variance estimated from all sums of squares; |p|; and q."""
    f = jnp.asarray(DIRECTIONS, of.share.dtype)
    mu = (of.paths * r[:, None] / f)[..., None]
    ratio = odds(of, f)[:, None]
    S = jnp.sqrt(of.paths * f[:, None] * ratio * (1 + mu) / (1 + mu + ratio))
    kappa = jnp.where(across.known, jnp.asarray(COHERENCES, f.dtype), 0.0)
    m = mu / (mu + 1 / across.batches)
    p = kappa * m * across.length * S
    return mu, S, p, kappa**2 * m / across.batches + (1 - kappa**2) * mu


def _coherence(of: Spread, across: Across) -> Weights:
    """The logarithm of the density of S along E, relative to that without E."""
    r = jnp.asarray(RATIOS / (1 + HIDDEN * RATIOS), of.share.dtype)
    mu, S, p, q = _parts(of, across, r)
    y = across.cosine * S
    with_earlier = -((y - p) ** 2) / (2 * (q + 1)) - jnp.log(q + 1) / 2
    return with_earlier + y**2 / (2 * (mu + 1)) + jnp.log(mu + 1) / 2


def probability(
    weights: Weights, of: Spread, cosine: Float[Array, ""], across: Across
) -> Float[Array, ""]:
    """The probability of going uphill along a direction that has this cosine with S; one half if
    the contributions say nothing."""
    _, S, p, q = _parts(of, across, jnp.asarray(RATIOS, of.share.dtype))
    some = q > 0
    size = jnp.sqrt(jnp.where(some, q * (q + 1), 1.0))
    t = jnp.where(some, (cosine * q * S + across.along * p) / size, 0.0)
    below = student(t, (of.paths * jnp.asarray(DIRECTIONS, of.share.dtype))[:, None])
    stated = jnp.sum(weights.astype(of.share.dtype) * below)
    return jnp.where(of.known, jnp.where(jnp.isnan(cosine), jnp.nan, stated), 0.5)
