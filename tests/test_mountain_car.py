"""The mountain car, step by step."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support.random import fast_key
from bayespg.environments import MountainCar
from bayespg.environments.trajectories import returns
from bayespg.paths.rollout import rollout
from bayespg.policies import as_dtype, mountain_car_softmax

CAR = MountainCar()


def bound(value, low, high):
    return min(max(value, low), high)


def step(x, v, action):
    a = (1, -1, 0)[action]
    v = bound(v + 0.001 * a - 0.0025 * math.cos(3 * x), -0.07, 0.07)
    x = bound(x + v, -1.2, 0.5)
    return x, 0.0 if x == -1.2 else v, x == 0.5


def test_steps_are_those_of_the_paper(x64):
    states = CAR.reset(fast_key(0), 500)
    # Some from the edges, where both bounds act.
    edges = jnp.array([[-1.19, -0.07], [-1.2, 0.0], [0.49, 0.07], [0.45, 0.0699], [-0.5, 0.07]])
    states = jnp.concatenate([states, edges])
    actions = jax.random.randint(fast_key(1), (505,), 0, 3, jnp.int32)
    following, rewards, absorbing = CAR.step(fast_key(2), states, actions)
    plain = zip(states.tolist(), actions.tolist(), strict=True)
    expected = [step(*state, action) for state, action in plain]
    np.testing.assert_allclose(following, [e[:2] for e in expected], rtol=0, atol=1e-15)
    np.testing.assert_array_equal(absorbing, [e[2] for e in expected])
    np.testing.assert_array_equal(rewards, -1.0)


def test_the_left_wall_stops_the_car():
    following, _, absorbing = CAR.step(
        fast_key(0), jnp.array([[-1.19, -0.06]]), jnp.array([1], jnp.int32)
    )
    np.testing.assert_array_equal(following, np.array([[-1.2, 0.0]], np.float32))
    assert not absorbing[0]


def test_the_right_boundary_is_the_goal():
    following, rewards, absorbing = CAR.step(
        fast_key(0), jnp.array([[0.48, 0.05]]), jnp.array([0], jnp.int32)
    )
    assert absorbing[0]
    assert following[0, 0] == 0.5
    assert rewards[0] == -1


def test_starts_are_uniform_over_position_and_velocity():
    unit = CAR.unit(CAR.reset(fast_key(4), 20_000))
    assert np.all((unit >= 0) & (unit <= 1))
    # Mean 1/2, variance 1/12; their standard errors are 0.0020 and 0.0005.
    np.testing.assert_allclose(unit.mean(0), 0.5, atol=0.009)
    np.testing.assert_allclose(unit.var(0), 1 / 12, atol=0.0024)


def test_unit_maps_the_corners_to_the_corners(x64):
    corners = jnp.array([[-1.2, -0.07], [0.5, 0.07], [-0.35, 0.0]])
    np.testing.assert_allclose(CAR.unit(corners), [[0, 0], [1, 1], [0.5, 0.5]], atol=1e-15)


def test_paths_end_at_the_goal_or_are_cut_off_at_200_steps():
    paths = jax.jit(lambda key: rollout(CAR, mountain_car_softmax(), key, 200))(fast_key(5))
    ended, lengths = np.asarray(paths.terminated), np.asarray(paths.lengths)
    assert ended.any()
    assert (~ended).any()
    assert np.all(lengths[~ended] == 200)
    assert np.all((paths.final[:, 0] >= 0.5) == ended)
    np.testing.assert_array_equal(returns(paths), -lengths)


def test_paths_in_single_precision_stay_in_it_when_double_is_on(x64):
    policy = as_dtype(mountain_car_softmax(), jnp.float32)
    paths = jax.eval_shape(lambda key: rollout(CAR, policy, key, 5), fast_key(0))
    assert paths.rewards.dtype == paths.states.dtype == jnp.float32
