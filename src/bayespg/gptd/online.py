"""One transition at a time, at cost m^2: the same answer as `posterior` with a dictionary.

A running episode is one whose tail is unknown. Its pairs enter as sums: each new transition adds
the one direction in which it is orthogonal to those before, (v/|v|^2, -gamma), by a rank-one
update.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from bayespg import kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, run, to_float64, traced
from bayespg._support.types import Array
from bayespg.algebra import sparsification
from bayespg.algebra.conditioning import LOG_2PI
from bayespg.algebra.sparsification import Basis, Sparsify
from bayespg.gptd import inputs
from bayespg.gptd.critic import Critic
from bayespg.kernels import Kernel


class Members(NamedTuple):
    """The dictionary of m slots, of which the first ones are used."""

    points: PyTree[Shaped[Array, "m ..."]]
    basis: Basis


class Belief(NamedTuple):
    """The weights of the features, w ~ N(e, S)."""

    weights: Float[Array, " m"]
    """e."""
    covariance: Float[Array, "m m"]
    """S."""
    observations: Int[Array, ""]
    log_evidence: Float[Array, ""]


class Episode(NamedTuple):
    """The running episode as sums over its pairs, v_i = gamma^(steps to the newest pair)."""

    running: Bool[Array, ""]
    a: Float[Array, " m"]
    """sum v_i psi_i / nu."""
    d: Float[Array, ""]
    """sum v_i y_i / nu, with y = 0 at the newest pair."""
    nu: Float[Array, ""]
    """sum v_i^2."""


class Online(eqx.Module):
    """A critic that learns one transition at a time at cost m^2, m the dictionary's capacity.

        >>> critic = gptd.online(kernel, z, discount=0.99, sparsify=Sparsify(0.1, 100))
        >>> critic = critic.begin(z).observe(reward, next_z).terminate(reward)
        >>> critic.critic().mean(points)

    Its answer is that of `posterior` on the same steps. Every method gives a new `Online` of the
    same shapes, so all of them work inside jit and scan; there a transition outside an episode
    changes nothing, where plain arrays get a ValueError.
    """

    kernel: Kernel
    threshold: Float[Array, ""]
    noise: Float[Array, ""]
    discount: Float[Array, ""]
    members: Members
    belief: Belief
    episode: Episode

    def begin(self, point: Any) -> "Online":
        """An episode starts with this pair."""
        return _advance(self, "begin", _begin, (), (point,))

    def observe(self, reward: float | Float[Array, ""], point: Any) -> "Online":
        """The newest pair earned `reward` and led to this pair."""
        return _advance(self, "observe", _observe, (reward,), (point,))

    def terminate(self, reward: float | Float[Array, ""]) -> "Online":
        """The newest pair earned `reward` and led to an absorbing state."""
        return _advance(self, "terminate", _terminate, (reward,), ())

    def truncate(self) -> "Online":
        """The episode is cut off; the reward of its newest pair is not used."""
        return _advance(self, "truncate", _truncate, (), ())

    def critic(self) -> Critic:
        """The critic given all transitions so far."""
        return run(_critic, self)


def online(
    kernel: Kernel,
    example_point: Any,
    *,
    discount: float | Float[Array, ""],
    noise: float | Float[Array, ""] = 1.0,
    sparsify: Sparsify,
) -> Online:
    """An `Online` critic without data; `example_point` is any point, given for its shape."""
    if not isinstance(sparsify, Sparsify) or sparsify.capacity is None:
        raise ValueError(
            "sparsify: expected Sparsify(threshold, capacity) with a capacity, found "
            f"{checks.shown(sparsify)}"
        )
    tau, m = sparsify.threshold, sparsify.capacity
    if traced(kernel, example_point, discount, noise):
        return _online(kernel, example_point, tau, noise, discount, m)
    kernel, point = (
        inputs.checked_kernel("kernel", kernel),
        inputs.as_arrays("example_point", example_point),
    )
    inputs.accepts("example_point", kernel, point)
    s2, gamma = checks.positive("noise", noise, ()), np.asarray(checks.discount(discount))
    return in_float64(_online)(kernel, point, np.asarray(tau), s2, gamma, m)


def _online(kernel, point, threshold, noise, discount, m: int) -> Online:
    zero = jnp.zeros(())
    slots = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], m, 0), point)
    return Online(
        kernel=kernel,
        threshold=jnp.asarray(threshold, float),
        noise=jnp.asarray(noise, float),
        discount=jnp.asarray(discount, float),
        members=Members(slots, sparsification.empty(m)),
        belief=Belief(jnp.zeros(m), jnp.eye(m), jnp.zeros((), int), zero),
        episode=Episode(jnp.zeros((), bool), jnp.zeros(m), zero, jnp.ones(())),
    )


def _advance(state: Online, name: str, function, rewards: tuple, points: tuple) -> Online:
    if traced(state, rewards, points):
        return function(state, *rewards, *points)
    running = bool(state.episode.running)
    if running == (name == "begin"):
        status = "an episode is running" if running else "no episode is running"
        raise ValueError(f"{name}: {status}; see begin, terminate and truncate")
    rewards = tuple(checks.shaped("reward", value, ((),)) for value in rewards)
    points = tuple(inputs.like("point", value, state.members.points, 0) for value in points)
    return checks.sound("reward", in_float64(function)(to_float64(state), *rewards, *points))


def _begin(state: Online, point) -> Online:
    members, psi = _visit(state, point, True)
    zero, one = jnp.zeros_like(state.noise), jnp.ones_like(state.noise)
    episode = Episode(jnp.ones((), bool), psi, zero, one)
    return dataclasses.replace(state, members=members, episode=episode)


def _observe(state: Online, reward, point) -> Online:
    """d + r = (a - gamma psi')'w + noise of variance s^2 (1/nu + gamma^2), independent of all
    before."""
    gamma, (running, a, d, nu) = state.discount, state.episode
    members, psi = _visit(state, point, running)
    belief = _condition(state, a - gamma * psi, d + reward, 1 / nu + gamma**2)
    total = gamma**2 * nu + 1
    moved = ((gamma * nu * a + psi) / total, gamma * nu * (d + reward) / total, total)
    kept = (jnp.where(running, new, old) for new, old in zip(moved, (a, d, nu), strict=True))
    return dataclasses.replace(
        state, members=members, belief=belief, episode=Episode(running, *kept)
    )


def _terminate(state: Online, reward) -> Online:
    """d + r = a'w + noise of variance s^2 / nu."""
    _, a, d, nu = state.episode
    return _truncate(dataclasses.replace(state, belief=_condition(state, a, d + reward, 1 / nu)))


def _truncate(state: Online) -> Online:
    return dataclasses.replace(state, episode=state.episode._replace(running=jnp.zeros((), bool)))


def _visit(state: Online, point, counts) -> tuple[Members, Float[Array, " m"]]:
    """The features of a point, which joins the dictionary if it is far from its span."""
    points, basis = state.members
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], point)
    k = kernels.gram(state.kernel, points, one)[:, 0]
    variance = kernels.diagonal(state.kernel, one)[0]
    basis, psi, slot = basis.visit(k, variance, state.threshold, counts)

    def put(buffer, value):
        return jnp.where(slot.reshape(-1, *[1] * (buffer.ndim - 1)), value, buffer)

    return Members(jax.tree.map(put, points, point), basis), psi


def _condition(state: Online, x, target, scale) -> Belief:
    """Given target = x'w + noise of variance s^2 scale, if an episode is running."""
    counts, (e, S, observations, log_evidence) = state.episode.running, state.belief
    Sx = S @ x
    variance = state.noise * scale + x @ Sx
    error = target - x @ e
    root = jnp.where(counts, Sx / jnp.sqrt(variance), 0.0)
    log_density = -0.5 * (error**2 / variance + jnp.log(variance) + LOG_2PI)
    return Belief(
        weights=e + root * error / jnp.sqrt(variance),
        covariance=S - jnp.outer(root, root),
        observations=observations + counts,
        log_evidence=log_evidence + jnp.where(counts, log_density, 0.0),
    )


def _critic(state: Online) -> Critic:
    (points, basis), belief = state.members, state.belief
    return Critic(
        kernel=state.kernel,
        points=points,
        factor=basis.factor,
        weights=belief.weights,
        reduction=jnp.eye(basis.factor.shape[0], dtype=basis.factor.dtype) - belief.covariance,
        log_evidence=belief.log_evidence,
        info={
            "observations": belief.observations,
            "dictionary_size": basis.size,
            "dictionary_refused": basis.refused,
            "dictionary_residual": basis.residual,
        },
    )
