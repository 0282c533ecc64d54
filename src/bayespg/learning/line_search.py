"""Conjugate gradients with a line search that looks at gradients only (Section 5: CONJPOMDP and
GSEARCH of Baxter, Bartlett and Weaver, 2001).

To compare the returns of two points one must overcome their noise, the more so the nearer the
points are; the sign of the slope at one point needs no such comparison. The search doubles its step
while the slope is positive, or halves it while the slope is negative, and interpolates between the
last two. What follows from one gradient is computed by pure functions: `searching` wraps
them as an update of training, `conjugate_gradients` calls them in a loop on the host.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64, to_numpy, traced
from bayespg._support.statistics import student_probability
from bayespg._support.types import Array
from bayespg.environments import Environment, expected_return
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator
from bayespg.policies import Policy, flatten
from bayespg.posterior import GradientPosterior, direction_statistics

__all__ = [
    "Gradient", "History", "Reason", "Result", "Search", "Searching", "Slope", "Trained",
    "conjugate_gradients", "line_search", "searching", "train",
]  # fmt: skip
Gradient = Callable[[Float[Array, " n"], PRNGKeyArray], GradientPosterior]
"""What is known about the gradient at theta, each time from new paths."""
Reason = Literal["iterations", "small gradient", "not finite"]
"""Why it ended."""


class Slope(NamedTuple):
    """How the return changes along a direction, at a trial point."""

    value: Any
    """g . h; NaN where the gradient or its error is not finite."""
    rises: Any
    """Far enough above zero to double the step once more."""
    falls: Any


class Search(NamedTuple):
    """A line search: which step it tries next or, once it has ended, what it found."""

    step: Float[Array, ""]
    """NaN where a slope was not finite."""
    trials: Int[Array, ""]
    """Slopes seen so far."""
    ended: Bool[Array, ""]
    bracketed: Bool[Array, ""]
    """Whether the step lies between a slope up and a slope down."""
    back: Bool[Array, ""]
    """Whether the step is being halved."""
    before: Float[Array, ""]
    """The step tried last, and the slope there."""
    slope: Float[Array, ""]


class Searching(NamedTuple):
    """Where conjugate gradients stand: at base + step h, with the step of `search`."""

    base: Float[Array, " n"]
    """Where the gradient g was estimated and the search began."""
    g: Float[Array, " n"]
    h: Float[Array, " n"]
    size: Float[Array, ""]
    """|g|^2, or g'G^-1 g."""
    restarted: Bool[Array, ""]
    """Whether h is the gradient itself."""
    search: Search


def begin(first_step: Float[Array, ""]) -> Search:
    no = jnp.asarray(False)
    zero = jnp.zeros_like(first_step)
    return Search(first_step, jnp.zeros((), jnp.int32), no, no, no, first_step, zero)


def tried(search: Search, p: Slope, doublings: int) -> Search:
    """The search when the slope at its step is known."""
    first, trials = search.trials == 0, search.trials + 1
    back = jnp.where(first, p.value < 0, search.back)
    more = (first | jnp.where(back, p.falls, p.rises)) & (trials <= doublings)
    now, last = (search.step, p.value), (search.before, search.slope)
    (near, up), (far, down) = (
        [jnp.where(back, a, b) for a, b in zip(*pair, strict=True)]
        for pair in ((now, last), (last, now))
    )
    bracketed = (up > 0) & (down < 0)
    top = near + up * (far - near) / jnp.where(bracketed, up - down, 1.0)
    found = jnp.where(bracketed, top, (near + far) / 2)
    step = jnp.where(more, jnp.where(back, now[0] / 2, 2 * now[0]), found)
    lost = ~jnp.isfinite(p.value)
    return Search(
        jnp.where(lost, jnp.nan, step), trials, lost | ~more, bracketed & ~more & ~lost, back, *now
    )


def start(theta: Float[Array, " n"]) -> Searching:
    zero, none = jnp.zeros((), theta.dtype), jnp.zeros_like(theta)
    search = begin(zero)._replace(ended=jnp.asarray(True))
    return Searching(theta, none, none, zero + 1, jnp.asarray(True), search)


class Direction(NamedTuple):
    """Where to search from a gradient, before the slope along it is judged."""

    z: Float[Array, " n"]
    """The gradient, or G^-1 times it."""
    h: Float[Array, " n"]
    size: Float[Array, ""]
    slope: Float[Array, ""]
    statistics: Any
    """Centre, spread and degrees of freedom of the slope; None without error bars."""


def direction(
    state: Searching, posterior: GradientPosterior, *, natural: bool, errors: bool
) -> Direction:
    """A new conjugate direction if the last search has ended, or that of the current search."""

    def conjugate():
        z = posterior.natural if natural else posterior.mean
        change = posterior.mean - state.g
        return z, z + change @ z / state.size * state.h, posterior.mean @ z

    z, h, size = jax.lax.cond(state.search.ended, conjugate, lambda: (state.h, state.h, state.size))
    statistics = direction_statistics(posterior, h) if errors else None
    return Direction(z, h, size, posterior.mean @ h, statistics)


def judged(found: Direction, epsilon: Any, level: float | None) -> Slope:
    """The slope along a direction; it rises or falls beyond `epsilon`, or with probability
    `level`."""
    p = found.slope
    if level is None:
        return Slope(p, p > epsilon, p < -epsilon)
    array = jnp if traced(found) else np
    centre, error, freedom = found.statistics
    up = student_probability(centre / array.where(error > 0, error, 1.0), freedom)
    up = array.where(error > 0, up, (1 + array.sign(p)) / 2)
    return Slope(array.where(array.isnan(error), array.nan, p), up > level, up < 1 - level)


def following(
    state: Searching,
    theta: Float[Array, " n"],
    posterior: GradientPosterior,
    found: Direction,
    p: Slope,
    *,
    first_step: float | None,
    doublings: int,
    limit: float = 0.0,
) -> Searching:
    """The state after the gradient at theta: a new search, or the next step of the current one."""
    h = jnp.where(p.rises, found.h, found.z)
    step = first_step
    if step is None:
        assert posterior.fisher is not None
        curved = jnp.maximum(h @ posterior.fisher.multiply(h), jnp.finfo(h.dtype).tiny)
        step = math.sqrt(2 * limit) / jnp.sqrt(curved)
    first = begin(jnp.asarray(step, h.dtype))._replace(slope=p.value)
    new = Searching(theta, posterior.mean, h, found.size, ~p.rises, first)
    old = state._replace(search=tried(state.search, p, doublings))
    return jax.tree.map(lambda a, b: jnp.where(state.search.ended, a, b), new, old)


def searching(
    limit: float = 0.03,
    *,
    first_step: float | None = None,
    level: float | None = 0.97,
    natural: bool = True,
    doublings: int = 4,
) -> optax.GradientTransformationExtraArgs:
    """`line_search.conjugate_gradients` as an update: it moves the parameters from one gradient to
    the next point at which a gradient is needed, a trial point of a search or its end.

    Without `first_step` a search begins where the policy has changed by `limit` in Kullback-Leibler
    divergence, to second order. A gradient that is not finite ends the search where it began; a
    gradient of zero leaves the parameters unchanged. If the gradient is finite and its direction is
    not, the change is NaN.
    """

    def update(updates, state, params, *, posterior, **_):
        along = direction(state, posterior, natural=natural, errors=level is not None)
        found = following(
            state, params, posterior, along, judged(along, 0.0, level),
            first_step=first_step, doublings=doublings, limit=limit,
        )  # fmt: skip
        finite, search = jnp.all(jnp.isfinite(updates)), found.search
        sound = finite & jnp.isfinite(found.size + search.step + search.slope)
        sound &= found.size > jnp.finfo(params.dtype).tiny
        stopped = state._replace(
            base=found.base, search=search._replace(step=0 * state.search.step, ended=True)
        )
        state = jax.tree.map(lambda a, b: jnp.where(sound, a, b), found, stopped)
        lost = finite & ~sound & jnp.any(updates != 0)
        change = state.base + state.search.step * state.h - params
        return jnp.where(lost, jnp.nan, change), state

    return optax.GradientTransformationExtraArgs(start, update)  # pyright: ignore


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
