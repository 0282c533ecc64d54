"""Algorithm 1 path by path: the posterior of the gradient after each path, as printed.

Line 8 lets K grow by one row and column (Eq. 28). With A = K + Sigma = L L', R = L^-1 grows by one
row, and so do R y and R B', whose products are the posterior moments. A path costs M^2, and the
moments after M paths are those of `model1` and `model2`, so that paths can be drawn until the
gradient is known well enough. What those refuse is refused here too.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64
from bayespg._support.types import Array
from bayespg.fisher import Fisher
from bayespg.kernels import FisherKernel
from bayespg.quadrature.models import regular


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
        self._model = checks.whole("model", model, 1, 2)
        G, self._range = fishers.checked_matrix(fisher)
        G = fishers.as_fisher(to_float64(G))
        self._kernel = kernels.Quadratic(G) if self._model == 1 else kernels.Linear(G)
        self._noise = float(checks.positive("noise", noise, ()))
        self._scale = float(checks.positive("scale", scale, ()))
        prior = in_float64(_prior)(self._kernel)
        self._prior = checks.sound("fisher, scale", self._scale * prior)
        self._n = n = G.size
        self._U, self._R, self._A = np.zeros((0, n)), np.zeros((0, 0)), np.zeros(0)
        self._Y = np.zeros((0, n if self._model == 1 else 1))
        self._B = np.zeros((0, len(self._prior)))

    @property
    def paths(self) -> int:
        """The number of paths so far."""
        return len(self._A)

    def observe(self, score: Float[Array, " n"], path_return: float) -> None:
        """Lines 4 to 10: a path with score u(xi) and return R(xi). Either it is taken or, with a
        ValueError, nothing changes."""
        u = checks.vector("score", score, self._n, "one entry per parameter")
        R = float(checks.shaped("path_return", path_return, ((),)))
        if self._range is not None:
            self._range.check("score", u[None])
        with np.errstate(over="ignore", invalid="ignore"):
            below, *new = self._row(u, R)
        self._R = np.vstack([np.pad(self._R, ((0, 0), (0, 1))), below])
        self._U, self._A, self._Y, self._B = (
            np.concatenate([rows, [row]])
            for rows, row in zip((self._U, self._A, self._Y, self._B), (u, *new), strict=True)
        )

    def _row(self, u: Float[np.ndarray, " n"], R: float) -> tuple[Any, ...]:
        """The rows of R, A (its diagonal), R y and R B' of a new path, or a ValueError."""
        w, b = in_float64(_solved)(self._kernel, u)
        inner, own = self._U @ w, u @ w
        if self._model == 1:  # Eq. 23, R u and 1 + u' G^-1 u
            k, kk, y = (1 + inner) ** 2, (1 + own) ** 2, R * u
        else:  # Eq. 27, R and u
            k, kk, y = inner, own, np.array([R])
        row, variance = self._R @ (self._scale * k), self._scale * kk + self._noise
        left = np.sqrt(np.maximum(variance - row @ row, np.finfo(float).tiny))
        below = np.append(-row @ self._R, 1.0) / left
        squares = np.append(np.sum(self._R**2, 0), 0.0) + below**2
        new = (
            below, variance, (y - row @ self._Y) / left, (self._scale * b - row @ self._B) / left,
        )  # fmt: skip
        checks.sound("score, path_return", new)
        # max_i A_ii (A^-1)_ii, as in `model2`
        regular(np.max(np.append(self._A, variance) * squares))
        return new

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


def _prior(kernel: FisherKernel) -> Float[Array, "k k"]:
    return kernel.prior()


def _solved(
    kernel: FisherKernel, u: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " k"]]:
    """G^-1 u, and the column of B."""
    return kernel.fisher.solve(u), kernel.cross(u[None])[:, 0]
