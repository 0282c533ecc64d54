"""Gymnasium's vector environments.

Episodes are played in waves: all lanes are reset with a seed each, and each plays one episode. What
a lane does between the end of its episode and the end of the wave, autoreset or not, is ignored.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate

from bayespg.environments import masks as action_masks
from bayespg.environments.host import RESET, STEP, Lanes, Step, flag, parts


class Vector(Lanes):
    """A `VectorEnv`, in any of Gymnasium's three modes of autoreset.

    An environment that takes no list of seeds gets the seed of the first episode of each wave: a
    batch is then still determined by its seeds, but not each episode by its own. If no limit of
    steps is known, give `horizon`; otherwise the default limit of `Host` holds.
    """

    def __init__(
        self,
        environment: VectorEnv,
        *,
        discount: float = 0.99,
        horizon: int | None = None,
        masks: bool | None = None,
    ):
        spec = environment.spec or _spec(environment)
        super().__init__(
            spec.id if spec is not None else type(environment.unwrapped).__name__,
            spec.max_episode_steps if spec is not None else None,
            environment.single_observation_space, environment.single_action_space,
            discount=discount, horizon=horizon,
        )  # fmt: skip
        self.environment: Any = environment
        self._asks = action_masks.lanes_have_method(environment)
        self.use_masks(masks, lambda: self._asks)
        self._allowed: Any = [None] * self.lanes
        """The masks of all lanes now."""
        self._mode = AutoresetMode(environment.metadata.get("autoreset_mode", "NextStep"))
        own = isinstance(environment.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._apart = True if own else None
        """Whether each lane takes its own seed; None until this has been tried."""
        self._ended = np.zeros(self.lanes, bool)
        """Lanes that must be reset by hand before the next step."""

    @property
    def lanes(self) -> int:
        return self.environment.num_envs

    def begin(self, lanes: list[tuple[int, int]]) -> list[np.ndarray]:
        seeds = [lanes[0][1]] * self.lanes
        for lane, seed in lanes:
            seeds[lane] = seed
        self._ended[:] = False
        try:
            first, info = self._reset(seeds)
            observations = self._each(first)
            self._see_masks(info)
        except Exception as problem:
            raise self.located(problem, _one_of(lanes), 0) from problem
        return [self._ask(self._first, (observations[lane], lane), lane, s, 0) for lane, s in lanes]

    def advance(self, lanes: list[tuple[int, Any, int, int]]) -> list[Step]:
        time = lanes[0][-1]
        try:
            if self._ended.any():
                answer = self.environment.reset(options={"reset_mask": self._ended.copy()})
                self._see_masks(parts(answer, RESET)[1], self._ended)
            actions = self._anything(lanes[0][1])
            for lane, action, *_ in lanes:
                actions[lane] = action
            batch = np.stack(actions).astype(self.environment.action_space.dtype)
            answer = parts(self.environment.step(batch), STEP)
            observations = self._each(answer[0])
            rewards = self._column("reward", answer[1])
            terminated = [flag("terminated", x) for x in self._column("terminated", answer[2])]
            truncated = [flag("truncated", x) for x in self._column("truncated", answer[3])]
            over = np.logical_or(terminated, truncated)
            if self._mode is AutoresetMode.SAME_STEP:
                for lane in np.flatnonzero(over):
                    observations[lane] = answer[4]["final_obs"][lane]
            self._see_masks(answer[4])
        except Exception as problem:
            running = [(lane, seed) for lane, _, seed, _ in lanes]
            raise self.located(problem, _one_of(running), time + 1) from problem
        self._ended[:] = over & (self._mode is AutoresetMode.DISABLED)
        answers = zip(observations, rewards, terminated, truncated, self._allowed, strict=True)
        steps = [(*answer, time, lambda mask=mask: mask) for *answer, mask in answers]
        return [self._ask(self.step_of, steps[i], i, seed, time + 1) for i, _, seed, _ in lanes]

    def _first(self, observation: Any, lane: int) -> np.ndarray:
        return self.masked(self.encode(observation), self._allowed[lane])

    def _see_masks(self, info: dict[str, Any], which: np.ndarray | None = None) -> None:
        """Take the masks of all lanes, or of some."""
        if self.masks:
            masks = action_masks.of_lanes(self.environment, info, self._asks)
            for lane, mask in enumerate(self._column("mask", masks)):
                if which is None or which[lane]:
                    self._allowed[lane] = mask

    def _anything(self, action: Any) -> list[Any]:
        """An action for each lane, also for those whose episodes are over: this one, or with masks
        one that the lane allows."""
        if not self.masks:
            return [action] * self.lanes
        choices: Any = self.actions
        rows = [action_masks.first_allowed(mask, choices.sizes) for mask in self._allowed]
        return choices.decode(np.array(rows)[:, 0] if choices.scalar else np.array(rows))

    def _reset(self, seeds: list[int]) -> tuple[Any, ...]:
        if self._apart is None:
            try:
                answer = self.environment.reset(seed=seeds)
                self._apart = True
                return parts(answer, RESET)
            except (TypeError, ValueError, gymnasium.error.Error):
                self._apart = False
        answer = self.environment.reset(seed=seeds if self._apart else seeds[0])
        return parts(answer, RESET)

    def _each(self, observations: Any) -> list[Any]:
        """The observations of the lanes."""
        each = iterate(self.environment.observation_space, observations)
        return self._column("observation", list(each))

    def _column(self, name: str, values: Any) -> list[Any]:
        """One value for each lane."""
        column = list(values) if np.iterable(values) else [values]
        if len(column) != self.lanes:
            raise ValueError(
                f"{name}: expected {self.lanes}, one for each lane, found {len(column)}"
            )
        return column

    def _ask(self, read: Any, answer: tuple[Any, ...], lane: int, seed: int, step: int) -> Any:
        try:
            return read(*answer)
        except Exception as problem:
            raise self.located(problem, f"lane {lane}, episode of seed {seed}", step) from problem

    def close(self) -> None:
        self.environment.close()


def _spec(environment: Any) -> Any:
    """The time limit of the environments inside, if they can be queried."""
    try:
        return environment.unwrapped.get_attr("spec")[0]
    except (AttributeError, NotImplementedError):
        return None


def _one_of(lanes: list[tuple[int, int]]) -> str:
    """The lanes that may have raised: a vector environment does not say which."""
    if len(lanes) == 1:
        return f"lane {lanes[0][0]}, episode of seed {lanes[0][1]}"
    which, seeds = (", ".join(map(str, column)) for column in zip(*lanes, strict=True))
    return f"one of lanes {which} with episodes of seeds {seeds}"
