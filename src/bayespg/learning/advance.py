"""One update of a policy from a batch of paths: lines 2 and 3 of Algorithm 2, lines 3 to 8 of
Algorithm 4.

Observations are normalised with statistics of earlier batches, and values are fitted for estimators
that need a critic. An update whose parameters, or anything that they are computed from, are not
finite is not made.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from bayespg._support.types import Array
from bayespg.environments import Environment
from bayespg.environments.trajectories import Trajectories, returns
from bayespg.fisher import Network
from bayespg.learning import choosing, older, taking_back, updates, values
from bayespg.learning.batch import Batch
from bayespg.learning.estimators import Estimator, Needs
from bayespg.learning.recent import Recent, nothing
from bayespg.learning.values import Values
from bayespg.policies import AnyPolicy, as_arrays, flatten, memory, remembers
from bayespg.policies.features import Fourier
from bayespg.posterior import GradientPosterior, direction_statistics, uphill

CLIP = 10.0
"""Standard deviations beyond which a normalised observation is clipped."""
CLOSE = 1e-5
"""Two mean returns that differ by this share are equal: rewards are summed in single precision."""
ROUNDING = 100
"""A gradient within this many rounding errors of its terms counts as zero."""
MEMORY = 0.95
"""Decay of running means per update."""
LEAST = -4.0
"""Lower bound of the share of one update, which with two episodes can be far below zero."""
FADE, ENDED = 0.05, 0.2
"""Share of the persistence of exploration that an update takes away, and the further share if all
its episodes ended before the horizon."""
STAGES = (
    "the returns are",
    "the statistics of the observations are",
    "the values of the states are",
    "the gradient is",
    "the step is",
    "the distributions of the new policy are",
)
"""Parts of an update, in the order in which they are checked: what the policy, or a later update,
is computed from. Everything else only describes the update, and does not stop it."""
DESCRIBING = ("slope", "slope_error", "freedom", "sure", "divergence")
"""Fields of `Record` that only describe an update, and are NaN where they are not finite. A
standard error is infinite with infinitely many degrees of freedom where nothing is known."""


class NotFinite(ValueError):
    """An update was not made, because some of its numbers were not finite."""


class Normaliser(eqx.Module):
    """Running mean and variance of observations."""

    mean: Float[Array, " *d"]
    variance: Float[Array, " *d"]
    count: Float[Array, ""]
    exempt: int = eqx.field(static=True, default=0)
    """So many numbers at the end of an observation stay as they are: masks of actions."""

    @property
    def scale(self) -> Float[Array, " *d"]:
        return jnp.sqrt(self.variance + 1e-8)

    def __call__(self, x: Shaped[Array, "..."]) -> Float[Array, "..."]:
        found = jnp.clip((x - self.mean) / self.scale, -CLIP, CLIP).astype(self.mean.dtype)
        if self.exempt:
            last = jnp.arange(x.shape[-1]) >= x.shape[-1] - self.exempt
            found = jnp.where(last, x.astype(found.dtype), found)
        return found

    def seen(self, x: Shaped[Array, "N *d"], taken: Shaped[Array, " N"]) -> "Normaliser":
        """The statistics after another batch (Chan et al.)."""
        dtype = self.mean.dtype
        count = taken.sum().astype(dtype)
        weights = (taken / jnp.maximum(count, 1)).astype(dtype)
        weights = weights.reshape(-1, *(1 for _ in self.mean.shape))
        mean = jnp.sum(weights * x, 0)
        variance = jnp.sum(weights * (x - mean) ** 2, 0)
        total = self.count + count
        old, new = self.count / total, count / total
        away = mean - self.mean
        spread = old * self.variance + new * variance + old * new * away**2
        mean = (self.mean + new * away).astype(dtype)
        return Normaliser(mean, spread.astype(dtype), total, self.exempt)


def no_statistics(shape: tuple[int, ...], exempt: int = 0) -> Normaliser:
    """Statistics before the first batch, which leave observations unchanged."""
    zeros = jnp.zeros(shape, jnp.float32)
    return Normaliser(zeros, zeros + 1, jnp.asarray(1e-4, jnp.float32), exempt)


def as_input(
    x: Shaped[Array, "..."], normaliser: Normaliser | None, dtype: Any
) -> Shaped[Array, "..."]:
    """Observations as the policy receives them: normalised, in the precision of its parameters."""
    x = x if normaliser is None else normaliser(x)
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


class Normalised(AnyPolicy):
    """A policy that takes raw observations and normalises them."""

    policy: AnyPolicy
    normaliser: Normaliser | None

    def start(self) -> Any:
        return self.policy.start()

    def step(self, memory: Any, observation: Shaped[Array, " *observation"]) -> Any:
        dtype = flatten(self.policy)[0].dtype
        return self.policy.step(memory, as_input(observation, self.normaliser, dtype))

    def settle(self, memory: Any, choice: Shaped[Array, " *choice"]) -> Any:
        return self.policy.settle(memory, choice)


class State(eqx.Module):
    """Everything a run needs to continue."""

    policy: AnyPolicy
    """Its precision is that of the algebra."""
    optimiser: Any
    critic: Values | None
    normaliser: Normaliser | None
    recent: Recent | None
    """Raw observations of recent batches."""
    confirmed: Float[Array, ""]
    """Share of the slope that other episodes confirm, a running mean over updates; 1 if the
    estimator does not measure it."""
    key: PRNGKeyArray
    updates: Int[Array, ""]
    episodes: Int[Array, ""]
    steps: Int[Array, ""]
    running: Bool[Array, ""]
    """False once the stopping rule has fired."""
    highest: Float[Array, ""]
    """The highest mean return of a batch so far."""
    persistence: Float[Array, ""] | None = None
    """Persistence of exploration in the next batch; None for independent noise."""
    rewards: Normaliser | None = None
    """Statistics of discounted sums of rewards, where rewards are normalised."""
    older: Trajectories | None = None
    """Raw paths of earlier batches, the newest first, for an estimator that needs them."""
    certified: choosing.Certified | None = None
    """Running means by which an estimator chooses among candidates."""
    before: taking_back.Before | None = None
    """The policy before the last step, where exploration is persistent."""

    @property
    def acting(self) -> Normalised:
        """The policy for raw observations, in the precision in which it learns."""
        return Normalised(self.policy, self.normaliser)


def begin(
    policy: AnyPolicy,
    estimator: Estimator,
    update: optax.GradientTransformationExtraArgs,
    key: PRNGKeyArray,
    observation: jax.ShapeDtypeStruct,
    normalise: bool = False,
    persistence: float = 0.0,
    exempt: int = 0,
    rewards: bool = False,
    paths: tuple[int, int] = (1, 1),
) -> State:
    """The state of a run before its first update; `observation` is the shape and type of one.
    States of recent batches are kept if the estimator needs them or the update measures the
    divergence, but not for a policy with memory, whose choices do not follow from the state alone.
    Exploration begins with `persistence`. `exempt` numbers at the end of an observation are not
    normalised; with `rewards` there are statistics of rewards. `paths` is the horizon and the
    number of paths of a batch, for an estimator that needs those of older batches."""
    policy = as_arrays(policy)
    choosing.refuse(estimator, policy, paths[1])
    theta, shape = flatten(policy)[0], observation.shape
    critic = values.start(Fourier(math.prod(shape))) if estimator.needs.critic else None
    optimiser = update.init(theta)
    wanted = estimator.needs.recent or updates.measures_divergence(optimiser)
    seen = nothing(observation) if wanted and not remembers(policy) else None
    zero = jnp.zeros((), jnp.int32)
    rho = jnp.asarray(persistence, jnp.float32) if persistence else None
    needs, past = estimator.needs, None
    if needs.older:
        past = older.nothing(policy, observation, *paths, needs.older)
    choice = choosing.nothing(needs.candidates, theta.dtype) if needs.candidates else None
    return State(
        policy, optimiser, critic, no_statistics(shape, exempt) if normalise else None,
        seen, jnp.ones((), theta.dtype), key,
        zero, zero, zero, jnp.asarray(True), jnp.asarray(-jnp.inf, theta.dtype),
        rho, no_statistics(()) if rewards else None, past, choice,
        None if rho is None else taking_back.nothing(theta, rho),
    )  # fmt: skip


def fading(
    persistence: Float[Array, ""] | None, terminated: Bool[Array, " M"], says: Bool[Array, ""]
) -> Float[Array, ""] | None:
    """The persistence of exploration after another batch: less if the batch `says` anything, and
    much less once episodes end by themselves, as there is then something to learn from. Where a
    batch says nothing no step is made, and persistent exploration is what finds a goal that no
    episode has reached."""
    if persistence is None:
        return None
    less = persistence * (1 - FADE) * (1 - ENDED * jnp.mean(terminated, dtype=jnp.float32))
    return jnp.where(says, less, persistence)


class Record(NamedTuple):
    """Numbers that describe one update."""

    gradient_norm: Float[Array, ""]
    slope: Float[Array, ""]
    """The gradient along the step taken, and its standard error."""
    slope_error: Float[Array, ""]
    freedom: Float[Array, ""]
    sure: Float[Array, ""]
    """The probability that following the gradient goes uphill, judged by the episodes that did not
    choose it; the natural one where there is a Fisher matrix."""
    divergence: Float[Array, ""]
    """Kullback-Leibler divergence from the old policy to the new, mean over states."""
    step_norm: Float[Array, ""]
    confirmed: Float[Array, ""]
    """Share of the slope that other episodes confirm, a running mean."""
    known: Float[Array, ""]
    """The number of directions in which the batch determines the gradient; NaN where the estimator
    does not say."""
    persistence: Float[Array, ""]
    """Persistence of exploration in this batch."""
    taken_back: Float[Array, ""]
    """1 where the step before was taken back instead of a step being made, otherwise 0."""
    explained: Float[Array, ""]
    """Share of the returns' variance that values fitted to earlier batches explain; NaN without a
    critic."""
    trace: Float[Array, ""]
    """lambda of the gradient that was followed; NaN without one."""
    reused: Float[Array, ""]
    """Older batches that it was estimated from too."""
    kappa: Float[Array, ""]
    """Damping of its metric, in units of the mean eigenvalue of G; NaN without one."""
    advantage: Float[Array, ""]
    """Prior variance of an advantage, in units of the variance of what the regression explains; NaN
    where c was not chosen by it."""
    sound: Float[Array, ""]
    """1, or 0 where one of `STAGES` was not finite: the update was then not made."""
    stage: Int[Array, ""]
    """The first of `STAGES` that was not finite, or their number."""


def batch_of(
    state: State,
    raw: Trajectories,
    discount: float,
    horizon: int,
    environment: Environment | None = None,
) -> Batch:
    """The batch of these paths, with observations as the policy received them, in its precision."""
    paths = older.as_long(as_seen(state, raw), state.older)
    return Batch(
        state.policy, paths, discount, horizon, environment, state.critic,
        recent(state, raw), older=earlier(state), certified=state.certified,
    )  # fmt: skip


def as_seen(state: State, raw: Trajectories) -> Trajectories:
    """Paths with observations as the policy sees them now, in its precision."""
    dtype = flatten(state.policy)[0].dtype
    return Trajectories(
        as_input(raw.states, state.normaliser, dtype),
        as_input(jnp.asarray(raw.actions), None, dtype), raw.rewards.astype(dtype), raw.mask,
        raw.terminated, as_input(raw.final, state.normaliser, dtype),
    )  # fmt: skip


def earlier(state: State) -> Trajectories | None:
    """Paths of earlier batches, as the policy sees them now."""
    return None if state.older is None else as_seen(state, state.older)


def recent(state: State, raw: Trajectories) -> Recent | None:
    """States of recent batches and of this one, as the policy sees them."""
    if state.recent is None:
        return None
    found = state.recent.seen(raw.states, raw.mask)
    dtype = flatten(state.policy)[0].dtype
    return Recent(as_input(found.states, state.normaliser, dtype), found.weights)


def advance(
    estimator: Estimator,
    update: optax.GradientTransformationExtraArgs,
    state: State,
    batch: Batch,
    raw: Trajectories | None = None,
    stop: float = 0.0,
    described: bool = True,
) -> tuple[State, Record, GradientPosterior]:
    """One update from a batch, for every estimator, update and policy.

    `raw` holds the same paths with raw observations, for the statistics that normalise the next
    batch. If any of `STAGES` is not finite the update is not made. A step shorter than `stop` is
    taken and ends the run: later calls do not change its parameters. A gradient that is rounding is
    zero, and makes no step (`_rounded`). Where exploration is persistent the last step may be taken
    back instead of another being made (`bayespg.learning.taking_back`). Returns the posterior that
    was used, too.

    Without `described` the slope along the step, its error and the divergence are NaN. They do not
    change the update, the first two may cost as much as the gradient, and the divergence takes the
    log-probabilities of all steps twice.
    """
    theta, rebuild = flatten(state.policy)
    divergence, paths = _divergence(batch), batch.paths
    total = returns(paths)
    if state.rewards is not None:  # the units of normalised rewards change with every batch
        total = total * state.rewards.scale.astype(theta.dtype)
    lost = jnp.mean(total) < state.highest - CLOSE * jnp.abs(state.highest)
    posterior = _rounded(estimator(batch), estimator, batch, lost)
    fresh = jnp.asarray(posterior.info.get("confirmed", 1.0), theta.dtype)
    confirmed = MEMORY * state.confirmed + (1 - MEMORY) * jnp.maximum(fresh, LEAST)
    says = jnp.any(posterior.mean != 0)
    confirmed = jnp.where(says & jnp.isfinite(fresh), confirmed, state.confirmed)
    share = jnp.clip(confirmed, 0.0, 1.0)
    change, optimiser = update.update(
        posterior.mean, state.optimiser, theta, posterior=posterior, divergence=divergence,
        confirmed=share,
    )  # fmt: skip
    highest = jnp.maximum(state.highest, jnp.mean(total)).astype(theta.dtype)
    fell, before, back = jnp.asarray(False), state.before, theta
    if before is not None and state.persistence is not None:
        fell, before = before.seen(theta, state.persistence, total)
        back = jnp.where(fell, before.theta, theta)
    change, optimiser = jax.tree.map(
        partial(jnp.where, fell), (back - theta, state.optimiser), (change, optimiser)
    )
    if described:
        slope, error, freedom = direction_statistics(posterior, change)
        moved, steps = divergence(theta + change), slice(None)
    else:
        slope = error = freedom = moved = jnp.asarray(jnp.nan, theta.dtype)
        steps = slice(1)
    # Not finite if the policy's distributions are not, though its parameters may be.
    states, actions, mask = (x[steps] for x in (paths.states, paths.actions, paths.mask))
    new = jnp.where(mask, _log_probabilities(rebuild(theta + change), states, actions), 0.0)
    critic, left, explained = _criticise(batch, estimator.needs)
    raw = batch.paths if raw is None else raw
    normaliser, kept, past = state.normaliser, state.recent, state.older
    if normaliser is not None:
        everything = raw.states.reshape(-1, *raw.states.shape[2:])
        normaliser = normaliser.seen(everything, raw.mask.reshape(-1))
    if kept is not None:
        kept = kept.seen(raw.states, raw.mask)
    if past is not None:
        past = older.seen(past, raw)
    choice = state.certified
    if choice is not None and "certified" in posterior.info:
        choice = choice.seen(posterior.info["certified"])
    stages = left, normaliser, critic, posterior.mean, (theta + change, optimiser), new
    finite = jnp.stack([_finite(stage) for stage in stages])
    sound = jnp.all(finite)
    going = sound & state.running
    (
        policy, optimiser, critic, normaliser, kept, confirmed, past, choice, before, highest
    ) = jax.tree.map(
        lambda new, old: jnp.where(going, new, old) if eqx.is_array(new) else new,
        (
            rebuild(theta + change), optimiser, critic, normaliser, kept, confirmed, past, choice,
            before, highest,
        ),
        (
            state.policy, state.optimiser, state.critic, state.normaliser, state.recent,
            state.confirmed, state.older, state.certified, state.before, state.highest,
        ),
    )  # fmt: skip
    persistence = fading(state.persistence, batch.paths.terminated, says)
    if persistence is not None and before is not None:
        persistence = jnp.where(fell & going, before.persistence, persistence)
    following = State(
        policy, optimiser, critic, normaliser, kept, confirmed, state.key, state.updates + 1,
        state.episodes + batch.paths.mask.shape[1],
        state.steps + jnp.sum(batch.paths.mask, dtype=state.steps.dtype),
        going & (_norm(change) >= stop), highest, persistence, state.rewards, past, choice, before,
    )  # fmt: skip
    record = Record(
        _norm(posterior.mean), _or_nan(slope),
        jnp.where(jnp.isinf(freedom), error, _or_nan(error)), freedom,
        _or_nan(uphill(posterior, natural=posterior.fisher is not None)), _or_nan(moved),
        _norm(change), share,
        _or_nan(jnp.asarray(posterior.info.get("known", jnp.nan))),
        jnp.zeros(()) if state.persistence is None else state.persistence,
        fell.astype(theta.dtype), explained,
        jnp.asarray(posterior.info.get("trace", jnp.nan), theta.dtype),
        jnp.asarray(posterior.info.get("reused", 0), theta.dtype),
        jnp.asarray(posterior.info.get("kappa", jnp.nan), theta.dtype),
        jnp.asarray(posterior.info.get("advantage", jnp.nan), theta.dtype),
        sound.astype(theta.dtype), jnp.where(sound, len(STAGES), jnp.argmin(finite)),
    )  # fmt: skip
    return following, record, posterior


def _rounded(
    posterior: GradientPosterior, estimator: Estimator, batch: Batch, lost: Bool[Array, ""]
) -> GradientPosterior:
    """The posterior with zeros in place of components of the mean that are rounding errors.

    Component j is a sum of terms R u_j; without path scores, E|R u_j| is at most sqrt(E R^2 G_jj).
    For an estimator that fits values, all are zero where rewards say nothing (`_differ`), unless
    the policy has `lost` what it had, an earlier batch having returned more. Any step is then
    better than none: on a mountain car that no longer reaches its goal, random steps find it again.
    """
    g, R, G = posterior.mean, batch.returns, posterior.fisher
    if estimator.needs.states:
        g = jnp.where(_differ(batch.paths) | lost, g, 0.0)
        posterior = eqx.tree_at(lambda p: p.mean, posterior, g)
    if estimator.needs.path_scores:
        terms = jnp.mean(jnp.abs(R)[:, None] * jnp.abs(batch.scores), 0)
    elif G is None or isinstance(G, Network):
        return posterior
    else:
        terms = values.root_mean_square(R) * jnp.sqrt(G.diagonal())
    rounding = ROUNDING * jnp.finfo(g.dtype).eps * terms
    return eqx.tree_at(lambda p: p.mean, posterior, jnp.where(jnp.abs(g) <= rounding, 0.0, g))


def _differ(paths: Trajectories) -> Bool[Array, ""]:
    """Whether the rewards say anything about the actions: False if all rewards are equal and no
    episode ended by itself, or if several episodes have the same lengths and the same rewards, step
    by step; rewards are equal if they differ by rounding only.

    What an episode still earns is then a function of time alone, or unknown. Values of time would
    explain it, and scores, whose mean is zero at each time, cannot: what values of states leave to
    them is an error of these values.
    """
    taken, ended = paths.mask, paths.terminated
    rewards = jnp.where(taken, paths.rewards, 0.0)
    rounding = 10 * jnp.finfo(rewards.dtype).eps * jnp.max(jnp.abs(rewards))
    filled = jnp.where(taken, rewards, rewards[0, 0])
    constant = ~jnp.any(ended) & (jnp.max(filled) - jnp.min(filled) <= rounding)
    if taken.shape[1] == 1:
        return ~constant
    alike = jnp.all(taken == taken[:, :1])
    apart = jnp.max(jnp.max(rewards, 1) - jnp.min(rewards, 1))
    return ~(constant | (alike & (apart <= rounding)))


def _divergence(batch: Batch):
    """A function of theta: the divergence from the policy of the batch to that with theta, over the
    states of recent batches, or without these by Schulman's estimate from the actions taken, the
    mean of r - 1 - log r, which is never negative."""
    theta, rebuild = flatten(batch.policy)
    paths, mask = batch.paths, batch.paths.mask
    if batch.recent is not None:
        states, weights = batch.recent.states, batch.recent.weights.astype(theta.dtype)
        old: Any = batch.policy

        def over_states(t: Float[Array, " n"]) -> Float[Array, ""]:
            new: Any = rebuild(t)
            each = jax.vmap(lambda x: old(x).divergence(new(x)))(states)
            return jnp.sum(jnp.where(weights > 0, weights * each, 0.0)) / jnp.sum(weights)

        return over_states

    def log_probabilities(t: Float[Array, " n"]) -> Float[Array, "T M"]:
        return _log_probabilities(rebuild(t), paths.states, paths.actions)

    before = log_probabilities(theta)

    def divergence(t: Float[Array, " n"]) -> Float[Array, ""]:
        log_ratio = jnp.where(mask, log_probabilities(t) - before, 0.0)
        each = jnp.where(mask, jnp.expm1(log_ratio) - log_ratio, 0.0)
        return jnp.sum(each) / jnp.sum(mask).astype(each.dtype)

    return divergence


def _log_probabilities(
    policy: AnyPolicy, states: Shaped[Array, "T M *d"], actions: Shaped[Array, "T M *k"]
) -> Float[Array, "T M"]:
    return jax.vmap(lambda o, c: memory.log_probs(policy, o, c), 1, 1)(states, actions)


def _criticise(
    batch: Batch, needs: Needs
) -> tuple[Values | None, Float[Array, "..."], Float[Array, ""]]:
    """Values fitted to this batch, its returns less the earlier values, and the share of their
    variance that the earlier values explain."""
    critic, paths = batch.critic, batch.steps
    if critic is None or needs.smoothing is None:
        return None, batch.returns, jnp.asarray(jnp.nan, batch.dtype)
    V = jnp.where(paths.mask, critic(paths.states, 2), 0.0)
    left = values.advantages(paths, critic, batch.discount, 1.0)
    smoothed = values.advantages(paths, critic, batch.discount, needs.smoothing)
    flat = (-1, *paths.states.shape[2:])
    targets = jnp.where(paths.mask, V + smoothed, 0.0).reshape(-1)
    fresh = values.fit(critic, paths.states.reshape(flat), targets, paths.mask.reshape(-1))
    part, whole = (values.centred(x, paths.mask)[1] for x in (left, left + V))
    share = jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 1.0)
    return fresh, left, 1 - share**2


def _finite(tree: Any) -> Bool[Array, ""]:
    """Whether all numbers of a tree are finite."""
    leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def _or_nan(x: Float[Array, ""]) -> Float[Array, ""]:
    """A number, or NaN in place of an infinite one."""
    return jnp.where(jnp.isfinite(x), x, jnp.nan)


def _norm(x: Float[Array, " n"]) -> Float[Array, ""]:
    """|x|, without squares of large numbers."""
    return jnp.sqrt(jnp.asarray(x.size, x.dtype)) * values.root_mean_square(x)
