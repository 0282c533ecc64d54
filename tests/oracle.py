"""The paper's formulas as printed, in naive NumPy: explicit inverses, no structure used.

Rows of U are samples, so the paper's U is U.T here. A noise variance becomes Sigma by `covariance`;
an infinite baseline is the limit of K + v 1 1'.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.linalg import inv
from scipy.stats import multivariate_normal

Array = np.ndarray


class Problem(NamedTuple):
    scores: Array
    returns: Array
    fisher: Array


class Moments(NamedTuple):
    mean: Array
    covariance: Array
    log_evidence: float


def problem(M: int, n: int, seed: int = 0) -> Problem:
    """Scores of covariance `fisher`, and returns with a mean, a slope along them and noise."""
    rng = np.random.default_rng(seed)
    root = np.tril(0.4 * rng.normal(size=(n, n)), -1) + np.diag(rng.uniform(0.5, 2, n))
    U = rng.normal(size=(M, n)) @ root.T
    R = 3 + U @ rng.normal(size=n) + 0.5 * rng.normal(size=M)
    return Problem(U, R, root @ root.T)


def covariance(noise: Any, M: int) -> Array:
    noise = np.asarray(noise, float)
    return noise if noise.ndim == 2 else np.diag(np.broadcast_to(noise, M))


def inverse(S: Array, baseline: float = 0.0) -> Array:
    """C = (S + v 1 1')^-1."""
    one = np.ones(len(S))
    if np.isinf(baseline):
        return inv(S) - np.outer(inv(S) @ one, inv(S) @ one) / (one @ inv(S) @ one)
    return inv(S + baseline * np.outer(one, one))


def log_evidence(y: Array, S: Array, baseline: float = 0.0) -> float:
    """log N(y; 0, S + v 1 1'); for a flat constant that of the contrasts, less log(M) / 2."""
    M = len(y)
    if np.isinf(baseline):
        contrasts = np.linalg.svd(np.ones((1, M)))[2][1:]
        return (
            multivariate_normal.logpdf(contrasts @ y, cov=contrasts @ S @ contrasts.T)
            - np.log(M) / 2
        )
    return multivariate_normal.logpdf(y, cov=S + baseline)


def condition(K: Array, B: Array, B0: Array, y: Array, Sigma: Array, baseline=0.0) -> Moments:
    """Eqs. 14 to 16: mean B C y, covariance B_0 - B C B'."""
    C = inverse(K + Sigma, baseline)
    return Moments(B @ C @ y, B0 - B @ C @ B.T, log_evidence(y, K + Sigma, baseline))


def fisher_kernel(U: Array, G: Array) -> Array:
    """Eq. 27."""
    return U @ inv(G) @ U.T


def quadratic_kernel(U: Array, G: Array) -> Array:
    """Eq. 23."""
    return (1 + U @ inv(G) @ U.T) ** 2


def model1(U: Array, R: Array, G: Array, noise: Any = 1e-3, scale: Any = 1.0) -> Moments:
    """Eqs. 21 to 23 and Proposition 3, one component after the other."""
    M, n = U.shape
    noise, scale = np.asarray(noise, float), np.broadcast_to(scale, n)
    b = 1 + np.array([u @ inv(G) @ u for u in U])
    parts = [
        condition(
            scale[j] * quadratic_kernel(U, G),
            scale[j] * b[None],
            scale[j] * np.array([[1.0 + n]]),
            R * U[:, j],
            covariance(noise[:, j] if noise.ndim == 2 else noise, M),
        )
        for j in range(n)
    ]
    return Moments(
        np.array([part.mean[0] for part in parts]),
        np.diag([part.covariance[0, 0] for part in parts]),
        sum(part.log_evidence for part in parts),
    )


def model2(
    U: Array, R: Array, G: Array, noise: Any = 1e-3, baseline: float = 0.0, scale: float = 1.0
) -> Moments:
    """Eqs. 25 to 27 and Proposition 4, plus a constant of prior variance `baseline`."""
    K, Sigma = scale * fisher_kernel(U, G), covariance(noise, len(U))
    return condition(K, scale * U.T, scale * G, R, Sigma, baseline)


def dictionary(K: Array, threshold: float, capacity: int | None = None) -> tuple[list[int], Array]:
    """Members, and A of Proposition 5."""
    M = len(K)
    members: list[int] = []
    rows = []
    for i in range(M):
        k = K[i, members]
        a = inv(K[np.ix_(members, members)]) @ k
        if K[i, i] - k @ a > threshold and len(members) < (capacity or M):
            members.append(i)
            a = np.eye(len(members))[-1]
        rows.append(np.pad(a, (0, M - len(a))))
    return members, np.array(rows)[:, : len(members)]


def sparse_model1(U: Array, R: Array, G: Array, threshold: float, noise: Any = 1e-3) -> Moments:
    """Proposition 5."""
    (M, n), K = U.shape, quadratic_kernel(U, G)
    members, A = dictionary(K, threshold)
    K_, b_ = K[np.ix_(members, members)], np.array([1 + U[i] @ inv(G) @ U[i] for i in members])
    S, I = inv(covariance(noise, M)), np.eye(len(members))
    Y = (R[:, None] * U).T
    mean = Y @ S @ A @ inv(K_ @ A.T @ S @ A + I) @ b_
    variance = (1 + n) - b_ @ A.T @ S @ A @ inv(K_ @ A.T @ S @ A + I) @ b_
    approximate = A @ K_ @ A.T + covariance(noise, M)
    return Moments(mean, variance * np.eye(n), sum(log_evidence(y, approximate) for y in Y))


def sparse_model2(U: Array, R: Array, G: Array, threshold: float, noise: Any = 1e-3) -> Moments:
    """Proposition 5."""
    M, K = len(U), fisher_kernel(U, G)
    members, A = dictionary(K, threshold)
    K_, B_ = K[np.ix_(members, members)], U[members].T
    S, I = inv(covariance(noise, M)), np.eye(len(members))
    mean = B_ @ inv(A.T @ S @ A @ K_ + I) @ A.T @ S @ R
    cov = G - B_ @ inv(A.T @ S @ A @ K_ + I) @ A.T @ S @ A @ B_.T
    return Moments(mean, cov, log_evidence(R, A @ K_ @ A.T + covariance(noise, M)))


def vector_integral(
    K: Array, y: Array, b: Array, b0: Array, Sigma: Array, prior_mean: Array, prior_integral: Array
) -> Moments:
    """Eq. 17 integrated as Proposition 1 says, sum over blocks m, m' written out.

    K and Sigma are (n, n, M, M), y and `prior_mean` (M, n), b (n, n, M).
    """
    M, n = y.shape
    C = inv(np.block([[K[j, l] + Sigma[j, l] for l in range(n)] for j in range(n)]))
    blocks = [[C[j * M : (j + 1) * M, l * M : (l + 1) * M] for l in range(n)] for j in range(n)]
    away = y - prior_mean
    mean, cov = prior_integral.astype(float), b0.astype(float)
    for j in range(n):
        for m in range(n):
            for p in range(n):
                mean[j] += b[j, m] @ blocks[m][p] @ away[:, p]
                for l in range(n):
                    cov[j, l] -= b[j, m] @ blocks[m][p] @ b[p, l]
    return Moments(mean, cov, log_evidence(away.T.reshape(-1), inv(C)))


def without(i: int, *arrays: Any) -> list[Any]:
    """Leave sample i out of each array; square matrices lose row and column, numbers stay."""

    def drop(array: Any) -> Any:
        if np.ndim(array) == 0:
            return array
        kept = np.delete(array, i, 0)
        return np.delete(kept, i, 1) if np.shape(array) == (len(array),) * 2 else kept

    return [drop(array) for array in arrays]


def standard_errors(samples: Array, mean: Array, covariance: Array) -> float:
    """Largest distance of the sample mean and covariance from those of N(mean, covariance).

    In standard errors: sqrt(S_ii / k) for a mean, sqrt((S_ii S_jj + S_ij^2) / k) for a covariance.
    """
    k, variances = len(samples), np.diag(covariance)
    away = samples - mean
    mean_error = np.sqrt(variances / k)
    covariance_error = np.sqrt((np.outer(variances, variances) + covariance**2) / k)
    return max(
        np.max(np.abs(away.mean(0)) / mean_error),
        np.max(np.abs(away.T @ away / k - covariance) / covariance_error),
    )


def assert_equal_trees(found, expected, rtol=1e-7):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-9)


def temporal_differences(last: Array, terminated: Array, discount: float) -> tuple[Array, Array]:
    """H of Eq. 31, its last column removed where an episode terminates, and the steps whose rewards
    it uses."""
    N = len(last)
    rows, used = [], []
    for i in range(N):
        row = np.eye(N)[i]
        if not last[i] and i + 1 < N:
            row[i + 1] = -discount
        elif not terminated[i]:
            continue
        rows.append(row)
        used.append(i)
    return np.array(rows).reshape(-1, N), np.array(used, int)


def gptd(K: Array, k: Array, k0: Array, rewards: Array, ends: Any, noise: float) -> Moments:
    """Eqs. 33 and 34, at points with kernel k (N, J) to the steps and k0 (J, J) among themselves.

    `ends` holds last, terminated and the discount.
    """
    H, used = temporal_differences(*ends)
    S = H @ K @ H.T + noise * H @ H.T
    alpha, C = H.T @ inv(S) @ rewards[used], H.T @ inv(S) @ H
    evidence = multivariate_normal.logpdf(rewards[used], cov=S) if len(used) else 0.0
    return Moments(k.T @ alpha, k0 - k.T @ C @ k, evidence)


def sparse_gptd(
    K: Array, k: Array, k0: Array, rewards: Array, ends: Any, noise: float, *dictionary_: Any
) -> Moments:
    """Eq. 43: H~ = H A and the kernel of the dictionary."""
    members, A = dictionary(K, *dictionary_)
    H, used = temporal_differences(*ends)
    H_, K_, k_ = H @ A, K[np.ix_(members, members)], k[members]
    S = H_ @ K_ @ H_.T + noise * H @ H.T
    alpha, C = H_.T @ inv(S) @ rewards[used], H_.T @ inv(S) @ H_
    evidence = multivariate_normal.logpdf(rewards[used], cov=S) if len(used) else 0.0
    return Moments(k_.T @ alpha, k0 - k_.T @ C @ k_, evidence)


def actor_critic(
    Kx: Array, U: Array, G: Array, rewards: Array, ends: Any, noise: float, scale: float
) -> Moments:
    """Proposition 6: Eqs. 33 to 37 and 41 with k = k_x + c k_F, so B = c U and B_0 = c G."""
    K = Kx + scale * fisher_kernel(U, G)
    return gptd(K, scale * U, scale * G, rewards, ends, noise)


def sparse_actor_critic(
    Kx: Array, U: Array, G: Array, rewards: Array, ends: Any, noise: float, scale: float, *rule: Any
) -> Moments:
    """Proposition 7; `rule` is the threshold and capacity of the dictionary."""
    K = Kx + scale * fisher_kernel(U, G)
    return sparse_gptd(K, scale * U, scale * G, rewards, ends, noise, *rule)


def traced_actor_critic(
    Kx: Array, U: Array, G: Array, rewards: Array, ends: Any, noise: float, scale: float, lambda_
) -> Moments:
    """r = H_gamma V + H_b (U w + eps) with b = gamma lambda: the noise of a reward is
    eps_t - b eps_{t+1}."""
    last, terminated, discount = ends
    H, used = temporal_differences(last, terminated, discount)
    Hb, _ = temporal_differences(last, terminated, discount * lambda_)
    K = H @ Kx @ H.T + scale * Hb @ fisher_kernel(U, G) @ Hb.T
    return condition(K, scale * (Hb @ U).T, scale * G, rewards[used], noise * Hb @ Hb.T)


def episodes(last: Array) -> Array:
    """Which episode each step belongs to."""
    return np.concatenate([[0], np.cumsum(last[:-1])])
