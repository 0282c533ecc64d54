"""The classic control tasks of Gymnasium in pure JAX, equal to them step by step.

    CartPole-v1, Acrobot-v1, Pendulum-v1, MountainCar-v0, MountainCarContinuous-v0

Transitions, rewards, ends, time limits and the distribution of starts are those of Gymnasium; the
precision is that of the states. Observations are kept apart from states where Gymnasium does so. A
whole batch of episodes is one compiled program, and hundreds of runs fit into one call.

`MountainCar` here is Gymnasium's. The paper's, which starts anywhere and has its goal at the right
wall, is `bayespg.environments.MountainCar`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments.base import Environment, PartiallyObserved, Wrapper


class CartPole(Environment):
    """CartPole-v1: keep a pole upright on a cart that is pushed with a force F of -10 or 10 N.

    The state is (x, x', theta, theta'), and with masses M + m = 1.1, m = 0.1 and half length l =
    0.5

    f = (F + m l theta'^2 sin theta) / (M + m),
    theta'' = (g sin theta - f cos theta) / (l (4/3 - m cos^2 theta / (M + m))),
    x'' = f - m l theta'' cos theta / (M + m),

    integrated by Euler's method with steps of 0.02 s. Each step earns 1; the episode terminates
    where |x| > 2.4 or |theta| > 12 degrees. Actions are 0 (left) and 1 (right).
    """

    choices: ClassVar[int] = 2

    horizon: int = eqx.field(static=True, default=500)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M 4"]:
        return jax.random.uniform(key, (paths, 4), minval=-0.05, maxval=0.05)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M 4"], actions: Int[Array, " M"]
    ) -> tuple[Float[Array, "M 4"], Float[Array, " M"], Bool[Array, " M"]]:
        total, m, l, g, dt = 1.1, 0.1, 0.5, 9.8, 0.02
        x, speed, theta, turning = states.T
        force = jnp.where(actions == 1, 10.0, -10.0).astype(states.dtype)
        sin, cos = jnp.sin(theta), jnp.cos(theta)
        f = (force + m * l * turning**2 * sin) / total
        turns = (g * sin - f * cos) / (l * (4 / 3 - m * cos**2 / total))
        pushes = f - m * l * turns * cos / total
        x, speed = x + dt * speed, speed + dt * pushes
        theta, turning = theta + dt * turning, turning + dt * turns
        ends = (jnp.abs(x) > 2.4) | (jnp.abs(theta) > math.radians(12))
        return jnp.stack([x, speed, theta, turning], 1), jnp.ones_like(x), ends


class Acrobot(PartiallyObserved):
    """Acrobot-v1: swing the end of a double pendulum above the bar, with a torque on its joint.

    The state is (theta_1, theta_2, theta_1', theta_2'): the angle of the first link from straight
    down, that of the second relative to the first, and their velocities, bounded by 4 pi and 9 pi.
    An observation is (cos theta_1, sin theta_1, cos theta_2, sin theta_2, theta_1', theta_2').
    Actions 0, 1, 2 are torques of -1, 0, 1. The equations of motion are those of Sutton and Barto's
    book, integrated by one Runge-Kutta step of fourth order over 0.2 s. Each step earns -1 but the
    last, which earns 0: the episode terminates where -cos theta_1 - cos(theta_1 + theta_2) > 1.
    """

    choices: ClassVar[int] = 3

    horizon: int = eqx.field(static=True, default=500)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M 4"]:
        return jax.random.uniform(key, (paths, 4), minval=-0.1, maxval=0.1)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M 4"], actions: Int[Array, " M"]
    ) -> tuple[Float[Array, "M 4"], Float[Array, " M"], Bool[Array, " M"]]:
        torque, dt = (actions - 1).astype(states.dtype), 0.2
        y = states.T
        k1 = _swing(y, torque)
        k2 = _swing(y + dt / 2 * k1, torque)
        k3 = _swing(y + dt / 2 * k2, torque)
        k4 = _swing(y + dt * k3, torque)
        first, second, speed, other = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        first, second = _wrapped_angle(first), _wrapped_angle(second)
        speed = jnp.clip(speed, -4 * math.pi, 4 * math.pi)
        other = jnp.clip(other, -9 * math.pi, 9 * math.pi)
        ends = -jnp.cos(first) - jnp.cos(first + second) > 1
        rewards = jnp.where(ends, 0.0, -1.0).astype(states.dtype)
        return jnp.stack([first, second, speed, other], 1), rewards, ends

    def observe(self, states: Float[Array, "M 4"]) -> Float[Array, "M 6"]:
        first, second, speed, other = states.T
        angles = (jnp.cos(first), jnp.sin(first), jnp.cos(second), jnp.sin(second))
        return jnp.stack([*angles, speed, other], 1)


def _swing(y: Float[Array, "4 M"], torque: Float[Array, " M"]) -> Float[Array, "4 M"]:
    """Time derivatives of the acrobot's state. Both links have mass 1, length 1, their centre in
    the middle and a moment of inertia of 1; g = 9.8."""
    g = 9.8
    first, second, speed, other = y
    sin, cos = jnp.sin(second), jnp.cos(second)
    d1, d2 = 3.5 + cos, 1.25 + 0.5 * cos
    phi2 = 0.5 * g * jnp.sin(first + second)
    phi1 = -0.5 * other**2 * sin - other * speed * sin + 1.5 * g * jnp.sin(first) + phi2
    second_turns = (torque + d2 / d1 * phi1 - 0.5 * speed**2 * sin - phi2) / (1.25 - d2**2 / d1)
    first_turns = -(d2 * second_turns + phi1) / d1
    return jnp.stack([speed, other, first_turns, second_turns])


def _wrapped_angle(angle: Float[Array, " M"]) -> Float[Array, " M"]:
    """The same angle in [-pi, pi]."""
    turns = jnp.maximum(jnp.ceil((jnp.abs(angle) - math.pi) / (2 * math.pi)), 0)
    return angle - jnp.sign(angle) * turns * (2 * math.pi)


class Pendulum(PartiallyObserved):
    """Pendulum-v1: swing a pendulum up and hold it there, with a torque u that is clipped to [-2,
    2].

    The state is (theta, theta'), with theta = 0 upright and not wrapped; an observation is (cos
    theta, sin theta, theta'). With steps of 0.05 s

    theta' <- clip(theta' + 0.05 (15 sin theta + 3 u), -8, 8),   theta <- theta + 0.05 theta',

    and each step earns -(theta^2 + 0.1 theta'^2 + 0.001 u^2), with theta before the step, in [-pi,
    pi). Episodes do not terminate. An action is one number for each path, or a vector of one.
    """

    limit: ClassVar[float] = 2.0

    horizon: int = eqx.field(static=True, default=200)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M 2"]:
        high = jnp.array([math.pi, 1.0])
        return jax.random.uniform(key, (paths, 2), high.dtype, -high, high)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M 2"], actions: Float[Array, "M *one"]
    ) -> tuple[Float[Array, "M 2"], Float[Array, " M"], Bool[Array, " M"]]:
        theta, speed = states.T
        u = jnp.clip(_numbers(actions, states), -self.limit, self.limit)
        angle = jnp.mod(theta + math.pi, 2 * math.pi) - math.pi
        costs = angle**2 + 0.1 * speed**2 + 0.001 * u**2
        speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(theta) + 3 * u), -8, 8)
        states = jnp.stack([theta + 0.05 * speed, speed], 1)
        return states, -costs, jnp.zeros_like(theta, bool)

    def observe(self, states: Float[Array, "M 2"]) -> Float[Array, "M 3"]:
        theta, speed = states.T
        return jnp.stack([jnp.cos(theta), jnp.sin(theta), speed], 1)


class MountainCar(Environment):
    """MountainCar-v0: drive out of a valley with an engine that is too weak for the slope.

    The state is (x, v); actions 0, 1, 2 push with a = -1, 0, 1:

    v <- clip(v + 0.001 a - 0.0025 cos(3 x), -0.07, 0.07),   x <- clip(x + v, -1.2, 0.6),

    and the left wall stops the car. Each step earns -1; the episode terminates where x >= 0.5 and v
    >= 0.
    """

    choices: ClassVar[int] = 3

    horizon: int = eqx.field(static=True, default=200)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M 2"]:
        return _in_the_valley(key, paths)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M 2"], actions: Int[Array, " M"]
    ) -> tuple[Float[Array, "M 2"], Float[Array, " M"], Bool[Array, " M"]]:
        push = 0.001 * (actions - 1).astype(states.dtype)
        states, ends = _drive(states, push, goal=0.5)
        return states, jnp.full_like(push, -1.0), ends


class MountainCarContinuous(Environment):
    """MountainCarContinuous-v0: the same valley with an engine of any force a, clipped to [-1, 1].

    v changes by 0.0015 a - 0.0025 cos(3 x). Each step earns -0.1 a^2, a as it was before clipping,
    and the last 100 more: the episode terminates where x >= 0.45 and v >= 0. An action is one
    number for each path, or a vector of one.
    """

    limit: ClassVar[float] = 1.0

    horizon: int = eqx.field(static=True, default=999)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M 2"]:
        return _in_the_valley(key, paths)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M 2"], actions: Float[Array, "M *one"]
    ) -> tuple[Float[Array, "M 2"], Float[Array, " M"], Bool[Array, " M"]]:
        a = _numbers(actions, states)
        push = 0.0015 * jnp.clip(a, -self.limit, self.limit)
        states, ends = _drive(states, push, goal=0.45)
        return states, jnp.where(ends, 100.0, 0.0).astype(states.dtype) - 0.1 * a**2, ends


def _in_the_valley(key: PRNGKeyArray, paths: int) -> Float[Array, "M 2"]:
    """At rest, uniformly in [-0.6, -0.4]."""
    x = jax.random.uniform(key, (paths,), minval=-0.6, maxval=-0.4)
    return jnp.stack([x, jnp.zeros_like(x)], 1)


def _drive(
    states: Float[Array, "M 2"], push: Float[Array, " M"], goal: float
) -> tuple[Float[Array, "M 2"], Bool[Array, " M"]]:
    x, v = states.T
    v = jnp.clip(v + push - 0.0025 * jnp.cos(3 * x), -0.07, 0.07)
    x = jnp.clip(x + v, -1.2, 0.6)
    v = jnp.where((x <= -1.2) & (v < 0), 0.0, v)
    return jnp.stack([x, v], 1), (x >= goal) & (v >= 0)


def _numbers(actions: Float[Array, "M *one"], states: Float[Array, "M _"]) -> Float[Array, " M"]:
    return actions.reshape(len(states)).astype(states.dtype)


Discrete = CartPole | Acrobot | MountainCar
"""Tasks with `choices` actions."""
Continuous = Pendulum | MountainCarContinuous
"""Tasks with an action in [-limit, limit]."""


class InBounds(Wrapper):
    """A task whose actions are unbounded draws a of a Gaussian policy: the task gets
    limit clip(a, -1, 1), as on Gymnasium, so that a policy does the same in both."""

    environment: Continuous  # pyright: ignore[reportIncompatibleVariableOverride]

    def step(
        self, key: PRNGKeyArray, states: Any, actions: Float[Array, "M *one"]
    ) -> tuple[Any, Float[Array, " M"], Bool[Array, " M"]]:
        return self.environment.step(key, states, self.within(actions))

    def within(self, actions: Float[Array, "M *one"]) -> Float[Array, "M *one"]:
        """The actions that the task gets."""
        return self.environment.limit * jnp.clip(actions, -1.0, 1.0)


NAMES: dict[str, Callable[[], Environment]] = {
    "CartPole-v1": CartPole,
    "Acrobot-v1": Acrobot,
    "Pendulum-v1": Pendulum,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
}
"""Gymnasium's ids."""
