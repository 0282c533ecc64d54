"""Improving a policy on simulated episodes, of which there are plenty.

Where steps cost nothing an update need not be frugal. Values are fitted to the very episodes whose
advantages they are used for, since their few weights hardly fit the noise of thousands of steps;
episodes that are cut off count the value of the state in which they are. The policy then moves
along the natural gradient of GAE as far as a Kullback-Leibler limit allows. Many such updates are
one compiled program in single precision.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support import compilation
from bayespg._support.types import Array
from bayespg.environments import trajectories
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import values as values_of
from bayespg.models.environment import Learned
from bayespg.models.features import Quadratic, draw_waves
from bayespg.paths.observations import Normaliser
from bayespg.policies import base, flatten
from bayespg.policies.heads import Composed

LAMBDA, LIMIT, DAMPING = 0.97, 0.03, 0.1
SLOW = 0.3
"""Share of the natural step of log standard deviations that is taken: exploration spent early is
missed later."""
FITS = 2
"""Fits of the values per update, each to targets that use the one before."""
ROUNDING = 1e-6
"""Share of the trace that is added to the precision of the values: it is single."""
METRIC, FITTED = 768, 3072
"""Steps over which the metric is averaged, and those to which values are fitted."""
MEMORY, FLOOR = 0.7, 0.1
"""Decay of the running mean of the agreement of the two halves of the episodes, and the least share
of the limit that a step may use. With agreement r the share 2 r / (1 + r) of the squared gradient
is signal; if that is less than a half, the limit shrinks in proportion. A policy that the model
cannot improve would otherwise follow noise."""
TRUST = 0.5
"""Standard deviation of a simulated state, in units of that of observed ones, beyond which it is
not followed further."""
CURIOUS = 10.0
"""Most of what curiosity pays in a step, in units of it, when values are bounded."""
WAVES, LENGTH = 100, 0.7
"""Waves among the features of values, and their length scale in units of sqrt(d)."""
SIZES = (10.0, 3.0, 1.0, 3.0)
"""Prior standard deviations of the parts of these features."""


def basis(size: int) -> Quadratic:
    """Features of the values of observations of `size` numbers."""
    return Quadratic(draw_waves(jax.random.key(0), size, WAVES).stretched(LENGTH), SIZES)


class Actor(eqx.Module):
    """A policy, the units in which it gets observations, and the values of states under it."""

    policy: Composed
    normaliser: Normaliser
    """A policy keeps the units in which it began: in others it would be another policy."""
    values: Float[Array, " q"]
    """Weights of the values of states."""


class Progress(eqx.Module):
    """Numbers of each update, measured before it was made."""

    lengths: Float[Array, "*N"]
    """Mean number of steps of the simulated episodes."""
    agreement: Float[Array, "*N"]
    """How far the two halves of them agree on the gradient, as a running mean."""


class Improved(eqx.Module):
    """A policy after some updates."""

    actor: Actor
    progress: Progress
    before: Float[Array, " M"]
    """Discounted returns of episodes under the policy before, the first half of them from first
    states, with the values of the states in which they are cut off."""
    after: Float[Array, " M"]
    """The same under the policy after, with the same random numbers."""


def improved(
    environment: Learned,
    actor: Actor,
    units: Normaliser,
    basis: Quadratic,
    key: PRNGKeyArray,
    updates: int,
    paths: int,
    limited: bool,
) -> Improved:
    """The policy after `updates` updates on `paths` simulated episodes each. A policy whose
    simulated advantages are all equal stays as it is. Its features have no parameters, so that they
    are computed once per state; those of values are of states in these `units`. `limited` says
    whether episodes of the task end at the horizon of the environment."""
    policy = actor.policy
    theta, rebuild = flatten(policy.head)
    slow = base.slower(policy.head, SLOW)
    bounds = _bounds(environment)

    def features(states: Any) -> Any:
        return jax.vmap(policy.features)(actor.normaliser(states))

    def update(carry, episodes, phi, key):
        theta, values, agreement = carry
        head: Any = rebuild(theta)
        seen = jnp.concatenate([episodes.states, episodes.final[None]])
        psi = basis(units(seen.reshape(-1, seen.shape[-1])))
        weights = episodes.mask.reshape(-1).astype(theta.dtype)
        rows = _spread(key, weights, FITTED)
        advantages, values = _advantages(episodes, psi, values, environment.discount, rows, bounds)
        centred, spread = values_of.centred(advantages, episodes.mask)
        credit = centred / jnp.where(spread > 0, spread, 1.0)

        def gain(t, phi, actions, credit):
            now: Any = rebuild(t)
            each = jax.vmap(jax.vmap(lambda x, a: now(x).log_prob(a)))(phi, actions)
            return 2 * jnp.sum(credit * each) / jnp.sum(weights)

        halves = (jnp.stack([x[:, 0::2], x[:, 1::2]]) for x in (phi, episodes.actions, credit))
        g1, g2 = jax.vmap(jax.grad(gain), (None, 0, 0, 0))(theta, *halves)
        some = phi.reshape(-1, phi.shape[-1])[rows[:: FITTED // METRIC]]
        root = jax.vmap(lambda x: base.information_root(head, x))(some)
        root = root.reshape(-1, theta.size)
        G = root.T @ root / METRIC
        step, agreement = _step(g1, g2, G, slow, agreement)
        new = theta + step
        sound = (spread > 0) & jnp.all(jnp.isfinite(new))
        values = jnp.where(jnp.all(jnp.isfinite(values)), values, 0.0)
        return jnp.where(sound, new, theta), values, agreement

    def judged(values, episodes):
        last = jnp.clip(basis(units(episodes.final)) @ values, *bounds)
        return _returns(episodes, last, environment.discount, limited)

    def play(carry, now):
        """Episodes for an update, and at last for both policies with the same random numbers: one
        program simulates all of them, because compiling it takes long."""
        number, key_paths, key_rows = now
        t = jnp.where(number == updates, theta, carry[0])
        episodes, phi = simulate(environment, features, rebuild(t), key_paths, paths)
        carry, returns = jax.lax.cond(
            number < updates,
            lambda: (update(carry, episodes, phi, key_rows), jnp.zeros(paths)),
            lambda: (carry, judged(carry[1], episodes)),
        )
        return carry, (Progress(jnp.mean(episodes.lengths.astype(t.dtype)), carry[2]), returns)

    key_judge, key = jax.random.split(key)
    keys = jax.vmap(jax.random.split)(jax.random.split(key, updates))
    both = jnp.stack([key_judge, key_judge])
    now = jnp.arange(updates + 2), *(jnp.concatenate([keys[:, k], both]) for k in range(2))
    (new, values, _), (progress, returns) = jax.lax.scan(
        play, (theta, actor.values, jnp.ones(())), now
    )
    progress = jax.tree.map(lambda x: x[:updates], progress)
    before, after = returns[updates:]
    policy = eqx.tree_at(lambda p: p.head, policy, rebuild(new))
    return Improved(Actor(policy, actor.normaliser, values), progress, before, after)


def improve(*given: Any) -> Improved:
    """`improved` as a compiled program. Sums over some thousand steps need no tree of kernels."""
    return _program()(*given)


@functools.cache
def _program() -> Any:
    options: dict[str, Any] = {"compiler_options": compilation.fast(brief=False)}
    return eqx.filter_jit(improved, **options)


def _step(
    g1: Float[Array, " n"],
    g2: Float[Array, " n"],
    G: Float[Array, "n n"],
    slow: Any,
    agreement: Float[Array, ""],
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """A natural step along the mean of the gradients of two halves of the episodes, shorter where
    they do not agree, and the running mean of their agreement."""
    damped = G + (DAMPING * jnp.trace(G) / g1.size + 1e-6) * jnp.eye(g1.size)
    d1, d2 = jax.scipy.linalg.solve(damped, jnp.stack([g1, g2], 1), assume_a="pos").T
    agreed = 2 * (g1 @ d2) / jnp.maximum(g1 @ d1 + g2 @ d2, 1e-30)
    fresh = MEMORY * agreement + (1 - MEMORY) * agreed
    agreement = jnp.where(jnp.isfinite(fresh), fresh, agreement)
    share = jnp.clip(2 * agreement / (1 + agreement), FLOOR, 1.0)
    d = slow * (d1 + d2) / 2
    length = jnp.sqrt(2 * LIMIT * jnp.minimum(2 * share, 1.0) / jnp.maximum(d @ G @ d, 1e-12))
    return length * d, agreement


def simulate(
    environment: Learned, features: Any, head: Any, key: PRNGKeyArray, paths: int
) -> tuple[Trajectories, Float[Array, "T M k"]]:
    """Episodes in a learned environment, and the features of their states. One is cut off, as by a
    time limit, where the model no longer knows where it is: the variances of its steps sum to more
    than `TRUST` squared."""
    key_reset, key_steps = jax.random.split(key)

    def step(carry, key):
        return jax.lax.cond(jnp.any(carry[1]), go_on, wait, carry, key)

    def wait(carry, _):
        """Nothing happens where no episode runs any more."""
        made = jax.eval_shape(lambda: go_on(carry, key)[1])
        return carry, (carry[0], *(jnp.zeros(x.shape, x.dtype) for x in made[1:]))

    def go_on(carry, key):
        states, running, doubt = carry
        key_action, key_step = jax.random.split(key)
        phi = features(states)
        actions = jax.vmap(head)(phi).sample(key_action)
        following, rewards, ended, unknown = environment.transition(key_step, states, actions)
        following = jnp.where(running[:, None], following, states)
        doubt = doubt + unknown**2
        going = running & ~ended & (doubt <= TRUST**2)
        made = states, actions, rewards, running, running & ended, phi
        return (following, going, doubt), made

    first = environment.reset(key_reset, paths), jnp.ones(paths, bool), jnp.zeros(paths)
    keys = jax.random.split(key_steps, environment.horizon)
    (final, _, _), (states, actions, rewards, mask, ended, phi) = jax.lax.scan(step, first, keys)
    return Trajectories(states, actions, rewards, mask, jnp.any(ended, 0), final), phi


def _bounds(environment: Learned) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The range of the values of states under the rewards that were observed. Fitted values know no
    bounds, and episodes are cut off where little was observed."""
    if environment.known.reward is not None or environment.discount >= 1:
        return -jnp.asarray(jnp.inf), jnp.asarray(jnp.inf)
    steps = 1 / (1 - environment.discount)
    seen, bonus = environment.observed, environment.bonus
    curious = environment.curiosity * CURIOUS
    low = jnp.minimum(seen.lowest, 0.0) * steps + jnp.minimum(environment.offset + bonus.least, 0.0)
    high = jnp.maximum(seen.highest + curious, 0.0) * steps
    return low, high + jnp.maximum(environment.offset + bonus.most, 0.0)


def _returns(
    paths: Trajectories, last: Float[Array, " M"], discount: float, limited: bool
) -> Float[Array, " M"]:
    """Discounted returns, given the values of the last states."""
    T = len(paths.mask)
    going = ~paths.terminated & ((paths.lengths < T) | (not limited))
    ahead = jnp.where(going, discount**paths.lengths * last, 0.0)
    return trajectories.returns(paths, discount) + ahead


def _spread(key: PRNGKeyArray, weights: Float[Array, " N"], count: int) -> Int[Array, " count"]:
    """Numbers of rows, drawn in proportion to their weights at regular distances (systematic
    sampling)."""
    total = jnp.cumsum(weights)
    at = (jnp.arange(count) + jax.random.uniform(key)) / count * total[-1]
    return jnp.minimum(jnp.searchsorted(total, at, side="right"), len(weights) - 1)


def _advantages(
    paths: Trajectories,
    psi: Float[Array, "T1M q"],
    values: Float[Array, " q"],
    discount: float,
    rows: Int[Array, " R"],
    bounds: tuple[Float[Array, ""], Float[Array, ""]],
) -> tuple[Float[Array, "T M"], Float[Array, " q"]]:
    """GAE under values that are fitted to these steps of the paths, and the weights of these
    values."""
    T, M = paths.mask.shape
    last = jnp.arange(T)[:, None] == paths.lengths - 1
    ended = last & paths.terminated
    Psi = psi[rows]
    stand = jnp.sum(paths.mask) / len(rows)
    gram = stand * Psi.T @ Psi
    gram = gram + (1 + ROUNDING * jnp.trace(gram)) * jnp.eye(len(gram))
    factor = jax.scipy.linalg.cho_factor(gram)

    def judged(values):
        V = jnp.clip(psi @ values, *bounds).reshape(T + 1, M)
        # A path that has ended stays where it is, so the row after its last step is its last state.
        following = jnp.where(ended, 0.0, V[1:])
        rewards = jnp.where(paths.mask, paths.rewards, 0.0)
        delta = jnp.where(paths.mask, rewards + discount * following - V[:-1], 0.0)
        return values_of.tails(delta, last, discount * LAMBDA), V[:-1]

    def fit(_, values):
        advantages, V = judged(values)
        targets = (advantages + V).reshape(-1)[rows]
        return jax.scipy.linalg.cho_solve(factor, stand * Psi.T @ targets)

    values = jax.lax.fori_loop(0, FITS, fit, values)
    return judged(values)[0], values
