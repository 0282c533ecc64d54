"""Exploration that persists: which random numbers steps use, in JAX and on Gymnasium, and how it
fades."""

import jax.numpy as jnp
import numpy as np
import pytest

from bayespg._support.random import WORD, child, host_key
from bayespg.agents.agent import Agent
from bayespg.environments.classic import MountainCarContinuous
from bayespg.environments.trajectories import Trajectories
from bayespg.paths.acting import times_of
from bayespg.paths.persistence import FADE, FAILED, decayed, held
from bayespg.paths.rollout import rollout
from bayespg.paths.worlds import OnDevice, world
from bayespg.policies import named


def test_steps_use_fresh_numbers_or_those_of_the_step_before():
    times = np.asarray(held(host_key(0), 20_000, 0.9))
    kept = np.diff(times) == 0
    assert times[0] == 0
    assert np.array_equal(times[1:][~kept], np.arange(1, 20_000)[~kept])
    assert kept.mean() == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / 20_000))


def test_without_persistence_every_step_is_fresh():
    assert np.array_equal(held(host_key(0), 50, 0.0), np.arange(50))


def test_on_the_host_they_are_those_of_the_program():
    key, rho = host_key(3), jnp.asarray(0.9, jnp.float32)
    assert np.array_equal(times_of(key, 500, rho), held(child(key, WORD), 500, rho))


def _noise(play):
    """Actions of a policy of mean zero and scale one."""
    env = OnDevice(MountainCarContinuous())
    policy = named.make("linear", 2, env.actions, host_key(1))
    return np.asarray(play(policy))[..., 0]


@pytest.mark.parametrize("where", ["jax", "gymnasium"])
def test_actions_lean_the_same_way_and_keep_their_distribution(where):
    def in_jax(policy):
        return rollout(
            MountainCarContinuous(horizon=300), policy, host_key(0), 40, jnp.asarray(0.8)
        ).actions

    def on_gymnasium(policy):
        made = world("MountainCarContinuous-v0", horizon=300, lanes=40)
        paths = made.play(policy, host_key(0), list(range(40)), persistence=jnp.asarray(0.8))
        made.host.close()
        return paths.actions[:300]

    z = _noise(in_jax if where == "jax" else on_gymnasium)
    together = np.mean(z[1:] * z[:-1], 0)
    assert np.mean(together[::2]) == pytest.approx(0.8, abs=0.12)
    assert np.mean(together[1::2]) == pytest.approx(0.0, abs=0.05)  # every second is independent
    assert np.mean(z**2) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize(
    ("rewards", "left"),
    [([1.0, 1.0], 1 - FADE), ([2.0, 1.0], 1 - FADE), ([1.0, 2.0], 1 - FAILED), ([1.0], 1 - FADE)],
)
def test_it_fades_fast_if_independent_episodes_return_more(rewards, left):
    M = len(rewards)
    paths = Trajectories(
        jnp.zeros((1, M, 1)), jnp.zeros((1, M)), jnp.asarray([rewards]), jnp.ones((1, M), bool),
        jnp.zeros(M, bool), jnp.zeros((M, 1)),
    )  # fmt: skip
    before = jnp.asarray(0.9)
    assert decayed(before, paths, jnp.asarray(True)) == pytest.approx(0.9 * left)
    assert decayed(before, paths, jnp.asarray(False)) == before
    assert decayed(None, paths, jnp.asarray(True)) is None


def test_agents_report_it_and_the_paper_has_none():
    agent = Agent("CartPole-v1", "linear", "gpomdp", episodes=2, seed=0)
    rows = [agent.update(), agent.update()]
    assert rows[0]["persistence"] == pytest.approx(0.9)
    assert 0 < rows[1]["persistence"] < 0.9
    assert agent.settings.persistence == 0.9
    assert Agent("CartPole-v1", "linear", "bac-paper").state.exploration.persistence is None
    assert (
        Agent("CartPole-v1", "linear", "bac-paper", persistence=0.5).state.exploration.persistence
        == 0.5
    )
    assert Agent("CartPole-v1", "linear", persistence=0.0).state.exploration.persistence is None
    with pytest.raises(ValueError, match="persistence: "):
        Agent("CartPole-v1", persistence=1.5)
