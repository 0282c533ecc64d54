"""All steps at once: Eqs. 33 and 34, and 43 with a dictionary."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64, traced
from bayespg._support.types import Array
from bayespg.algebra import conditioning, sparsification
from bayespg.algebra.conditioning import LOG_2PI, Groups, Span, Tails
from bayespg.algebra.sparsification import Sparsify
from bayespg.gptd import inputs
from bayespg.kernels import Kernel
from bayespg.quadrature import regular

Points = PyTree[Shaped[Array, "N ..."]]
"""Points in rows: an array, or a tuple of arrays for kernels on several arrays such as states and
scores."""


class Targets(NamedTuple):
    """The steps of episodes, one after the other, as inputs of the regression."""

    y: Float[Array, " N"]
    """Rewards-to-go, y_i = r_i + gamma y_{i+1}; zero at the last pair of a truncated episode."""
    tail: Float[Array, " N"]
    """v: gamma^(steps to the last pair) in a truncated episode, zero in a terminated one."""
    episode: Int[Array, " N"]
    """Which episode a step belongs to, counted from 0."""
    observed: Bool[Array, " N"]
    """Whether a step carries information; the only pair of a truncated episode of one pair does
    not."""


def targets(
    rewards: Float[Array, " N"],
    last: Bool[Array, " N"],
    terminated: Bool[Array, " N"],
    discount: float | Float[Array, ""],
) -> Targets:
    """Rewards-to-go, and the direction in which each truncated episode leaves them open.

    `last` marks the steps that end an episode, `terminated` those that end it in an absorbing
    state. The last reward of a truncated episode is not used. An episode still running at the end
    of the data counts as truncated there.
    """
    if traced(rewards, last, terminated, discount):
        return _targets(rewards, last, terminated, discount)
    steps = inputs.checked_steps(rewards, last, terminated, discount)
    return checks.sound("rewards", in_float64(_targets)(*steps))


def _targets(rewards, last, terminated, discount) -> Targets:
    r = jnp.asarray(rewards)
    ends = jnp.asarray(last).at[-1].set(True)
    terminal = ends & terminated
    first = jnp.roll(ends, 1)  # a step after an end; the last step is one, so step 0 is first

    def back(following, step):
        y, v = following
        r, ends, terminal = step
        y = jnp.where(ends, jnp.where(terminal, r, 0.0), r + discount * y)
        v = jnp.where(ends, jnp.where(terminal, 0.0, 1.0), discount * v)
        return (y, v), (y, v)

    zero = jnp.zeros((), jnp.result_type(r, discount, float))
    _, (y, v) = jax.lax.scan(back, (zero, zero), (r, ends, terminal), reverse=True)
    return Targets(y, v, jnp.cumsum(first) - 1, ~(first & ends & ~terminal))


class Critic(eqx.Module):
    """The posterior of Q, a Gaussian process (Eq. 33; sparse, with Eq. 43).

        mean(z) = zeta(z)' e,   covariance(z, z') = k(z, z') - zeta(z)' D zeta(z')

    with zeta(z) = L^-1 k(z), k(z) the kernel between z and the critic's points.
    """

    kernel: Kernel
    points: PyTree[Shaped[Array, "m ..."]]
    """The pairs observed, or the dictionary."""
    factor: Float[Array, "m m"]
    """L."""
    weights: Float[Array, " m"]
    """e."""
    reduction: Float[Array, "m m"]
    """D."""
    log_evidence: Float[Array, ""]
    """log N(r; 0, H K H' + Sigma) of the rewards used."""
    info: dict[str, Any]
    """Diagnostics: number of observations, condition, dictionary size."""

    def mean(self, points: Points) -> Float[Array, " K"]:
        return self._ask(_mean, points)

    def variance(self, points: Points) -> Float[Array, " K"]:
        """The diagonal of `covariance`."""
        return self._ask(_variance, points)

    def covariance(self, points: Points, others: Points | None = None) -> Float[Array, "K J"]:
        """The covariance between the values at `points` and at `others`, or among those at
        `points`."""
        return self._ask(_covariance, points, points if others is None else others)

    def _ask(self, function, *queries):
        if traced(self, queries):
            return function(self, *queries)
        names = ("points", "others")
        queries = [
            inputs.like(name, query, self.points, 1)
            for name, query in zip(names, queries, strict=False)
        ]
        return checks.sound("points", in_float64(function)(to_float64(self), *queries))


def _zeta(critic: Critic, points) -> Float[Array, "m K"]:
    return solve_triangular(
        critic.factor, kernels.gram(critic.kernel, critic.points, points), lower=True
    )


def _mean(critic: Critic, points):
    alpha = solve_triangular(critic.factor.T, critic.weights, lower=False)  # cheaper than zeta
    return alpha @ kernels.gram(critic.kernel, critic.points, points)


def _variance(critic: Critic, points):
    zeta = _zeta(critic, points)
    explained = jnp.sum(zeta * (critic.reduction @ zeta), 0)
    return jnp.maximum(kernels.diagonal(critic.kernel, points) - explained, 0.0)


def _covariance(critic: Critic, points, others):
    explained = _zeta(critic, points).T @ critic.reduction @ _zeta(critic, others)
    return kernels.gram(critic.kernel, points, others) - explained


def posterior(
    kernel: Kernel,
    points: Points,
    rewards: Float[Array, " N"],
    *,
    last: Bool[Array, " N"],
    terminated: Bool[Array, " N"],
    discount: float | Float[Array, ""],
    noise: float | Float[Array, ""] = 1.0,
    sparsify: Sparsify | None = None,
) -> Critic:
    """The posterior of Q given the steps of some episodes, one after the other (Eqs. 33, 34, 43).

    Step i has the pair ``points[i]`` and the reward ``rewards[i]``; `last` and `terminated` say
    where an episode ends and whether in an absorbing state, see `targets`. `noise` is s^2. A
    terminated episode of T pairs is T observations, a truncated one T - 1 (none for a single pair);
    ``info["observations"]`` is their number. Without any the critic is the prior. The cost is N^3,
    or N m^2 with a dictionary of capacity m.
    """
    if traced(kernel, points, rewards, last, terminated, discount, noise):
        N = jnp.shape(rewards)[0]
        return _posterior(kernel, points, rewards, last, terminated, discount, noise, sparsify, N)
    kernel = inputs.checked_kernel("kernel", kernel)
    r, last, terminated, gamma = inputs.checked_steps(rewards, last, terminated, discount)
    Z = inputs.checked_points("points", points, r.size)
    inputs.accepts("points", kernel, jax.tree.map(lambda leaf: leaf[0], Z))
    s2 = checks.positive("noise", noise, ())
    sparsification.checked(sparsify)
    tails = 0
    if sparsify is None:
        truncated = int(np.sum(last & ~terminated)) + (not last[-1])
        tails = min(1 << max(truncated - 1, 0).bit_length(), r.size)  # few sizes to compile for
    critic = in_float64(_posterior)(kernel, Z, r, last, terminated, gamma, s2, sparsify, tails)
    regular(critic.info["condition"], critic.weights)
    return checks.sound("rewards, points", critic)


def _posterior(
    kernel, points, rewards, last, terminated, discount, noise, sparsify, tails
) -> Critic:
    """The critic of arrays of fixed size; `tails` is the largest possible number of truncated
    episodes."""
    points = jax.tree.map(jnp.asarray, points)
    steps = _targets(rewards, last, terminated, discount)
    noise = jnp.asarray(noise, steps.y.dtype)
    if sparsify is None:
        return _dense(kernel, points, steps, noise, tails)
    return _sparse(kernel, points, steps, noise, sparsify)


def _dense(kernel, points, steps: Targets, noise, tails: int) -> Critic:
    """A = K + s^2 I = L L', and C = L^-T D L^-1 with D the projection off L^-1 V.

    The columns of V are the tails. det(H A H') = det(A) det(V'A^-1 V), as det(H H') = det(V'V).
    """
    N = steps.y.size
    K = kernels.gram(kernel, points)
    I = jnp.eye(N, dtype=K.dtype)
    L = jnp.linalg.cholesky(K + noise * I)
    unknown = Span(solve_triangular(L, _columns(steps, tails), lower=True), jnp.ones(N, bool))
    e = unknown.remove(solve_triangular(L, steps.y, lower=True)[:, None])[:, 0]
    pivots, count = jnp.diagonal(L), unknown.observations()
    log_det = 2 * jnp.sum(jnp.log(pivots)) + unknown.log_determinant()
    return Critic(
        kernel=kernel,
        points=points,
        factor=L,
        weights=e,
        reduction=unknown.remove(I),
        log_evidence=-0.5 * (e @ e + log_det + count * LOG_2PI),
        info={"observations": count, "condition": (pivots.max() / pivots.min()) ** 2},
    )


def _columns(steps: Targets, tails: int) -> Float[Array, "N E"]:
    """The matrix V: one column for each truncated episode, then zeros."""
    truncated = jax.ops.segment_max(steps.tail, steps.episode, steps.tail.size) > 0
    which = (jnp.cumsum(truncated) - 1)[steps.episode]
    return steps.tail[:, None] * jax.nn.one_hot(which, tails, dtype=steps.tail.dtype)


def _sparse(kernel, points, steps: Targets, noise, sparsify: Sparsify) -> Critic:
    """y = Psi w + tails + noise with w ~ N(0, I) and Psi = A L~ (Eq. 43): D = I - Cov[w | y]."""

    def at(i):
        return jax.tree.map(lambda leaf: leaf[i], points)

    N = steps.y.size
    dictionary = sparsification.build(
        lambda i, members: kernels.gram(kernel, at(members), at(i[None]))[:, 0],
        kernels.diagonal(kernel, points),
        sparsify.threshold,
        min(sparsify.capacity or N, N),
    )
    unknown = Tails(steps.tail, Groups(N, steps.episode), jnp.ones(N, bool))
    fit = conditioning.regress(dictionary.features, steps.y[:, None], noise, unknown)
    I = jnp.eye(dictionary.features.shape[1], dtype=fit.factor.dtype)
    return Critic(
        kernel=kernel,
        points=at(dictionary.members),
        factor=dictionary.factor,
        weights=fit.weights[:, 0],
        reduction=I - cho_solve((fit.factor, True), I),
        log_evidence=fit.log_evidence[0],
        info={
            "observations": N - jnp.sum(unknown.groups.sum(steps.tail) > 0),
            "condition": fit.condition,
            **dictionary.info(),
        },
    )
