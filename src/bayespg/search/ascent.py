"""Where to search next: decisions from the posterior of the gradient.

Returns may span decades: an unstable controller can cost 10^9 times as much as a stable one.
Decisions use the returns themselves or -log(c + distance from the highest), whichever has the
greater evidence, so that one very bad episode does not hide the differences between all others. The
direction is that of most probable ascent, S^-1 mu for the posterior N(mu, S) of the gradient. The
mean moves along it in short steps. The posterior is computed again after each step, and the move
continues while the probability of going uphill is at least `CONFIDENCE`, so that the length of a
move follows from the posterior.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Bool, Float
from scipy import special

from bayespg._support.types import Array
from bayespg.posterior.agreement import agreement, compared, contributions
from bayespg.search.hyperparameters import best_of, compare, gram, spectra
from bayespg.search.smoothed import alone

CONFIDENCE = 0.65
"""The smallest probability of going uphill at which a step is taken."""
QUANTILE = float(special.ndtri(CONFIDENCE))
STEP = 0.15
"""Length of a step, in units of scale sqrt(n)."""
SIGNAL = 0.5
"""A step is shorter where the slope times the scale is less than this many standard deviations of
the noise: most directions look uphill to the episodes that chose them, and noise would carry the
mean away."""
STEPS = 5
"""The largest number of steps after a round."""
POWER = 4
"""Steps of the power method towards the directions in which the gradient is known least."""


class Move(NamedTuple):
    """Where the mean goes after a round."""

    mean: Float[Array, " n"]
    best: Float[Array, " n"]
    """The parameters of greatest smoothed return by the posterior, of the mean and those tried."""
    steps: Float[Array, ""]
    axes: Float[Array, "d n"]
    """Orthonormal directions for the next perturbations, each on its uphill side."""
    slope: Float[Array, ""]
    """The slope along the first direction in standard deviations of the posterior, sqrt(mu' S^-1
    mu)."""
    sure: Float[Array, ""]
    """The probability of going uphill along the gradient at the old mean, as the posterior's
    `probability_uphill` states it."""
    length: Float[Array, ""]
    amplitude: Float[Array, ""]
    noise: Float[Array, ""]
    """The noise variance of the Gaussian process; lengths are in units of the parameters, amplitude
    and noise in units of the spread of the view."""
    logarithmic: Bool[Array, ""]
    """Whether logarithms explained the returns better."""


def views(y: Float[np.ndarray, " M"]) -> tuple[Float[np.ndarray, "2 M"], Float[np.ndarray, "2"]]:
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


def move(
    X: Float[Array, "M n"],
    views: Float[Array, "2 M"],
    jacobian: Float[Array, "2"],
    taken: Bool[Array, " M"],
    mean: Float[Array, " n"],
    scale: Float[Array, ""],
    normals: Float[Array, "d n"],
    active: bool = False,
) -> Move:
    """The most probable ascent from `mean`, given parameters X and two views of their returns.

    The axes are the `normals` made orthogonal. Where they are to be `active`, `POWER` steps of the
    power method turn them first towards the leading eigenvectors of S, the covariance of the
    gradient at the new mean: along these an episode lowers its trace most. One side of each axis is
    enough for a smooth function, and the uphill side is where the mean goes next.
    """
    n = X.shape[1]
    X, views = jnp.where(taken[:, None], X, mean), jnp.where(taken, views, 0.0)
    of = spectra(X - mean, taken, scale)
    models = jax.vmap(lambda z: best_of(compare(of, z, taken)))(views)
    view = jnp.argmax(models.log_evidence + jacobian)
    z, model = views[view], jax.tree.map(lambda leaf: leaf[view], models)
    a, v, l2 = model.amplitude, model.noise, model.length**2
    l2s, l2ss = l2 + scale**2, l2 + 2 * scale**2
    b0 = a * jnp.exp(-0.5 * n * jnp.log1p(2 * scale**2 / l2)) / l2ss
    # R with C = R'R for the kernel matrix plus noise, the flat constant removed.
    A = a * gram(X - mean, taken, model.length) + jnp.diag(jnp.where(taken, v, 1.0))
    L = jnp.linalg.cholesky(A)
    R = solve_triangular(L, jnp.diag(taken.astype(X.dtype)), lower=True)
    o = R @ taken.astype(X.dtype)
    R = R - jnp.outer(o, o @ R) / jnp.maximum(o @ o, jnp.finfo(X.dtype).tiny)
    r = R @ z
    eye = jnp.eye(X.shape[0], dtype=X.dtype)

    def cross(at):
        """B, the cross-covariance of returns and gradient."""
        away = X - at
        exponent = jnp.sum(away**2, -1) / l2s + n * jnp.log1p(scale**2 / l2)
        return a * (jnp.exp(-0.5 * exponent) * taken)[:, None] * away / l2s

    def root(at):
        """Z, for the covariance S = b0 I - Z'Z and the mean Z'r of the gradient."""
        return R @ cross(at)

    def ascent(at):
        """The next step along S^-1 mu, through the smaller system b0 I - Z Z', and sqrt(mu' S^-1
        mu)."""
        Z = root(at)
        mu, ZZ = Z.T @ r, Z @ Z.T
        factor = cho_factor(b0 * (1 + 1e-9) * eye - ZZ, lower=True)
        d = (mu + Z.T @ cho_solve(factor, Z @ mu)) / b0
        signal = scale * jnp.linalg.norm(mu) / jnp.sqrt(v)
        length = STEP * scale * jnp.sqrt(1.0 * n) * jnp.minimum(1.0, signal / SIGNAL)
        return length * d / jnp.linalg.norm(d), jnp.sqrt(jnp.maximum(mu @ d, 0.0))

    def step(state):
        k, at, d, _, first = state
        return k + 1, at + d, *ascent(at + d), first

    def uphill(state):
        k, _, d, t, _ = state
        return (k < STEPS) & (t >= QUANTILE) & jnp.all(jnp.isfinite(d)) & jnp.any(d != 0)

    d, t = ascent(mean)
    start = (jnp.zeros((), jnp.int32), mean, d, t, t)
    k, at, *_, first = jax.lax.while_loop(uphill, step, start)
    B = cross(mean)
    D = (R.T @ (R @ B)) * ((R.T @ r) / jnp.sum(R**2, 0))[:, None]  # the influence of each episode
    g = B.T @ (R.T @ r)
    judges = alone(B, z, taken), contributions(g, jnp.where(taken[:, None], D, 0.0))
    sure = jnp.minimum(*(agreement(*compared(C, g)) for C in judges))
    axes = _axes(normals, root(at), r, b0, POWER * active)
    known = jnp.concatenate([at[None], X])  # rows outside the mask are the old mean
    kernel = jnp.exp(-0.5 * jnp.sum((known[:, None] - X) ** 2, -1) / l2s) * taken
    best = known[jnp.argmax(kernel @ (R.T @ r))]
    return Move(at, best, k.astype(X.dtype), axes, first, sure, model.length, a, v, view == 1)


def _axes(
    normals: Float[Array, "d n"], Z: Float[Array, "M n"], r: Float[Array, " M"], b0, power: int
) -> Float[Array, "d n"]:
    """Orthonormal axes from `normals` by `power` steps towards the leading eigenvectors of S = b0 I
    - Z'Z, each on the side to which the gradient Z'r points."""
    axes = normals
    for _ in range(power):
        axes = b0 * axes - (axes @ Z.T) @ Z
        axes = axes / jnp.linalg.norm(axes, axis=1, keepdims=True)
    axes = jnp.linalg.qr(axes.T)[0].T
    return jnp.where((axes @ (Z.T @ r) < 0)[:, None], -axes, axes)
