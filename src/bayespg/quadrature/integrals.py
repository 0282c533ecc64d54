"""Bayesian quadrature in general (Section 3): the posterior of an integral.

It takes kernel matrices and their integrals; `bayes_hermite` is one use that has nothing to do with
policies.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, traced
from bayespg._support.types import Array
from bayespg.algebra import conditioning


class Integral(NamedTuple):
    """Posterior moments of rho = int f(x) g(x) dx."""

    mean: Float[Array, "..."]
    covariance: Float[Array, "..."]
    log_evidence: Float[Array, ""]


def integral(
    K: Float[Array, "M M"],
    y: Float[Array, " M"],
    b: Float[Array, "*k M"],
    b0: Float[Array, "..."],
    *,
    noise: float | Float[Array, "..."] = 0.0,
    prior_mean: float | Float[Array, " M"] = 0.0,
    prior_integral: float | Float[Array, " *k"] = 0.0,
) -> Integral:
    """rho for a scalar GP f and a scalar or vector g (Eqs. 14 to 16, Proposition 2).

        E[rho] = rho_0 + b C (y - f),   Cov[rho] = b_0 - b C b',   C = (K + Sigma)^-1

    `b` is int k(x) g(x)' dx, of shape (M,) for a scalar integral or (k, M); `b0` the double
    integral, a scalar or (k, k). `noise` is Sigma: a variance, (M,) variances or an (M, M)
    covariance. `prior_mean` is f at the samples and `prior_integral` is rho_0.
    """
    if traced(K, y, b, b0, noise, prior_mean, prior_integral):
        return _integral(K, y, b, b0, noise, prior_mean, prior_integral)
    y = checks.array("y", y)
    if y.ndim != 1 or y.size == 0:
        raise ValueError(f"y: expected shape (M,) with at least one sample, found {y.shape}")
    M = y.size
    K = checks.psd("K", K, M)
    b = checks.array("b", b)
    if b.ndim not in (1, 2) or b.shape[-1] != M:
        raise ValueError(f"b: expected shape ({M},) or (k, {M}), found {b.shape}")
    b0 = checks.array("b0", b0)
    if b0.shape != b.shape[:-1] * 2:
        raise ValueError(f"b0: expected shape {b.shape[:-1] * 2} to go with b, found {b0.shape}")
    if b0.ndim == 0 and b0 < 0:
        raise ValueError(f"b0: the prior variance of the integral cannot be negative, found {b0}")
    b0 = checks.psd("b0", b0, b.shape[0]) if b0.ndim == 2 else b0
    noise = checks.covariance("noise", noise, M)
    prior_mean = checks.shaped("prior_mean", prior_mean, ((), (M,)))
    prior_integral = checks.shaped("prior_integral", prior_integral, ((), b.shape[:-1]))
    posterior = in_float64(_integral)(K, y, b, b0, noise, prior_mean, prior_integral)
    if not np.isfinite(posterior.log_evidence):
        raise ValueError(
            "noise: K plus noise is singular; distinct samples or a positive noise needed"
        )
    return checks.sound("K, y, b", posterior)


def _integral(K, y, b, b0, noise, prior_mean, prior_integral) -> Integral:
    B = jnp.atleast_2d(b)
    B0 = jnp.reshape(jnp.asarray(b0), (B.shape[0], B.shape[0]))
    at = conditioning.dual(K, B, B0, jnp.asarray(y - prior_mean)[:, None], noise)
    shape = jnp.shape(b)[:-1]
    mean = prior_integral + (B @ at.alpha).reshape(shape)
    assert at.covariance is not None
    return Integral(mean, at.covariance.reshape(shape * 2), at.log_evidence[0])


def vector_integral(
    K: Float[Array, "n n M M"],
    y: Float[Array, "M n"],
    b: Float[Array, "n n M"],
    b0: Float[Array, "n n"],
    *,
    noise: float | Float[Array, "..."] = 0.0,
    prior_mean: float | Float[Array, "M n"] = 0.0,
    prior_integral: float | Float[Array, " n"] = 0.0,
) -> Integral:
    """rho for a vector-valued GP f and a scalar g (Proposition 1, Eq. 17 in block form).

    ``K[j, l]`` is the matrix of k_jl between samples, ``b[j, l]`` is int k_jl(x) g(x) dx and
    ``b0[j, l]`` its double integral. `noise` is a variance, (M, n) variances, or blocks (n, n, M,
    M) with cross-noise between components.
    """
    K, y, b = (v if traced(v) else checks.array(k, v) for k, v in (("K", K), ("y", y), ("b", b)))
    if y.ndim != 2 or K.shape != (2 * y.shape[1:] + 2 * y.shape[:1]):
        raise ValueError(
            "K: expected shape (n, n, M, M) to go with y of shape (M, n), "
            f"found {K.shape} and {y.shape}"
        )
    M, n = y.shape
    if b.shape != (n, n, M):
        raise ValueError(f"b: expected shape ({n}, {n}, {M}), found {b.shape}")

    def blocks(A):  # (n, n, M, M) -> (nM, nM), component by component
        return A.transpose(0, 2, 1, 3).reshape(n * M, n * M)

    def stack(columns):  # (M, n) -> (nM,)
        return columns.T.reshape(-1)

    def arranged(name, value, shapes):
        value = value if traced(value) else checks.shaped(name, value, shapes)
        return {0: lambda v: v, 2: stack, 4: blocks}[jnp.ndim(value)](value)

    noise = arranged("noise", noise, ((), (M, n), (n, n, M, M)))
    prior_mean = arranged("prior_mean", prior_mean, ((), (M, n)))
    return integral(
        blocks(K), stack(y), b.reshape(n, n * M), b0,
        noise=noise, prior_mean=prior_mean, prior_integral=prior_integral,
    )  # fmt: skip


def bayes_hermite(
    function: Callable[[Float[Array, "M d"]], Float[Array, " M"]] | Float[Array, " M"],
    points: Float[Array, "M d"],
    mean: Float[Array, " d"],
    covariance: Float[Array, "d d"],
    *,
    length_scale: float | Float[Array, " d"],
    scale: float = 1.0,
    noise: float | Float[Array, "..."] = 0.0,
) -> Integral:
    """E[f(x)] under N(mean, covariance) from samples of f: a Gaussian kernel, integrals in closed
    form.

    `function` is f, or its values at `points`.
    """
    X = checks.array("points", points)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"points: expected shape (M, d), one row per point, found {X.shape}")
    m = checks.vector("mean", mean, X.shape[-1], "one entry per dimension")
    S = checks.psd("covariance", covariance, X.shape[-1])
    y = function(X) if callable(function) else function
    y = checks.vector("function", y, X.shape[0], "one value per point")
    kernel = kernels.Gaussian(checks.positive("length_scale", length_scale, (X.shape[1:],)))
    c = checks.positive("scale", scale, ())
    integrals = in_float64(_gaussian_integrals)(kernel, X, m, S)
    with np.errstate(over="ignore"):
        K, b, b0 = (c * part for part in integrals)
    checks.sound("points, length_scale, scale", (K, b, b0))
    return integral(K, y, b, b0, noise=noise)


def _gaussian_integrals(kernel, X, m, S):
    return kernels.gram(kernel, X), kernel.integral(X, m, S), kernel.double_integral(S)
