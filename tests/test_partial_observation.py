"""What the policy sees: noise, windows of the past and the T-maze, with their exact answers."""

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import partial_observation
import pytest

from bayespg._support.precision import to_float64
from bayespg._support.random import fast_key
from bayespg.environments import LQR, History, MountainCar, Noisy, TMaze, lqr
from bayespg.environments.trajectories import returns
from bayespg.learning.estimators import Model2
from bayespg.learning.training import train
from bayespg.learning.updates import natural
from bayespg.paths.rollout import rollout
from bayespg.policies import FiniteStateController, LinearGaussian, VectorGaussian

POLICY = VectorGaussian(np.array([0.1, -0.2, -0.3]), 0.4)


def test_the_policy_sees_the_state_and_noise_of_the_given_scale():
    still = LQR(state_noise=0.0, initial_variance=0.0)
    paths = rollout(Noisy(still, 0.5), LinearGaussian(0.0, 1e-6), fast_key(0), 1_000)
    seen = np.asarray(paths.states)
    # 20,000 numbers: standard errors are 0.5 / sqrt(20000) and 0.5 / sqrt(40000).
    assert abs(seen.mean() - 0.3) < 4 * 0.0035
    assert abs(seen.std() - 0.5) < 4 * 0.0025
    np.testing.assert_allclose(paths.rewards, -(0.3**2), rtol=1e-3)


def test_noise_of_scale_zero_shows_the_state():
    paths = rollout(Noisy(LQR(), 0.0), LinearGaussian(-0.5, 0.1), fast_key(1), 5)
    cost = np.asarray(paths.states) ** 2 + 0.1 * np.asarray(paths.actions) ** 2
    np.testing.assert_allclose(paths.rewards, -cost, rtol=1e-5, atol=1e-6)


def test_a_window_stacks_the_last_observations_on_zeros():
    paths = rollout(History(Noisy(LQR(), 0.3), 3), POLICY, fast_key(0), 4)
    newest = np.asarray(paths.states)[:, :, -1]
    assert paths.states.shape == (20, 4, 3)
    for t, i in itertools.product(range(20), range(4)):
        seen = [newest[s, i] if s >= 0 else 0.0 for s in (t - 2, t - 1, t)]
        np.testing.assert_array_equal(paths.states[t, i], seen)
    np.testing.assert_array_equal(paths.final[:, :-1], newest[-2:].T)


def test_a_window_may_hold_the_action_that_led_to_each_observation():
    policy = VectorGaussian(np.zeros(4), 1.0)
    paths = rollout(History(LQR(), 2, actions=1), policy, fast_key(0), 4)
    assert paths.states.shape == (20, 4, 2, 2)
    np.testing.assert_array_equal(paths.states[0, :, :, 1], 0.0)
    np.testing.assert_array_equal(paths.states[1:, :, 1, 1], paths.actions[:-1])


def test_a_window_of_one_changes_nothing():
    alone = rollout(LQR(), LinearGaussian(-0.4, 0.3), fast_key(5), 6)
    gain = VectorGaussian(np.array([-0.4]), 0.3)
    windowed = rollout(History(LQR(), 1), gain, fast_key(5), 6)
    np.testing.assert_allclose(windowed.states[..., 0], alone.states, atol=1e-6)


def test_a_window_of_none_is_refused():
    with pytest.raises(ValueError, match="k = 0"):
        History(LQR(), 0)


class Replay(gymnasium.Env):
    """Shows given observations, one after the other."""

    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, observations):
        self.observations = observations
        self.observation_space = gymnasium.spaces.Box(-10, 10, observations.shape[1:], np.float32)

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.observations[0], {}

    def step(self, action):
        self.at += 1
        return self.observations[self.at], 0.0, False, False, {}


def test_gymnasium_s_frame_stack_shows_the_same_windows():
    policy = FiniteStateController(np.zeros((1, 3, 8), np.float32), np.zeros((1, 1, 8), np.float32))
    paths = rollout(History(MountainCar(horizon=9), 4), policy, fast_key(0), 1)
    windows = np.concatenate([paths.states[:, 0], paths.final])
    task = gymnasium.wrappers.FrameStackObservation(Replay(windows[:, -1]), 4, padding_type="zero")
    np.testing.assert_array_equal(task.reset()[0], windows[0])
    for window in windows[1:]:
        np.testing.assert_array_equal(task.step(0)[0], window)


@pytest.mark.slow
def test_the_exact_return_over_a_window_is_that_of_paths_drawn(x64):
    environment = LQR(offset=0.05, state_gain=0.9, discount=0.95, action_cost=0.5)
    policy = to_float64(POLICY)
    paths = rollout(History(Noisy(environment, 0.3), 3), policy, fast_key(0), 20_000)
    R = np.asarray(returns(paths, 0.95))
    exact = lqr.return_over_history(environment, 0.3, policy)
    assert abs(R.mean() - exact) < 4 * R.std() / np.sqrt(R.size)


def test_the_exact_return_over_a_window_of_one_without_noise_is_that_of_lqr(x64):
    policy = VectorGaussian(np.array([-0.4]), 0.6)
    exact = LQR().expected_return(LinearGaussian(jnp.asarray(-0.4), jnp.asarray(0.6)))
    np.testing.assert_allclose(lqr.return_over_history(LQR(), 0.0, policy), exact, rtol=1e-12)


@pytest.mark.slow
def test_a_window_is_worth_little_where_control_is_cheap_and_much_where_it_is_dear(x64):
    """At action cost 0.1 the best control cancels the state at once, and the past is of no use."""
    best, dear = partial_observation.best_cost, partial_observation.PLAIN
    assert best(4, dear, 0.5) < 0.92 * best(1, dear, 0.5)
    assert 0.998 * best(1, LQR(), 0.5) < best(4, LQR(), 0.5) < best(1, LQR(), 0.5)


def table(actions):
    """The memoryless controller with these probabilities of actions for each observation."""
    logits = jnp.log(jnp.asarray(actions) + 1e-12).T[None]
    return FiniteStateController(logits, jnp.zeros((1, 1, 4)))


def test_no_memoryless_policy_earns_more_than_half_in_the_t_maze(x64):
    maze = TMaze(length=2, horizon=6)
    value = jax.jit(maze.memoryless_return)
    certain = [value(np.eye(3)[list(a)]) for a in itertools.product(range(3), repeat=4)]
    assert len(certain) == 81
    assert max(certain) == 0.5
    chances = np.random.default_rng(0).dirichlet(np.full(3, 0.3), (2_000, 4))
    assert np.max(jax.vmap(value)(chances)) <= 0.5


@pytest.mark.slow
def test_the_exact_memoryless_return_is_that_of_paths_drawn(x64):
    maze = TMaze(length=2, horizon=6, discount=0.9)
    actions = np.random.default_rng(1).dirichlet(np.ones(3), 4)
    R = np.asarray(returns(rollout(maze, table(actions), fast_key(0), 20_000), 0.9))
    assert abs(R.mean() - maze.memoryless_return(actions)) < 4 * R.std() / np.sqrt(R.size)


def test_a_controller_that_remembers_the_cue_earns_everything():
    """Memory 1 once the cue was on the right; forward until the junction, then to its side."""
    sure = 50.0
    actions = np.zeros((2, 3, 4), np.float32)
    actions[:, 0, :3] = sure
    actions[0, 1, 3] = actions[1, 2, 3] = sure
    transitions = np.zeros((2, 2, 4), np.float32)
    transitions[:, 1, 1] = transitions[:, 0, 0] = sure
    transitions[0, 0, 2:] = transitions[1, 1, 2:] = sure
    paths = rollout(TMaze(), FiniteStateController(actions, transitions), fast_key(0), 200)
    assert returns(paths).min() == 1
    assert np.all(paths.lengths == 4)
    assert paths.terminated.all()


@pytest.mark.slow
def test_bpg_learns_from_a_window_of_noisy_observations():
    start = VectorGaussian(np.zeros((4, 3)), np.full(4, 0.3))
    environment = LQR()
    result = train(
        History(Noisy(environment, 0.3), 3), start, Model2(baseline=float("inf")),
        natural(0.1), key=fast_key(0), updates=30, paths=20, runs=4,
    )  # fmt: skip
    with jax.enable_x64(True):
        value = jax.vmap(lambda p: lqr.return_over_history(environment, 0.3, p))
        before, after = value(start), value(result.policy)
    assert np.all(after > before + 0.5)
