"""One update of a policy from a batch of paths: lines 2 and 3 of Algorithm 2, lines 3 to 8 of
Algorithm 4.

Observations are normalised with statistics of earlier batches, and values are fitted for estimators
that need a critic. An update whose parameters, or anything that they are computed from, are not
finite is not made.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from bayespg._support.batching import in_any_run
from bayespg._support.precision import traced
from bayespg._support.types import Array
from bayespg.environments import Environment
from bayespg.environments.trajectories import Trajectories, returns
from bayespg.fisher import Network
from bayespg.learning import trust, updates, values
from bayespg.learning.batch import Batch, discount_by_length, of_paths
from bayespg.learning.estimators import Estimator, Needs
from bayespg.learning.trust import Trust
from bayespg.learning.values import Values
from bayespg.paths import observations
from bayespg.paths.observations import Normalised, Normaliser, Recent
from bayespg.paths.persistence import decayed, informed, only_gains
from bayespg.policies import AnyPolicy, as_arrays, flatten, memory, remembers
from bayespg.policies.base import slower
from bayespg.posterior import GradientPosterior, direction_statistics

CLOSE = 1e-5
"""Two mean returns that differ by this share are equal: rewards are summed in single precision."""
ROUNDING = 100
"""A gradient within this many rounding errors of its terms counts as zero."""
SPENT = 0.5
"""Share of the step of log standard deviations that is made. Less noise raises returns at once, and
a policy that has spent its exploration early learns slowly from then on."""
FAR = 1.0
"""A curious learner returns to the last policy whose rewards told its actions apart once its
divergence from it exceeds this: a policy that is further away acts differently in most states, and
soon takes some actions no more."""
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


class Counts(NamedTuple):
    """What a run has done so far."""

    updates: Int[Array, ""]
    episodes: Int[Array, ""]
    steps: Int[Array, ""]
    length: Float[Array, ""]
    """Mean length of the episodes of the last update."""

    def after(self, taken: Bool[Array, "T M"]) -> "Counts":
        """The counts after an update from these steps."""
        fresh, M = taken.sum(dtype=self.steps.dtype), taken.shape[1]
        return Counts(
            self.updates + 1, self.episodes + M, self.steps + fresh,
            (fresh / M).astype(self.length.dtype),
        )  # fmt: skip


class Exploration(NamedTuple):
    """What is carried over so that a learner explores while rewards say nothing."""

    persistence: Float[Array, ""] | None
    """Persistence of exploration in the next batch; None for independent noise."""
    lowest: Float[Array, ""]
    """The lowest mean return of a batch so far."""
    anchor: Float[Array, " n"]
    """Parameters after the last update whose rewards said something, or the initial ones."""


class State(eqx.Module):
    """Everything a run needs to continue."""

    policy: AnyPolicy
    """Its precision is that of the algebra."""
    optimiser: Any
    critic: Values | None
    normaliser: Normaliser | None
    recent: Recent | None
    """Raw observations of recent batches."""
    trust: Trust
    key: PRNGKeyArray
    counts: Counts
    running: Bool[Array, ""]
    """False once the stopping rule has fired."""
    exploration: Exploration

    @property
    def updates(self) -> Int[Array, " *runs"]:
        return self.counts.updates

    @property
    def episodes(self) -> Int[Array, " *runs"]:
        return self.counts.episodes

    @property
    def steps(self) -> Int[Array, " *runs"]:
        return self.counts.steps

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
    *,
    normalised: bool = False,
    persistence: float = 0.0,
    exempt: int = 0,
) -> State:
    """The state of a run before its first update; `observation` is the shape and type of one.
    States of recent batches are kept if the estimator needs them or the update measures the
    divergence, but not for a policy with memory, whose choices do not follow from the state alone.
    Exploration begins with `persistence`. `exempt` numbers at the end of an observation are not
    normalised."""
    policy = as_arrays(policy)
    theta, shape = flatten(policy)[0], observation.shape
    critic = estimator.values(math.prod(shape), theta.dtype)
    optimiser = update.init(theta)
    wanted = estimator.needs.recent or updates.measures_divergence(optimiser)
    wanted = wanted and not remembers(policy)
    zero = jnp.zeros((), jnp.int32)
    persists = traced(persistence) or persistence
    return State(
        policy=policy, optimiser=optimiser, critic=critic,
        normaliser=observations.no_statistics(shape, exempt) if normalised else None,
        recent=observations.no_states(observation) if wanted else None,
        trust=trust.begin(theta.dtype), key=key,
        counts=Counts(zero, zero, zero, jnp.zeros((), jnp.float32)),
        running=jnp.asarray(True),
        exploration=Exploration(
            jnp.asarray(persistence, jnp.float32) if persists else None,
            lowest=jnp.asarray(jnp.inf, theta.dtype), anchor=theta,
        ),
    )  # fmt: skip


class Record(NamedTuple):
    """Numbers that describe one update. Those that are NaN by default cost more than the others,
    and are computed where they are asked for."""

    gradient_norm: Float[Array, ""]
    step_norm: Float[Array, ""]
    confirmed: Float[Array, ""]
    """Share of the squared gradient that is signal, by the agreement of episodes so far
    (`bayespg.learning.trust`)."""
    known: Float[Array, ""]
    """The number of directions in which the batch determines the gradient; NaN where the estimator
    does not say."""
    persistence: Float[Array, ""]
    """Persistence of exploration in this batch."""
    explained: Float[Array, ""]
    """Share of the returns' variance that values fitted to earlier batches explain; NaN without a
    critic."""
    sound: Float[Array, ""]
    """1, or 0 where one of `STAGES` was not finite: the update was then not made."""
    stage: Int[Array, ""]
    """The first of `STAGES` that was not finite, or their number."""
    slope: Float[Array, ""] | float = jnp.nan
    """The gradient along the step taken, and its standard error."""
    slope_error: Float[Array, ""] | float = jnp.nan
    freedom: Float[Array, ""] | float = jnp.nan
    sure: Float[Array, ""] | float = jnp.nan
    """The probability that following the gradient goes uphill, given the updates so far; the
    natural one where there is a Fisher matrix."""
    divergence: Float[Array, ""] | float = jnp.nan
    """Kullback-Leibler divergence from the old policy to the new, mean over states."""


def batch_of(
    state: State,
    raw: Trajectories,
    discount: float | Float[Array, ""] | None,
    horizon: int,
    environment: Environment | None = None,
    summed: Any = None,
) -> Batch:
    """The batch of paths that the policy of this state has drawn. `discount` None chooses it by the
    length of episodes (`bayespg.learning.batch.discount_by_length`)."""
    if discount is None:
        so_far = state.counts.after(raw.mask)
        discount = discount_by_length(so_far.steps / so_far.episodes)
    scored = summed is not None and summed[1] is not None
    return of_paths(
        state.policy, raw, environment, discount=discount, horizon=horizon,
        normaliser=state.normaliser if scored else _units(state, raw), critic=state.critic,
        recent=state.recent and state.recent.observe(raw.states, raw.mask), summed=summed,
    )  # fmt: skip


def _units(state: State, raw: Trajectories) -> Normaliser | None:
    """The statistics that normalise these paths: those of earlier batches or, before there are any,
    those of the paths themselves if no probability of an action depends on them, because the
    initial policy is the same in all states. Otherwise the first update would be made in the
    environment's units and the second policy would act in others."""
    before = state.normaliser
    if before is None:
        return before
    own = before.observe(raw.states, raw.mask)
    dtype = flatten(state.policy)[0].dtype
    actions = observations.as_input(jnp.asarray(raw.actions), None, dtype)

    def logs(units):
        states = observations.as_input(raw.states, units, dtype)
        return jnp.where(raw.mask, _log_probabilities(state.policy, states, actions), 0.0)

    def unaware():
        return jnp.max(jnp.abs(logs(own) - logs(before))) <= CLOSE

    use = jax.lax.cond(before.count < 1, unaware, lambda: jnp.asarray(False))
    return jax.tree.map(lambda a, b: jnp.where(use, a, b), own, before)


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
    taken and ends the run: later calls do not change its parameters. Returns the posterior that was
    used, too.

    A gradient that is rounding is zero, and makes no step. If rewards say nothing about the actions
    (`bayespg.paths.persistence.informed`), a policy stays as it is if it has seen lower returns, or
    if all rewards are gains and no episode ended. Any other has nothing to lose, and is curious: it
    follows the gradient of the return that it had if unfamiliar states were rewarded.

    Without `described` the slope along the step, its error, the probability of going uphill and the
    divergence are NaN. They do not change the update, and may cost more than the gradient.
    """
    theta, rebuild = flatten(state.policy)
    persistence, lowest, anchor = state.exploration
    divergence, M = _divergence(batch), batch.paths.mask.shape[1]
    posterior, informative, curious = _direction(estimator, state, batch)
    trusted = state.trust.observe(posterior.info.get("products"), informative)
    change: Any
    change, optimiser = update.update(
        posterior.mean, state.optimiser, theta, posterior=posterior, divergence=divergence,
        slower=slower(state.policy, SPENT),
        allowed=jnp.where(informative, trusted.allowed(M), curious).astype(theta.dtype),
    )  # fmt: skip
    change = _not_too_far(batch, change, anchor, curious)
    critic, errors, explained = _criticise(batch, estimator.needs)
    critic = posterior.info.pop("values", critic)
    critic = critic and _unless(curious, critic, state.critic)
    raw = batch.paths if raw is None else raw
    sure = jnp.nan
    if described:
        sure, trusted = _unless(~informative, trusted.sure(posterior), (jnp.asarray(0.5), trusted))
    new = State(
        policy=rebuild(theta + change), optimiser=optimiser, critic=critic,
        normaliser=state.normaliser and state.normaliser.observe(raw.states, raw.mask),
        recent=state.recent and state.recent.observe(raw.states, raw.mask), trust=trusted,
        key=state.key, counts=state.counts, running=_norm(change) >= stop,
        exploration=Exploration(
            persistence, jnp.minimum(lowest, jnp.mean(returns(batch.paths))).astype(theta.dtype),
            jnp.where(informative, theta + change, anchor),
        ),
    )  # fmt: skip
    finite = jnp.stack([
        _finite(stage) for stage in (
            errors, new.normaliser, critic, posterior.mean, (theta + change, optimiser),
            _of_actions(new.policy, batch.paths, described),
        )
    ])  # fmt: skip
    sound = jnp.all(finite)
    going = sound & state.running
    new = _unless(~going, new, state)
    counts = state.counts.after(batch.paths.mask)
    left = decayed(persistence, batch.paths, informative)
    new = eqx.tree_at(
        lambda s: (s.counts, s.running, s.exploration.persistence), new,
        (counts, going & new.running, left), is_leaf=lambda x: x is None,
    )  # fmt: skip
    record = Record(
        **(_description(posterior, change, divergence, theta) if described else {}),
        sure=_or_nan(sure), gradient_norm=_norm(posterior.mean), step_norm=_norm(change),
        confirmed=trusted.share(M), known=_or_nan(posterior.info.get("known", jnp.nan)),
        persistence=jnp.zeros(()) if persistence is None else persistence,
        explained=explained, sound=sound.astype(theta.dtype),
        stage=jnp.where(sound, len(STAGES), jnp.argmin(finite)),
    )  # fmt: skip
    return new, record, posterior


def _direction(
    estimator: Estimator, state: State, batch: Batch
) -> tuple[GradientPosterior, Bool[Array, ""], Bool[Array, ""]]:
    """The posterior, whose mean is followed; whether the rewards tell the actions apart; and
    whether the learner is curious: they do not, and it has nothing to lose. The mean is zero if
    they do not and the policy stays as it is."""
    informative, curious = jnp.asarray(True), jnp.asarray(False)
    stays = curious
    if estimator.needs.states:
        informative, mean = informed(batch.paths), jnp.mean(returns(batch.paths))
        stays = (mean - state.exploration.lowest > CLOSE * jnp.abs(mean)) | only_gains(batch.paths)
        stays = ~informative & stays
        if estimator.needs.recent and batch.recent is not None:
            curious = ~informative & ~stays
            batch = batch.curious(curious)
    return _rounded(estimator(batch), estimator, batch, stays), informative, curious


def _not_too_far(
    batch: Batch, change: Any, anchor: Float[Array, " n"], curious: Bool[Array, ""]
) -> Any:
    """The change of parameters, or that which leads back to the anchor where a curious learner
    would otherwise be further from it than `FAR`."""
    if batch.recent is None:
        return change
    theta, rebuild = flatten(batch.policy)

    def lost():
        away = _divergence(eqx.tree_at(lambda b: b.policy, batch, rebuild(anchor)))
        return curious & ~(away(theta + change) < FAR)

    back = jax.lax.cond(in_any_run(curious), lost, lambda: jnp.asarray(False))
    return jnp.where(back, anchor - theta, change)


def _unless(this: Bool[Array, ""], after: Any, before: Any) -> Any:
    """Numbers as they are after the update, or before it if `this`."""
    return jax.tree.map(lambda a, b: jnp.where(this, b, a) if eqx.is_array(a) else a, after, before)


def _description(
    posterior: GradientPosterior, change: Any, divergence: Callable[[Any], Any], theta: Any
) -> dict[str, Float[Array, ""]]:
    """The fields `DESCRIBING` of a record."""
    slope, error, freedom = direction_statistics(posterior, change)
    return {
        "slope": _or_nan(slope), "freedom": freedom,
        "slope_error": jnp.where(jnp.isinf(freedom), error, _or_nan(error)),
        "divergence": _or_nan(divergence(theta + change)),
    }  # fmt: skip


def _rounded(
    posterior: GradientPosterior, estimator: Estimator, batch: Batch, stays: Bool[Array, ""]
) -> GradientPosterior:
    """The posterior with zeros in place of components of the mean that are rounding errors, and of
    all of them if the policy `stays`.

    Component j is a sum of terms R u_j; without path scores, E|R u_j| is at most sqrt(E R^2 G_jj).
    """
    g, R, G = jnp.where(stays, 0.0, posterior.mean), batch.returns, posterior.fisher
    if estimator.needs.path_scores:
        terms = jnp.mean(jnp.abs(R)[:, None] * jnp.abs(batch.scores), 0)
    elif G is None or isinstance(G, Network):
        terms = jnp.zeros_like(g)
    else:
        terms = values.root_mean_square(R) * jnp.sqrt(G.diagonal())
    rounding = ROUNDING * jnp.finfo(g.dtype).eps * terms
    return eqx.tree_at(lambda p: p.mean, posterior, jnp.where(jnp.abs(g) <= rounding, 0.0, g))


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


def _of_actions(policy: AnyPolicy, paths: Trajectories, whole: bool) -> Float[Array, "T M"]:
    """Log-probabilities of the actions taken, of the first step alone unless `whole`. They are not
    finite if the policy's distributions are not, though its parameters may be."""
    some = slice(None) if whole else slice(1)
    logs = _log_probabilities(policy, paths.states[some], paths.actions[some])
    return jnp.where(paths.mask[some], logs, 0.0)


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
    if critic is None or critic.root is not None or needs.lambda_ is None:
        return None, batch.returns, jnp.asarray(jnp.nan, batch.dtype)
    V = jnp.where(paths.mask, critic(paths.states, 2), 0.0)
    left = values.advantages(paths, critic, batch.discount, 1.0)
    lambda_ = batch.lambda_of(needs.lambda_)
    smoothed = values.advantages(paths, critic, batch.discount, lambda_)
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


def _or_nan(x: Any) -> Float[Array, ""]:
    """A number, or NaN in place of an infinite one."""
    return jnp.where(jnp.isfinite(x), x, jnp.nan)


def _norm(x: Float[Array, " n"]) -> Float[Array, ""]:
    """|x|, without squares of large numbers."""
    return jnp.sqrt(jnp.asarray(x.size, x.dtype)) * values.root_mean_square(x)
