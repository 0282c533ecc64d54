"""G with the actions integrated out, from plain arrays: for policies that are written elsewhere.

With J the Jacobian of the distribution's parameters, such as logits, with respect to the policy's,
and F the known Fisher information of the former, E_{a|x}[u u'] = J'F J at a step, and

    G = mean over episodes of sum_t gamma^t J_t' F_t J_t.

Steps stand in a row, one episode after the other. A `discount` of 1 gives the matrix of paths,
Eq. 24; that of the task the matrix of steps, Eq. 40.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespg._support import checks
from bayespg._support.precision import in_float64, traced
from bayespg._support.types import Array
from bayespg.fisher.estimates import average, places
from bayespg.fisher.matrices import Dense
from bayespg.policies.distributions import Categorical, Distribution, Gaussians


def of_softmax(
    logits: Float[Array, "N k"],
    *,
    jacobian: Float[Array, "N k n"] | None = None,
    features: Float[Array, "N d"] | None = None,
    last: Bool[Array, " N"],
    discount: float,
) -> Dense:
    """For k actions whose probabilities are the softmax of `logits`.

    `jacobian` has the derivatives of the logits with respect to the n parameters. For logits W phi,
    give the `features` phi instead; the parameters are then the rows of W, one after the other, as
    in ``torch.nn.Linear``. `last` marks the steps that end an episode.
    """
    _refuse_tracers(logits, jacobian, features, last)
    z = checks.array("logits", logits)
    if z.ndim != 2 or z.size == 0:
        raise ValueError(f"logits: expected shape (N, k), one row per step, found {z.shape}")
    J = _jacobian(jacobian, features, z.shape, 0)
    return _integrated_out(Categorical(z), J, last, discount)


def of_gaussian(
    deviations: float | Float[Array, " k"] | Float[Array, "N k"],
    *,
    jacobian: Float[Array, "N r n"] | None = None,
    features: Float[Array, "N d"] | None = None,
    fixed: bool = False,
    last: Bool[Array, " N"],
    discount: float,
) -> Dense:
    """For k independent Gaussian actions of the given standard `deviations`, one set for all steps
    or one row per step. Their means do not matter.

    `jacobian` has, per step, the derivatives of the k means and then those of the k logarithms of
    the deviations with respect to the n parameters: 2 k rows. For means W phi and deviations that
    are the same everywhere, give the `features` phi instead; the parameters are then the rows of W,
    one after the other, and the k logarithms of the deviations. With `fixed` the deviations are no
    parameters: the Jacobian has k rows, and the parameters are those of W. `last` marks the steps
    that end an episode.
    """
    _refuse_tracers(deviations, jacobian, features, last)
    N = checks.flags("last", last).size
    s = np.atleast_1d(checks.array("deviations", deviations))
    if s.ndim > 2 or s.size == 0 or (s.ndim == 2 and s.shape[0] != N):
        raise ValueError(f"deviations: expected shape (k,) or ({N}, k), found {s.shape}")
    if s.min() <= 0:
        raise ValueError(f"deviations: must be positive, found {s.min():.6g}")
    s = np.broadcast_to(s, (N, s.shape[-1]))
    J = _jacobian(jacobian, features, s.shape, 0 if checks.flag("fixed", fixed) else s.shape[1])
    return _integrated_out(Gaussians(np.zeros(s.shape), np.log(s)), J, last, discount)


def _refuse_tracers(*arrays: Any) -> None:
    if traced(*arrays):
        raise TypeError("inside a transformation use fisher.actions_integrated_out")


def _jacobian(jacobian: Any, features: Any, shape: tuple[int, ...], more: int) -> np.ndarray:
    """The Jacobian from the caller, or that of k outputs linear in features, with `more` rows for
    parameters that do not depend on the state."""
    N, k = shape
    if (jacobian is None) == (features is None):
        raise ValueError("jacobian, features: give one of the two")
    if features is None:
        J = checks.array("jacobian", jacobian)
        if J.ndim != 3 or J.shape[:2] != (N, k + more) or J.shape[2] == 0:
            raise ValueError(
                f"jacobian: expected shape ({N}, {k + more}, n), per step one row for each of "
                f"{k + more} parameters of the distribution, found {J.shape}"
            )
        return J
    phi = checks.array("features", features)
    if phi.ndim != 2 or phi.shape[0] != N or phi.shape[1] == 0:
        raise ValueError(f"features: expected shape ({N}, d), one row per step, found {phi.shape}")
    d = phi.shape[1]
    J = np.zeros((N, k + more, k * d + more))
    for i in range(k):
        J[:, i, i * d : (i + 1) * d] = phi
    J[:, k:, k * d :] = np.eye(more)
    return J


def _integrated_out(distribution: Distribution, J: np.ndarray, last: Any, discount: Any) -> Dense:
    ends, time = places(last, J.shape[0])
    episode = np.searchsorted(ends, np.arange(time.size))
    weights = np.power(checks.discount(discount), time)
    shape = ends.size, int(time.max()) + 1
    G = in_float64(_average)(distribution, J, weights, episode, time, shape)
    return checks.sound("jacobian, features", G)


def _average(distribution, J, weights, episode, time, shape) -> Dense:
    rows = J.shape[1]  # the first of them where the deviations are fixed
    roots = jax.vmap(lambda one: one.fisher_root()[:rows, :rows])(distribution) @ J
    roots = roots * jnp.sqrt(weights)[:, None, None]
    padded = jnp.zeros((*shape, *roots.shape[1:]), roots.dtype).at[episode, time].set(roots)
    return average(padded.reshape(shape[0], -1, J.shape[2]))
