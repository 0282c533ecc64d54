"""Conjugate gradients with a line search that looks at gradients only (Section 5: CONJPOMDP and
GSEARCH of Baxter, Bartlett and Weaver, 2001), as an update of training.

To compare the returns of two points one must overcome their noise, the more so the nearer the
points are; the sign of the slope at one point needs no such comparison. The search doubles its step
while the slope is positive, or halves it while the slope is negative, and interpolates between the
last two. Each update moves the parameters from one gradient to the next point at which a gradient
is needed, so `training.train` and agents run it like any other update.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int

from bayespg._support import checks
from bayespg._support.precision import traced
from bayespg._support.statistics import student_probability
from bayespg._support.types import Array
from bayespg.learning.updates import from_arguments
from bayespg.posterior import GradientPosterior, direction_statistics

__all__ = ["ConjugateGradients", "Search", "Slope", "conjugate_gradients", "try_step"]


def __dir__() -> list[str]:
    return sorted(__all__)


class Slope(NamedTuple):
    """How the return changes along a direction, at a trial point."""

    value: Any
    """g . h; NaN where the gradient or its error is not finite."""
    rises: Any
    """Far enough above zero to double the step once more."""
    falls: Any


class Search(NamedTuple):
    """A line search: which step it tries next or, once it has ended, the step to take."""

    step: Float[Array, ""]
    """NaN where a slope was not finite."""
    trials: Int[Array, ""]
    """Slopes measured so far."""
    ended: Bool[Array, ""]
    bracketed: Bool[Array, ""]
    """Whether the step lies between a slope up and a slope down."""
    back: Bool[Array, ""]
    """Whether the step is being halved."""
    before: Float[Array, ""]
    """The step tried last, and the slope there."""
    slope: Float[Array, ""]


class ConjugateGradients(NamedTuple):
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
    """A line search before its first trial."""
    no = jnp.asarray(False)
    zero = jnp.zeros_like(first_step)
    return Search(first_step, jnp.zeros((), jnp.int32), no, no, no, first_step, zero)


def try_step(search: Search, p: Slope, doublings: int) -> Search:
    """GSEARCH: the search when the slope at its step is known.

    Between s- < s+ with slopes p- > 0 > p+ it ends at the top of the parabola with these slopes:

        s = s- + p- (s+ - s-) / (p- - p+),

    or halfway if the signs are different. After `doublings` doublings, or halvings, the search
    takes the last two steps; the published search has no bound.
    """
    first, trials = search.trials == 0, search.trials + 1
    back = jnp.where(first, p.value < 0, search.back)
    more = (first | jnp.where(back, p.falls, p.rises)) & (trials <= doublings)
    now, last = (search.step, p.value), (search.before, search.slope)
    (short, up), (long, down) = (
        [jnp.where(back, a, b) for a, b in zip(*pair, strict=True)]
        for pair in ((now, last), (last, now))
    )
    bracketed = (up > 0) & (down < 0)
    top = short + up * (long - short) / jnp.where(bracketed, up - down, 1.0)
    end = jnp.where(bracketed, top, (short + long) / 2)
    step = jnp.where(more, jnp.where(back, now[0] / 2, 2 * now[0]), end)
    lost = ~jnp.isfinite(p.value)
    return Search(
        jnp.where(lost, jnp.nan, step), trials, lost | ~more, bracketed & ~more & ~lost, back, *now
    )


def _start(theta: Float[Array, " n"]) -> ConjugateGradients:
    zero, none = jnp.zeros((), theta.dtype), jnp.zeros_like(theta)
    search = begin(zero)._replace(ended=jnp.asarray(True))
    return ConjugateGradients(theta, none, none, zero + 1, jnp.asarray(True), search)


def _slope(
    posterior: GradientPosterior, h: Float[Array, " n"], epsilon: Any, level: float | None
) -> Slope:
    """The slope along h; it rises or falls beyond `epsilon`, or with probability `level`."""
    p = posterior.mean @ h
    if level is None:
        return Slope(p, p > epsilon, p < -epsilon)
    centre, error, freedom = direction_statistics(posterior, h)
    up = student_probability(centre / jnp.where(error > 0, error, 1.0), freedom)
    up = jnp.where(error > 0, up, (1 + jnp.sign(p)) / 2)
    return Slope(jnp.where(jnp.isnan(error), jnp.nan, p), up > level, up < 1 - level)


@from_arguments
def conjugate_gradients(
    limit: float = 0.03,
    *,
    first_step: float | None = None,
    epsilon: float = 0.0,
    level: float | None = 0.97,
    natural: bool = True,
    doublings: int = 4,
) -> optax.GradientTransformationExtraArgs:
    """CONJPOMDP: maximise by line searches along conjugate directions (Polak and Ribiere),

        h' = g' + gamma h,   gamma = (g' - g) . g' / |g|^2,   or h' = g' if that is not uphill.

    A search begins with the step `first_step` h or, without it, where the policy has changed by
    `limit` in Kullback-Leibler divergence, to second order. A gradient with |g|^2 <= `epsilon`
    starts no search and leaves the parameters unchanged; with `stop` of `training.train` it ends
    the run.

    As published (`level=None`), a slope g . h is taken for up above `epsilon` and for down below
    -`epsilon`. With `level`, the error bars decide: it is up where `probability_uphill` is above
    `level` and down where it is below 1 - `level`, so that the step is doubled or halved, and the
    direction before remembered, only on good evidence.

    `natural` searches along G^-1 g: the first term of h' is G^-1 g', and |g|^2 is g'G^-1 g
    everywhere (conjugate gradients preconditioned by G). A gradient that is not finite ends the
    search where it began. If the gradient is finite and its direction is not, the change is NaN.
    """
    limit = checks.real("limit", limit, above=0)
    epsilon = checks.real("epsilon", epsilon, least=0)
    doublings = checks.whole("doublings", doublings, 1)
    if first_step is not None:
        first_step = checks.real("first_step", first_step, above=0)
    level = None if level is None else checks.probability("level", level)
    if level is not None and not traced(level) and level < 0.5:
        raise ValueError(f"level: expected at least 0.5, found {level}")

    def first_search(posterior: GradientPosterior, h: Float[Array, " n"], p: Slope) -> Search:
        step = first_step
        if step is None:
            if posterior.fisher is None:
                raise ValueError("first_step: needed for a gradient without a Fisher matrix")
            curved = jnp.maximum(h @ posterior.fisher.multiply(h), jnp.finfo(h.dtype).tiny)
            step = jnp.sqrt(2 * limit / curved)
        return begin(jnp.asarray(step, h.dtype))._replace(slope=p.value)

    def update(updates, state, params, *, posterior, **_):
        g, starts = posterior.mean, state.search.ended

        def conjugate():
            z = posterior.natural if natural else g
            return z, z + (g - state.g) @ z / state.size * state.h, g @ z

        z, h, size = jax.lax.cond(starts, conjugate, lambda: (state.h, state.h, state.size))
        p = _slope(posterior, h, jnp.where(starts, 0.0, epsilon), level)
        h = jnp.where(p.rises, h, z)
        search = first_search(posterior, h, p)
        new = ConjugateGradients(params, g, h, size, ~p.rises, search)
        old = state._replace(search=try_step(state.search, p, doublings))
        new = jax.tree.map(lambda a, b: jnp.where(starts, a, b), new, old)
        search = new.search
        finite, known = jnp.all(jnp.isfinite(updates)), jnp.isfinite(size + search.step + p.value)
        small = size <= jnp.maximum(epsilon, jnp.finfo(params.dtype).tiny)
        stopped = state._replace(
            base=new.base, search=search._replace(step=0 * state.search.step, ended=True)
        )
        state = jax.tree.map(lambda a, b: jnp.where(finite & known & ~small, a, b), new, stopped)
        change = state.base + state.search.step * state.h - params
        return jnp.where(finite & ~known & jnp.any(updates != 0), jnp.nan, change), state

    return optax.GradientTransformationExtraArgs(_start, update)  # pyright: ignore
