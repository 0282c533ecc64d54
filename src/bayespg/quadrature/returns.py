"""The posterior of the expected return itself, from the same paths as that of its gradient."""

import jax.numpy as jnp
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64
from bayespg._support.types import Array
from bayespg.algebra.conditioning import LOG_2PI
from bayespg.fisher import Fisher
from bayespg.quadrature.integrals import Integral


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
    M = R.size
    K = scale * kernels.Linear(fishers.as_fisher(G)).gram(U, U)
    S = K + jnp.diag(jnp.broadcast_to(noise, (M,)))
    ones = jnp.ones(M)
    solved = jnp.linalg.solve(S, jnp.stack([ones, R], 1))
    precision = ones @ solved[:, 0]
    mean = ones @ solved[:, 1] / precision
    misfit = R @ solved[:, 1] - mean**2 * precision
    size = jnp.linalg.slogdet(S)[1] + jnp.log(precision)
    return Integral(mean, 1 / precision, -0.5 * (misfit + size + (M - 1) * LOG_2PI))
