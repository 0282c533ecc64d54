"""Bayesian quadrature: the posterior of an integral (Section 3) and of the gradient (Section 4).

`model1` and `model2` take scores and returns from any source. `integral` and `vector_integral` are
the general posterior, from kernel matrices and their integrals, and `bayes_hermite` is one use of
it that has nothing to do with policies.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg import checks, conditioning, kernels, sparsification
from bayespg import fisher as fishers
from bayespg.conditioning import Conditioned
from bayespg.fisher import Dense, Fisher
from bayespg.posterior import Diagonal, Downdate, GradientPosterior
from bayespg.precision import in_float64, to_float64, traced
from bayespg.sparsification import Sparsify
from bayespg.types import Array

Form = Literal["auto", "dual", "weight"]
LARGE = 2048
"""Parameters beyond which the covariance stays an operator."""
SINGULAR = 1e13
"""Condition number beyond which a system is called singular."""


def _covariance(name: str, value: Any, size: int) -> Float[np.ndarray, "..."]:
    """A variance, variances, or a covariance matrix."""
    found = checks.nonnegative(name, value, ((size,), (size, size)))
    return checks.psd(name, found, size) if found.ndim == 2 else found


SINGULAR_MESSAGE = (
    "noise: the kernel matrix plus noise is singular (paths repeat, or outnumber what the scores "
    "can tell apart); give a larger noise variance"
)


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
    noise = _covariance("noise", noise, M)
    prior_mean = checks.shaped("prior_mean", prior_mean, ((), (M,)))
    prior_integral = checks.shaped("prior_integral", prior_integral, ((), b.shape[:-1]))
    posterior = in_float64(_integral)(K, y, b, b0, noise, prior_mean, prior_integral)
    if not np.all(np.isfinite(posterior.mean)):
        raise ValueError(
            "noise: K plus noise is singular; distinct samples or a positive noise needed"
        )
    return posterior


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
        raise ValueError(f"points: expected shape (M, d), one row a point, found {X.shape}")
    m = checks.vector("mean", mean, X.shape[-1], "one entry a dimension")
    S = checks.psd("covariance", covariance, X.shape[-1])
    y = function(X) if callable(function) else function
    kernel = kernels.Gaussian(checks.positive("length_scale", length_scale, (X.shape[1:],)))
    c = checks.positive("scale", scale, ())
    K, b, b0 = in_float64(_gaussian_integrals)(kernel, X, m, S)
    return integral(c * K, y, c * b, c * b0, noise=noise)


def _gaussian_integrals(kernel, X, m, S):
    return kernels.gram(kernel, X), kernel.integral(X, m, S), kernel.double_integral(S)


def model1(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    noise: float | Float[Array, "..."] = 1e-3,
    scale: float | Float[Array, " n"] = 1.0,
    sparsify: Sparsify | None = None,
    form: Form = "auto",
) -> GradientPosterior:
    """Model 1: one GP for each component of R(xi) u(xi), quadratic Fisher kernel (Eqs. 20 to 22).

        mean = Y C b,   covariance = (b_0 - b' C b) I,   b_i = 1 + u_i' G^-1 u_i,   b_0 = 1 + n

    `noise` is a variance, (M,) variances, or (M, n): one column a component, as noisy rewards need
    (Section 6.2.1). `scale` multiplies the kernel, one number or one a component. `form` says how
    to compute: "dual" costs M^3, "weight" M p^2 with p = (n+1)(n+2)/2 features, "auto" takes the
    cheaper; the answers agree.
    """
    if traced(scores, returns, fisher, noise, scale):
        return _model1(scores, returns, fisher, noise, scale, sparsify, form)
    U, R, G = _checked(scores, returns, fisher, form, sparsify)
    M, n = U.shape
    noise = checks.nonnegative("noise", noise, ((M,), (M, n)))
    scale = checks.positive("scale", scale, ((n,),))
    form = _choose(form, M, (n + 1) * (n + 2) // 2, noise)
    _enough_noise(noise, M, (n + 1) * (n + 2) // 2)
    return _sound(in_float64(_model1)(U, R, G, noise, scale, sparsify, form))


def _model1(scores, returns, fisher, noise, scale, sparsify, form) -> GradientPosterior:
    U, (M, n) = scores, scores.shape
    G = fishers.as_fisher(fisher)
    form = _choose(form, M, (n + 1) * (n + 2) // 2, noise)
    kernel = kernels.Quadratic(G)
    condition, info = _conditioner(kernel, U, sparsify, form)
    Y = returns[:, None] * U
    noise, scale = jnp.asarray(noise, U.dtype), jnp.asarray(scale, U.dtype)
    if noise.ndim == 2 or scale.ndim == 1:  # one regression a component
        noise = jnp.broadcast_to(noise if noise.ndim == 2 else noise[..., None], (M, n))
        at = jax.vmap(lambda y, s2, c: condition(y[:, None], s2, c), in_axes=(1, 1, 0))(
            Y, noise, jnp.broadcast_to(scale, (n,))
        )
        covariance = at.covariance
        influence = jax.vmap(Conditioned.leave_one_out)(at)[:, :, 0].T
        mean = jnp.sum(at.gain[:, 0] * Y.T, -1)
        explained = jax.vmap(lambda gain: kernel.explained(U, gain))(at.gain)
    else:
        at = condition(Y, noise, scale)
        covariance = at.covariance
        influence = at.leave_one_out()
        mean = (at.gain @ Y)[0]
        explained = kernel.explained(U, at.gain)
    assert covariance is not None
    variance = jnp.broadcast_to(covariance[..., 0, 0], (n,))
    return GradientPosterior(
        mean=mean,
        covariance=jnp.diag(variance) if n <= LARGE else Diagonal(variance),
        fisher=G,
        influence=influence,
        explained=explained,
        freedom=at.freedom,
        info=_info(G, at) | info,
    )


def model2(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    noise: float | Float[Array, "..."] = 1e-3,
    baseline: float | Float[Array, ""] = 0.0,
    scale: float | Float[Array, ""] = 1.0,
    sparsify: Sparsify | None = None,
    form: Form = "auto",
) -> GradientPosterior:
    """Model 2: one GP for the return R(xi), Fisher kernel (Eqs. 25 to 27).

        mean = B C y,   covariance = B_0 - B C B',   B = U,   B_0 = G

    `baseline` is the prior variance of a constant added to the return; it changes neither B nor
    B_0, because the score integrates to zero, and infinity makes the estimate invariant to a shift
    of the returns. `noise` is a variance, (M,) variances or an (M, M) covariance; `scale`
    multiplies the kernel. `form` says how to compute: "dual" costs M^3, "weight" M n^2, "auto"
    takes the cheaper; the answers agree. Beyond 2048 parameters the covariance is an operator.
    """
    if traced(scores, returns, fisher, noise, baseline, scale):
        return _model2(scores, returns, fisher, noise, baseline, scale, sparsify, form)
    U, R, G = _checked(scores, returns, fisher, form, sparsify)
    M, n = U.shape
    noise = _covariance("noise", noise, M)
    if noise.ndim == 2 and (form == "weight" or sparsify is not None):
        raise ValueError(
            "noise: an (M, M) covariance has neither a weight-space nor a sparse form; give "
            "variances, or leave form and sparsify alone"
        )
    baseline = checks.variance_or_infinity("baseline", baseline)
    baseline = np.asarray(baseline) if baseline > 0 else 0.0
    scale = checks.positive("scale", scale, ())
    form = _choose(form, M, n, noise)
    _enough_noise(noise, M, n + bool(baseline))
    return _sound(in_float64(_model2)(U, R, G, noise, baseline, scale, sparsify, form))


def _model2(scores, returns, fisher, noise, baseline, scale, sparsify, form) -> GradientPosterior:
    U, (M, n) = scores, scores.shape
    G = fishers.as_fisher(fisher)
    form = _choose(form, M, n, noise)
    kernel = kernels.Linear(G)
    condition, info = _conditioner(kernel, U, sparsify, form)
    y = returns[:, None]
    at = condition(y, jnp.asarray(noise, U.dtype), jnp.asarray(scale, U.dtype), baseline)
    mean = (at.gain @ y)[:, 0]
    covariance = at.covariance if at.root is None else Downdate(G, scale, at.root)
    assert covariance is not None
    return GradientPosterior(
        mean=mean,
        covariance=covariance,
        fisher=G,
        influence=_without_fisher_of_path(mean, at.leave_one_out(), G),
        explained=kernel.explained(U, at.gain),
        freedom=at.freedom,
        info=_info(G, at) | info,
    )


def _without_fisher_of_path(mean, influence, G: Fisher):
    """Leave path i out of the average G too: the gradient is G w, and without path i

    G_{-i} w_{-i} = g_{-i} - (G_i w_{-i} - g_{-i}) / (M - 1),   g_{-i} = G w_{-i}.
    """
    factors = G.factors if isinstance(G, Dense) else None
    M = influence.shape[0]
    if factors is None or factors.shape[0] != M or M == 1:
        return influence
    g = mean - influence
    w = G.solve(g)
    own = jnp.einsum("irn,ir->in", factors, jnp.einsum("irn,in->ir", factors, w))
    return influence + (own - g) / (M - 1)


def _conditioner(kernel: kernels.FisherKernel, U, sparsify: Sparsify | None, form: Form):
    """Conditioning on (y, noise, scale, baseline) in the chosen form, and what to say about it."""
    large = isinstance(kernel, kernels.Linear) and U.shape[1] > LARGE
    if sparsify is None and form == "dual":
        K, B = kernel.gram(U, U), kernel.cross(U)
        B0 = None if large else kernel.prior()

        def dual(y, noise, scale, baseline=0.0):
            prior = None if B0 is None else scale * B0
            return conditioning.dual(scale * K, scale * B, prior, y, noise, baseline)

        return dual, {}
    if sparsify is None:
        Psi, V, info = kernel.features(U), kernel.functional(), {}
        remainder = jnp.zeros((V.shape[0],) * 2, U.dtype)
    else:
        found = sparsification.build(
            lambda i, members: kernel.gram(U[i][None], U[members])[0],
            kernel.diagonal(U),
            sparsify.threshold,
            min(sparsify.capacity or U.shape[0], U.shape[0]),
        )
        Psi, V, info = found.features, found.functional(kernel.cross(U)), found.info()
        remainder = None if large else kernel.prior() - V @ V.T

    def weight(y, noise, scale, baseline=0.0):
        root = jnp.sqrt(scale)
        left = None if remainder is None else scale * remainder
        return conditioning.weight_space(root * Psi, root * V, left, y, noise, baseline)

    return weight, info


def _choose(form: Form, M: int, p: int, noise) -> Form:
    """The cheaper form. Weight space divides by the noise, so it must be positive and diagonal."""
    if form != "auto":
        return form
    divisible = jnp.ndim(noise) < 2 or jnp.shape(noise) != (M, M)
    if divisible and not traced(noise):
        divisible = bool(np.all(np.asarray(noise) > 0))
    return "weight" if p < M and divisible else "dual"


def _info(G: Fisher, at: Conditioned) -> dict[str, Array]:
    return {
        "evidence": jnp.sum(at.log_evidence),
        "condition": jnp.max(at.condition),
        "jitter": G.jitter if isinstance(G, Dense) else jnp.zeros(()),
    }


def _checked(scores, returns, fisher, form, sparsify):
    U = checks.scores(scores)
    R = checks.vector("returns", returns, U.shape[0], "one return a row of scores")
    G = to_float64(fishers.checked(fisher, U))
    if form not in ("auto", "dual", "weight"):
        raise ValueError(f"form: expected 'auto', 'dual' or 'weight', found {form!r}")
    if sparsify is not None and not isinstance(sparsify, Sparsify):
        raise ValueError(
            f"sparsify: expected None or Sparsify(threshold, capacity), found {sparsify!r}"
        )
    return U, R, G


def _enough_noise(noise: Float[np.ndarray, "..."], M: int, p: int) -> None:
    """Noiseless paths beyond the p features of the kernel cannot be fitted exactly."""
    if noise.ndim < 2 or noise.shape[1] != M:
        exact = np.sum(np.broadcast_to(noise.T, (M,) if noise.ndim < 2 else noise.T.shape) == 0, -1)
        if np.max(exact) > p:
            raise ValueError(SINGULAR_MESSAGE)


def _sound(posterior: GradientPosterior) -> GradientPosterior:
    if not np.all(np.isfinite(posterior.mean)) or not posterior.info["condition"] < SINGULAR:
        raise ValueError(SINGULAR_MESSAGE)
    return posterior
