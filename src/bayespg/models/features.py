"""Units of observed numbers, and features in which learned models are linear."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.types import Array

COSINE = (
    0.99999999, -19.7392045, 64.93911746, -85.45013953, 60.16763095, -25.96759925, 6.52865816
)  # fmt: skip
"""cos(2 pi t) as a polynomial in t^2 for |t| <= 1/2: errors are below 1e-7."""
SMALLEST = 1e-5
"""A number whose standard deviation is a smaller share of its mean counts as constant."""


def cosine(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """cos(x); in single precision with errors below 2e-6, twice as fast as XLA's."""
    if x.dtype != jnp.float32:
        return jnp.cos(x)
    t = x * np.float32(1 / (2 * math.pi))
    t = t - jnp.floor(t + np.float32(0.5))
    u, y = t * t, jnp.full_like(x, COSINE[-1])
    for c in COSINE[-2::-1]:
        y = y * u + np.float32(c)
    return y


class Units(eqx.Module):
    """Mean and standard deviation of numbers; the latter is 1 for numbers that never change."""

    mean: Float[Array, " d"]
    scale: Float[Array, " d"]

    def __call__(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        return (x - self.mean) / self.scale


def units_of(x: Float[Array, "N d"], weights: Float[Array, " N"]) -> Units:
    """The units of the rows of `x` with these weights."""
    total = jnp.maximum(jnp.sum(weights), 1.0)
    mean = weights @ x / total
    scale = jnp.sqrt(weights @ (x - mean) ** 2 / total)
    constant = scale <= SMALLEST * jnp.abs(mean)
    return Units(mean, jnp.where(constant, 1.0, scale))


def rare_in_range(units: Units, x: Float[Array, "N d"], weights: Float[Array, " N"]) -> Units:
    """The same, with the largest deviation for the standard one of numbers that have one value in
    nine of ten rows, such as the force of a contact: in units of the latter they would now and then
    be so large that nothing could be said about what follows."""
    used = jnp.sum(weights > 0)
    ordered = jnp.sort(jnp.where(weights[:, None] > 0, x, jnp.inf), 0)
    low, high = (ordered[(used * share).astype(jnp.int32)] for share in (0.05, 0.95))
    farthest = jnp.max(jnp.where(weights[:, None] > 0, jnp.abs(x - units.mean), 0.0), 0)
    rare = (high - low <= SMALLEST * farthest) & (farthest > units.scale)
    return Units(units.mean, jnp.where(rare, farthest, units.scale))


class Circles(eqx.Module):
    """Pairs of numbers that lie on a circle, as the cosine and the sine of an angle do."""

    pairs: Float[Array, "d d"]
    """Row i sums the squares of the number i and of its partner; zero if it has none."""
    squares: Float[Array, " d"]
    """Squared radius."""

    def __call__(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """The nearest states in which the pairs lie on their circles."""
        now = x**2 @ self.pairs.T
        return jnp.where(now > 0, x * jnp.sqrt(self.squares / jnp.where(now > 0, now, 1.0)), x)


ROUND = 1e-3
"""Relative deviation of squared radii, below which two numbers lie on a circle."""


def circles_of(x: Float[Array, "N d"], weights: Float[Array, " N"]) -> Circles:
    """The pairs of columns whose squares sum to a constant, though each of them varies."""
    d, total = x.shape[1], jnp.maximum(jnp.sum(weights), 1.0)
    squares = x**2

    def with_others(one: Any) -> Any:
        sums = squares + one[:, None]
        mean = weights @ sums / total
        return mean, jnp.sqrt(weights @ (sums - mean) ** 2 / total)

    # One number at a time: all pairs of hundreds of them would take gigabytes.
    mean, deviation = jax.lax.map(with_others, squares.T)
    own = jnp.diagonal(deviation) > 10 * ROUND * jnp.diagonal(mean)
    off = deviation / jnp.maximum(mean, 1e-12) + jnp.where(jnp.eye(d) > 0, jnp.inf, 0.0)
    partner, best = jnp.argmin(off, 1), jnp.min(off, 1)
    paired = (best < ROUND) & own & own[partner] & (partner[partner] == jnp.arange(d))
    both = jnp.eye(d, dtype=x.dtype) + jax.nn.one_hot(partner, d, dtype=x.dtype)
    return Circles(
        jnp.where(paired[:, None], both, 0.0), jnp.where(paired, mean[jnp.arange(d), partner], 0.0)
    )


class Waves(eqx.Module):
    """Random waves cos(w_i'z + b_i), w_i ~ N(0, I / (length^2 D)): the features of a Gaussian
    kernel (Rahimi and Recht, 2007)."""

    frequencies: Float[Array, "m D"]
    phases: Float[Array, " m"]

    def __call__(self, z: Float[Array, "*N D"]) -> Float[Array, "*N m"]:
        size = math.sqrt(2 / self.phases.size)
        return size * cosine(z @ self.frequencies.T + self.phases)

    def stretched(self, length: Float[Array, ""] | float) -> "Waves":
        """The same waves with this length scale, in units of sqrt(D)."""
        factor = length * math.sqrt(self.frequencies.shape[1])
        return Waves(self.frequencies / factor, self.phases)


def draw_waves(key: PRNGKeyArray, size: int, count: int) -> Waves:
    """Waves of `size` inputs with length scale 1 / sqrt(D)."""
    key_frequencies, key_phases = jax.random.split(key)
    return Waves(
        jax.random.normal(key_frequencies, (count, size)),
        jax.random.uniform(key_phases, (count,), maxval=2 * math.pi),
    )


LEVEL, LINE, PRODUCT, WAVE = 10.0, 3.0, 1.0, 1.0
"""Prior standard deviations of the parts of `Terms`, as factors of the features."""


FARTHEST = 5.0
"""Standard deviations from the mean beyond which states count as this far."""


class Terms(eqx.Module):
    """phi(x, a) = (1, x, a, x_i a_j, waves of both)."""

    waves: Waves

    @staticmethod
    def size(states: int, actions: int, waves: int) -> int:
        """The number of features."""
        return 1 + states + actions + states * actions + waves

    def __call__(
        self, x: Float[Array, "N d"], a: Float[Array, "N k"], farthest: float = FARTHEST
    ) -> Float[Array, "N p"]:
        x = jnp.clip(x, -farthest, farthest)
        z = jnp.concatenate([x, a], 1)
        pairs = (x[:, :, None] * a[:, None, :]).reshape(len(x), -1)
        return jnp.concatenate(
            [jnp.full_like(z[:, :1], LEVEL), LINE * z, PRODUCT * pairs, WAVE * self.waves(z)], 1
        )


MOST_PAIRS = 8
"""Dimensions up to which all products are features of a state; beyond, squares only."""


class Quadratic(eqx.Module):
    """psi(x) = (1, x, x_i x_j, waves), each part times the prior standard deviation of its
    weights."""

    waves: Waves
    sizes: tuple[float, float, float, float] = eqx.field(static=True)

    @property
    def size(self) -> int:
        d = self.waves.frequencies.shape[1]
        pairs = d * (d + 1) // 2 if d <= MOST_PAIRS else d
        return 1 + d + pairs + self.waves.phases.size

    def __call__(self, x: Float[Array, "*N d"]) -> Float[Array, "*N q"]:
        level, line, square, wave = self.sizes
        d = x.shape[-1]
        # A gather of the pairs would take longer than all else.
        pairs = [x[..., i : i + 1] * x[..., i:] for i in range(d)] if d <= MOST_PAIRS else [x * x]
        return jnp.concatenate(
            [
                jnp.full_like(x[..., :1], level), line * x, *(square * y for y in pairs),
                wave * self.waves(x),
            ], -1,
        )  # fmt: skip
