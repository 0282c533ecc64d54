"""One update of a policy from a batch of paths, wherever they were drawn: Algorithms 2 and 4 with
all that real tasks need around them.

Observations are normalised with statistics of the batches before; advantages come from values
fitted to the batch before; a change that is not finite is not made.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int, PRNGKeyArray, Shaped

from bayespg import scores, values
from bayespg.environments import Environment
from bayespg.estimators import Estimator, Sample, StepEstimator
from bayespg.network_estimators import NetworkEstimator, Targets
from bayespg.policies import AnyPolicy, MemoryPolicy, Policy, as_dtype, flatten, memory
from bayespg.posterior import direction_statistics
from bayespg.trajectories import Trajectories, returns, returns_to_go
from bayespg.types import Array
from bayespg.values import Values

CLIP = 10.0
"""Standard deviations beyond which a normalised observation is cut."""


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
        kept = taken.astype(self.mean.dtype).reshape(-1, *(1 for _ in self.mean.shape))
        count = kept.sum()
        mean = jnp.sum(kept * x, 0) / jnp.maximum(count, 1)
        variance = jnp.sum(kept * (x - mean) ** 2, 0) / jnp.maximum(count, 1)
        total = self.count + count
        away = mean - self.mean
        within = self.variance * self.count + variance * count
        between = away**2 * self.count * count / total
        return Normaliser(self.mean + away * count / total, (within + between) / total, total)


def no_statistics(shape: tuple[int, ...]) -> Normaliser:
    zeros = jnp.zeros(shape, jnp.float32)
    return Normaliser(zeros, zeros + 1, jnp.asarray(1e-4, jnp.float32))


class Normalised(Policy):
    """A policy that is told raw observations."""

    policy: Policy
    normaliser: Normaliser | None

    def __call__(self, state: Shaped[Array, " *state"]) -> Any:
        return self.policy(state if self.normaliser is None else self.normaliser(state))


class NormalisedMemory(MemoryPolicy):
    """The same of one with memory."""

    policy: MemoryPolicy
    normaliser: Normaliser | None

    def start(self) -> Any:
        return self.policy.start()

    def __call__(self, memory: Any, observation: Shaped[Array, " *observation"]) -> Any:
        seen = observation if self.normaliser is None else self.normaliser(observation)
        return self.policy(memory, seen)

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
        policy = as_dtype(self.policy, jnp.float32)
        if isinstance(policy, MemoryPolicy):
            return NormalisedMemory(policy, self.normaliser)
        return Normalised(policy, self.normaliser)


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
    """1, or 0 where the change was not finite and was not made."""


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
        sound = jnp.all(jnp.isfinite(change))
        change = jnp.where(sound, change, 0.0)
        optimiser = jax.tree.map(
            lambda new, old: jnp.where(sound, new, old), optimiser, state.optimiser
        )
        slope, error, freedom = direction_statistics(posterior, change)
        fresh = values.fit(
            state.values, states, jnp.where(taken, (V + y).T.reshape(-1), 0.0), taken
        )  # fmt: skip
        normaliser = state.normaliser
        if normaliser is not None:
            everything = raw.states.reshape(-1, *raw.states.shape[2:])
            normaliser = normaliser.seen(everything, raw.mask.reshape(-1))
        state = State(
            rebuild(theta + change), optimiser, fresh, normaliser, state.key, state.updates + 1,
            state.episodes + paths.mask.shape[1],
            state.steps + jnp.sum(paths.mask, dtype=state.steps.dtype),
        )  # fmt: skip
        left = _variance(togo, paths.mask) / jnp.maximum(_variance(togo + V, paths.mask), 1e-12)
        record = Record(
            jnp.linalg.norm(posterior.mean), slope, error, freedom, divergence(theta + change),
            jnp.linalg.norm(change), 1 - left, sound.astype(theta.dtype),
        )  # fmt: skip
        return state, record

    def _posterior(self, policy, paths, steps, key):
        if isinstance(self.estimator, NetworkEstimator):
            return self.estimator(policy, steps, key)
        U = None
        if not isinstance(self.estimator, StepEstimator):
            U = scores.of_paths(policy, paths)
        R = returns(paths, self.environment.discount)
        return self.estimator(Sample(self.environment, policy, paths, R, U))


def _log_probabilities(policy: AnyPolicy, steps: Targets) -> Float[Array, " N"]:
    """Of the choices made at all steps, one path after another."""
    if isinstance(policy, MemoryPolicy):
        along = jax.vmap(lambda o, c: memory.log_probs(policy, o, c))
        return along(steps.states, steps.actions).reshape(-1)
    flat = steps.batch(policy)
    return jax.vmap(lambda x, a: policy(x).log_prob(a))(flat.states, flat.actions)


def _seen(raw: Trajectories, normaliser: Normaliser | None, dtype: Any) -> Trajectories:
    """Paths as the policy saw them, in its precision."""

    def cast(x):
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    states, final = raw.states, raw.final
    if normaliser is not None:
        states, final = normaliser(states), normaliser(final)
    return Trajectories(
        cast(states), cast(jnp.asarray(raw.actions)), raw.rewards.astype(dtype), raw.mask,
        raw.terminated, cast(final),
    )  # fmt: skip


def _variance(x: Float[Array, "T M"], mask: Shaped[Array, "T M"]) -> Float[Array, ""]:
    count = jnp.maximum(mask.sum(), 1)
    mean = jnp.sum(jnp.where(mask, x, 0.0)) / count
    return jnp.sum(jnp.where(mask, (x - mean) ** 2, 0.0)) / count
