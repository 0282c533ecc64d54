"""The statistics behind intervals, regions and probabilities.

They are pure functions of a posterior, so that thousands of posteriors can be judged at once.
"""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg._support.types import Array
from bayespg.posterior.agreement import GROUPS, agreement, contributions, judged
from bayespg.posterior.operators import Covariance, Influence

if TYPE_CHECKING:
    from bayespg.posterior.gradient import GradientPosterior

NOTHING = 1e-12
"""The fraction explained below which a posterior is taken for the prior."""


def robust_covariance(posterior: "GradientPosterior") -> Float[Array, "n n"]:
    e, known = _explained(posterior)
    D = influences(posterior) / e
    if isinstance(posterior.covariance, Covariance):
        return D.T @ D
    return jnp.where(jnp.all(known), D.T @ D, posterior.covariance)


def standard_deviation(covariance: Any) -> Float[Array, " n"]:
    lazy = isinstance(covariance, Covariance)
    variances = covariance.diagonal() if lazy else jnp.diagonal(covariance)
    return jnp.sqrt(jnp.maximum(variances, 0.0))


def component_statistics(posterior: "GradientPosterior", robust: bool = True):
    """Centre, spread and degrees of freedom of each component's t interval.

    Paths whose returns are all the same say nothing of the gradient: the spread is infinite.
    """
    model = (posterior.mean, standard_deviation(posterior.covariance), jnp.inf)
    if not robust:
        return _student(posterior.mean, influences(posterior), posterior, model, robust)
    D = influences(posterior)
    centre, spread, freedom = _student(posterior.mean, D, posterior, model, robust)
    return centre, jnp.where(_silent(posterior, D), jnp.inf, spread), freedom


def _silent(posterior: "GradientPosterior", D: Float[Array, "M n"]) -> Bool[Array, ""]:
    """Whether no path has any influence and the mean is zero, although there is something to
    explain; where there is nothing, the prior is what is known."""
    known = _explained(posterior)[1]
    return jnp.all(known) & ~(jnp.any(D != 0) | jnp.any(posterior.mean != 0))


def direction_statistics(
    posterior: "GradientPosterior", direction: Float[Array, " n"], robust: bool = True
):
    """Centre, spread and degrees of freedom of the slope along a direction."""
    S, I, slope = posterior.covariance, posterior.influence, posterior.mean @ direction

    def spread():
        Sd = S.multiply(direction) if isinstance(S, Covariance) else S @ direction
        # A component that is zero in the direction may have an infinite variance.
        Sd = jnp.where(direction == 0, 0.0, Sd)
        return jnp.sqrt(jnp.maximum(direction @ Sd, 0.0))

    if not robust:
        return slope, spread(), jnp.asarray(jnp.inf)
    known = jnp.min(posterior.explained) > NOTHING
    # The model's spread is used only where nothing is explained. It is computed only then, because
    # it may cost as much as a gradient.
    model = (
        slope,
        jax.lax.cond(known, lambda: jnp.zeros_like(slope), spread),
        jnp.asarray(jnp.inf),
    )
    # In Model 1 every component has its own explained fraction: correct each before adding them.
    weights = direction / _explained(posterior)[0]
    whole = eqx.tree_at(
        lambda p: (p.explained, p.freedom),
        posterior,
        (jnp.where(known, 1.0, 0.0), jnp.min(posterior.freedom)),
    )
    along = I.along(weights) if isinstance(I, Influence) else I @ weights
    return _student(posterior.mean @ weights, along, whole, model, robust)


def unbiased_statistics(
    posterior: "GradientPosterior", direction: Float[Array, " n"], robust: bool = True
):
    """`direction_statistics` of the mean of the unbiased gradients of paths."""
    each = posterior.unbiased @ direction  # pyright: ignore[reportOptionalOperand]
    M, slope = len(each), jnp.mean(each)
    if M == 1:
        return slope, jnp.asarray(jnp.inf), jnp.ones(())
    whole = eqx.tree_at(
        lambda p: (p.explained, p.freedom), posterior, (jnp.ones(()), jnp.asarray(M - 1.0))
    )
    return _student(slope, (each - slope) / (M - 1), whole, (slope, slope, slope), robust)


def uphill(posterior: "GradientPosterior", natural: bool = False) -> Float[Array, ""]:
    """The probability that the return rises along the mean, or along G^-1 mean:
    `probability_uphill` without a direction, as a function that can be traced.

    Contributions are compared in the metric of the step, which is A for the direction A mean. Where
    influences are an operator, groups of paths replace paths.
    """
    K = products(posterior, natural)
    if posterior.twice:
        influences_only = eqx.tree_at(lambda p: p.unbiased, posterior, None)
        return jnp.minimum(agreement(K), agreement(products(influences_only, natural)))
    return judged(K) if posterior.biased else agreement(K)


def products(posterior: "GradientPosterior", natural: bool) -> Float[Array, "B B"]:
    """Inner products of contributions in the metric of the step, in units of the largest entry:
    with one another, or where the mean is biased with the unbiased gradients of paths."""
    given = posterior.unbiased if posterior.added is None else posterior.added
    I = posterior.influence if given is None else given
    C = I.matrix(GROUPS) if isinstance(I, Influence) else I
    if given is None:
        C = contributions(posterior.mean, C)
    C = jnp.where(jnp.any(posterior.mean != 0), C / _unit(C), 0.0)
    if natural and posterior.fisher is None:
        raise ValueError("natural: this estimate was made without a Fisher matrix; give fisher=")
    along = posterior.fisher.solve(C) if natural and posterior.fisher is not None else C
    if posterior.biased and posterior.unbiased is not None:
        return along @ _grouped(posterior.unbiased, len(C)).T
    K = C @ along.T
    return (K + K.T) / 2


def _grouped(H: Float[Array, "M n"], groups: int) -> Float[Array, "B n"]:
    """Sums over successive paths, in units of the largest entry."""
    H, M = H / _unit(H), len(H)
    if groups == M:
        return H
    return jnp.zeros((groups, H.shape[1]), H.dtype).at[jnp.arange(M) * groups // M].add(H)


def slopes(posterior: "GradientPosterior", W: Float[Array, "r n"]):
    return jax.lax.map(lambda w: direction_statistics(posterior, w), W)


def influences(posterior: "GradientPosterior") -> Float[Array, "M n"]:
    """The influences as an array."""
    I = posterior.influence
    return I.matrix() if isinstance(I, Influence) else I


def _student(mean, influence, posterior, model, robust):
    if not robust:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, jnp.shape(mean)), model)
    M, (e, known) = influence.shape[0], _explained(posterior)
    unit = _unit(influence, 0)
    squares = (influence / unit) ** 2
    variance = squares.sum(0)
    freedom = _satterthwaite(squares, variance, posterior.freedom, M)
    found = (mean / e, unit * jnp.sqrt(variance) / e, freedom)
    return jax.tree.map(lambda new, old: jnp.where(known, new, old), found, model)


def _explained(posterior: "GradientPosterior"):
    """The fraction explained, and whether it is more than rounding. Where it is not, the model's
    own statistics are used."""
    known = posterior.explained > NOTHING
    return jnp.where(known, posterior.explained, 1.0), known


def _unit(X: Float[Array, "..."], axis: int | None = None) -> Float[Array, "..."]:
    """The largest absolute entry; in units of it fourth powers neither overflow nor underflow."""
    largest = jnp.max(jnp.abs(X), axis, initial=0.0)
    return jnp.where(largest > 0, largest, 1.0)


def _satterthwaite(squares, variance, freedom, M: int):
    """nu = 2M / (kurtosis - 1), at most the freedom left by the fit, at least 1."""
    kurtosis = M * jnp.sum((squares / jnp.where(variance > 0, variance, 1.0)) ** 2, 0)
    nu = jnp.minimum(2 * M / jnp.maximum(kurtosis - 1, 1e-3), freedom)
    return jnp.clip(nu, 1.0, max(M - 1.0, 1.0))


def region_statistics(
    posterior: "GradientPosterior", gradient: Float[Array, " n"], robust: bool = True
):
    """Squared distance of `gradient`, and the scale, rank and freedom of the F quantile it is
    compared with.

    The model's region is the ellipsoid of its covariance. The robust one is a ball in the metric
    G^-1, which stays well defined with fewer paths than parameters: with Z_i = D_i in that metric
    and V = sum |Z_i|^2, distance^2 / V is compared with F(f, nu), f the effective number of
    directions. Both are in units of the largest D_i.
    """
    if not robust:
        return _ellipsoid(posterior, gradient)
    e, known = _explained(posterior)
    D, away = influences(posterior) / e, gradient - posterior.mean / e
    unit = _unit(D)
    D, away = D / unit, away / unit
    M, n = D.shape

    def metric(V):
        return V if posterior.fisher is None else posterior.fisher.solve(V)

    K = D @ metric(D).T
    q = jnp.diagonal(K)
    V = jnp.where(_silent(posterior, D), jnp.inf, q.sum())
    cross = (jnp.sum(K**2) - jnp.sum(q**2)) * M / max(M - 1, 1)
    rank = jnp.clip(V**2 / jnp.maximum(cross, jnp.finfo(K.dtype).tiny), 1.0, n)
    freedom = _satterthwaite(q, V, jnp.min(posterior.freedom), M)
    found = (away @ metric(away), V, rank, freedom)
    if isinstance(posterior.covariance, Covariance):
        return found
    model = _ellipsoid(posterior, gradient)
    return jax.tree.map(lambda new, old: jnp.where(jnp.all(known), new, old), found, model)


def _ellipsoid(posterior: "GradientPosterior", gradient: Float[Array, " n"]):
    S, away = posterior.covariance, gradient - posterior.mean
    if isinstance(S, Covariance):
        raise ValueError("region: the model's covariance is too large to invert; use robust=True")
    variances = jnp.diagonal(S)
    bounded = jnp.isfinite(variances)  # an infinite variance excludes nothing
    scale = jnp.sqrt(jnp.where(bounded, jnp.maximum(variances, jnp.finfo(S.dtype).tiny), 1.0))
    both = jnp.outer(bounded, bounded)
    correlation = jnp.where(both, S, jnp.eye(away.size)) / jnp.outer(scale, scale)
    z = jnp.where(bounded, away / scale, 0.0)
    n = float(away.size)
    return z @ jnp.linalg.solve(correlation, z) / n, jnp.ones(()), jnp.asarray(n), jnp.asarray(1e12)
