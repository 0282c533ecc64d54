"""Gymnasium environments: several in parallel, stepped from Python.

Every episode has its own seed, so that a batch of episodes is determined by its seeds and no state
of an environment needs to be saved. Environments are reset one by one when an episode
begins, without autoreset: no step is lost or counted twice, and the last observation of an
episode is always its own.
"""

import abc
import difflib
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from bayespg._support import checks
from bayespg._support.warning import warn
from bayespg.environments import masks as action_masks
from bayespg.environments import spaces

FALLBACK = 1000
"""Steps after which an episode is cut off if the environment has no limit of its own."""

RESET = ("observation", "info")
STEP = ("observation", "reward", "terminated", "truncated", "info")
"""What `reset` and `step` of an environment return."""

LARGEST = float(np.finfo(np.float32).max)


Step = tuple[np.ndarray, float, bool, bool]
"""The next observation, the reward, terminated and truncated."""


class EnvironmentFailure(RuntimeError):
    """An environment raised or returned something invalid; names seed and step for reproduction."""


class Lanes(abc.ABC):
    """Parallel environments, each of which plays one episode at a time."""

    def __init__(
        self,
        name: str,
        limit: int | None,
        observed: gymnasium.Space,
        acted: gymnasium.Space,
        *,
        discount: float,
        horizon: int | None,
    ):
        self.discount = checks.discount(discount)
        if horizon is not None and horizon < 1:
            raise ValueError(f"horizon: expected at least 1, found {horizon}")
        self.name = name
        self.observations = spaces.Observations(observed)
        self.acted, self.actions = acted, spaces.actions(acted)
        limits = [steps for steps in (limit, horizon) if steps is not None]
        self.horizon = min(limits) if limits else FALLBACK
        self.limited = bool(limits)
        """Whether the environment or the caller has set the horizon."""
        self.open_ended = limit is None and self.horizon >= FALLBACK
        """Whether episodes are likely to be much shorter than the horizon."""
        self.masks = 0
        """The number of entries at the end of an observation that say which actions are allowed."""

    def use_masks(self, wanted: bool | None, has_method: Callable[[], bool]) -> None:
        """Use masks if they are wanted, or by default if the environment has the method."""
        choices = isinstance(self.actions, spaces.Choices)
        if wanted is True and not choices:
            raise ValueError(f"masks: are for choices, and the actions are {self.acted}")
        if choices and (has_method() if wanted is None else wanted):
            self.masks = sum(self.actions.sizes)  # pyright: ignore

    @property
    def width(self) -> int:
        """How many numbers a policy gets."""
        return self.observations.size + self.masks

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
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, time: int,
        mask: Callable[[], Any],
    ) -> Step:  # fmt: skip
        """What an environment returned, where `mask` gives the mask of its new state; ValueError
        if it is invalid."""
        reward = _number("reward", reward)
        if not abs(reward) <= LARGEST:
            raise ValueError(f"the reward is {reward}; expected a finite number, as float32")
        cut = flag("truncated", truncated) or time + 1 >= self.horizon
        seen, ended = self.encode(observation), flag("terminated", terminated)
        return self.masked(seen, None if ended or cut else mask()), reward, ended, cut

    def encode(self, observation: Any) -> np.ndarray:
        """An observation as a vector; ValueError if it is not finite."""
        row = self.observations.encode(observation)
        if not math.isfinite(row.sum()) and not np.isfinite(row).all():
            bad = row[~np.isfinite(row)][0]
            raise ValueError(f"the observation holds {bad}; expected finite numbers, as float32")
        return row

    def masked(self, seen: np.ndarray, mask: Any = None) -> np.ndarray:
        """An observation with the mask of its state behind it, if masks are used. None allows
        everything: where an episode is over, nothing is chosen."""
        if not self.masks:
            return seen
        allowed = np.ones(self.masks, np.float32)
        if mask is not None:
            allowed = action_masks.checked(mask, self.actions.sizes)  # pyright: ignore
        return np.concatenate([seen, allowed])

    def located(self, problem: BaseException, whose: str, step: int) -> EnvironmentFailure:
        what = f"{type(problem).__name__}: {problem}"
        return EnvironmentFailure(f"{self.name}, {whose}, step {step}: {what}")


class Host(Lanes):
    """`lanes` copies of a Gymnasium environment, each made when it is first needed.

    `environment` is an id, a function that makes one, or an environment (then there is one lane).
    `horizon` cuts episodes off; without it the environment's own limit holds.
    """

    def __init__(
        self,
        environment: str | Callable[[], gymnasium.Env] | gymnasium.Env,
        *,
        discount: float = 0.99,
        horizon: int | None = None,
        lanes: int = 8,
        options: dict[str, Any] | None = None,
        masks: bool | None = None,
    ):
        first = _make(environment, options or {})
        name = first.spec.id if first.spec is not None else type(first.unwrapped).__name__
        alone = isinstance(environment, gymnasium.Env)
        super().__init__(
            environment if isinstance(environment, str) else name, _limit(first),
            first.observation_space, first.action_space,
            discount=discount, horizon=horizon,
        )  # fmt: skip
        self.use_masks(masks, lambda: action_masks.has_method(first))
        self.environments, self._lanes = [first], 1 if alone else lanes
        self._another = functools.partial(_make, environment, options or {})
        if self._lanes > 1:
            self._in_lane(1)  # so that a function that makes no new one is found now
        if changed := _wrapper(first, REWARDS):
            warn(
                f"{self.name}: {type(changed).__name__} changes the rewards, and returns are "
                "reported after that; leave out the wrapper to see raw returns"
            )
        if normalising := _wrapper(first, OBSERVATIONS):
            warn(
                f"{self.name}: {type(normalising).__name__} keeps statistics of its own, which "
                "change while the policy is evaluated and are not saved with the agent; leave out "
                "the wrapper: observations are normalised unless normalise=False"
            )

    @property
    def lanes(self) -> int:
        return self._lanes

    def _in_lane(self, lane: int) -> gymnasium.Env:
        while len(self.environments) <= lane:
            another = self._another()
            if any(another is each for each in self.environments):
                raise ValueError(
                    "environment: the function gave the same environment twice; give one that "
                    "makes a new one each time, or the environment itself"
                )
            self.environments.append(another)
        return self.environments[lane]

    def begin(self, lanes: list[tuple[int, int]]) -> list[np.ndarray]:
        return [self.reset(*lane) for lane in lanes]

    def advance(self, lanes: list[tuple[int, Any, int, int]]) -> list[Step]:
        return [self.step(*lane) for lane in lanes]

    def reset(self, lane: int, seed: int) -> np.ndarray:
        """The first observation of an episode in this process."""
        try:
            environment = self._in_lane(lane)
            observation, info = parts(environment.reset(seed=seed), RESET)
            if environment.action_space != self.acted:
                raise ValueError(
                    f"the action space is {environment.action_space} where it was {self.acted}"
                )
            return self.masked(self.encode(observation), self._mask(environment, info))
        except (Exception, SystemExit) as problem:
            raise self.located(problem, f"episode of seed {seed}", 0) from problem

    def step(self, lane: int, action: Any, seed: int, time: int) -> Step:
        """A step in this process. `action` is decoded."""
        try:
            environment = self.environments[lane]
            seen, reward, ended, cut, info = parts(environment.step(action), STEP)
            mask = functools.partial(self._mask, environment, info)
            return self.step_of(seen, reward, ended, cut, time, mask)
        except (Exception, SystemExit) as problem:
            raise self.located(problem, f"episode of seed {seed}", time + 1) from problem

    def _mask(self, environment: gymnasium.Env, info: dict[str, Any]) -> Any:
        return action_masks.of_step(environment, info) if self.masks else None

    def close(self) -> None:
        for environment in self.environments:
            environment.close()


def parts(answer: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Check what `reset` or `step` returned: a tuple that ends with a dictionary."""
    whole = isinstance(answer, tuple | list)
    if not whole or len(answer) != len(names):
        kind = f"{len(answer)} values" if whole else type(answer).__name__
        raise ValueError(f"expected {', '.join(names[:-1])} and info, found {kind}")
    if not isinstance(answer[-1], dict):
        raise ValueError(f"info is {answer[-1]!r}, not a dictionary")
    return tuple(answer)


def _number(name: str, value: Any) -> float:
    """A number, or an array of one."""
    if isinstance(value, numbers.Real):
        return float(value)
    number = np.asarray(value)
    if number.size != 1 or number.dtype.kind not in "biuf":
        raise ValueError(f"the {name} is {value!r}, not a number")
    return float(number.item())


def flag(name: str, value: Any) -> bool:
    """True or False, also as 1 or 0."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    try:
        number = _number(name, value)
    except ValueError:
        number = None
    if number not in (0, 1):
        raise ValueError(f"{name} is {value!r}, not true or false")
    return bool(number)


def _make(environment: Any, options: dict[str, Any]) -> gymnasium.Env:
    if isinstance(environment, gymnasium.Env):
        return environment
    if isinstance(environment, str):
        try:
            return gymnasium.make(environment, disable_env_checker=True, **options)
        except Exception as problem:
            missing = isinstance(problem, gymnasium.error.DependencyNotInstalled)
            if missing or environment in gymnasium.registry:
                what = f"{type(problem).__name__}: {problem}"
                raise ValueError(f"environment: {environment} cannot be made: {what}") from problem
            module = environment.partition(":")[0]
            if ":" in environment and isinstance(problem, ModuleNotFoundError):
                raise ValueError(
                    f"environment: the module '{module}' of '{environment}' cannot be imported "
                    f"({problem}); if {module}.py is in the working directory, start with "
                    "PYTHONPATH=. in front of the command, otherwise install it"
                ) from problem
            close = difflib.get_close_matches(environment, gymnasium.registry, n=1, cutoff=0.7)
            hint = f"did you mean '{close[0]}'? Otherwise " if close else ""
            raise ValueError(
                f"environment: no environment is called '{environment}'; {hint}import the module "
                "that registers it first: with --import on the command line, with imports= in "
                "bayespg.load"
            ) from problem
    if callable(environment):
        made = environment()
        if isinstance(made, gymnasium.Env):
            return made
    raise ValueError(
        "environment: expected an id, a Gymnasium environment, a function that makes one or a "
        f"bayespg.environments.Environment, found {type(environment).__name__}; for an environment "
        "of gymnax, brax, jumanji or navix give bayespg.environments.adapt(...)"
    )


def _limit(environment: gymnasium.Env) -> int | None:
    """The time limit that an environment declares, or that a wrapper holds."""
    if environment.spec is not None and environment.spec.max_episode_steps is not None:
        return environment.spec.max_episode_steps
    wrapper = _wrapper(environment, (gymnasium.wrappers.TimeLimit,))
    return wrapper and wrapper._max_episode_steps


def _wrapper(environment: gymnasium.Env, kinds: tuple[type, ...]) -> Any:
    """The outermost wrapper of one of these kinds; None if there is none."""
    while isinstance(environment, gymnasium.Wrapper) and not isinstance(environment, kinds):
        environment = environment.env
    return environment if isinstance(environment, kinds) else None


REWARDS = (gymnasium.RewardWrapper, gymnasium.wrappers.NormalizeReward)
"""Wrappers that change rewards."""
OBSERVATIONS = (gymnasium.wrappers.NormalizeObservation,)
"""Wrappers whose normalisation would be done twice."""
