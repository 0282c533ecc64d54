"""Conditioning a Gaussian process on noisy samples, and reading off a linear functional.

With C = (K + Sigma)^-1, a functional with cross-covariance B to the samples and prior covariance
B_0 has

    mean = B C y,     covariance = B_0 - B C B'                                 (Eqs. 14 to 16)

Two forms of the same numbers: `dual` factorises the M x M matrix K + Sigma; `weight_space` takes
features Psi with K = Psi Psi' and functional V e of the weights e ~ N(0, I), so B = V Psi', and
factorises p x p. Both take a constant b ~ N(0, baseline) added to the process, infinity allowed,
which is removed by a symmetric projection Q with Q^2 = I - s o o', o the constant seen through the
noise.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float, Int

from bayespg.types import Array

LOG_2PI = math.log(2 * math.pi)


class Constant:
    """The constant b ~ N(0, v) seen through the noise as a vector o.

    Adding v o o' to the identity and inverting gives I - s o o' = Q^2 with s = 1 / (1/v + o'o);
    `remove` applies Q.
    """

    def __init__(self, o: Float[Array, " M"], variance: float | Float[Array, ""]):
        self.absent = isinstance(variance, (int, float)) and variance == 0
        self.o, self.v = o, jnp.asarray(variance, o.dtype)
        self.norm = o @ o
        self.s = 1 / (1 / self.v + self.norm)
        left = 1 - self.s * self.norm
        flat = left <= 0
        self.t = (1 - jnp.where(flat, 0.0, jnp.sqrt(jnp.where(flat, 1.0, left)))) / self.norm

    def remove(self, X: Float[Array, "M k"]) -> Float[Array, "M k"]:
        return X if self.absent else X - (self.t * self.o)[:, None] * (self.o @ X)[None]

    def diagonal(self) -> Float[Array, " M"]:
        return jnp.ones_like(self.o) if self.absent else 1 - self.s * self.o**2

    def log_determinant(self) -> Float[Array, ""]:
        flat = jnp.isinf(self.v)
        return jnp.where(
            flat, jnp.log(self.norm), jnp.log1p(jnp.where(flat, 0, self.v) * self.norm)
        )

    def observations(self, M: int) -> Int[Array, ""]:
        """Observations left once a flat constant has taken one."""
        return M - jnp.isinf(self.v)


class Conditioned(NamedTuple):
    """What the samples say about k functionals, for q sets of observations."""

    gain: Float[Array, "k M"]
    """B C: the mean is gain @ y."""
    alpha: Float[Array, "M q"]
    """C y."""
    diagonal: Float[Array, " M"]
    """The diagonal of C: one over the predictive variance of each sample given the others."""
    freedom: Float[Array, ""]
    """tr(Sigma C): observations left for the noise, M less the effective number of parameters."""
    covariance: Float[Array, "k k"] | None
    root: Float[Array, "r k"] | None
    """Z with B C B' = Z'Z, where the covariance was not asked for."""
    log_evidence: Float[Array, " q"]
    """log N(y; 0, K + Sigma + baseline 1 1'), restricted where the baseline is flat."""
    condition: Float[Array, ""]
    """Ratio of the squared extreme pivots, a lower bound on the condition number."""

    def leave_one_out(self) -> Float[Array, "M kq"]:
        """Row i: the mean minus the mean without sample i, (B C)_i (C y)_i / C_ii; exact.

        For k functionals of one set of observations or one functional of q sets.
        """
        C_ii = self.diagonal[:, None]
        known = C_ii > 0
        return self.gain.T * jnp.where(known, self.alpha / jnp.where(known, C_ii, 1.0), 0.0)


def dual(
    K: Float[Array, "M M"],
    B: Float[Array, "k M"],
    B0: Float[Array, "k k"] | None,
    y: Float[Array, "M q"],
    noise: float | Float[Array, ""] | Float[Array, " M"] | Float[Array, "M M"],
    baseline: float | Float[Array, ""] = 0.0,
) -> Conditioned:
    """Cost M^3. With `B0` None the covariance is left as the root of what the samples explain."""
    M = K.shape[0]
    noise = jnp.asarray(noise, K.dtype)
    full = noise.ndim == 2
    L = jnp.linalg.cholesky(K + (noise if full else noise * jnp.eye(M, dtype=K.dtype)))
    R = solve_triangular(L, jnp.eye(M, dtype=K.dtype), lower=True)
    constant = Constant(R.sum(1), baseline)
    R = constant.remove(R)  # C = R'R
    Z = R @ B.T
    r = R @ y
    pivots = jnp.diagonal(L)
    log_det = 2 * jnp.sum(jnp.log(pivots)) + constant.log_determinant()
    return Conditioned(
        gain=Z.T @ R,
        alpha=R.T @ r,
        diagonal=jnp.sum(R**2, 0),
        freedom=jnp.sum((R @ noise if full else R * noise) * R),
        covariance=None if B0 is None else B0 - Z.T @ Z,
        root=Z if B0 is None else None,
        log_evidence=-0.5 * (jnp.sum(r**2, 0) + log_det + constant.observations(M) * LOG_2PI),
        condition=(pivots.max() / pivots.min()) ** 2,
    )


def weight_space(
    Psi: Float[Array, "M p"],
    V: Float[Array, "k p"],
    remainder: float | Float[Array, "k k"] | None,
    y: Float[Array, "M q"],
    noise: float | Float[Array, ""] | Float[Array, " M"],
    baseline: float | Float[Array, ""] = 0.0,
) -> Conditioned:
    """Cost M p^2. `remainder` is B_0 - V V', the prior covariance that the features do not carry.

    With `remainder` None the covariance is left as the root of what the samples explain.
    """
    M, p = Psi.shape
    noise = jnp.broadcast_to(jnp.asarray(noise, Psi.dtype), (M,))
    w = 1 / jnp.sqrt(noise)
    constant = Constant(w, baseline)
    X = constant.remove(w[:, None] * Psi)
    z = constant.remove(w[:, None] * y)
    P = jnp.eye(p, dtype=Psi.dtype) + X.T @ X
    L = jnp.linalg.cholesky(P)
    E = solve_triangular(L, X.T, lower=True)
    VL = solve_triangular(L, V.T, lower=True)  # V P^-1 V' = VL'VL
    e = solve_triangular(L.T, E @ z, lower=False)  # posterior mean of the weights
    r = z - X @ e
    EQ = constant.remove(E.T)
    kept = constant.diagonal() - jnp.sum(EQ**2, 1)  # one minus the leverages
    pivots = jnp.diagonal(L)
    log_det = jnp.sum(jnp.log(noise)) + 2 * jnp.sum(jnp.log(pivots)) + constant.log_determinant()
    fit = jnp.sum(r**2, 0) + jnp.sum(e**2, 0)
    return Conditioned(
        gain=(VL.T @ EQ.T) * w,
        alpha=constant.remove(r) * w[:, None],
        diagonal=kept / noise,
        freedom=jnp.sum(kept),
        covariance=None if remainder is None else remainder + VL.T @ VL,
        root=_explained(P, V) if remainder is None else None,
        log_evidence=-0.5 * (fit + log_det + constant.observations(M) * LOG_2PI),
        condition=(pivots.max() / pivots.min()) ** 2,
    )


def _explained(P: Float[Array, "p p"], V: Float[Array, "k p"]) -> Float[Array, "p k"]:
    """Z with Z'Z = V (I - P^-1) V'."""
    eigenvalues, Q = jnp.linalg.eigh(P)
    return jnp.sqrt(jnp.maximum(1 - 1 / eigenvalues, 0.0))[:, None] * (Q.T @ V.T)
