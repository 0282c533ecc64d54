"""Conditioning a Gaussian process on noisy samples, and reading off a linear functional.

With C = (K + Sigma)^-1, a functional with cross-covariance B to the samples and prior covariance
B_0 has

    mean = B C y,     covariance = B_0 - B C B'                                 (Eqs. 14 to 16)

Two forms of the same numbers: `dual` factorises the M x M matrix K + Sigma; `weight_space` takes
features Psi with K = Psi Psi' and functional V e of the weights e ~ N(0, I), so B = V Psi', and
factorises p x p. Both take unknowns that are added to the samples and not asked for: a constant
b ~ N(0, baseline), infinity allowed, or `Tails`, one flat unknown for each truncated episode. They
are removed by a symmetric matrix Q.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Bool, Float, Int

from bayespg._support.types import Array

LOG_2PI = math.log(2 * math.pi)


ROUNDING = 100
"""The number of rounding errors of the largest of several numbers below which their differences
count as zero."""


def less(y: Float[Array, "..."], constant: Float[Array, "..."]) -> Float[Array, "..."]:
    """y - constant, set to zero where the difference is rounding, so that constant returns give a
    gradient of exactly zero."""
    left = y - constant
    rounding = ROUNDING * jnp.finfo(left.dtype).eps * jnp.max(jnp.abs(y))
    return jnp.where(jnp.abs(left) <= rounding, 0.0, left)


def cholesky(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """L with L L' = A, from the lower triangle of A; NaN where A is not positive definite."""
    return jax.lax.linalg.cholesky(jnp.asarray(A), symmetrize_input=False)


def cholesky_of_sum(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """`cholesky` of a matrix that is positive definite except for rounding errors, such as I + X'X
    in single precision. If it fails, 4 n rounding errors are added to each entry of the diagonal,
    relative to the entry, which is the size of the error of forming X'X."""
    L = cholesky(A)
    slack = 4 * A.shape[0] * jnp.finfo(A.dtype).eps
    return jnp.where(jnp.all(jnp.isfinite(L)), L, cholesky(A + slack * jnp.diag(diagonal(A))))


def diagonal(A: Float[Array, "n n"]) -> Float[Array, " n"]:
    """The diagonal of a small matrix. `jnp.diagonal` is a gather, which XLA cannot fuse with what
    follows."""
    return jnp.einsum("ii->i", A)


class Groups(eqx.Module):
    """Groups of N rows, such as the steps of an episode.

    `ids` names the group of each row; without it, groups are runs of `length` rows.
    """

    count: int = eqx.field(static=True)
    ids: Int[Array, " N"] | None = None
    length: int = eqx.field(static=True, default=0)

    def row_ids(self, N: int) -> Int[Array, " N"]:
        return jnp.arange(N) // self.length if self.ids is None else self.ids

    def rows(self, N: int) -> Int[Array, "E k"]:
        """The rows of each group, for runs of equal length."""
        return jnp.arange(N).reshape(self.count, self.length)

    def sum(self, X: Float[Array, "N *k"]) -> Float[Array, "E *k"]:
        if self.ids is None:
            return X.reshape(self.count, self.length, *X.shape[1:]).sum(1)
        return jax.ops.segment_sum(X, self.ids, self.count)

    def spread(self, S: Float[Array, "E *k"]) -> Float[Array, "N *k"]:
        """Repeat the value of each group for all its rows."""
        return jnp.repeat(S, self.length, 0) if self.ids is None else S[self.ids]

    def grams(self, X: Float[Array, "N p"]) -> Float[Array, "E p p"]:
        """X_e' X_e for the rows of each group."""
        N, p = X.shape
        if self.ids is None:
            # One product after the other: on a CPU a batch of them takes twenty times as long.
            return jax.lax.map(lambda x: x.T @ x, X.reshape(self.count, self.length, p))
        whole = -(-N // CHUNK) * CHUNK
        rows = jnp.pad(X, ((0, whole - N), (0, 0))).reshape(-1, CHUNK, p)
        ids = jnp.pad(self.ids, (0, whole - N)).reshape(-1, CHUNK)

        def add(H, chunk):
            x, e = chunk
            return H.at[e].add(x[:, :, None] * x[:, None, :]), None

        return jax.lax.scan(add, jnp.zeros((self.count, p, p), X.dtype), (rows, ids))[0]


CHUNK = 64
"""The number of rows whose outer products are formed at once."""


class Tails(eqx.Module):
    """One unknown for each group, with a prior variance, that enters its rows through `column`.

    A truncated episode's H of Eq. 31 has the null vector v_t = gamma^(T-1-t): what its rewards
    cannot tell is the value of its last pair. Groups whose column is zero have no unknown; rows
    outside `taken` are padding.
    """

    column: Float[Array, " N"]
    groups: Groups
    taken: Bool[Array, " N"]
    variance: float | Float[Array, ""] = math.inf

    def weighted(self, w: Float[Array, " N"]) -> "Segments":
        return Segments(w * self.column, self)

    def through(self, R: Float[Array, "N N"]) -> "Segments | Span":
        """Several unknowns must be flat."""
        N, E = self.column.size, self.groups.count
        if E == 1:
            whole = Tails(self.column, Groups(1, length=N), self.taken, self.variance)
            return Segments(R @ self.column, whole)
        ids = self.groups.row_ids(N)
        columns = jnp.zeros((N, E), R.dtype).at[jnp.arange(N), ids].set(self.column)
        return Span(R @ columns, self.taken)


def constant(variance: float | Float[Array, ""] | Tails, like: Float[Array, " M"]) -> Tails:
    """An unknown constant in M samples; `Tails` stay themselves."""
    if isinstance(variance, Tails):
        return variance
    absent = isinstance(variance, int | float) and variance == 0
    column = jnp.zeros_like(like) if absent else jnp.ones_like(like)
    return Tails(column, Groups(1, length=like.size), jnp.ones(like.shape, bool), variance)


class Segments(eqx.Module):
    """Unknowns ~ N(0, v) seen as vectors o with disjoint supports.

    Adding v o o' to the identity and inverting gives I - s o o' = Q^2 with s = 1 / (1/v + o'o);
    `remove` applies Q, a projection where v is infinite.
    """

    groups: Groups
    taken: Bool[Array, " N"]
    unit: Float[Array, " N"]
    """o / |o|."""
    share: Float[Array, " E"]
    """s o'o: 0 for v = 0, 1 for a flat unknown."""
    flat: Bool[Array, " E"]
    logs: Float[Array, " E"]
    """log(1 + v o'o), or log(o'o) for a flat unknown."""

    def __init__(self, o: Float[Array, " N"], of: Tails):
        self.groups, self.taken = of.groups, of.taken
        v, norms = jnp.asarray(of.variance, o.dtype), self.groups.sum(o**2)
        known, flat = norms > 0, jnp.isinf(v)
        norms = jnp.where(known, norms, 1.0)
        self.unit = o * self.groups.spread(1 / jnp.sqrt(norms))
        self.share, self.flat = norms / (1 / v + norms), known & flat
        logs = jnp.where(flat, jnp.log(norms), jnp.log1p(jnp.where(flat, 0.0, v) * norms))
        self.logs = jnp.where(known, logs, 0.0)

    def remove(self, X: Float[Array, "N k"]) -> Float[Array, "N k"]:
        left = jnp.sqrt(jnp.where(self.share < 1, 1 - self.share, 1.0))
        along, unit = jnp.where(self.share < 1, 1 - left, 1.0)[:, None], self.unit[:, None]
        return X - unit * self.groups.spread(along * self.groups.sum(unit * X))

    def diagonal(self) -> Float[Array, " N"]:
        return 1 - self.groups.spread(self.share) * self.unit**2

    def log_determinant(self) -> Float[Array, ""]:
        return jnp.sum(self.logs)

    def observations(self) -> Int[Array, ""]:
        """The number of observations, less one for each flat unknown."""
        return jnp.sum(self.taken) - jnp.sum(self.flat)


class Span:
    """Flat unknowns seen through a full covariance; columns that are zero have no unknown."""

    def __init__(self, O: Float[Array, "N E"], taken: Bool[Array, " N"]):
        self.taken = taken
        self.known = jnp.any(O != 0, 0)
        self.L = cholesky(O.T @ O + jnp.diag(jnp.where(self.known, 0.0, 1.0)))
        self.Q = solve_triangular(self.L, O.T, lower=True).T

    def remove(self, X: Float[Array, "N k"]) -> Float[Array, "N k"]:
        return X - self.Q @ (self.Q.T @ X)

    def log_determinant(self) -> Float[Array, ""]:
        return 2 * jnp.sum(jnp.log(diagonal(self.L)))

    def observations(self) -> Int[Array, ""]:
        return jnp.sum(self.taken) - jnp.sum(self.known)


class Conditioned(NamedTuple):
    """The posterior of k functionals, for q sets of observations."""

    gain: Float[Array, "k M"]
    """B C: the mean is gain @ y."""
    alpha: Float[Array, "M q"]
    """C y."""
    diagonal: Float[Array, " M"] | Float[Array, "M n"]
    """The diagonal of C: one over the predictive variance of each sample given the others."""
    freedom: Float[Array, ""]
    """tr(Sigma C): the degrees of freedom left for the noise, M minus the effective number of
    parameters."""
    covariance: Float[Array, "k k"] | Float[Array, " n"] | None
    root: Float[Array, "r k"] | None
    """Z with B C B' = Z'Z, where the covariance was not asked for."""
    log_evidence: Float[Array, " q"]
    """log N(y; 0, K + Sigma + baseline 1 1'), restricted where the baseline is flat."""
    condition: Float[Array, ""]
    """The largest factor by which rounding errors may be amplified: max_i A_ii (A^-1)_ii for the
    matrix A that was factorised. Unlike the condition number of A it does not depend on units."""
    whitener: Float[Array, "M M"] | None = None
    """R with C = R'R, in the dual form."""

    def leave_one_out(self) -> Float[Array, "M kq"]:
        """Row i: the mean minus the mean without sample i, (B C)_i (C y)_i / C_ii; exact.

        For k functionals of one set of observations or one functional of q sets.
        """
        C_ii = self.diagonal if self.diagonal.ndim == 2 else self.diagonal[:, None]
        known = C_ii > 0
        return self.gain.T * jnp.where(known, self.alpha / jnp.where(known, C_ii, 1.0), 0.0)


def dual(
    K: Float[Array, "M M"],
    B: Float[Array, "k M"],
    B0: Float[Array, "k k"] | None,
    y: Float[Array, "M q"],
    noise: float | Float[Array, ""] | Float[Array, " M"] | Float[Array, "M M"],
    baseline: float | Float[Array, ""] | Tails = 0.0,
) -> Conditioned:
    """Cost M^3. With `B0` None the covariance is left as the root of what the samples explain."""
    M = K.shape[0]
    noise = jnp.asarray(noise, K.dtype)
    full = noise.ndim == 2
    A = K + (noise if full else noise * jnp.eye(M, dtype=K.dtype))
    L = cholesky(A)
    R = solve_triangular(L, jnp.eye(M, dtype=K.dtype), lower=True)
    condition = jnp.max(diagonal(A) * jnp.sum(R**2, 0))
    unknown = constant(baseline, diagonal(A)).through(R)
    R = unknown.remove(R)  # C = R'R
    Z = R @ B.T
    r = R @ y
    pivots = diagonal(L)
    log_det = 2 * jnp.sum(jnp.log(pivots)) + unknown.log_determinant()
    return Conditioned(
        gain=Z.T @ R,
        alpha=R.T @ r,
        diagonal=jnp.sum(R**2, 0),
        freedom=jnp.sum((R @ noise if full else R * noise) * R),
        covariance=None if B0 is None else B0 - Z.T @ Z,
        root=Z if B0 is None else None,
        log_evidence=-0.5 * (jnp.sum(r**2, 0) + log_det + unknown.observations() * LOG_2PI),
        condition=condition,
        whitener=R,
    )


def by_component(
    K: Float[Array, "M M"],
    b: Float[Array, " M"],
    b0: Float[Array, ""],
    Y: Float[Array, "M n"],
    noise: Float[Array, " n"],
    scale: Float[Array, " n"],
) -> Conditioned:
    """One functional of n independent processes, column j of Y a sample of the process with kernel
    scale_j K and noise_j, by one spectrum of K: cost n M^2.

    Rows of `gain` and entries of `covariance`, `freedom` and `condition` belong to the components,
    and so do columns of `alpha` and `diagonal`.
    """
    eigenvalues, E = jnp.linalg.eigh(K)
    variances = scale[:, None] * jnp.maximum(eigenvalues, 0.0) + noise[:, None]
    inverse = 1 / variances
    along, Z = E.T @ b, E.T @ Y
    diagonal = inverse @ (E**2).T
    log_evidence = -0.5 * (
        jnp.sum(Z.T**2 * inverse, 1) + jnp.sum(jnp.log(variances), 1) + K.shape[0] * LOG_2PI
    )
    return Conditioned(
        gain=(scale[:, None] * along * inverse) @ E.T,
        alpha=E @ (Z * inverse.T),
        diagonal=diagonal.T,
        freedom=jnp.sum(noise[:, None] * inverse, 1),
        covariance=scale * b0 - jnp.sum((scale[:, None] * along) ** 2 * inverse, 1),
        root=None,
        log_evidence=log_evidence,
        condition=jnp.max((variances @ (E**2).T) * diagonal, 1),
    )


class Regression(NamedTuple):
    """Weights e ~ N(0, I) given samples z = X e + noise, in units of the noise and with the
    unknowns removed."""

    X: Float[Array, "M p"]
    z: Float[Array, "M q"]
    weights: Float[Array, "p q"]
    """Posterior mean of e."""
    residuals: Float[Array, "M q"]
    factor: Float[Array, "p p"]
    """L with L L' = P = I + X'X, the posterior precision of e."""
    log_evidence: Float[Array, " q"]
    condition: Float[Array, ""]
    w: Float[Array, " M"]
    """One over the standard deviation of the noise."""
    unknown: Segments

    def covariance_root(self, V: Float[Array, "k p"]) -> Float[Array, "p k"]:
        """Z with V P^-1 V' = Z'Z."""
        return solve_triangular(self.factor, V.T, lower=True)

    def explained_root(self, V: Float[Array, "k p"]) -> Float[Array, "p k"]:
        """Z with V (I - P^-1) V' = Z'Z."""
        eigenvalues, Q = jnp.linalg.eigh(self.factor @ self.factor.T)
        return jnp.sqrt(jnp.maximum(1 - 1 / eigenvalues, 0.0))[:, None] * (Q.T @ V.T)


def regress(
    Psi: Float[Array, "M p"],
    y: Float[Array, "M q"],
    noise: float | Float[Array, ""] | Float[Array, " M"],
    baseline: float | Float[Array, ""] | Tails = 0.0,
) -> Regression:
    """y = Psi e + unknowns + noise; cost M p^2."""
    M, p = Psi.shape
    noise = jnp.broadcast_to(jnp.asarray(noise, Psi.dtype), (M,))
    w = 1 / jnp.sqrt(noise)
    unknown = constant(baseline, w).weighted(w)
    X = unknown.remove(w[:, None] * Psi)
    z = unknown.remove(w[:, None] * y)
    I = jnp.eye(p, dtype=Psi.dtype)
    P = I + X.T @ X
    L = cholesky(P)
    e = cho_solve((L, True), X.T @ z)
    r = z - X @ e
    pivots = diagonal(L)
    logs = jnp.where(unknown.taken, jnp.log(noise), 0.0)
    log_det = jnp.sum(logs) + 2 * jnp.sum(jnp.log(pivots)) + unknown.log_determinant()
    fit = jnp.sum(r**2, 0) + jnp.sum(e**2, 0)
    evidence = -0.5 * (fit + log_det + unknown.observations() * LOG_2PI)
    d, spread = diagonal(P), jnp.sum(solve_triangular(L, I, lower=True) ** 2, 0)
    spread = jnp.where(d > 1, spread, 0.0)
    # A direction that only the prior determines is lost in the rounding of the largest feature.
    units = jnp.where(jnp.max(spread) > 0.5, jnp.max(d), d)
    condition = jnp.maximum(jnp.max(units * spread), 1.0)
    return Regression(X, z, e, r, L, evidence, condition, w, unknown)


def weight_space(
    Psi: Float[Array, "M p"],
    V: Float[Array, "k p"],
    remainder: float | Float[Array, "k k"] | None,
    y: Float[Array, "M q"],
    noise: float | Float[Array, ""] | Float[Array, " M"],
    baseline: float | Float[Array, ""] | Tails = 0.0,
) -> Conditioned:
    """Cost M p^2. `remainder` is B_0 - V V', the prior covariance that the features do not carry.

    With `remainder` None the covariance is left as the root of what the samples explain.
    """
    at = regress(Psi, y, noise, baseline)
    w, unknown = at.w, at.unknown
    E = solve_triangular(at.factor, at.X.T, lower=True)
    VL = at.covariance_root(V)
    EQ = unknown.remove(E.T)
    kept = unknown.diagonal() - jnp.sum(EQ**2, 1)  # one minus the leverages
    return Conditioned(
        gain=(VL.T @ EQ.T) * w,
        alpha=unknown.remove(at.residuals) * w[:, None],
        diagonal=kept * w**2,
        freedom=jnp.sum(kept),
        covariance=None if remainder is None else remainder + VL.T @ VL,
        root=at.explained_root(V) if remainder is None else None,
        log_evidence=at.log_evidence,
        condition=at.condition,
    )
