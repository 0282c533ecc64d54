"""Improving a policy on simulated episodes, of which there are plenty.

Where steps cost nothing an update need not be frugal. Values are fitted to the very episodes whose
advantages they are used for, since their few weights hardly fit the noise of thousands of steps;
episodes that are cut off count the value of the state in which they are. The policy then moves
along the natural gradient of GAE as far as a Kullback-Leibler limit allows. Many such updates are
one compiled program in single precision.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import values as values_of
from bayespg.learning.observations import Normalised, Normaliser
from bayespg.models.environment import Learned
from bayespg.models.features import Quadratic, draw_waves
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
"""Waves among the features of values, and their length scale in units of sqrt(d)."""
SIZES = (10.0, 3.0, 1.0, 3.0)
"""Prior standard deviations of the parts of these features."""


def basis(size: int) -> Quadratic:
    """Features of the values of observations of `size` numbers."""
    return Quadratic(draw_waves(jax.random.key(0), size, WAVES).stretched(LENGTH), SIZES)


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
    basis: Quadratic,
    values: Float[Array, " q"],
    key: PRNGKeyArray,
    updates: int,
    paths: int,
    limit: Float[Array, ""] | float = LIMIT,
    trust: Float[Array, ""] | float = TRUST,
) -> tuple[AnyPolicy, Float[Array, " q"], Progress]:
    """The policy after `updates` updates on `paths` simulated episodes each, and the weights of the
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
        centred, spread = values_of.centred(advantages, found.mask)
        credit = centred / jnp.where(spread > 0, spread, 1.0)

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
        sound = (spread > 0) & jnp.all(jnp.isfinite(new))
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
        rewards = jnp.where(paths.mask, paths.rewards, 0.0)
        delta = jnp.where(paths.mask, rewards + discount * following - V[:-1], 0.0)
        return values_of.tails(delta, last, discount * LAMBDA), V[:-1]

    def fit(_, values):
        advantages, V = judged(values)
        targets = (advantages + V).reshape(-1)
        return jax.scipy.linalg.cho_solve(factor, Psi.T @ (taken * targets))

    values = jax.lax.fori_loop(0, FITS, fit, values)
    return judged(values)[0], values


def _slow(policy: AnyPolicy) -> Float[np.ndarray, " n"]:
    """Factors of the natural step: `SLOW` for log standard deviations, one for the others."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(policy, eqx.is_inexact_array))
    names = [(jax.tree_util.keystr(path), leaf.size) for path, leaf in leaves]
    factors = [np.full(size, SLOW if "log_scale" in name else 1.0) for name, size in names]
    return np.concatenate(factors).astype(np.float32)
