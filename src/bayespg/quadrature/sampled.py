"""Quadrature with any kernel, and which points to observe next.

Where int k(x, x') g(x) dx has no closed form, the known part of the integrand is itself a sum over
points that are drawn from the policy. No rewards are needed at these points.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree, Shaped

from bayespg import fisher as fishers
from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64, traced
from bayespg._support.types import Array
from bayespg.algebra import conditioning
from bayespg.fisher import Fisher
from bayespg.kernels import Kernel
from bayespg.posterior import GradientPosterior
from bayespg.quadrature.models import sound

Points = PyTree[Shaped[Array, "M ..."]]


def sampled(
    kernel: Kernel,
    points: Points,
    values: Float[Array, " M"],
    nodes: Points,
    weights: Float[Array, "P n"],
    *,
    noise: float | Float[Array, " M"] = 1e-3,
    baseline: float | Float[Array, ""] = 0.0,
    fisher: Fisher | Float[Array, "n n"] | None = None,
) -> GradientPosterior:
    """The posterior of the gradient int f(x) g(x) dx for a Gaussian process f with any kernel:

        g(x) dx ~ sum_j w_j delta(x - z_j),   B = W' K(Z, X),   B_0 = W' K(Z, Z) W

    `values` are observations of f at `points` with variance `noise`; z are the `nodes` and w_j the
    rows of `weights`. For f the return of a path, nodes are other paths of the same policy and w_j
    = u(z_j) / P. `baseline` is the prior variance of a constant added to f. Since the score
    integrates to zero, weights should sum to zero: subtract their mean. If the nodes are the points
    themselves and the noise goes to zero, the mean is sum_j w_j y_j, Monte Carlo. `fisher` is
    needed for the natural gradient only.
    """
    if traced(kernel, points, values, nodes, weights, noise, baseline, fisher):
        return _sampled(kernel, points, values, nodes, weights, noise, baseline, fisher)
    kernel = _checked(kernel)
    y = checks.array("values", values)
    if y.ndim != 1 or y.size == 0:
        raise ValueError(f"values: expected shape (M,) with at least one value, found {y.shape}")
    W = checks.array("weights", weights)
    if W.ndim != 2 or 0 in W.shape:
        raise ValueError(f"weights: expected shape (P, n), one row per node, found {W.shape}")
    X, Z = _rows("points", points, y.size), _rows("nodes", nodes, W.shape[0])
    noise = checks.positive("noise", noise, ((), (y.size,)))
    baseline = checks.variance_or_infinity("baseline", baseline)
    G = fisher if fisher is None else fishers.as_fisher(fisher)
    return sound(in_float64(_sampled)(kernel, X, y, Z, W, noise, baseline, G))


def _sampled(kernel, points, values, nodes, weights, noise, baseline, fisher) -> GradientPosterior:
    W, y = weights.T, values[:, None]
    Psi, at_nodes = kernels.features(kernel, points), kernels.features(kernel, nodes)
    if Psi is not None and at_nodes is not None and Psi.shape[1] < Psi.shape[0]:
        V = W @ at_nodes
        B0, left = V @ V.T, jnp.zeros((V.shape[0],) * 2, V.dtype)
        at = conditioning.weight_space(Psi, V, left, y, noise, baseline)
    else:
        B0 = W @ jax.lax.map(
            lambda z: kernels.gram(kernel, jax.tree.map(lambda x: x[None], z), nodes)[0] @ weights,
            nodes, batch_size=64,
        )  # fmt: skip
        B = W @ kernels.gram(kernel, nodes, points)
        at = conditioning.dual(kernels.gram(kernel, points), B, B0, y, noise, baseline)
    assert at.covariance is not None
    size = jnp.trace(B0)
    return GradientPosterior(
        mean=(at.gain @ y)[:, 0],
        covariance=at.covariance,
        fisher=None if fisher is None else fishers.as_fisher(fisher),
        influence=at.leave_one_out(),
        explained=1 - jnp.trace(at.covariance) / jnp.where(size > 0, size, 1.0),
        freedom=at.freedom,
        info={"evidence": at.log_evidence[0], "condition": at.condition},
    )


class Design(NamedTuple):
    """Which of some candidates to observe, one after the other."""

    chosen: Int[Array, " count"]
    """Their indices; a candidate may be observed again."""
    reductions: Float[Array, " count"]
    """By how much tr Cov[gradient] falls with each."""


def design(
    kernel: Kernel,
    cross: Callable[[Points], Float[Array, "n C"]],
    candidates: Points,
    count: int,
    *,
    noise: float = 1e-3,
    observed: Int[Array, " k"] | None = None,
) -> Design:
    """Active sampling: the next `count` observations, each the candidate c that shrinks the
    gradient's covariance most, given those before it:

        tr Cov[gradient] falls by |b_c|^2 / (k_cc + s^2),

    where k is the posterior covariance of f, and b_c that of the gradient and f(c). Before any
    observation they are the kernel and what `cross` makes of the candidates: int k(x, c) g(x) dx,
    such as the method `cross` of `kernels.Linear`. Indices that were `observed` come before.
    The covariance does not depend on what is observed, so all of them can be chosen beforehand.
    """
    first = () if observed is None else tuple(int(i) for i in np.ravel(observed))
    if traced(kernel, candidates, noise):
        return _design(kernel, cross, candidates, count, noise, first)
    kernel, X = _checked(kernel), _rows("candidates", candidates)
    count, s2 = checks.whole("count", count, 1), checks.positive("noise", noise, ())
    C = len(jax.tree.leaves(X)[0])
    if any(not 0 <= i < C for i in first):
        raise ValueError(f"observed: expected indices of the {C} candidates, found {first}")
    design = in_float64(_design)(kernel, cross, X, count, s2, first)
    return checks.sound("candidates, cross", design)


def _design(kernel, cross, candidates, count, noise, first) -> Design:
    K, b = kernels.gram(kernel, candidates), cross(candidates)

    def observe(carry, given):
        K, b = carry
        gains = jnp.sum(b**2, 0) / (jnp.maximum(jnp.diagonal(K), 0.0) + noise)
        i = jnp.where(given < 0, jnp.argmax(gains), given)
        root = jnp.sqrt(jnp.maximum(K[i, i], 0.0) + noise)
        row, along = K[i] / root, b[:, i] / root
        return (K - jnp.outer(row, row), b - jnp.outer(along, row)), (i, gains[i])

    given = jnp.asarray((*first, *(-1,) * count), int)
    chosen, reductions = jax.lax.scan(observe, (K, b), given)[1]
    return Design(chosen[len(first) :], reductions[len(first) :])


def _checked(kernel: Any) -> Kernel:
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel: expected a kernel of bayespg.kernels, found {checks.shown(kernel)}"
        )
    return to_float64(kernel)


def _rows(name: str, points: Any, size: int | None = None) -> Any:
    """A tree of float64 arrays with `size` rows each, or as many as the first has."""
    arrays = jax.tree.map(
        lambda leaf: checks.array(name, leaf), points, is_leaf=lambda x: isinstance(x, list)
    )
    shapes = [leaf.shape for leaf in jax.tree.leaves(arrays)]
    rows = shapes[0][:1] if shapes and size is None else (size,)
    if not shapes or not rows or any(shape[:1] != rows for shape in shapes):
        wanted = "points in rows" if size is None else f"{size} rows"
        raise ValueError(f"{name}: expected {wanted}, found shapes {shapes}")
    return arrays
