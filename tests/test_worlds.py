"""Numbers that are not finite, limits that nobody set and devices that are not there do not pass in
silence."""

import os
import subprocess
import sys
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import pytest
from gymnasium.wrappers import NormalizeReward
from test_host import Counting

from bayespg._support import device
from bayespg.agents.agent import Agent
from bayespg.agents.load import load
from bayespg.environments import Environment
from bayespg.environments.host import FALLBACK, EnvironmentFailure
from bayespg.paths.rollout import rollout
from bayespg.policies import LinearGaussian


class Broken(Environment):
    """Counts steps in its state; something goes wrong in the second path at the fourth step."""

    fault: str = ""
    horizon: int = 6
    discount: float = 0.9

    def reset(self, key, paths):
        return jnp.full(paths, jnp.nan if self.fault == "reset" else 0.0)

    def step(self, key, states, actions):
        following = states + 1
        at = (jnp.arange(len(states)) == 1) & (following == 4)
        ends = following >= 6
        rewards = jnp.ones_like(states)
        match self.fault:
            case "reward":
                rewards = jnp.where(at, jnp.inf, rewards)
            case "state":
                following = jnp.where(at, jnp.nan, following)
            case "last state":
                following = jnp.where(ends, -jnp.inf, following)
            case "after the end":
                ends |= following >= 3
                rewards = jnp.where(states >= 3, jnp.nan, rewards)
            case "column of rewards":
                rewards = rewards[:, None]
            case "column of ends":
                ends = ends[:, None]
            case "number of ends":
                ends = ends.astype(float)
            case "growing states":
                following = jnp.stack([following, following], 1)
        return following, rewards, ends


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("reset", "episode 1 of 3, step 0: the observation holds nan"),
        ("reward", "episode 2 of 3, step 4: the reward is inf"),
        pytest.param(
            "state", "episode 2 of 3, step 4: the observation holds nan", marks=pytest.mark.slow
        ),
        ("last state", "episode 1 of 3, step 6: the observation holds -inf"),
    ],
)
def test_a_number_that_is_not_finite_is_located(fault, says):
    agent = Agent(Broken(fault), LinearGaussian(0.1, 1.0), "model2", episodes=3)
    for call in (agent.update, lambda: agent.evaluate(3)):
        with pytest.raises(EnvironmentFailure, match=f"^Broken, {says}; expected finite numbers$"):
            call()


@pytest.mark.slow
def test_an_action_that_is_not_finite_is_the_policy_s():
    agent = Agent(Broken(), LinearGaussian(jnp.inf, 1.0), "model2")
    with pytest.raises(EnvironmentFailure, match="step 1: the action that the policy drew holds"):
        agent.evaluate(2)


@pytest.mark.parametrize("fault", ["", "after the end"])
def test_what_comes_after_an_episode_s_end_is_not_looked_at(fault):
    assert Agent(Broken(fault), LinearGaussian(0.1, 1.0), "model2").evaluate(
        2
    ).mean == 6 - 3 * bool(fault)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("column of rewards", r"rewards of shape \(3, 1\), expected \(3,\)"),
        ("column of ends", r"ends of shape \(3, 1\), expected \(3,\)"),
        ("number of ends", r"ends of type float32, expected bool"),
        ("growing states", r"states of shape \(3, 2\), expected \(3,\)"),
    ],
)
def test_a_step_of_another_shape_is_refused(fault, says):
    with pytest.raises(ValueError, match=rf"^environment: Broken\.step gave {says}"):
        rollout(Broken(fault), LinearGaussian(0.1, 1.0), jax.random.key(0), 3)


def test_a_limit_that_nobody_set_is_in_the_configuration(tmp_path):
    agent = Agent(Counting(5), horizon=None)
    assert agent.config["horizon"] == FALLBACK
    agent.save(tmp_path / "kept")
    again = load(tmp_path / "kept", environment=Counting(5))
    assert again.config == agent.config
    assert again.world.host.limited
    assert Agent(gymnasium.make("CartPole-v1")).config["horizon"] == 500


@pytest.mark.slow
def test_a_warning_points_to_the_line_that_the_user_wrote():
    """However many frames of this package lie between, and also in a callback."""
    outer = Agent(Counting(3), "linear", "mcpg", episodes=1)
    inner = Agent(Counting(10**9), "linear", "mcpg", episodes=1)
    for ask in (
        lambda: Agent(Counting(10**9), "linear", "mcpg", episodes=1).update(),
        lambda: Agent(NormalizeReward(gymnasium.make("CartPole-v1"))),
        lambda: outer.learn(
            1, callbacks=lambda *_: bool(inner.evaluate(1)), progress=False
        ),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match="no time limit|changes the rewards") as told:
            ask()
        first = ask.__code__.co_firstlineno
        assert [one.filename for one in told] == [__file__]
        assert told[0].lineno in (first, first + 1)


def test_a_warning_at_import_points_to_the_import(tmp_path):
    """Past the frames of the import system."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import jax, os\n"
        "jax.devices()\n"
        "os.sched_getaffinity = lambda _: {0, 1}\n"
        "os.cpu_count = lambda: 2\n"
        "import bayespg\n"
    )
    clean = {k: v for k, v in os.environ.items() if k != "NPROC"}
    done = subprocess.run(
        [sys.executable, script], text=True, capture_output=True, env=clean, timeout=200, check=True
    )
    assert f"{script}:5: RuntimeWarning: JAX was started before bayespg" in done.stderr


ASKED = """
import bayespg
for ask in (lambda: bayespg.BAC("CartPole-v1"), lambda: quadrature.model2([[1.0]], [1.0], [[1.0]])):
    try:
        ask()
    except ValueError as problem:
        print(f"bayespg: {problem}", file=sys.stderr)
from bayespg.cli import main
main()
"""


def test_a_platform_that_is_not_there_is_a_sentence_everywhere():
    """Of an agent, of a function of arrays, and of the command line."""
    code = f"import sys; from bayespg import quadrature\n{ASKED}"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "CartPole-v1"], text=True, capture_output=True,
        env=os.environ | {"JAX_PLATFORMS": "none_such"}, timeout=200,
    )  # fmt: skip
    assert done.returncode == 2
    first, *others = done.stderr.splitlines()
    assert first.startswith("bayespg: JAX_PLATFORMS: JAX cannot use 'none_such' on this machine")
    assert others == [first, first]


def test_a_platform_that_fails_without_a_reason_is_a_sentence(monkeypatch):
    """As CUDA's does where JAX was installed without it."""

    def fail():
        raise AssertionError

    config = SimpleNamespace(values={"jax_platforms": "cuda"})
    monkeypatch.setattr(device, "jax", SimpleNamespace(devices=fail, config=config))
    with pytest.raises(ValueError, match=r"JAX cannot use 'cuda' on this machine \(there is none"):
        device.require.__wrapped__()


@pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
def test_paths_have_the_shapes_that_were_expected(task):
    agent = Agent(task, horizon=5, episodes=3)
    with agent.precision():
        expected = agent.world.expected(agent.state.acting, 3)
        assert agent.world.expected(agent.state.acting, 1000) is None
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), p) for p in (expected, agent.draw())]
    assert shapes[0] == shapes[1]


@pytest.mark.slow
def test_the_first_update_compiles_its_program_once(caplog):
    agent = Agent("CartPole-v1", horizon=6, episodes=3)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        agent.update()
    said = [line for line in caplog.messages if line.startswith("Compiling jit(_learned)")]
    assert len(said) == 1
