"""The marginal likelihood, and the scale, noise and baseline that maximise it.

The returns are y ~ N(0, c K + v 1 1' + s^2 I). One eigendecomposition of K turns every evaluation
into sums over p numbers, so a whole grid of ratios costs less than one more factorisation; the
overall scale is maximised in closed form. Model 1 is the same with one column of observations a
component, each with its own scale.
"""

import functools
from typing import Any, NamedTuple

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
    "choose",
    "choose_model1",
    "choose_model2",
    "chosen",
    "model1",
    "model2",
    "profile",
    "spectrum",
    "spectrum_of_gram",
]


def __dir__() -> list[str]:
    return sorted(__all__)


RATIOS = (-4.0, 8.0)
"""The decades that are searched for c/s^2 and v/s^2."""
GRID = 33
ZOOMS = 5
FINE = 385
"""The points of the grid that the components of Model 1 share."""
COMPONENTS = 1024
"""The number of components of Model 1 whose evidence is maximised at once."""
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
        return spectrum_of_gram(Psi @ Psi.T, y)
    return _coordinates(*_eigenvectors(Psi), y)


def _eigenvectors(Psi: Float[Array, "M p"]) -> tuple[Float[Array, " p"], Float[Array, "M p"]]:
    """The eigenvalues and eigenvectors of Psi Psi' for p < M."""
    eigenvalues, E = jnp.linalg.eigh(Psi.T @ Psi)
    safe = jnp.maximum(eigenvalues, eigenvalues[-1] * Psi.shape[0] * jnp.finfo(Psi.dtype).eps)
    return eigenvalues, (Psi @ E) / jnp.sqrt(jnp.where(safe > 0, safe, 1.0))


def spectrum_of_gram(K: Float[Array, "M M"], y: Float[Array, " M"]) -> Spectrum:
    """Diagonalise K itself, which needs no features."""
    eigenvalues, Q = jnp.linalg.eigh(K)
    return _coordinates(eigenvalues, Q, y)


def _coordinates(eigenvalues, Q: Float[Array, "M p"], y: Float[Array, " M"]) -> Spectrum:
    M, p = Q.shape
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
    spectrum: Spectrum, ratio: Float[Array, ""], baseline_ratio: float | Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Greatest log evidence over s^2 at c = ratio s^2 and v = baseline_ratio s^2, and that s^2.

    With A = ratio K + I, log |A + w 1 1'| = log |A| + log(1 + w 1'A^-1 1), and the quadratic form
    decreases by (1'A^-1 y)^2 / (1/w + 1'A^-1 1); a flat baseline (w infinite) uses up one
    observation.
    """
    weights = 1 / (1 + ratio * spectrum.eigenvalues)
    quadratic = jnp.sum(weights * spectrum.y**2) + spectrum.rest_yy
    log_det = -jnp.sum(jnp.log(weights))
    flat = jnp.isinf(baseline_ratio)
    if not isinstance(baseline_ratio, float | int) or baseline_ratio != 0:
        baseline_ratio = jnp.asarray(baseline_ratio, quadratic.dtype)
        y1 = jnp.sum(weights * spectrum.y * spectrum.ones) + spectrum.rest_y1
        oo = jnp.sum(weights * spectrum.ones**2) + spectrum.rest_11
        finite = jnp.where(flat, 0.0, baseline_ratio)
        quadratic = quadratic - y1**2 / (1 / baseline_ratio + oo)
        log_det = log_det + jnp.where(flat, jnp.log(oo), jnp.log1p(finite * oo))
    count = spectrum.samples - flat
    total = jnp.sum(spectrum.y**2) + spectrum.rest_yy
    floor = FLOOR * total / spectrum.samples + TINIEST
    s2 = jnp.maximum(quadratic / jnp.maximum(count, 1), floor)
    value = -0.5 * (quadratic / s2 + log_det + count * (jnp.log(s2) + LOG_2PI))
    return value, s2


def _maximise(
    state: Spectrum, baseline, least: float | Float[Array, ""] = SIGNAL, nearest=None
) -> Choice:
    """Zoom a grid over (c/s^2, v/s^2) onto the greatest profile evidence.

    `baseline` None chooses its variance too; otherwise it is 0 or infinity. `least` is the
    smallest M c/s^2. `nearest` is the best point of `_on_a_grid`, where that is known.
    """
    low, high = RATIOS
    free = baseline is None
    # The ratios are in units of the size of the kernel and of the constant. If all scores are zero
    # the kernel has no size, and any unit will do.
    size = jnp.sum(state.eigenvalues)
    unit = state.samples / jnp.where(size > 0, size, state.samples)

    def ratio(a):
        return jnp.maximum(unit * 10**a, least / state.samples)

    def value(a, b):
        return profile(state, ratio(a), 10**b if free else baseline)[0]

    def zoom(box, _):
        (a, b), half = box
        grid = jnp.linspace(-half, half, GRID)
        A, B = a + grid, (b + grid if free else jnp.zeros(1))
        values = jax.vmap(lambda x: jax.vmap(lambda y: value(x, y))(B))(A)
        i, j = jnp.unravel_index(jnp.argmax(values), values.shape)
        centre = (jnp.clip(A[i], low, high), jnp.clip(B[j], low, high) if free else b)
        return (centre, half * 4 / GRID), None

    middle = jnp.asarray((low + high) / 2, state.y.dtype)
    half, zooms = ((high - low) / 2, ZOOMS) if nearest is None else ((high - low) / (FINE - 1), 1)
    start = ((middle if nearest is None else nearest, middle), jnp.asarray(half, state.y.dtype))
    ((a, b), _), _ = jax.lax.scan(zoom, start, None, zooms)
    w = 10**b if free else baseline
    log_evidence, s2 = profile(state, ratio(a), w)
    constant = jnp.asarray(w, s2.dtype)
    return Choice(ratio(a) * s2, s2, jnp.where(constant > 0, constant * s2, 0.0), log_evidence)


def _on_a_grid(
    eigenvalues: Float[Array, " p"], squares: Float[Array, "p n"], rest: Float[Array, " n"], M: int
) -> Float[Array, " n"]:
    """The point of a fine grid with the greatest evidence, for each of n sets of observations
    without a baseline: one product of matrices for all of them.

    `squares` are those of the coordinates, and `rest` the square of what lies outside their span.
    """
    size = jnp.sum(eigenvalues)
    grid = jnp.linspace(*RATIOS, FINE, dtype=squares.dtype)
    ratios = jnp.maximum(10**grid * M / jnp.where(size > 0, size, M), SIGNAL / M)[:, None]
    total = jnp.sum(squares, 0) + rest
    quadratic = (1 / (1 + ratios * eigenvalues)) @ squares + rest
    s2 = jnp.maximum(quadratic / M, FLOOR * total / M + TINIEST)
    log_det = jnp.sum(jnp.log1p(ratios * eigenvalues), 1)
    return grid[jnp.argmin(quadratic / s2 + log_det[:, None] + M * jnp.log(s2), 0)]


def choose(
    K: Float[Array, "M M"], y: Float[Array, " M"], *, baseline: float | None = float("inf")
) -> Choice:
    """Scale and noise of greatest evidence for any kernel matrix K: y ~ N(0, c K + v 1 1' + s^2 I).

    `baseline` is that of `evidence.model2`.
    """
    baseline = _known(baseline)
    if traced(K, y):
        return _choose(K, y, baseline)
    y = checks.array("y", y)
    if y.ndim != 1 or y.size < 2:
        raise ValueError(f"y: expected shape (M,) with at least two samples, found {y.shape}")
    return _sound(in_float64(_choose)(checks.psd("K", K, y.size), y, baseline), "K, y")


def _choose(K, y, baseline) -> Choice:
    return _in_units(lambda units: spectrum_of_gram(K, units), y, baseline)


def choose_model2(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    baseline: float | None = float("inf"),
) -> Choice:
    """Kernel scale and noise of Model 2 that maximise the evidence.

    Arguments are those of `evidence.model2`, which computes the posterior with this choice. By
    hand: ``quadrature.model2(..., scale=choice.scale, noise=choice.noise,
    baseline=choice.baseline)``.
    """
    return _for_model2(_choose_model2, scores, returns, fisher, baseline)


def model2(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    baseline: float | None = float("inf"),
) -> GradientPosterior:
    """Model 2 with the kernel scale and noise of greatest evidence: the gradient with error bars
    from scores, returns and a Fisher matrix alone.

    Arguments:
        scores: (M, n), one row per episode: the gradient of the logarithm of its probability with
            respect to the n parameters, sum_t grad log mu(a_t | x_t).
        returns: (M,), the return of each episode.
        fisher: the Fisher matrix of episodes, an (n, n) array or an object of `bayespg.fisher`.
            `fisher.of_softmax` and `fisher.of_gaussian` compute it with the actions integrated
            out, which is the best estimate; `fisher.monte_carlo(scores)` needs scores only.
        baseline: the prior variance of a constant that is added to the returns: infinity, so that
            a shift of the returns changes nothing; 0 for none; or None to choose it too.

    With more parameters than episodes memory is that of the scores, unless `fisher` is an (n, n)
    array itself.

        >>> rng = np.random.default_rng(0)
        >>> scores = rng.normal(size=(50, 2))  # G is the identity
        >>> returns = 5 + scores @ [1.0, -2.0] + rng.normal(size=50)
        >>> posterior = evidence.model2(scores, returns, np.eye(2))
        >>> posterior.mean, posterior.interval(0.95), posterior.probability_uphill()
    """
    posterior = _for_model2(_model2, scores, returns, fisher, baseline)
    return posterior if traced(scores, returns, fisher) else quadrature.sound(posterior)


def _known(baseline: Any) -> float | None:
    """A baseline that the evidence has a form for."""
    baseline = None if baseline is None else checks.number("baseline", baseline)
    if baseline not in (None, 0, np.inf):
        raise ValueError(f"baseline: expected infinity, 0 or None (to choose), found {baseline!r}")
    return baseline


def _for_model2(function, scores, returns, fisher, baseline):
    """`function` of the checked arguments of `model2`, with the choice it returns checked."""
    baseline = _known(baseline)
    inside = traced(scores, returns, fisher)
    problem = (scores, returns, fisher)
    U, R, G = problem if inside else fishers.checked_problem(*problem)
    if baseline != 0 and R.shape[0] == 1:
        raise ValueError("returns: one path cannot tell signal from baseline; give two or more")
    if inside:
        return function(U, R, G, baseline)[0]
    posterior, choice = in_float64(function)(U, R, G, baseline)
    _sound(choice)
    return posterior


def _choose_model2(U, R, fisher, baseline) -> tuple[Choice, Choice]:
    kernel, (M, n) = kernels.Linear(fishers.as_fisher(fisher)), U.shape
    diagonal = spectrum_of_gram if n >= M else spectrum
    of = kernel.gram(U, U) if n >= M else kernel.features(U)
    choice = _in_units(lambda y: diagonal(of, y), R, baseline, SIGNAL * _share(kernel.fisher))
    return choice, choice


def _share(D: Fisher) -> float | Float[Array, ""]:
    """By how much damping makes the kernel smaller: rank(G) / tr(D^-1 G). The least scale is that
    much larger, so that the same part of the gradient is retained with any damping."""
    if not isinstance(D, fishers.Damped):
        return 1.0
    kept = D.effective(D.information)
    return jnp.where(kept > 0, fishers.rank(D) / jnp.where(kept > 0, kept, 1.0), 1.0)


def _model2(U, R, fisher, baseline) -> tuple[GradientPosterior, Choice]:
    G = fishers.as_fisher(fisher)
    choice, _ = _choose_model2(U, R, G, baseline)
    posterior = quadrature.model2(
        U, R, G, noise=choice.noise, scale=choice.scale, baseline=choice.baseline
    )
    return posterior, choice


def _in_units(
    diagonalised, y, baseline, least: float | Float[Array, ""] = SIGNAL, nearest=None
) -> Choice:
    """`_maximise` for observations in units of the largest, so that their squares do not overflow;
    variances that would vanish stay at `LEAST`. `diagonalised` makes a `Spectrum` of them.

    A flat baseline makes the evidence independent of a constant. It is subtracted first, so that
    neither the floor of the noise nor rounding depends on it.
    """
    if baseline == jnp.inf:
        y = less(y, jnp.mean(y))
    largest = jnp.max(jnp.abs(y))
    unit = jnp.where(largest > 0, largest, 1.0)
    scale, noise, constant, value = _maximise(diagonalised(y / unit), baseline, least, nearest)
    count = y.size - (baseline == jnp.inf)
    tiny = LEAST * jnp.finfo(y.dtype).tiny
    return Choice(
        jnp.maximum(scale * unit**2, tiny),
        jnp.maximum(noise * unit**2, tiny),
        constant * unit**2,
        value - count * jnp.log(unit),
    )


def _sound(choice: Choice, names: str = "scores, returns") -> Choice:
    """Variances that float64 can hold; the flat baseline alone is infinite."""
    checks.sound(names, choice._replace(baseline=np.nan_to_num(choice.baseline)))
    least = 2 * LEAST * np.finfo(np.float64).tiny
    if not (np.all(choice.scale > least) and np.all(choice.noise > least)):
        raise ValueError(
            f"{names.split(', ')[-1]}: so small that their variance is zero in float64; give them "
            "in other units"
        )
    return choice


def choose_model1(
    scores: Float[Array, "M n"], returns: Float[Array, " M"], fisher: Fisher | Float[Array, "n n"]
) -> Choice:
    """Kernel scale and noise of Model 1, one of each per component.

    `evidence.model1` computes the posterior with this choice. By hand: ``quadrature.model1(...,
    scale=choice.scale, noise=np.broadcast_to(choice.noise, scores.shape))``.
    """
    if traced(scores, returns, fisher):
        return _choose_model1(scores, returns, fisher)
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    return _sound(in_float64(_choose_model1)(U, R, G))


def model1(
    scores: Float[Array, "M n"], returns: Float[Array, " M"], fisher: Fisher | Float[Array, "n n"]
) -> GradientPosterior:
    """Model 1 with the kernel scales and noises of greatest evidence, one of each per component.

    Two returns or more that are all equal say nothing of the gradient: the mean is zero and
    intervals are infinite, as if returns were all zero.

    Arguments:
        scores: (M, n), one row per episode, as for `evidence.model2`.
        returns: (M,), the return of each episode.
        fisher: the Fisher matrix of episodes, an (n, n) array or an object of `bayespg.fisher`.

        >>> posterior = evidence.model1(scores, returns, np.eye(2))
        >>> posterior.mean, posterior.interval(0.95)
    """
    if traced(scores, returns, fisher):
        return _model1(scores, returns, fisher)[0]
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    posterior, choice = in_float64(_model1)(U, R, G)
    _sound(choice)
    return quadrature.sound(posterior)


def _choose_model1(U, R, fisher) -> Choice:
    kernel, (M, n) = kernels.Quadratic(fishers.as_fisher(fisher)), U.shape
    if (n + 1) * (n + 2) // 2 >= M:
        eigenvalues, Q = jnp.linalg.eigh(kernel.gram(U, U))
    else:
        eigenvalues, Q = _eigenvectors(kernel.features(U))
    eigenvalues = jnp.maximum(eigenvalues, 0.0)

    def choose(u: Float[Array, "k n"]) -> Choice:
        Y = R * u
        largest = jnp.max(jnp.abs(Y), 1, keepdims=True)
        Z = Y / jnp.where(largest > 0, largest, 1.0)
        along = Z @ Q
        outside = jnp.maximum(jnp.sum(Z**2, 1) - jnp.sum(along**2, 1), 0.0)
        nearest = _on_a_grid(eigenvalues, along.T**2, outside * (Q.shape[1] < M), M)
        one = functools.partial(_coordinates, eigenvalues, Q)
        return jax.vmap(lambda y, a: _in_units(one, y, 0.0, nearest=a))(Y, nearest)

    # A few thousand components at once: the grid of each takes memory.
    rows = U.T
    count = -(-n // COMPONENTS)
    padded = jnp.pad(rows, ((0, count * min(n, COMPONENTS) - n), (0, 0))) if count > 1 else rows
    fits = jax.lax.map(choose, padded.reshape(count, -1, M))
    scale, noise, _, value = (x.reshape(-1)[:n] for x in fits)
    return Choice(scale, noise, jnp.zeros(()), jnp.sum(value))


def _model1(U, R, fisher) -> tuple[GradientPosterior, Choice]:
    G = fishers.as_fisher(fisher)
    R = R if len(R) == 1 else jnp.where(jnp.any(R[0] != R), R, 0.0)
    choice = _choose_model1(U, R, G)
    return quadrature.model1(U, R, G, noise=choice.noise[None], scale=choice.scale), choice
