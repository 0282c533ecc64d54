"""Bayesian quadrature on its own: an expectation under a Gaussian from a few evaluations.

E[f(x)] for x ~ N(0, 1) and f(x) = exp(sin 2x), against Gauss-Hermite quadrature and Monte Carlo.
"""

import numpy as np

from bayespg import quadrature


def f(x):
    return np.exp(np.sin(2 * x[:, 0]))


nodes, weights = np.polynomial.hermite_e.hermegauss(200)
exact = weights @ f(nodes[:, None]) / weights.sum()

print(f"exact {exact:.6f}\n")
print(" M  Bayes-Hermite  posterior sd     error  Monte Carlo error (rms)")
rng = np.random.default_rng(0)
for M in (5, 9, 15, 25):
    points = np.linspace(-3.5, 3.5, M)[:, None]
    rho = quadrature.bayes_hermite(
        f, points, mean=[0.0], covariance=[[1.0]], length_scale=0.7, noise=1e-10
    )
    sd = np.sqrt(max(rho.covariance, 0.0))
    draws = f(rng.normal(size=(2000 * M, 1))).reshape(2000, M).mean(1)
    rms = np.sqrt(np.mean((draws - exact) ** 2))
    print(f"{M:2d} {rho.mean:14.6f} {sd:13.1e} {rho.mean - exact:+9.1e} {rms:24.1e}")
