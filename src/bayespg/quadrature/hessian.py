"""Second derivatives of the expected return by quadrature, and a Newton-like step.

    grad^2 eta = int R(xi) [u(xi) u(xi)' + grad u(xi)'] Pr(xi) d xi

With every entry of R (u u' + grad u') a Gaussian process with Model 1's kernel, the posterior mean
weighs paths as Model 1 does. The paper cites Vien et al. (2011) for this use of second derivatives.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64
from bayespg._support.types import Array
from bayespg.algebra import conditioning
from bayespg.fisher import Fisher
from bayespg.quadrature.integrals import Integral


def hessian(
    scores: Float[Array, "M n"],
    score_derivatives: Float[Array, "M n n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    noise: float | Float[Array, " M"] = 1e-3,
) -> Integral:
    """The posterior of grad^2 eta: `mean` is (n, n), `covariance` the variance of every entry.

    `score_derivatives` are grad u(xi) = sum_t grad^2 log mu(a_t|x_t), which `paths.scores.hessians`
    computes.
    """
    U, R, G = fishers.checked_problem(scores, returns, fisher)
    M, n = U.shape
    H = checks.array("score_derivatives", score_derivatives)
    if H.shape != (M, n, n):
        raise ValueError(f"score_derivatives: expected shape {(M, n, n)}, found {H.shape}")
    noise = checks.positive("noise", noise, ((M,),))
    return checks.sound("scores, returns", in_float64(_hessian)(U, H, R, G, noise))


def _hessian(U, H, R, G, noise) -> Integral:
    M, n = U.shape
    kernel = kernels.Quadratic(fishers.as_fisher(G))
    Y = R[:, None, None] * (U[:, :, None] * U[:, None, :] + (H + H.transpose(0, 2, 1)) / 2)
    at = conditioning.dual(
        kernel.gram(U, U), kernel.cross(U), kernel.prior(), Y.reshape(M, n * n), noise
    )
    assert at.covariance is not None
    mean = (at.gain @ Y.reshape(M, n * n)).reshape(n, n)
    return Integral(mean, at.covariance[0, 0], jnp.sum(at.log_evidence))


def newton(
    gradient: Float[Array, " n"], hessian: Float[Array, "n n"], *, least: float
) -> Float[np.ndarray, " n"]:
    """The step -H^-1 g towards a maximum, with the eigenvalues of H replaced by their absolute
    values and those below `least` by `least`.

    Along directions of positive curvature the step so still goes uphill, and it is never longer
    than |g| / least: 1 / `least` is the largest learning rate.
    """
    g = checks.array("gradient", gradient)
    H = checks.array("hessian", hessian)
    if g.ndim != 1 or H.shape != (g.size, g.size):
        raise ValueError(f"hessian: expected shape {(g.size, g.size)}, found {H.shape}")
    least = float(checks.positive("least", least, ()))
    curvature, V = np.linalg.eigh(H / 2 + H.T / 2)
    with np.errstate(over="ignore", invalid="ignore"):
        step = V @ ((V.T @ g) / np.maximum(np.abs(curvature), least))
    return checks.sound("gradient, hessian", step)
