"""Length, amplitude and noise of the Gaussian process on returns, by their evidence.

The returns are y ~ N(b 1, a K_l + v I) with a flat prior on the constant b. For each length l of a
grid, one eigendecomposition of K_l turns the evidence at every ratio a/v into sums over M numbers.
`profile` is that formula, for NumPy and JAX alike; the decisions of a search and its public
posterior differ in their grids and priors. Rows outside the mask are padding: they are zero in K,
in y and in the constant.
"""

from types import ModuleType
from typing import Any, NamedTuple

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
"""Decades of the ratio of amplitude to noise."""
GRID = 31


class Model(NamedTuple):
    """The Gaussian process: a exp(-|x - x'|^2 / (2 l^2)) and noise of variance v."""

    length: Float[Array, "..."]
    """One length, or one per parameter."""
    amplitude: Float[Array, ""]
    noise: Float[Array, ""]
    log_evidence: Float[Array, ""]


def profile(
    ratios: Float[Array, " r"],
    eigenvalues: Float[Array, " M"],
    qy: Float[Array, " M"],
    q1: Float[Array, " M"],
    xp: ModuleType = np,
) -> tuple[Float[Array, " r"], Float[Array, " r"]]:
    """For each ratio r the quadratic form and the logarithm of the determinant in the evidence of
    returns with a flat constant, of A = r K + I:

        y'A^-1 y - (1'A^-1 y)^2 / 1'A^-1 1,   log |A| + log 1'A^-1 1.

    `qy` and `q1` are the returns and the constant in the basis of the eigenvectors of K.
    """
    w = 1 / (1 + ratios[:, None] * eigenvalues)
    constant = w @ q1**2
    quadratic = w @ qy**2 - (w @ (qy * q1)) ** 2 / constant
    return xp.maximum(quadratic, 0.0), xp.log(constant) - xp.log(w).sum(1)


def log_evidence(quadratic: Any, log_det: Any, noise: Any, count: Any, xp: ModuleType = np) -> Any:
    """Of `count` differences that remain after the constant, from the sums of `profile`."""
    return -0.5 * (quadratic / noise + log_det + count * (xp.log(noise) + LOG_2PI))


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
    """The models of all lengths and ratios, with their evidence. The noise of each is that of
    greatest evidence; an amplitude or a noise that is given stays fixed."""
    ones = taken.astype(y.dtype)
    count, size = jnp.maximum(jnp.sum(ones) - 1, 1), jnp.sum(y**2) / jnp.sum(ones) + TINIEST
    if amplitude is not None and noise is not None:
        ratios = jnp.reshape(amplitude / noise, (1,))
    else:
        ratios = _ratios(amplitude, noise, size, jnp.sum(ones))

    def each(length, eigenvalues, Q) -> Model:
        eigenvalues, qy, q1 = jnp.maximum(eigenvalues, 0.0), Q.T @ y, Q.T @ ones
        quadratic, log_det = profile(ratios, eigenvalues, qy, q1, jnp)
        v = jnp.maximum(quadratic / count, FLOOR * size)
        v = amplitude / ratios if amplitude is not None else v
        v = jnp.broadcast_to(noise, ratios.shape) if noise is not None else v
        lengths = jnp.broadcast_to(length, (ratios.size, *length.shape))
        return Model(lengths, ratios * v, v, log_evidence(quadratic, log_det, v, count, jnp))

    models = jax.vmap(each)(*of)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), models)


def _ratios(amplitude: Any, noise: Any, size: Any, M: Any) -> Float[Array, " r"]:
    """With few episodes the evidence may favour no signal at all, and the estimate and its error
    bars would vanish; the lower bound prevents that. Where the amplitude or the noise is given, the
    bounds of the other are relative to the size of the returns."""
    low, high = RATIOS
    shift = jnp.zeros(())
    if amplitude is not None:
        shift = jnp.log10(amplitude / size)
    elif noise is not None:
        shift = jnp.log10(size / noise)
    else:
        low = jnp.maximum(low, jnp.log10(SIGNAL / M))
    return 10.0 ** (shift + low + (high - low) * jnp.linspace(0, 1, GRID))


def best_of(models: Model) -> Model:
    """The model of greatest evidence."""
    best = jnp.argmax(models.log_evidence)
    return jax.tree.map(lambda leaf: leaf[best], models)
