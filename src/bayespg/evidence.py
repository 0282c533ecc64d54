"""The marginal likelihood, and the scale, noise and baseline that maximise it.

The returns are y ~ N(0, c K + v 1 1' + s^2 I). One eigendecomposition of K turns every evaluation
into sums over p numbers, so a whole grid of ratios costs less than one more factorisation; the
overall scale is maximised in closed form. Model 1 is the same with one column of observations a
component, each with its own scale.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg import kernels, quadrature
from bayespg._support import checks
from bayespg._support.precision import in_float64, traced
from bayespg._support.types import Array
from bayespg.actor_critic.scales import FLOOR, LEAST, SIGNAL, chosen
from bayespg.algebra.conditioning import LOG_2PI, less
from bayespg.fisher import Fisher
from bayespg.posterior import GradientPosterior

__all__ = [
    "SIGNAL",
    "Choice",
    "choose_model1",
    "choose_model2",
    "chosen",
    "model2",
    "profile",
    "spectrum",
]

RATIOS = (-4.0, 8.0)
"""The decades that are searched for c/s^2 and v/s^2."""
GRID = 33
ZOOMS = 5
TINIEST = 1e-30
"""The smallest noise variance, for returns that are all zero."""


class Choice(NamedTuple):
    """The hyperparameters of greatest evidence, in the form that `model1` and `model2` take."""

    scale: Float[Array, "..."]
    noise: Float[Array, "..."]
    baseline: Float[Array, ""]
    log_evidence: Float[Array, ""]


class Spectrum(NamedTuple):
    """The observations in the basis of the eigenvectors of K, from which every evaluation is
    computed."""

    eigenvalues: Float[Array, " p"]
    y: Float[Array, " p"]
    """Coordinates of the observations."""
    ones: Float[Array, " p"]
    """Coordinates of the constant."""
    rest_yy: Float[Array, ""]
    """Inner products of the parts outside the span of the p eigenvectors."""
    rest_y1: Float[Array, ""]
    rest_11: Float[Array, ""]
    samples: int


def spectrum(Psi: Float[Array, "M p"], y: Float[Array, " M"]) -> Spectrum:
    """Diagonalise K = Psi Psi' through the smaller of its two Gram matrices."""
    M, p = Psi.shape
    if p >= M:
        eigenvalues, Q = jnp.linalg.eigh(Psi @ Psi.T)
    else:
        eigenvalues, E = jnp.linalg.eigh(Psi.T @ Psi)
        safe = jnp.maximum(eigenvalues, eigenvalues[-1] * M * jnp.finfo(Psi.dtype).eps)
        Q = (Psi @ E) / jnp.sqrt(jnp.where(safe > 0, safe, 1.0))
    ones = jnp.ones_like(y)
    qy, q1 = Q.T @ y, Q.T @ ones
    ry, r1 = y - Q @ qy, ones - Q @ q1
    outside = 1.0 if p < M else 0.0  # nothing but rounding lies outside a complete basis
    return Spectrum(
        eigenvalues=jnp.maximum(eigenvalues, 0.0),
        y=qy,
        ones=q1,
        rest_yy=outside * (ry @ ry),
        rest_y1=outside * (ry @ r1),
        rest_11=outside * (r1 @ r1),
        samples=M,
    )


def profile(
    spectrum: Spectrum, ratio: Float[Array, ""], baseline_ratio: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Greatest log evidence over s^2 at c = ratio s^2 and v = baseline_ratio s^2, and that s^2.

    With A = ratio K + I, log |A + w 1 1'| = log |A| + log(1 + w 1'A^-1 1), and the quadratic form
    decreases by (1'A^-1 y)^2 / (1/w + 1'A^-1 1); a flat baseline (w infinite) uses up one
    observation.
    """
    weights = 1 / (1 + ratio * spectrum.eigenvalues)
    yy = jnp.sum(weights * spectrum.y**2) + spectrum.rest_yy
    y1 = jnp.sum(weights * spectrum.y * spectrum.ones) + spectrum.rest_y1
    oo = jnp.sum(weights * spectrum.ones**2) + spectrum.rest_11
    flat = jnp.isinf(baseline_ratio)
    finite = jnp.where(flat, 0.0, baseline_ratio)
    quadratic = yy - y1**2 / (1 / baseline_ratio + oo)
    log_det = -jnp.sum(jnp.log(weights)) + jnp.where(flat, jnp.log(oo), jnp.log1p(finite * oo))
    count = spectrum.samples - flat
    total = jnp.sum(spectrum.y**2) + spectrum.rest_yy
    floor = FLOOR * total / spectrum.samples + TINIEST
    s2 = jnp.maximum(quadratic / jnp.maximum(count, 1), floor)
    value = -0.5 * (quadratic / s2 + log_det + count * (jnp.log(s2) + LOG_2PI))
    return value, s2


def _maximise(state: Spectrum, baseline) -> Choice:
    """Zoom a grid over (c/s^2, v/s^2) onto the greatest profile evidence.

    `baseline` None chooses its variance too; otherwise it is 0 or infinity.
    """
    low, high = RATIOS
    free = baseline is None
    # The ratios are in units of the size of the kernel and of the constant. If all scores are zero
    # the kernel has no size, and any unit will do.
    size = jnp.sum(state.eigenvalues)
    unit = state.samples / jnp.where(size > 0, size, state.samples)

    def ratio(a):
        return jnp.maximum(unit * 10**a, SIGNAL / state.samples)

    def value(a, b):
        return profile(state, ratio(a), 10**b if free else jnp.asarray(baseline, a.dtype))[0]

    def zoom(box, _):
        (a, b), half = box
        grid = jnp.linspace(-half, half, GRID)
        A, B = a + grid, (b + grid if free else jnp.zeros(1))
        values = jax.vmap(lambda x: jax.vmap(lambda y: value(x, y))(B))(A)
        i, j = jnp.unravel_index(jnp.argmax(values), values.shape)
        centre = (jnp.clip(A[i], low, high), jnp.clip(B[j], low, high) if free else b)
        return (centre, half * 4 / GRID), None

    middle = jnp.asarray((low + high) / 2, state.y.dtype)
    start = ((middle, middle), jnp.asarray((high - low) / 2, state.y.dtype))
    ((a, b), _), _ = jax.lax.scan(zoom, start, None, ZOOMS)
    w = 10**b if free else jnp.asarray(baseline, a.dtype)
    log_evidence, s2 = profile(state, ratio(a), w)
    return Choice(ratio(a) * s2, s2, jnp.where(w > 0, w * s2, 0.0), log_evidence)


def choose_model2(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    baseline: float | None = float("inf"),
) -> Choice:
    """Kernel scale and noise of Model 2 that maximise the evidence.

    `baseline` is infinity (flat, restricted likelihood), 0 (none) or None (choose its variance as
    well). Use as ``model2(..., scale=choice.scale, noise=choice.noise, baseline=choice.baseline)``.
    """
    baseline = None if baseline is None else checks.number("baseline", baseline)
    if baseline not in (None, 0, np.inf):
        raise ValueError(f"baseline: expected infinity, 0 or None (to choose), found {baseline!r}")
    inside = traced(scores, returns, fisher)
    problem = (scores, returns, fisher)
    U, R, G = problem if inside else fishers.checked_problem(*problem)
    if baseline != 0 and R.shape[0] == 1:
        raise ValueError("returns: one path cannot tell signal from baseline; give two or more")
    if inside:
        return _choose_model2(U, R, G, baseline)
    return _sound(in_float64(_choose_model2)(U, R, G, baseline))


def model2(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    baseline: float | None = float("inf"),
) -> GradientPosterior:
    """`quadrature.model2` with the scale and noise of greatest evidence, as `choose_model2`."""
    choice = choose_model2(scores, returns, fisher, baseline=baseline)
    return quadrature.model2(
        scores, returns, fisher,
        noise=choice.noise, scale=choice.scale, baseline=choice.baseline,
    )  # fmt: skip


def _choose_model2(U, R, fisher, baseline) -> Choice:
    kernel = kernels.Linear(fishers.as_fisher(fisher))
    return _in_units(kernel.features(U), R, baseline)


def _in_units(Psi, y, baseline) -> Choice:
    """`_maximise` for observations in units of the largest, so that their squares do not overflow;
    variances that would vanish stay at `LEAST`.

    A flat baseline makes the evidence independent of a constant. It is subtracted first, so that
    neither the floor of the noise nor rounding depends on it.
    """
    if baseline == jnp.inf:
        y = less(y, jnp.mean(y))
    largest = jnp.max(jnp.abs(y))
    unit = jnp.where(largest > 0, largest, 1.0)
    scale, noise, constant, value = _maximise(spectrum(Psi, y / unit), baseline)
    count = y.size - (baseline == jnp.inf)
    least = LEAST * jnp.finfo(y.dtype).tiny
    return Choice(
        jnp.maximum(scale * unit**2, least),
        jnp.maximum(noise * unit**2, least),
        constant * unit**2,
        value - count * jnp.log(unit),
    )


def _sound(choice: Choice) -> Choice:
    """Variances that float64 can hold; the flat baseline alone is infinite."""
    checks.sound("scores, returns", choice._replace(baseline=np.nan_to_num(choice.baseline)))
    least = 2 * LEAST * np.finfo(np.float64).tiny
    if not (np.all(choice.scale > least) and np.all(choice.noise > least)):
        raise ValueError(
            "returns: so small that their variance is zero in float64; give them in other units"
        )
    return choice


def choose_model1(
    scores: Float[Array, "M n"], returns: Float[Array, " M"], fisher: Fisher | Float[Array, "n n"]
) -> Choice:
    """Kernel scale and noise of Model 1, one of each per component.

    Use as ``model1(..., scale=choice.scale, noise=np.broadcast_to(choice.noise, scores.shape))``.
    """
    if traced(scores, returns, fisher):
        return _choose_model1(scores, returns, fisher)
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    return _sound(in_float64(_choose_model1)(U, R, G))


def _choose_model1(U, R, fisher) -> Choice:
    Psi = kernels.Quadratic(fishers.as_fisher(fisher)).features(U)
    fits = jax.vmap(lambda y: _in_units(Psi, y, 0.0), 1)(R[:, None] * U)
    return Choice(fits.scale, fits.noise, jnp.zeros(()), jnp.sum(fits.log_evidence))
