"""`PGPE`: search in the space of a deterministic policy's parameters, on Gymnasium and in JAX.

    agent = bayespg.PGPE("Swimmer-v5", policy="linear", seed=0)
    agent.learn(episodes=100)

An update is a round of `bayespg.search.Search`: each episode is played with its own parameters.
Observations are divided by units, the root mean square of each number in all observations so far,
so that one scale of perturbations suits all parameters. Where the policy is linear, a change of
units is a change of parameters, and all earlier ones are converted exactly: old episodes stay valid
data. Any other policy keeps the units of the first round, which then only sets them. In the first
round of a linear policy one episode is played first, and its observations give the units of the
others: in raw ones a number that is always small would have no effect on the actions.

A policy that chooses among discrete actions by linear scores chooses the same with any multiple of
its parameters, so that only their direction is searched.
"""

import dataclasses
import math
from typing import Any, Unpack

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.random import child, episode_seeds, host_key
from bayespg.agents import build, describe, metrics, serialise, settings
from bayespg.agents.base import BaseAgent
from bayespg.agents.metrics import Evaluation
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.advance import NotFinite
from bayespg.paths.worlds import OnHost
from bayespg.policies import AnyPolicy, deterministic
from bayespg.policies.deterministic import Deterministic, divisors
from bayespg.runs.columns import Column
from bayespg.search import Search
from bayespg.search.search import SCALE

NAME = "pgpe"
UPDATE = "search"
"""The estimator and the update that a run's configuration names."""
POLICIES = ("linear", "fourier", "gaussian", "mlp")
SETTINGS = tuple(settings.GivenToPGPE.__annotations__)
"""The settings that PGPE uses; the others of `Settings` have no effect on it."""
LEAST = 1e-3
"""The smallest unit of an observation in the first round, relative to the largest: a number that
hardly changes while the robot does nothing would otherwise get enormous gains."""


def _observations(paths: list[Trajectories], size: int) -> Float[np.ndarray, "N {size}"]:
    """Those of all steps that were played, without the masks behind them."""
    steps = [np.asarray(one.states)[np.asarray(one.mask)] for one in paths]
    return np.concatenate([x.reshape(len(x), -1)[:, :size] for x in steps]).astype(np.float64)


class State(eqx.Module):
    """Everything a run needs to continue."""

    policy: Deterministic
    """With the best parameters of the search."""
    search: dict[str, np.ndarray]
    key: PRNGKeyArray
    updates: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    steps: Int[np.ndarray, ""]

    @property
    def acting(self) -> AnyPolicy:
        return self.policy


@describe.with_settings("environment", "policy", only=SETTINGS, max_episodes=None, options=None)
class PGPE(BaseAgent):
    """A deterministic policy, found by search in the space of its parameters.

    `policy` is "linear" (the default), "fourier", "gaussian" or "mlp"; `max_episodes` is the
    number of episodes after which training ends. An update is a whole round, so that a budget may
    be exceeded by the rest of one. The other settings are `hidden`, `horizon`,
    `workers`, `episode_timeout`, `masks` and `seed`, as for other agents.
    """

    def __init__(
        self,
        environment: Any,
        policy: str | None = None,
        *,
        max_episodes: int | None = None,
        options: dict[str, Any] | None = None,
        **given: Unpack[settings.GivenToPGPE],
    ):
        super().__init__(
            environment=environment, policy=policy, max_episodes=max_episodes, options=options,
            **given,
        )  # fmt: skip
        parts = {"estimator": NAME, "update": UPDATE}
        s = settings.of_kind("PGPE", given, SETTINGS, ["max_episodes"], parts)
        if max_episodes is not None:
            self.max_episodes = checks.whole("max_episodes", max_episodes, 1)
        alone = dataclasses.replace(s, discount=1.0, episodes=1)
        self.world = build.world_of(environment, alone, self.options)
        if self.world.actions is None or not self.world.real:
            raise ValueError(
                "environment: PGPE needs observations that are real numbers, and known actions"
            )
        if isinstance(self.world, OnHost):
            self.world.host.observations.refuse_images()
        policy = checks.one_of("policy", "linear" if policy is None else policy, POLICIES)
        self.names = {"environment": environment, "policy": policy, **parts}
        hidden = s["hidden"] if policy == "mlp" else None
        self.settings = s.in_force(
            build.of_world(s, self.world) | {"hidden": (hidden, f"{policy} has no such layers")}
        )
        key_policy, key_run = (child(host_key(s.seed), number) for number in range(2))
        inputs = math.prod(self.world.observation.shape) - self.world.masks
        start = deterministic.make(
            policy, inputs, self.world.actions, key_policy, s["hidden"], self.world.masks > 0
        )
        # Observations are of size one in their units, so actions begin at about half their range.
        scale = None if start.directional else 1 / math.sqrt(inputs)
        self.search = Search(start.theta(), scale=scale, sphere=start.directional, seed=s.seed)
        self.state = self._state(start, key_run, 0, 0)
        self.reset()

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters that the search changes: the weights and those of the features."""
        return serialise.parameters(eqx.tree_at(lambda p: p.units, self.state.policy, None))

    def with_parameters(self, parameters: Any) -> "PGPE":
        """A copy of this agent with other parameters, from which its search starts again."""
        theta, other = serialise.vector(parameters, self.parameters), self._again()
        search = self.search
        start = Search(theta, scale=search.scale, sphere=search.sphere, seed=self.settings.seed)
        other.search.take(start.arrays())
        policy = self.state.policy.at(theta)
        state = eqx.tree_at(lambda s: s.policy, self.state, policy)
        other.state = eqx.tree_at(
            lambda s: s.search, state, other.search.arrays(), is_leaf=lambda x: isinstance(x, dict)
        )
        return other

    @property
    def config(self) -> dict[str, Any]:
        own = {name: getattr(self.settings, name) for name in SETTINGS}
        return self._named() | {"max_episodes": self.max_episodes} | own

    @property
    def episodes(self) -> int:
        return len(self.search.ask())

    def _play(self) -> tuple[np.ndarray, list[Trajectories]]:
        """A round: the parameters tried, and an episode with each."""
        updates, asked = int(self.state.updates), self.search.ask()
        seeds = episode_seeds(self.settings.seed, updates, len(asked))
        return (asked, self._play_each(asked, seeds)) if updates else self._first(asked, seeds)

    def _learn_from(
        self, played: tuple[np.ndarray, list[Trajectories]]
    ) -> tuple[Evaluation, Any, dict[Any, float]]:
        """Tell the search the returns of a round, and move."""
        (asked, paths), search, updates = played, self.search, int(self.state.updates)
        scale, centred = search.scale, search.centred
        episodes = metrics.evaluation(*paths)
        returns = episodes.returns
        if not np.isfinite(returns).all():
            raise NotFinite(f"update {updates + 1}: a return is not finite")
        policy = self.state.policy
        if not updates:
            search.restart()
        if not updates or policy.features is None:
            policy, factors = self._in_units(policy, paths)
            asked = asked * factors
        before = search.mean.copy()
        if updates or policy.features is None:
            search.tell(asked, returns)
        self.state = self._state(
            policy.at(search.best), self.state.key, int(self.state.episodes) + len(returns),
            int(self.state.steps) + int(episodes.lengths.sum()), updates + 1,
        )  # fmt: skip
        away = np.sum((search.mean - before) ** 2)
        columns = {
            Column.RETURN_AT_MEAN: float(returns[-1]) if centred else math.nan,
            Column.SCALE: search.scale,
            Column.SLOPE: search.slope, Column.SLOPE_ERROR: 1.0,
            Column.DIVERGENCE: float(away / (2 * scale**2)), Column.STEP_NORM: math.sqrt(away),
            Column.SURE: search.probability,
        }  # fmt: skip
        return episodes, [one.terminated[0] for one in paths], columns

    def _first(self, asked: np.ndarray, seeds: list[int]) -> tuple[np.ndarray, list[Trajectories]]:
        """The first round, while the units are not known. Where the policy is linear, the mean
        plays first, or a random direction where only directions matter, and the perturbations are
        those of the search in the units of its observations; no unit is taken for less than `LEAST`
        of the largest. Any other policy plays in raw units, with the default scale."""
        mean, policy = self.search.mean, self.state.policy
        if policy.features is not None:
            asked = mean + SCALE / self.search.scale * (asked - mean)
            return asked, self._play_each(asked, seeds)
        alone = self._play_each(asked[-1:], seeds[-1:])
        units = np.sqrt(np.mean(_observations(alone, policy.units.size) ** 2, 0))
        units = divisors(np.maximum(units, LEAST * np.max(units)))
        others = mean + (asked[:-1] - mean) / np.tile(units, len(policy.weights))
        return np.r_[others, asked[-1:]], [*self._play_each(others, seeds[:-1]), *alone]

    def _play_each(self, asked: np.ndarray, seeds: list[int]) -> list[Trajectories]:
        with self.precision():
            policies = [self.state.policy.at(theta) for theta in asked]
            keys = [jax.random.fold_in(self.state.key, seed) for seed in seeds]
            return self.world.play_each(policies, keys, seeds)

    def _in_units(self, policy: Deterministic, paths: list[Trajectories]):
        """The policy in the units of all observations so far, and the factors by which parameters
        were multiplied; the factor is one for a policy that is not linear."""
        seen = _observations(paths, policy.units.size)
        old, before = np.asarray(policy.units, np.float64), int(self.state.steps)
        square = (before * old**2 + np.sum(seen**2, 0)) / (before + len(seen))
        units = np.sqrt(square).astype(np.float32)
        policy = eqx.tree_at(lambda p: p.units, policy, units)
        if policy.features is not None:
            return policy, np.ones(1)
        new = units.astype(np.float64)
        factors = np.tile(divisors(new) / divisors(old), len(policy.weights))
        self.search.rescale(factors)
        return policy, factors

    def _state(self, policy: Deterministic, key: Any, episodes: int, steps: int, updates: int = 0):
        counts = (np.asarray(count, np.int64) for count in (updates, episodes, steps))
        return State(policy, self.search.arrays(), key, *counts)

    def _take(self, state: Any) -> None:
        self.state = state
        self.search.take(state.search)
        self.reset()
