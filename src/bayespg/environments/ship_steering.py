"""Ship steering of Section 8.3, after Miller, Sutton and Werbos.

The paper gives neither reward nor size of the goal: here 1 on arrival within `goal_radius` of (100
m, 100 m) and 0 otherwise, so that the expected return is the probability of success.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments.base import Environment
from bayespg.environments.trajectories import Trajectories

LOW, HIGH = (0.0, 0.0, -180.0, -15.0), (150.0, 150.0, 180.0, 15.0)
"""Bounds of x and y in metres, heading in degrees and turning rate in degrees a second."""
START, GOAL = (40.0, 40.0), (100.0, 100.0)
INTERVAL, SPEED, LAG = 0.2, 3.0, 5.0
"""Delta in seconds, V in metres a second, and T."""


class ShipSteering(Environment):
    """State (x, y, theta, theta_dot), in metres and degrees; an action is a~, any real number:

    x' = x + Delta V sin theta,       theta' = theta + Delta theta_dot,
    y' = y + Delta V cos theta,       theta_dot' = theta_dot + (Delta / T) (squash(a~) - theta_dot).

    Arrival pays 1, leaving the square nothing; both end the path. A path that reaches the horizon
    has failed too, with return 0, but the state does not contain time: it counts as truncated, not
    as terminated.
    """

    goal_radius: float = eqx.field(static=True, default=10.0)
    """Metres; a step is 0.6, so that checking its end suffices."""
    horizon: int = eqx.field(static=True, default=500)
    discount: float = eqx.field(static=True, default=1.0)

    def reset(self, key: PRNGKeyArray, paths: int) -> Float[Array, "M 4"]:
        low, high = jnp.array(LOW[2:]), jnp.array(HIGH[2:])
        turning = jax.random.uniform(key, (paths, 2), low.dtype, low, high)
        return jnp.concatenate([jnp.broadcast_to(jnp.array(START), (paths, 2)), turning], 1)

    def step(
        self, key: PRNGKeyArray, states: Float[Array, "M 4"], actions: Float[Array, " M"]
    ) -> tuple[Float[Array, "M 4"], Float[Array, " M"], Bool[Array, " M"]]:
        x, y, heading, rate = states.T
        angle = jnp.deg2rad(heading)
        x = x + INTERVAL * SPEED * jnp.sin(angle)
        y = y + INTERVAL * SPEED * jnp.cos(angle)
        heading = wrap(heading + INTERVAL * rate)
        rate = rate + INTERVAL / LAG * (squash(actions) - rate)
        arrived = (x - GOAL[0]) ** 2 + (y - GOAL[1]) ** 2 <= self.goal_radius**2
        outside = (x < LOW[0]) | (x > HIGH[0]) | (y < LOW[1]) | (y > HIGH[1])
        rewards = arrived.astype(states.dtype)
        return jnp.stack([x, y, heading, rate], 1), rewards, arrived | outside

    def unit(self, states: Float[Array, "*M 4"]) -> Float[Array, "*M 4"]:
        """Each coordinate on [0, 1]."""
        low, high = jnp.array(LOW, states.dtype), jnp.array(HIGH, states.dtype)
        return (states - low) / (high - low)


def squash(actions: Float[Array, " *M"]) -> Float[Array, " *M"]:
    """Desired turning rate 15 (2 / pi) arctan(pi a~ / 2), in degrees a second."""
    return HIGH[3] * 2 / jnp.pi * jnp.arctan(jnp.pi / 2 * actions)


def wrap(heading: Float[Array, " *M"]) -> Float[Array, " *M"]:
    """The same heading in [-180, 180), from less than a turn away; without rounding."""
    heading = jnp.where(heading >= 180, heading - 360, heading)
    return jnp.where(heading < -180, heading + 360, heading)


def succeeded(paths: Trajectories) -> Bool[Array, " M"]:
    """Which paths arrived."""
    return jnp.any(paths.mask & (paths.rewards > 0), 0)
