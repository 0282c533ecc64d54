"""Training on tasks: `BAC`, `BPG` and `MCPG`, with the interface of other libraries.

    agent = bayespg.BAC("CartPole-v1", seed=0)
    agent.learn(100_000)
    agent.evaluate(episodes=100)
    agent.predict(observation)
    agent.save("cartpole")

An agent is a shell around pure functions: it draws paths, calls `advance` with them, and keeps the
state that `advance` returns.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bayespg._support import compilation
from bayespg._support.random import child, episode_seeds, host_key
from bayespg._support.warning import warn
from bayespg.agents import build, describe, metrics, names, serialise, settings
from bayespg.agents.base import BaseAgent
from bayespg.agents.metrics import Evaluation
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import trust
from bayespg.learning.advance import (
    DESCRIBING,
    STAGES,
    NotFinite,
    advance,
    batch_of,
    begin,
)
from bayespg.learning.batch import by_products
from bayespg.learning.estimators import Estimator, refuse_memory
from bayespg.paths.worlds import AnyEnvironment
from bayespg.policies import AnyPolicy, as_dtype


@describe.with_settings("environment", "policy", "estimator", "update", options=None)
class Agent(BaseAgent):
    """A policy that learns in an environment, update by update along its gradient.

    `environment` is a Gymnasium id, an environment, a function that makes one, a vector
    environment, or an `Environment` in JAX; `policy`, `estimator` ("bac" unless stated otherwise)
    and `update` are names (see `bayespg.agents.names`) or objects. A policy may have a memory, and
    may be a network of any library (`bayespg.policies.network`). The default policy of estimators
    with a damped metric is "fourier" for choices and "mlp" for continuous actions, and "linear" of
    all others; an environment of the paper has the paper's policy. `options` go to
    `gymnasium.make`; everything else is in `Settings`. A setting that would have no effect is
    refused.
    """

    ESTIMATOR = "bac"
    """The default estimator."""

    def __init__(
        self,
        environment: AnyEnvironment,
        policy: str | AnyPolicy | None = None,
        estimator: str | Estimator | None = None,
        update: str | optax.GradientTransformationExtraArgs = "natural",
        *,
        options: dict[str, Any] | None = None,
        **given: Unpack[settings.Given],
    ):
        estimator = self.ESTIMATOR if estimator is None else estimator
        super().__init__(
            environment=environment, policy=policy, estimator=estimator, update=update,
            options=options, **given,
        )  # fmt: skip
        s = self.settings = settings.from_arguments(given)
        key_policy, key_run = (child(host_key(s.seed), number) for number in range(2))
        self._estimator = rule = names.estimator(estimator, s["lambda_"], s.damping)
        asked = s.episodes
        s = dataclasses.replace(s, episodes=build.episodes(asked, rule, policy))
        self.world = build.world_of(environment, s, self.options)
        policy, start = build.policy_of(policy, environment, self.world, s, rule.needs, key_policy)
        self.names = {
            "environment": environment, "policy": policy, "estimator": estimator, "update": update
        }  # fmt: skip
        refuse_memory(rule, start)
        self.world.refuse_misfit(start)
        s = dataclasses.replace(s, episodes=build.episodes(asked, rule, start))
        self._double = not (rule.needs.products and by_products(start))
        with self.precision():
            start = as_dtype(start, jnp.float64 if self._double else jnp.float32)
            self._update = names.update(update, s["limit"], s["rate"])
            self.state = _first(
                start, rule, self._update, key_run, self.world.observation,
                normalised=build.normalised(s, self.world),
                persistence=build.persistence(s, rule.needs), exempt=self.world.masks,
            )  # fmt: skip
        self.settings = s.in_force(build.in_force(s, self.world, self.names, rule, start))
        self._begun, self._warned = False, False
        self.reset()

    @property
    def episodes(self) -> int:
        """The number of episodes of the next update."""
        asked = self.settings.episodes
        if isinstance(asked, int):
            return asked
        return self.state.trust.episodes(float(self.state.counts.length))

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        return serialise.parameters(self.state.policy)

    def with_parameters(self, parameters: Any) -> "Agent":
        other = self._again()
        with other.precision():
            policy = serialise.replaced(self.state.policy, parameters)
            other._take(eqx.tree_at(lambda s: s.policy, self.state, policy))
        return other

    def draw(self) -> Trajectories:
        """The paths of the next update, determined by the seed and the number of updates so far."""
        updates = int(self.state.updates)
        key = child(child(self.state.key, 1), updates)
        seeds = episode_seeds(self.settings.seed, updates, self.episodes)
        with self.precision():
            return self.world.play(
                self.state.acting, key, seeds, persistence=self.state.exploration.persistence
            )

    def _play(self) -> Trajectories:
        with compilation.meanwhile(self._ahead()):
            return self.draw()

    def _learn_from(self, played: Trajectories) -> tuple[Evaluation, Any, dict[str, float]]:
        with self.precision():
            state, record = self._learn(played)
            record = jax.tree.map(float, jax.device_get(record))
        if not record.sound:
            raise NotFinite(self._complaint(STAGES[int(record.stage)], played))
        self.state = state
        self._warn_of(record)
        return metrics.evaluation(played), played.terminated, record._asdict()

    def _learn(self, paths: Trajectories) -> tuple[Any, Any]:
        return _learner(self._double)(*self._arguments(paths))

    def _arguments(self, paths: Trajectories) -> tuple[Any, ...]:
        where = self.world
        return (
            self._estimator, self._update, self.state, paths,
            None if self.settings.discount == trust.AUTO else where.discount, where.horizon,
            where.environment,
        )  # fmt: skip

    def _ahead(self) -> Callable[[], Any] | None:
        """Before the first update, a function that compiles its program, if the shape of the paths
        is known before they are drawn; otherwise None."""
        first, self._begun = not self._begun, True
        with self.precision():
            paths = self.world.expected(self.state.acting, self.episodes) if first else None
            if paths is None:
                return None
            return _learner(self._double).lower(*self._arguments(paths)).lowered.compile

    def _warn_of(self, record: Any) -> None:
        """Warn, once per agent, of numbers that describe an update and are not finite."""
        names = [name for name in DESCRIBING if np.isnan(getattr(record, name))]
        if names and not self._warned:
            self._warned = True
            warn(
                f"update {int(self.state.updates)}: {', '.join(names)} not finite, and NaN in the "
                "metrics; they describe the update and do not change it. Later ones are not "
                "reported"
            )

    def _complaint(self, what: str, paths: Trajectories) -> str:
        """The message that an update was not made, with its likely reason."""
        taken, before = np.asarray(paths.mask), int(self.state.updates)
        rewards, seen = (np.abs(np.asarray(x)[taken]).max() for x in (paths.rewards, paths.states))
        advice = "scale rewards or observations in the environment"
        if self.world.real and self.state.normaliser is None:
            advice += ", or give normalise=True"
        return (
            f"update {before + 1}: {what} not finite (rewards reach {rewards:.3g}, observations "
            f"{seen:.3g}); the agent is as it was after update {before}; {advice}"
        )

    @property
    def config(self) -> dict[str, Any]:
        return self._named() | dataclasses.asdict(self.settings)

    def _take(self, state: Any) -> None:
        self.state = self._in_jax(state)
        self.reset()


@describe.with_settings("environment", "policy", update="natural", options=None)
class BAC(Agent):
    """Bayesian actor-critic: values and advantages in one regression, natural steps."""


@describe.with_settings("environment", "policy", update="natural", options=None)
class BPG(Agent):
    """Bayesian policy gradient: whole episodes, Model 2 with a flat baseline."""

    ESTIMATOR = "model2"


@describe.with_settings("environment", "policy", update="natural", options=None)
class MCPG(Agent):
    """Monte Carlo policy gradient: GPOMDP, the rival."""

    ESTIMATOR = "mcpg"


_first = eqx.filter_jit(begin)
"""Compiled as one program instead of a dozen small ones."""


@functools.cache
def _learner(double: bool) -> Any:
    """`_learned`, compiled once for all agents of the same kind."""
    options: dict[str, Any] = {"compiler_options": compilation.fast(double=double)}
    return eqx.filter_jit(_learned, **options)


def _learned(estimator, update, state, raw, discount, horizon, environment):
    batch = batch_of(state, raw, discount, horizon, environment)
    return advance(estimator, update, state, batch, raw)[:2]
