"""The CMAC: one tile of each tiling, and scores that are zero elsewhere."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from bayespg._support.random import fast_key
from bayespg.policies import (
    CMAC,
    information_root,
    score,
    ship_steering_cmac,
    sparse_information_root,
    sparse_score,
)

SHIP = ship_steering_cmac()
ACTIVE = jax.jit(jax.vmap(SHIP.active))
BORDERS = np.array(np.meshgrid([-1.0, 0, 75, 150, 151], [0, 150], [-180, 0, 180], [-15, 0, 15]))


def small():
    weights = jax.random.normal(fast_key(0), (3 * 32,))
    return CMAC(weights, tiles=(2, 2, 4, 2), tilings=3)


def naive(state):
    """Tile by tile, in plain Python."""
    low, high, tiles = (0, 0, -180, -15), (150, 150, 180, 15), (5, 5, 36, 5)
    found = []
    for j in range(9):
        index = j
        for d in range(4):
            shift = j * (1, 2, 4, 7)[d] % 9 / 9
            tile = int(np.floor((state[d] - low[d]) / (high[d] - low[d]) * tiles[d] + shift))
            tile = tile % tiles[d] if d == 2 else min(max(tile, 0), tiles[d] - 1)
            index = index * tiles[d] + tile
        found.append(index)
    return found


def states(count, spread=1.0):
    """Drawn over the square, and beyond it where `spread` exceeds one."""
    centre, half = jnp.array([75.0, 75.0, 0.0, 0.0]), jnp.array([75.0, 75.0, 180.0, 15.0])
    return centre + spread * half * jax.random.uniform(fast_key(1), (count, 4), minval=-1)


def test_the_ship_s_policy_has_40500_weights_at_zero():
    assert SHIP.weights.shape == (40_500,)
    assert not SHIP.weights.any()
    assert ship_steering_cmac(runs=3).weights.shape == (3, 40_500)


def test_every_state_has_one_tile_of_each_tiling():
    everywhere = jnp.concatenate([states(2000, spread=1.3), jnp.array(BORDERS).reshape(4, -1).T])
    active = np.asarray(ACTIVE(everywhere))
    assert active.shape == (len(everywhere), 9)
    np.testing.assert_array_equal(active // 4500, np.broadcast_to(np.arange(9), active.shape))


def test_active_tiles_are_those_of_a_plain_loop(x64):
    x = states(300, spread=1.2)
    np.testing.assert_array_equal(jax.vmap(SHIP.active)(x), [naive(row) for row in np.asarray(x)])


@pytest.mark.slow
def test_every_weight_is_used_by_some_state():
    """No tile lies wholly outside the bounds: the first ones are cut, the last ones extended."""
    policy = small()
    active = jax.vmap(policy.active)(states(20_000))
    np.testing.assert_array_equal(np.unique(active), np.arange(96))


def test_neighbours_share_most_tiles_and_distant_states_none():
    here = jnp.array([[70.0, 70.0, 25.0, 2.0]])
    same, near, far = (
        np.sum(ACTIVE(here) == ACTIVE(here + jnp.array([delta])))
        for delta in ([0.0, 0, 0, 0], [1.0, 1.0, 0.3, 0.2], [40.0, 0, 0, 0])
    )
    assert same == 9
    assert 5 <= near <= 9
    assert far == 0


def test_headings_of_plus_and_minus_180_degrees_are_one():
    x = states(50)
    np.testing.assert_array_equal(ACTIVE(x.at[:, 2].set(180.0)), ACTIVE(x.at[:, 2].set(-180.0)))


def test_the_mean_action_is_the_average_of_the_active_weights():
    policy, x = small(), states(1)[0]
    np.testing.assert_allclose(
        policy(x).mean, np.asarray(policy.weights)[np.asarray(policy.active(x))].mean(), rtol=1e-6
    )


@given(seed=st.integers(0, 1000), action=st.floats(-3, 3))
def test_sparse_and_dense_scores_and_information_agree(seed, action):
    policy, x = small(), states(1001)[seed]
    action = jnp.asarray(action, jnp.float32)
    dense = np.zeros(96)
    active, u = sparse_score(policy, x, action)
    dense[np.asarray(active)] = u
    np.testing.assert_allclose(score(policy, x, action), dense, rtol=1e-5, atol=1e-7)
    root = np.zeros((1, 96))
    active, A = sparse_information_root(policy, x)
    root[:, np.asarray(active)] = A
    np.testing.assert_allclose(information_root(policy, x), root, rtol=1e-5)


def test_weights_of_another_number_are_refused():
    with pytest.raises(ValueError, match=r"^weights: 9 tilings of .* need 40500 entries, found 10"):
        CMAC(jnp.zeros(10))


def test_means_keep_the_precision_of_the_weights(x64):
    policy = CMAC(jnp.zeros(40_500, jnp.float32))
    state = jax.ShapeDtypeStruct((4,), jnp.float32)
    assert jax.eval_shape(policy, state).mean.dtype == jnp.float32
    assert jax.eval_shape(policy.active, state).dtype == jnp.int32
