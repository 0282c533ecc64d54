"""Paths: masks, termination and reproducibility."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespg import scores
from bayespg.environments import LQR, Bandit, Environment
from bayespg.environments.trajectories import returns
from bayespg.learning.estimators import draw
from bayespg.paths.rollout import rollout
from bayespg.policies import Gaussian, LinearGaussian, score

rollout, draw, score, of_paths, of_steps = map(
    eqx.filter_jit, (rollout, draw, score, scores.of_paths, scores.of_steps)
)


class Countdown(Environment):
    """Ends after the first action above zero; a reward of 1 a step."""

    horizon: int = eqx.field(static=True, default=6)
    discount: float = eqx.field(static=True, default=1.0)

    def reset(self, key, paths):
        return jnp.zeros(paths)

    def step(self, key, states, actions):
        return states + 1, jnp.ones_like(states), actions > 0


def test_a_path_ends_where_the_environment_says():
    paths = rollout(Countdown(), Gaussian(0.0, 1.0), jax.random.key(0), 200)
    lengths = np.asarray(paths.lengths)
    ends = np.asarray(paths.actions)[lengths - 1, np.arange(200)] > 0
    np.testing.assert_array_equal(paths.terminated, ends)
    np.testing.assert_array_equal(paths.final, lengths)
    assert set(lengths) == {1, 2, 3, 4, 5, 6}
    assert np.asarray(paths.terminated)[lengths < 6].all()


def test_lqr_is_truncated_and_the_bandit_terminates():
    assert not rollout(LQR(), LinearGaussian(-0.5, 0.5), jax.random.key(0), 3).terminated.any()
    assert rollout(Bandit(jnp.sin), Gaussian(), jax.random.key(0), 3).terminated.all()


def test_the_same_key_draws_the_same_paths():
    first, again = (
        rollout(LQR(), LinearGaussian(-0.5, 0.5), jax.random.key(7), 4) for _ in range(2)
    )
    np.testing.assert_array_equal(first.actions, again.actions)


def test_final_is_the_state_after_the_last_action():
    environment = LQR(state_noise=0.0)
    paths = rollout(environment, LinearGaussian(-0.5, 0.5), jax.random.key(1), 4)
    np.testing.assert_allclose(paths.final, paths.states[-1] + paths.actions[-1], rtol=1e-6)


def test_a_path_s_score_sums_the_scores_of_steps_taken():
    policy = Gaussian(0.1, 0.9)
    paths = rollout(Countdown(), policy, jax.random.key(2), 5)
    expected = [
        sum(score(policy, jnp.zeros(()), a) for a in paths.actions[: paths.lengths[i], i])
        for i in range(5)
    ]
    np.testing.assert_allclose(of_paths(policy, paths), np.array(expected), rtol=1e-5, atol=1e-6)
    assert not np.asarray(of_steps(policy, paths))[~np.asarray(paths.mask)].any()


def test_sums_taken_on_the_way_equal_sums_over_stored_paths():
    policy = Gaussian(0.1, 0.9)
    sample = draw(Countdown(discount=0.9), policy, jax.random.key(3), 50)
    np.testing.assert_allclose(sample.scores, of_paths(policy, sample.paths), atol=1e-5)
    np.testing.assert_allclose(sample.returns, returns(sample.paths, 0.9), rtol=1e-5)
