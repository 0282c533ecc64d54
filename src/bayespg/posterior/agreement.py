"""The probability of going uphill along a direction that the same paths chose.

The gradient is a sum of contributions, one per path, and K holds their inner products in the metric
of the step. Suppose that they are the true gradient plus independent noise in f directions, and
that in each direction the squared gradient is expected to be mu times the noise variance of the
sum. The posterior of the gradient is then the sum times k = mu / (1 + mu), the share of its squared
length that is signal, and along a direction d, chosen by these paths or not,

    P(uphill) = Phi(sqrt(k) t),   t = (sum of contributions)'d / its standard error.

With k = 1 this is the ordinary t-test, which is too bold: the noise that is tested has chosen the
direction. Contributions show mu and f by their cosines, so that a few long ones do not dominate.
The mean cosine of pairs, weighted by their lengths, is

    s = sum_{i != j} K_ij / sqrt(M (M - 1) sum_{i != j} K_ii K_jj),

and 1 + (M - 1) s, which without signal has the mean and the variance that it has for contributions
of equal length, takes the place of 1'K1 / tr K: divided by M less itself it is 1 + mu times
F / (M - 1), with F an F ratio of f and f (M - 1) degrees of freedom. The mean squared cosine is
about 1 / f. What paths do not show is filled in by a hyperprior on

    r = f mu / M,   the ratio of signal to noise of a single path.

A contribution is a return times a score, R u. Where R = g'u + e, the gradient g itself adds (g'u) u
- g to the spread of contributions, which hides it but never points downhill. The F ratio then shows
r / (1 + r), and r itself where the noise is merely added; r / (1 + `HIDDEN` r) lies between. The
probability is the average over r and f (`Weights` on a grid). One batch begins with `prior`: in
`NOTHING_TO_LEARN` of all cases there is no gradient, and otherwise z = sqrt(M r) / `STRENGTH`, with
sqrt(M r) the length of the gradient in standard errors, has the density 3/2 z^3 / (1 + z^2)^(5/2):
gradients weaker than their standard error are rare, or hundreds of episodes of pure noise would not
show that there is no gradient. Averaged over batches drawn from the hyperprior the stated
probability is the frequency of going uphill. For a fixed gradient it is not: where many directions
hide a weak gradient, one batch cannot tell it from none. In a run r changes slowly, and updates
learn it (`learn`). A run begins with `NOTHING_IN_A_RUN` for the probability of no gradient: its
updates can show that there is none.

A mean can have a bias that all paths share. Where an unbiased gradient of each path is known, these
are the contributions, and d is the biased mean; the probability may then be below one half.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.types import Array

GROUPS = 8
"""Where influences are an operator, contributions are computed for this many groups of paths; each
group costs the solution of one linear system."""
RATIOS = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 31)])
"""The grid of r."""
DIRECTIONS = np.geomspace(1.0, 4096.0, 13)
"""The grid of f."""
NOTHING_TO_LEARN = 0.5
"""The prior probability that there is no gradient, of one batch."""
NOTHING_IN_A_RUN = 1 / 3
"""The same at the beginning of a run."""
STRENGTH = 1.5
"""The scale of the length of a gradient, in standard errors."""
HIDDEN = 0.5
"""How far the gradient hides itself: between 0, where noise is added to it, and 1, where it is the
gradient of returns times scores."""
MOVES, RENEWED = 0.05, 0.003
"""How r changes between updates: the probabilities of moving to the next larger value of the grid
(and of moving to the next smaller one), and of a fresh value from the hyperprior of a run. log r
has then a random walk with a standard deviation of 0.15 per update."""
SHAPE = 20.0
"""Squared cosines count as this many independent ones at most: contributions are not normal."""
EDGE = 0.15
"""The smallest share 1 / M + (1 - 1 / M) s, and 1 less the largest, of two paths in one direction:
cosines are then signs, and say less than a share of 0 or 1 in the F model. It falls as the
number of directions and of paths rises."""

Weights = Float[Array, "r f"]
"""Probabilities of the values of `RATIOS` and `DIRECTIONS`."""


class Spread(NamedTuple):
    """What K says about signal and noise."""

    paths: Float[Array, ""]
    """The number of paths that contribute: others are padding."""
    share: Float[Array, ""]
    """1 / M + (1 - 1 / M) s, with s the mean cosine of pairs; between 0 and 1."""
    shape: Float[Array, ""]
    """The mean squared cosine of pairs, about 1 / f in f directions."""
    pairs: Float[Array, ""]
    """The number of pairs that count: fewer where a few paths have long contributions."""
    known: Bool[Array, ""]
    """Whether there are two contributions or more that are not zero."""


def spread(K: Float[Array, "M M"], paths: Float[Array, ""] | None = None) -> Spread:
    """The statistics of the inner products of contributions; of those that are not zero unless the
    number of paths is given."""
    own, others = jnp.diagonal(K), ~jnp.eye(len(K), dtype=bool)
    M = jnp.sum(own > 0).astype(K.dtype) if paths is None else paths
    count = jnp.maximum(M, 2.0)
    weights = jnp.where(others, jnp.outer(own, own), 0.0)
    total = jnp.sum(weights)
    known = (M > 1) & (total > 0)
    total = jnp.where(known, total, 1.0)
    off = jnp.where(others, K, 0.0)
    cosine = jnp.sum(off) / jnp.sqrt(count * (count - 1) * total)
    pairs = 0.5 / jnp.maximum(jnp.sum((weights / total) ** 2), jnp.finfo(K.dtype).tiny)
    shape = jnp.maximum(jnp.sum(off**2) / total, jnp.finfo(K.dtype).eps)
    return Spread(count, jnp.clip((1 + (count - 1) * cosine) / count, 0, 1), shape, pairs, known)


def prior(
    paths: Float[Array, ""] | float, power: float = 3.0, nothing: float = NOTHING_TO_LEARN
) -> Weights:
    """The hyperprior before the first batch, of this many paths; f is anything. The density of z
    begins as z^power: with 0 all lengths of weak gradients are equally probable."""
    z2 = paths * RATIOS[1:] / STRENGTH**2
    slab = z2 ** ((power + 1) / 2) / (1 + z2) ** (power / 2 + 1)
    slab = (1 - nothing) * slab / jnp.sum(slab)
    weights = jnp.concatenate([jnp.full((1,), nothing, slab.dtype), slab])
    return jnp.repeat(weights[:, None] / DIRECTIONS.size, DIRECTIONS.size, 1)


def draw_strength(key: PRNGKeyArray) -> Float[Array, ""]:
    """The length of a gradient in standard errors, drawn from the hyperprior. With y^2 = 1 / (1 +
    z^2) the probability of a greater z is (3 y - y^3) / 2, which is sin(3 a) for y = 2 sin(a)."""
    spike, slab = jax.random.uniform(key, (2,), minval=1e-3)
    y = 2 * jnp.sin(jnp.arcsin(slab) / 3)
    return jnp.where(spike < NOTHING_TO_LEARN, 0.0, STRENGTH * jnp.sqrt(1 / y**2 - 1))


def no_weights(dtype: Any) -> Weights:
    """The weights of a run before its first update."""
    return jnp.zeros((RATIOS.size, DIRECTIONS.size), dtype)


def learn(weights: Weights, of: Spread) -> Weights:
    """The weights of a run after another update; all are zero before the first."""
    fresh = prior(of.paths, nothing=NOTHING_IN_A_RUN).astype(weights.dtype)
    return observe(jnp.where(jnp.any(weights > 0), _drift(weights, fresh), fresh), of)


def _drift(weights: Weights, fresh: Weights) -> Weights:
    """What is known about the next update, from what is known about this one."""
    some = weights[1:]
    stay = (1 - 2 * MOVES) * some
    up = jnp.concatenate([some[:1], some[:-1]])
    down = jnp.concatenate([some[1:], some[-1:]])
    moved = jnp.concatenate([weights[:1], stay + MOVES * (up + down)])
    return (1 - RENEWED) * moved + RENEWED * fresh


def observe(weights: Weights, of: Spread, additive: bool = False) -> Weights:
    """The weights after a batch. They stay as they are if it has nothing to say. The noise of
    `additive` contributions does not depend on the gradient."""
    likelihood = _log_likelihood(of, additive).astype(weights.dtype)
    new = weights * jnp.exp(likelihood - jnp.max(jnp.where(weights > 0, likelihood, -jnp.inf)))
    new = new / jnp.sum(new)
    return jnp.where(of.known & jnp.all(jnp.isfinite(new)), new, weights)


def _log_likelihood(of: Spread, additive: bool) -> Weights:
    """The logarithm of the density of share and shape, up to a constant.

    share / (1 - share) divided by 1 + mu has a beta-prime distribution with a = f / 2 and b =
    f (M - 1) / 2; with q = ratio / (1 + ratio) and q_0 = a / (a + b) the log density is, by
    Stirling's formula, -(a + b) KL(q_0, q) + log(a b / (a + b)) / 2 + (1 / (a + b) - 1 / a - 1 / b)
    / 12. The shape is 1 / f times a chi-squared variable divided by its degrees of freedom, the
    number of pairs; of two paths there is one, and its cosine is the share.
    """
    f, M = jnp.asarray(DIRECTIONS, of.share.dtype), of.paths
    r = jnp.asarray(RATIOS if additive else RATIOS / (1 + HIDDEN * RATIOS), of.share.dtype)[:, None]
    ratio = _ratio(of, f) / (1 + M * r / f)
    a, b, share = f / 2, f * (M - 1) / 2, 1 / M
    apart = share * jnp.log(share * (1 + ratio) / ratio)
    apart = apart + (1 - share) * jnp.log((1 - share) * (1 + ratio))
    rest = jnp.log(a * b / (a + b)) / 2 + (1 / (a + b) - 1 / a - 1 / b) / 12
    freedom = jnp.where(M > 2, jnp.minimum(of.pairs, SHAPE), 0.0)
    return rest - (a + b) * apart + freedom / 2 * (jnp.log(of.shape * f) - of.shape * f)


def _ratio(of: Spread, f: Float[Array, " f"]) -> Float[Array, " f"]:
    """What takes the place of 1'K1 / M divided by tr K - 1'K1 / M."""
    edge = jnp.maximum(EDGE / (f**2 * (of.paths - 1)), 1e-5)
    share = jnp.clip(of.share, edge, 1 - edge)
    return share / (1 - share)


def probability(weights: Weights, of: Spread, cosine: Float[Array, ""] | float = 1.0):
    """The probability of going uphill along a direction that has this cosine with the sum of
    contributions, in the metric of K; one half if they say nothing.

    With the noise variance estimated from all sums of squares t has f M degrees of freedom, and

        k t^2 = f M mu ratio / (1 + mu + ratio) cosine^2,   ratio = share / (1 - share).
    """
    r, f = (jnp.asarray(grid, of.share.dtype) for grid in (RATIOS, DIRECTIONS))
    mu = of.paths * r[:, None] / f
    nu, ratio = f * of.paths, _ratio(of, f)
    t = cosine * jnp.sqrt(nu * mu * ratio / (1 + mu + ratio))
    normal = t * (1 - 1 / (4 * nu)) / jnp.sqrt(1 + t**2 / (2 * nu))  # of Student's t
    below = (1 + jax.lax.erf(normal / np.sqrt(2).astype(normal.dtype))) / 2
    stated = jnp.sum(weights.astype(of.share.dtype) * below)
    return jnp.where(of.known, jnp.where(jnp.isnan(cosine), jnp.nan, stated), 0.5)


def agreement(K: Float[Array, "M M"], cosine: Float[Array, ""] | float = 1.0):
    """The probability of going uphill from one batch. M paths that all agree are no stronger
    evidence than M tosses of a coin, so that it is at most 1 - 2^-M."""
    of = spread(K)
    stated = probability(observe(prior(of.paths).astype(K.dtype), of), of, cosine)
    least = 2.0**-of.paths
    stated = jnp.clip(stated, least, 1 - least)
    return jnp.where(jnp.all(jnp.isfinite(K)), stated, jnp.nan)


def compared(
    C: Float[Array, "B n"], mean: Float[Array, " n"], metric: Callable[[Array], Array] | None = None
) -> tuple[Float[Array, "B B"], Float[Array, ""]]:
    """Inner products of the rows of C in a metric, in units of the largest entry, and the cosine of
    their sum with the mean. Both are zero if the mean is zero."""
    C = jnp.where(jnp.any(mean != 0), C / largest(C), 0.0)
    both = jnp.concatenate([C, (mean / largest(mean))[None]])
    K = both @ (both if metric is None else metric(both)).T
    K = (K + K.T) / 2
    squared = K[-1, -1] * jnp.maximum(jnp.sum(K[:-1, :-1]), 0.0)
    cosine = jnp.sum(K[:-1, -1]) / jnp.sqrt(jnp.where(squared > 0, squared, 1.0))
    return K[:-1, :-1], jnp.clip(jnp.where(squared > 0, cosine, 0.0), -1.0, 1.0)


def largest(X: Float[Array, "..."], axis: int | None = None) -> Float[Array, "..."]:
    """The largest absolute entry, or 1 if all are zero; in units of it fourth powers neither
    overflow nor underflow."""
    size = jnp.max(jnp.abs(X), axis, initial=0.0)
    return jnp.where(size > 0, size, 1.0)


def contributions(mean: Float[Array, " n"], influence: Float[Array, "M n"]) -> Float[Array, "M n"]:
    """The contribution c_i of each path to the mean, from its influence D_i.

    An average over paths is divided by M - 1 when one is left out, so D_i = (M c_i - mean) /
    (M - 1), and the D_i sum to zero. Under a strong prior the divisor does not change, D_i = c_i,
    and they sum to the mean. In between, with rho the fraction of the mean that the D_i sum to,

        c_i = ((M - 1) D_i + (1 - rho) mean) / (M - rho).

    A path without any influence is padding, unless no path has any.
    """
    present = jnp.any(influence != 0, 1)
    present = present | ~jnp.any(present)
    M = jnp.sum(present)
    square = mean @ mean
    rho = jnp.where(square > 0, influence.sum(0) @ mean / jnp.where(square > 0, square, 1.0), 0.0)
    rho = jnp.clip(rho, 0.0, 1.0)
    c = (M - 1) * influence + (1 - rho) * mean
    return jnp.where(present[:, None], c, 0.0) / jnp.where(rho < M, M - rho, 1.0)
