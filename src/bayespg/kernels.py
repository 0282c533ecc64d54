"""Kernels. Each is written for one pair of points and knows its integrals.

A kernel maps two points to a covariance. The Fisher kernels know their integrals against the path
distribution whatever that distribution is (Propositions 3 and 4); the Gaussian kernel knows them
against a Gaussian measure, which is Bayes-Hermite quadrature.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jax.typing import DTypeLike
from jaxtyping import Float, PyTree, Shaped

from bayespg import fisher as fishers
from bayespg._support.precision import in_float64, to_float64
from bayespg._support.types import Array
from bayespg.fisher import Fisher, as_dense
from bayespg.policies.features import Features

__all__ = [
    "Batched",
    "Constant",
    "Finite",
    "FisherKernel",
    "Gaussian",
    "Kernel",
    "Linear",
    "Nystrom",
    "OfFeatures",
    "Pair",
    "Pairs",
    "Product",
    "Quadratic",
    "Scaled",
    "Signature",
    "StateAction",
    "Sum",
    "diagonal",
    "features",
    "gram",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class Kernel(eqx.Module):
    """k(x, x'). A point is an array, or a tree of arrays as the kernel takes it."""

    @abc.abstractmethod
    def __call__(self, x: Any, y: Any) -> Float[Array, ""]: ...


class Batched(Kernel):
    """A kernel with a formula for many points that is cheaper than one pair at a time."""

    @abc.abstractmethod
    def gram(self, X: Any, Y: Any, /) -> Float[Array, "M N"]: ...

    @abc.abstractmethod
    def diagonal(self, X: Any, /) -> Float[Array, " M"]: ...


def gram(
    kernel: Kernel,
    X: PyTree[Shaped[Array, "M ..."]],
    Y: PyTree[Shaped[Array, "N ..."]] | None = None,
) -> Float[Array, "M N"]:
    """[K]_ij = k(x_i, y_j)."""
    Y = X if Y is None else Y
    if isinstance(kernel, Batched):
        return kernel.gram(X, Y)
    return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(Y))(X)


def diagonal(kernel: Kernel, X: PyTree[Shaped[Array, "M ..."]]) -> Float[Array, " M"]:
    """k(x_i, x_i)."""
    return kernel.diagonal(X) if isinstance(kernel, Batched) else jax.vmap(kernel)(X, X)


def features(kernel: Kernel, X: PyTree[Shaped[Array, "M ..."]]) -> Float[Array, "M p"] | None:
    """Features Psi with K = Psi Psi' if the kernel has finitely many, otherwise None."""
    match kernel:
        case Finite():
            return kernel.features(X)
        case Constant():
            M = jax.tree.leaves(X)[0].shape[0]
            return jnp.full((M, 1), jnp.sqrt(jnp.asarray(kernel.variance)))
        case Scaled():
            Phi = features(kernel.kernel, X)
            return None if Phi is None else jnp.sqrt(jnp.asarray(kernel.scale)) * Phi
        case Sum():
            first, second = features(kernel.first, X), features(kernel.second, X)
            if first is None or second is None:
                return None
            return jnp.concatenate([first, second], -1)
    return None


class Finite(Batched):
    """psi(x)'psi(x'), a kernel with finitely many features."""

    @abc.abstractmethod
    def features(self, X: Any, /) -> Float[Array, "M p"]: ...

    def __call__(self, x: Any, y: Any) -> Float[Array, ""]:
        one = jax.tree.map(lambda leaf: leaf[None], (x, y))
        return self.gram(*one)[0, 0]

    def gram(self, X: Any, Y: Any) -> Float[Array, "M N"]:
        return self.features(X) @ self.features(Y).T

    def diagonal(self, X: Any) -> Float[Array, " M"]:
        return jnp.sum(self.features(X) ** 2, -1)


class Nystrom(Finite):
    """The Nystrom approximation of k with fixed points Z, k(x, Z) K_ZZ^-1 k(Z, x').

    Exact for points of Z, and close to k where Z is dense for its length scale: a grid over a small
    state space makes the critic's cost linear in the number of steps with no dictionary to build.
    """

    kernel: Kernel
    points: PyTree[Shaped[Array, "m ..."]]
    root: Float[Array, "m p"]
    """T with T T' = K_ZZ^-1, directions below `tolerance` left out."""

    def __init__(self, kernel: Kernel, points: Any, tolerance: float = 1e-10):
        self.kernel = kernel
        self.points = to_float64(jax.tree.map(np.asarray, points))
        K = in_float64(gram)(kernel, self.points)
        eigenvalues, Q = np.linalg.eigh(K)
        kept = eigenvalues > tolerance * eigenvalues[-1]
        self.root = Q[:, kept] / np.sqrt(eigenvalues[kept])

    def features(self, X: Any) -> Float[Array, "M p"]:
        return gram(self.kernel, X, self.points) @ self.root


class OfFeatures(Finite):
    """v psi(x)'psi(x') for features that are given; `constant` is the prior variance of the last
    `wide` of them, in units of `variance`, v."""

    of: Features
    constant: float | Float[Array, ""] = 10.0
    variance: float | Float[Array, ""] = 1.0
    wide: int = eqx.field(static=True, default=1)

    def features(self, X: Any) -> Float[Array, "M p"]:
        """psi of points with the rest of their axes laid out in a row."""
        flat = X.reshape(X.shape[0], -1)
        flat = flat if jnp.issubdtype(flat.dtype, jnp.floating) else flat.astype(jnp.float32)
        Psi = jnp.asarray(jax.vmap(self.of)(flat))
        return Psi * jnp.sqrt(self.variances(Psi.dtype))

    def variances(self, dtype: DTypeLike) -> Float[Array, " p"]:
        """The prior variance of the weight of each feature."""
        v, constant = (jnp.asarray(x, dtype) for x in (self.variance, self.constant))
        last = jnp.arange(self.of.size) >= self.of.size - self.wide
        return v * jnp.where(last, constant, 1.0)


class Weighted(Finite):
    """psi(x)'R R'psi(x') for features whose weights have the covariance R R'; R is `root`."""

    of: Features
    root: Float[Array, "p q"]

    def features(self, X: Any) -> Float[Array, "M q"]:
        return jnp.asarray(jax.vmap(self.of)(X)) @ self.root


class Constant(Kernel):
    """The kernel of a constant function of unknown value, the baseline."""

    variance: float | Float[Array, ""] = 1.0

    def __call__(self, x: Any, y: Any) -> Float[Array, ""]:
        return jnp.asarray(self.variance)


class Sum(Batched):
    """k_1 + k_2."""

    first: Kernel
    second: Kernel

    def __call__(self, x: Any, y: Any) -> Float[Array, ""]:
        return self.first(x, y) + self.second(x, y)

    def gram(self, X: Any, Y: Any) -> Float[Array, "M N"]:
        return gram(self.first, X, Y) + gram(self.second, X, Y)

    def diagonal(self, X: Any) -> Float[Array, " M"]:
        return diagonal(self.first, X) + diagonal(self.second, X)


class Scaled(Batched):
    """c k."""

    kernel: Kernel
    scale: float | Float[Array, ""]

    def __call__(self, x: Any, y: Any) -> Float[Array, ""]:
        return self.scale * self.kernel(x, y)

    def gram(self, X: Any, Y: Any) -> Float[Array, "M N"]:
        return self.scale * gram(self.kernel, X, Y)

    def diagonal(self, X: Any) -> Float[Array, " M"]:
        return self.scale * diagonal(self.kernel, X)


class Product(Batched):
    """k_1(x, x') k_2(a, a') of pairs (x, a), such as states and actions."""

    first: Kernel
    second: Kernel

    def __call__(self, x: tuple[Any, Any], y: tuple[Any, Any]) -> Float[Array, ""]:
        return self.first(x[0], y[0]) * self.second(x[1], y[1])

    def gram(self, X: tuple[Any, Any], Y: tuple[Any, Any]) -> Float[Array, "M N"]:
        return gram(self.first, X[0], Y[0]) * gram(self.second, X[1], Y[1])

    def diagonal(self, X: tuple[Any, Any]) -> Float[Array, " M"]:
        return diagonal(self.first, X[0]) * diagonal(self.second, X[1])


class Signature(Kernel):
    """The signature kernel of whole sequences x_0 .. x_T and y_0 .. y_S, up to `levels` (Kiraly and
    Oberhauser, 2019):

        1 + sum_m sum_{i_1 < .. < i_m} sum_{j_1 < .. < j_m} D_{i_1 j_1} ... D_{i_m j_m}

    D_ij is the inner product of the increments x_{i+1} - x_i and y_{j+1} - y_j in the space of the
    kernel `points`: D_ij = k(x_{i+1}, y_{j+1}) - k(x_i, y_{j+1}) - k(x_{i+1}, y_j) + k(x_i, y_j).
    Sequences in one array have the same number of points; one that is shorter stays at its last
    point, where it has no increments.
    """

    points: Kernel
    levels: int = eqx.field(static=True, default=3)

    def __call__(self, x: Float[Array, "T d"], y: Float[Array, "S d"]) -> Float[Array, ""]:
        D = jnp.diff(jnp.diff(gram(self.points, x, y), axis=0), axis=1)
        level, total = D, 1 + jnp.sum(D)
        for _ in range(self.levels - 1):
            before = jnp.cumsum(jnp.cumsum(level, 0), 1)[:-1, :-1]  # sums over i < i', j < j'
            level = D * jnp.pad(before, ((1, 0), (1, 0)))
            total += jnp.sum(level)
        return total


class FisherKernel(Batched):
    """A kernel between paths that depends on their scores only and has its integrals in closed
    form.

    `cross` and `prior` are B and B_0 of the gradient; `features` and `functional` the same in
    weight space, where K = Psi Psi' and the gradient is V e for weights e ~ N(0, I).
    """

    fisher: eqx.AbstractVar[Fisher]

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
    """u' G^-1 v, the Fisher kernel of Eq. 27, against grad Pr(xi) (Proposition 4).

    With a damped matrix D the kernel is u' D^-1 v: R(xi) = u(xi)'w with w ~ N(0, D^-1), and the
    gradient is G w.
    """

    fisher: Fisher

    def __call__(self, x: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, ""]:
        return x @ self.fisher.solve(y)

    def gram(self, U: Float[Array, "M n"], V: Float[Array, "N n"]) -> Float[Array, "M N"]:
        return U @ self.fisher.solve(V).T

    def diagonal(self, U: Float[Array, "M n"]) -> Float[Array, " M"]:
        return jnp.sum(U * self.fisher.solve(U), -1)

    def cross(self, U: Float[Array, "M n"]) -> Float[Array, "n M"]:
        """B = U, or G D^-1 U."""
        return fishers.carried(self.fisher, U).T

    def prior(self) -> Float[Array, "n n"]:
        """B_0 = G, or G D^-1 G."""
        return fishers.carried(self.fisher, fishers.readout(self.fisher).matrix())

    def explained(self, U: Float[Array, "M n"], gain: Float[Array, "n M"]) -> Float[Array, ""]:
        G = fishers.readout(self.fisher)
        return jnp.sum(gain.T * G.solve(U)) / fishers.directions(G)

    def features(self, U: Float[Array, "M n"]) -> Float[Array, "M n"]:
        """The whitened scores."""
        return as_dense(self.fisher).whiten(U)

    def functional(self) -> Float[Array, "n n"]:
        """A root of G; G times a root of D^-1 where D is damped."""
        dense = as_dense(self.fisher)
        if isinstance(self.fisher, fishers.Damped):
            return dense.whiten(self.fisher.information.matrix())
        return dense.colour(jnp.eye(dense.size)).T


class Quadratic(FisherKernel):
    """(1 + u' G^-1 v)^2, the quadratic Fisher kernel of Eq. 23, against Pr(xi) (Proposition 3).

    With a damped matrix D in the place of G the integrals are still those of scores whose second
    moments are G.
    """

    fisher: Fisher

    def __call__(self, x: Float[Array, " n"], y: Float[Array, " n"]) -> Float[Array, ""]:
        return (1 + x @ self.fisher.solve(y)) ** 2

    def gram(self, U: Float[Array, "M n"], V: Float[Array, "N n"]) -> Float[Array, "M N"]:
        return (1 + U @ self.fisher.solve(V).T) ** 2

    def diagonal(self, U: Float[Array, "M n"]) -> Float[Array, " M"]:
        return (1 + jnp.sum(U * self.fisher.solve(U), -1)) ** 2

    def cross(self, U: Float[Array, "M n"]) -> Float[Array, "1 M"]:
        """b_i = 1 + u_i' G^-1 u_i; 1 + u_i' D^-1 G D^-1 u_i where D is damped."""
        W = self.fisher.solve(U)
        return 1 + jnp.sum(fishers.carried(self.fisher, U) * W, -1)[None]

    def prior(self) -> Float[Array, "1 1"]:
        """b_0 = 1 + n, n the rank of G where it is singular: E[u' G^-1 u]; 1 + tr(D^-1 G D^-1 G)
        where D is damped."""
        return (1.0 + fishers.overlap(self.fisher)).reshape(1, 1)

    def explained(self, U: Float[Array, "M n"], gain: Float[Array, "*k M"]) -> Float[Array, "*k"]:
        """One share for each component's gain."""
        return gain @ self.cross(U)[0] / self.prior()[0, 0]

    def features(self, U: Float[Array, "M n"]) -> Float[Array, "M p"]:
        """The (n+1)(n+2)/2 monomials 1, sqrt2 s_i, s_i^2, sqrt2 s_i s_j of the whitened scores
        s."""
        S = as_dense(self.fisher).whiten(U)
        i, j = np.triu_indices(S.shape[-1], 1)
        root2 = jnp.sqrt(jnp.asarray(2.0, S.dtype))
        return jnp.concatenate(
            [jnp.ones_like(S[:, :1]), root2 * S, S**2, root2 * S[:, i] * S[:, j]], -1
        )

    def functional(self) -> Float[Array, "1 p"]:
        """The expectation of the features: 1 for the constant and for the square of each direction
        with information, where E[s s'] = I; E[s s'] = W'G W where D^-1 = W W' is damped."""
        dense = as_dense(self.fisher)
        n = dense.size
        squares, products = dense.known, np.zeros(n * (n - 1) // 2)
        if isinstance(self.fisher, fishers.Damped):
            S = dense.whiten(dense.whiten(self.fisher.information.matrix()).T)
            squares, products = jnp.diagonal(S), jnp.sqrt(2.0) * S[np.triu_indices(n, 1)]
        parts = (np.ones(1), np.zeros(n), squares, products)
        return jnp.concatenate([jnp.asarray(part, dense.G.dtype) for part in parts])[None]


Pair = tuple[Float[Array, " d"], Float[Array, " n"]]
Pairs = tuple[Float[Array, "M d"], Float[Array, "M n"]]
"""States and scores: z = (x, u(z))."""


class StateAction(Batched):
    """k_x(x, x') + c u' G^-1 u', the kernel of the actor-critic (Eq. 38), on z = (x, u(z)).

    Only its second term has anything to do with the gradient, since the score of a state's actions
    integrates to zero; the first is the value of the state, whatever was done there.
    """

    state: Kernel
    fisher: Fisher
    scale: float | Float[Array, ""] = 1.0

    def __call__(self, x: Pair, y: Pair) -> Float[Array, ""]:
        return self.state(x[0], y[0]) + x[1] @ self.solved(y)[1]

    def gram(self, X: Pairs, Y: tuple[Any, Any]) -> Float[Array, "M N"]:
        return self.between(X, self.solved(Y))

    def diagonal(self, X: Pairs) -> Float[Array, " M"]:
        return diagonal(self.state, X[0]) + jnp.sum(X[1] * self.solved(X)[1], -1)

    def solved(self, Z: Any) -> Any:
        """(x, c G^-1 u), solved once for pairs that many others are compared with."""
        return Z[0], self.scale * self.fisher.solve(Z[1])

    def between(self, X: Pairs, solved: tuple[Any, Any]) -> Float[Array, "M N"]:
        """The kernel of X with pairs that are solved."""
        return gram(self.state, X[0], solved[0]) + X[1] @ solved[1].T


class Gaussian(Kernel):
    """exp(-|x - x'|^2 / (2 length_scale^2)); one length scale, or one per dimension."""

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
