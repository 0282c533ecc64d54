import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.trajectories import Trajectories, discounted_tails, returns, returns_to_go

LENGTHS = np.array([4, 2, 1])


@pytest.fixture
def paths() -> Trajectories:
    """Three paths of four, two and one steps, with rubbish in the padding."""
    rng = np.random.default_rng(0)
    mask = np.arange(4) < LENGTHS[:, None]
    rewards = np.where(mask, rng.normal(size=(3, 4)), 1e9)
    states = rng.normal(size=(3, 4, 2))
    return Trajectories(
        jnp.asarray(states), jnp.asarray(rng.normal(size=(3, 4))), jnp.asarray(rewards),
        jnp.asarray(mask), jnp.array([True, False, True]), jnp.asarray(states[:, 0]),
    )  # fmt: skip


def tail(rewards, t: int, discount: float) -> float:
    return sum(discount ** (s - t) * rewards[s] for s in range(t, len(rewards)))


def test_lengths_count_the_steps_taken(paths):
    np.testing.assert_array_equal(paths.lengths, LENGTHS)


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_the_return_is_the_discounted_sum_of_rewards_taken(paths, discount):
    expected = [tail(r[:T], 0, discount) for r, T in zip(paths.rewards, LENGTHS, strict=True)]
    np.testing.assert_allclose(returns(paths, discount), expected, rtol=1e-5)


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_returns_to_go_are_tails_and_zero_in_the_padding(paths, discount):
    expected = np.zeros((3, 4))
    for i, T in enumerate(LENGTHS):
        expected[i, :T] = [tail(paths.rewards[i, :T], t, discount) for t in range(T)]
    np.testing.assert_allclose(returns_to_go(paths, discount), expected, rtol=1e-5, atol=1e-6)


def test_the_first_return_to_go_is_the_return(paths):
    np.testing.assert_allclose(returns_to_go(paths, 0.9)[:, 0], returns(paths, 0.9), rtol=1e-6)


def test_tails_obey_their_recursion():
    rewards = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)))
    tails = discounted_tails(rewards, 0.8)
    np.testing.assert_allclose(tails[:, :-1], rewards[:, :-1] + 0.8 * tails[:, 1:], rtol=1e-5)
    np.testing.assert_allclose(tails[:, -1], rewards[:, -1], rtol=1e-6)
