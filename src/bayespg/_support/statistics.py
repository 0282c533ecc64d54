"""Quantiles, and intervals over independent samples: episodes of one policy, or seeds of a whole
training.

They use `scipy.special`, because importing `scipy.stats` takes a second, and load it when first
called: a training that asks for no interval does not wait for it.
"""

import math
from typing import Any

import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from bayespg._support.precision import traced


def student_quantile(level: float, freedom: Any) -> Any:
    """Half the width of an interval of probability `level`, in standard errors."""
    return _special().stdtrit(freedom, 0.5 + level / 2)


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
