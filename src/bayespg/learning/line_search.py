"""Conjugate gradients with a line search that looks at gradients only (Section 5: CONJPOMDP and
GSEARCH of Baxter, Bartlett and Weaver, 2001).

To compare the returns of two points one must overcome their noise, the more so the nearer the
points are; the sign of the slope at one point needs no such comparison. The search doubles its step
while the slope is positive, or halves it while the slope is negative, and interpolates between the
last two. What follows from one gradient is computed by the pure functions of `searching.py`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64, to_numpy
from bayespg._support.types import Array
from bayespg.environments import Environment, expected_return
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator
from bayespg.learning.searching import (
    Search,
    Searching,
    Slope,
    begin,
    direction,
    following,
    judged,
    searching,
    start,
    tried,
)
from bayespg.policies import Policy, flatten
from bayespg.posterior import GradientPosterior

__all__ = [
    "Gradient", "History", "Reason", "Result", "Search", "Searching", "Slope", "Trained",
    "conjugate_gradients", "line_search", "searching", "train",
]  # fmt: skip
Gradient = Callable[[Float[Array, " n"], PRNGKeyArray], GradientPosterior]
"""What is known about the gradient at theta, each time from new paths."""
Reason = Literal["iterations", "small gradient", "not finite"]
"""Why it ended."""


class History(NamedTuple):
    """One entry per iteration. Where a gradient ended the run, its entry is the last, with step
    0."""

    parameters: Float[Array, "K n"]
    """Before the search."""
    gradient_norm: Float[Array, " K"]
    """|g| as estimated there; sqrt(g'G^-1 g) for natural gradients."""
    step: Float[Array, " K"]
    """The multiple of the direction h that was added."""
    restarted: Bool[Array, " K"]
    """Whether h was the gradient itself."""
    bracketed: Bool[Array, " K"]
    evaluations: Int[Array, " K"]
    """Gradients estimated: one at the parameters, and one per trial point."""
    episodes: Int[Array, " K"] | None = None
    """Paths drawn for them; this and what follows come from `train` only."""
    sample_return: Float[Array, " K"] | None = None
    """Mean return of the paths drawn at the parameters."""
    expected_return: Float[Array, " K"] | None = None
    """eta(theta) if it has a closed form, otherwise NaN."""


class Result(NamedTuple):
    """What `conjugate_gradients` returns."""

    parameters: Float[Array, " n"]
    history: History
    reason: Reason


class Trained(NamedTuple):
    """What `train` returns."""

    policy: Any
    history: History
    reason: Reason


def line_search(slope: Callable[[float], Slope], first_step: float, doublings: int = 10) -> Search:
    """GSEARCH: a step to where the slope along a direction is zero.

    Between s- < s+ with slopes p- > 0 > p+, the top of the parabola with these slopes:

        s = s- + p- (s+ - s-) / (p- - p+),

    or halfway if the signs are different. After `doublings` doublings, or halvings, the search
    takes the last two steps; the published search has no bound.
    """
    search = in_float64(begin)(np.asarray(first_step, float))
    while not search.ended:
        found = Slope(*map(np.asarray, slope(float(search.step))))
        search = in_float64(tried)(search, found, doublings)
    return search


def conjugate_gradients(
    gradient: Gradient,
    theta: Float[Array, " n"],
    key: PRNGKeyArray,
    *,
    first_step: float,
    iterations: int,
    epsilon: float = 0.0,
    level: float | None = None,
    natural: bool = False,
    doublings: int = 10,
) -> Result:
    """CONJPOMDP: maximise by line searches along conjugate directions (Polak and Ribiere),

        h' = g' + gamma h,   gamma = (g' - g) . g' / |g|^2,   or h' = g' if that is not uphill,

    until |g|^2 <= `epsilon`. Each search begins with the step `first_step` h.

    As published, a slope g . h is taken for up above `epsilon` and for down below -`epsilon`. With
    `level`, the error bars decide: it is up where `probability_uphill` is above `level` and down
    where it is below 1 - `level`, so that the step is doubled or halved, and the direction before
    remembered, only on good evidence.

    `natural` searches along G^-1 g: the first term of h' is G^-1 g', and |g|^2 is g'G^-1 g
    everywhere (conjugate gradients preconditioned by G). A gradient that is not finite ends the run
    at the last point that had one.
    """
    theta = checks.array("theta", theta)
    if theta.ndim != 1 or not theta.size:
        raise ValueError(f"theta: expected a vector of parameters, found shape {theta.shape}")
    first_step = checks.real("first_step", first_step, above=0)
    epsilon = checks.real("epsilon", epsilon, least=0)
    iterations = checks.whole("iterations", iterations, 1)
    doublings = checks.whole("doublings", doublings, 1)
    if level is not None and checks.probability("level", level) < 0.5:
        raise ValueError(f"level: expected at least 0.5, found {level}")
    keys = (_fold_in(key, i) for i in itertools.count())

    def ask(point: Float[Array, " n"]) -> GradientPosterior:
        with jax.enable_x64(True):
            posterior = to_numpy(gradient(point, next(keys)))
        if np.shape(posterior.mean) != theta.shape:
            found = np.shape(posterior.mean)
            raise ValueError(f"gradient: expected a mean of shape {theta.shape}, found {found}")
        return posterior

    rule = {"first_step": first_step, "doublings": doublings}
    state, entries, reason = in_float64(start)(theta), [], "iterations"
    while reason == "iterations" and len(entries) < iterations:
        began, posterior = state.search.ended, ask(theta)
        # The slope is judged here, on the host: Student's distribution takes long to compile.
        along = in_float64(direction)(state, posterior, natural=natural, errors=level is not None)
        slope = judged(along, 0.0 if began else epsilon, level)
        state = in_float64(following)(state, theta, posterior, along, slope, **rule)
        search, size = state.search, float(state.size)
        if not math.isfinite(size + search.slope):
            reason = "not finite"
        elif began and size <= epsilon:
            reason = "small gradient"
        ended = reason != "iterations"
        theta = state.base if ended else state.base + search.step * state.h
        if ended or search.ended:
            entries.append((
                state.base, math.sqrt(max(size, 0.0)), 0.0 if ended else search.step,
                state.restarted or not entries, search.bracketed, 1 + search.trials,
            ))  # fmt: skip
    return Result(theta, History(*map(np.array, zip(*entries, strict=True))), reason)


_fold_in = jax.jit(jax.random.fold_in)  # op by op it would take longer than a gradient of LQR


def train(
    environment: Environment,
    policy: Policy,
    estimator: Estimator,
    *,
    key: PRNGKeyArray,
    paths: int,
    **settings: Any,
) -> Trained:
    """`conjugate_gradients` on the parameters of a policy, each gradient from `paths` new paths.

    `settings` are the keyword arguments of `conjugate_gradients`: `first_step`, `iterations` and so
    on. Paths are drawn in float32, the algebra is float64.
    """
    paths = checks.whole("paths", paths, 1)
    policy, returns = to_float64(policy), []

    def gradient(theta: Float[Array, " n"], key: PRNGKeyArray) -> GradientPosterior:
        posterior, mean = _gradient(environment, estimator, policy, theta, key, paths)
        returns.append(float(mean))
        return posterior

    with jax.enable_x64(True):
        theta, rebuild = flatten(policy)
        end, history, reason = conjugate_gradients(gradient, theta, key, **settings)
        first = np.cumsum(history.evaluations) - history.evaluations
        eta = [_expected_return(environment, policy, theta) for theta in history.parameters]
        history = history._replace(
            episodes=paths * history.evaluations,
            sample_return=np.array(returns)[first],
            expected_return=np.array(eta),
        )
        return Trained(to_numpy(rebuild(end)), history, reason)


@eqx.filter_jit
def _gradient(environment, estimator, policy, theta, key, paths):
    """The posterior at theta and the mean return of its paths."""
    policy, scores = flatten(policy)[1](theta), estimator.needs.path_scores
    batch = draw(environment, policy, key, paths, jnp.float32, scores)
    return estimator(batch), batch.returns.mean()


@eqx.filter_jit
def _expected_return(environment, policy, theta):
    return expected_return(environment, flatten(policy)[1](theta))
