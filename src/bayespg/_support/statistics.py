"""Quantiles, and intervals over independent samples: episodes of one policy, or seeds of a whole
training.

They use `scipy.special`, because importing `scipy.stats` takes a second, and load it when first
called: a training that asks for no interval does not wait for it. Those that a posterior needs have
a twin in JAX for use inside a transformation.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from bayespg._support.precision import traced

BISECTIONS = 60
LOWEST, HIGHEST = -20.0, 50.0
"""Logarithms of a smaller and a larger quantile than any that is asked for."""
NEARLY_NORMAL = 200.0
"""Degrees of freedom beyond which Student's quantile is a short series in their inverse."""


def student_quantile(level: Any, freedom: Any) -> Any:
    """Half the width of an interval of probability `level`, in standard errors; also inside a JAX
    transformation, where P(|T| <= exp(x)) = `level` is solved for x by bisection, and with many
    degrees of freedom the expansion of Cornish and Fisher is used."""
    if not traced(level, freedom):
        return _special().stdtrit(freedom, 0.5 + level / 2)
    level, freedom = jnp.broadcast_arrays(jnp.asarray(level), jnp.asarray(freedom))
    dtype = jnp.result_type(level, freedom, jnp.float32)
    many = freedom > NEARLY_NORMAL
    nu = jnp.where(many, 1.0, freedom).astype(dtype)

    def halve(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = (low + high) / 2
        inside = _within(jnp.exp(middle), nu) < level
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    bounds = jnp.full(nu.shape, LOWEST, dtype), jnp.full(nu.shape, HIGHEST, dtype)
    student = jnp.exp(jax.lax.fori_loop(0, BISECTIONS, halve, bounds)[1])
    z, v = jax.scipy.special.ndtri(0.5 + level / 2), jnp.where(many, 1 / freedom, 0.0)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return jnp.where(many, sum(term * v**k for k, term in enumerate(terms)), student)


def _within(t: Any, freedom: Any) -> Any:
    """P(|T| <= t) of Student's distribution in JAX, from whichever of t^2 / (nu + t^2) and
    nu / (nu + t^2) is the smaller, and so has no rounding error."""
    near, ratio = t**2 < freedom, t**2 / freedom
    y = jnp.where(near, ratio, 1.0) / (1 + jnp.where(near, ratio, 1.0))
    x = 1 / (1 + jnp.where(near, 1.0, ratio))
    centre = jax.scipy.special.betainc(0.5, freedom / 2, y)
    tails = jax.scipy.special.betainc(freedom / 2, 0.5, x)
    return jnp.where(near, centre, 1 - tails)


def student_probability(t: Any, freedom: Any) -> Any:
    """P(T <= t) of Student's distribution, also inside a JAX transformation."""
    if not traced(t, freedom):
        return _special().stdtr(freedom, t)
    tail = 0.5 * jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + t**2))
    student = jnp.where(t > 0, 1 - tail, tail)
    return jnp.where(jnp.isinf(freedom), jax.scipy.special.ndtr(t), student)


def f_quantile(level: float, first: Any, second: Any) -> Any:
    """The quantile `level` of the F distribution with these degrees of freedom."""
    return _special().fdtri(first, second, level)


MANY = 1e6
"""Degrees of freedom beyond which F(f, nu) is the chi-squared distribution divided by f."""


def f_probability(x: Any, first: Any, second: Any) -> Any:
    """P(F <= x) with these degrees of freedom, inside a JAX transformation."""
    few = second < MANY
    nu = jnp.where(few, second, 1.0)
    exact = jax.scipy.special.betainc(first / 2, nu / 2, first * x / (first * x + nu))
    return jnp.where(few, exact, jax.scipy.special.gammainc(first / 2, first * x / 2))


def normal_quantile(probability: float) -> float:
    """The z with P(Z <= z) = `probability` for a standard normal Z."""
    return float(_special().ndtri(probability))


def student_interval(samples: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean; infinite for fewer than two samples."""
    samples = np.asarray(samples, float)
    if samples.size < 2:
        return -math.inf, math.inf
    mean, reach = float(samples.mean()), float(student_quantile(level, samples.size - 1))
    error = reach * float(samples.std(ddof=1)) / math.sqrt(samples.size)
    return mean - error, mean + error


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of Clopper and Pearson for a probability."""
    tail, failures = (1 - level) / 2, trials - successes
    low = _special().betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = _special().betaincinv(successes + 1, failures, 1 - tail) if failures else 1.0
    return float(low), float(high)


def _special() -> Any:
    from scipy import special

    return special
