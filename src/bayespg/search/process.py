"""The Gaussian process on returns from which the search decides.

Returns may span decades: an unstable controller can cost 10^9 times as much as a stable one. The
process models the returns themselves or -log(c + distance from the highest), whichever has the
greater evidence, so that one very bad episode does not hide the differences between all others.

The kernel is a exp(-|x - x'|^2 / (2 l^2)), with noise of variance v and a constant with a flat
prior. The length and the ratio a / v lie on a grid and are found by steps to better neighbours,
from those of the fit before: a few Cholesky decompositions, where a search of the whole grid takes
hundreds. With few episodes the evidence says little, so the length has a prior (`LENGTH`,
`SPREAD`).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import get_lapack_funcs

from bayespg.evidence import FLOOR, SIGNAL

Array = np.ndarray
_TRTRS, _POTRI = get_lapack_funcs(("trtrs", "potri"), dtype=np.float64)
LENGTHS = np.geomspace(0.5, 16.0, 9)
"""The lengths that are compared, in the unit that `fit` is given."""
RATIOS = np.geomspace(1e-4, 1e6, 21)
"""The ratios of amplitude to noise that are compared."""
LENGTH, SPREAD = 0.8, 0.6
"""The median of the length in the same unit, and the standard deviation of its logarithm."""
MOVES = 10
"""The largest number of steps over the grid."""
STARTS = tuple((l, r) for l in (1, 4, 7) for r in (9, 13))
"""Where on the grid the first fit begins: the best of these."""


def views(y: Float[Array, " M"]) -> tuple[Float[Array, "2 M"], Float[Array, "2"]]:
    """The returns and their logarithms as above, centred and in units of their spread, each with
    the logarithm of its Jacobian (for the M - 1 differences that remain after a flat constant). The
    returns must not all be equal."""
    digits = np.frexp(np.abs(y).max())[1] + 1
    y = np.ldexp(y, -digits)  # so that differences do not overflow
    below = y.max() - y
    c = np.quantile(below[below > 0], 0.25)
    both = np.stack([-below, -np.log1p(below / c)])
    both -= both.mean(1, keepdims=True)
    spread = both.std(1)
    jacobian = np.array([0.0, -np.log(c + below).mean()]) - np.log(spread) - digits * np.log(2)
    return both / spread[:, None], (y.size - 1) * jacobian


def squared_distances(X: Float[Array, "M n"], Z: Float[Array, "K n"]) -> Float[Array, "M K"]:
    away = np.sum(X**2, 1)[:, None] + np.sum(Z**2, 1) - 2 * X @ Z.T
    return np.maximum(away, 0.0)


class Place(NamedTuple):
    """A model on the grid: the numbers of its length and ratio."""

    length: int
    ratio: int


class Process(NamedTuple):
    """A Gaussian process that was conditioned on a view of returns."""

    place: Place
    X: Float[Array, "M n"]
    """Parameters, less `centre` and in units of the length."""
    centre: Float[Array, " n"]
    length: float
    amplitude: float
    noise: float
    """The variance of the noise; amplitude and noise are in units of the view's spread."""
    inverse: Float[Array, "M M"]
    """Of the kernel matrix plus noise, K."""
    sums: Float[Array, " M"]
    """K^-1 1, for the constant."""
    constant: float
    weights: Float[Array, " M"]
    """What kernels are multiplied by for the mean."""

    def kernel(self, Z: Float[Array, "K n"]) -> Float[Array, "K M"]:
        return self.amplitude * np.exp(
            -0.5 * squared_distances((Z - self.centre) / self.length, self.X)
        )

    def mean(self, Z: Float[Array, "K n"]) -> Float[Array, " K"]:
        """The expected view of the return at each row."""
        return self.constant + self.kernel(Z) @ self.weights

    def predict(self, Z: Float[Array, "K n"]) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
        """Means and standard deviations at the rows of Z, without noise."""
        k = self.kernel(Z)
        deviation, _ = self._deviation(k)
        return self.constant + k @ self.weights, deviation

    def _deviation(self, k: Float[Array, "K M"]) -> tuple[Float[Array, " K"], Float[Array, "K M"]]:
        """Standard deviations where the kernel is k, and how much a greater kernel lowers them."""
        left, total = 1 - k @ self.sums, np.sum(self.sums)
        solved = k @ self.inverse
        variance = self.amplitude - np.sum(solved * k, 1) + left**2 / total
        deviation = np.sqrt(np.maximum(variance, 1e-12 * self.amplitude))
        return deviation, (solved + np.outer(left / total, self.sums)) / deviation[:, None]

    def bound(
        self, Z: Float[Array, "K n"], deviations: float
    ) -> tuple[Float[Array, " K"], Float[Array, "K n"]]:
        """The mean plus that many standard deviations at the rows of Z, and its gradient."""
        k = self.kernel(Z)
        deviation, lowers = self._deviation(k)
        by_kernel = k * (self.weights - deviations * lowers)
        at = (Z - self.centre) / self.length
        gradient = (by_kernel @ self.X - by_kernel.sum(1, keepdims=True) * at) / self.length
        return self.constant + k @ self.weights + deviations * deviation, gradient

    def expecting(self, Z: Float[Array, "K n"]) -> "Process":
        """The process after episodes with the rows of Z that return what is expected of them. The
        means stay; what is not unknown any more changes the standard deviations."""
        X = np.concatenate([self.X, (Z - self.centre) / self.length])
        K = self.amplitude * np.exp(-0.5 * squared_distances(X, X))
        L = np.linalg.cholesky(K + _jitter(self.noise, self.amplitude) * np.eye(len(X)))
        inverse, weights = _inverse(L), np.r_[self.weights, np.zeros(len(Z))]
        return self._replace(X=X, inverse=inverse, sums=inverse.sum(1), weights=weights)


def fit(
    X: Float[Array, "M n"],
    y: Float[Array, " M"],
    centre: Float[Array, " n"],
    unit: float,
    start: Place | None = None,
    moves: int = MOVES,
) -> Process:
    """The process of greatest posterior density near `start`, at most so many moves over the grid
    away; lengths are in units of `unit`. The returns must not all be equal."""
    M, away = y.size, (X - centre) / unit
    both, jacobian = views(y)
    columns = np.concatenate([both, np.ones((1, M))]).T
    distances = squared_distances(away, away)
    np.fill_diagonal(distances, 0.0)
    # With few episodes the evidence may favour no signal at all; the lower bound prevents that.
    least = int(np.searchsorted(RATIOS, SIGNAL / M))
    known: dict[Place, tuple] = {}

    def at(place: Place) -> tuple:
        """The logarithm of the density, the view, its variance of noise, and parts of the fit."""
        if place not in known:
            ratio = RATIOS[place.ratio]
            K = ratio * np.exp(-0.5 * distances / LENGTHS[place.length] ** 2)
            L = np.linalg.cholesky(K + _jitter(1.0, ratio) * np.eye(M))
            solved, _ = _TRTRS(L, columns, lower=1)
            ones, z = solved[:, -1], solved[:, :-1]
            constant = ones @ z / (ones @ ones)
            rest = z - np.outer(ones, constant)
            square = np.sum(rest**2, 0)
            noise = np.maximum(square / (M - 1), FLOOR)
            log_det = 2 * np.sum(np.log(np.diag(L))) + np.log(ones @ ones)
            density = jacobian - 0.5 * (square / noise + (M - 1) * np.log(noise) + log_det)
            density -= 0.5 * (np.log(LENGTHS[place.length] / LENGTH) / SPREAD) ** 2
            best = int(np.argmax(density))
            known[place] = density[best], noise[best], L, constant[best], both[best]
        return known[place]

    def within(length: int, ratio: int) -> Place:
        return Place(min(max(length, 0), len(LENGTHS) - 1), min(max(ratio, least), len(RATIOS) - 1))

    starts = [within(*place) for place in (STARTS if start is None else [start])]
    place = max(starts, key=lambda p: at(p)[0])
    for _ in range(moves):
        l, r = place
        near = (place, *(within(*p) for p in ((l - 1, r), (l + 1, r), (l, r - 1), (l, r + 1))))
        best = max(near, key=lambda p: at(p)[0])
        if best == place:
            break
        place = best
    _, noise, L, constant, z = at(place)
    inverse, length = _inverse(L) / noise, LENGTHS[place.length]
    return Process(
        place, away / length, centre, unit * length, RATIOS[place.ratio] * noise, noise, inverse,
        inverse.sum(1), constant, inverse @ (z - constant),
    )  # fmt: skip


def _inverse(L: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """The inverse of L L'."""
    lower, _ = _POTRI(L, lower=1)
    lower = np.tril(lower)
    return lower + np.tril(lower, -1).T


def _jitter(noise: float, amplitude: float) -> float:
    """The noise, and no less than rounding errors ask for."""
    return noise + 1e-9 * amplitude
