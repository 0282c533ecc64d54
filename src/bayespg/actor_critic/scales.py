"""The scales of both kernels, and the noise, that maximise the evidence."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Float

from bayespg import kernels
from bayespg._support.types import Array
from bayespg.actor_critic.steps import RANK, Prior, Steps, score_features, state_features
from bayespg.algebra.sparse import Linear

SIGNAL = 3.0
"""The smallest c/s^2 times the number of paths. With few paths the greatest evidence may be at no
signal at all (in 40 % of batches of five on LQR), and the estimate and every error bar would
collapse to zero."""
FLOOR = 1e-10
"""The smallest noise variance relative to that of the returns, for returns without noise."""
LEAST = 1e13
"""The smallest variances that are chosen, in units of the smallest number of the precision. A
policy that no longer explores has scores of that size."""
ROUNDS = 40
"""The number of fixed-point iterations."""


def chosen(steps: Steps, prior: Prior, rank: int = RANK) -> tuple[Prior, Float[Array, ""]]:
    """The actor-critic's prior with the scales of both kernels, and the noise, of greatest
    evidence.

    MacKay's fixed point in weight space: with g_j the effective number of weights that group j has
    determined, the scale of its kernel is the sum of its squared weights over g_j, and the noise
    the squared residuals over the observations less all g_j. Rewards that are all zero leave the
    smallest variances there are, and a gradient of zero.
    """
    if isinstance(steps.scores, Linear):
        raise ValueError("noise: evidence needs dense scores; give noise and scales yourself")
    Psi, F = (
        _narrow(features)
        for features in (
            state_features(steps, prior.state_kernel, rank)[0],
            score_features(steps, prior)[0],
        )
    )
    largest = jnp.max(jnp.abs(steps.y))
    unit = jnp.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
    unknown = steps.segments
    X = unknown.remove(jnp.concatenate([Psi, F], -1))
    z = unknown.remove(steps.y[:, None] / unit)[:, 0]
    H, b, zz, count = X.T @ X, X.T @ z, z @ z, unknown.observations()
    p, state = X.shape[1], jnp.arange(X.shape[1]) < Psi.shape[1]
    size = zz / jnp.maximum(count, 1) + 1e-30  # rewards may all be zero
    tiny = jnp.finfo(z.dtype).tiny

    def advance(scales, _):
        a, c, s2 = scales
        variances = jnp.where(state, a, c)
        L = jnp.linalg.cholesky(H / s2 + jnp.diag(1 / variances))
        m = cho_solve((L, True), b) / s2
        spread = jnp.sum(solve_triangular(L, jnp.eye(p), lower=True) ** 2, 0)
        determined = 1 - spread / variances

        def scale(group):
            share = jnp.maximum(jnp.sum(determined * group), 1e-6)
            return jnp.maximum(jnp.sum(m**2 * group) / share, 1e-12 * size + tiny)

        left = jnp.maximum(count - jnp.sum(determined), 1.0)
        s2 = jnp.maximum((zz - 2 * m @ b + m @ H @ m) / left, FLOOR * size + 1e-30)
        least = SIGNAL / steps.groups.count * s2
        return (scale(state), jnp.maximum(scale(~state), least), s2), None

    def start(features):
        return size / jnp.maximum(jnp.sum(features**2) / jnp.maximum(count, 1), tiny) / 2

    first = (start(Psi), start(F), size / 2 + 1e-30)
    (a, c, s2), _ = jax.lax.scan(advance, first, None, ROUNDS)
    a, c, s2 = (jnp.maximum(v * unit**2, LEAST * tiny) for v in (a, c, s2))
    return prior._replace(state_kernel=kernels.Scaled(prior.state_kernel, a), scale=c), s2


def _narrow(Psi: Float[Array, "N p"]) -> Float[Array, "N q"]:
    """Features with the same Gram matrix, on which alone the evidence depends, and not more
    features than steps."""
    N, p = Psi.shape
    if p <= N:
        return Psi
    eigenvalues, Q = jnp.linalg.eigh(Psi @ Psi.T)
    return Q * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))
