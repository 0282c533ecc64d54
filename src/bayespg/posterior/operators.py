"""Covariances and influences as operators, for sizes at which their matrices are too large."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, PRNGKeyArray

from bayespg import fisher as fishers
from bayespg._support.types import Array
from bayespg.fisher import Fisher, Spectral

LARGE = 2048
"""The number of parameters beyond which a covariance is an operator."""


class Covariance(eqx.Module):
    """A covariance given by its products, its diagonal and its samples."""

    @abc.abstractmethod
    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]: ...

    @abc.abstractmethod
    def diagonal(self) -> Float[Array, " n"]: ...

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]: ...


class Invertible(Covariance):
    """A covariance that one can solve with, as priors are; a singular one acts through a
    generalised inverse."""

    @abc.abstractmethod
    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]: ...


class Diagonal(Invertible):
    """Independent components."""

    variances: Float[Array, " n"]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return V * self.variances

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        known = self.variances > 0
        return jnp.where(known, V / jnp.where(known, self.variances, 1.0), 0.0)

    def diagonal(self) -> Float[Array, " n"]:
        return self.variances

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        return jnp.sqrt(self.variances) * jax.random.normal(key, (k, self.variances.size))


class Downdate(Covariance):
    """B_0 - Z'Z: the prior covariance minus what the samples explained."""

    prior: Invertible
    Z: Float[Array, "M n"]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.prior.multiply(V) - (V @ self.Z.T) @ self.Z

    def diagonal(self) -> Float[Array, " n"]:
        return self.prior.diagonal() - jnp.sum(self.Z**2, 0)

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        """x - Z' E d(l) E' Z B_0^-1 x for x ~ N(0, B_0), where Z B_0^-1 Z' = E diag(l) E' and
        d(l) = (1 - sqrt(1 - l)) / l: a root of the difference, with no n x n array."""
        x = self.prior.sample(key, k)
        W = self.prior.solve(self.Z)
        eigenvalues, E = jnp.linalg.eigh(W @ self.Z.T)
        l = jnp.clip(eigenvalues, 1e-12, 1.0)
        shrink = (1 - jnp.sqrt(1 - l)) / l
        return x - ((((x @ W.T) @ E) * shrink) @ E.T) @ self.Z


class Multiple(Invertible):
    """scale G, the prior of Model 2 and of the actor-critic."""

    fisher: Fisher
    scale: float | Float[Array, ""]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.scale * self.fisher.multiply(V)

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.fisher.solve(V) / self.scale

    def diagonal(self) -> Float[Array, " n"]:
        return self.scale * self.fisher.diagonal()

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        return jnp.sqrt(self.scale) * self.fisher.sample(key, (k,))


class Damped(Invertible):
    """scale G D^-1 G, the prior of the gradient G w with w ~ N(0, scale D^-1)."""

    information: Fisher
    fisher: Fisher
    """D, which is G with damping."""
    scale: float | Float[Array, ""]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        G = self.information
        return self.scale * G.multiply(self.fisher.solve(G.multiply(V)))

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        G = self.information
        return G.solve(self.fisher.multiply(G.solve(V))) / self.scale

    def diagonal(self) -> Float[Array, " n"]:
        G, D = self.information, self.fisher
        if isinstance(G, Spectral) and isinstance(D, Spectral):  # their eigenvectors are the same
            W = G.over(D)
            GW = Spectral(G.directions, G.eigenvalues * W.eigenvalues, G.rest * W.rest)
            return self.scale * GW.diagonal()
        return jnp.diagonal(self.multiply(jnp.eye(self.fisher.size)))

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        drawn = self.fisher.solve(self.fisher.sample(key, (k,)))
        return jnp.sqrt(self.scale) * self.information.multiply(drawn)


def of_gradient(fisher: Fisher, scale: float | Float[Array, ""]) -> Invertible:
    """The prior of the gradient G w for w ~ N(0, scale D^-1), where D is G or has damping."""
    if isinstance(fisher, fishers.Damped):
        return Damped(fisher.information, fisher.solver, scale)
    return Multiple(fisher, scale)


class Influence(eqx.Module):
    """Influences of paths whose components along a direction are cheaper than the whole matrix."""

    @abc.abstractmethod
    def along(self, direction: Float[Array, " n"]) -> Float[Array, " M"]: ...

    @abc.abstractmethod
    def matrix(self, groups: int | None = None) -> Float[Array, "M n"]:
        """All rows as an array; with `groups`, their sums over that many groups of successive
        paths, each of which costs as much as one row."""


class Rescaled(Covariance):
    """units^2 S."""

    of: Covariance
    units: Float[Array, ""]

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return self.units * self.of.multiply(self.units * V)

    def diagonal(self) -> Float[Array, " n"]:
        return self.units**2 * self.of.diagonal()

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        return self.units * self.of.sample(key, k)


class RescaledInfluence(Influence):
    """units D."""

    of: Influence
    units: Float[Array, ""]

    def along(self, direction: Float[Array, " n"]) -> Float[Array, " M"]:
        return self.units * self.of.along(direction)

    def matrix(self, groups: int | None = None) -> Float[Array, "M n"]:
        return self.units * self.of.matrix(groups)
