"""The Gaussian process on returns from which the search decides.

Returns may span decades: an unstable controller can cost 10^9 times as much as a stable one. The
process models the returns themselves or -log(c + distance from the highest), whichever has the
greater evidence, so that one very bad episode does not hide the differences between all others.

The kernel is a exp(-|x - x'|^2 / (2 l^2)), with noise of variance v and a constant with a flat
prior. With few episodes the evidence hardly tells a short length and little noise from a long one
and much of it, and a single choice is often wrong. Decisions therefore average over a grid of
lengths and ratios a / v, weighted by prior and evidence; v maximises the evidence of each. One
eigendecomposition of the kernel matrix per length gives the evidence of all ratios.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh, get_lapack_funcs

from bayespg.evidence import FLOOR
from bayespg.search.hyperparameters import log_evidence, profile

Array = np.ndarray
_POTRF, _POTRI = get_lapack_funcs(("potrf", "potri"), dtype=np.float64)
LENGTHS = np.geomspace(0.5, 16.0, 6)
"""The lengths of the average, in the unit that `fit` is given."""
RATIOS = np.geomspace(0.1, 1e6, 15)
"""The ratios of amplitude to noise."""
LENGTH, SPREAD = 3.0, 1.0
"""The median of the length in the same unit, and the standard deviation of its logarithm."""
RATIO, DECADES = 100.0, 1.5
"""The median of the ratio, and the standard deviation of its decimal logarithm."""
PRIOR = (
    -0.5 * (np.log(LENGTHS / LENGTH)[:, None] / SPREAD) ** 2
    - 0.5 * (np.log10(RATIOS / RATIO) / DECADES) ** 2
)
"""The logarithm of the prior on the grid, up to a constant."""
PARTS, LEAST = 4, 0.02
"""The average has at most `PARTS` parts, each of at least this weight relative to the greatest."""
ROUNDING = 1e-9
"""The least noise relative to the amplitude."""
JITTER = 1e-6
"""The least variance of a slope that is drawn, relative to that before any episode."""


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


class Slope(NamedTuple):
    """The posterior N(Q mean, Q S Q' + prior (I - Q Q')) of a gradient: where there are fewer
    episodes than parameters, they say something of a few directions only."""

    Q: Float[Array, "n k"]
    mean: Float[Array, " k"]
    S: Float[Array, "k k"]
    prior: float

    def ascent(self) -> tuple[Float[Array, " n"], float]:
        """The most probable ascent S^-1 mu, and sqrt(mu' S^-1 mu), the slope along it in standard
        deviations."""
        d = np.linalg.solve(self.S, self.mean)
        return self.Q @ d, float(np.sqrt(max(self.mean @ d, 0.0)))

    def drawn(self, z: Float[Array, "K n"]) -> Float[Array, "K n"]:
        """Draws from rows of standard normal numbers."""
        L = np.linalg.cholesky(self.S + JITTER * self.prior * np.eye(len(self.S)))
        known = z @ self.Q
        return np.sqrt(self.prior) * (z - known @ self.Q.T) + (self.mean + known @ L.T) @ self.Q.T


class Process(NamedTuple):
    """Gaussian processes of several lengths and ratios, conditioned on a view of returns. Numbers
    of all of them are stacked; what is expected is their average."""

    X: Float[Array, "M n"]
    """Parameters, less `centre` and in units of `unit`."""
    centre: Float[Array, " n"]
    unit: float
    share: Float[Array, " P"]
    """The weight of each."""
    length: Float[Array, " P"]
    amplitude: Float[Array, " P"]
    noise: Float[Array, " P"]
    """The variance of the noise; amplitude and noise are in units of the view's spread."""
    inverse: Float[Array, "P M M"]
    """Of the kernel matrix plus noise, K."""
    sums: Float[Array, "P M"]
    """K^-1 1, for the constant."""
    constant: Float[Array, " P"]
    weights: Float[Array, "P M"]
    """What kernels are multiplied by for the mean."""
    returns: Float[Array, " M"]
    """The view of the returns."""

    def _kernels(self, at: Float[Array, "K n"]) -> Float[Array, "P K M"]:
        away = -0.5 * squared_distances(at, self.X)
        return self.amplitude[:, None, None] * np.exp(away / self.length[:, None, None] ** 2)

    def mean(self, Z: Float[Array, "K n"]) -> Float[Array, " K"]:
        """The expected view of the return at each row."""
        return self.share @ self._means(self._kernels((Z - self.centre) / self.unit))

    def _means(self, k: Float[Array, "P K M"]) -> Float[Array, "P K"]:
        return self.constant[:, None] + (k @ self.weights[:, :, None])[..., 0]

    def _deviations(self, k: Float[Array, "P K M"]) -> Float[Array, "P K"]:
        """Standard deviations without noise."""
        solved = k @ self.inverse
        total = self.sums.sum(1)[:, None]
        left = (1 - (k @ self.sums[:, :, None])[..., 0]) / total
        a = self.amplitude[:, None]
        variance = a - np.einsum("pkm,pkm->pk", solved, k) + left**2 * total
        return np.sqrt(np.maximum(variance, 1e-12 * a))

    def bound(self, Z: Float[Array, "K n"], deviations: float) -> Float[Array, " K"]:
        """The mean plus that many standard deviations at the rows of Z."""
        k = self._kernels((Z - self.centre) / self.unit)
        return self.share @ (self._means(k) + deviations * self._deviations(k))

    def slope(self, at: Float[Array, " n"], scale: float, part: int) -> "Slope":
        """The gradient of the return smoothed by N(0, scale^2 I) at a point, by one part."""
        n, a, l2, s2 = at.size, self.amplitude[part], self.length[part] ** 2, scale / self.unit
        s2 = s2**2
        away, once, twice = self.X - (at - self.centre) / self.unit, l2 + s2, l2 + 2 * s2
        near = a * np.exp(-0.5 * (np.sum(away**2, 1) / once + n * np.log1p(s2 / l2)))
        B = near[:, None] * away / (once * self.unit)
        prior = a * np.exp(-0.5 * n * np.log1p(2 * s2 / l2)) / (twice * self.unit**2)
        Q, R = np.linalg.qr(B.T) if n > 2 * len(B) else (np.eye(n), B.T)
        o = R @ self.sums[part]
        S = (1 + ROUNDING) * prior * np.eye(len(R)) - R @ self.inverse[part] @ R.T
        S += np.outer(o, o) / self.sums[part].sum()
        return Slope(Q, R @ self.weights[part], S, prior)

    def smoothed(self, Z: Float[Array, "K n"], scale: float) -> Float[Array, " K"]:
        """In the order of the expected smoothed returns, by the weightiest part."""
        l2 = self.length[self.likely] ** 2 + (scale / self.unit) ** 2
        away = squared_distances((Z - self.centre) / self.unit, self.X)
        return np.exp(-0.5 * away / l2) @ self.weights[self.likely]

    @property
    def likely(self) -> int:
        """The weightiest part."""
        return int(np.argmax(self.share))

    def expecting(self, Z: Float[Array, "K n"]) -> "Process":
        """The process after episodes with the rows of Z that return what is expected of them. The
        means stay; what is not unknown any more changes the standard deviations."""
        X = np.concatenate([self.X, (Z - self.centre) / self.unit])
        K = self._replace(X=X)._kernels(X)
        jitter = self.noise + ROUNDING * self.amplitude
        inverse = _inverses(K + jitter[:, None, None] * np.eye(len(X)))
        weights = np.pad(self.weights, ((0, 0), (0, len(Z))))
        return self._replace(X=X, inverse=inverse, sums=inverse.sum(2), weights=weights)


class Weights(NamedTuple):
    """What the evidence says about the grid."""

    view: int
    """Which of the two views is modelled."""
    of: Float[Array, "l r"]
    """The weight of each length and ratio."""


def weigh(X: Float[Array, "M n"], y: Float[Array, " M"], unit: float) -> Weights:
    """The posterior of lengths and ratios, of the view that has the greater evidence."""
    away = squared_distances(X / unit, X / unit)
    np.fill_diagonal(away, 0.0)
    both, jacobian = views(y)
    M, columns = y.size, np.concatenate([both, np.ones((1, y.size))]).T
    density = np.empty((len(LENGTHS), len(RATIOS), 2))
    for i, length in enumerate(LENGTHS):
        # SciPy's OpenBLAS has one thread (`_support.threads`); NumPy's is slow on a busy machine.
        values, Q = eigh(np.exp(-0.5 * away / length**2), check_finite=False)
        values, q = np.maximum(values, 1e-12), Q.T @ columns
        for view in (0, 1):
            square, log_det = profile(RATIOS, values, q[:, view], q[:, 2])
            noise = np.maximum(square / (M - 1), FLOOR)
            density[i, :, view] = log_evidence(square, log_det, noise, M - 1) + jacobian[view]
    density += PRIOR[..., None]
    density = np.exp(density - density.max())
    view = int(np.argmax(density.sum((0, 1))))
    return Weights(view, density[..., view] / density[..., view].sum())


def fit(
    X: Float[Array, "M n"],
    y: Float[Array, " M"],
    centre: Float[Array, " n"],
    unit: float,
    weights: Weights,
) -> Process:
    """The process of the weightiest lengths and ratios; lengths are in units of `unit`. The returns
    must not all be equal."""
    M, at = y.size, (X - centre) / unit
    z = views(y)[0][weights.view]
    away = squared_distances(at, at)
    np.fill_diagonal(away, 0.0)
    flat = weights.of.ravel()
    chosen = np.argsort(flat)[::-1][:PARTS]
    chosen = chosen[flat[chosen] >= LEAST * flat.max()]
    length, ratio = LENGTHS[chosen // len(RATIOS)], RATIOS[chosen % len(RATIOS)]
    K = ratio[:, None, None] * np.exp(-0.5 * away / length[:, None, None] ** 2)
    inverse = _inverses(K + (1 + ROUNDING * ratio)[:, None, None] * np.eye(M))
    sums = inverse.sum(2)
    constant = sums @ z / sums.sum(1)
    rest = z - constant[:, None]
    alpha = (inverse @ rest[:, :, None])[..., 0]
    noise = np.maximum(np.sum(rest * alpha, 1) / max(M - 1, 1), FLOOR)
    return Process(
        at, centre, unit, flat[chosen] / flat[chosen].sum(), length, ratio * noise, noise,
        inverse / noise[:, None, None], sums / noise[:, None], constant, alpha / noise[:, None],
        z,
    )  # fmt: skip


def _inverses(A: Float[Array, "P M M"]) -> Float[Array, "P M M"]:
    """Inverses of positive definite matrices."""
    found = np.empty_like(A)
    for k, matrix in enumerate(A):
        upper, _ = _POTRI(_POTRF(matrix, clean=1)[0])  # LAPACK reads and fills one triangle
        found[k] = upper + np.triu(upper, 1).T
    return found
