"""A posterior over the dynamics, the rewards and the termination of a task.

    model = bayespg.models.fit(transitions)
    model.predict(states, actions)         # means and standard deviations of one step
    model.environment()                    # its mean, an environment in JAX
    model.environment(key)                 # a draw of it

The change of the state and the reward are linear in features of state and action
(`bayespg.models.regression`). Changes have Student's noise: rows far from the others, as where a
car hits a wall, get little weight. The reward of a step that ends the episode has an offset of its
own, since goals are paid where episodes end. Termination is in `bayespg.models.termination`.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support import checks, compilation
from bayespg._support.types import Array
from bayespg.models import termination
from bayespg.models.data import Inputs, Transitions
from bayespg.models.environment import (
    DISCOUNT,
    HORIZON,
    Bonus,
    Ensemble,
    Knowledge,
    Learned,
    Linear,
    Observed,
)
from bayespg.models.features import (
    FARTHEST,
    Terms,
    Units,
    Waves,
    circles_of,
    draw_waves,
    rare_in_range,
    units_of,
)
from bayespg.models.networks import Networks
from bayespg.models.regression import Regression, regress, robust_weights, statistics
from bayespg.models.termination import Termination, evenly

LENGTHS = (0.3, 0.6, 1.2, 2.5, 5.0)
"""Length scales to choose from, in units of the square root of the number of inputs."""
COUNT = 256
"""Number of waves."""
MOST = 2000
"""The most features; the time to learn from an episode grows with the cube of their number."""
JUDGED = 1536
"""Transitions by which the length scale is chosen, evenly spaced among all."""
CHUNK = 512
"""Transitions whose features are written out at a time."""
WIDER = 0.1
"""Share of the observed range by which a prediction may lie outside, on each side."""
STARTS = 1024
"""States from which simulated episodes may begin."""
NARROW = 0.3
"""First states are smoothed in a dimension where their standard deviation is less than this share
of that of all states. Where it is not, they may lie on a curve, such as a circle, and would leave
it."""
SUMMED, SUMS = 64, 16
"""Rewards in a row whose sum is compared with what was expected, or fewer where there would not be
this many sums. A return is such a sum: the noise of single rewards averages out, and one that is
paid late is in it."""
DRAWS = 6
"""Draws of the mean change of a state, whose disagreement measures what is not known."""


class Prediction(NamedTuple):
    """What one step leads to."""

    following: Float[Array, "N d"]
    following_deviation: Float[Array, "N d"]
    """Standard deviation, of the function and of the noise together."""
    rewards: Float[Array, " N"]
    """Of a step that does not end the episode."""
    rewards_deviation: Float[Array, " N"]
    terminated: Float[Array, " N"]
    """The probability that the step ends the episode."""


class Model(eqx.Module):
    """The posterior."""

    inputs: Inputs
    states: Units
    changes: Units
    payments: Units
    """Units of rewards."""
    features: Terms
    dynamics: Regression
    rewards: Regression
    offset: Float[Array, ""]
    """What a step that ends the episode earns beyond others, on average."""
    bonus: Bonus
    """How that depends on the state in which it ends."""
    termination: Termination
    observed: Observed
    length: Int[Array, ""]
    """Which of `LENGTHS`."""
    unexpected: Float[Array, ""]
    """The share of the mean square of sums of `SUMMED` rewards that the regression leaves."""
    networks: Networks | None = None
    """What predicts changes of the state and rewards in place of the regressions."""

    @property
    def units(self) -> tuple[Units, Units, Units]:
        """Those of states, of their changes, and of rewards."""
        return self.states, self.changes, self.payments

    @property
    def noise(self) -> tuple[float, float]:
        """The shares that the model counts as noise: of the variance of changes of the state, or of
        states where that is less, in the median over the numbers that vary; and of sums of
        rewards."""
        change, state = (np.asarray(x) for x in (self.changes.scale, self.states.scale))
        each, paid = np.asarray(self.dynamics.noise), np.asarray(self.unexpected)
        varies = each > 0
        if self.networks is not None:
            *each, single = np.asarray(self.networks.noise)  # of changes, and of single rewards
            paid = min(paid, single)
        share = (np.array(each) * np.maximum(change / state, 1.0) ** 2)[varies]
        return float(np.median(share)) if share.size else 0.0, float(paid)

    def environment(
        self,
        key: PRNGKeyArray | None = None,
        *,
        horizon: int = HORIZON,
        discount: float = DISCOUNT,
        curiosity: float = 0.0,
        known: Knowledge = Knowledge(),
    ) -> Learned:
        """The posterior mean, or with a `key` a draw, as an environment in JAX whose actions are
        those of a policy, before they are clipped. `curiosity` is earned per standard deviation of
        the state by which draws of the model disagree."""
        horizon, discount = checks.whole("horizon", horizon, 1), checks.discount(discount)
        with jax.enable_x64(True):
            make = compiled(environment_of)
            return make(self, key, jnp.asarray(curiosity), horizon, discount, known)

    def predict(self, states: Any, actions: Any) -> Prediction:
        """What a step leads to from each state with each action of a policy."""
        with jax.enable_x64(True):
            x = checks.array("states", states)
            if x.ndim != 2 or x.shape[1] != self.observed.low.size:
                raise ValueError(
                    f"states: expected shape (N, {self.observed.low.size}), found {tuple(x.shape)}"
                )
            a = jnp.asarray(actions)
            if len(a) != len(x):
                raise ValueError(f"actions: expected {len(x)} of them, found {len(a)}")
            return self.predict_encoded(x, self.inputs(a))

    def predict_encoded(self, states: Any, encoded: Any) -> Prediction:
        """The same for actions as `Transitions` hold them."""
        with jax.enable_x64(True):
            x, a = (jnp.asarray(z).astype(jnp.float64) for z in (states, encoded))
            return compiled(_predict)(self, x, a)


@functools.cache
def compiled(function: Any) -> Any:
    """A program that runs briefly, compiled briefly."""
    options: dict[str, Any] = {"compiler_options": compilation.fast()}
    return eqx.filter_jit(function, **options)


def _predict(model: Model, x: Any, encoded: Any) -> Prediction:
    # Far from what was observed the mean stays as it is at the limit `FARTHEST`. The deviation goes
    # on growing, and holds the mean that there would be without the limit.
    mean, _ = _moments(model, x, encoded, FARTHEST)
    unlimited, variance = _moments(model, x, encoded, np.inf)
    variance = variance + (unlimited - mean) ** 2
    outputs = _joined(model)
    mean, deviation = mean * outputs.scale + outputs.mean, jnp.sqrt(variance) * outputs.scale
    following = model.observed.states(x + mean[:, :-1])
    return Prediction(
        following, deviation[:, :-1], model.observed.rewards(mean[:, -1]), deviation[:, -1],
        model.termination.probability(model.states(following)),
    )  # fmt: skip


def _moments(model: Model, x: Any, encoded: Any, farthest: float) -> tuple[Any, Any]:
    """Means and variances of changes of the state and of rewards, in their units."""
    if model.networks is not None:
        means, variances = model.networks(model.states(x), encoded, farthest)
        return jnp.mean(means, 0), jnp.mean(variances, 0) + jnp.var(means, 0)
    phi = model.features(model.states(x), encoded, farthest)
    fits = model.dynamics, model.rewards
    variance = [fit.variance(phi) + fit.noise for fit in fits]
    return jnp.concatenate([phi @ fit.mean for fit in fits], 1), jnp.concatenate(variance, 1)


def _joined(model: Model) -> Units:
    """The units of changes of the state and of rewards; zero for those that never vary."""
    a, b = model.changes, model.payments
    noise = jnp.concatenate([model.dynamics.noise, model.rewards.noise])
    scale = jnp.concatenate([a.scale, b.scale])
    return Units(jnp.concatenate([a.mean, b.mean]), jnp.where(noise > 0, scale, 0.0))


def environment_of(model, key, curiosity, horizon, discount, known) -> Learned:
    key_outcome, key_ends = jax.random.split(jax.random.key(0) if key is None else key)
    v = model.termination.mean
    if key is not None:
        v = model.termination.draw(_normals(key_ends, v))
    outcome = (_linear if model.networks is None else _ensemble)(
        model, key_outcome, key is not None
    )
    environment = Learned(
        inputs=model.inputs, states=model.states, outcome=outcome, offset=model.offset,
        bonus=model.bonus, ends=model.termination.features, end_weights=v,
        can_end=model.termination.known, observed=model.observed, paid=jnp.ones(()),
        curiosity=curiosity, horizon=horizon, discount=discount, known=known,
    )  # fmt: skip

    def single(x: Any) -> Any:
        if not eqx.is_array(x) or x.dtype == bool:
            return x
        return x.astype(jnp.float32 if eqx.is_inexact_array(x) else jnp.int32)

    return jax.tree.map(single, environment)


def _normals(key: PRNGKeyArray, like: Array) -> Array:
    return jax.random.normal(key, like.shape, like.dtype)


def _ensemble(model: Model, key: PRNGKeyArray, drawn: bool) -> Ensemble:
    assert model.networks is not None
    members = len(model.networks.weights[0])
    member = jax.random.randint(key, (), 0, members) if drawn else jnp.asarray(-1)
    outputs = _joined(model)
    ratio = outputs.scale[:-1] / model.states.scale
    return Ensemble(model.networks, outputs, ratio, member)


def _linear(model: Model, key: PRNGKeyArray, drawn: bool) -> Linear:
    key_draws, key_dynamics, key_rewards = jax.random.split(key, 3)
    W, w = model.dynamics.mean, model.rewards.mean
    # Columns z_k ~ N(0, C) with C the covariance of an output, in units of the states, along each
    # vector the median over the outputs: (phi'z_k)^2 is about the variance of a number of a state,
    # whatever one of them does that is hard to predict.
    ratio = (model.changes.scale / model.states.scale) ** 2
    width = jnp.sqrt(jnp.median(model.dynamics.values * ratio, 1))[:, None]
    apart = model.dynamics.vectors @ (width * _normals(key_draws, jnp.zeros((len(W), DRAWS))))
    if drawn:
        W = model.dynamics.draw(_normals(key_dynamics, W))
        w = model.rewards.draw(_normals(key_rewards, w))
    outputs = _joined(model)
    noise = jnp.sqrt(jnp.concatenate([model.dynamics.noise, model.rewards.noise]))
    weights = jnp.concatenate([jnp.concatenate([W, w], 1) * outputs.scale, apart], 1)
    return Linear(model.features, weights, outputs.mean, noise * outputs.scale)


class Basis(NamedTuple):
    """The random numbers of a model, which do not depend on data."""

    waves: Waves
    ends: Waves


def basis(key: PRNGKeyArray, states: int, actions: int, count: int = COUNT) -> Basis:
    """`count` waves, for states and encoded actions with this many numbers."""
    size = Terms.size(states, actions, count)
    if size > MOST:
        raise ValueError(
            f"observations: a model of {states} numbers and {actions} of actions has {size:,} "
            f"features, and at most {MOST:,} are supported; use a wrapper that observes fewer "
            "numbers, or bayespg.BAC"
        )
    with jax.enable_x64(True):
        keys = jax.random.split(key)
        return Basis(
            draw_waves(keys[0], states + actions, count),
            draw_waves(keys[1], states, termination.COUNT),
        )


def fit(transitions: Transitions, *, key: PRNGKeyArray | None = None, waves: int = COUNT) -> Model:
    """The posterior given transitions. `key` decides the random waves, `waves` is their number."""
    if transitions.count == 0:
        raise ValueError("transitions: expected at least one, found none")
    waves = checks.whole("waves", waves, 1)
    sizes = transitions.states.shape[1], transitions.actions.shape[1]
    return posterior(transitions, basis(jax.random.key(0) if key is None else key, *sizes, waves))


def posterior(transitions: Transitions, basis: Basis, length: Any = None) -> Model:
    """The same with a basis, and with the length scale of this number unless it is None."""
    with jax.enable_x64(True):
        chosen = jnp.asarray(0 if length is None else length, jnp.int32)
        return compiled(_posterior)(transitions, basis, chosen, jnp.asarray(length is None))


def _posterior(data: Transitions, basis: Basis, length: Any, choose: Any) -> Model:
    S, A, R, following = (
        jnp.asarray(x).astype(jnp.float64)
        for x in (data.states, data.actions, data.rewards, data.following)
    )
    C = len(R)
    count = jnp.minimum(data.seen, C).astype(jnp.int32)
    used = jnp.arange(C) < count
    ended = jnp.asarray(data.terminated) & used
    going = used & ~ended
    going = jnp.where(jnp.any(going), going, used)
    every = used.astype(S.dtype)
    states, changes = (rare_in_range(units_of(x, every), x, every) for x in (S, following - S))
    payments = units_of(R[:, None], going.astype(S.dtype))
    X, D = states(S), changes(following - S)
    r = payments(R[:, None])
    Y = jnp.where(used[:, None], jnp.concatenate([D, jnp.where(ended[:, None], 0.0, r)], 1), 0.0)

    def terms(number: Any) -> Terms:
        return Terms(basis.waves.stretched(jnp.asarray(LENGTHS)[number]))

    rows = evenly(count, JUDGED)
    kept = (jnp.arange(JUDGED) < count).astype(S.dtype)[:, None]
    some = X[rows], A[rows], Y[rows] * kept

    def evidence(number: Any) -> Any:
        Phi = terms(number)(*some[:2]) * kept
        return jnp.sum(regress(*statistics(Phi, some[2]), jnp.sum(kept)).evidence)

    def best() -> Any:
        return jnp.argmax(jax.lax.map(evidence, jnp.arange(len(LENGTHS)))).astype(jnp.int32)

    length = jax.lax.cond(choose, best, lambda: length)
    phi = terms(length)
    weight = robust_weights(phi(*some[:2]) * kept, some[2][:, :-1], kept[:, 0])

    def add(j: Any, sums: Any) -> Any:
        """The statistics of another chunk."""
        x, a, y, use, end = (
            jax.lax.dynamic_slice_in_dim(part, j * CHUNK, CHUNK) for part in (X, A, Y, used, ended)
        )
        Phi = phi(x, a)
        w = jnp.where(use, weight(Phi, y[:, :-1]), 0.0)
        root = jnp.sqrt(w)[:, None]
        shares = jnp.stack([w, w * end])
        fresh = *statistics(Phi * root, y * root), Phi.T @ shares[1], shares.sum(1)
        return jax.tree.map(jnp.add, sums, fresh)

    p, o = jax.eval_shape(phi, X[:1], A[:1]).shape[1], Y.shape[1]
    zeros = tuple(map(jnp.zeros, ((p, p), (p, o), o, p, 2)))
    G, B, squares, at_ends, (total, ends) = jax.lax.fori_loop(
        0, (count + CHUNK - 1) // CHUNK, add, zeros
    )
    dynamics = regress(G, B[:, :-1], squares[:-1], total)
    # A free offset of the last steps of episodes takes their mean out of the regression of rewards.
    among = jnp.maximum(ends, 1.0)
    G = G - jnp.outer(at_ends, at_ends) / among
    rewards = regress(G, B[:, -1:], squares[-1:], jnp.maximum(total - ends, 1.0))
    last = jnp.sum(jnp.where(ended, r[:, 0], 0.0)) / jnp.maximum(jnp.sum(ended), 1)
    offset = jnp.where(ends > 0, last - at_ends @ rewards.mean[:, 0] / among, 0.0)
    newest, is_end = termination.newest(ended)
    beyond = (r[newest] - phi(X[newest], A[newest]) @ rewards.mean - offset) * is_end[:, None]
    bonus = _bonus(termination.terms(basis.ends)(states(following[newest])), beyond, is_end)
    low, high = _range(jnp.concatenate([S, following]), jnp.concatenate([used, used]))
    lowest, highest = _range(R[:, None], going)
    firsts, many, spread = _starts(S, jnp.asarray(data.first) & used)
    spread = jnp.where(spread < NARROW * states.scale, spread, 0.0)
    return Model(
        inputs=data.inputs, states=states, changes=changes, payments=payments, features=phi,
        dynamics=dynamics, rewards=rewards, offset=offset * payments.scale[0],
        bonus=bonus.times(payments.scale[0]),
        termination=termination.fit(X, states(following), ended, count, basis.ends),
        observed=Observed(
            circles_of(S, used.astype(S.dtype)), low, high, lowest[0], highest[0], firsts,
            jnp.minimum(many, STARTS), spread * jnp.maximum(many, 1) ** (-1 / (S.shape[1] + 4)),
            S[jnp.arange(STARTS) * count // STARTS],
        ), length=length,
        unexpected=_unexpected(data.seen, going, r, X, A, lambda x, a: phi(x, a) @ rewards.mean),
    )  # fmt: skip


def _unexpected(seen: Any, going: Any, r: Any, X: Any, A: Any, expected: Any) -> Any:
    """Of the last `JUDGED` rewards; those of steps that end an episode do not count."""
    at = seen - JUDGED + jnp.arange(JUDGED)
    use, at = at >= 0, at % len(r)
    left = jnp.concatenate([r[at] - expected(X[at], A[at]), r[at]], 1)
    left = jnp.where((use & going[at])[:, None], left, 0.0)
    many = jnp.clip(jnp.minimum(seen, JUDGED) // SUMS, 1, SUMMED)
    sums = jax.ops.segment_sum(left, jnp.arange(JUDGED) // many, JUDGED)
    squares = jnp.sum(sums**2, 0)
    return jnp.where(squares[1] > 0, squares[0] / squares[1], 0.0)


def _bonus(Psi: Any, beyond: Any, is_end: Any) -> Bonus:
    """What the last steps of episodes earn beyond the offset, within the range that was seen."""
    Psi, seen = Psi * is_end[:, None], jnp.where(is_end[:, None] > 0, beyond, 0.0)
    regression = regress(*statistics(Psi, seen), jnp.maximum(jnp.sum(is_end), 1.0))
    return Bonus(regression.mean[:, 0], jnp.min(seen), jnp.max(seen))


def _starts(S: Any, first: Any) -> tuple[Any, Any, Any]:
    """First states of episodes, their number, and their standard deviation."""
    order = jnp.argsort(~first, stable=True)[:STARTS]
    many = jnp.sum(first)
    share = first.astype(S.dtype) / jnp.maximum(many, 1)
    return S[order], many, jnp.sqrt(share @ (S - share @ S) ** 2)


def _range(x: Any, used: Any) -> tuple[Any, Any]:
    """The range of the rows that are used, and a little more."""
    low = jnp.min(jnp.where(used[:, None], x, jnp.inf), 0)
    high = jnp.max(jnp.where(used[:, None], x, -jnp.inf), 0)
    more = WIDER * (high - low)
    return low - more, high + more
