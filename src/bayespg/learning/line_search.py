"""Conjugate gradients with a line search that looks at gradients only (Section 5: CONJPOMDP and
GSEARCH of Baxter, Bartlett and Weaver, 2001).

Returns at two points must be told apart through their noise, the more so the nearer the points are;
the sign of the slope at one point need not. The search doubles its step while the slope is up, or
halves it while the slope is down, and interpolates between the last two. Its loops run on the host,
because how many gradients they take depends on the gradients; the gradient itself is compiled once.
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
from bayespg._support.precision import to_float64, to_numpy
from bayespg._support.types import Array
from bayespg.environments import Environment, expected_return
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator
from bayespg.learning.updates import within_range
from bayespg.policies import Policy, flatten
from bayespg.posterior import GradientPosterior, direction_statistics

Gradient = Callable[[Float[Array, " n"], PRNGKeyArray], GradientPosterior]
"""What is known about the gradient at theta, each time from new paths."""
Reason = Literal["iterations", "small gradient", "not finite"]
"""Why it ended."""


class Slope(NamedTuple):
    """How the return changes along a direction, at a trial point."""

    value: float
    """g . h."""
    rises: bool
    """Far enough above zero to double the step once more."""
    falls: bool


class Search(NamedTuple):
    """What a line search found."""

    step: float
    """NaN where a slope was not finite."""
    trials: int
    bracketed: bool
    """Whether the step lies between a slope up and a slope down."""


class History(NamedTuple):
    """One entry an iteration. Where a gradient ended the run, its entry is the last, with step
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
    """Gradients estimated: one at the parameters, one a trial point."""
    episodes: Int[Array, " K"] | None = None
    """Paths drawn for them; this and what follows come from `train` only."""
    sample_return: Float[Array, " K"] | None = None
    """Mean return of the paths drawn at the parameters."""
    expected_return: Float[Array, " K"] | None = None
    """eta(theta) where the environment knows it, NaN where not."""


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

    and halfway where the signs are not these. After `doublings` doublings, or halvings, the search
    makes do with the last two steps; the published one has no bound.
    """
    s, p, trials = first_step, slope(first_step), 1
    back, before = p.value < 0, (s, p)
    while trials <= doublings and math.isfinite(p.value):
        before = s, p
        s = s / 2 if back else 2 * s
        p, trials = slope(s), trials + 1
        if not (p.falls if back else p.rises):
            break
    (near, up), (far, down) = ((s, p), before) if back else (before, (s, p))
    if not math.isfinite(p.value):
        return Search(math.nan, trials, False)
    if up.value > 0 > down.value:
        step = near + up.value * (far - near) / (up.value - down.value)
        return Search(step, trials, True)
    return Search((near + far) / 2, trials, False)


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

        h' = g' + gamma h,   gamma = (g' - g) . g' / |g|^2,   or h' = g' where that is not uphill,

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
    first_step = float(checks.shaped("first_step", first_step, ((),)))
    if first_step <= 0:
        raise ValueError(f"first_step: expected a number above 0, found {first_step}")
    epsilon = float(checks.shaped("epsilon", epsilon, ((),)))
    if epsilon < 0:
        raise ValueError(f"epsilon: expected a number from 0, found {epsilon}")
    iterations = checks.whole("iterations", iterations, 1)
    doublings = checks.whole("doublings", doublings, 1)
    if level is not None and checks.probability("level", level) < 0.5:
        raise ValueError(f"level: expected at least 0.5, found {level}")
    keys = (_fold_in(key, i) for i in itertools.count())

    def ask(point: Float[np.ndarray, " n"]) -> GradientPosterior:
        with jax.enable_x64(True):
            posterior = to_numpy(gradient(point, next(keys)))
        if np.shape(posterior.mean) != theta.shape:
            found = np.shape(posterior.mean)
            raise ValueError(f"gradient: expected a mean of shape {theta.shape}, found {found}")
        return posterior

    g = h = np.zeros_like(theta)
    size, entries, reason = 1.0, [], "iterations"
    for k in range(iterations):
        posterior, found, restarted = ask(theta), Search(0.0, 0, False), k == 0
        z = posterior.natural if natural else posterior.mean
        if np.isfinite(z).all():
            gamma = (posterior.mean - g) @ z / size
            g, h = posterior.mean, z + gamma * h
            size = float(g @ z)
            if size <= epsilon:
                reason = "small gradient"
            else:
                if not _slope(posterior, h, 0.0, level).rises:
                    h, restarted = z, True
                found = line_search(
                    lambda s, theta=theta, h=h: _slope(ask(theta + s * h), h, epsilon, level),
                    first_step,
                    doublings,
                )
        else:
            size = math.nan
        if math.isnan(size + found.step):
            found, reason = found._replace(step=0.0), "not finite"
        norm = math.sqrt(max(size, 0.0))
        entries.append((theta, norm, found.step, restarted, found.bracketed, 1 + found.trials))
        if reason != "iterations":
            break
        theta = theta + found.step * h
    return Result(theta, History(*map(np.array, zip(*entries, strict=True))), reason)


_fold_in = jax.jit(jax.random.fold_in)  # op by op it would take longer than a gradient of LQR


def _slope(
    posterior: GradientPosterior, h: Float[Array, " n"], epsilon: float, level: float | None
) -> Slope:
    if not np.isfinite(posterior.mean).all():
        return Slope(math.nan, False, False)
    p = float(posterior.mean @ h)
    if level is None or p == 0:
        return Slope(p, p > epsilon, p < -epsilon)
    uphill = posterior.probability_uphill(h)
    return Slope(p, uphill > level, uphill < 1 - level)


def train(
    environment: Environment,
    policy: Policy,
    estimator: Estimator,
    *,
    key: PRNGKeyArray,
    paths: int,
    first_step: float,
    iterations: int,
    epsilon: float = 0.0,
    level: float | None = None,
    natural: bool = False,
    doublings: int = 10,
) -> Trained:
    """`conjugate_gradients` on the parameters of a policy, each gradient from `paths` new paths.

    Paths are drawn in float32, the algebra is float64.
    """
    paths = checks.whole("paths", paths, 1)
    policy, returns = to_float64(policy), []

    def gradient(theta: Float[Array, " n"], key: PRNGKeyArray) -> GradientPosterior:
        posterior, mean = _gradient(environment, estimator, policy, theta, key, paths)
        returns.append(float(mean))
        return posterior

    with jax.enable_x64(True):
        theta, rebuild = flatten(policy)
        end, history, reason = conjugate_gradients(
            gradient, theta, key, first_step=first_step, iterations=iterations, epsilon=epsilon,
            level=level, natural=natural, doublings=doublings,
        )  # fmt: skip
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


class Searching(NamedTuple):
    """Where `searching` is: at `base`, or at a trial point base + step h."""

    base: Float[Array, " n"]
    g: Float[Array, " n"]
    h: Float[Array, " n"]
    size: Float[Array, ""]
    """|g|^2, or g'G^-1 g."""
    trials: Int[Array, ""]
    """Trial points of the search so far, this one included; 0 at `base`."""
    step: Float[Array, ""]
    back: Bool[Array, ""]
    """Whether the step is being halved."""
    before: Float[Array, ""]
    """The step before, and the slope there."""
    slope: Float[Array, ""]


def searching(
    limit: float = 0.03,
    *,
    first_step: float | None = None,
    level: float | None = 0.97,
    natural: bool = True,
    doublings: int = 4,
) -> optax.GradientTransformationExtraArgs:
    """`conjugate_gradients` as an update among others: one gradient in, the next point to ask at
    out, whether that is a trial point of a search or the end of one.

    Without `first_step` a search begins where the policy has changed by `limit`, in
    Kullback-Leibler divergence to second order. A gradient that is not finite ends the search where
    it began. Where the gradient is finite and its direction is not, the change is NaN.
    """

    def init(theta):
        zero = jnp.zeros((), theta.dtype)
        none = jnp.zeros_like(theta)
        count, no = jnp.zeros((), jnp.int32), jnp.asarray(False)
        return Searching(theta, none, none, zero + 1, count, zero, no, zero, zero)

    def judged(posterior, h):
        """The slope along h, whether it is surely up, and whether surely down."""
        p = posterior.mean @ h
        if level is None:
            return p, p > 0, p < 0
        centre, error, freedom = direction_statistics(posterior, h)
        p = jnp.where(jnp.isnan(error), jnp.nan, p)
        up = student_cdf(centre / jnp.where(error > 0, error, 1.0), freedom)
        up = jnp.where(error > 0, up, jnp.where(p > 0, 1.0, 0.0))
        return p, up > level, up < 1 - level

    def begin(theta, state, posterior):
        """A new direction from the gradient at theta, and its first trial point."""
        mean = posterior.mean
        z = within_range(posterior.fisher, mean)[1] if natural else mean
        gamma = (mean - state.g) @ z / state.size
        h = z + gamma * state.h
        p, rises, _ = judged(posterior, h)
        h = jnp.where(rises, h, z)
        if first_step is None:
            curved = jnp.maximum(h @ posterior.fisher.multiply(h), jnp.finfo(h.dtype).tiny)
            step = math.sqrt(2 * limit) / jnp.sqrt(curved)
        else:
            step = jnp.asarray(first_step, h.dtype)
        step = jnp.where(jnp.isnan(p), jnp.nan, step)
        zero = jnp.zeros_like(step)
        return Searching(
            theta, mean, h, jnp.maximum(mean @ z, jnp.finfo(h.dtype).tiny),
            jnp.ones((), jnp.int32), step, jnp.asarray(False), zero, zero,
        )  # fmt: skip

    def go_on(theta, state, posterior):
        """The next trial point, or the top of the parabola between the last two."""
        p, rises, falls = judged(posterior, state.h)
        first = state.trials == 1
        back = jnp.where(first, p < 0, state.back)
        more = (first | jnp.where(back, falls, rises)) & (state.trials <= doublings)
        s, q, t = state.step, state.slope, state.before
        near, far = jnp.where(back, s, t), jnp.where(back, t, s)
        up, down = jnp.where(back, p, q), jnp.where(back, q, p)
        apart = jnp.where(up - down > 0, up - down, 1.0)
        top = jnp.where((up > 0) & (down < 0), near + up * (far - near) / apart, (near + far) / 2)
        going = state._replace(
            trials=state.trials + 1, step=jnp.where(back, s / 2, 2 * s), back=back, before=s,
            slope=p,
        )  # fmt: skip
        ended = state._replace(
            base=state.base + top * state.h, trials=jnp.zeros_like(state.trials), step=0.0 * s
        )
        return jax.tree.map(lambda a, b: jnp.where(more, a, b), going, ended)

    def update(updates, state, params, *, posterior, **_):
        theta = params
        found = jax.lax.cond(
            state.trials == 0,
            lambda: begin(theta, state, posterior),
            lambda: go_on(theta, state, posterior),
        )
        sound = jnp.all(jnp.isfinite(updates)) & jnp.isfinite(found.step + found.slope + found.size)
        sound &= (found.size > jnp.finfo(theta.dtype).tiny) | jnp.all(updates == 0)
        stopped = state._replace(
            base=jnp.where(state.trials == 0, theta, state.base),
            trials=jnp.zeros_like(state.trials), step=jnp.zeros_like(state.step),
        )  # fmt: skip
        lost = jnp.all(jnp.isfinite(updates)) & ~sound
        found = jax.tree.map(lambda a, b: jnp.where(sound, a, b), found, stopped)
        return jnp.where(lost, jnp.nan, found.base + found.step * found.h - theta), found

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore


def student_cdf(t: Float[Array, "*N"], freedom: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """P(T <= t) of Student's distribution, in JAX."""
    tail = 0.5 * jax.scipy.special.betainc(freedom / 2, 0.5, freedom / (freedom + t**2))
    return jnp.where(t > 0, 1 - tail, tail)
