"""The rival: Bayesian policy gradient with Model 1 on LQR in plain NumPy, as one would write it.

Vectorised over runs and paths, float64, scores and Fisher matrix derived by hand, and the paper's
M x M system solved for all runs by one batched `np.linalg.solve` an update. NumPy uses one core for
all of this.
"""

import time

import numpy as np

NOISE, RATE, HALVING = 1e-3, np.array([0.10, 0.30]), 20.0
HORIZON = 20


def policy(kappa: np.ndarray) -> tuple[np.ndarray, ...]:
    """lambda, sigma and their derivatives, each (runs,)."""
    p, q = 1 / (1 + np.exp(kappa[:, 0])), 1 / (1 + np.exp(kappa[:, 1]))
    return -1.999 + 1.998 * p, 0.001 + q, -1.998 * p * (1 - p), -q * (1 - q)


def moments(gain: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sum_t E[x_t^2] and the expected return, each (runs,)."""
    s, total = 0.3**2 + 0.001, np.zeros_like(gain)
    for _ in range(HORIZON):
        total = total + s
        s = (1 + gain) ** 2 * s + scale**2 + 0.01
    return total, -(1 + 0.1 * gain**2) * total - 0.1 * HORIZON * scale**2


def rollout(rng: np.random.Generator, gain: np.ndarray, scale: np.ndarray, paths: int):
    """Returns, and the sums of eps x and eps^2 - 1 that make the scores, each (runs, M)."""
    shape = (len(gain), paths)
    x = 0.3 + 0.001**0.5 * rng.standard_normal(shape)
    gain, scale = gain[:, None], scale[:, None]
    R, ex, ee = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for _ in range(HORIZON):
        eps = rng.standard_normal(shape)
        a = gain * x + scale * eps
        R -= x * x + 0.1 * a * a
        ex += eps * x
        ee += eps * eps - 1
        x = x + a + 0.1 * rng.standard_normal(shape)
    return R, ex, ee


def posterior_mean(U: np.ndarray, G: np.ndarray, R: np.ndarray) -> np.ndarray:
    """Y C b of every run; U is (runs, M, 2), G the diagonal of the Fisher matrix, (runs, 2)."""
    K = 1 + (U / G[:, None]) @ U.transpose(0, 2, 1)
    diagonal = np.einsum("rmm->rm", K)
    b = diagonal.copy()
    K *= K
    diagonal += NOISE  # a view: K is now (1 + u'G^-1 u)^2 + Sigma
    Cb = np.linalg.solve(K, b[..., None])[..., 0]
    return np.einsum("rmi,rm->ri", U, R * Cb)


def learn(
    rng: np.random.Generator, runs: int, updates: int, paths: int, clock: dict[str, float]
) -> np.ndarray:
    """Expected cost at the end of each run; seconds of paths and algebra are added to `clock`."""
    kappa = rng.standard_normal((runs, 2))
    for j in range(updates):
        begun = time.perf_counter()
        gain, scale, d_gain, d_scale = policy(kappa)
        R, ex, ee = rollout(rng, gain, scale, paths)
        between = time.perf_counter()
        visited, _ = moments(gain, scale)
        a, c = d_gain / scale, d_scale / scale
        U = np.stack([ex * a[:, None], ee * c[:, None]], -1)
        G = np.stack([visited * a**2, 2 * HORIZON * c**2], -1)
        kappa = kappa + RATE * HALVING / (HALVING + j) * posterior_mean(U, G, R)
        clock["paths"] = clock.get("paths", 0) + between - begun
        clock["posterior"] = clock.get("posterior", 0) + time.perf_counter() - between
    return -moments(*policy(kappa)[:2])[1]
