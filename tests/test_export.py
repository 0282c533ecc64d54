"""Policies as ONNX files: the actions are those of `predict`."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from test_masks import Gates

import bayespg
from bayespg._support.random import fast_key
from bayespg.policies import FiniteStateController

onnx = pytest.importorskip("onnx")


def answers(path, observations):
    """What the file says, in ONNX's own slow and independent interpreter."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(str(path)).run(None, {"observation": observations})[0]


def trained(agent):
    """The agent with random parameters and statistics of observations as after some training."""
    rng = np.random.default_rng(0)
    agent = agent.with_parameters(0.3 * rng.normal(size=agent.parameter_count))
    if getattr(agent.state, "normaliser", None) is not None:
        seen = rng.normal(0.5, 1.0, size=(50, agent.world.observation.shape[0]))
        agent.state = agent.state.__class__(**{
            **{name: getattr(agent.state, name) for name in agent.state.__dataclass_fields__},
            "normaliser": agent.state.normaliser.observe(seen.astype(np.float32), np.ones(50)),
        })  # fmt: skip
    return agent


@pytest.mark.slow(
    "BAC-Acrobot-v1-mlp", "BAC-Pendulum-v1-gaussian", "BAC-MountainCarContinuous-v0-linear"
)
@pytest.mark.parametrize(
    ("make", "task", "policy"),
    [
        (bayespg.BAC, "CartPole-v1", "fourier"),
        (bayespg.BAC, "Acrobot-v1", "mlp"),
        (bayespg.BAC, "Pendulum-v1", "gaussian"),
        (bayespg.BAC, "MountainCarContinuous-v0", "linear"),
        (bayespg.BAC, "FrozenLake-v1", "linear"),
        (bayespg.PGPE, "Acrobot-v1", "linear"),
    ],
)
def test_an_exported_policy_acts_as_predict(tmp_path, make, task, policy):
    agent = trained(make(task, policy, **({"hidden": (8,)} if policy == "mlp" else {})))
    agent.export(tmp_path / "policy.onnx", batch=20)
    space = agent.world.host.observations.space
    rng = np.random.default_rng(1)
    if isinstance(space, spaces.Discrete):
        seen = rng.integers(space.n, size=20)
    else:
        seen = rng.normal(1.0, 3.0, size=(20, *space.shape)).astype(np.float32)
    rows = agent.world.rows(seen)[0]
    found, expected = answers(tmp_path / "policy.onnx", rows), agent.predict(seen)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.unique(expected).size > 1


class Parts(gymnasium.Env):
    """Actions in two parts, counted from one and from zero."""

    observation_space = spaces.Box(-1.0, 1.0, (3,))
    action_space = spaces.MultiDiscrete([3, 2], start=[1, 0])


def test_an_exported_policy_chooses_in_several_parts(tmp_path):
    agent = trained(bayespg.BAC(Parts, "linear"))
    agent.export(tmp_path / "policy.onnx", batch=20)
    seen = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    chosen = answers(tmp_path / "policy.onnx", seen)
    np.testing.assert_array_equal(chosen, agent.predict(seen))
    assert len(np.unique(chosen, axis=0)) > 2


def test_an_exported_policy_takes_masks(tmp_path):
    agent = trained(bayespg.BAC(Gates(), "linear"))
    agent.export(tmp_path / "policy.onnx", batch=4)
    seen = np.concatenate([np.zeros((4, 2)), np.eye(4)], 1).astype(np.float32)
    np.testing.assert_array_equal(answers(tmp_path / "policy.onnx", seen), range(4))


def test_what_cannot_be_exported_is_named(tmp_path, monkeypatch):
    memory = FiniteStateController.random(fast_key(0), 16, 4, memories=2)
    with pytest.raises(ValueError, match="policy with memory"):
        bayespg.MCPG("FrozenLake-v1", memory).export(tmp_path / "policy.onnx")
    with pytest.raises(ValueError, match="only policies for Gymnasium"):
        bayespg.BAC("jax/CartPole-v1", "linear").export(tmp_path / "policy.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'bayespg\[onnx\]'"):
        bayespg.BAC("CartPole-v1", "linear").export(tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()
