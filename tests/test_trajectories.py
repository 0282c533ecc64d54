import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.environments.trajectories import Trajectories, discounted_tails, returns, returns_to_go

LENGTHS = np.array([4, 2, 1])


@pytest.fixture
def paths() -> Trajectories:
    """Three paths of four, two and one steps, time first, with rubbish in the padding."""
    rng = np.random.default_rng(0)
    mask = np.arange(4)[:, None] < LENGTHS
    states = jnp.asarray(rng.normal(size=(4, 3, 2)))
    return Trajectories(
        states=states,
        actions=jnp.asarray(rng.normal(size=(4, 3))),
        rewards=jnp.asarray(np.where(mask, rng.normal(size=(4, 3)), 1e9)),
        mask=jnp.asarray(mask),
        terminated=jnp.array([True, False, True]),
        final=states[0],
    )


def tail(rewards, t: int, discount: float) -> float:
    return sum(discount ** (s - t) * rewards[s] for s in range(t, len(rewards)))


def test_lengths_count_the_steps_taken(paths):
    np.testing.assert_array_equal(paths.lengths, LENGTHS)


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_the_return_is_the_discounted_sum_of_rewards_taken(paths, discount):
    expected = [tail(paths.rewards[:T, i], 0, discount) for i, T in enumerate(LENGTHS)]
    np.testing.assert_allclose(returns(paths, discount), expected, rtol=1e-5)


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_returns_to_go_are_tails_and_zero_in_the_padding(paths, discount):
    expected = np.zeros((4, 3))
    for i, T in enumerate(LENGTHS):
        expected[:T, i] = [tail(paths.rewards[:T, i], t, discount) for t in range(T)]
    np.testing.assert_allclose(returns_to_go(paths, discount), expected, rtol=1e-5, atol=1e-6)


def test_the_first_return_to_go_is_the_return(paths):
    np.testing.assert_allclose(returns_to_go(paths, 0.9)[0], returns(paths, 0.9), rtol=1e-6)


def test_tails_obey_their_recursion():
    rewards = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)))
    tails = discounted_tails(rewards, 0.8)
    np.testing.assert_allclose(tails[:-1], rewards[:-1] + 0.8 * tails[1:], rtol=1e-5)
    np.testing.assert_allclose(tails[-1], rewards[-1], rtol=1e-6)
