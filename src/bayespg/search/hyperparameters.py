"""Length, amplitude and noise of the Gaussian process on returns, chosen by evidence.

The returns are y ~ N(b 1, a K_l + v I) with a flat prior on the constant b. For each length l of a
grid, one eigendecomposition of K_l turns the evidence at every ratio a/v into sums over M numbers.
Rows outside the mask are padding: they are zero in K, in y and in the constant.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespg._support.types import Array
from bayespg.algebra.conditioning import LOG_2PI
from bayespg.evidence import FLOOR, SIGNAL, TINIEST

LENGTHS = np.geomspace(0.5, 16.0, 9)
"""The lengths that are compared, in units of scale sqrt(n), which is the typical distance of drawn
parameters from the mean."""
RATIOS = (-4.0, 6.0)
"""Decades searched for the ratio of amplitude to noise."""
GRID, ZOOMS = 21, 3


class Model(NamedTuple):
    """The Gaussian process: a exp(-|x - x'|^2 / (2 l^2)) and noise of variance v."""

    length: Float[Array, "..."]
    """One length, or one per parameter."""
    amplitude: Float[Array, ""]
    noise: Float[Array, ""]
    log_evidence: Float[Array, ""]


def gram(
    X: Float[Array, "M n"], taken: Bool[Array, " M"], length: Float[Array, "..."]
) -> Float[Array, "M M"]:
    """exp(-|x - x'|^2 / (2 length^2)) between rows that are taken, zero elsewhere."""
    return jnp.exp(-0.5 * squared_distances(X / length)) * (taken[:, None] & taken)


def squared_distances(X: Float[Array, "M n"]) -> Float[Array, "M M"]:
    products = X @ X.T
    squares = jnp.diagonal(products)
    away = jnp.maximum(squares[:, None] + squares - 2 * products, 0.0)
    return away * (1 - jnp.eye(X.shape[0]))


class Spectra(NamedTuple):
    """Kernel matrices of several lengths, diagonalised once for all returns."""

    lengths: Float[Array, "..."]
    eigenvalues: Float[Array, "k M"]
    vectors: Float[Array, "k M M"]


def spectra(
    X: Float[Array, "M n"],
    taken: Bool[Array, " M"],
    scale: float | Float[Array, ""],
    length: Float[Array, "..."] | None = None,
) -> Spectra:
    """The spectra for a given length, or for all of `LENGTHS`."""
    if length is not None:
        eigenvalues, vectors = jnp.linalg.eigh(gram(X, taken, length))
        return Spectra(jnp.asarray(length)[None], eigenvalues[None], vectors[None])
    lengths = scale * jnp.sqrt(jnp.asarray(X.shape[1], X.dtype)) * jnp.asarray(LENGTHS, X.dtype)
    away, pairs = squared_distances(X), taken[:, None] & taken
    # One after another: XLA's batched decomposition is no faster on a CPU.
    return Spectra(
        lengths,
        *jax.lax.map(lambda l: jnp.linalg.eigh(jnp.exp(-0.5 * away / l**2) * pairs), lengths),
    )


def compare(
    of: Spectra,
    y: Float[Array, " M"],
    taken: Bool[Array, " M"],
    amplitude: Float[Array, ""] | None = None,
    noise: Float[Array, ""] | None = None,
) -> Model:
    """For each length the model of greatest evidence, stacked; an amplitude or a noise that is
    given stays fixed."""
    return jax.vmap(functools.partial(_best, y, taken.astype(y.dtype), amplitude, noise))(*of)


def best_of(models: Model) -> Model:
    """The model of greatest evidence."""
    best = jnp.argmax(models.log_evidence)
    return jax.tree.map(lambda leaf: leaf[best], models)


def _best(y, ones, amplitude, noise, length, eigenvalues, Q) -> Model:
    """Amplitude and noise of greatest evidence, given the length."""
    M = jnp.sum(ones)
    l, qy, q1 = jnp.maximum(eigenvalues, 0.0), Q.T @ y, Q.T @ ones
    least = FLOOR * jnp.sum(y**2) / M + TINIEST

    def at(ratio):
        """Evidence and noise at a = ratio v. Where both are free, v maximises the evidence in
        closed form."""
        w = 1 / (1 + ratio * l)
        constant = jnp.sum(w * q1**2)
        quadratic = jnp.sum(w * qy**2) - jnp.sum(w * qy * q1) ** 2 / constant
        v = jnp.maximum(quadratic / jnp.maximum(M - 1, 1), least)
        v = amplitude / ratio if amplitude is not None else v
        v = noise if noise is not None else v
        log_det = (M - 1) * (jnp.log(v) + LOG_2PI) - jnp.sum(jnp.log(w)) + jnp.log(constant)
        return -0.5 * (quadratic / v + log_det), v

    if amplitude is not None and noise is not None:
        ratio = amplitude / noise
    else:

        def zoom(box, _):
            centre, half = box
            tried = jnp.clip(centre + half * jnp.linspace(-1, 1, GRID), *bounds)
            best = tried[jnp.argmax(jax.vmap(lambda r: at(10.0**r)[0])(tried))]
            return (best, half * 3 / GRID), None

        # With few episodes the evidence may favour no signal at all, and the estimate and its error
        # bars would vanish; the lower bound prevents that. Where the amplitude or the noise is
        # given, the bounds of the other are relative to the size of the returns.
        size = jnp.log10(jnp.sum(y**2) / M + TINIEST)
        if amplitude is not None:
            bounds = jnp.log10(amplitude) - size + jnp.asarray(RATIOS)
        elif noise is not None:
            bounds = size - jnp.log10(noise) + jnp.asarray(RATIOS)
        else:
            bounds = jnp.asarray(RATIOS)
            bounds = jnp.stack([jnp.maximum(bounds[0], jnp.log10(SIGNAL / M)), bounds[1]])
        start = (jnp.mean(bounds), (bounds[1] - bounds[0]) / 2)
        (best, _), _ = jax.lax.scan(zoom, start, None, ZOOMS)
        ratio = 10.0**best
    value, v = at(ratio)
    return Model(length, ratio * v, v, value)
