"""Batches that say nothing, and policies that stay as they are after them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.environments import classic
from bayespg.learning import estimators
from bayespg.learning.agents import Agent
from bayespg.learning.silence import ROUNDING, nothing

DTYPE = jnp.dtype(jnp.float32)
SILENT = ROUNDING * jnp.finfo(DTYPE).eps


def after(*batches):
    """Whether the policy stays after each batch of (mean return, share of the gradient)."""
    record, said = nothing(DTYPE), []
    for mean, signal in batches:
        stays, record = record.seen(
            jnp.asarray([mean - 1.0, mean + 1.0]), jnp.asarray(signal, DTYPE)
        )
        said.append(bool(stays))
    return said


def test_a_policy_that_never_did_better_or_worse_goes_on():
    assert after((-200, 0), (-200, 0), (-200, 0)) == [False] * 3


def test_a_policy_stays_where_returns_are_near_the_highest_and_nothing_is_said():
    assert after((20, 0.1), (500, 0), (490, 0)) == [False, True, True]
    assert after((20, 0.1), (500, 0.1), (490, 2 * SILENT)) == [False] * 3


def test_a_policy_that_lost_what_it_had_explores_again():
    assert after((-120, 0.1), (-200, 0), (-119, SILENT / 2)) == [False, False, True]


class Forever(classic.CartPole):
    """CartPole whose episodes never end by themselves, so that all of them earn the same."""

    def step(self, key, states, actions):
        following, rewards, _ = super().step(key, states, actions)
        return following, rewards, jnp.zeros_like(rewards, bool)


def test_episodes_that_earn_the_same_leave_hardly_any_gradient(x64):
    agent = Agent("jax/CartPole-v1", "linear", seed=0)
    for environment, silent in (
        (Forever(horizon=100), True),
        (classic.CartPole(horizon=100), False),
    ):
        batch = estimators.draw(environment, agent.policy, jax.random.key(1), 4)
        signal = eqx.filter_jit(estimators.adaptive())(batch).info["signal"]
        assert 0 < signal < 1
        assert (signal < 1e-5) == silent
        assert (signal > 1e-2) == (not silent)


@pytest.mark.parametrize(
    ("policy", "lowest", "stays"),
    [("mlp", 99.0, True), ("mlp", np.inf, False), ("linear", 99.0, False)],
)
def test_a_network_stays_if_it_was_worse_before(policy, lowest, stays):
    """In double precision what is left is above the rounding errors."""
    agent = Agent(Forever(horizon=100), policy, seed=0)
    agent.state = eqx.tree_at(
        lambda s: s.earned.lowest, agent.state, np.asarray(lowest, agent.state.earned.lowest.dtype)
    )
    start = agent.parameters
    row = agent.update()
    assert all(np.array_equal(start[name], x) for name, x in agent.parameters.items()) == stays
    assert (row["divergence"] == 0) == stays
    assert (float(agent.state.confirmed) == row["confirmed"] == 1) == stays
    assert float(agent.state.earned.highest) == 100


def test_other_estimators_do_not_ask():
    agent = Agent("CartPole-v1", "linear", "gpomdp", seed=0)
    agent.update()
    assert not np.isfinite(agent.state.earned.highest)
