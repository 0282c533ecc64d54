"""`GradientPosterior`: the questions that a posterior answers."""

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
from bayespg.posterior.decisions import (
    Certain,
    Episodes,
    episodes_needed,
    known_directions,
    ratio_quantiles,
)
from bayespg.posterior.moments import Moments
from bayespg.posterior.operators import LARGE, Covariance, Influence, Rescaled, RescaledInfluence
from bayespg.posterior.statistics import (
    component_statistics,
    direction_statistics,
    judges,
    region_statistics,
    robust_covariance,
    slopes,
    standard_deviation,
    unbiased_statistics,
    uphill,
)

MOST = 2**30
"""The largest number of random numbers in one sample, 8 GiB of them."""


def _solve(fisher: Fisher, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
    return fisher.solve(V)


class Interval(NamedTuple):
    """Lower and upper bounds, one pair per component."""

    lower: Float[Array, " n"]
    upper: Float[Array, " n"]


class GradientPosterior(Moments):
    """The posterior distribution of a policy gradient: what is stored of it, and the questions that
    it answers."""

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
        """The standard deviation of each component, according to the model."""
        return run(standard_deviation, self.covariance)

    @property
    def robust_covariance(self) -> Float[Array, "n n"]:
        """sum_i D_i D_i' / e^2 with D_i the rows of `influence` and e the fraction `retained`, or
        `explained`; with a prior of the gradient, plus the prior's variance that the paths leave:
        (A / e - I) B_0 (A / e - I)'."""
        return run(robust_covariance, self)

    def sample(self, key: PRNGKeyArray | int, k: int) -> Float[Array, "k n"]:
        """k draws from the model's posterior N(mean, covariance), given a key or a seed."""
        k = checks.whole("k", k, 1, MOST // self.mean.size)
        key = checks.key("key", key)
        if not traced(self) and not np.all(np.isfinite(self.standard_deviation)):
            raise ValueError(
                "sample: the covariance is infinite, as it is for Monte Carlo of one path"
            )
        return run(_sample, self, key, k)

    def interval(self, level: float = 0.95, *, robust: bool = True) -> Interval:
        """For each component, bounds that should contain the true gradient with probability
        `level`.

        They are about as far apart as the prior's where paths say nothing about a component, and
        infinite where there is no prior for it either, as in a state that no path visited. With
        ``robust=False`` the bounds use the model's covariance instead.
        """
        level, robust = checks.probability("level", level), checks.flag("robust", robust)
        centre, spread, freedom = run(component_statistics, self, robust)
        reach = spread * student_quantile(level, freedom)
        return Interval(centre - reach, centre + reach)

    def contains(self, gradient: Any, level: float = 0.95, *, robust: bool = True) -> bool:
        """Whether the joint region of probability `level` contains `gradient`.

        Where G is singular, `gradient` less the centre is projected onto the range of G, in units
        of the square roots of G's diagonal. What lies outside, which no score reaches, is left out
        of the comparison: it excludes no gradient, and nothing is said about it.
        """
        level, robust = checks.probability("level", level), checks.flag("robust", robust)
        gradient = checks.vector(
            "gradient", gradient, self.mean.shape[-1], "one entry per parameter"
        )
        distance, spread, rank, freedom = run(region_statistics, self, gradient, robust)
        return bool(distance <= spread * f_quantile(level, rank, freedom))

    def probability_uphill(
        self, direction: Any = None, *, natural: bool = False, robust: bool = True
    ) -> float:
        """The probability that the return rises along the mean, or along `direction`.

        Without `direction` it is the probability for a step along `mean`, or with `natural` along
        G^-1 mean, averaged over what paths leave open about the ratio of signal to noise (see
        `posterior.agreement`). Over batches drawn from its hyperprior the probability is the
        frequency of going uphill. For a given task it need not be: paths that neither agree nor
        disagree say about 0.7, whether there is a weak gradient or none. The column `sure` of a run
        learns that from earlier updates. With M paths it is at most 1 - 2^-M; with one path, or a
        mean of zero, it is one half. Where the posterior has `unbiased` gradients of paths, they
        are the judges, and it may be below one half.

        `direction` is for a direction chosen without these paths, such as a component or the mean
        of other paths. For a direction that these paths chose, such as ``posterior.mean``, the
        result would be optimistic, because their noise points the same way. ``robust=False`` uses
        the model's covariance.
        """
        natural, robust = checks.flag("natural", natural), checks.flag("robust", robust)
        if direction is None and robust:
            return float(run(uphill, self, natural))
        if direction is None:
            direction = self.natural if natural else self.mean
            if not np.any(direction):
                return 0.5
        elif natural:
            raise ValueError(
                "natural: has no effect on a direction that is given; leave out natural or "
                "direction"
            )
        d = checks.vector("direction", direction, self.mean.shape[-1], "one entry per parameter")
        if not d.any():
            raise ValueError("direction: all entries are zero")
        d = np.ldexp(d, -np.frexp(np.abs(d).max())[1])  # only its direction matters
        statistics = direction_statistics
        if robust and self.biased:
            statistics = unbiased_statistics
        centre, spread, freedom = run(statistics, self, d, robust)
        if spread == 0:
            return float(0.5 * (1 + np.sign(centre)))
        return float(student_probability(centre / spread, freedom))

    def episodes_needed(self, level: float = 0.95, *, natural: bool = False) -> Episodes:
        """How many more paths of this kind are needed until a step along the mean goes uphill with
        probability `level`, with an interval of that number.

        With `natural`, the step is along G^-1 mean. `probability_uphill` compares the same
        contributions of paths. Where the posterior has `unbiased` gradients of paths, the number is
        that of a step along their mean. At least two paths are needed. The numbers suppose that
        there is a gradient: they are infinite where all returns are equal, and where paths show
        nothing they are about those of a gradient of two standard errors.
        """
        level = checks.probability("level", level)
        natural = checks.flag("natural", natural)
        if self.paths < 2:
            raise ValueError(
                "episodes_needed: the spread of one path is unknown; give two paths or more"
            )
        needed = [
            episodes_needed(np.asarray(ratios), rows, self.paths, level)
            for ratios, rows in run(_ratios, self, natural)
        ]
        return Episodes(*(max(of) for of in zip(*needed, strict=True)))

    def certain(self, level: float = 0.95) -> Certain:
        """The directions whose slope is known not to be zero, among the eigenvectors of G, which do
        not depend on the returns; without G, among the parameters.

        All statements are jointly right with probability `level` (Bonferroni). Directions in the
        null space of G, which do not change the actions, are left out.
        """
        level = checks.probability("level", level)
        n = self.mean.size
        if n > LARGE:
            raise ValueError(
                f"certain: needs the eigenvectors of G, which are computed for at most {LARGE} "
                f"parameters, found {n}"
            )
        G = np.eye(n) if self.fisher is None else np.asarray(run(_matrix, self.fisher))
        eigenvalues, E = np.linalg.eigh(G)
        seen = eigenvalues > n * np.finfo(float).eps * eigenvalues[-1]
        W = (E[:, seen] / np.sqrt(eigenvalues[seen])).T
        centre, spread, freedom = run(slopes, self, W)
        reach = student_quantile(1 - (1 - level) / max(len(W), 1), freedom)
        return known_directions(W, centre, spread, reach)

    def __str__(self) -> str:
        return repr(self) if traced(self) else show.text(self)

    def _repr_html_(self) -> str | None:
        return None if traced(self) else show.html(self)


def _ratios(posterior: Moments, natural: bool) -> list[tuple[Float[Array, "3"], int]]:
    return [(ratio_quantiles(K), len(K)) for K, _ in judges(posterior, natural)]


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


def _sample(posterior: GradientPosterior, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
    covariance = posterior.covariance
    if isinstance(covariance, Covariance):
        return posterior.mean + covariance.sample(key, k)
    eigenvalues, Q = jnp.linalg.eigh(covariance)
    z = jax.random.normal(key, (k, eigenvalues.size), covariance.dtype)
    return posterior.mean + (z * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))) @ Q.T
