"""Algorithm 1 path by path: the posterior of the gradient after each path, as printed.

Line 8 lets K grow by one row and column (Eq. 28). Its Cholesky factor grows with it, by one row,
and so do L^-1 y and L^-1 B', whose products are the posterior moments. A path costs M^2, and the
moments after M paths are those of `model1` and `model2`, so that paths can be drawn until the
gradient is known well enough.
"""

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64
from bayespg._support.types import Array
from bayespg.fisher import Fisher

FIRST = 16
"""Paths for which there is room at first; it doubles when it is full."""


class Online:
    """BPG_Eval (Algorithm 1) for a fixed G, one path at a time.

        >>> gradient = quadrature.Online(G, model=2, noise=0.1)
        >>> while gradient.standard_deviation.max() > 0.05:
        ...     gradient.observe(*next_path())

    `model` is 1 or 2, `noise` the variance of the measurements and `scale` that of the kernel.
    """

    def __init__(
        self,
        fisher: Fisher | Float[Array, "n n"],
        *,
        model: int = 2,
        noise: float = 1e-3,
        scale: float = 1.0,
    ):
        if model not in (1, 2):
            raise ValueError(f"model: expected 1 or 2, found {model!r}")
        n = fisher.size if isinstance(fisher, Fisher) else np.shape(fisher)[-1]
        self._G = fishers.as_fisher(to_float64(fishers.checked(fisher, np.zeros((1, n)))))
        self._model, self._n = model, n
        self._noise = float(checks.positive("noise", noise, ()))
        self._scale = float(checks.positive("scale", scale, ()))
        prior = in_float64(_quadratic_prior if model == 1 else _linear_prior)
        self._prior = self._scale * prior(self._G)
        self.paths = 0
        self._L = np.zeros((FIRST, FIRST))
        self._U = np.zeros((FIRST, n))
        self._Y = np.zeros((FIRST, n if model == 1 else 1))
        self._B = np.zeros((FIRST, self._prior.shape[0]))

    def observe(self, score: Float[Array, " n"], path_return: float) -> None:
        """Lines 4 to 10: a path with score u(xi) and return R(xi)."""
        u = np.asarray(checks.vector("score", score, self._n, "one entry per parameter"), float)
        R = checks.real("path_return", path_return)
        w = in_float64(_solve)(self._G, u)
        m = self.paths
        if m == len(self._L):
            self._grow()
        inner, own = self._U[:m] @ w, u @ w
        if self._model == 1:  # Eq. 23, R u and 1 + u' G^-1 u
            k, kk, y, b = (1 + inner) ** 2, (1 + own) ** 2, R * u, np.array([1 + own])
        else:  # Eq. 27, R and u
            k, kk, y, b = inner, own, np.array([R]), u
        row = solve_triangular(self._L[:m, :m], self._scale * k, lower=True) if m else np.zeros(0)
        left = np.sqrt(self._scale * kk + self._noise - row @ row)
        self._L[m, :m], self._L[m, m] = row, left
        self._Y[m] = (y - row @ self._Y[:m]) / left
        self._B[m] = (self._scale * b - row @ self._B[:m]) / left
        self._U[m] = u
        self.paths += 1

    def _grow(self) -> None:
        m = len(self._L)
        self._L = np.pad(self._L, ((0, m), (0, m)))
        self._U, self._Y, self._B = (
            np.pad(rows, ((0, m), (0, 0))) for rows in (self._U, self._Y, self._B)
        )

    @property
    def mean(self) -> Float[np.ndarray, " n"]:
        """Line 14: Y C b for Model 1, B C y for Model 2."""
        return (self._B.T @ self._Y).reshape(self._n)

    @property
    def covariance(self) -> Float[np.ndarray, "n n"]:
        """Line 14: (b_0 - b' C b) I for Model 1, B_0 - B C B' for Model 2."""
        left = self._prior - self._B.T @ self._B
        return left[0, 0] * np.eye(self._n) if self._model == 1 else left

    @property
    def standard_deviation(self) -> Float[np.ndarray, " n"]:
        return np.sqrt(np.maximum(np.diagonal(self.covariance), 0.0))


def _quadratic_prior(G: Fisher) -> Float[Array, "1 1"]:
    return kernels.Quadratic(G).prior()


def _linear_prior(G: Fisher) -> Float[Array, "n n"]:
    return kernels.Linear(G).prior()


def _solve(G: Fisher, u: Float[Array, " n"]) -> Float[Array, " n"]:
    return G.solve(u)
