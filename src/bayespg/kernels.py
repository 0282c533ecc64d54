"""Kernels. Each is written for one pair and carries its integrals.

A kernel maps two points to a covariance. The Fisher kernels know their integrals against the path
distribution whatever that distribution is (Propositions 3 and 4); the Gaussian kernel knows them
against a Gaussian measure, which is Bayes-Hermite quadrature.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Float

from bayespg.fisher import Dense, Fisher
from bayespg.types import Array


class Kernel(eqx.Module):
    """k(x, x')."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, ""]: ...


def gram(
    kernel: Kernel, X: Float[Array, "M d"], Y: Float[Array, "N d"] | None = None
) -> Float[Array, "M N"]:
    """[K]_ij = k(x_i, y_j)."""
    Y = X if Y is None else Y
    return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(Y))(X)


class Constant(Kernel):
    """A constant of unknown height: the baseline."""

    variance: float | Float[Array, ""] = 1.0

    def __call__(self, x: Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.asarray(self.variance)


class Sum(Kernel):
    """k_1 + k_2."""

    first: Kernel
    second: Kernel

    def __call__(self, x: Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, ""]:
        return self.first(x, y) + self.second(x, y)


class Scaled(Kernel):
    """c k."""

    kernel: Kernel
    scale: float | Float[Array, ""]

    def __call__(self, x: Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, ""]:
        return self.scale * self.kernel(x, y)


class FisherKernel(Kernel):
    """A kernel between paths through their scores, with its integrals in closed form.

    `cross` and `prior` are B and B_0 of the gradient; `features` and `functional` the same in
    weight space, where K = Psi Psi' and the gradient is V e for weights e ~ N(0, I).
    """

    fisher: eqx.AbstractVar[Fisher]

    @abc.abstractmethod
    def gram(self, U: Float[Array, "M n"], V: Float[Array, "N n"]) -> Float[Array, "M N"]: ...

    @abc.abstractmethod
    def diagonal(self, U: Float[Array, "M n"]) -> Float[Array, " M"]: ...

    @abc.abstractmethod
    def cross(self, U: Float[Array, "M n"]) -> Float[Array, "k M"]: ...

    @abc.abstractmethod
    def prior(self) -> Float[Array, "k k"]: ...

    @abc.abstractmethod
    def explained(self, U: Float[Array, "M n"], gain: Float[Array, "k M"]) -> Float[Array, ""]:
        """tr(B_0^-1 B C B') / k for gain = B C: the fraction of the prior variance that the paths
        explain."""

    @abc.abstractmethod
    def features(self, U: Float[Array, "M n"]) -> Float[Array, "M p"]: ...

    @abc.abstractmethod
    def functional(self) -> Float[Array, "k p"]: ...


class Linear(FisherKernel):
    """u' G^-1 v, the Fisher kernel of Eq. 27, against grad Pr(xi) (Proposition 4)."""

    fisher: Fisher

    def __call__(self, x: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, ""]:
        return x @ self.fisher.solve(y)

    def gram(self, U: Float[Array, "M n"], V: Float[Array, "N n"]) -> Float[Array, "M N"]:
        return U @ self.fisher.solve(V).T

    def diagonal(self, U: Float[Array, "M n"]) -> Float[Array, " M"]:
        return jnp.sum(U * self.fisher.solve(U), -1)

    def cross(self, U: Float[Array, "M n"]) -> Float[Array, "n M"]:
        """B = U."""
        return U.T

    def prior(self) -> Float[Array, "n n"]:
        """B_0 = G."""
        return self.fisher.matrix()

    def explained(self, U: Float[Array, "M n"], gain: Float[Array, "n M"]) -> Float[Array, ""]:
        return jnp.sum(gain.T * self.fisher.solve(U)) / self.fisher.size

    def features(self, U: Float[Array, "M n"]) -> Float[Array, "M n"]:
        """The whitened scores."""
        return _dense(self.fisher).whiten(U)

    def functional(self) -> Float[Array, "n n"]:
        """A root of G."""
        dense = _dense(self.fisher)
        return dense.colour(jnp.eye(dense.size)).T


class Quadratic(FisherKernel):
    """(1 + u' G^-1 v)^2, the quadratic Fisher kernel of Eq. 22, against Pr(xi) (Proposition 3)."""

    fisher: Fisher

    def __call__(self, x: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, ""]:
        return (1 + x @ self.fisher.solve(y)) ** 2

    def gram(self, U: Float[Array, "M n"], V: Float[Array, "N n"]) -> Float[Array, "M N"]:
        return (1 + U @ self.fisher.solve(V).T) ** 2

    def diagonal(self, U: Float[Array, "M n"]) -> Float[Array, " M"]:
        return (1 + jnp.sum(U * self.fisher.solve(U), -1)) ** 2

    def cross(self, U: Float[Array, "M n"]) -> Float[Array, "1 M"]:
        """b_i = 1 + u_i' G^-1 u_i."""
        return 1 + jnp.sum(U * self.fisher.solve(U), -1)[None]

    def prior(self) -> Float[Array, "1 1"]:
        """b_0 = 1 + n."""
        return jnp.full((1, 1), 1.0 + self.fisher.size)

    def explained(self, U: Float[Array, "M n"], gain: Float[Array, "1 M"]) -> Float[Array, ""]:
        return jnp.sum(gain * self.cross(U)) / (1.0 + self.fisher.size)

    def features(self, U: Float[Array, "M n"]) -> Float[Array, "M p"]:
        """The (n+1)(n+2)/2 monomials 1, sqrt2 s_i, s_i^2, sqrt2 s_i s_j of the whitened scores
        s."""
        S = _dense(self.fisher).whiten(U)
        i, j = np.triu_indices(S.shape[-1], 1)
        root2 = jnp.sqrt(jnp.asarray(2.0, S.dtype))
        return jnp.concatenate(
            [jnp.ones_like(S[:, :1]), root2 * S, S**2, root2 * S[:, i] * S[:, j]], -1
        )

    def functional(self) -> Float[Array, "1 p"]:
        """The expectation of the features: 1 for the constant and for each square, E[s s'] = I."""
        n = self.fisher.size
        parts = (np.ones(1), np.zeros(n), np.ones(n), np.zeros(n * (n - 1) // 2))
        return jnp.concatenate(parts)[None]


def _dense(fisher: Fisher) -> Dense:
    return fisher if isinstance(fisher, Dense) else Dense(fisher.matrix())


class Gaussian(Kernel):
    """exp(-|x - x'|^2 / (2 length_scale^2)); one length scale, or one a dimension."""

    length_scale: float | Float[Array, ""] | Float[Array, " d"]

    def __call__(self, x: Float[Array, " d"], y: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.exp(-0.5 * jnp.sum(((x - y) / self.length_scale) ** 2))

    def integral(
        self, points: Float[Array, "M d"], mean: Float[Array, " d"], covariance: Float[Array, "d d"]
    ) -> Float[Array, " M"]:
        """b_i = int k(x, x_i) N(x; mean, covariance) dx

        = |W|^(1/2) |W + S|^(-1/2) exp(-(x_i - m)' (W + S)^-1 (x_i - m) / 2),   W =
        diag(length_scale^2).
        """
        d = points.shape[-1]
        W = jnp.diag(jnp.broadcast_to(jnp.asarray(self.length_scale) ** 2, (d,)))
        L = jnp.linalg.cholesky(W + covariance)
        away = points - mean
        exponent = jnp.sum(away * cho_solve((L, True), away.T).T, -1)
        return self._ratio(W, W + covariance) * jnp.exp(-0.5 * exponent)

    def double_integral(self, covariance: Float[Array, "d d"]) -> Float[Array, ""]:
        """b_0 = |W|^(1/2) |W + 2 S|^(-1/2)."""
        d = covariance.shape[-1]
        W = jnp.diag(jnp.broadcast_to(jnp.asarray(self.length_scale) ** 2, (d,)))
        return self._ratio(W, W + 2 * covariance)

    @staticmethod
    def _ratio(W: Float[Array, "d d"], S: Float[Array, "d d"]) -> Float[Array, ""]:
        return jnp.sqrt(jnp.linalg.det(W) / jnp.linalg.det(S))
