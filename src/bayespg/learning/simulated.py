"""Improving a policy on simulated episodes, of which there are plenty.

Where steps cost nothing an update need not be frugal. Values are fitted to the very episodes whose
advantages they are used for, since their few weights hardly fit the noise of thousands of steps;
episodes that are cut off count the value of the state in which they are. The policy then moves
along the natural gradient of GAE as far as a Kullback-Leibler limit allows. Many such updates are
one compiled program in single precision.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.observations import Normalised, Normaliser
from bayespg.models.environment import Learned
from bayespg.policies import AnyPolicy, base, flatten

LAMBDA, LIMIT, DAMPING = 0.97, 0.03, 0.1
SLOW = 0.3
"""Share of the natural step of log standard deviations that is taken: exploration spent early is
missed later."""
FITS = 2
"""Fits of the values per update, each to targets that use the one before."""
ROUNDING = 1e-6
"""Share of the trace that is added to the precision of the values: it is single."""
METRIC = 768
"""Steps over which the metric is averaged."""
MEMORY, FLOOR = 0.7, 0.1
"""Decay of the running mean of the agreement of the two halves of the episodes, and the least share
of the limit that a step may use. With agreement r the share 2 r / (1 + r) of the squared gradient
is signal; if that is less than a half, the limit shrinks in proportion. A policy that the model
cannot improve would otherwise follow noise."""
TRUST = 0.5
"""Standard deviation of a simulated state, in units of that of observed ones, beyond which it is
not followed further."""
WAVES, LENGTH = 100, 0.7
"""Features of values, and their length scale in units of sqrt(d)."""


class Basis(eqx.Module):
    """Features of values: (1, x, x_i x_j, waves)."""

    frequencies: Float[np.ndarray, "m d"]
    phases: Float[np.ndarray, " m"]

    @property
    def size(self) -> int:
        d = self.frequencies.shape[1]
        return 1 + d + d * (d + 1) // 2 + len(self.phases)

    def __call__(self, x: Float[Array, "*N d"]) -> Float[Array, "*N q"]:
        i, j = np.triu_indices(x.shape[-1])
        waves = math.sqrt(2 / len(self.phases)) * jnp.cos(x @ self.frequencies.T + self.phases)
        one = jnp.ones_like(x[..., :1])
        return jnp.concatenate([10 * one, 3 * x, x[..., i] * x[..., j], 3 * waves], -1)


def basis(size: int) -> Basis:
    """For observations of `size` numbers."""
    rng = np.random.default_rng(0)
    frequencies = rng.standard_normal((WAVES, size)) / (LENGTH * math.sqrt(size))
    phases = rng.uniform(0, 2 * math.pi, WAVES)
    return Basis(frequencies.astype(np.float32), phases.astype(np.float32))


class Progress(eqx.Module):
    """Numbers of each update, measured before it was made."""

    returns: Float[Array, "*N"]
    """Mean return of the simulated episodes."""
    ended: Float[Array, "*N"]
    """Share of them that ended by themselves."""
    lengths: Float[Array, "*N"]
    """Their mean number of steps."""
    agreement: Float[Array, "*N"]
    """How far the two halves of them agree on the gradient, as a running mean."""


@eqx.filter_jit
def improve(
    environment: Learned,
    policy: AnyPolicy,
    normaliser: Normaliser,
    basis: Basis,
    values: Float[Array, " q"],
    key: PRNGKeyArray,
    updates: int,
    paths: int,
    limit: Float[Array, ""] | float = LIMIT,
    trust: Float[Array, ""] | float = TRUST,
) -> tuple[AnyPolicy, Float[Array, " q"], Progress]:
    """The policy after so many updates on so many simulated episodes each, and the weights of the
    values. A policy whose simulated advantages are all equal stays as it is."""
    theta, rebuild = flatten(policy)
    slow = _slow(policy)

    def update(carry, key):
        theta, values, agreement = carry
        policy: Any = rebuild(theta)
        key_paths, key_metric = jax.random.split(key)
        found = simulate(environment, Normalised(policy, normaliser), key_paths, paths, trust)
        seen = normaliser(found.states)
        psi = basis(jnp.concatenate([seen, normaliser(found.final)[None]]))
        advantages, values = _advantages(found, psi, values, environment.discount)
        weights = found.mask.reshape(-1).astype(theta.dtype)
        credit, spread = _standardised(advantages, found.mask)

        def gain(t, states, actions, credit):
            now: Any = rebuild(t)
            each = jax.vmap(jax.vmap(lambda x, a: now(x).log_prob(a)))(states, actions)
            return 2 * jnp.sum(credit * each) / jnp.sum(weights)

        halves = (jnp.stack([x[:, 0::2], x[:, 1::2]]) for x in (seen, found.actions, credit))
        g1, g2 = jax.vmap(jax.grad(gain), (None, 0, 0, 0))(theta, *halves)
        X = seen.reshape(-1, seen.shape[-1])
        some = X[jax.random.choice(key_metric, len(weights), (METRIC,), p=weights)]
        root = jax.vmap(lambda x: base.information_root(policy, x))(some)
        root = root.reshape(-1, theta.size)
        G = root.T @ root / METRIC
        damped = G + (DAMPING * jnp.trace(G) / theta.size + 1e-6) * jnp.eye(theta.size)
        d1, d2 = jax.scipy.linalg.solve(damped, jnp.stack([g1, g2], 1), assume_a="pos").T
        agreed = 2 * (g1 @ d2) / jnp.maximum(g1 @ d1 + g2 @ d2, 1e-30)
        fresh = MEMORY * agreement + (1 - MEMORY) * agreed
        agreement = jnp.where(jnp.isfinite(fresh), fresh, agreement)
        share = jnp.clip(2 * agreement / (1 + agreement), FLOOR, 1.0)
        d = slow * (d1 + d2) / 2
        length = jnp.sqrt(2 * limit * jnp.minimum(2 * share, 1.0) / jnp.maximum(d @ G @ d, 1e-12))
        new = theta + length * d
        sound = (spread > 1e-6) & jnp.all(jnp.isfinite(new))
        values = jnp.where(jnp.all(jnp.isfinite(values)), values, 0.0)
        progress = Progress(
            jnp.sum(jnp.where(found.mask, found.rewards, 0.0)) / paths,
            jnp.mean(found.terminated.astype(theta.dtype)),
            jnp.sum(weights) / paths,
            agreement,
        )
        return (jnp.where(sound, new, theta), values, agreement), progress

    (theta, values, _), progress = jax.lax.scan(
        update, (theta, values, jnp.ones(())), jax.random.split(key, updates)
    )
    return rebuild(theta), values, progress


def simulate(
    environment: Learned, policy: AnyPolicy, key: PRNGKeyArray, paths: int, trust: Any
) -> Trajectories:
    """Episodes in a learned environment. One is cut off, as by a time limit, where the model no
    longer knows where it is: the variances of its steps sum to more than `trust` squared."""
    key_reset, key_steps = jax.random.split(key)

    def step(carry, key):
        states, running, doubt = carry
        key_action, key_step = jax.random.split(key)
        at, _ = jax.vmap(lambda x: policy.step((), x))(states)
        actions = at.sample(key_action)
        following, rewards, ended, unknown = environment.transition(key_step, states, actions)
        following = jnp.where(running[:, None], following, states)
        doubt = doubt + unknown**2
        going = running & ~ended & (doubt <= trust**2)
        return (following, going, doubt), (states, actions, rewards, running, running & ended)

    first = environment.reset(key_reset, paths), jnp.ones(paths, bool), jnp.zeros(paths)
    keys = jax.random.split(key_steps, environment.horizon)
    (final, _, _), (states, actions, rewards, mask, ended) = jax.lax.scan(step, first, keys)
    return Trajectories(states, actions, rewards, mask, jnp.any(ended, 0), final)


def _advantages(
    paths: Trajectories, psi: Float[Array, "T1 M q"], values: Float[Array, " q"], discount: float
) -> tuple[Float[Array, "T M"], Float[Array, " q"]]:
    """GAE under values that are fitted to the paths, and the weights of these values."""
    T, M = paths.mask.shape
    last = jnp.arange(T)[:, None] == paths.lengths - 1
    ended = last & paths.terminated
    taken = paths.mask.reshape(-1).astype(psi.dtype)
    Psi = psi[:-1].reshape(T * M, -1)
    gram = (Psi * taken[:, None]).T @ Psi
    gram = gram + (1 + ROUNDING * jnp.trace(gram)) * jnp.eye(len(gram))
    factor = jax.scipy.linalg.cho_factor(gram)

    def judged(values):
        V = psi @ values
        # A path that has ended stays where it is, so the row after its last step is its last state.
        following = jnp.where(ended, 0.0, V[1:])
        delta = jnp.where(paths.mask, paths.rewards + discount * following - V[:-1], 0.0)

        def back(tail, now):
            d, end = now
            tail = d + discount * LAMBDA * jnp.where(end, 0.0, tail)
            return tail, tail

        tails = jax.lax.scan(back, jnp.zeros_like(delta[0]), (delta, last), reverse=True)[1]
        return tails, V[:-1]

    def fit(_, values):
        advantages, V = judged(values)
        targets = (advantages + V).reshape(-1)
        return jax.scipy.linalg.cho_solve(factor, Psi.T @ (taken * targets))

    values = jax.lax.fori_loop(0, FITS, fit, values)
    return judged(values)[0], values


def _standardised(
    x: Float[Array, "T M"], taken: Bool[Array, "T M"]
) -> tuple[Float[Array, "T M"], Float[Array, ""]]:
    """x with mean 0 and variance 1 over the steps taken, and its standard deviation before."""
    count = jnp.sum(taken)
    mean = jnp.sum(jnp.where(taken, x, 0.0)) / count
    spread = jnp.sqrt(jnp.sum(jnp.where(taken, x - mean, 0.0) ** 2) / count)
    return jnp.where(taken, (x - mean) / jnp.maximum(spread, 1e-6), 0.0), spread


def _slow(policy: AnyPolicy) -> Float[np.ndarray, " n"]:
    """Factors of the natural step: `SLOW` for log standard deviations, one for the others."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(policy, eqx.is_inexact_array))
    names = [(jax.tree_util.keystr(path), leaf.size) for path, leaf in leaves]
    factors = [np.full(size, SLOW if "log_scale" in name else 1.0) for name, size in names]
    return np.concatenate(factors).astype(np.float32)
