"""Ship steering: the dynamics, and what ends a path."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg._support.random import fast_key
from bayespg.environments import ShipSteering, ship_steering
from bayespg.environments.trajectories import returns
from bayespg.paths.rollout import rollout
from bayespg.policies import as_dtype, ship_steering_cmac

SHIP = ShipSteering()


def after(state, action=0.0, ship=SHIP):
    """One step of one ship."""
    following, rewards, absorbing = ship.step(
        fast_key(0), jnp.array([state], float), jnp.array([action], float)
    )
    return following[0], rewards[0], absorbing[0]


def test_a_trajectory_is_that_of_a_plain_loop(x64):
    actions = np.random.default_rng(0).normal(2.0, 1.0, 300)
    x, y, heading, rate = 75.0, 75.0, 170.0, 10.0
    state, advance = jnp.array([[x, y, heading, rate]]), jax.jit(SHIP.step)
    for a in actions:
        desired = 15 * 2 / math.pi * math.atan(math.pi / 2 * a)
        x, y, heading, rate = (
            x + 0.2 * 3 * math.sin(math.radians(heading)),
            y + 0.2 * 3 * math.cos(math.radians(heading)),
            heading + 0.2 * rate,
            rate + 0.2 / 5 * (desired - rate),
        )
        if heading >= 180:
            heading -= 360
        elif heading < -180:
            heading += 360
        state, _, _ = advance(fast_key(0), state, jnp.array([a]))
        np.testing.assert_allclose(state[0], [x, y, heading, rate], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("state", "heading"),
    [
        ([50.0, 50.0, 179.0, 10.0], -179.0),
        ([50.0, 50.0, -179.0, -10.0], 179.0),
        ([50.0, 50.0, 178.0, 10.0], -180.0),
        ([50.0, 50.0, -178.0, -10.0], -180.0),
        ([50.0, 50.0, 10.0, 10.0], 12.0),
    ],
)
def test_the_heading_wraps_around(state, heading):
    assert after(state)[0][2] == heading


def test_wrapping_never_leaves_its_range_by_rounding():
    edge = np.nextafter(np.float32(-180), np.float32(-181))
    wrapped = ship_steering.wrap(jnp.array([edge, 180.0, -180.0, 359.0, -359.0], jnp.float32))
    assert np.all((wrapped >= -180) & (wrapped < 180))


@pytest.mark.parametrize(
    "state",
    [[0.1, 70, -90, 0], [149.9, 70, 90, 0], [70, 0.1, -180, 0], [70, 149.9, 0, 0]],
)
def test_leaving_the_square_ends_a_path_without_reward(state):
    _, reward, absorbing = after(state)
    assert absorbing
    assert reward == 0


def test_arrival_pays_one_and_ends_a_path():
    # To the north of (100, 89.9) is (100, 90.5); of (100, 89.3), (100, 89.9).
    _, reward, absorbing = after([100, 89.9, 0, 0])
    assert absorbing
    assert reward == 1
    _, reward, absorbing = after([100, 89.3, 0, 0])
    assert not absorbing
    assert reward == 0
    assert after([100, 89.3, 0, 0], ship=ShipSteering(goal_radius=11.0))[1] == 1


def test_the_desired_rate_stays_within_15_degrees(x64):
    a = jnp.array([-1e6, -3.0, -0.1, 0.0, 0.1, 3.0, 1e6])
    rates = ship_steering.squash(a)
    assert np.all(np.abs(rates) < 15)
    assert np.all(np.diff(rates) > 0)
    np.testing.assert_allclose(rates[-1], 15, rtol=1e-5)
    np.testing.assert_allclose(ship_steering.squash(jnp.array([1e-6])), 15e-6, rtol=1e-9)


def test_starts_have_random_heading_and_turning_rate():
    states = SHIP.reset(fast_key(1), 20_000)
    np.testing.assert_array_equal(states[:, :2], 40.0)
    unit = SHIP.unit(states)
    assert np.all((unit >= 0) & (unit <= 1))
    np.testing.assert_allclose(unit[:, 2:].mean(0), 0.5, atol=0.009)
    np.testing.assert_allclose(unit[:, 2:].var(0), 1 / 12, atol=0.0024)


def test_unit_maps_bounds_to_zero_and_one(x64):
    bounds = jnp.array([[0, 0, -180, -15], [150, 150, 180, 15], [75, 75, 0, 0]], float)
    np.testing.assert_allclose(SHIP.unit(bounds), np.array([[0], [1], [0.5]]) * np.ones(4))


@pytest.mark.slow
def test_success_is_a_reward_collected():
    paths = jax.jit(lambda key: rollout(SHIP, ship_steering_cmac(), key, 1000))(fast_key(2))
    success = np.asarray(ship_steering.succeeded(paths))
    distance = np.linalg.norm(np.asarray(paths.final)[:, :2] - 100, axis=1)
    np.testing.assert_array_equal(success, distance <= 10)
    np.testing.assert_array_equal(returns(paths), success)
    assert not np.any(success & ~np.asarray(paths.terminated))
    # A fresh policy succeeds in 3 to 4 per cent; the standard error is 0.6.
    assert 0.015 < success.mean() < 0.06


def test_paths_in_single_precision_stay_in_it_when_double_is_on(x64):
    policy = as_dtype(ship_steering_cmac(), jnp.float32)
    paths = jax.eval_shape(lambda key: rollout(SHIP, policy, key, 5), fast_key(0))
    assert paths.rewards.dtype == paths.states.dtype == jnp.float32
