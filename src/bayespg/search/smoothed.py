"""The gradient of the smoothed return, by Bayes-Hermite quadrature.

    J(m) = E[R(theta)],   theta ~ N(m, s^2 I)

With a Gaussian process on R of kernel a exp(-|x - x'|^2 / (2 l^2)), the gradient of J at m is a
linear functional, and its cross-covariance with the samples and its prior covariance (Eqs. 14 to
16, with g the gradient of the density) have closed forms. In one dimension, and as products over
several,

    B_i = a |l| |l^2 + s^2|^(-1/2) exp(-(x_i - m)^2 / (2 (l^2 + s^2))) (x_i - m) / (l^2 + s^2)
    B_0 = a |l| |l^2 + 2 s^2|^(-1/2) / (l^2 + 2 s^2)
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, traced
from bayespg._support.types import Array
from bayespg.algebra import conditioning
from bayespg.fisher import Isotropic
from bayespg.fisher.inputs import LARGEST
from bayespg.posterior import (
    LARGE,
    Covariance,
    Diagonal,
    Downdate,
    GradientPosterior,
    influences,
    rescaled,
    uphill,
)
from bayespg.quadrature import SINGULAR
from bayespg.search.hyperparameters import Model, best_of, compare, gram, spectra

BLOCK = 32
"""Episodes are padded to a multiple of this number, so that few programs are compiled."""
NEGLIGIBLE = 0.01
"""Lengths and ratios of less evidence than this share of the greatest are left out."""


def scores(
    parameters: Float[Array, "M n"], *, mean: Float[Array, " n"], scale: float
) -> Float[Array, "M n"]:
    """(theta - m) / s^2, the scores of parameters drawn from N(mean, scale^2 I). Together with
    ``fisher.Isotropic(n, scale)`` they are the input of Models 1 and 2."""
    X, m, s = _place(parameters, mean, scale)
    return (X - m) / s**2


def gradient_posterior(
    parameters: Float[Array, "M n"],
    returns: Float[Array, " M"],
    *,
    mean: Float[Array, " n"],
    scale: float,
    kernel: kernels.Kernel | None = None,
    noise: float | None = None,
) -> GradientPosterior:
    """The posterior of the gradient of E[R(theta)], theta ~ N(mean, scale^2 I), at `mean`.

    `parameters` and `returns` are any episodes; they need not have been drawn from that
    distribution. The returns have a Gaussian process prior with an unknown constant (flat prior)
    and the kernel ``kernels.Gaussian(length)``, or ``kernels.Scaled(kernels.Gaussian(length),
    amplitude)``, with one length or one per parameter; `noise` is the variance of returns of the
    same parameters. Where the kernel is None, the posterior is averaged over lengths, and over
    ratios of amplitude to noise unless both are given, with their evidence as weights; its
    covariance is that of Student's t where the noise is None too: the scale of the returns is then
    unknown. `info` reports the length, amplitude and noise of greatest evidence. The cost is of the
    order M^3 + M^2 n. Beyond 2048 parameters the covariance is an operator, and the length of
    greatest evidence is used alone.
    """
    given = (parameters, returns, mean, scale, kernel, noise)
    if traced(given):
        taken = jnp.ones(jnp.shape(returns), bool)
        length, amplitude = _parts(kernel)
        return _posterior(parameters, returns, taken, mean, scale, length, amplitude, noise)
    X, m, s = _place(parameters, mean, scale)
    M, n = X.shape
    y = checks.vector("returns", returns, M, "one return per row of parameters")
    length, amplitude = _kernel(kernel, n)
    v = None if noise is None else checks.positive("noise", noise, ())
    if kernel is None or noise is None:
        if M < 2:
            raise ValueError(
                "returns: one episode is too few to choose a kernel; give two, or kernel and noise"
            )
        if y.min() == y.max():
            raise ValueError(
                f"returns: all {M} are {y[0]:g}, so the evidence cannot choose; give kernel and "
                "noise, or try parameters further away"
            )
    padding = -M % BLOCK
    X, y = np.pad(X, ((0, padding), (0, 0))), np.pad(y, (0, padding))
    posterior = in_float64(_posterior)(X, y, np.arange(y.size) < M, m, s, length, amplitude, v)
    if not posterior.info["condition"] < SINGULAR:
        raise ValueError(
            "noise: the kernel matrix plus noise is singular (parameters repeat, or the length is "
            "large); give a larger noise variance"
        )
    rows = (influences(posterior)[:M], jnp.asarray(posterior.unbiased)[:M])
    posterior = eqx.tree_at(lambda p: (p.influence, p.unbiased), posterior, rows)
    return checks.sound("parameters, returns", posterior)


def certainty(
    parameters: Float[np.ndarray, "M n"],
    returns: Float[np.ndarray, " M"],
    *,
    mean: Float[np.ndarray, " n"],
    scale: float,
) -> tuple[float, float]:
    """The slope along the most probable ascent, sqrt(mu' S^-1 mu) for the posterior N(mu, S) of
    `gradient_posterior`, and its probability of going uphill along mu. Both come from one program
    per `BLOCK` episodes, which is what a search of many rounds needs; up to 2048 parameters. The
    first is optimistic, because the same episodes chose the direction."""
    M = len(returns)
    padding = -M % BLOCK
    X, y = np.pad(parameters, ((0, padding), (0, 0))), np.pad(returns, (0, padding))
    found = in_float64(_certainty)(X, y, np.arange(y.size) < M, mean, np.float64(scale))
    slope, probability = map(float, found)
    return slope, probability


def _certainty(X, y, taken, m, s) -> tuple[Any, Any]:
    posterior = _posterior(X, y, taken, m, s, None, None, None)
    mu, S = jnp.asarray(posterior.mean), _matrix(posterior)
    root = jnp.linalg.cholesky(S + 1e-9 * jnp.trace(S) / m.size * jnp.eye(m.size))
    slope = jnp.linalg.norm(jax.scipy.linalg.solve_triangular(root, mu, lower=True))
    return slope, uphill(posterior)


def _place(parameters: Any, mean: Any, scale: Any) -> tuple[Any, Any, Any]:
    X = checks.array("parameters", parameters)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"parameters: expected shape (M, n), one row per episode, found {X.shape}")
    m = checks.vector("mean", mean, X.shape[1], "one entry per parameter")
    s = checks.deviation("scale", scale)
    check_mean("mean", m, s)
    check_distances("parameters", X, m, s)
    return X, m, np.asarray(s)


def check_mean(name: str, mean: Float[np.ndarray, " n"], scale: float) -> None:
    """Refuse a mean so large that perturbations of it are lost in its rounding."""
    largest = np.abs(mean).max()
    if largest * np.finfo(float).eps > scale:
        raise ValueError(
            f"{name}: as large as {largest:.1e}, in whose rounding the scale {scale:g} is lost; "
            "give the parameters in other units, or a larger scale"
        )


def check_distances(
    name: str, X: Float[np.ndarray, "M n"], mean: Float[np.ndarray, " n"], scale: float
) -> None:
    """Refuse parameters so far from the mean that the squares of their distances, in units of the
    scale, are beyond float64."""
    with np.errstate(over="ignore"):
        away = np.abs(X - mean).max(initial=0.0) / scale
    if not away < LARGEST:
        raise ValueError(
            f"{name}: as far as {away:.1e} times the scale from the mean; one of them is in the "
            "wrong units"
        )


def _kernel(kernel: Any, n: int) -> tuple[Any, Any]:
    """Length and amplitude, or None where they are to be chosen."""
    length, amplitude = _parts(kernel)
    if kernel is None:
        return None, None
    length = checks.positive("kernel", length, ((n,),))
    if length.ndim and n > LARGE:
        raise ValueError(f"kernel: beyond {LARGE} parameters give one length, found {n}")
    return length, checks.positive("kernel", amplitude, ())


def _parts(kernel: Any) -> tuple[Any, Any]:
    match kernel:
        case None:
            return None, None
        case kernels.Gaussian():
            return kernel.length_scale, 1.0
        case kernels.Scaled(kernel=kernels.Gaussian() as inner):
            return inner.length_scale, kernel.scale
    raise ValueError(
        "kernel: the integrals are known for kernels.Gaussian(length), alone or in "
        f"kernels.Scaled, found {checks.shown(kernel)}"
    )


def _posterior(X, y, taken, m, s, length, amplitude, noise) -> GradientPosterior:
    """`gradient_posterior` of the rows that are taken, in units of the returns' spread."""
    M = jnp.sum(taken)
    y = jnp.where(taken, y - jnp.sum(jnp.where(taken, y, 0.0)) / M, 0.0)
    largest = jnp.max(jnp.abs(y))
    unit = jnp.where(largest > 0, largest, 1.0)
    away = jnp.where(taken[:, None], X - m, 0.0)

    def in_units(variance):
        return None if variance is None else variance / unit**2

    of = spectra(away, taken, s, length)
    models = compare(of, y / unit, taken, in_units(amplitude), in_units(noise))
    model = best_of(models)
    posterior = conditioned(away, y / unit, taken, s, model)
    if length is None and X.shape[1] <= LARGE:
        posterior = averaged(away, y / unit, taken, s, models, posterior)
        if amplitude is None and noise is None:  # the variance of Student's t with M - 1 degrees
            wider = (M - 1) / jnp.maximum(M - 3, 1)
            posterior = dataclasses.replace(
                posterior,
                covariance=wider * _matrix(posterior),
                scale_freedom=posterior.freedom,
            )
    posterior = rescaled(posterior, unit)
    posterior.info.update(amplitude=model.amplitude * unit**2, noise=model.noise * unit**2)
    posterior.info["evidence"] -= (M - 1) * jnp.log(unit)
    return posterior


def averaged(
    away: Float[Array, "M n"],
    y: Float[Array, " M"],
    taken: Bool[Array, " M"],
    s: float | Float[Array, ""],
    models: Model,
    best: GradientPosterior,
) -> GradientPosterior:
    """The posterior averaged over lengths and ratios, each weighted by its evidence: few returns
    cannot tell them apart, and the best of them alone is far too sure of itself."""

    def add(total, of):
        weight, model = of
        posterior = conditioned(away, y, taken, s, model)
        d = jnp.asarray(posterior.mean - best.mean)
        own = (d, _matrix(posterior) + jnp.outer(d, d), *_shared(posterior))
        return jax.tree.map(lambda a, b: a + weight * b, total, own)

    def add_if_any(total, of):
        return jax.lax.cond(of[0] > 0, add, lambda total, _: total, total, of), None

    zero = jax.tree.map(jnp.zeros_like, (best.mean, best.covariance, *_shared(best)))
    weights = jnp.exp(models.log_evidence - jnp.max(models.log_evidence))
    weights = jnp.where(weights < NEGLIGIBLE, 0.0, weights)
    weights /= jnp.sum(weights)
    (d, covariance, *shared), _ = jax.lax.scan(add_if_any, zero, (weights, models))
    return eqx.tree_at(
        lambda p: (p.mean, p.covariance, *_shared(p)), best,
        (best.mean + d, covariance - jnp.outer(d, d), *shared),
    )  # fmt: skip


def _shared(posterior: GradientPosterior) -> tuple[Any, ...]:
    """What is averaged as it is."""
    return posterior.influence, posterior.unbiased, posterior.explained, posterior.freedom


def _matrix(posterior: GradientPosterior) -> jax.Array:
    assert not isinstance(posterior.covariance, Covariance)
    return jnp.asarray(posterior.covariance)


def conditioned(
    away: Float[Array, "M n"],
    y: Float[Array, " M"],
    taken: Bool[Array, " M"],
    s: float | Float[Array, ""],
    model: Model,
) -> GradientPosterior:
    """The posterior at the mean, given the model; rows of `away` are parameters less the mean."""
    capacity, n = away.shape
    a, squared = model.amplitude, jnp.broadcast_to(jnp.asarray(model.length) ** 2, (n,))
    once, both = squared + s**2, squared + 2 * s**2
    K = a * gram(away, taken, model.length)
    exponent = jnp.sum(away**2 / once, -1) + jnp.sum(jnp.log1p(s**2 / squared))
    B = a * (jnp.exp(-0.5 * exponent) * taken)[:, None] * away / once
    b0 = a * jnp.exp(-0.5 * jnp.sum(jnp.log1p(2 * s**2 / squared))) / both
    # The constant is an unknown that enters the rows taken; rows of padding have noise variance 1.
    column = taken.astype(away.dtype)
    ids = jnp.zeros(capacity, jnp.int32)
    constant = conditioning.Tails(column, conditioning.Groups(1, ids), taken)
    noise = jnp.where(taken, model.noise, 1.0)
    G, large = Isotropic(n, s), n > LARGE
    at = conditioning.dual(K, B.T, None if large else jnp.diag(b0), y[:, None], noise, constant)
    covariance = at.covariance if at.root is None else Downdate(Diagonal(b0), at.root)
    assert covariance is not None
    return GradientPosterior(
        mean=(at.gain @ y[:, None])[:, 0],
        covariance=covariance,
        fisher=G,
        influence=at.leave_one_out(),
        explained=jnp.sum(at.gain.T * B / b0) / n,
        freedom=at.freedom - jnp.sum(~taken),
        unbiased=alone(B, y, taken) / (a + model.noise),
        info={
            "evidence": at.log_evidence[0], "condition": at.condition, "length": model.length,
            "amplitude": a, "noise": model.noise,
        },
        prior=Diagonal(b0),
        influence_judges=True,
    )  # fmt: skip


def alone(
    B: Float[Array, "M n"], y: Float[Array, " M"], taken: Bool[Array, " M"]
) -> Float[Array, "M n"]:
    """The gradient that each episode shows alone, up to a common factor, from its cross-covariance
    B with the gradient and its centred return y.

    If there is no gradient, rows of random sign should have a sum as long as theirs. Centring
    lowers their squares by the factor 1 - 1/M, and the square of their sum by |B - mean(B)|^2 /
    |B|^2, which is less for independent draws and not at all for antithetic pairs. The sum is made
    shorter where it is too long.
    """
    M, each = jnp.sum(taken), B * y[:, None]
    spread = jnp.sum((B - jnp.sum(B, 0) / M) ** 2, where=taken[:, None])
    short = jnp.minimum((1 - 1 / M) * jnp.sum(B**2) / jnp.where(spread > 0, spread, 1.0), 1.0)
    less = (1 - jnp.sqrt(short)) * jnp.sum(each, 0) / M
    return jnp.where(taken[:, None], each - less, 0.0)
