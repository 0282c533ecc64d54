"""Gymnasium environments: several side by side, stepped from Python.

Every episode begins with a seed of its own, so that a batch of episodes follows from its seeds and
nothing of an environment needs to be saved. Environments are reset one by one when an episode
begins, never by themselves: no step is lost or counted twice, and the last observation of an
episode is always its own.
"""

import abc
import difflib
import functools
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from bayespg import checks
from bayespg.environments import spaces
from bayespg.environments.workers import Worker

FALLBACK = 1000
"""Steps after which an episode is cut off where the environment has no limit of its own."""

LARGEST = float(np.finfo(np.float32).max)


Step = tuple[np.ndarray, float, bool, bool]
"""The next observation, the reward, terminated and truncated."""


class EnvironmentFailure(RuntimeError):
    """An environment raised or answered nonsense; says where, so that it can be seen again."""


class Lanes(abc.ABC):
    """Environments side by side, each of which plays one episode at a time."""

    together: bool
    """Whether episodes begin in all lanes at once, or in each lane when it is free."""

    def __init__(
        self,
        name: str,
        spec: Any,
        observed: gymnasium.Space,
        acted: gymnasium.Space,
        *,
        discount: float,
        horizon: int | None,
        bounds: spaces.Bounds,
    ):
        self.discount = checks.discount(discount)
        if horizon is not None and horizon < 1:
            raise ValueError(f"horizon: expected at least 1, found {horizon}")
        self.name = name
        self.observations = spaces.Observations(observed)
        self.actions = spaces.actions(acted, bounds)
        own = spec.max_episode_steps if spec is not None else None
        limits = [limit for limit in (own, horizon) if limit is not None]
        self.horizon = min(limits) if limits else FALLBACK

    @property
    @abc.abstractmethod
    def lanes(self) -> int: ...

    @abc.abstractmethod
    def begin(self, lanes: list[tuple[int, int]]) -> list[np.ndarray]:
        """The first observations of episodes: lane and seed of each."""

    @abc.abstractmethod
    def advance(self, lanes: list[tuple[int, Any, int, int]]) -> list[Step]:
        """A step in several lanes: lane, action as the environment takes it, seed, and steps done
        before."""

    @abc.abstractmethod
    def close(self) -> None: ...

    def step_of(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, time: int
    ) -> Step:
        """What an environment answered; ValueError where it is nonsense."""
        reward = float(reward)
        if not abs(reward) <= LARGEST:
            raise ValueError(f"the reward is {reward}")
        cut = bool(truncated) or time + 1 >= self.horizon
        return self.seen(observation), reward, bool(terminated), cut

    def seen(self, observation: Any) -> np.ndarray:
        """An observation as a vector; ValueError where it is not finite."""
        found = self.observations.encode(observation)
        if not math.isfinite(found.sum()) and not np.isfinite(found).all():
            raise ValueError(f"the observation holds {found[~np.isfinite(found)][0]}")
        return found

    def located(self, problem: Exception, whose: str, step: int) -> EnvironmentFailure:
        what = f"{type(problem).__name__}: {problem}"
        return EnvironmentFailure(f"{self.name}, {whose}, step {step}: {what}")


class Host(Lanes):
    """`lanes` copies of a Gymnasium environment.

    `environment` is an id, a function that makes one, or an environment (then there is one lane).
    `horizon` cuts episodes off; without it the environment's own limit holds. With `processes` each
    lane has a process of its own, which pays where a step takes longer than a tenth of a
    millisecond.
    """

    together = False

    def __init__(
        self,
        environment: str | Callable[[], gymnasium.Env] | gymnasium.Env,
        *,
        discount: float = 0.99,
        horizon: int | None = None,
        lanes: int = 8,
        bounds: spaces.Bounds = "clip",
        options: dict[str, Any] | None = None,
        processes: bool = False,
    ):
        first = _make(environment, options or {})
        alone = isinstance(environment, gymnasium.Env)
        if alone and processes:
            raise ValueError("processes: give an id, or a function that makes the environment")
        super().__init__(
            environment if isinstance(environment, str) else _name(first), first.spec,
            first.observation_space, first.action_space,
            discount=discount, horizon=horizon, bounds=bounds,
        )  # fmt: skip
        rest = 0 if alone or processes else lanes - 1
        self.environments = [first, *(_make(environment, options or {}) for _ in range(rest))]
        if len({id(e) for e in self.environments}) < len(self.environments):
            raise ValueError(
                "environment: the function gave the same environment twice; give one that makes a "
                "new one each time, or the environment itself"
            )
        self._workers: list[Worker] = []
        if processes:
            one = functools.partial(
                _lane, environment, discount=discount, horizon=horizon, lanes=1, options=options
            )
            self._workers = [Worker(one) for _ in range(lanes)]

    @property
    def lanes(self) -> int:
        return len(self._workers or self.environments)

    def begin(self, lanes: list[tuple[int, int]]) -> list[np.ndarray]:
        return self._all("reset", lanes)

    def advance(self, lanes: list[tuple[int, Any, int, int]]) -> list[Step]:
        return self._all("step", lanes)

    def _all(self, what: str, lanes: list[Any]) -> list[Any]:
        """Several lanes at the same time where they have processes."""
        if not self._workers:
            return [getattr(self, what)(*lane) for lane in lanes]
        for lane, *rest in lanes:
            self._workers[lane].ask((what, 0, *rest))
        return [self._workers[lane].answer() for lane, *_ in lanes]

    def reset(self, lane: int, seed: int) -> np.ndarray:
        """The first observation of an episode in this process."""
        try:
            observation, _ = self.environments[lane].reset(seed=seed)
            return self.seen(observation)
        except Exception as problem:
            raise self.located(problem, f"episode of seed {seed}", 0) from problem

    def step(self, lane: int, action: Any, seed: int, time: int) -> Step:
        """A step in this process. `action` is decoded."""
        try:
            observation, reward, ended, cut, _ = self.environments[lane].step(action)
            return self.step_of(observation, reward, ended, cut, time)
        except Exception as problem:
            raise self.located(problem, f"episode of seed {seed}", time + 1) from problem

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for environment in self.environments:
            environment.close()


def _lane(environment: Any, **options: Any) -> Callable[[tuple[Any, ...]], Any]:
    """What a worker answers with."""
    host = Host(environment, **options)

    def answer(request: tuple[Any, ...]) -> Any:
        what, *rest = request
        return getattr(host, what)(*rest)

    return answer


def _make(environment: Any, options: dict[str, Any]) -> gymnasium.Env:
    if isinstance(environment, gymnasium.Env):
        return environment
    if isinstance(environment, str):
        try:
            return gymnasium.make(environment, disable_env_checker=True, **options)
        except (gymnasium.error.Error, ModuleNotFoundError) as problem:
            missing = isinstance(problem, gymnasium.error.DependencyNotInstalled)
            if missing or environment in gymnasium.registry:
                raise ValueError(
                    f"environment: {environment} cannot be made: {problem}"
                ) from problem
            close = difflib.get_close_matches(environment, gymnasium.registry, n=1, cutoff=0.5)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise ValueError(
                f"environment: no environment is called '{environment}'{hint}"
            ) from problem
    if callable(environment):
        made = environment()
        if isinstance(made, gymnasium.Env):
            return made
    raise ValueError(
        "environment: expected an id, a Gymnasium environment, a function that makes one or a "
        f"bayespg.environments.Environment, found {type(environment).__name__}"
    )


def _name(environment: gymnasium.Env) -> str:
    spec = environment.spec
    return spec.id if spec is not None else type(environment.unwrapped).__name__
