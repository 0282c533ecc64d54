"""Every estimator with every update and every kind of policy: it works, or one sentence says why
not. Programs are traced, not compiled; a few that are new are run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg import estimators, training, updates
from bayespg.agents import names
from bayespg.agents.agent import Agent
from bayespg.environments import classic
from bayespg.learning.batch import by_products
from bayespg.policies import FiniteStateController, as_dtype, flatten
from bayespg.policies.features import MLP, Linear
from bayespg.policies.heads import Choice, Composed

TASK = classic.CartPole(horizon=4)
KEY = jax.random.key(0)
POLICIES = {
    "few parameters": lambda: Composed(Linear(4), Choice(5, (2,), True)),
    "a network": lambda: Composed(MLP(4, (48,), key=KEY), Choice(49, (2,), True)),
    "memory": lambda: FiniteStateController.random(KEY, 4, 2, 2),
}
ESTIMATORS = {name: make(0.9, None) for name, make in names.ESTIMATORS.items()}
UPDATES = {name: names.update(name, 0.02, 1e-2) for name in names.UPDATES}


def traced(estimator, update, policy, normalise=False):
    """The shapes of the state that an update of training leads to."""
    with jax.enable_x64(True):
        policy = as_dtype(policy, jnp.float64)
        state = training.start(TASK, policy, estimator, update, KEY, normalise)
        step = eqx.filter_eval_shape(training.step, TASK, estimator, update, state, 3, 0.0)
        return state, step[0]


@pytest.mark.slow(
    *(
        f"{name}-a network"
        for name in ("bac-returns", "rebase", "gae", "fitted", "mc", "mcpg", "mc-baseline", "enac")
    ),
    *(f"{name}-memory" for name in ("mc", "mc-baseline", "mcpg", "enac")),
)
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_takes_every_kind_of_policy_or_says_why_not(name, kind):
    estimator, policy = ESTIMATORS[name], POLICIES[kind]()
    assert by_products(policy) == (kind == "a network")
    if kind == "memory" and estimator.needs.states:
        with pytest.raises(ValueError, match="FiniteStateController has a memory"):
            traced(estimator, UPDATES["natural"], policy)
        return
    if kind == "a network" and name == "bac-paper":
        with pytest.raises(ValueError, match="evidence needs dense scores"):
            traced(estimator, UPDATES["natural"], policy)
        return
    before, after = traced(estimator, UPDATES["natural"], policy)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert flatten(before.policy)[0].shape == (flatten(policy)[0].size,)


@pytest.mark.slow(*(f"bac-{name}" for name in UPDATES if name not in ("natural", "plain")))
@pytest.mark.parametrize("name", [name for name in UPDATES if name != "natural"])
@pytest.mark.parametrize("estimator", ["bac", "model2"])
def test_every_update_follows_every_kind_of_estimate(name, estimator):
    policy = POLICIES["few parameters"]()
    before, after = traced(ESTIMATORS[estimator], UPDATES[name], policy, normalise=True)
    assert jax.tree.structure(before) == jax.tree.structure(after)


@pytest.mark.slow
def test_runs_side_by_side_have_normalisers_and_recent_states_of_their_own():
    keys, runs = jax.random.split(jax.random.key(1), 2), 2
    start = jax.vmap(lambda key: POLICIES["few parameters"]())(keys)
    found = training.train(
        classic.CartPole(horizon=30), start, estimators.BAC(), updates.trust_region(0.02),
        key=KEY, updates=3, paths=4, runs=runs, normalise=True,
    )  # fmt: skip
    state = found.state
    assert state.updates.tolist() == [3, 3]
    assert state.normaliser.mean.shape == (runs, 4)
    assert not np.array_equal(*state.normaliser.mean)
    assert state.recent.weights.any(1).all()
    assert not np.array_equal(*state.recent.states)
    assert np.isfinite(found.history.gradient_norm).all()
    assert (state.normaliser.count.round() == state.steps).all()


def test_an_agent_in_jax_takes_answers_in_closed_form():
    """The environment itself is part of the batch."""
    agent = Agent("lqr", estimator=estimators.Model1(fisher=estimators.exact), episodes=5)
    assert agent.update()["sound"] == 1
