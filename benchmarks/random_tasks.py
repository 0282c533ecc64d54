"""Tasks that nobody tuned for: a generator of small Gymnasium environments, and a navigation task.

    import random_tasks

    env = random_tasks.make(7)
    print(random_tasks.describe(7))
    env = random_tasks.Navigation()

    python benchmarks/random_tasks.py 20        # what the first twenty are

A seed determines a task. Its kind follows from the seed so that any 60 in a row are all 60 of them
and any 20 hold every dynamics, kind of actions, rewards and ending; sizes, matrices and scales are
random. The state x has as many numbers as the observation; with the control u, in [-1, 1]^m or one
of some random vectors, and Gaussian noise e,

    linear       x' = A x + B u + e
    nonlinear    x' = A x + B u + e + tanh(W x + w) / 5.

Let d be the distance of one or two random projections of x from a goal. Rewards and endings:

    drift     never ends early; A has the spectral radius 1 to 1.02, so that states drift away and
              the reward -d grows worse without bound up to the time limit
    stable    never ends early, spectral radius 0.9 to 0.98 as in goal and trap, reward -d
    failure   a reward of one for every step, less a share of d, until the state leaves a box;
              spectral radius 1 to 1.02
    goal      a cost of one for every step, and of d, until d is small: ending early is good
    trap      a reward between zero and one for every step, exp(-d); a region of states ends the
              episode and pays for three steps: ending early is tempting and bad

    dense     as above
    delayed   summed and paid every few steps, and at the end
    sparse    without the parts that depend on d, or one where d is small and zero elsewhere.

The sizes of box, goal and trap come from episodes of random actions, so that some of these end
there. Observations have scales from 0.1 to 10 and rewards from 0.1 to 100.
"""

from __future__ import annotations  # the rivals have no jaxtyping

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

Array = np.ndarray
DYNAMICS = ("linear", "nonlinear")
REWARDS = ("dense", "delayed", "sparse")
ENDINGS = ("drift", "stable", "failure", "goal", "trap")
UNSTABLE = ("drift", "failure")
HORIZONS = (60, 120, 180)
TRIALS = 200
"""Episodes of random actions from which a task takes its sizes."""


class Kind(NamedTuple):
    dynamics: str
    choices: bool
    reward: str
    ending: str


def kind(seed: int) -> Kind:
    """4, 3 and 5 have no common factor, so 60 seeds in a row are all combinations."""
    return Kind(DYNAMICS[seed % 2], seed % 4 < 2, REWARDS[seed % 3], ENDINGS[seed % 5])


def maker(name: str) -> Callable[[], gymnasium.Env]:
    """The function that makes the task `navigation` or `random/N`."""
    if name == "navigation":
        return navigation
    head, _, seed = name.partition("/")
    if head != "random" or not seed.isdigit():
        raise ValueError(f"expected a task of Gymnasium, navigation or random/N, found {name!r}")
    return functools.partial(make, int(seed))


def make(seed: int) -> gymnasium.Env:
    """The task of a seed, with its time limit."""
    task = RandomTask(seed)
    return gymnasium.wrappers.TimeLimit(task, task.horizon)


def describe(seed: int) -> str:
    task = RandomTask(seed)
    number = len(task.controls) if task.kind.choices else task.B.shape[1]
    return (
        f"random/{seed}: {task.kind.dynamics}, {task.kind.reward} rewards, {task.kind.ending}; "
        f"{len(task.A)} observations, {number} {'choices' if task.kind.choices else 'actions'}, "
        f"{task.horizon} steps"
    )


class RandomTask(gymnasium.Env):
    """One task of the generator; see the first lines of this file."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, seed: int):
        self.kind = kind(seed)
        rng = np.random.default_rng([7, seed])
        n, m = int(rng.integers(2, 9)), int(rng.integers(1, 4))
        self.horizon = int(rng.choice(HORIZONS))
        A = np.eye(n) + 0.15 * rng.normal(size=(n, n))
        radius = rng.uniform(*((1, 1.02) if self.kind.ending in UNSTABLE else (0.9, 0.98)))
        self.A = A * radius / np.abs(np.linalg.eigvals(A)).max()
        self.B = 0.2 * rng.normal(size=(n, m))
        self.controls = rng.uniform(-1, 1, (int(rng.integers(2, 7)), m))
        self.W, self.w = rng.normal(size=(n, n)) / np.sqrt(n), 0.5 * rng.normal(size=n)
        aims = int(rng.integers(1, 1 + min(2, n)))
        self.P = np.linalg.qr(rng.normal(size=(n, aims)))[0].T
        self.goal = rng.uniform(-1, 1, aims)
        self.direction = rng.normal(size=n) / np.sqrt(n)
        self.noise = float(rng.choice((0.0, 0.02, 0.05)))
        self.scales, self.shift = 10 ** rng.uniform(-1, 1, n), rng.normal(size=n)
        self.unit = 10 ** rng.uniform(-1, 2)
        self.every = int(rng.choice((10, 15, 30))) if self.kind.reward == "delayed" else 1
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (n,), np.float32)
        self.action_space = (
            gymnasium.spaces.Discrete(len(self.controls))
            if self.kind.choices
            else gymnasium.spaces.Box(-1.0, 1.0, (m,), np.float32)
        )
        self._measure(rng)
        self._state, self._time, self._owed = np.zeros(n), 0, 0.0

    def _measure(self, rng: np.random.Generator) -> None:
        """The sizes of box, goal and trap."""
        states = [rng.uniform(-1, 1, (TRIALS, len(self.A)))]
        for _ in range(self.horizon):
            if self.kind.choices:
                u = self.controls[rng.integers(len(self.controls), size=TRIALS)]
            else:
                u = rng.uniform(-1, 1, (TRIALS, self.B.shape[1]))
            states.append(self._following(states[-1], u, rng))
        x = np.stack(states)
        reach = np.maximum.accumulate(np.abs(x).max(-1), 0)
        self.box = max(1.1, float(np.median(reach[self.horizon // 3])))
        distances = self._distance(x)
        self.near = float(np.quantile(distances[1:].min(0), 0.5))
        self.small = float(np.quantile(distances, 0.1))
        self.edge = float(np.median((x @ self.direction).max(0)))
        self.typical = float(np.median(distances))

    def _following(
        self, x: Float[Array, "*b n"], u: Float[Array, "*b m"], rng: np.random.Generator
    ) -> Float[Array, "*b n"]:
        following = x @ self.A.T + u @ self.B.T + self.noise * rng.normal(size=x.shape)
        if self.kind.dynamics == "nonlinear":
            following += 0.2 * np.tanh(x @ self.W.T + self.w)
        return following

    def _distance(self, x: Float[Array, "*b n"]) -> Float[Array, "*b"]:
        return np.linalg.norm(x @ self.P.T - self.goal, axis=-1)

    def _judged(self, x: Float[Array, " n"]) -> tuple[float, bool]:
        """The reward, in its own unit, and whether the episode ends."""
        d, sparse = float(self._distance(x)), self.kind.reward == "sparse"
        match self.kind.ending:
            case "failure":
                failed = bool(np.abs(x).max() > self.box)
                return 1.0 - (0 if sparse else 0.5 * min(d / self.typical, 1)), failed
            case "goal":
                return -1.0 - (0 if sparse else d / self.typical), d < self.near
            case "trap":
                caught = float(x @ self.direction) > self.edge
                reward = float(d < self.small) if sparse else float(np.exp(-d))
                return (3.0 if caught else reward), caught
            case _:
                return (float(d < self.small) if sparse else -d), False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[Array, " n"], dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-1, 1, len(self.A))
        self._time, self._owed = 0, 0.0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Float[Array, " n"], float, bool, bool, dict[str, Any]]:
        u = self.controls[int(action)] if self.kind.choices else np.clip(action, -1, 1)
        self._state = self._following(self._state, np.asarray(u, float), self.np_random)
        reward, ended = self._judged(self._state)
        self._time, self._owed = self._time + 1, self._owed + self.unit * reward
        paid = 0.0
        if ended or self._time % self.every == 0:
            paid, self._owed = self._owed, 0.0
        return self._seen(), float(paid), ended, False, {}

    def _seen(self) -> Float[Array, " n"]:
        return (self.scales * self._state + self.shift).astype(np.float32)


class Navigation(gymnasium.Env):
    """A point mass that pushes itself to a goal in the plane: five choices (none and the four
    directions), six observations (position, velocity, goal), the reward minus the distance. Nothing
    holds it back and nothing ends the episode, so that a wrong push is paid for until the end."""

    metadata: dict[str, Any] = {"render_modes": []}
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)
    PUSHES = 0.65 * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
    """So strong that random choices return about -171; good ones return about -20."""
    STEPS, TIME = 100, 0.1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[Array, " 6"], dict[str, Any]]:
        super().reset(seed=seed)
        self._at, self._goal = self.np_random.uniform(-1, 1, (2, 2))
        self._speed = np.zeros(2)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Float[Array, " 6"], float, bool, bool, dict[str, Any]]:
        self._speed = self._speed + self.TIME * self.PUSHES[int(action)]
        self._at = self._at + self.TIME * self._speed
        return self._seen(), -float(np.linalg.norm(self._at - self._goal)), False, False, {}

    def _seen(self) -> Float[Array, " 6"]:
        return np.concatenate([self._at, self._speed, self._goal]).astype(np.float32)


def navigation() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Navigation(), Navigation.STEPS)


if __name__ == "__main__":
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        print(describe(number))
