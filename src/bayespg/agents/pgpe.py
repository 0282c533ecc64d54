"""`PGPE`: search in the space of a deterministic policy's parameters, on Gymnasium and in JAX.

    agent = bayespg.PGPE("Swimmer-v5", policy="linear", seed=0)
    agent.learn(episodes=100)

Each episode is played with its own parameters, which `bayespg.search.Search` chooses after the
episodes before; an update is `EPISODES` of them. With workers as many episodes as there are workers
are played at a time, and those under way are taken into account.

Observations are divided by units, the root mean square of each number in all observations so far,
so that one scale of perturbations suits all parameters. Where the policy is linear, a change of
units is a change of parameters, and all earlier ones are converted exactly: old episodes stay valid
data. Its first episode is played with random weights of raw observations, and gives the first
units: while a robot does nothing, observations show little. Any other policy keeps the units of the
first update, which then only sets them.

Continuous actions have limits. In units, weights of length `LONGEST` reach them most of the time,
and longer ones act nearly the same, so that the search of a linear policy stays among shorter ones.

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
EPISODES = 5
"""Episodes of an update; as many as there are workers where these are more."""
LONGEST = 3.0
"""The typical length of the weights of an action at most."""


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
    number of episodes after which training ends. An update is five episodes, so that a budget may
    be exceeded by up to four. The other settings are `hidden`, `horizon`, `workers`,
    `episode_timeout`, `masks` and `seed`, as for other agents.
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
        limited = start.features is None and not start.directional
        self.search = Search(
            start.theta(), scale=None if start.directional else 1 / math.sqrt(inputs),
            radius=LONGEST * math.sqrt(len(start.weights)) if limited else None,
            sphere=start.directional, seed=s.seed,
        )  # fmt: skip
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
        radius = None if search.radius == math.inf else search.radius
        start = Search(
            theta, scale=search.scale, sphere=search.sphere, radius=radius, seed=self.settings.seed
        )
        other.search.take(start.arrays())
        policy = self.state.policy.at(start.best)
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
    def at_once(self) -> int:
        """Episodes that are played at a time."""
        return self.settings.workers if isinstance(self.settings.workers, int) else 1

    @property
    def episodes(self) -> int:
        """Episodes of an update."""
        return max(EPISODES, self.at_once)

    def _play(self) -> tuple[Deterministic, np.ndarray, list[Trajectories]]:
        """The policy in the units of all observations, returns and episodes. The search is told as
        they end; if one of them fails, it is what it was before."""
        updates, policy, paths = int(self.state.updates), self.state.policy, []
        seeds = episode_seeds(self.settings.seed, updates, self.episodes)
        returns = np.zeros(0)
        try:
            while len(paths) < self.episodes:
                alone = not updates and not paths
                asked = self._asked_now(1 if alone else self.episodes - len(paths))
                now = slice(len(paths), len(paths) + len(asked))
                new = self._play_each(policy, asked, seeds[now])
                values = np.array([metrics.evaluation(one).returns[0] for one in new])
                if not np.isfinite(values).all():
                    raise NotFinite(f"update {updates + 1}: a return is not finite")
                if updates or policy.features is None:
                    self.search.tell(asked, values)
                if policy.features is None:
                    policy = self._in_units(policy, paths, new)
                paths, returns = [*paths, *new], np.r_[returns, values]
            if not updates and policy.features is not None:
                policy = self._in_units(policy, [], paths)
        except BaseException:
            self.search.take(self.state.search)
            raise
        return policy, returns, paths

    def _asked_now(self, most: int) -> np.ndarray:
        """Parameters of the next episodes. The first of a linear policy that does nothing are
        random; a policy that is not linear first plays perturbations of the default scale, which
        only show what observations are like."""
        search, linear = self.search, self.state.policy.features is None
        if self.state.updates or (linear and (search.episodes or search.mean.any())):
            return search.ask(min(self.at_once, most))
        rng = np.random.default_rng([self.settings.seed, 0])
        size = (1 if linear else self.episodes, search.n)
        return search.mean + (search.scale if linear else SCALE) * rng.normal(size=size)

    def _learn_from(
        self, played: tuple[Deterministic, np.ndarray, list[Trajectories]]
    ) -> tuple[Evaluation, Any, dict[Any, float]]:
        """The state after the episodes, and what describes the search."""
        (policy, returns, paths), search, old = played, self.search, self.state
        lengths = np.array([np.asarray(one.mask).sum() for one in paths])
        self.state = self._state(
            policy.at(search.best), old.key, int(old.episodes) + len(returns),
            int(old.steps) + int(lengths.sum()), int(old.updates) + 1,
        )  # fmt: skip
        before = np.asarray(old.search["mean"]) * self._factors(old.policy.units, policy)
        away = np.sum((search.mean - search.placed(before)) ** 2)
        slope, sure = search.certainty()
        columns = {
            Column.RETURN_AT_BEST: search.return_at_best, Column.SCALE: search.scale,
            Column.SLOPE: slope, Column.SLOPE_ERROR: 1.0,
            Column.DIVERGENCE: float(away / (2 * search.scale**2)),
            Column.STEP_NORM: math.sqrt(away), Column.SURE: sure,
        }  # fmt: skip
        return Evaluation(returns, lengths), [one.terminated[0] for one in paths], columns

    def _play_each(
        self, policy: Deterministic, asked: np.ndarray, seeds: list[int]
    ) -> list[Trajectories]:
        with self.precision():
            policies = [policy.at(theta) for theta in asked]
            keys = [jax.random.fold_in(self.state.key, seed) for seed in seeds]
            return self.world.play_each(policies, keys, seeds)

    def _in_units(
        self, policy: Deterministic, before: list[Trajectories], new: list[Trajectories]
    ) -> Deterministic:
        """The policy in the units of all observations so far: those of earlier updates, of episodes
        `before` and of `new` ones. The parameters of a linear policy change with them."""
        seen = _observations(new, policy.units.size)
        steps = int(self.state.steps) + sum(int(np.asarray(one.mask).sum()) for one in before)
        old = np.asarray(policy.units, np.float64)
        square = (steps * old**2 + np.sum(seen**2, 0)) / (steps + len(seen))
        other = eqx.tree_at(lambda p: p.units, policy, np.sqrt(square).astype(np.float32))
        if policy.features is None:
            self.search.rescale(self._factors(policy.units, other))
        return other

    @staticmethod
    def _factors(old: Any, policy: Deterministic) -> np.ndarray:
        """By what the parameters in `old` units are multiplied in those of the policy: one where
        it is not linear."""
        if policy.features is not None:
            return np.ones(1)
        before, now = (divisors(np.asarray(u, np.float64)) for u in (old, policy.units))
        return np.tile(np.append(now / before, 1.0), len(policy.weights))

    def _state(self, policy: Deterministic, key: Any, episodes: int, steps: int, updates: int = 0):
        counts = (np.asarray(count, np.int64) for count in (updates, episodes, steps))
        return State(policy, self.search.arrays(), key, *counts)

    def _take(self, state: Any) -> None:
        self.state = state
        self.search.take(state.search)
        self.reset()
