"""A value function carried from one batch to the next, and advantages estimated with it.

V(x) = psi(x)'v with random Fourier features psi: Gaussian process regression in weight space, the
state half of the actor-critic's prior. Advantages use values that were fitted to the batch before,
so that the value of a step does not depend on the noise of that step. The actor-critic fits values
and advantages together, and what the batches so far say about v is its prior for the next.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Shaped

from bayespg import kernels
from bayespg._support.types import Array
from bayespg.algebra import conditioning
from bayespg.environments.trajectories import Trajectories
from bayespg.policies.features import Features

NOISE = 0.3
"""Noise variance, in units of the targets' own variance."""
FORGOTTEN = 0.003
"""Share of the prior variance of the weights that an update adds to what is known about them: as
the policy changes, so do its values."""
WIDEST = 10.0
"""Most variance of a weight given earlier batches, as a multiple of its prior variance: where the
returns of a policy vary a hundred times less than before, more would exceed single precision."""
MOST = 1000
"""Features beyond which no covariance of the weights is carried: each batch then stands alone."""


class Values(eqx.Module):
    """V(x)."""

    features: Features
    weights: Float[Array, " p"]
    fitted: Bool[Array, ""]
    """False before the first batch: all values are then zero."""
    root: Any = None
    """R (p, p), if the covariance R R' of the weights is known."""

    def __call__(self, states: Shaped[Array, "..."], lead: int = 1) -> Float[Array, " *N"]:
        """Values of states with `lead` leading axes."""
        return basis(self.features, states, lead) @ self.weights

    def unless(self, forgotten: Bool[Array, ""]) -> "Values":
        """These values or, if they are `forgotten`, those before the first batch."""
        parts = self.weights, self.fitted, self.root
        none = jax.tree.map(lambda x: jnp.where(forgotten, jnp.zeros_like(x), x), parts)
        return Values(self.features, *none)


def start(features: Features) -> Values:
    return Values(features, jnp.zeros(features.size, jnp.float32), jnp.asarray(False))


def carried(features: Features, dtype: DTypeLike) -> Values | None:
    """Values, and how well they are known, before the first batch."""
    p = features.size
    if p > MOST:
        return None
    return Values(features, jnp.zeros(p, dtype), jnp.asarray(False), jnp.zeros((p, p), dtype))


def widened(values: Values, variances: Float[Array, " p"]) -> Float[Array, "p p"]:
    """A root of the covariance of the weights before another batch, where the policy has changed.
    With S^2 = diag(`variances`), those of weights about which nothing is known,

        S ((1 - q) S^-1 R R' S^-1 + q I) S,   q = FORGOTTEN,

    and S^2 before the first batch. Weights with a variance above `WIDEST` S^2 are scaled down to
    it."""
    S, one = jnp.sqrt(variances), jnp.eye(len(variances), dtype=variances.dtype)
    R = values.root / S[:, None]
    R = R / jnp.maximum(1.0, jnp.linalg.norm(R, axis=1, keepdims=True) / WIDEST**0.5)
    known = (1 - FORGOTTEN) * R @ R.T + FORGOTTEN * one
    return S[:, None] * jnp.linalg.cholesky(jnp.where(values.fitted, known, one))


def conditioned(
    values: Values, root: Float[Array, "p p"], Psi: Float[Array, "N p"], left: Float[Array, " N"]
) -> Values:
    """Values given another batch, in which ``left = Psi (v - weights) + noise`` was observed, with
    white noise of variance 1, and v had the covariance of `root`. Observations that are all zero,
    or not finite, change nothing."""
    Phi = Psi @ root
    A = jnp.linalg.cholesky(jnp.eye(len(root), dtype=root.dtype) + Phi.T @ Phi)
    R = jax.scipy.linalg.solve_triangular(A, root.T, lower=True).T
    v = values.weights + R @ jax.scipy.linalg.solve_triangular(A, Phi.T @ left, lower=True)
    sound = jnp.any(left != 0) & jnp.all(jnp.isfinite(v)) & jnp.all(jnp.isfinite(R))
    fresh = Values(values.features, v, jnp.asarray(True), R)
    return jax.tree.map(lambda new, old: jnp.where(sound, new, old), fresh, values)


def rescaled(values: Values, factor: Float[Array, ""]) -> Values:
    """The same values in other units of the rewards."""
    parts = (values.weights * factor, values.root * factor)
    return eqx.tree_at(lambda v: (v.weights, v.root), values, parts)


def basis(features: Features, states: Shaped[Array, "..."], lead: int = 1) -> Float[Array, "*N p"]:
    """psi(x) of states with `lead` leading axes; the constant has a wide prior."""
    shape = states.shape[:lead]
    flat = states.reshape(math.prod(shape), -1)
    return kernels.OfFeatures(features).features(flat).reshape(*shape, -1)


def fit(
    values: Values,
    states: Shaped[Array, "N ..."],
    targets: Float[Array, " N"],
    taken: Bool[Array, " N"],
) -> Values:
    """A new V, fitted to `targets`."""
    kept = taken.astype(targets.dtype)
    scale = root_mean_square(targets, taken)
    scale = jnp.where(scale > 0, scale, 1.0)
    Psi = basis(values.features, states) * kept[:, None]
    at = conditioning.regress(Psi, (kept * targets / scale)[:, None], NOISE)
    weights = (scale * at.weights[:, 0]).astype(values.weights.dtype)
    return Values(values.features, weights, jnp.asarray(True))


def root_mean_square(
    x: Float[Array, "..."], taken: Bool[Array, "..."] | bool = True
) -> Float[Array, ""]:
    """Over the steps taken, computed in units of the largest: squares overflow in single
    precision."""
    taken = jnp.broadcast_to(taken, x.shape)
    x = jnp.where(taken, x, 0.0)
    unit = jnp.max(jnp.abs(x))
    unit = jnp.where(unit > 0, unit, 1.0)
    return unit * jnp.sqrt(jnp.sum((x / unit) ** 2) / jnp.maximum(jnp.sum(taken), 1))


def centred(
    x: Float[Array, "..."], taken: Bool[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, ""]]:
    """x less its mean over the steps taken, and its standard deviation: 0 if the entries differ by
    rounding only."""
    x = jnp.where(taken, x, 0.0)
    rounding = 10 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x))
    x = jnp.where(taken, x - jnp.sum(x / jnp.maximum(jnp.sum(taken), 1).astype(x.dtype)), 0.0)
    spread = root_mean_square(x, taken)
    return x, jnp.where(spread > rounding, spread, 0.0)


def advantages(
    paths: Trajectories, values: Values, discount: float | Float[Array, ""], lambda_: float
) -> Float[Array, "T M"]:
    """sum_l (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma V(x_{t+1}) - V(x_t) (Schulman et
    al., 2016). V is zero after an absorbing state, and V(final) where a path was cut off."""
    V = jnp.where(paths.mask, values(paths.states, 2), 0.0)
    T = V.shape[0]
    last = jnp.arange(T)[:, None] == paths.lengths - 1
    ends = jnp.where(paths.terminated, 0.0, values(paths.final))
    following = jnp.where(last, ends, jnp.roll(V, -1, 0))
    rewards = jnp.where(paths.mask, paths.rewards, 0.0)
    delta = jnp.where(paths.mask, rewards + discount * following - V, 0.0)
    return jnp.where(paths.mask, tails(delta, last, discount * lambda_), 0.0)


def tails(
    x: Float[Array, "T M"], last: Bool[Array, "T M"], decay: float | Float[Array, ""]
) -> Float[Array, "T M"]:
    """sum_l decay^l x_{t+l} over the steps of each path, up to the one that is its `last`."""

    def back(tail, now):
        one, end = now
        tail = one + decay * jnp.where(end, 0.0, tail)
        return tail, tail

    return jax.lax.scan(back, jnp.zeros_like(x[0]), (x, last), reverse=True)[1]
