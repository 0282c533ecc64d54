"""Classic control in JAX against Gymnasium: the same state and action, the same step."""

from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayespg
from bayespg._support.random import fast_key
from bayespg.environments import classic, observe, spaces
from bayespg.environments.classic import InBounds
from bayespg.paths.rollout import rollout
from bayespg.paths.worlds import world
from bayespg.policies.features import Linear
from bayespg.policies.heads import Choice, Composed, Normals

STATES = {
    "CartPole-v1": ([2.6, 3, 0.25, 3], []),
    "Acrobot-v1": ([np.pi, np.pi, 4 * np.pi, 9 * np.pi], []),
    "Pendulum-v1": ([30, 8], []),
    # The walls, from both sides and at rest; beyond the goal in both directions.
    "MountainCar-v0": (
        [1.0, 0.07],
        [[-1.19, -0.06], [-1.2, 0], [0.59, 0.06], [0.499, 0.01], [0.55, -0.03]],
    ),
    "MountainCarContinuous-v0": (
        [1.0, 0.07],
        [[-1.19, -0.06], [-1.2, 0], [0.59, 0.06], [0.449, 0.01], [0.5, -0.03]],
    ),
}
"""Bounds of the states that are tried, and some special ones."""


@pytest.fixture(params=classic.NAMES)
def name(request):
    return request.param


def drawn(name, count, dtype):
    """States and actions all over, outside of the bounds as well."""
    rng = np.random.default_rng(0)
    bound, special = STATES[name]
    states = np.array([*special, *rng.uniform(-1, 1, (count - len(special), len(bound))) * bound])
    environment = classic.NAMES[name]()
    if isinstance(environment, classic.Discrete):
        actions = rng.integers(environment.choices, size=count).astype(np.int32)
    else:
        actions = rng.uniform(-1.5 * environment.limit, 1.5 * environment.limit, (count, 1))
        actions = actions.astype(np.float32).astype(dtype)  # the same in both precisions
    return environment, states.astype(dtype), actions


def gymnasium_steps(name, states, actions):
    """State, observation, reward and end of a step from each state, in float64."""
    task: Any = gymnasium.make(name).unwrapped
    for state, action in zip(states, actions, strict=True):
        task.reset()
        task.state = state.astype(np.float64)
        seen, reward, terminated, truncated, _ = task.step(action)
        assert not truncated
        yield np.array(task.state), seen, reward, terminated


@pytest.mark.slow("Acrobot-v1-float64", "Pendulum-v1-float64", "CartPole-v1-float64")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_step_is_gymnasium_s(name, dtype):
    """Errors are relative to the largest value of a component. Gymnasium rounds observations, and
    the states of MountainCarContinuous, to float32; a Runge-Kutta step of a fast acrobot amplifies
    the rounding of float32 a hundred times."""
    environment, states, actions = drawn(name, 300, dtype)
    tolerance = 1e-12 if dtype == np.float64 else 1e-4 if name == "Acrobot-v1" else 2e-6
    with jax.enable_x64(dtype == np.float64):
        step = jax.jit(environment.step)
        following, rewards, ends = step(fast_key(0), jnp.array(states), jnp.array(actions))
        seen = observe(environment, following)
        assert following.dtype == rewards.dtype == seen.dtype == dtype
        found = [np.asarray(x) for x in (following, seen, rewards)]
    *expected, terminated = map(np.array, zip(*gymnasium_steps(name, states, actions), strict=True))
    for ours, theirs in zip(found, expected, strict=True):
        error = np.abs(ours - theirs) / np.abs(theirs).max(0)
        assert error.max() <= tolerance + np.finfo(theirs.dtype).eps
    np.testing.assert_array_equal(ends, terminated)
    if name != "Pendulum-v1":
        assert 0 < terminated.mean() < 1


def test_an_action_may_be_a_number_or_a_vector_of_one():
    environment, states, actions = drawn("Pendulum-v1", 10, np.float32)
    vectors, numbers = (environment.step(fast_key(0), states, a) for a in (actions, actions[:, 0]))
    for one, other in zip(vectors, numbers, strict=True):
        np.testing.assert_array_equal(one, other)


def test_angles_of_the_acrobot_are_wrapped_as_often_as_needed(x64):
    angles = jnp.array([0.5, np.pi, -np.pi, 4.0, -4.0, 10.0, -16.0])
    expected = [0.5, np.pi, -np.pi, 4 - 2 * np.pi, 2 * np.pi - 4, 10 - 4 * np.pi, 6 * np.pi - 16]
    np.testing.assert_allclose(classic._wrapped_angle(angles), expected, rtol=0, atol=1e-14)


def test_starts_are_distributed_as_gymnasium_s(name):
    environment = classic.NAMES[name]()
    starts = np.asarray(environment.reset(fast_key(0), 4000))
    task: Any = gymnasium.make(name).unwrapped
    task.reset(seed=0)
    theirs = []
    for _ in range(4000):
        task.reset()
        theirs.append(task.state)
    theirs = np.array(theirs)
    half = np.abs(theirs - theirs.mean(0)).max(0)  # of the range of uniform numbers
    np.testing.assert_allclose(starts.min(0), theirs.min(0), atol=4e-3 * half.max())
    np.testing.assert_allclose(starts.max(0), theirs.max(0), atol=4e-3 * half.max())
    # Standard errors of the difference, in units of half the range: sqrt(2/3 / 4000) = 0.013 of
    # the mean, sqrt(2 * 4/45 / 4000) = 0.0067 of the variance; those of products are at most 0.008.
    assert np.all(np.abs(starts.mean(0) - theirs.mean(0)) <= 4.5 * 0.013 * half)
    off = np.abs(np.cov(starts.T) - np.cov(theirs.T))
    assert np.all(off <= 4.5 * 0.008 * np.outer(half, half))


def linear(weights, scale=None):
    """A softmax policy of these rows, or a Gaussian one of this row, in (observation, 1)."""
    weights = jnp.array(weights, jnp.float32)
    count, features = weights.shape
    head = Choice(features, (count,), True) if scale is None else Normals(features, 1, scale)
    head = eqx.tree_at(lambda h: h.weights, head, weights)
    return Composed(Linear(features - 1), head)


POLICIES = {
    "CartPole-v1": linear([[0] * 5, [0, 0.5, 6, 1, 0]]),
    "Acrobot-v1": linear([[0, 0, 0, 0, 0, -1, 0], [0] * 7, [0, 0, 0, 0, 0, 1, 0]]),
    "Pendulum-v1": linear([[0, -2, -0.5, 0]], 0.5),
    "MountainCar-v0": linear([[0, -100, 0], [0] * 3, [0, 100, 0]]),
    "MountainCarContinuous-v0": linear([[0, 15, 0]], 0.5),
}
"""Gaussian draws are in units of the limit."""


def outcomes(paths):
    """Return, length and whether it terminated, of each path."""
    mask = np.asarray(paths.mask)
    rewards = np.where(mask, paths.rewards, 0.0)
    return np.stack([rewards.sum(0), mask.sum(0), np.asarray(paths.terminated)], 1)


@pytest.mark.slow("Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")
@pytest.mark.slow
def test_a_policy_earns_what_it_earns_in_gymnasium(name):
    policy, count = POLICIES[name], 40
    host = world(name, lanes=count)
    theirs = outcomes(host.play(policy, jax.random.key(0), list(range(count))))
    device = world(classic.NAMES[name]())
    ours = outcomes(device.play(policy, jax.random.key(1), list(range(1000))))
    error = np.sqrt(ours.var(0) / len(ours) + theirs.var(0) / len(theirs))
    assert np.all(np.abs(ours.mean(0) - theirs.mean(0)) <= 4 * error)


STILL = {
    "CartPole-v1": linear([[0] * 5, [1, 3, 60, 15, 0]]),
    "Acrobot-v1": linear([[0] * 7, [0] * 6 + [50], [0] * 7]),
}
"""Policies that balance and that leave the joint alone; elsewhere one without preferences does."""


@pytest.mark.slow("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
def test_paths_are_cut_off_at_gymnasium_s_time_limit(name):
    environment, limit = classic.NAMES[name](), gymnasium.spec(name).max_episode_steps
    policy = STILL.get(name) or jax.tree.map(jnp.zeros_like, POLICIES[name])
    paths = jax.jit(lambda key: rollout(environment, policy, key, 3))(fast_key(0))
    assert environment.horizon == limit
    np.testing.assert_array_equal(paths.lengths, limit)
    assert not np.any(paths.terminated)


@pytest.mark.parametrize("kind", [classic.Pendulum, classic.MountainCarContinuous])
def test_draws_are_brought_into_bounds_as_for_gymnasium(kind):
    draws, limit = np.linspace(-2, 2, 9, dtype=np.float32)[:, None], kind.limit
    box = spaces.actions(gymnasium.spaces.Box(-limit, limit, (1,)))
    told = InBounds(kind()).within(draws)
    np.testing.assert_allclose(told, box.decode(draws), rtol=1e-6)


@pytest.mark.slow("Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0")
def test_an_agent_draws_the_same_by_name_and_by_object(name):
    asked = (f"jax/{name}", classic.NAMES[name]())
    ours, others = (bayespg.Agent(e, episodes=2, seed=3).draw() for e in asked)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(others), strict=True):
        np.testing.assert_array_equal(one, other)
    theirs = gymnasium.make(name)
    assert ours.states.shape[2:] == theirs.observation_space.shape
    assert ours.actions.shape[2:] == theirs.action_space.shape


@pytest.mark.slow
def test_an_agent_changes_its_policy_and_acts_within_bounds():
    agent = bayespg.Agent("jax/Pendulum-v1", episodes=2, normalise=True, seed=0)
    row = agent.update()
    assert row["sound"] == 1
    assert row["step_norm"] > 0
    action = agent.predict(np.full(agent.world.observation.shape, 0.1), deterministic=False)
    assert gymnasium.make("Pendulum-v1").action_space.contains(action)


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_steps_and_time_limits_are_those_of_gymnax(name):
    """Where gymnax is installed: the benchmarks beside PureJaxRL and rejax depend on it. States
    beyond the end of CartPole are left out, where gymnax gives no reward."""
    gymnax = pytest.importorskip("gymnax")
    theirs, params = gymnax.make(name)
    environment, states, actions = drawn(name, 50, np.float32)
    if name == "CartPole-v1":
        states = states * np.array([0.5, 1, 0.5, 1], np.float32)
    if name == "Pendulum-v1":  # where gymnax keeps angles in one turn
        states = states * np.array([0.1, 1], np.float32)
    assert environment.horizon == params.max_steps_in_episode
    found, rewards, ends = environment.step(jax.random.key(0), states, jnp.asarray(actions))
    _, like = theirs.reset(jax.random.key(0), params)
    fields = [f for f in like.__dataclass_fields__ if f != "time"][: states.shape[1]]
    for k, state in enumerate(states):
        begun = like.replace(**dict(zip(fields, state, strict=True)))
        seen, _, reward, ended, *_ = theirs.step_env(
            jax.random.key(0), begun, jnp.asarray(actions[k]), params
        )
        ours = observe(environment, found)[k]
        np.testing.assert_allclose(ours, np.ravel(seen), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(rewards[k], np.ravel(reward)[0], rtol=1e-4, atol=1e-4)
        assert bool(ends[k]) == bool(ended)
