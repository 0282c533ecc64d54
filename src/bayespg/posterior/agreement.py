"""The probability of going uphill along a direction that the same paths chose.

The gradient is a sum of contributions, one per path, and K holds their inner products in the metric
of the step. Suppose that they are the true gradient plus independent noise in f directions, and
that in each direction the squared gradient is expected to be mu times the noise variance of the
sum. The posterior of the gradient is then the sum of contributions times k = mu / (1 + mu), the
share of its squared length that is signal, and along a direction d, chosen by these paths or not,

    P(uphill) = Phi(sqrt(k) t),   t = (sum of contributions)'d / its standard error.

With k = 1 this is the ordinary t-test, which is too bold: the noise that is tested has chosen the
direction. All that is needed is mu and f. With M paths, 1'K1 / M is the sum of squares between zero
and the mean, and tr K less that is the one within: their ratio is 1 + mu times an F ratio with f
and f (M - 1) degrees of freedom, and the spread of the inner products shows f. So paths that agree
better than chance show how large mu is. What they do not show is filled in by a hyperprior on

    r = f mu / M,   the ratio of signal to noise of a single path.

A contribution is a return times a score, R u. Where R = g'u + e, the gradient g itself adds
(g'u) u - g to the spread of contributions, which hides it but never points downhill. The F ratio
therefore shows r / (1 + r) in place of r, while the probability depends on r. It is the average
over r and f (`Weights` on a grid). One batch begins with `prior`: in `NOTHING_TO_LEARN` of all
cases there is no gradient, and otherwise sqrt(M r), the length of the gradient in standard errors,
has the density z / (1 + z^2)^(3/2). Averaged over batches drawn from it the stated probability is
the frequency of going uphill. For a fixed gradient it is not: where many directions hide a weak
gradient, one batch cannot tell it from none, and the statement lies between. In a run r changes
slowly, and updates learn it: `drift`, then `observe`.

A mean can have a bias that all paths share. Where an unbiased gradient of each path is known, these
are the contributions, and d is the biased mean; the probability may then be below one half.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.types import Array

GROUPS = 8
"""Where influences are an operator, contributions are computed for this many groups of paths; each
group costs the solution of one linear system."""
RATIOS = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 31)])
"""The grid of r."""
DIRECTIONS = np.geomspace(1.0, 4096.0, 13)
"""The grid of f."""
NOTHING_TO_LEARN = 1 / 3
"""The prior probability that there is no gradient."""
MOVES, RENEWED = 0.005, 0.005
"""How r changes between updates: the probabilities of moving to the next larger value of the grid
(and of moving to the next smaller one), and of a fresh value from the prior."""
SHAPE = 20.0
"""The spread of inner products counts as this many independent ones at most: contributions are not
normal, and a hundred paths have thousands of pairs."""

Weights = Float[Array, "r f"]
"""Probabilities of the values of `RATIOS` and `DIRECTIONS`."""


class Spread(NamedTuple):
    """What K says about signal and noise."""

    paths: Float[Array, ""]
    """The number of paths that contribute: others are padding."""
    ratio: Float[Array, ""]
    """1'K1 / M divided by tr K - 1'K1 / M."""
    shape: Float[Array, ""]
    """p tr(C^2) / (tr C)^2 - 1 with C the inner products of contributions less their mean, of which
    p = M - 1 are independent: about (p - 1)(p + 2) / (p f + 2) in f directions."""
    known: Bool[Array, ""]
    """Whether there are two contributions or more, and they are not zero."""


def spread(K: Float[Array, "M M"], paths: Float[Array, ""] | None = None) -> Spread:
    """The statistics of the inner products of contributions; of those that are not zero unless the
    number of paths is given."""
    rows, own = K.sum(1), jnp.diagonal(K)
    largest = jnp.max(own)
    M = jnp.sum(own > 0).astype(K.dtype) if paths is None else paths
    count = jnp.maximum(M, 2.0)
    between = jnp.maximum(rows.sum(), 0.0) / count
    within = jnp.maximum(own.sum() - between, jnp.finfo(K.dtype).eps * own.sum())
    known = (M > 1) & (largest > 0)
    within = jnp.where(known, within, 1.0)
    squares = jnp.sum(K**2) - 2 * jnp.sum(rows**2) / count + between**2
    shape = (count - 1) * squares / within**2 - 1
    least = jnp.finfo(K.dtype).eps
    return Spread(count, jnp.maximum(between / within, least), jnp.maximum(shape, least), known)


def prior(paths: Float[Array, ""] | float) -> Weights:
    """The hyperprior before the first batch, of this many paths; f is anything."""
    z2 = paths * RATIOS[1:]
    slab = z2 / (1 + z2) ** 1.5
    slab = (1 - NOTHING_TO_LEARN) * slab / jnp.sum(slab)
    weights = jnp.concatenate([jnp.full((1,), NOTHING_TO_LEARN, slab.dtype), slab])
    return jnp.repeat(weights[:, None] / DIRECTIONS.size, DIRECTIONS.size, 1)


def draw_strength(key: PRNGKeyArray) -> Float[Array, ""]:
    """The length of a gradient in standard errors, drawn from the hyperprior."""
    spike, slab = jax.random.uniform(key, (2,), minval=1e-3)
    return jnp.where(spike < NOTHING_TO_LEARN, 0.0, jnp.sqrt(1 / slab**2 - 1))


def no_weights(dtype: Any) -> Weights:
    """The weights of a run before its first update."""
    return jnp.zeros((RATIOS.size, DIRECTIONS.size), dtype)


def drift(weights: Weights, paths: Float[Array, ""] | float) -> Weights:
    """What is known about the next update, from what is known about this one."""
    some = weights[1:]
    stay = (1 - 2 * MOVES) * some
    up = jnp.concatenate([some[:1], some[:-1]])
    down = jnp.concatenate([some[1:], some[-1:]])
    moved = jnp.concatenate([weights[:1], stay + MOVES * (up + down)])
    return (1 - RENEWED) * moved + RENEWED * prior(paths).astype(weights.dtype)


def observe(weights: Weights, of: Spread, additive: bool = False) -> Weights:
    """The weights after a batch. They stay as they are if it has nothing to say. The noise of
    `additive` contributions does not depend on the gradient."""
    likelihood = _log_likelihood(of, additive).astype(weights.dtype)
    new = weights * jnp.exp(likelihood - jnp.max(jnp.where(weights > 0, likelihood, -jnp.inf)))
    new = new / jnp.sum(new)
    return jnp.where(of.known & jnp.all(jnp.isfinite(new)), new, weights)


def _log_likelihood(of: Spread, additive: bool) -> Weights:
    """The logarithm of the density of the ratio and the shape, up to a constant.

    The ratio divided by 1 + mu has a beta-prime distribution with a = f / 2 and b = f (M - 1) / 2;
    with q = ratio / (1 + mu + ratio) and q_0 = a / (a + b) the log density is, by Stirling's
    formula, -(a + b) KL(q_0, q) + log(a b / (a + b)) / 2 + (1 / (a + b) - 1 / a - 1 / b) / 12. The
    shape is about (p f + 2)^-1 times twice a chi-squared variable with (p - 1)(p + 2) / 2 degrees
    of freedom.
    """
    f, M = jnp.asarray(DIRECTIONS, of.ratio.dtype), of.paths
    r = jnp.asarray(RATIOS if additive else RATIOS / (1 + RATIOS), of.ratio.dtype)[:, None]
    ratio, p = of.ratio / (1 + M * r / f), M - 1
    a, b = f / 2, f * p / 2
    share = 1 / M
    apart = share * jnp.log(share * (1 + ratio) / ratio)
    apart = apart + (1 - share) * jnp.log((1 - share) * (1 + ratio))
    rest = jnp.log(a * b / (a + b)) / 2 + (1 / (a + b) - 1 / a - 1 / b) / 12
    freedom = (p - 1) * (p + 2) / 2
    v = of.shape * (p * f + 2) / 4
    shape = freedom / 2 * jnp.log(v) - v
    return (
        rest
        - (a + b) * apart
        + jnp.where(freedom > 0, shape, 0.0) * jnp.minimum(1.0, SHAPE / jnp.maximum(freedom, 1.0))
    )


def _mu(M: Float[Array, ""], dtype) -> Weights:
    return M * jnp.asarray(RATIOS, dtype)[:, None] / jnp.asarray(DIRECTIONS, dtype)


def probability(weights: Weights, of: Spread, cosine: Float[Array, ""] | float = 1.0):
    """The probability of going uphill along a direction that has this cosine with the sum of
    contributions, in the metric of K; one half if they say nothing.

    With the noise variance estimated from all sums of squares t has f M degrees of freedom, and

        k t^2 = f M mu ratio / (1 + mu + ratio) cosine^2.
    """
    f, mu = jnp.asarray(DIRECTIONS, of.ratio.dtype), _mu(of.paths, of.ratio.dtype)
    nu = f * of.paths
    t = cosine * jnp.sqrt(nu * mu * of.ratio / (1 + mu + of.ratio))
    normal = t * (1 - 1 / (4 * nu)) / jnp.sqrt(1 + t**2 / (2 * nu))  # of Student's t
    stated = jnp.sum(weights.astype(of.ratio.dtype) * norm.cdf(normal))
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
    present = _present(influence)
    M = jnp.sum(present)
    square = mean @ mean
    rho = jnp.where(square > 0, influence.sum(0) @ mean / jnp.where(square > 0, square, 1.0), 0.0)
    rho = jnp.clip(rho, 0.0, 1.0)
    c = (M - 1) * influence + (1 - rho) * mean
    return jnp.where(present[:, None], c, 0.0) / jnp.where(rho < M, M - rho, 1.0)


def _present(influence: Float[Array, "M n"]) -> Bool[Array, " M"]:
    present = jnp.any(influence != 0, 1)
    return present | ~jnp.any(present)
