"""Agents as values: printed, copied, pickled, with other parameters, and asked for many actions."""

import copy
import inspect
import pickle
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import bayespg
from bayespg._support.random import fast_key
from bayespg.agents.settings import Settings
from bayespg.environments.spaces import Observations
from bayespg.policies import FiniteStateController

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def made(**settings):
    return bayespg.BAC("CartPole-v1", "linear", **settings)


def moved():
    """An agent whose actions depend on the observation."""
    return made().with_parameters(np.random.default_rng(1).normal(size=10))


@pytest.mark.parametrize("make", [bayespg.Agent, bayespg.BAC, bayespg.BPG, bayespg.MCPG])
def test_signature_and_help_name_every_setting(make):
    known = inspect.signature(make).parameters
    assert list(known)[:2] == ["environment", "policy"]
    for field in Settings.__dataclass_fields__.values():
        assert known[field.name].default == field.default
        assert f"    {field.name}: " in make.__doc__
    assert set(inspect.signature(bayespg.PGPE).parameters) >= {"max_episodes", "hidden", "seed"}
    assert "rate" not in inspect.signature(bayespg.PGPE).parameters


def test_an_agent_says_what_it_is():
    said = str(made(seed=3))
    assert "CartPole-v1: bac, natural; linear policy with 10 parameters" in said
    assert "limit 0.05" in said
    assert "seed 3" in said
    assert "rate" not in said


def test_parameters_by_name_or_as_a_vector_make_a_copy():
    agent = made()
    assert {name: x.shape for name, x in agent.parameters.items()} == {"head.weights": (2, 5)}
    theta = np.arange(10.0)
    for given in (theta, {"head.weights": theta.reshape(2, 5)}):
        np.testing.assert_array_equal(
            agent.with_parameters(given).parameters["head.weights"].ravel(), theta
        )
    assert not agent.parameters["head.weights"].any()
    search = bayespg.PGPE("CartPole-v1").with_parameters(np.arange(5.0))
    for kept in (search.parameters["weights"][0], search.search.mean):  # their direction acts alike
        np.testing.assert_allclose(kept, np.arange(5.0) / np.sqrt(30), rtol=1e-6)
    for wrong, says in (
        (np.zeros(3), r"expected 10 numbers .* found shape \(3,\)"),
        ({"weights": theta}, r"expected \['head.weights'\], found \['weights'\]"),
        ({"head.weights": theta}, r"expected shape \(2, 5\), found \(10,\)"),
        (np.full(10, np.nan), "10 of 10 entries are NaN"),
    ):
        with pytest.raises(ValueError, match=rf"^parameters.*{says}"):
            agent.with_parameters(wrong)


@pytest.mark.parametrize(
    "environment", ["CartPole-v1", lambda: gymnasium.make("CartPole-v1"), None]
)
def test_copies_and_pickles_act_alike_and_learn_apart(environment):
    environment = environment or gymnasium.make("CartPole-v1")
    agent = bayespg.BAC(environment, "linear", seed=2).with_parameters(np.arange(10.0))
    for other in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        np.testing.assert_array_equal(other.predict(X), agent.predict(X))
        np.testing.assert_array_equal(other.evaluate(2).returns, agent.evaluate(2).returns)
        assert other.world is not agent.world


def test_what_cannot_be_pickled_is_refused_with_a_way_out():
    environment = gymnasium.make("CartPole-v1")
    environment.unwrapped.held = threading.Lock()
    agent = bayespg.BAC(environment, "linear")
    with pytest.raises(TypeError, match=r"cannot be pickled or copied.*agent\.save"):
        pickle.dumps(agent)


def test_another_environment_of_the_same_kind_takes_the_place():
    agent = moved()
    agent.set_environment("CartPole-v1", options={"max_episode_steps": 7})
    assert agent.world.horizon == 7
    assert agent.config["options"] == {"max_episode_steps": 7}
    assert agent.evaluate(2).lengths.max() <= 7
    with pytest.raises(ValueError, match=r"shape \(4,\) and choices among 2, found \(6,\)"):
        agent.set_environment("Acrobot-v1")
    assert agent.world.horizon == 7


def test_a_batch_of_observations_gives_a_batch_of_actions():
    agent = moved()
    several = agent.predict(X)
    assert several.shape == (5,)
    assert set(several) == {0, 1}
    np.testing.assert_array_equal(several, [agent.predict(x) for x in X])
    assert set(agent.predict(np.zeros((200, 4)), deterministic=False)) == {0, 1}
    pendulum = bayespg.BAC("Pendulum-v1", "linear")
    assert pendulum.predict(np.zeros((2, 3))).shape == (2, 1)
    assert pendulum.predict(np.zeros(3)).shape == (1,)
    hidden = np.ma.array(np.zeros(4), mask=[0, 1, 0, 0])
    for wrong in (np.zeros((2, 3)), np.zeros((0, 4)), np.zeros((2, 2, 4)), hidden, [hidden]):
        with pytest.raises(ValueError, match=r"^observation: "):
            agent.predict(wrong)


def test_batches_of_every_space():
    for space in (
        spaces.Discrete(5, start=1), spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 3)),
        spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple([spaces.Discrete(3)])}),
    ):  # fmt: skip
        known = Observations(space)
        some = [space.sample() for _ in range(3)]
        whole = gymnasium.vector.utils.batch_space(space, 3)
        batch = gymnasium.vector.utils.concatenate(
            space, some, gymnasium.vector.utils.create_empty_array(space, 3)
        )
        assert whole.contains(batch)
        rows, several = known.rows(batch)
        assert several
        np.testing.assert_array_equal(rows, [known.encode(one) for one in some])
        assert not known.rows(some[0])[1]


def test_memory_is_kept_row_by_row():
    start = FiniteStateController.random(fast_key(0), 16, 4, memories=3)
    agent = bayespg.MCPG("FrozenLake-v1", start, seed=0)
    seen = np.array([[3, 7], [1, 2], [3, 5]])
    together = [agent.predict(row) for row in seen]
    agent.reset()
    alone = [agent.predict(int(row[1])) for row in seen]
    assert [row[1] for row in together] == alone
    with pytest.raises(ValueError, match=r"2 rows, and the memory is of 1; call agent\.reset"):
        agent.predict(seen[0])
    agent.reset()
    agent.predict(seen[0])
    again = agent.predict(seen[0], episode_start=[True, False])
    assert again[0] == together[0][0]
    with pytest.raises(ValueError, match=r"^episode_start: expected 2 flags"):
        agent.predict(seen[0], episode_start=[True] * 3)
