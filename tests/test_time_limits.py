"""Time limits and units: what the default estimator makes of episodes that are cut off, and of the
first batch of observations."""

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg import estimators as E
from bayespg._support.random import host_key
from bayespg.agents.agent import Agent
from bayespg.environments import Environment
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.batch import draw
from bayespg.learning.regression import time_left
from bayespg.policies import as_arrays
from bayespg.policies.features import Linear
from bayespg.policies.heads import Composed, Normals


class Drift(Environment):
    """A point that is pushed along a line and drifts away: the reward is minus its distance."""

    horizon: int = eqx.field(static=True, default=100)
    discount: float = eqx.field(static=True, default=0.99)

    def reset(self, key, paths):
        x = jax.random.uniform(key, (paths, 1), minval=-1, maxval=1)
        return jnp.concatenate([x, jnp.zeros_like(x)], 1)

    def step(self, key, states, actions):
        x, v = states.T
        v = 0.97 * v + 0.1 * jnp.clip(actions[:, 0], -1, 1)
        x = x + 0.1 * v
        return jnp.stack([x, v], 1), -jnp.abs(x), jnp.zeros(len(x), bool)


@eqx.filter_jit
def gradient(policy):
    return E.BAC()(draw(Drift(), policy, host_key(0), 128)).mean


@pytest.mark.parametrize("outward", [0.0, 0.3])
def test_where_states_drift_away_the_gradient_still_points_back(outward):
    policy = Composed(Linear(2), Normals(3, 1))
    weights = np.array([[outward, 0.0, 0.0]], np.float32)
    policy = as_arrays(eqx.tree_at(lambda p: p.head.weights, policy, weights))
    with jax.enable_x64(True):
        policy = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), policy)
        assert gradient(policy)[0] < 0  # pushing away from where the point is costs reward


def test_the_time_left_is_that_before_the_longest_episode_that_was_cut_off():
    def paths(lengths, terminated):
        mask = np.arange(6)[:, None] < np.array(lengths)
        zeros = np.zeros((6, len(lengths)))
        return Trajectories(
            zeros[..., None], zeros, zeros, mask, np.array(terminated), zeros[0][:, None]
        )

    cut = time_left(paths([4, 2], [False, True]), 6, 1.0)
    assert np.allclose(cut[:, 0], [1, 0.75, 0.5, 0.25, 0, 0])
    ended = time_left(paths([4, 2], [True, True]), 6, 1.0)
    assert np.allclose(ended[:, 1], np.arange(6, 0, -1) / 6)
    discounted = time_left(paths([4, 2], [False, True]), 6, 0.5)
    assert np.allclose(discounted[:4, 0], (1 - 0.5 ** np.arange(4, 0, -1.0)) / (1 - 0.5**4))


class Large(gymnasium.Env):
    """Observations far from zero, in large units."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observation(), {}

    def observation(self):
        return (500 + 100 * self.np_random.normal(size=2)).astype(np.float32)

    def step(self, action):
        self.time += 1
        reward = float(action) * self.np_random.normal()
        return self.observation(), reward, False, self.time == 20, {}


def test_the_first_update_is_made_in_the_units_of_the_next_policy():
    """The divergence of the first step, measured in its units, is that between both policies."""
    agent = Agent(Large, "linear", "gpomdp", episodes=4, persistence=0.0, seed=0)
    paths = agent.draw()
    row = agent.update()
    states = np.asarray(paths.states)[np.asarray(paths.mask)]
    p = jax.vmap(lambda x: jax.nn.softmax(agent.state.acting.step((), x)[0].logits))(states)
    divergence = np.mean(np.sum(0.5 * np.log(0.5 / np.asarray(p)), 1))
    assert divergence == pytest.approx(row["divergence"], rel=0.5)
