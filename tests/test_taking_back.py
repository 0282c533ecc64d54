"""Steps that are taken back because returns fell clearly."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.environments.trajectories import Trajectories, returns
from bayespg.learning.agents import Agent
from bayespg.learning.taking_back import CLEARLY, MEMORY, nothing
from bayespg.policies import flatten

THETA = jnp.asarray([1.0, 2.0])
RHO = jnp.asarray(0.9)


def paths(*sums):
    """Paths of three steps, the last of which was not taken, with these sums of rewards."""
    M = len(sums)
    rewards = jnp.stack([jnp.asarray(sums) - 1.0, jnp.ones(M), jnp.full(M, 99.0)])
    mask, states = jnp.arange(3)[:, None] < jnp.full(M, 2), jnp.zeros((3, M, 1))
    return Trajectories(states, states, rewards, mask, jnp.ones(M, bool), states[0])


def after(*batches):
    """What each batch says, and the record after the last; theta counts the batches."""
    record, said = nothing(THETA, RHO), []
    for k, batch in enumerate(batches):
        fell, record = record.seen(THETA + k, RHO - 0.1 * k, returns(paths(*batch)))
        said.append(bool(fell))
    return said, record


def test_the_first_batch_and_a_rise_are_recorded():
    said, record = after((1.0, 3.0), (10.0, 14.0))
    assert said == [False, False]
    np.testing.assert_allclose(record.theta, THETA + 1)
    assert record.persistence == pytest.approx(0.8)
    assert record.mean == 12
    weights = np.array([MEMORY * (1 - MEMORY), 1 - MEMORY])
    assert record.variance / record.weight == pytest.approx(weights @ [2, 8] / weights.sum())


def test_a_clear_fall_is_taken_back_and_the_record_stays():
    said, record = after((1.0, 3.0), (-20.0, -21.0))
    assert said == [False, True]
    np.testing.assert_allclose(record.theta, THETA)
    assert record.persistence == pytest.approx(0.9)
    assert record.mean == 2


def test_the_batch_after_that_is_not_judged_and_replaces_the_record():
    said, record = after((1.0, 3.0), (-20.0, -21.0), (-30.0, -31.0), (-31.0, -30.0))
    assert said == [False, True, False, False]
    assert record.mean == -30.5
    said, _ = after((1.0, 3.0), (-20.0, -21.0), (1.0, 2.0), (-20.0, -21.0))
    assert said == [False, True, False, True]


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_clear_is_a_number_of_standard_errors(share):
    """The variance of the second batch is 0, so that the running mean of variances counts."""
    between = 8 * MEMORY / (1 + MEMORY)
    fall = share * CLEARLY * np.sqrt(between)
    said, _ = after((-2.0, 2.0), (-fall, -fall))
    assert said == [False, share > 1]


def test_the_spread_of_the_batch_itself_counts_where_it_is_larger():
    said, _ = after((1.0, 1.1), (-40.0, 0.0))
    assert said == [False, False]


def test_a_single_episode_decides_nothing():
    assert after((1.0,), (-1e6,))[0] == [False, False]


def test_an_agent_goes_back_to_the_policy_and_the_exploration_before_the_step(x64):
    agent = Agent("CartPole-v1", "linear", seed=0)
    start = flatten(agent.policy)[0]
    rows = [agent.update()]
    stepped, optimiser = flatten(agent.policy)[0], agent.state.optimiser
    assert not np.array_equal(stepped, start)
    agent.state = eqx.tree_at(lambda s: s.before.mean, agent.state, np.asarray(1e6))
    rows += [agent.update()]
    np.testing.assert_allclose(flatten(agent.policy)[0], start, atol=1e-12)
    for now, then in zip(agent.state.optimiser, optimiser, strict=True):
        assert now is None or np.array_equal(now, then)
    rows += [agent.update(), agent.update()]
    assert [row["taken_back"] for row in rows] == [0, 1, 0, 0]
    assert [row["persistence"] for row in rows][::2] == [pytest.approx(0.9)] * 2
    assert rows[1]["persistence"] < 0.9


def test_returns_are_compared_in_the_units_of_the_environment():
    agent = Agent("CartPole-v1", "linear", seed=0, normalise_rewards=True)
    for _ in range(3):
        assert agent.update()["return"] == pytest.approx(float(agent.state.before.mean), rel=1e-5)


def test_only_persistent_exploration_takes_back():
    assert Agent("CartPole-v1", "linear", persistence=0.0).state.before is None
    paper = Agent("CartPole-v1", "linear", "bac-paper", seed=0)
    assert paper.state.before is None
    assert paper.update()["taken_back"] == 0
