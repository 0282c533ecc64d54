"""The probability of going uphill along a direction that the same paths chose.

The mean is a sum of contributions, one per path. If there is no gradient, a contribution could as
well have had the opposite sign. The length of the mean is therefore compared with its length after
random changes of sign, and the probability is the share of sign patterns for which it is shorter.
The squared length minus its expectation under random signs is the sum over all pairs of paths of
the inner product of their contributions, so each path's direction is judged by the other paths
only.

For a mean over paths whose contributions are symmetric about zero the result is uniform between 0
and 1, for any number of paths and parameters and any spread of the paths. Where there is a
gradient, its average stays below the frequency of going uphill, because both sides of every pair
are noisy. docs/calibration.md compares the two.

A mean can have a bias that all paths share, and then they agree on a direction that need not go
uphill. Where an unbiased gradient of each path is known too, `judged` takes its verdict instead.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg._support.types import Array

PATTERNS = 1024
"""The largest number of sign patterns; if there are more, this many are drawn at random."""
GROUPS = 8
"""Where influences are an operator, contributions are computed for this many groups of paths; each
group costs the solution of one linear system."""


def signs(M: int) -> Float[Array, "k M"]:
    """All sign patterns up to a common sign, or `PATTERNS` random ones; the first is all ones."""
    count = 2 ** min(M - 1, 60)
    if count <= PATTERNS:
        bits = (jnp.arange(count)[:, None] >> jnp.arange(M - 1)) & 1
        return 1.0 - 2 * jnp.pad(bits, ((0, 0), (1, 0)))
    drawn = jax.random.rademacher(jax.random.key(0), (PATTERNS, M), jnp.zeros(()).dtype)
    return drawn.at[0].set(1.0)


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


def agreement(K: Float[Array, "M M"]) -> Float[Array, ""]:
    """The share of sign patterns s with s'Ks below 1'K1, where ties count one half and K holds the
    inner products of contributions.

    It lies between 2^-M and 1 - 2^-M. If the contributions sum to zero it is one half.
    """
    S = signs(K.shape[0]).astype(K.dtype)
    return _share_below(jnp.sum((S @ K) * S, 1), K)


def judged(K: Float[Array, "M M"]) -> Float[Array, ""]:
    """The probability of going uphill along a direction to which path e adds c_e, from the slope
    K_ef that the unbiased gradient h_f of path f shows along c_e.

    a_f = sum_{e != f} K_ef is the slope that path f shows along the part of the direction that the
    other paths chose. Two shares of sign patterns are computed from them, and the one nearer to one
    half is the answer:

    - of sum_f s_f a_f below sum_f a_f: the direction is fixed, its slope is in doubt. This sees a
      bias that all paths share;
    - of sum_{e != f} s_e s_f K_ef below the same sum: the direction is in doubt too. Where all is
      noise, the first share is too bold, because each pair of paths is counted twice.
    """
    apart = K * (1 - jnp.eye(K.shape[0], dtype=K.dtype))
    slopes = signs(K.shape[0]).astype(K.dtype) @ apart.sum(0)
    alone = _share_below(jnp.concatenate([slopes, -slopes]), apart)
    together = agreement(apart)
    return jnp.where(jnp.abs(alone - 0.5) < jnp.abs(together - 0.5), alone, together)


def _share_below(slopes: Float[Array, " k"], K: Float[Array, "M M"]) -> Float[Array, ""]:
    """The share of `slopes` below the first, where ties count one half; one half if the first is
    within rounding of zero, for sums of entries of K with changed signs."""
    whole, size = slopes[0], jnp.sum(jnp.abs(K))
    rounding = 8 * jnp.finfo(K.dtype).eps * size
    ties = jnp.abs(slopes - whole) <= rounding
    below = jnp.mean(jnp.where(ties, 0.5, slopes < whole))
    share = jnp.where(jnp.abs(whole) <= rounding, 0.5, below)
    return jnp.where(jnp.isfinite(size), share, jnp.nan)
