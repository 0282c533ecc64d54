"""Where to search next: decisions from the posterior of the gradient.

Decisions are made on the normal scores of the returns, Phi^-1(rank / M): they do not depend on the
unit of the returns, and one terrible episode does not hide the differences between all others. The
direction is the most probable ascent S^-1 mu for the posterior N(mu, S) of the gradient; the mean
moves along it in short steps, and the posterior is asked again after each, while the probability
of going uphill is at least `CONFIDENCE`. So the length of a move follows from the posterior.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Bool, Float
from scipy import special, stats

from bayespg._support.types import Array
from bayespg.search.hyperparameters import choose, gram

CONFIDENCE = 0.65
"""Least probability of going uphill."""
QUANTILE = float(special.ndtri(CONFIDENCE))
STEP = 0.15
"""Length of a step, in units of scale sqrt(n)."""
STEPS = 5
"""Most steps after a round."""


class Move(NamedTuple):
    """Where the mean goes after a round."""

    mean: Float[Array, " n"]
    steps: Float[Array, ""]
    slope: Float[Array, ""]
    """Along the first direction, in standard deviations of the posterior: sqrt(mu' S^-1 mu)."""
    length: Float[Array, ""]
    amplitude: Float[Array, ""]
    noise: Float[Array, ""]
    """Of the Gaussian process on normal scores."""


def normal_scores(y: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """Phi^-1((rank - 1/2) / M), the same for equal returns."""
    return special.ndtri((stats.rankdata(y) - 0.5) / y.size)


def move(
    X: Float[Array, "M n"],
    z: Float[Array, " M"],
    taken: Bool[Array, " M"],
    mean: Float[Array, " n"],
    scale: Float[Array, ""],
) -> Move:
    """The most probable ascent from `mean`, given parameters X and their normal scores."""
    n = X.shape[1]
    X, z = jnp.where(taken[:, None], X, mean), jnp.where(taken, z, 0.0)
    model = choose(X - mean, z, taken, scale)
    a, v, l2 = model.amplitude, model.noise, model.length**2
    near, far = l2 + scale**2, l2 + 2 * scale**2
    b0 = a * jnp.exp(-0.5 * n * jnp.log1p(2 * scale**2 / l2)) / far
    # R with C = R'R for the kernel matrix plus noise, the flat constant removed.
    A = a * gram(X - mean, taken, model.length) + jnp.diag(jnp.where(taken, v, 1.0))
    L = jnp.linalg.cholesky(A)
    R = solve_triangular(L, jnp.diag(taken.astype(X.dtype)), lower=True)
    o = R @ taken.astype(X.dtype)
    R = R - jnp.outer(o, o @ R) / jnp.maximum(o @ o, jnp.finfo(X.dtype).tiny)
    r = R @ z
    eye = jnp.eye(X.shape[0], dtype=X.dtype)

    def ascent(at):
        """S^-1 mu for S = b0 I - Z'Z, through the smaller system b0 I - Z Z', and mu'S^-1 mu."""
        away = X - at
        exponent = jnp.sum(away**2, -1) / near + n * jnp.log1p(scale**2 / l2)
        Z = R @ (a * (jnp.exp(-0.5 * exponent) * taken)[:, None] * away / near)
        mu, ZZ = Z.T @ r, Z @ Z.T
        factor = cho_factor(b0 * (1 + 1e-9) * eye - ZZ, lower=True)
        d = (mu + Z.T @ cho_solve(factor, Z @ mu)) / b0
        return d, jnp.sqrt(jnp.maximum(mu @ d, 0.0))

    def step(state):
        k, at, d, _, first = state
        at = at + STEP * scale * jnp.sqrt(1.0 * n) * d / jnp.linalg.norm(d)
        d, t = ascent(at)
        return k + 1, at, d, t, first

    def uphill(state):
        k, _, d, t, _ = state
        return (k < STEPS) & (t >= QUANTILE) & jnp.all(jnp.isfinite(d)) & jnp.any(d != 0)

    d, t = ascent(mean)
    start = (jnp.zeros((), jnp.int32), mean, d, t, t)
    k, at, *_, first = jax.lax.while_loop(uphill, step, start)
    return Move(at, k.astype(X.dtype), first, model.length, a, v)
