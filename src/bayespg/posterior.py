"""What is known about the gradient: `GradientPosterior`.

Two answers to "how sure?". The covariance of the model is right if the model is; on real returns, whose noise grows
with the score, it is overconfident. `influence` holds the exact change of the mean when each path is left out,
and its sum of outer products, the jackknife or leverage-corrected sandwich, asks no noise model. Intervals use the
second, with a quantile for small samples.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array, Float, PRNGKeyArray

from bayespg import checks
from bayespg.fisher import Fisher
from bayespg.precision import in_float64, traced


class Covariance(eqx.Module):
    """A covariance that is too large to write down."""

    @abc.abstractmethod
    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]: ...

    @abc.abstractmethod
    def diagonal(self) -> Float[Array, " n"]: ...

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]: ...


class Diagonal(Covariance):
    """Independent components."""

    variances: Float[Array, " n"]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return V * self.variances

    def diagonal(self) -> Float[Array, " n"]:
        return self.variances

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        return jnp.sqrt(self.variances) * jax.random.normal(key, (k, self.variances.size))


class Downdate(Covariance):
    """scale G - Z'Z: what the prior held, less what M paths explained."""

    fisher: Fisher
    scale: float | Float[Array, ""]
    Z: Float[Array, "M n"]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.scale * self.fisher.multiply(V) - (V @ self.Z.T) @ self.Z

    def diagonal(self) -> Float[Array, " n"]:
        return self.scale * self.fisher.diagonal() - jnp.sum(self.Z**2, 0)

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        """x - Z' E d(l) E' Z (scale G)^-1 x for x ~ N(0, scale G), where Z (scale G)^-1 Z' = E diag(l) E' and
        d(l) = (1 - sqrt(1 - l)) / l: a root of the difference, with no n x n array."""
        x = jnp.sqrt(self.scale) * self.fisher.sample(key, (k,))
        W = self.fisher.solve(self.Z) / self.scale
        eigenvalues, E = jnp.linalg.eigh(W @ self.Z.T)
        l = jnp.clip(eigenvalues, 1e-12, 1.0)
        shrink = (1 - jnp.sqrt(1 - l)) / l
        return x - ((((x @ W.T) @ E) * shrink) @ E.T) @ self.Z


def _solve(fisher: Fisher, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
    return fisher.solve(V)


class GradientPosterior(eqx.Module):
    """The posterior distribution of a policy gradient."""

    mean: Float[Array, " n"]
    covariance: Float[Array, "n n"] | Covariance
    """Of the model; an operator where n is large."""
    fisher: Fisher | None
    influence: Float[Array, "M n"]
    """Row i: the mean minus the mean without path i."""
    info: dict[str, Any]
    """How it went: evidence (log marginal likelihood), condition, jitter, dictionary size."""

    @property
    def natural(self) -> Float[Array, " n"]:
        """G^-1 mean, the natural gradient."""
        if self.fisher is None:
            raise ValueError("natural: this estimate was made without a Fisher matrix; give fisher=")
        if traced(self.mean, self.fisher):
            return self.fisher.solve(self.mean)
        return in_float64(_solve)(self.fisher, self.mean)

    @property
    def standard_deviation(self) -> Float[Array, " n"]:
        """Of each component, according to the model."""
        variances = (
            self.covariance.diagonal()
            if isinstance(self.covariance, Covariance)
            else jnp.diagonal(self.covariance, axis1=-2, axis2=-1)
        )
        return jnp.sqrt(jnp.maximum(variances, 0.0))
