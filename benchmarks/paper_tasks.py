"""The tasks of the paper for Gymnasium, for agents that need to know the actions of a task."""

import math

import gymnasium
import numpy as np
from gymnasium import spaces

ANY = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class _Task(gymnasium.Env):
    limit: int

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.state = 0, self.start()
        return self.state.astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        self.state, reward, ended = self.move(action)
        seen, over = self.state.astype(np.float32), self.steps >= self.limit
        return seen, float(reward), bool(ended), over, {}

    def start(self) -> np.ndarray:
        raise NotImplementedError

    def move(self, action) -> tuple[np.ndarray, float, bool]:
        raise NotImplementedError


class LQR(_Task):
    """`bayespg.environments.LQR`."""

    observation_space, action_space, limit = ANY, ANY, 20

    def start(self):
        return np.array([0.3 + math.sqrt(0.001) * self.np_random.normal()])

    def move(self, action):
        x, a = self.state[0], float(action[0])
        return np.array([x + a + 0.1 * self.np_random.normal()]), -(x**2 + 0.1 * a**2), False


class MountainCar(_Task):
    """`bayespg.environments.MountainCar`."""

    observation_space = spaces.Box(
        np.array([-1.2, -0.07], np.float32), np.array([0.5, 0.07], np.float32)
    )
    action_space, limit = spaces.Discrete(3), 200

    def start(self):
        return self.np_random.uniform([-1.2, -0.07], [0.5, 0.07])

    def move(self, action):
        x, v = self.state
        v = np.clip(v + 0.001 * (1, -1, 0)[action] - 0.0025 * math.cos(3 * x), -0.07, 0.07)
        x = np.clip(x + v, -1.2, 0.5)
        return np.array([x, 0.0 if x <= -1.2 else v]), -1.0, x >= 0.5


class ShipSteering(_Task):
    """`bayespg.environments.ShipSteering`, which pays 1 on arrival."""

    observation_space = spaces.Box(
        np.array([-1, -1, -180, -15], np.float32), np.array([151, 151, 180, 15], np.float32)
    )
    action_space, limit = ANY, 500

    def start(self):
        return np.array([40.0, 40.0, *self.np_random.uniform([-180, -15], [180, 15])])

    def move(self, action):
        x, y, heading, rate = self.state
        angle = math.radians(heading)
        x, y = x + 0.6 * math.sin(angle), y + 0.6 * math.cos(angle)
        heading = (heading + 0.2 * rate + 180) % 360 - 180
        rate += 0.04 * (15 * 2 / math.pi * math.atan(math.pi / 2 * float(action[0])) - rate)
        arrived = math.hypot(x - 100, y - 100) <= 10
        outside = not (0 <= x <= 150 and 0 <= y <= 150)
        return np.array([x, y, heading, rate]), float(arrived), arrived or outside
