"""The posterior of the gradient by Bayesian quadrature: Models 1 and 2 (Section 4), from scores and
returns of any source."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, traced
from bayespg._support.types import Array
from bayespg.algebra import conditioning, sparsification
from bayespg.algebra.conditioning import LOG_2PI, Conditioned
from bayespg.algebra.sparsification import Sparsify
from bayespg.fisher import Fisher
from bayespg.posterior import LARGE, Diagonal, Downdate, GradientPosterior, informed, of_gradient
from bayespg.quadrature.integrals import Integral

Form = Literal["auto", "dual", "weight"]
SINGULAR = 1e12
"""The condition beyond which a system counts as singular: about three digits would be left."""


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
    """Model 1: one GP for each component of R(xi) u(xi), quadratic Fisher kernel (Eqs. 21 to 23).

        mean = Y C b,   covariance = (b_0 - b' C b) I,   b_i = 1 + u_i' G^-1 u_i,   b_0 = 1 + n

    `noise` is a variance, (M,) variances, or (M, n): one column per component, as noisy rewards
    need (Section 6.2.1). `scale` multiplies the kernel, one number or one per component. `form`
    says how to compute: "dual" costs M^3, "weight" M p^2 with p = (n+1)(n+2)/2 features, "auto"
    takes the cheaper; the answers agree.
    """
    if traced(scores, returns, fisher, noise, scale):
        return _model1(scores, returns, fisher, noise, scale, sparsify, form)
    U, R, G = _checked(scores, returns, fisher, form, sparsify)
    M, n = U.shape
    p = (n + 1) * (n + 2) // 2
    noise = checks.nonnegative("noise", noise, ((M,), (M, n)))
    scale = checks.positive("scale", scale, ((n,),))
    form = _choose(form, M, p, noise)
    _enough_noise(noise, M, p)
    if noise.ndim == 2 and np.all(noise == noise[:1]):
        noise = noise[:1]
    return sound(in_float64(_model1)(U, R, G, noise, scale, sparsify, form))


def _model1(scores, returns, fisher, noise, scale, sparsify, form) -> GradientPosterior:
    U, (M, n) = scores, scores.shape
    G = fishers.as_fisher(fisher)
    form = _choose(form, M, (n + 1) * (n + 2) // 2, noise)
    kernel = kernels.Quadratic(G)
    b0 = kernel.prior()[0, 0]
    condition, info = _conditioner(kernel, U, sparsify, form)
    Y = returns[:, None] * U
    noise, scale = jnp.asarray(noise, U.dtype), jnp.asarray(scale, U.dtype)
    one_noise = noise.ndim == 0 or noise.shape == (1, n)
    if one_noise and (noise.ndim or scale.ndim) and sparsify is None and form == "dual":
        by_component = (jnp.broadcast_to(x.reshape(-1), (n,)) for x in (noise, scale))
        at = conditioning.by_component(kernel.gram(U, U), kernel.cross(U)[0], b0, Y, *by_component)
        influence, gain = at.leave_one_out(), at.gain
    elif noise.ndim == 2 or scale.ndim == 1:  # one regression per component
        noise = jnp.broadcast_to(noise if noise.ndim == 2 else noise[..., None], (M, n))
        at = jax.vmap(lambda y, s2, c: condition(y[:, None], s2, c), in_axes=(1, 1, 0))(
            Y, noise, jnp.broadcast_to(scale, (n,))
        )
        influence, gain = jax.vmap(Conditioned.leave_one_out)(at)[:, :, 0].T, at.gain[:, 0]
    else:
        at = condition(Y, noise, scale)
        influence, gain = at.leave_one_out(), at.gain[0]
    assert at.covariance is not None
    added = gain.T.reshape(M, -1) * Y
    variance = jnp.broadcast_to(at.covariance.reshape(-1), (n,))
    return GradientPosterior(
        mean=jnp.sum(added, 0),
        covariance=jnp.diag(variance) if n <= LARGE else Diagonal(variance),
        fisher=G,
        influence=influence,
        explained=kernel.explained(U, gain),
        freedom=at.freedom,
        info=_info(G, at) | info,
        prior=Diagonal(jnp.broadcast_to(scale * b0, (n,))),
        added=added,
        # The quadratic kernel can fit noise, and then what all paths add agrees on it.
        unbiased=conditioning.less(returns, jnp.mean(returns))[:, None] * U,
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
    prior_mean: Float[Array, " n"] | None = None,
    prior_covariance: Float[Array, "n n"] | None = None,
) -> GradientPosterior:
    """Model 2: one GP for the return R(xi), Fisher kernel (Eqs. 25 to 27).

        mean = B C y,   covariance = B_0 - B C B',   B = U,   B_0 = G

    `baseline` is the prior variance of a constant added to the return; it changes neither B nor
    B_0, because the score integrates to zero, and infinity makes the estimate invariant to a shift
    of the returns. `noise` is a variance, (M,) variances or an (M, M) covariance; `scale`
    multiplies the kernel. `form` says how to compute: "dual" costs M^3, "weight" M n^2, "auto"
    takes the cheaper; the answers agree. Beyond 2048 parameters the covariance is an operator.

    `prior_mean` and `prior_covariance` are those of the gradient, from a simulator or an earlier
    update (`bayespg.posterior.informed`); without them they are zero and `scale` G.
    """
    asked = prior_mean is not None or prior_covariance is not None
    if asked and (sparsify is not None or traced(scores, returns, fisher, noise, baseline, scale)):
        raise ValueError(
            "prior_mean, prior_covariance: are for plain arrays without sparsify; leave them out"
        )
    if prior_covariance is not None and not (np.ndim(scale) == 0 and scale == 1):
        raise ValueError("scale: has no effect with prior_covariance; leave it out")
    if traced(scores, returns, fisher, noise, baseline, scale):
        return _model2(scores, returns, fisher, noise, baseline, scale, sparsify, form)
    U, R, G = _checked(scores, returns, fisher, form, sparsify)
    M, n = U.shape
    noise = checks.covariance("noise", noise, M)
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
    prior = informed.checked(prior_mean, prior_covariance, G, scale)
    if prior is not None:
        return sound(in_float64(_informed)(U, R, G, noise, baseline, prior, form))
    return sound(in_float64(_model2)(U, R, G, noise, baseline, scale, sparsify, form))


def _model2(scores, returns, fisher, noise, baseline, scale, sparsify, form) -> GradientPosterior:
    U, (M, n) = scores, scores.shape
    D = fishers.as_fisher(fisher)
    G, prior = fishers.readout(D), of_gradient(D, jnp.asarray(scale, U.dtype))
    form = _choose(form, M, n, noise)
    kernel = kernels.Linear(D)
    condition, info = _conditioner(kernel, U, sparsify, form)
    shifted = conditioning.less(returns, jnp.mean(returns))
    y = jnp.where(jnp.isinf(baseline), shifted, returns)[:, None]
    at = condition(y, jnp.asarray(noise, U.dtype), jnp.asarray(scale, U.dtype), baseline)
    mean = (at.gain @ y)[:, 0]
    covariance = at.covariance if at.root is None else Downdate(prior, at.root)
    assert covariance is not None
    return GradientPosterior(
        mean=mean,
        covariance=covariance,
        fisher=D,
        influence=fishers.leave_one_out(G, mean, at.leave_one_out()),
        explained=kernel.explained(U, at.gain),
        freedom=at.freedom,
        info=_info(G, at) | info,
        prior=prior,
        retained=_retained(G.solve(U) @ at.gain),
        # What paths add to a fit that passes close to every return cancels one another.
        unbiased=shifted[:, None] * U,
    )


def _informed(scores, returns, fisher, noise, baseline, prior, form) -> GradientPosterior:
    """With the kernel u'H^-1 u the posterior is that of H (w - w_0), and g - m is T times it with
    T = G H^-1 = S G^-1."""
    G = fishers.as_dense(fishers.as_fisher(fisher))
    rest = returns - scores @ prior.weights(G.G)
    posterior = _model2(scores, rest, prior.precision(G.G), noise, baseline, 1.0, None, form)
    T = jnp.linalg.solve(G.G, prior.covariance).T
    posterior = eqx.tree_at(
        lambda p: (p.mean, p.covariance, p.influence), posterior,
        (T @ posterior.mean, T @ posterior.covariance @ T.T, posterior.influence @ T.T),
    )  # fmt: skip
    return informed.around(posterior, prior, G)


def model2_with_prior(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    prior_gradient: Float[Array, " n"],
    **options: Any,
) -> GradientPosterior:
    """Model 2 with a prior mean of the return, u(xi)'w_0 with w_0 = G^-1 g_0 (Eq. 14 with f-bar):

        mean = g_0 + B C (y - U w_0),   covariance = B_0 - B C B'

    g_0 = `prior_gradient`, from an earlier policy or another task, is then the prior mean of the
    gradient, as int u u' w_0 Pr = G w_0. The kernel's `scale` says how far the gradient may lie
    from it: it should be smaller than without prior knowledge. `options` are those of `model2`.
    """
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    g0 = checks.vector("prior_gradient", prior_gradient, U.shape[1], "one entry per parameter")
    posterior = model2(U, R - in_float64(_along)(U, G, g0), G, **options)
    alone = (R - R.mean())[:, None] * U  # what paths show does not depend on g_0
    return eqx.tree_at(lambda p: (p.mean, p.unbiased), posterior, (posterior.mean + g0, alone))


def _along(U, G, g0) -> Float[Array, " M"]:
    return U @ fishers.readout(fishers.as_fisher(G)).solve(g0)


def expected_return(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    noise: float | Float[Array, " M"] = 1e-3,
    scale: float | Float[Array, ""] = 1.0,
) -> Integral:
    """eta = int R(xi) Pr(xi) d xi under Model 2 with a flat constant.

    R(xi) = eta + u(xi)'w, because the score integrates to zero, so that eta is the constant:

        mean = 1'C y / 1'C 1,   variance = 1 / 1'C 1,   C = (scale U G^-1 U' + Sigma)^-1

    It is the mean return with the scores as control variates: what a path owes to the actions it
    happened to draw is taken away.
    """
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    noise = checks.positive("noise", noise, ((R.size,),))
    scale = checks.positive("scale", scale, ())
    return checks.sound("scores, returns", in_float64(_expected)(U, R, G, noise, scale))


def _expected(U, R, G, noise, scale) -> Integral:
    ones = jnp.ones_like(R)
    S = scale * kernels.Linear(fishers.as_fisher(G)).gram(U, U) + jnp.diag(noise * ones)
    solved = jnp.linalg.solve(S, jnp.stack([ones, R], 1))
    precision = ones @ solved[:, 0]
    mean = ones @ solved[:, 1] / precision
    misfit = R @ solved[:, 1] - mean**2 * precision
    size = jnp.linalg.slogdet(S)[1] + jnp.log(precision)
    return Integral(mean, 1 / precision, -0.5 * (misfit + size + (R.size - 1) * LOG_2PI))


def _retained(A: Float[Array, "M M"]) -> Float[Array, ""]:
    """tr(A^2) / tr(A), the mean of the eigenvalues of A weighted by themselves; 1 for A = 0."""
    explained = jnp.trace(A)
    some = explained > 0
    return jnp.where(some, jnp.sum(A * A.T) / jnp.where(some, explained, 1.0), 1.0)


def _conditioner(kernel: kernels.FisherKernel, U, sparsify: Sparsify | None, form: Form):
    """A function that conditions on (y, noise, scale, baseline) in the chosen form, and entries of
    `info`."""
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
        dictionary = sparsification.build(
            lambda i, members: kernel.gram(U[i][None], U[members])[0],
            kernel.diagonal(U),
            sparsify.threshold,
            min(sparsify.capacity or U.shape[0], U.shape[0]),
        )
        Psi, V, info = (
            dictionary.features,
            dictionary.functional(kernel.cross(U)),
            dictionary.info(),
        )
        remainder = None if large else kernel.prior() - V @ V.T

    def weight(y, noise, scale, baseline=0.0):
        root = jnp.sqrt(scale)
        left = None if remainder is None else scale * remainder
        return conditioning.weight_space(root * Psi, root * V, left, y, noise, baseline)

    return weight, info


def _choose(form: Form, M: int, p: int, noise) -> Form:
    """The form with the smaller matrix, which is both the cheaper and the more accurate: the larger
    of the two is nearly singular. Weight space divides by the noise, so it must be positive and
    diagonal."""
    if form != "auto":
        return form
    divisible = jnp.ndim(noise) < 2 or jnp.shape(noise) != (M, M)
    if divisible and not traced(noise):
        divisible = bool(np.all(np.asarray(noise) > 0))
    return "weight" if p <= M and divisible else "dual"


def _info(G: Fisher, at: Conditioned) -> dict[str, Array]:
    return {
        "evidence": jnp.sum(at.log_evidence),
        "condition": jnp.max(at.condition),
        "rank": fishers.rank(G),
    }


def _checked(scores, returns, fisher, form, sparsify):
    problem = fishers.checked_problem(scores, returns, fisher)
    checks.one_of("form", form, ("auto", "dual", "weight"))
    sparsification.checked(sparsify)
    return problem


def _enough_noise(noise: Float[np.ndarray, "..."], M: int, p: int) -> None:
    """Refuse more noiseless paths than the p features of the kernel can fit exactly."""
    if noise.ndim < 2 or noise.shape[1] != M:
        exact = np.sum(np.broadcast_to(noise.T, (M,) if noise.ndim < 2 else noise.T.shape) == 0, -1)
        if np.max(exact) > p:
            regular(np.inf)


def regular(condition: float | Float[Array, ""], *results: Any) -> None:
    """Refuse a kernel matrix plus noise that is singular in float64."""
    if not condition < SINGULAR or not all(np.all(np.isfinite(result)) for result in results):
        raise ValueError(
            "noise: the kernel matrix plus noise is singular (samples repeat, or there are more of "
            "them than the kernel can distinguish); give a larger noise variance"
        )


def sound(posterior: GradientPosterior) -> GradientPosterior:
    regular(posterior.info["condition"])
    return checks.sound("scores, returns", posterior)
