"""Batches that say nothing, and policies that stay as they are after them."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.environments import classic
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.advance import _differ
from bayespg.learning.agents import Agent


class Forever(classic.CartPole):
    """CartPole whose episodes never end by themselves, so that all of them earn the same."""

    def step(self, key, states, actions):
        following, rewards, _ = super().step(key, states, actions)
        return following, rewards, jnp.zeros_like(rewards, bool)


@pytest.mark.parametrize("policy", ["mlp", "linear"])
def test_a_policy_stays_where_all_episodes_earn_the_same(policy):
    agent = Agent(Forever(horizon=100), policy, seed=0)
    start, persistence = agent.parameters, float(agent.state.persistence)
    row = agent.update()
    assert all(np.array_equal(start[name], x) for name, x in agent.parameters.items())
    assert row["step_norm"] == row["divergence"] == row["gradient_norm"] == 0
    assert row["sure"] == 0.5
    assert float(agent.state.confirmed) == row["confirmed"] == 1
    assert float(agent.state.persistence) == persistence


@pytest.mark.parametrize("ended", [False, True])
def test_rewards_that_depend_on_time_alone_say_nothing(ended):
    """Episodes that end together, with rewards of the same sum in the same or in another order."""
    mask = np.arange(5)[:, None] < np.array([4, 4, 4])
    paths = Trajectories(
        np.zeros((5, 3, 1)), np.zeros((5, 3), int), np.tile(np.arange(5.0)[:, None], 3), mask,
        np.full(3, ended), np.zeros((3, 1)),
    )  # fmt: skip
    assert not _differ(paths)
    shorter = mask & (np.arange(15).reshape(5, 3) != 10)
    rewards = np.where(np.arange(15).reshape(5, 3) % 7 == 1, 2.0, paths.rewards)
    for change in ({"mask": shorter}, {"rewards": rewards}):
        assert _differ(dataclasses.replace(paths, **change))
    assert not _differ(dataclasses.replace(paths, terminated=np.array([ended, ended, not ended])))
    ones = dataclasses.replace(paths, mask=shorter, rewards=np.ones((5, 3)))
    assert _differ(ones) == ended


def test_a_policy_that_lost_what_it_had_makes_steps_again():
    agent = Agent(Forever(horizon=100), "linear", seed=0)
    agent.update()
    assert float(agent.state.highest) == 100
    agent.state = eqx.tree_at(lambda s: s.highest, agent.state, np.asarray(101.0))
    assert agent.update()["step_norm"] > 0
    assert float(agent.state.highest) == 101
