"""The agreement of episodes and what follows from it; batches that say nothing about actions."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.agents.agent import Agent
from bayespg.environments import classic
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import trust
from bayespg.learning.batch import lambda_by_episodes
from bayespg.paths.persistence import informed
from bayespg.posterior import no_weights


def trusting(rho, pairs=1.0):
    return trust.Trust(jnp.asarray(rho * pairs), jnp.asarray(pairs), no_weights(jnp.float32))


def after(*grams, rho=1.0, pairs=1.0):
    """Trust after updates with these inner products."""
    trusted = trusting(rho, pairs)
    for K in grams:
        trusted = trusted.observe(K)
    return trusted


def test_contributions_that_agree_are_trusted_and_noise_is_not():
    assert after(np.ones((3, 3))).rho == pytest.approx(1)
    left = trust.MEMORY**100
    every = 3 * (1 - left) / (1 - trust.MEMORY)  # three pairs per update
    assert after(*[np.eye(3)] * 100).rho == pytest.approx(left / (left + every), rel=1e-4)
    opposed = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert after(opposed).rho == pytest.approx((trust.MEMORY - 1) / (trust.MEMORY + 1))


def test_every_pair_of_episodes_counts_once():
    assert after(np.eye(2), pairs=10.0).rho == pytest.approx(9.5 / 10.5)
    assert after(np.eye(16), pairs=10.0).rho == pytest.approx(9.5 / 129.5)


def test_the_agreement_of_one_episode_does_not_depend_on_their_number():
    """h_i = g + noise: the ratio of the means of pairs and of squares is that of g^2 to all."""
    rng = np.random.default_rng(0)
    for M in (2, 4, 16):
        h = 1 + rng.normal(size=(40_000, M, 1)) * 2
        K = np.mean(h @ h.swapaxes(1, 2), 0)
        rho = after(K, rho=0.0, pairs=1e-6).rho
        assert rho == pytest.approx(1 / 5, abs=0.02)  # its standard error is at most 0.005
        share = trusting(0.2).share(M)
        assert share == pytest.approx(M / (M + 4))


@pytest.mark.parametrize("K", [None, np.ones((1, 1)), np.zeros((2, 2)), np.full((2, 2), np.nan)])
def test_what_says_nothing_of_agreement_leaves_it(K):
    assert after(K, rho=0.3).rho == pytest.approx(0.3)


def test_rewards_that_say_nothing_leave_it():
    assert trusting(0.3).observe(np.eye(2), informed=jnp.asarray(False)).rho == pytest.approx(0.3)


def test_fewer_agreeing_episodes_shorten_steps_and_ask_for_more_episodes():
    levels = [trusting(rho) for rho in (1.0, 0.05, 0.01, 0.0, -0.3)]
    assert [one.episodes() for one in levels] == [2, 4, 8, 16, 16]
    lengths = (200, 500, 1000, 5000)
    assert [levels[-1].episodes(length) for length in lengths] == [16, 8, 4, 2]
    assert levels[0].episodes(1) == 2
    allowed = [float(one.allowed(2)) for one in levels]
    assert allowed[0] == 1
    assert sorted(allowed, reverse=True) == allowed
    assert allowed[-1] == allowed[-2] == pytest.approx(2 * 2 * trust.LEAST / (1 + trust.LEAST))
    assert float(levels[-1].allowed(16)) > 7 * allowed[-1]


def test_the_first_update_plays_two_episodes_and_makes_a_short_step():
    first = trust.begin(np.float32)
    assert first.episodes() == 2
    assert 0.1 < first.allowed(2) < 0.5


class Forever(classic.CartPole):
    """CartPole whose episodes never end by themselves, so that all of them earn the same."""

    worth: float = 1.0

    def step(self, key, states, actions):
        following, rewards, _ = super().step(key, states, actions)
        return following, self.worth * rewards, jnp.zeros_like(rewards, bool)


@pytest.mark.slow("mlp")
@pytest.mark.parametrize("policy", ["mlp", "linear"])
def test_a_policy_that_has_earned_less_stays_where_all_episodes_earn_the_same(policy):
    agent = Agent(Forever(horizon=20, worth=-1.0), policy, episodes=2, seed=0)
    agent.state = eqx.tree_at(
        lambda s: s.exploration.lowest, agent.state, replace_fn=lambda x: np.full_like(x, -21.0)
    )
    start = agent.parameters
    row = agent.update()
    assert all(np.array_equal(start[name], x) for name, x in agent.parameters.items())
    assert row["step_norm"] == row["divergence"] == row["gradient_norm"] == 0
    assert row["sure"] == 0.5
    assert float(agent.state.trust.rho) == pytest.approx(trust.START)


def test_without_anything_to_lose_steps_lead_to_unfamiliar_states_and_not_too_far():
    agent = Agent(Forever(horizon=20, worth=-1.0), "linear", episodes=2, seed=0)
    lengths, begun = [], 0
    for _ in range(20):
        row = agent.update()
        theta = np.concatenate([x.ravel() for x in agent.parameters.values()])
        lengths.append(np.linalg.norm(theta - np.asarray(agent.state.exploration.anchor)))
        begun += lengths[-1] == 0
        assert row["persistence"] == pytest.approx(0.9)
        assert row["sure"] == 0.5
    assert 2 <= begun <= 10
    assert 2 * lengths[0] < max(lengths) < 20 * lengths[0]
    assert not agent.state.critic.fitted


@pytest.mark.slow
def test_curiosity_finds_the_goal_of_the_mountain_car():
    agent = Agent(classic.MountainCar(), episodes=2, normalise=True, seed=0)
    assert max(agent.update()["return"] for _ in range(8)) > -200


@pytest.mark.slow
def test_where_all_rewards_are_equal_gains_no_step_is_made():
    agent = Agent(Forever(horizon=20), "linear", episodes=2, seed=0)
    assert [agent.update()["step_norm"] for _ in range(3)] == [0, 0, 0]


@pytest.mark.slow
def test_training_says_once_that_every_episode_returned_the_same(capsys):
    agent = Agent(Forever(horizon=5), "linear", episodes=2, seed=0)
    agent.learn(25 * 10)
    said = "".join(capsys.readouterr())
    assert said.count("Every episode of the first 20 updates returned 5.0") == 1


@pytest.mark.parametrize("ended", [False, True])
def test_rewards_that_depend_on_time_alone_say_nothing(ended):
    """Episodes that end together, with rewards of the same sum in the same or in another order."""
    mask = np.arange(5)[:, None] < np.array([4, 4, 4])
    paths = Trajectories(
        np.zeros((5, 3, 1)), np.zeros((5, 3), int), np.tile(np.arange(5.0)[:, None], 3), mask,
        np.full(3, ended), np.zeros((3, 1)),
    )  # fmt: skip
    assert not informed(paths)
    shorter = mask & (np.arange(15).reshape(5, 3) != 10)
    rewards = np.where(np.arange(15).reshape(5, 3) % 7 == 1, 2.0, paths.rewards)
    for change in ({"mask": shorter}, {"rewards": rewards}):
        assert informed(dataclasses.replace(paths, **change))
    assert not informed(dataclasses.replace(paths, terminated=np.array([ended, ended, not ended])))
    ones = dataclasses.replace(paths, mask=shorter, rewards=np.ones((5, 3)))
    assert informed(ones) == ended


def test_lambda_is_nearer_to_one_the_more_episodes_there_are():
    found = [lambda_by_episodes(M) for M in (2, 8, 32)]
    assert found == pytest.approx([0.9, 0.95, 0.975])
    assert Agent("CartPole-v1").config["lambda_"] == "auto"


@pytest.mark.slow
def test_a_lambda_by_episodes_is_that_number():
    def after(lambda_):
        agent = Agent("CartPole-v1", "linear", episodes=8, lambda_=lambda_, seed=0)
        agent.update()
        return np.concatenate([x.ravel() for x in agent.parameters.values()])

    np.testing.assert_array_equal(after("auto"), after(lambda_by_episodes(8)))
    assert not np.array_equal(after("auto"), after(0.9))
