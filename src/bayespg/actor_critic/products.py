"""The matrix-free form: conjugate gradients on the precision of w, without factorising anything of
the size of the scores. Scores may be dense, sparse, or given by products with a Jacobian.

    w ~ N(0, c D^-1),   y = Psi e + U w + noise,   gradient G w

D is G, or G with damping where G is singular, as for a network. Mean, covariance, draws, and the
influence of each episode follow from solving with the posterior precision of w,

    P = D/c + U' A^-1 U,   A = Psi Psi' + s^2 I.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.actor_critic.steps import Prior, Steps
from bayespg.algebra import sparse
from bayespg.algebra.conditioning import Groups, Segments, cholesky_of_sum
from bayespg.algebra.conjugate_gradients import conjugate_gradients, together
from bayespg.algebra.sparse import Matrix
from bayespg.fisher import Fisher, Network
from bayespg.paths.scores import Jacobian
from bayespg.posterior import Covariance, GradientPosterior, Influence

TOLERANCE, ITERATIONS = 1e-8, 1000
"""The default tolerance and number of iterations of the conjugate gradients."""
PARTS = 3.0
"""The tolerance of the contributions of episodes, in units of that of their sum. They share their
directions, so that the probability of going uphill is as exact as with each solved alone."""


class Smoother(eqx.Module):
    """A^-1: what remains of a target after the state values are fitted, in units of the noise. The
    unknown tails of truncated episodes are removed."""

    features: Float[Array, "N p"]
    """Features of the state kernel, in units of the noise and with the tails removed."""
    factor: Float[Array, "p p"]
    noise: Float[Array, ""]
    tails: Segments

    def __init__(self, Psi: Float[Array, "N p"], noise: Float[Array, ""], tails: Segments):
        self.features = X = tails.remove(Psi) / jnp.sqrt(noise)
        self.factor = cholesky_of_sum(jnp.eye(X.shape[1], dtype=X.dtype) + X.T @ X)
        self.noise, self.tails = noise, tails

    def __call__(self, a: Float[Array, " N"]) -> Float[Array, " N"]:
        b = self.tails.remove(jnp.where(self.tails.taken, a, 0.0)[:, None])
        X = self.features
        b = b - X @ cho_solve((self.factor, True), X.T @ b)
        return self.tails.remove(b)[:, 0] / self.noise

    def sample(self, key: PRNGKeyArray) -> Float[Array, " N"]:
        """A draw from N(0, A)."""
        key_state, key_noise = jax.random.split(key)
        (N, p), dtype = self.features.shape, self.features.dtype
        state = self.features @ jax.random.normal(key_state, (p,), dtype)
        return jnp.sqrt(self.noise) * (state + jax.random.normal(key_noise, (N,), dtype))


class Precision(eqx.Module):
    """P = D/c + U' A^-1 U, the posterior precision of w."""

    scores: Matrix
    fisher: Fisher
    """D."""
    information: Fisher
    """G, which turns weights into a gradient."""
    scale: Float[Array, ""]
    smooth: Smoother
    tolerance: float = eqx.field(static=True, default=TOLERANCE)
    iterations: int = eqx.field(static=True, default=ITERATIONS)

    def solver(self) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
        """A function that maps b to P^-1 b."""
        multiply, precondition = self._system()
        return lambda b: conjugate_gradients(
            multiply, b, precondition, tolerance=self.tolerance, most=self.iterations
        )

    def solve_together(self, B: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """P^-1 of each of a few rows, to `PARTS` times the tolerance."""
        multiply, precondition = self._system()
        return together(
            multiply, B, precondition, tolerance=PARTS * self.tolerance, most=self.iterations
        )

    def _system(self) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Products with P, and with an approximate inverse of it."""
        D, U, c = self.fisher, self.scores, self.scale
        if isinstance(D, Network) and isinstance(U, Jacobian):
            # U'U is close to the number of steps times G, which makes the preconditioner.
            forward, backward = D.both(U)
            share = jnp.sum(U.weights**2) / (jnp.sum(D.weights) * self.smooth.noise)

            def jointly(w):
                Uw, Rw = forward(w)
                return backward(self.smooth(Uw), Rw / c) + (D.damping / c) * w

            def nearly(r):
                return D.subset.solve(r, 1 / c + share.astype(r.dtype), D.damping / c)

            return jointly, nearly
        at = sparse.products(U)
        diagonal = D.diagonal() / c + sparse.squared_columns(U) / self.smooth.noise

        def multiply(w):
            return D.multiply(w) / c + at.transposed_times(self.smooth(at.times(w)))

        return multiply, lambda r: r / diagonal

    def data_share(self) -> Float[Array, ""]:
        """The fraction of P, measured by its trace, that comes from the data and not from the
        prior."""
        D, U = self.fisher, self.scores
        if isinstance(D, Network) and isinstance(U, Jacobian):
            data = jnp.sum(U.weights**2) / jnp.sum(D.weights) * D.subset.trace
            prior = D.subset.trace + D.size * D.damping
        else:
            data, prior = jnp.sum(sparse.squared_columns(U)), jnp.sum(D.diagonal())
        data, prior = data / self.smooth.noise, prior / self.scale
        return data / jnp.maximum(data + prior, jnp.finfo(data.dtype).tiny)


class Spread(Covariance):
    """G P^-1 G, the covariance of the gradient G w."""

    precision: Precision

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        G, solve = self.precision.information, self.precision.solver()
        return jnp.vectorize(lambda v: G.multiply(solve(G.multiply(v))), signature="(n)->(n)")(V)

    def diagonal(self) -> Float[Array, " n"]:
        """The diagonal, estimated from 64 draws with a relative error of 18 % per entry; the exact
        diagonal would take n solves."""
        return jnp.mean(self.sample(jax.random.key(0), 64) ** 2, 0)

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        """G P^-1 b with b ~ N(0, P): a draw from N(0, D/c) plus U' A^-1 times one from N(0, A)."""
        P = self.precision
        solve, at = P.solver(), sparse.products(P.scores)

        def one(key: PRNGKeyArray) -> Float[Array, " n"]:
            key_prior, key_seen = jax.random.split(key)
            prior = P.fisher.sample(key_prior, ()) / jnp.sqrt(P.scale)
            seen = at.transposed_times(P.smooth(P.smooth.sample(key_seen)))
            return P.information.multiply(solve(prior + seen))

        return jax.lax.map(one, jax.random.split(key, k))


class Parts(Influence):
    """The part of each episode in a sum over steps, G P^-1 U_e' a_e.

    With a = A^-1 y it is what the episode adds to the mean. With `left_out` it is what leaving the
    episode out takes from the mean, to first order: G P^-1 U' s^2 A^-1 a_e, a_e being the residuals
    of its steps in units of the noise variance. Along a direction one system answers for all
    episodes.
    """

    precision: Precision
    a: Float[Array, " N"]
    groups: Groups
    left_out: bool = eqx.field(static=True)

    def along(self, direction: Float[Array, " n"]) -> Float[Array, " M"]:
        P = self.precision
        v = P.solver()(P.information.multiply(direction))
        return self._share * self.groups.sum(self._seen(sparse.times(P.scores, v)) * self.a)

    def matrix(self, groups: int | None = None) -> Float[Array, "M n"]:
        P, count = self.precision, self.groups.count
        count = count if groups is None else min(groups, count)
        # Successive episodes are combined into groups.
        ids = self.groups.row_ids(self.a.size) * count // self.groups.count
        transposed_times = sparse.products(P.scores).transposed_times

        def pull(e):
            return transposed_times(self._seen(jnp.where(ids == e, self.a, 0.0)))

        if not self.left_out:
            return P.information.multiply(P.solve_together(jax.lax.map(pull, jnp.arange(count))))
        solve = P.solver()
        rows = jax.lax.map(lambda e: P.information.multiply(solve(pull(e))), jnp.arange(count))
        return self._share * rows

    def _seen(self, a: Float[Array, " N"]) -> Float[Array, " N"]:
        smooth = self.precision.smooth
        return smooth.noise * smooth(a) if self.left_out else a

    @property
    def _share(self) -> float | Float[Array, ""]:
        """With `left_out` 1 / (1 - e / M), with e the fraction of the precision that comes from the
        data: without one of M episodes the others get a larger weight in that part."""
        if not self.left_out:
            return 1.0
        return 1 / (1 - self.precision.data_share() / max(self.groups.count, 2))


def posterior(
    steps: Steps, prior: Prior, noise, Psi, info, tolerance: float, iterations: int
) -> GradientPosterior:
    """w = P^-1 U' A^-1 y by conjugate gradients. Episodes are left out to first order."""
    dtype = steps.y.dtype
    smooth = Smoother(Psi, jnp.asarray(noise, dtype), steps.segments)
    scale = jnp.asarray(prior.scale, dtype)
    P = Precision(steps.scores, prior.fisher, prior.readout, scale, smooth, tolerance, iterations)
    at = sparse.products(steps.scores)
    pull = smooth(steps.y)
    w = P.solver()(at.transposed_times(pull))
    alpha = smooth(steps.y - at.times(w))
    return GradientPosterior(
        mean=prior.readout.multiply(w),
        covariance=Spread(P),
        fisher=prior.fisher,
        influence=Parts(P, alpha, steps.groups, left_out=True),
        explained=jnp.ones((), dtype),
        freedom=jnp.asarray(max(steps.groups.count - 1.0, 1.0), dtype),
        info={"observations": steps.observations} | info,
        prior=prior.spread(),
        added=Parts(P, pull, steps.groups, left_out=False),
    )
