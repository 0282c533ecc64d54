"""Monte Carlo estimators to compare with, which return the same type: REINFORCE, GPOMDP and eNAC.

The mean of the first two is an average over paths and their covariance is the sample covariance of
that average, which equals the covariance from leaving paths out.
"""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespg import fisher as fishers
from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64, traced
from bayespg._support.types import Array
from bayespg.actor_critic import RANK, Steps, state_features
from bayespg.algebra import conditioning
from bayespg.environments.trajectories import discounted_tails
from bayespg.fisher import Fisher
from bayespg.kernels import Kernel
from bayespg.posterior import LARGE, Diagonal, GradientPosterior
from bayespg.quadrature import SINGULAR

__all__ = [
    "Baseline",
    "average",
    "enac",
    "gpomdp",
    "reinforce",
    "without_state_values",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Baseline = Literal["none", "mean", "best"]


def reinforce(
    scores: Float[Array, "M n"],
    returns: Float[Array, " M"],
    fisher: Fisher | Float[Array, "n n"] | None = None,
    *,
    baseline: Baseline = "none",
) -> GradientPosterior:
    """(1/M) sum_i (R_i - b) u_i, Eq. 6.

    `baseline` "mean" subtracts the mean return; "best" the constant of least variance, one for each
    component (Greensmith et al., 2004): b_j = E[R u_j^2] / E[u_j^2]. Both are estimated from the
    same paths, a bias of order 1/M that buys a smaller error. That of the mean is exactly the
    factor 1 - 1/M, by which intervals divide; their spread is that of leaving a path out of the
    baseline too. `fisher` is needed for the natural gradient only.
    """
    checks.one_of("baseline", baseline, ("none", "mean", "best"))
    if traced(scores, returns, fisher):
        return _reinforce(scores, returns, fisher, baseline)
    U, R, G = fishers.checked_problem(scores, returns, fisher, needed=False)
    return _sound("scores, returns", in_float64(_reinforce)(U, R, G, baseline))


def _reinforce(U, R, fisher, baseline: Baseline) -> GradientPosterior:
    M = R.size
    y = conditioning.less(R, jnp.mean(R))
    if baseline == "none":
        samples = R[:, None] * U
        # Equal returns say nothing about which way is uphill.
        told = jnp.where(jnp.any(y != 0), samples / M, 0.0)
        return dataclasses.replace(average(samples, fisher), added=told)
    if baseline == "mean":
        shares = jnp.ones((M, 1), U.dtype)
    else:
        largest = jnp.max(jnp.abs(U), 0)
        shares = (U / jnp.where(largest > 0, largest, 1.0)) ** 2
    posterior = average(conditioning.less(R[:, None], _weighted(R, shares)) * U, fisher)
    if M == 1:
        return posterior
    # Without path i, the baseline is that of the other paths. Where all scores of a component are
    # equal nothing but rounding is left: no path says anything about it.
    others = jnp.sum(shares, 0) - shares
    b = (y @ shares - y[:, None] * shares) / jnp.where(others > 0, others, 1.0)
    without = (y @ U - y[:, None] * U - b * (jnp.sum(U, 0) - U)) / (M - 1)
    rounding = conditioning.ROUNDING * jnp.finfo(U.dtype).eps * jnp.max(jnp.abs(y[:, None] * U), 0)
    exact = [
        jnp.where(jnp.abs(x) > rounding, x, 0.0) for x in (posterior.mean, posterior.mean - without)
    ]
    retained = jnp.asarray(1 - 1 / M) if baseline == "mean" else None
    return eqx.tree_at(
        lambda p: (p.mean, p.influence, p.retained), posterior, (*exact, retained),
        is_leaf=lambda x: x is None,
    )  # fmt: skip


def _weighted(R: Float[Array, " M"], shares: Float[Array, "M k"]) -> Float[Array, " k"]:
    whole = jnp.sum(shares, 0)
    return R @ shares / jnp.where(whole > 0, whole, 1.0)


def gpomdp(
    step_scores: Float[Array, "N n"] | Float[Array, "M T n"],
    rewards: Float[Array, " N"] | Float[Array, "M T"],
    fisher: Fisher | Float[Array, "n n"] | None = None,
    *,
    last: Bool[Array, " N"] | None = None,
    discount: float = 1.0,
) -> GradientPosterior:
    """(1/M) sum_i sum_t gamma^t u(z_t) sum_{s >= t} gamma^(s-t) r_s (Baxter and Bartlett, 2001).

    Each reward is credited only to the actions before it. Steps stand in a row, one episode after
    the other, and `last` marks the end of each. Without `last` episodes stand side by side, padded
    with zero scores and rewards, as they must inside a transformation.
    """
    if traced(step_scores, rewards, fisher):
        return _gpomdp(step_scores, rewards, fisher, discount)
    if last is not None:
        step_scores, rewards = _side_by_side(step_scores, rewards, last)
    U = checks.array("step_scores", step_scores)
    if U.ndim != 3 or 0 in U.shape:
        how = "; for (N, n), steps in a row, give last=" if U.ndim == 2 else ""
        raise ValueError(
            f"step_scores: expected shape (M, T, n), none of them 0, found {U.shape}{how}"
        )
    r = checks.array("rewards", rewards)
    if r.shape != U.shape[:2]:
        raise ValueError(
            f"rewards: expected shape {U.shape[:2]} to go with scores, found {r.shape}"
        )
    discount = checks.discount(discount)
    G = fisher
    if fisher is not None:
        G = to_float64(fishers.checked(fisher, U.reshape(-1, U.shape[2]), "step_scores"))
    return _sound("step_scores, rewards", in_float64(_gpomdp)(U, r, G, discount))


def _side_by_side(step_scores: Any, rewards: Any, last: Any) -> tuple[np.ndarray, np.ndarray]:
    """Steps in a row as (M, T, n) scores and (M, T) rewards, padded with zeros."""
    U = np.asarray(checks.scores(step_scores))
    r = np.asarray(checks.vector("rewards", rewards, len(U), "one per row of step_scores"))
    ends, time = fishers.places(last, len(U))
    episode = np.searchsorted(ends, np.arange(len(U)))
    shape = len(ends), int(time.max()) + 1
    scores, padded = np.zeros((*shape, U.shape[1])), np.zeros(shape)
    scores[episode, time], padded[episode, time] = U, r
    return scores, padded


def _gpomdp(U, rewards, fisher, discount) -> GradientPosterior:
    weights = jnp.asarray(discount, U.dtype) ** jnp.arange(U.shape[1])
    togo = discounted_tails(rewards.T, discount).T * weights
    return average(jnp.sum(U * togo[..., None], 1), fisher)


def without_state_values(
    steps: Steps, state_kernel: Kernel, noise: float | Float[Array, ""], rank: int = RANK
) -> Float[Array, " N"]:
    """Returns-to-go minus their Gaussian process regression on states alone, a fitted baseline.

    The unknown tail of a truncated episode is fitted and subtracted as well.
    """
    Psi, _ = state_features(steps, state_kernel, rank)
    at = conditioning.regress(Psi, steps.y[:, None], noise, steps.tails)
    return at.residuals[:, 0] * jnp.sqrt(jnp.asarray(noise, Psi.dtype))


def enac(
    scores: Float[Array, "M n"], returns: Float[Array, " M"], *, ridge: float = 1e-6
) -> GradientPosterior:
    """Episodic natural actor-critic: R_i = J + u_i'w by least squares, gradient G w with G the
    average of u u' (Peters and Schaal, 2008).

    `scores` are sums of discounted scores of steps. With fewer paths than parameters w is not
    determined; the `ridge`, which is relative to G, then selects the shortest solution. A ridge
    that is lost in the rounding of G is refused.
    """
    if traced(scores, returns):
        return _enac(scores, returns, ridge)
    U, R, _ = fishers.checked_problem(scores, returns, None, needed=False)
    ridge = float(checks.nonnegative("ridge", ridge, ()))
    posterior = in_float64(_enac)(U, R, ridge)
    if not posterior.info["condition"] < SINGULAR:
        raise ValueError(
            f"ridge: {ridge:g}, but {U.shape[0]} paths do not determine all {U.shape[1]} "
            "parameters to float64; give a larger ridge, for instance 1e-6"
        )
    return _sound("scores, returns", posterior)


def _enac(U, R, ridge) -> GradientPosterior:
    """`enac` on checked arrays. Scores and returns are centred, which removes the baseline J.

    Scores are in units of the largest, so that their squares neither overflow nor underflow.
    """
    M, n = U.shape
    fisher = fishers.Dense(U.T @ U / M)
    largest = jnp.max(jnp.abs(U))
    unit = jnp.where(largest > 0, largest, 1.0)
    U = U / unit
    centred, y = U - U.mean(0), conditioning.less(R, jnp.mean(R))
    S = centred.T @ centred / M
    size = jnp.trace(S) / n
    A = S + jnp.where(size > 0, ridge * size, 1.0) * jnp.eye(n)
    inverse = jnp.linalg.inv(A)
    w = inverse @ (centred.T @ y / M)
    G = U.T @ U / M
    residuals = y - centred @ w
    away = unit * (residuals[:, None] * centred) @ inverse @ G
    covariance = away.T @ away / M**2
    leverage = jnp.einsum("in,nm,im->i", centred, inverse, centred) / M
    left = 1 - leverage - 1 / M  # what leaving the path out of w and of J changes
    left = jnp.maximum(left, jnp.finfo(U.dtype).eps)
    return GradientPosterior(
        mean=unit * G @ w,
        covariance=covariance if M > 1 else jnp.diag(jnp.full(n, jnp.inf)),
        fisher=fisher,
        influence=away / (M * left[:, None]),
        explained=jnp.asarray(float(M > 1)),
        freedom=jnp.asarray(M - 1.0),
        info={"condition": jnp.max(jnp.abs(jnp.diagonal(A) * jnp.diagonal(inverse)))},
        added=unit * (y[:, None] * U) @ inverse @ G / M,
    )


def _sound(names: str, posterior: GradientPosterior) -> GradientPosterior:
    """Check that the result is finite, except for the covariance of a single path, which is
    infinite."""
    many = posterior.freedom > 0
    checks.sound(names, posterior if many else eqx.tree_at(lambda p: p.covariance, posterior, 0.0))
    return posterior


def average(samples: Float[Array, "M n"], fisher: Any = None) -> GradientPosterior:
    """The mean of per-path gradients, with the sample covariance of that mean.

    The spread of a single path is unknown, so its covariance is infinite.
    """
    M, n = samples.shape
    mean = samples.mean(0)
    away = samples - mean
    pairs = M * (M - 1)
    variances = jnp.sum(away**2, 0) / pairs if pairs else jnp.full(n, jnp.inf)
    if n > LARGE:
        covariance = Diagonal(variances)
    else:
        covariance = away.T @ away / pairs if pairs else jnp.diag(variances)
    return GradientPosterior(
        mean=mean,
        covariance=covariance,
        fisher=None if fisher is None else fishers.as_fisher(fisher),
        influence=away / max(M - 1, 1),
        explained=jnp.asarray(float(M > 1)),
        freedom=jnp.asarray(M - 1.0),
        info={},
        added=samples / M,
    )
