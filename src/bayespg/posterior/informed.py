"""A prior N(m, S) of the gradient that comes from elsewhere: a simulator, a learned model, an
earlier update.

The gradient is g = G w, so that w has mean w_0 = G^-1 m and precision H = G S^-1 G. An estimator
whose prior is w ~ N(0, H^-1) is given y - U w_0 for its observations y, and m is added to its mean:

    E[w] = w_0 + P^-1 U'A^-1 (y - U w_0),   P = H + U'A^-1 U,

the mean is G E[w] and the covariance G P^-1 G.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg._support import checks
from bayespg._support.types import Array
from bayespg.fisher import Dense, Fisher
from bayespg.posterior.gradient import GradientPosterior
from bayespg.posterior.operators import LARGE, Multiple


class Informed(NamedTuple):
    """The prior of the gradient."""

    mean: Float[Array, " n"]
    covariance: Float[Array, "n n"]

    def weights(self, G: Float[Array, "n n"]) -> Float[Array, " n"]:
        """w_0."""
        return jnp.linalg.solve(G, self.mean)

    def precision(self, G: Float[Array, "n n"]) -> Float[Array, "n n"]:
        """H."""
        H = G @ jnp.linalg.solve(self.covariance, G)
        return H / 2 + H.T / 2


def checked(mean: Any, covariance: Any, fisher: Any, scale: Any) -> Informed | None:
    """The prior given; None if neither part is. A mean alone has the covariance scale G of the
    estimator itself, a covariance alone the mean zero. Both need a regular matrix G."""
    if mean is None and covariance is None:
        return None
    dense = fisher.G if isinstance(fisher, Dense) else fisher
    if isinstance(dense, Fisher) or len(dense) > LARGE:
        raise ValueError(
            "prior_mean, prior_covariance: need fisher as an (n, n) array of at most "
            f"{LARGE} parameters; leave them out, or give one"
        )
    G = np.asarray(dense, np.float64)
    n = len(G)
    if np.linalg.matrix_rank(G, hermitian=True) < n:
        raise ValueError(
            "prior_mean, prior_covariance: need a regular Fisher matrix, and this one is singular; "
            "add a small multiple of the identity to it"
        )
    m = np.zeros(n)
    if mean is not None:
        m = np.asarray(checks.vector("prior_mean", mean, n, "one entry per parameter"))
    if covariance is None:
        return Informed(m, float(scale) * G)
    S = np.asarray(checks.psd("prior_covariance", covariance, n))
    if np.linalg.matrix_rank(S, hermitian=True) < n:
        raise ValueError("prior_covariance: expected a regular matrix, found a singular one")
    return Informed(m, S)


def around(posterior: GradientPosterior, prior: Informed, fisher: Fisher) -> GradientPosterior:
    """The posterior of g from that of g - m. Its mean is not divided by what the paths explain: the
    prior is there to be believed, and what the paths leave of it is part of the intervals."""
    m, unbiased = prior.mean, posterior.unbiased
    return eqx.tree_at(
        lambda p: (p.mean, p.fisher, p.prior, p.retained, p.unbiased),
        posterior,
        (
            posterior.mean + m, fisher, Multiple(Dense(jnp.asarray(prior.covariance)), 1.0),
            jnp.ones_like(posterior.mean[0]), None if unbiased is None else unbiased + m,
        ),
        is_leaf=lambda x: x is None,
    )  # fmt: skip
