"""Prior knowledge: a prior mean for the gradient, from an earlier policy or another task."""

from typing import Any

import equinox as eqx
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg._support import checks
from bayespg._support.precision import in_float64
from bayespg._support.types import Array
from bayespg.fisher import Fisher
from bayespg.posterior import GradientPosterior
from bayespg.quadrature.models import model2


def model2_with_prior(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    prior_gradient: Float[Array, " n"],
    **options: Any,
) -> GradientPosterior:
    """Model 2 with a prior mean of the return, u(xi)'w_0 with w_0 = G^-1 g_0 (Eq. 14 with f-bar):

        mean = g_0 + B C (y - U w_0),   covariance = B_0 - B C B'

    g_0 = `prior_gradient` is then the prior mean of the gradient, as int u u' w_0 Pr = G w_0. The
    kernel's `scale` says how far the gradient may lie from it: it should be smaller than without
    prior knowledge. `options` are those of `model2`.
    """
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    g0 = checks.vector("prior_gradient", prior_gradient, U.shape[1], "one entry per parameter")
    posterior = model2(U, R - in_float64(_explained)(U, G, g0), G, **options)
    alone = (R - R.mean())[:, None] * U  # what paths show does not depend on g_0
    return eqx.tree_at(lambda p: (p.mean, p.unbiased), posterior, (posterior.mean + g0, alone))


def _explained(U, G, g0) -> Float[Array, " M"]:
    return U @ fishers.readout(fishers.as_fisher(G)).solve(g0)
