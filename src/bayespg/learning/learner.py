"""One update of a policy from a batch of paths, wherever they were drawn: Algorithms 2 and 4 with
all that real tasks need around them.

Observations are normalised with statistics of the batches before; advantages come from values
fitted to the batch before. A gradient that is nothing but rounding is zero. An update in which
anything is not finite is not made, and says at which stage that was.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from bayespg._support.types import Array
from bayespg.environments import Environment
from bayespg.environments.trajectories import Trajectories, returns, returns_to_go
from bayespg.learning import values
from bayespg.learning.estimators import Estimator, Sample, StepEstimator
from bayespg.learning.network_estimators import NetworkEstimator, Targets
from bayespg.learning.values import Values
from bayespg.paths import scores
from bayespg.policies import AnyPolicy, MemoryPolicy, Policy, flatten, memory
from bayespg.posterior import GradientPosterior, direction_statistics

CLIP = 10.0
"""Standard deviations beyond which a normalised observation is cut."""
ROUNDING = 100
"""Rounding errors of the terms of a gradient within which it is taken for zero."""
STAGES = (
    "the returns are",
    "the statistics of the observations are",
    "the values of the states are",
    "the gradient is",
    "the standard error of the gradient is",
    "the step is",
)
"""Of an update, in the order in which they can fail."""


class NotFinite(ValueError):
    """An update came to numbers that are not finite, and was not made."""


class Normaliser(eqx.Module):
    """Running mean and variance of observations."""

    mean: Float[Array, " *d"]
    variance: Float[Array, " *d"]
    count: Float[Array, ""]

    def __call__(self, x: Shaped[Array, "..."]) -> Float[Array, "..."]:
        scale = jnp.sqrt(self.variance + 1e-8)
        return jnp.clip((x - self.mean) / scale, -CLIP, CLIP).astype(self.mean.dtype)

    def seen(self, x: Shaped[Array, "N *d"], taken: Shaped[Array, " N"]) -> "Normaliser":
        """After a batch, merged as by Chan et al."""
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
        return Normaliser((self.mean + new * away).astype(dtype), spread.astype(dtype), total)


def no_statistics(shape: tuple[int, ...]) -> Normaliser:
    zeros = jnp.zeros(shape, jnp.float32)
    return Normaliser(zeros, zeros + 1, jnp.asarray(1e-4, jnp.float32))


def told(
    x: Shaped[Array, "..."], normaliser: Normaliser | None, dtype: Any
) -> Shaped[Array, "..."]:
    """Observations as a policy takes them, acting and learning alike: normalised, and in the
    precision of its parameters."""
    x = x if normaliser is None else normaliser(x)
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


class Normalised(Policy):
    """A policy that is told raw observations."""

    policy: Policy
    normaliser: Normaliser | None

    def __call__(self, state: Shaped[Array, " *state"]) -> Any:
        return self.policy(told(state, self.normaliser, flatten(self.policy)[0].dtype))


class NormalisedMemory(MemoryPolicy):
    """The same of one with memory."""

    policy: MemoryPolicy
    normaliser: Normaliser | None

    def start(self) -> Any:
        return self.policy.start()

    def __call__(self, memory: Any, observation: Shaped[Array, " *observation"]) -> Any:
        dtype = flatten(self.policy)[0].dtype
        return self.policy(memory, told(observation, self.normaliser, dtype))

    def settle(self, memory: Any, choice: Shaped[Array, " *choice"]) -> Any:
        return self.policy.settle(memory, choice)


class State(eqx.Module):
    """All that a run needs to go on."""

    policy: AnyPolicy
    optimiser: Any
    values: Values
    normaliser: Normaliser | None
    key: PRNGKeyArray
    updates: Int[Array, ""]
    episodes: Int[Array, ""]
    steps: Int[Array, ""]

    @property
    def acting(self) -> Normalised | NormalisedMemory:
        """The policy that learns, in the precision in which it learns."""
        if isinstance(self.policy, MemoryPolicy):
            return NormalisedMemory(self.policy, self.normaliser)
        return Normalised(self.policy, self.normaliser)


class Record(NamedTuple):
    """What an update saw and did."""

    gradient_norm: Float[Array, ""]
    slope: Float[Array, ""]
    """The gradient along the step taken, and its standard error."""
    slope_error: Float[Array, ""]
    freedom: Float[Array, ""]
    divergence: Float[Array, ""]
    """Kullback-Leibler, mean over steps, from the old policy to the new."""
    step_norm: Float[Array, ""]
    explained: Float[Array, ""]
    """Share of the returns' variance that the values of the batch before explain."""
    sound: Float[Array, ""]
    """1, or 0 where anything was not finite: the update was then not made."""
    stage: Int[Array, ""]
    """The first of `STAGES` that was not finite, or their number."""


TargetKind = Literal["returns", "advantages"]


class Recorded(Environment):
    """Paths drawn elsewhere: a horizon and a discount, nothing that can be stepped."""

    horizon: int = eqx.field(static=True)
    discount: float = eqx.field(static=True)

    def reset(self, key: PRNGKeyArray, paths: int) -> Array:
        raise NotImplementedError("these paths were drawn elsewhere")

    def step(self, key: PRNGKeyArray, states: Array, actions: Array) -> Any:
        raise NotImplementedError("these paths were drawn elsewhere")


class Learner(eqx.Module):
    """How a batch changes the state."""

    estimator: Estimator | NetworkEstimator
    update: optax.GradientTransformationExtraArgs = eqx.field(static=True)
    environment: Environment
    """Horizon and discount."""
    smoothing: float = 0.95
    """lambda of the advantages."""
    targets: TargetKind = eqx.field(static=True, default="advantages")

    @eqx.filter_jit
    def __call__(self, state: State, raw: Trajectories) -> tuple[State, Record]:
        policy, discount = state.policy, self.environment.discount
        theta, rebuild = flatten(policy)
        paths = _seen(raw, state.normaliser, theta.dtype)
        togo = values.advantages(paths, state.values, discount, 1.0)
        y = values.advantages(paths, state.values, discount, self.smoothing)
        V = jnp.where(paths.mask, state.values(paths.states, 2), 0.0)
        key = jax.random.fold_in(state.key, state.updates)
        worth = returns_to_go(paths, discount) if self.targets == "returns" else y
        columns = (paths.states, paths.actions, worth, paths.mask)
        steps = Targets(*(jnp.swapaxes(x, 0, 1) for x in columns))
        posterior = self._posterior(policy, paths, steps, key)
        states = steps.states.reshape(-1, *steps.states.shape[2:])
        taken = steps.taken.reshape(-1)

        def log_probabilities(t):
            return _log_probabilities(rebuild(t), steps)

        before, kept = log_probabilities(theta), taken.astype(theta.dtype)

        def divergence(t):
            """Schulman's estimate from the actions taken, r - 1 - log r: never negative."""
            log_ratio = jnp.where(taken, log_probabilities(t) - before, 0.0)
            return jnp.sum(kept * (jnp.expm1(log_ratio) - log_ratio)) / kept.sum()

        change, optimiser = self.update.update(
            posterior.mean, state.optimiser, theta, posterior=posterior, divergence=divergence
        )
        change = jnp.asarray(change)
        slope, error, freedom = direction_statistics(posterior, change)
        fresh = values.fit(
            state.values, states, jnp.where(taken, (V + y).T.reshape(-1), 0.0), taken
        )  # fmt: skip
        normaliser = state.normaliser
        if normaliser is not None:
            everything = raw.states.reshape(-1, *raw.states.shape[2:])
            normaliser = normaliser.seen(everything, raw.mask.reshape(-1))
        moved = divergence(theta + change)
        doubt = jnp.where(jnp.isnan(error + freedom), jnp.nan, slope)  # both may be infinite
        stages = (
            togo, normaliser, fresh.weights, posterior.mean, doubt,
            (theta + change, optimiser, moved),
        )  # fmt: skip
        finite = jnp.stack([_finite(stage) for stage in stages])
        sound = jnp.all(finite)
        policy, optimiser, learned, normaliser = jax.tree.map(
            lambda new, old: jnp.where(sound, new, old) if eqx.is_array(new) else new,
            (rebuild(theta + change), optimiser, fresh, normaliser),
            (policy, state.optimiser, state.values, state.normaliser),
        )
        state = State(
            policy, optimiser, learned, normaliser, state.key, state.updates + 1,
            state.episodes + paths.mask.shape[1],
            state.steps + jnp.sum(paths.mask, dtype=state.steps.dtype),
        )  # fmt: skip
        left, whole = (values.centred(x, paths.mask)[1] for x in (togo, togo + V))
        share = jnp.where(whole > 0, left / jnp.where(whole > 0, whole, 1.0), 1.0)
        record = Record(
            _norm(posterior.mean), slope, error, freedom, moved,
            _norm(change), 1 - share**2, sound.astype(theta.dtype),
            jnp.where(sound, len(STAGES), jnp.argmin(finite)),
        )  # fmt: skip
        return state, record

    def _posterior(self, policy, paths, steps, key):
        if isinstance(self.estimator, NetworkEstimator):
            return self.estimator(policy, steps, key)
        U = None
        if not isinstance(self.estimator, StepEstimator):
            U = scores.of_paths(policy, paths)
        R = returns(paths, self.environment.discount)
        posterior = self.estimator(Sample(self.environment, policy, paths, R, U))
        g = posterior.mean
        rounding = ROUNDING * jnp.finfo(g.dtype).eps * _terms(posterior, R, U)
        return eqx.tree_at(lambda p: p.mean, posterior, jnp.where(jnp.abs(g) <= rounding, 0.0, g))


def _terms(
    posterior: GradientPosterior, R: Float[Array, " M"], U: Float[Array, "M n"] | None
) -> Float[Array, " n"] | float:
    """How large the terms R u_j of the gradient are, whatever is left of their sum. Without path
    scores, E|R u_j| <= sqrt(E R^2 G_jj)."""
    if U is not None:
        return jnp.mean(jnp.abs(R)[:, None] * jnp.abs(U), 0)
    if posterior.fisher is None:
        return 0.0
    return values.root_mean_square(R) * jnp.sqrt(posterior.fisher.diagonal())


def _log_probabilities(policy: AnyPolicy, steps: Targets) -> Float[Array, " N"]:
    """Of the choices made at all steps, one path after another."""
    if isinstance(policy, MemoryPolicy):
        along = jax.vmap(lambda o, c: memory.log_probs(policy, o, c))
        return along(steps.states, steps.actions).reshape(-1)
    flat = steps.batch(policy)
    return jax.vmap(lambda x, a: policy(x).log_prob(a))(flat.states, flat.actions)


def _seen(raw: Trajectories, normaliser: Normaliser | None, dtype: Any) -> Trajectories:
    """Paths as the policy saw them, in its precision."""
    return Trajectories(
        told(raw.states, normaliser, dtype), told(jnp.asarray(raw.actions), None, dtype),
        raw.rewards.astype(dtype), raw.mask, raw.terminated, told(raw.final, normaliser, dtype),
    )  # fmt: skip


def _finite(tree: Any) -> Bool[Array, ""]:
    """Whether all numbers of a tree are."""
    leaves = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)


def _norm(x: Float[Array, " n"]) -> Float[Array, ""]:
    """|x|, without squares of large numbers."""
    return jnp.sqrt(jnp.asarray(x.size, x.dtype)) * values.root_mean_square(x)
