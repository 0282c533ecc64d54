"""Vector-valued processes whose components are correlated (Section 3.1, Proposition 1).

Model 1 takes the components of R(xi) u(xi) to be independent, Eq. 18. The paper remarks that this
may waste data. `coupled` is Model 1 with a covariance between them, and `gradient_kernel` is
Example 1, where such covariances arise by themselves.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64
from bayespg._support.types import Array
from bayespg.algebra import conditioning
from bayespg.fisher import Fisher
from bayespg.quadrature.integrals import Integral


def coupled(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    components: Float[Array, "n n"] | None = None,
    *,
    noise: float | Float[Array, ""] = 1e-3,
) -> Integral:
    """Model 1 with Cov[f_j(xi), f_l(xi')] = D_jl k(xi, xi'), D = `components`, and noise that is
    independent between components.

    With D = V diag(d) V', the components of V'f are independent, with kernels d_j k, so that all
    follow from one spectrum of K. D = I is `model1`. None stands for G, which is proportional to
    the covariance of the scores; directions of large scores are then trusted more.
    """
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    D = None if components is None else checks.psd("components", components, U.shape[1])
    noise = checks.positive("noise", noise, ())
    return checks.sound("scores, returns", in_float64(_coupled)(U, R, G, D, noise))


def _coupled(U, R, G, D, noise) -> Integral:
    kernel = kernels.Quadratic(fishers.as_fisher(G))
    d, V = jnp.linalg.eigh(fishers.readout(kernel.fisher).matrix() if D is None else D)
    Y, b, b0 = R[:, None] * U @ V, kernel.cross(U)[0], kernel.prior()[0, 0]
    at = conditioning.by_component(kernel.gram(U, U), b, b0, Y, jnp.full_like(d, noise), d)
    mean = jnp.sum(at.gain.T * Y, 0)
    return Integral(V @ mean, (V * at.covariance) @ V.T, jnp.sum(at.log_evidence))


ParameterisedKernel = Callable[[Any, Any, Any, Any], Float[Array, ""]]
"""k(x, x', theta, theta') = Cov[f(x; theta), f(x'; theta')]."""


def gradient_kernel(
    kernel: ParameterisedKernel,
    X: Shaped[Array, "M ..."],
    Y: Shaped[Array, "N ..."],
    theta: Float[Array, " n"],
) -> Float[Array, "n n M N"]:
    """Example 1: the kernels of grad_theta f(x; theta) at `theta`,

        Cov[d_j f(x; theta), d_l f(x'; theta)] = d_j d'_l k(x, x'; theta, theta'),

    d_j for the first and d'_l for the second parameter vector, between all rows of X and Y. They
    are what `vector_integral` takes as K.
    """

    def one(x, y):
        return jax.jacfwd(lambda t: jax.grad(kernel, 2)(x, y, theta, t))(theta)

    blocks = jax.vmap(lambda x: jax.vmap(lambda y: one(x, y))(Y))(X)
    return jnp.moveaxis(blocks, (2, 3), (0, 1))
