"""`GradientPosterior`: the questions that a posterior answers.

On plain arrays an answer is computed in float64 and consists of numbers and NumPy arrays. Inside
`jit` and `vmap` it consists of JAX arrays in the precision of the posterior, and only what has a
concrete value is checked.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.precision import run, traced
from bayespg._support.statistics import (
    f_probability,
    f_quantile,
    student_probability,
    student_quantile,
)
from bayespg._support.types import Array
from bayespg.fisher import Fisher
from bayespg.posterior import show
from bayespg.posterior.agreement import largest
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
    """The posterior distribution of a policy gradient."""

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

        They are about the prior's where paths say nothing about a component, and infinite where
        there is no prior for it either. Where an agent's estimator has a bias, as with lambda < 1,
        what the returns of the paths show of it is part of the bounds. With ``robust=False`` they
        use the model's covariance instead.
        """
        level, robust = checks.probability("level", level), checks.flag("robust", robust)
        centre, spread, freedom = run(component_statistics, self, robust)
        reach = spread * student_quantile(level, freedom)
        return Interval(centre - reach, centre + reach)

    def contains(
        self, gradient: Any, level: float = 0.95, *, robust: bool = True
    ) -> bool | Bool[Array, ""]:
        """Whether the joint region of probability `level` contains `gradient`.

        Where G is singular, `gradient` less the centre is projected onto the range of G, in units
        of the square roots of G's diagonal: what lies outside, which no score reaches, excludes no
        gradient.
        """
        level, robust = checks.probability("level", level), checks.flag("robust", robust)
        gradient = checks.vector(
            "gradient", gradient, self.mean.shape[-1], "one entry per parameter"
        )
        distance, spread, rank, freedom = run(region_statistics, self, gradient, robust)
        if traced(distance, level):
            ratio = distance / jnp.where(spread > 0, spread, 1.0)
            inside = f_probability(ratio, rank, freedom) <= level
            return jnp.where(spread > 0, inside, distance <= 0)
        return bool(distance <= spread * f_quantile(level, rank, freedom))

    def probability_uphill(
        self, direction: Any = None, *, natural: bool = False, robust: bool = True
    ) -> float:
        """The probability that the return rises along the mean, or along `direction`; inside `jit`
        and `vmap` it is an array.

        Without `direction` it is the probability for a step along `mean`, or with `natural` along
        G^-1 mean, averaged over what paths leave open about the ratio of signal to noise (see
        `posterior.agreement`). Over batches drawn from its hyperprior it is the frequency of going
        uphill. For a given task it need not be: paths that neither agree nor disagree say about
        0.7, whether there is a weak gradient or none; the column `sure` of a run learns that from
        earlier updates. With M paths it is at most 1 - 2^-M; with one path, or a mean of zero, one
        half. Where `unbiased` gradients of paths are the judges it may be below one half.

        `direction` is for a direction chosen without these paths, such as a component or the mean
        of other paths. For a direction that these paths chose, such as ``posterior.mean``, the
        result would be optimistic, because their noise points the same way. ``robust=False`` uses
        the model's covariance.
        """
        natural, robust = checks.flag("natural", natural), checks.flag("robust", robust)
        if direction is None and robust:
            return _plain(run(uphill, self, natural))
        if direction is None:
            return _plain(run(_along, self, self.natural if natural else self.mean, robust))
        if natural:
            raise ValueError(
                "natural: has no effect on a direction that is given; leave out natural or "
                "direction"
            )
        d = checks.vector("direction", direction, self.mean.shape[-1], "one entry per parameter")
        if not traced(d):
            if not d.any():
                raise ValueError("direction: all entries are zero")
            d = np.ldexp(d, -np.frexp(np.abs(d).max())[1])  # only its direction matters
        return _plain(run(_along, self, d, robust))

    def episodes_needed(self, level: float = 0.95, *, natural: bool = False) -> Episodes:
        """How many more paths of this kind are needed until a step along the mean goes uphill with
        probability `level`, with an interval of that number.

        With `natural`, the step is along G^-1 mean; with `unbiased` gradients of paths it is along
        their mean. At least two paths are needed. The numbers suppose that there is a gradient:
        they are infinite where all returns are equal, and where paths show nothing the interval
        is wide: a gradient shorter than its standard error may have any length.
        """
        level = checks.probability("level", level)
        natural = checks.flag("natural", natural)
        if self.paths < 2:
            raise ValueError(
                "episodes_needed: the spread of one path is unknown; give two paths or more"
            )
        needed = run(_episodes_needed, self, natural, self.paths, _argument(level))
        return Episodes(*map(_plain, needed))

    def certain(self, level: float = 0.95) -> Certain:
        """The directions whose slope is known not to be zero, jointly with probability `level`
        (Bonferroni), among the eigenvectors of G; without G, among the parameters.

        Directions in the null space of G, which do not change the actions, are left out. Inside a
        transformation there is a row per parameter, and `Certain.known` says which rows count.
        """
        level = checks.probability("level", level)
        n = self.mean.size
        if n > LARGE:
            raise ValueError(
                f"certain: needs the eigenvectors of G, which are computed for at most {LARGE} "
                f"parameters, found {n}"
            )
        rows = run(_certain, self, _argument(level))
        return rows if traced(rows) else Certain(*(row[rows.known] for row in rows))

    def __str__(self) -> str:
        return repr(self) if traced(self) else show.text(self)

    def _repr_html_(self) -> str | None:
        return None if traced(self) else show.html(self)


def _plain(x: Any) -> Any:
    """A number of Python, or the array itself inside a transformation."""
    return x if traced(x) else float(x)


def _argument(level: Any) -> Any:
    """A number as an array, so that a program is compiled once for all values of it."""
    return level if traced(level) else np.asarray(level)


def _along(posterior: GradientPosterior, direction: Float[Array, " n"], robust: bool):
    """P(slope > 0) along a direction, of any length."""
    direction = direction / largest(direction)
    statistics = unbiased_statistics if robust and posterior.biased else direction_statistics
    centre, spread, freedom = statistics(posterior, direction, robust)
    t = centre / jnp.where(spread == 0, 1.0, spread)
    return jnp.where(spread == 0, 0.5 * (1 + jnp.sign(centre)), student_probability(t, freedom))


def _episodes_needed(posterior: GradientPosterior, natural: bool, paths: int, level: Any):
    each = (
        episodes_needed(ratio_quantiles(K), len(K), paths, level)
        for K, _ in judges(posterior, natural)
    )
    return Episodes(*(functools.reduce(jnp.maximum, of) for of in zip(*each, strict=True)))


def _certain(posterior: GradientPosterior, level: Any) -> Certain:
    n, dtype = posterior.mean.size, posterior.mean.dtype
    G = jnp.eye(n, dtype=dtype) if posterior.fisher is None else posterior.fisher.matrix()
    eigenvalues, E = jnp.linalg.eigh(G)
    acts = eigenvalues > n * jnp.finfo(dtype).eps * eigenvalues[-1]
    W = jnp.where(acts, E / jnp.sqrt(jnp.where(acts, eigenvalues, 1.0)), 0.0).T
    centre, spread, freedom = slopes(posterior, W)
    count = jnp.maximum(jnp.sum(acts), 1)
    reach = student_quantile(1 - (1 - level) / count, freedom).astype(dtype)
    return known_directions(W, centre, spread, reach)


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
