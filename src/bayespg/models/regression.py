"""Bayesian linear regression in random Fourier features, from sufficient statistics.

    y = phi(z)'w + e,   w ~ N(0, tau^2 I),   e ~ N(0, lambda tau^2),

for each output y with its own tau and lambda. With Phi'Phi = V diag(s) V' and b = Phi'y,

    E[w] = V (s + lambda)^-1 V'b,   Cov[w] = lambda tau^2 V (s + lambda)^-1 V',
    -2 log p(y) = N log(2 pi e tau^2) + sum_i log(s_i + lambda) + (N - p) log lambda,
    tau^2 = (y'y - b'E[w]) / (lambda N),

so that a grid of lambda costs next to nothing once the eigenvectors are known.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg._support.types import Array

RIDGES = np.logspace(-7, 1, 17)
"""Values of lambda."""
ROUNDING = 1e-9
"""Least share of a target's mean square that counts as noise."""


class Regression(eqx.Module):
    """The posterior of the weights of several outputs."""

    mean: Float[Array, "p o"]
    vectors: Float[Array, "p p"]
    values: Float[Array, "p o"]
    """Variances of the weights along the vectors, for each output."""
    noise: Float[Array, " o"]
    """Variance of the noise."""
    evidence: Float[Array, " o"]
    """log p(y)."""

    def variance(self, phi: Float[Array, "N p"]) -> Float[Array, "N o"]:
        """The variance of phi'w."""
        return (phi @ self.vectors) ** 2 @ self.values

    def draw(self, normals: Float[Array, "p o"]) -> Float[Array, "p o"]:
        """Weights drawn from the posterior, from standard normal numbers."""
        return self.mean + self.vectors @ (jnp.sqrt(self.values) * normals)


def statistics(Phi: Any, Y: Any) -> tuple[Any, Any, Any]:
    """Phi'Phi, Phi'Y and the sums of squares of the outputs."""
    return Phi.T @ Phi, Phi.T @ Y, jnp.sum(Y**2, 0)


def regress(
    gram: Float[Array, "p p"],
    products: Float[Array, "p o"],
    squares: Float[Array, " o"],
    count: Float[Array, ""],
) -> Regression:
    """The posterior given `statistics` and the number of rows; lambda and tau of each output by
    evidence. An output that is always zero has no noise."""
    s, V = jnp.linalg.eigh(gram)
    s = jnp.maximum(s, 0.0)
    b = V.T @ products
    lambdas = jnp.asarray(RIDGES, s.dtype)

    def judged(ridge):
        left = squares - jnp.sum(b**2 / (s + ridge)[:, None], 0)
        left = jnp.maximum(left, ROUNDING * squares)
        tau = jnp.where(squares > 0, left / (ridge * count), 1.0)
        spread = jnp.sum(jnp.log(s + ridge)) + (count - len(s)) * jnp.log(ridge)
        return tau, -0.5 * (count * jnp.log(2 * jnp.pi * jnp.e * tau) + spread)

    taus, evidence = jax.vmap(judged)(lambdas)
    best = jnp.argmax(evidence, 0)
    ridge, tau = lambdas[best], jnp.take_along_axis(taus, best[None], 0)[0]
    tau = jnp.where(squares > 0, tau, 0.0)
    shrunk = 1 / (s[:, None] + ridge)
    return Regression(
        mean=V @ (shrunk * b), vectors=V, values=ridge * tau * shrunk, noise=ridge * tau,
        evidence=jnp.where(squares > 0, jnp.max(evidence, 0), 0.0),
    )  # fmt: skip


FREEDOM = 4.0
"""Degrees of freedom of Student's noise."""
ITERATIONS = 3


def robust_weights(
    Phi: Float[Array, "N p"],
    Y: Float[Array, "N o"],
    used: Float[Array, " N"],
) -> Callable[[Any, Any], Any]:
    """A function from rows and their outputs to weights of the rows.

    With Student's noise of f degrees of freedom a row has the weight (f + 1) / (f + q), where q is
    the square of its residual in units of the noise; here the largest over the outputs, so that a
    row has one weight. The fit to these rows is iterated. Rewards are not among the outputs: a
    return is a sum of expected rewards, and where one is paid every tenth step those that are paid
    look like outliers.
    """

    def weight(fit: Regression, Phi: Any, Y: Any) -> Any:
        q = (Y - Phi @ fit.mean) ** 2 / jnp.maximum(fit.noise, 1e-12)
        q = jnp.where(jnp.sum(fit.mean**2, 0) > 0, q, 0.0)
        return jnp.minimum((FREEDOM + 1) / (FREEDOM + jnp.max(q, 1)), 1.0)

    def fitted(w: Any) -> Regression:
        root = jnp.sqrt(w)[:, None]
        return regress(*statistics(Phi * root, Y * root), jnp.sum(w))

    def again(_: Any, carry: Any) -> Any:
        fit = fitted(carry[0])
        return used * weight(fit, Phi, Y), fit

    shapes = jax.eval_shape(fitted, used)
    begun = used, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return functools.partial(weight, jax.lax.fori_loop(0, ITERATIONS + 1, again, begun)[1])
