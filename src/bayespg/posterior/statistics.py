"""The statistics behind intervals, regions and probabilities.

They are pure functions of a posterior, so that thousands of posteriors can be judged at once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg._support.types import Array
from bayespg.fisher import Dense, reached
from bayespg.posterior.agreement import (
    GROUPS,
    Weights,
    agreement,
    compared,
    contributions,
    largest,
    learn,
    probability,
    spread,
)
from bayespg.posterior.moments import Moments
from bayespg.posterior.operators import Covariance, Downdate, Influence, Invertible

MOST_DIRECTIONS = 30.0
"""The most components that count as independent where the bias is measured."""
NOTHING = 1e-12
"""The fraction explained below which a posterior is taken for the prior."""


def robust_covariance(posterior: Moments) -> Float[Array, "n n"]:
    e, known = _explained(posterior)
    D = influences(posterior) / e
    S = D.T @ D
    if _compared(posterior):
        S = S + left_over(posterior, jnp.eye(posterior.mean.size, dtype=S.dtype))
    if isinstance(posterior.covariance, Covariance):
        return S
    return jnp.where(jnp.all(known), S, posterior.covariance)


def _compared(posterior: Moments) -> bool:
    """Whether it is known how the mean depends on the gradient, direction by direction."""
    return posterior.retained is not None and isinstance(posterior.prior, Invertible)


def left_over(posterior: Moments, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
    """V L with L the variance that the paths leave of the prior.

    The mean of many batches is A g, A = X B_0^-1 with X = B_0 - S what the paths explain of the
    prior's covariance B_0. An estimate A g / e of g ~ N(0, B_0) is therefore off by (A / e - I) g,
    whose covariance is

        L = (A / e - I) B_0 (A / e - I)' = B_0 - 2 X / e + X B_0^-1 X / e^2.
    """
    S, prior, e = posterior.covariance, posterior.prior, _explained(posterior)[0]
    assert isinstance(prior, Invertible)

    def explained(V):
        return prior.multiply(V) - (S.multiply(V) if isinstance(S, Covariance) else V @ S)

    X = explained(V)
    return prior.multiply(V) - 2 * X / e + explained(prior.solve(X)) / e**2


def _component_left_over(posterior: Moments) -> Float[Array, " n"]:
    """The diagonal of L; from the root Z of X = Z'Z where n is large."""
    S, prior = posterior.covariance, posterior.prior
    if isinstance(S, Downdate):
        assert isinstance(prior, Invertible)
        Z = S.Z / _explained(posterior)[0]
        squared = jnp.einsum("mn,mn->n", Z, prior.solve(S.Z) @ S.Z.T @ Z)
        left = prior.diagonal() - 2 * jnp.sum(S.Z * Z, 0) + squared
    else:
        every = jnp.eye(posterior.mean.size, dtype=posterior.mean.dtype)
        left = jnp.diagonal(left_over(posterior, every))
    return jnp.maximum(left, 0.0)


def standard_deviation(covariance: Any) -> Float[Array, " n"]:
    lazy = isinstance(covariance, Covariance)
    variances = covariance.diagonal() if lazy else jnp.diagonal(covariance)
    return jnp.sqrt(jnp.maximum(variances, 0.0))


def component_statistics(posterior: Moments, robust: bool = True):
    """Centre, spread and degrees of freedom of each component's t interval.

    Paths whose returns are all the same say nothing of the gradient: the spread is infinite. It is
    also infinite for a component that no path reaches and to which the prior gives no variance.
    """
    mean, (e, known) = posterior.mean, _explained(posterior)
    model = mean, standard_deviation(posterior.covariance), jnp.full_like(mean, jnp.inf)
    if not robust:
        return model
    D, freedom = influences(posterior), posterior.freedom
    left = _component_left_over(posterior) if _compared(posterior) else 0.0
    estimate = mean / e, D / e, left
    few = jnp.inf
    if posterior.bias_shows and len(D) > 1:
        estimate, known = _less_bias(*estimate, posterior.unbiased), jnp.all(known)
        freedom, few = jnp.min(freedom), _paths_that_count(estimate[1])
    centre, spread, freedom = _student(*estimate, freedom)
    centre, spread, freedom = _where(known, (centre, spread, jnp.minimum(freedom, few)), model)
    unreached = (spread == 0) & ~jnp.any(D != 0, 0) & (mean == 0)
    return centre, jnp.where(unreached | _silent(posterior, D), jnp.inf, spread), freedom


def _where(known: Bool[Array, "..."], one: tuple, other: tuple) -> tuple:
    return tuple(jnp.where(known, x, y) for x, y in zip(one, other, strict=True))


def _less_bias(centre: Float[Array, " n"], of_c: Float[Array, "M n"], left: Any, H: Any):
    """The estimate w c + (1 - w) h, its influences, and the variance that is left of its bias.

    c is the centre without regard to bias and h the mean of unbiased gradients, the rows of H.
    c - h is the bias b plus noise, whose variance v follows from the influences of both. With
    b ~ N(0, v (1 - w) / w) the posterior mean of the bias is (1 - w)(c - h), and w is uniform
    before (Strawderman, 1971): afterwards it has a gamma density on [0, 1], from the mean of
    (c - h)^2 / v over components, which count as f independent ones. What is left of the bias is
    w b, and its variance w^2 v times the expectation of 1 / w - 1.
    """
    h = jnp.mean(H, 0)
    of_h = (H - h) / (len(H) - 1)
    away, apart = centre - h, of_c - of_h
    unit = largest(apart)
    v = jnp.sum((apart / unit) ** 2, 0)
    some = v > 0
    Z = jnp.where(some, apart / unit, 0.0) / jnp.sqrt(jnp.where(some, v, 1.0))
    count = jnp.maximum(jnp.sum(some), 1).astype(v.dtype)
    f = jnp.clip(count**2 / jnp.maximum(jnp.sum((Z @ Z.T) ** 2), 1.0), 1.0, MOST_DIRECTIONS)
    squared = jnp.sum(jnp.where(some, (away / unit) ** 2 / jnp.where(some, v, 1.0), 0.0)) / count
    w, more = weight_of_biased(squared, f)
    return h + w * away, of_h + w * apart, w**2 * (left + more * unit**2 * v)


def weight_of_biased(squared: Float[Array, "*k"], f: Any):
    """The expectations of w and of 1 / w - 1, from the mean square of f independent
    (c - h) / sqrt(v) (see `_less_bias`)."""
    x, a = f / 2 * jnp.clip(squared, 0.25, 1e4), f / 2 + 1
    low, middle, high = (jax.scipy.special.gammainc(a + k, x) for k in (-1, 0, 1))
    return a / x * high / middle, jnp.maximum(x / (a - 1) * low / middle - 1, 0.0)


def _silent(posterior: Moments, D: Float[Array, "M n"]) -> Bool[Array, ""]:
    """Whether no path has any influence and the mean is zero, or no unbiased gradient judges it,
    although there is something to explain; where there is nothing, the prior is what is known."""
    known = jnp.all(_explained(posterior)[1])
    shown = jnp.any(D != 0) | jnp.any(posterior.mean != 0)
    if posterior.bias_shows:
        shown = shown & jnp.any(posterior.unbiased != 0)
    return known & ~shown


def direction_statistics(posterior: Moments, direction: Float[Array, " n"], robust: bool = True):
    """Centre, spread and degrees of freedom of the slope along a direction."""
    S, I, slope = posterior.covariance, posterior.influence, posterior.mean @ direction

    def spread():
        Sd = S.multiply(direction) if isinstance(S, Covariance) else S @ direction
        # A component that is zero in the direction may have an infinite variance.
        Sd = jnp.where(direction == 0, 0.0, Sd)
        return jnp.sqrt(jnp.maximum(direction @ Sd, 0.0))

    if not robust:
        return slope, spread(), jnp.asarray(jnp.inf)
    e, known = _explained(posterior)
    known = jnp.all(known)
    # In Model 1 every component has its own explained fraction: correct each before adding them.
    weights = direction / e
    along = I.along(weights) if isinstance(I, Influence) else I @ weights
    left = 0.0
    if _compared(posterior):
        left = jnp.maximum(left_over(posterior, direction) @ direction, 0.0)
    # The model's spread is used only where nothing is explained. It is computed only then, because
    # it may cost as much as a gradient.
    model = slope, jax.lax.cond(known, lambda: jnp.zeros_like(slope), spread), jnp.inf
    estimate = posterior.mean @ weights, along, left
    return _where(known, _student(*estimate, jnp.min(posterior.freedom)), model)


def unbiased_statistics(posterior: Moments, direction: Float[Array, " n"], robust: bool = True):
    """`direction_statistics` of the mean of the unbiased gradients of paths."""
    each = posterior.unbiased @ direction  # pyright: ignore[reportOptionalOperand]
    M, slope = len(each), jnp.mean(each)
    if M == 1:
        return slope, jnp.asarray(jnp.inf), jnp.ones(())
    return _student(slope, (each - slope) / (M - 1), 0.0, jnp.asarray(M - 1.0))


def uphill(posterior: Moments, natural: bool = False) -> Float[Array, ""]:
    """The probability that the return rises along the mean, or along G^-1 mean:
    `probability_uphill` without a direction, as a function that can be traced."""
    return jnp.min(jnp.stack([agreement(*of) for of in judges(posterior, natural)]))


def believed(
    posterior: Moments, natural: bool, weights: Weights
) -> tuple[Float[Array, ""], Weights]:
    """The same in a run, whose earlier updates have left `weights`, all zero before the first.
    Returns the weights after this update, too."""
    K, cosine = judges(posterior, natural)[0]
    of = spread(K)
    after = learn(weights, of)
    return probability(after, of, cosine), after


def judges(posterior: Moments, natural: bool) -> list[tuple[Float[Array, "B B"], Float[Array, ""]]]:
    """Inner products of the contributions that judge a step, in its metric, which is A for the
    direction A mean, and the cosine of the step with their sum: of the unbiased gradients of paths
    where they are given, else of what paths, or groups of them, add to the mean, and with
    `influence_judges` of the influences too.
    """
    if natural and posterior.fisher is None:
        raise ValueError("natural: this estimate was made without a Fisher matrix; give fisher=")
    rows = [posterior.unbiased if posterior.unbiased is not None else _contributions(posterior)]
    if posterior.influence_judges:
        rows.append(contributions(posterior.mean, influences(posterior)))
    metric = posterior.fisher.solve_roughly if natural and posterior.fisher is not None else None
    return [compared(C, posterior.mean, metric) for C in rows]


def _contributions(posterior: Moments) -> Float[Array, "B n"]:
    """What each path, or group of paths, adds to the mean."""
    I = posterior.influence if posterior.added is None else posterior.added
    C = I.matrix(GROUPS) if isinstance(I, Influence) else I
    return C if posterior.added is not None else contributions(posterior.mean, C)


def slopes(posterior: Moments, W: Float[Array, "r n"]):
    return jax.lax.map(lambda w: direction_statistics(posterior, w), W)


def influences(posterior: Moments) -> Float[Array, "M n"]:
    """The influences as an array."""
    I = posterior.influence
    return I.matrix() if isinstance(I, Influence) else I


def _student(centre, influence, left: Any, freedom):
    """Centre, spread and degrees of freedom of an estimate, from its influences, the variance that
    the paths leave of the prior, whose scale is chosen from M returns, and the freedom of the fit.
    """
    M, unit = influence.shape[0], largest(influence, 0)
    squares = (influence / unit) ** 2
    variance = squares.sum(0)
    sampled = unit * jnp.sqrt(variance)
    spread = jnp.hypot(sampled, jnp.sqrt(left))
    share = (sampled / jnp.where(spread > 0, spread, 1.0)) ** 2
    return centre, spread, _together(share, _satterthwaite(squares, variance, freedom, M), M)


def _paths_that_count(influence: Float[Array, "M n"]) -> Float[Array, " n"]:
    """The effective number of paths behind each component's spread (Kish), between 1 and M: the
    squared sum of the squared influences over the sum of their squares. What a step adds depends on
    the states that its path happens to visit, and a few of the paths may have added nearly all."""
    squares = (influence / largest(influence, 0)) ** 2
    total = jnp.sum(squares, 0)
    return jnp.where(total > 0, total**2 / jnp.sum(jnp.where(total > 0, squares, 1.0) ** 2, 0), 1.0)


def _together(share, freedom, M: int):
    """The degrees of freedom (Satterthwaite) of a variance of which `share` has `freedom` of them,
    and the rest, the prior's, the M - 1 of its scale; `freedom` where there is no rest."""
    both = 1 / (share**2 / freedom + (1 - share) ** 2 / max(M - 1.0, 1.0))
    return jnp.where(share < 1, both, freedom)


def _explained(posterior: Moments):
    """By what the mean is divided to undo the prior's shrinkage, and whether the paths explain more
    than rounding. Where they do not, the model's own statistics are used."""
    known = posterior.explained > NOTHING
    kept = posterior.explained if posterior.retained is None else posterior.retained
    return jnp.where(known, kept, 1.0), known


def _satterthwaite(squares, variance, freedom, M: int):
    """nu = 2M / (kurtosis - 1), at most the freedom left by the fit, at least 1."""
    kurtosis = M * jnp.sum((squares / jnp.where(variance > 0, variance, 1.0)) ** 2, 0)
    nu = jnp.minimum(2 * M / jnp.maximum(kurtosis - 1, 1e-3), freedom)
    return jnp.clip(nu, 1.0, max(M - 1.0, 1.0))


def region_statistics(posterior: Moments, gradient: Float[Array, " n"], robust: bool = True):
    """Squared distance of `gradient`, and the scale, rank and freedom of the F quantile it is
    compared with.

    The model's region is the ellipsoid of its covariance. The robust one is a ball in the metric
    G^-1, which stays well defined with fewer paths than parameters: with Z_i = D_i in that metric
    and V = sum |Z_i|^2, plus what the paths leave of the prior where that is a matrix,
    distance^2 / V is compared with F(f, nu), f the effective number of directions.
    """
    if not robust:
        return _ellipsoid(posterior, gradient)
    e, known = _explained(posterior)
    D, away = influences(posterior) / e, gradient - posterior.mean / e
    unit = largest(D)
    D, away = D / unit, away / unit
    M, n = D.shape

    def metric(V):
        G = posterior.fisher
        return V if G is None else G.solve(reached(G, V))

    K = D @ metric(D).T
    q = jnp.diagonal(K)
    sampled = jnp.where(_silent(posterior, D), jnp.inf, q.sum())
    cross = (jnp.sum(K**2) - jnp.sum(q**2)) * M / max(M - 1, 1)
    freedom = _satterthwaite(q, sampled, jnp.min(posterior.freedom), M)
    V = sampled
    if _compared(posterior) and not isinstance(posterior.covariance, Covariance):
        L = metric(left_over(posterior, jnp.eye(n, dtype=D.dtype)).T / unit**2)
        V = sampled + jnp.maximum(jnp.trace(L), 0.0)
        cross = cross + 2 * jnp.sum((D @ L) * metric(D)) + jnp.sum(L * L.T)
        freedom = _together(sampled / jnp.where(V > 0, V, 1.0), freedom, M)
    rank = jnp.clip(V**2 / jnp.maximum(cross, jnp.finfo(K.dtype).tiny), 1.0, n)
    ball = (away @ metric(away), V, rank, freedom)
    if isinstance(posterior.covariance, Covariance):
        return ball
    return _where(jnp.all(known), ball, _ellipsoid(posterior, gradient))


def _ellipsoid(posterior: Moments, gradient: Float[Array, " n"]):
    """With a singular covariance, what lies outside its range is left out of the comparison. If the
    scale of the covariance was estimated, errors of all components share its uncertainty."""
    S, away = posterior.covariance, gradient - posterior.mean
    if isinstance(S, Covariance):
        raise ValueError("region: the model's covariance is too large to invert; use robust=True")
    variances = jnp.diagonal(S)
    bounded = jnp.isfinite(variances)  # an infinite variance excludes nothing
    inverse = Dense(jnp.where(jnp.outer(bounded, bounded), S, jnp.eye(away.size)))
    z = jnp.where(bounded, away, 0.0)
    rank = jnp.maximum(jnp.sum(inverse.known), 1).astype(S.dtype)
    shared = posterior.scale_freedom
    freedom = jnp.asarray(1e12) if shared is None else jnp.maximum(shared, 1.0)
    return z @ inverse.solve(z) / rank, jnp.ones(()), rank, freedom
