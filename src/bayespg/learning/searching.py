"""One step of conjugate gradients with a line search, as pure functions and as an update.

From one gradient follows the next point at which a gradient is needed. `searching` wraps the step
as an update of training; `line_search.conjugate_gradients` calls its parts in a loop on the host.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int

from bayespg._support.precision import traced
from bayespg._support.statistics import student_probability
from bayespg._support.types import Array
from bayespg.posterior import GradientPosterior, direction_statistics


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
