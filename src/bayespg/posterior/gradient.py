"""`GradientPosterior`, and the statistics behind its intervals and regions."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.precision import run, traced
from bayespg._support.statistics import f_quantile, student_probability, student_quantile
from bayespg._support.types import Array
from bayespg.fisher import Fisher
from bayespg.posterior import show
from bayespg.posterior.agreement import GROUPS, agreement, contributions
from bayespg.posterior.decisions import Certain, Episodes, episodes_needed, known_directions
from bayespg.posterior.operators import LARGE, Covariance, Influence, Rescaled, RescaledInfluence

NOTHING = 1e-12
"""Fraction explained below which a posterior is taken for the prior."""


def _solve(fisher: Fisher, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
    return fisher.solve(V)


class Interval(NamedTuple):
    """Bounds, one pair a component."""

    lower: Float[Array, " n"]
    upper: Float[Array, " n"]


class GradientPosterior(eqx.Module):
    """The posterior distribution of a policy gradient."""

    mean: Float[Array, " n"]
    covariance: Float[Array, "n n"] | Covariance
    """Of the model; an operator where n is large."""
    fisher: Fisher | None
    influence: Float[Array, "M n"] | Influence
    """Row i: the mean minus the mean without path i; an operator where n is large."""
    explained: Float[Array, ""] | Float[Array, " n"]
    """Fraction of the prior variance that the paths explain: how far the prior pulls the mean
    towards zero."""
    freedom: Float[Array, ""] | Float[Array, " n"]
    """Paths less the effective number of parameters fitted to them."""
    info: dict[str, Any]
    """How it went: evidence (log marginal likelihood), condition, rank of G, dictionary size."""
    prior: Covariance | None = None
    """B_0, the covariance before any path was seen; None where there is no prior."""
    added: Float[Array, "rows n"] | Influence | None = None
    """Row i: what path i adds to the mean, and further rows for what belongs to no path; None where
    that is to be had from `influence` only."""

    @property
    def natural(self) -> Float[Array, " n"]:
        """G^-1 mean, the natural gradient."""
        if self.fisher is None:
            raise ValueError(
                "natural: this estimate was made without a Fisher matrix; give fisher="
            )
        return run(_solve, self.fisher, self.mean)

    @property
    def standard_deviation(self) -> Float[Array, " n"]:
        """Of each component, according to the model."""
        return run(_standard_deviation, self.covariance)

    @property
    def robust_covariance(self) -> Float[Array, "n n"]:
        """sum_i D_i D_i' / explained^2, with D_i the rows of `influence`."""
        return run(_robust_covariance, self)

    @property
    def paths(self) -> int:
        """M, the number of paths."""
        I = self.influence
        if isinstance(I, Influence):
            return jax.eval_shape(lambda: I.along(jnp.zeros_like(self.mean))).shape[0]
        return I.shape[0]

    def sample(self, key: PRNGKeyArray | int, k: int) -> Float[Array, "k n"]:
        """k draws from the model's posterior N(mean, covariance), given a key or a seed."""
        k = checks.whole("k", k, 1)
        if isinstance(key, int | np.integer):
            key = jax.random.key(checks.whole("key", key, 0))
        if not traced(self) and not np.all(np.isfinite(self.standard_deviation)):
            raise ValueError(
                "sample: the covariance is infinite, as it is for Monte Carlo of one path"
            )
        return run(_sample, self, key, k)

    def interval(self, level: float = 0.95, *, robust: bool = True) -> Interval:
        """For each component, bounds that should hold the true gradient with probability `level`.

        `robust` False trusts the model's covariance instead.
        """
        level = checks.probability("level", level)
        centre, spread, freedom = run(component_statistics, self, robust)
        reach = spread * student_quantile(level, freedom)
        return Interval(centre - reach, centre + reach)

    def contains(self, gradient: Any, level: float = 0.95, *, robust: bool = True) -> bool:
        """Whether the joint region of probability `level` holds `gradient`."""
        level = checks.probability("level", level)
        gradient = checks.vector("gradient", gradient, self.mean.shape[-1], "one entry a parameter")
        distance, spread, rank, freedom = run(region_statistics, self, gradient, robust)
        return bool(distance <= spread * f_quantile(level, rank, freedom))

    def probability_uphill(
        self, direction: Any = None, *, natural: bool = False, robust: bool = True
    ) -> float:
        """The probability that the return rises along the mean, or along `direction`.

        Without an argument it is for following `mean`, or with `natural` G^-1 mean, and each path
        is judged by the others (`agreement`): on returns of pure noise it is uniform between 0 and
        1, and on average it does not exceed the frequency of going uphill. M paths can say no more
        than 1 - 2^-M (Model 1, whose constant counts as one more, 1 - 2^-(M + 1)); one path, or a
        mean of zero, says one half.

        `direction` is for a direction chosen without these paths: a component, or the mean of other
        paths. For one that these paths chose, such as ``posterior.mean``, that answer would be
        optimistic: their noise points that way too. `robust` False trusts the model's covariance.
        """
        natural = checks.flag("natural", natural)
        if direction is None and robust:
            return float(run(uphill, self, natural))
        if direction is None:
            direction = self.natural if natural else self.mean
            if not np.any(direction):
                return 0.5
        elif natural:
            raise ValueError(
                "natural: True, but a direction was given, and it is taken as it is; leave one out"
            )
        d = checks.vector("direction", direction, self.mean.shape[-1], "one entry a parameter")
        if not d.any():
            raise ValueError("direction: all entries are zero")
        centre, spread, freedom = run(direction_statistics, self, d, robust)
        if spread == 0:
            return float(0.5 * (1 + np.sign(centre)))
        return float(student_probability(centre / spread, freedom))

    def episodes_needed(self, level: float = 0.95, *, natural: bool = False) -> Episodes:
        """How many more paths like these until following the mean goes uphill with probability
        `level`, and the interval of that number.

        With `natural`, following G^-1 mean. It is the probability itself, which
        `probability_uphill` tells with caution and therefore later. Two paths at least; infinite
        where these show no gradient.
        """
        level = checks.probability("level", level)
        natural = checks.flag("natural", natural)
        if self.paths < 2:
            raise ValueError(
                "episodes_needed: one path says nothing of its spread; give two or more"
            )
        left_out = eqx.tree_at(lambda p: p.added, self, None, is_leaf=lambda x: x is None)
        K = run(_products, left_out, natural)
        return episodes_needed(np.asarray(K), self.paths, level)

    def certain(self, level: float = 0.95) -> Certain:
        """The directions whose slope is known not to be zero, among the eigenvectors of G, which
        the returns did not choose; without G, among the parameters.

        All of them together are right with probability `level` (Bonferroni). Directions that change
        no action, in the null space of G, are left out.
        """
        level = checks.probability("level", level)
        n = self.mean.size
        if n > LARGE:
            raise ValueError(
                f"certain: {n} parameters, and eigenvectors of G are for {LARGE} at most"
            )
        G = np.eye(n) if self.fisher is None else np.asarray(run(_matrix, self.fisher))
        eigenvalues, E = np.linalg.eigh(G)
        seen = eigenvalues > n * np.finfo(float).eps * eigenvalues[-1]
        W = (E[:, seen] / np.sqrt(eigenvalues[seen])).T
        centre, spread, freedom = run(_slopes, self, W)
        reach = student_quantile(1 - (1 - level) / max(len(W), 1), freedom)
        return known_directions(W, centre, spread, reach)

    def __str__(self) -> str:
        return repr(self) if traced(self) else show.text(self)

    def _repr_html_(self) -> str | None:
        return None if traced(self) else show.html(self)


def _matrix(fisher: Fisher) -> Float[Array, "n n"]:
    return fisher.matrix()


def rescaled(posterior: GradientPosterior, units: Float[Array, ""]) -> GradientPosterior:
    """The posterior of `units` times the gradient: of returns that were divided by them."""
    S, prior = posterior.covariance, posterior.prior

    def times(D):
        return RescaledInfluence(D, units) if isinstance(D, Influence) else units * D

    return eqx.tree_at(
        lambda p: (p.mean, p.prior, p.covariance, p.influence, p.added),
        posterior,
        (
            units * posterior.mean,
            None if prior is None else Rescaled(prior, units),
            Rescaled(S, units) if isinstance(S, Covariance) else units**2 * S,
            times(posterior.influence),
            None if posterior.added is None else times(posterior.added),
        ),
        is_leaf=lambda x: x is None,
    )


def _robust_covariance(posterior: GradientPosterior) -> Float[Array, "n n"]:
    e, known = _explained(posterior)
    D = influences(posterior) / e
    if isinstance(posterior.covariance, Covariance):
        return D.T @ D
    return jnp.where(jnp.all(known), D.T @ D, posterior.covariance)


def _standard_deviation(covariance: Any) -> Float[Array, " n"]:
    lazy = isinstance(covariance, Covariance)
    variances = covariance.diagonal() if lazy else jnp.diagonal(covariance)
    return jnp.sqrt(jnp.maximum(variances, 0.0))


def _sample(posterior: GradientPosterior, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
    covariance = posterior.covariance
    if isinstance(covariance, Covariance):
        return posterior.mean + covariance.sample(key, k)
    eigenvalues, Q = jnp.linalg.eigh(covariance)
    z = jax.random.normal(key, (k, eigenvalues.size), covariance.dtype)
    return posterior.mean + (z * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))) @ Q.T


# The statistics behind intervals and regions are pure functions: thousands of posteriors can be
# judged at once.


def component_statistics(posterior: GradientPosterior, robust: bool = True):
    """Centre, spread and degrees of freedom of each component's t interval."""
    model = (posterior.mean, _standard_deviation(posterior.covariance), jnp.inf)
    return _student(posterior.mean, influences(posterior), posterior, model, robust)


def direction_statistics(
    posterior: GradientPosterior, direction: Float[Array, " n"], robust: bool = True
):
    """The same for the slope along a direction."""
    S, I, slope = posterior.covariance, posterior.influence, posterior.mean @ direction

    def spread():
        Sd = S.multiply(direction) if isinstance(S, Covariance) else S @ direction
        # A component that the direction leaves alone may have an infinite variance.
        Sd = jnp.where(direction == 0, 0.0, Sd)
        return jnp.sqrt(jnp.maximum(direction @ Sd, 0.0))

    if not robust:
        return slope, spread(), jnp.asarray(jnp.inf)
    known = jnp.min(posterior.explained) > NOTHING
    # The model speaks only where nothing is explained: what it says may cost as much as a gradient.
    model = (
        slope,
        jax.lax.cond(known, lambda: jnp.zeros_like(slope), spread),
        jnp.asarray(jnp.inf),
    )
    # Where components are explained differently (Model 1), each is corrected before they are added.
    weights = direction / _explained(posterior)[0]
    whole = eqx.tree_at(
        lambda p: (p.explained, p.freedom),
        posterior,
        (jnp.where(known, 1.0, 0.0), jnp.min(posterior.freedom)),
    )
    along = I.along(weights) if isinstance(I, Influence) else I @ weights
    return _student(posterior.mean @ weights, along, whole, model, robust)


def uphill(posterior: GradientPosterior, natural: bool = False) -> Float[Array, ""]:
    """The probability that the return rises along the mean, or G^-1 times it, which these paths
    chose: `probability_uphill` without a direction, as a function that can be traced.

    The metric in which contributions agree is that of the step: A for the direction A mean. Where
    influences are an operator, groups of paths stand for paths.
    """
    return agreement(_products(posterior, natural))


def _products(posterior: GradientPosterior, natural: bool) -> Float[Array, "B B"]:
    """Inner products of contributions in the metric of the step, in units of the largest."""
    I = posterior.influence if posterior.added is None else posterior.added
    C = I.matrix(GROUPS) if isinstance(I, Influence) else I
    if posterior.added is None:
        C = contributions(posterior.mean, C)
    C = jnp.where(jnp.any(posterior.mean != 0), C / _unit(C), 0.0)
    if not natural:
        return C @ C.T
    if posterior.fisher is None:
        raise ValueError("natural: this estimate was made without a Fisher matrix; give fisher=")
    K = C @ posterior.fisher.solve(C).T
    return (K + K.T) / 2


def _slopes(posterior: GradientPosterior, W: Float[Array, "r n"]):
    return jax.lax.map(lambda w: direction_statistics(posterior, w), W)


def influences(posterior: GradientPosterior) -> Float[Array, "M n"]:
    """Written down."""
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


def _explained(posterior: GradientPosterior):
    """The fraction explained, and whether it is more than rounding: where nothing is, the model
    speaks."""
    known = posterior.explained > NOTHING
    return jnp.where(known, posterior.explained, 1.0), known


def _unit(X: Float[Array, "..."], axis: int | None = None) -> Float[Array, "..."]:
    """The largest entry, in whose units fourth powers neither overflow nor vanish."""
    largest = jnp.max(jnp.abs(X), axis, initial=0.0)
    return jnp.where(largest > 0, largest, 1.0)


def _satterthwaite(squares, variance, freedom, M: int):
    """nu = 2M / (kurtosis - 1), at most the freedom left by the fit, at least 1."""
    kurtosis = M * jnp.sum((squares / jnp.where(variance > 0, variance, 1.0)) ** 2, 0)
    nu = jnp.minimum(2 * M / jnp.maximum(kurtosis - 1, 1e-3), freedom)
    return jnp.clip(nu, 1.0, max(M - 1.0, 1.0))


def region_statistics(
    posterior: GradientPosterior, gradient: Float[Array, " n"], robust: bool = True
):
    """Squared distance of `gradient`, and the scale, rank and freedom of the F quantile it is held
    against.

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
    V = q.sum()
    cross = (jnp.sum(K**2) - jnp.sum(q**2)) * M / max(M - 1, 1)
    rank = jnp.clip(V**2 / jnp.maximum(cross, jnp.finfo(K.dtype).tiny), 1.0, n)
    freedom = _satterthwaite(q, V, jnp.min(posterior.freedom), M)
    found = (away @ metric(away), V, rank, freedom)
    if isinstance(posterior.covariance, Covariance):
        return found
    model = _ellipsoid(posterior, gradient)
    return jax.tree.map(lambda new, old: jnp.where(jnp.all(known), new, old), found, model)


def _ellipsoid(posterior: GradientPosterior, gradient: Float[Array, " n"]):
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
