"""bayespg compare: ours beside rivals, with the same evaluations; and two agents, with the same
episodes."""

import json
import math
import sys
import types
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bayespg.agents import compare, paired
from bayespg.agents.agent import BAC
from bayespg.agents.base import BaseAgent
from bayespg.agents.mbac import MBAC
from bayespg.agents.metrics import Evaluation
from bayespg.agents.paired import _sign, compare_returns
from bayespg.agents.pgpe import PGPE
from bayespg.cli import app, common
from bayespg.runs import comparison


def bayespg(*arguments):
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


class Constant:
    """A rival of Stable-Baselines3's interface that always pushes to the left."""

    trained = 0

    def __init__(self, policy, task, *, seed, device, verbose):
        assert (policy, device) == ("MlpPolicy", "cpu")

    def predict(self, seen, deterministic):
        return np.zeros(len(seen), int), None

    def learn(self, steps, callback):
        type(self).trained += 1
        callback.model = self
        for step in range(1, steps + 1):
            callback.num_timesteps = step
            assert callback._on_step()


@pytest.fixture
def rivals(monkeypatch):
    """A stand-in for the package, which is no dependency."""
    callbacks = types.ModuleType("stable_baselines3.common.callbacks")
    callbacks.BaseCallback = object
    made = types.ModuleType("stable_baselines3")
    made.PPO = Constant
    torch = types.ModuleType("torch")
    torch.threads = []
    torch.set_num_threads = torch.threads.append
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "stable_baselines3", made)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common", types.ModuleType("common"))
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.callbacks", callbacks)
    return torch


def test_each_of_our_three_kinds_of_agents_can_be_compared(monkeypatch):
    trained = []
    monkeypatch.setattr(BaseAgent, "learn", lambda agent, *_, **__: trained.append(type(agent)))
    for name in ("bac", "pgpe", "mbac"):
        task = compare.Task("Pendulum-v1", name, name, 0, 100, 1, 1)
        compare.train_ours(task, cast(Any, lambda *_: None))
    assert trained == [BAC, PGPE, MBAC]


@pytest.mark.slow
def test_one_page_shows_ours_beside_rivals_and_continues_where_it_stopped(
    rivals, tmp_path, monkeypatch
):
    words = ("compare", "CartPole-v1", "--algorithms", "pgpe", "--rivals", "ppo", "--steps", 200,
             "--episodes", 2, "--out", tmp_path)  # fmt: skip
    monkeypatch.setattr(common, "EVERY", 0.0)
    Constant.trained = 0
    done = bayespg(*words, "--seeds", 1)
    assert done.exit_code == 0
    assert "CartPole-v1   75%  ppo, seed 0" in done.output  # a file is no terminal
    assert rivals.threads == [1]
    done = bayespg(*words, "--seeds", 2)
    assert done.exit_code == 0, done.output
    assert Constant.trained == 2
    kept = json.loads((tmp_path / "compare.json").read_text())
    assert [(run["name"], run["seed"]) for run in kept["runs"]] == [
        ("pgpe", 0), ("ppo", 0), ("pgpe", 1), ("ppo", 1)
    ]  # fmt: skip
    left = dict(kept["runs"][1]["evaluations"])
    assert sorted(left) == list(range(0, 201, 10))
    assert len(set(left.values())) == 1
    assert 8 <= left[0] <= 11
    page = (tmp_path / "compare.html").read_text()
    assert "CartPole-v1: algorithms side by side" in page
    assert "--algorithms pgpe --rivals ppo --steps 200 --seeds 2" in page
    assert Image.open(tmp_path / "compare.png").size[0] > 800
    with pytest.raises(ValueError, match="holds a comparison with other settings"):
        bayespg(*words, "--threshold", 100)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", r"expected a JSON object, found \[\]"),
        ("{", "damaged"),
        ("{}", "other settings"),
        ('{"settings": {"a": 1}}', "each of its runs must have a name"),
        ('{"settings": {"a": 1}, "runs": [{"name": "bac"}]}', "each of its runs must have a name"),
        (
            '{"settings": {"a": 1}, "runs": [{"name": "bac", "seed": 0, "seconds": 1, '
            '"evaluations": [[0, 1], [1]]}]}',
            "each of its runs must have a name",
        ),
    ],
)
def test_a_damaged_comparison_is_named(tmp_path, content, says):
    (tmp_path / "compare.json").write_text(content)
    with pytest.raises(ValueError, match=rf"compare\.json.*{says}"):
        compare.Comparison(tmp_path / "compare.json", {"a": 1})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("CartPol-v1",), "did you mean 'CartPole"),
        (("CartPole-v1", "--algorithms", "bca"), "did you mean 'bac'"),
        (("CartPole-v1", "--rivals", "pp0"), "ppo"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_is_trained(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=says):
        bayespg("compare", *words)
    assert not list(tmp_path.iterdir())


def test_rivals_that_are_missing_or_cannot_act_are_named(rivals, monkeypatch):
    with pytest.raises(ValueError, match=r"sac is for continuous actions, .* CartPole-v1"):
        compare.refuse_actions("sac", "CartPole-v1")
    with pytest.raises(ValueError, match="dqn is for discrete actions"):
        compare.refuse_actions("dqn", "Pendulum-v1")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(ImportError, match="pip install stable-baselines3, or leave it out"):
        compare.rival("ppo")


def test_steps_to_a_threshold_need_two_evaluations_in_a_row():
    assert compare.steps_to([(0, 1.0), (10, 9.0), (20, 1.0), (30, 9.0), (40, 9.5)], 9.0) == 30
    assert compare.steps_to([(0, 9.0)], 9.0) == math.inf
    rows = comparison.rows(
        {"a": [[(0, 0.0), (9, 1.0)], [(0, 0.0), (9, 3.0)]]}, {"a": [5.0, math.inf]}, {"a": [1.0]}
    )
    assert rows == [["a", "2.00", "2 seeds: 1.00 and 3.00", "not reached (1 of 2 seeds)", "1"]]


def test_paired_returns_say_which_policy_is_better():
    rng = np.random.default_rng(0)
    start = 100 * rng.normal(size=30)
    first, second = start + rng.normal(size=30) + 1.0, start + rng.normal(size=30)
    found = compare_returns(first, second)
    assert found.probability > 0.95
    assert found.lower < found.difference < found.upper
    assert found.difference == pytest.approx(np.mean(first - second))
    other = compare_returns(second, first)
    assert other.probability == pytest.approx(1 - found.probability)
    tiny = compare_returns(1e-200 * first, 1e-200 * second)
    assert tiny.probability == pytest.approx(found.probability, rel=1e-9)
    assert "better with probability" in str(found)


@pytest.mark.slow
def test_looking_after_every_ten_pairs_rarely_finds_a_difference_that_is_not_there():
    """Equal policies, a look after each ten of 100 pairs; the standard error of a share of 0.05
    over 300 runs is 0.013. A t-test is wrong in about 19 %."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(300, 100)))
    sign = jax.jit(jax.vmap(_sign))
    looks = [np.asarray(sign(x[:, :M])) for M in range(10, 101, 10)]
    assert np.mean(np.max(looks, 0) >= 0.95) < 0.05 + 2 * 0.013


def test_equal_returns_say_one_half_and_bad_ones_are_named():
    assert compare_returns(np.ones(5), np.ones(5)).probability == 0.5
    for first, second, name in (
        ([1.0], [2.0], "first"), ([1.0, 2.0], [1.0], "second"),
        ([1.0, np.nan], [1.0, 2.0], "first"), (np.ones((2, 2)), np.ones((2, 2)), "first"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{name}"):
            compare_returns(first, second)


def test_agents_are_compared_on_the_same_episodes_until_it_is_clear():
    class Plays:
        def __init__(self, better, task="Push"):
            self.better, self.asked, self.world = better, [], types.SimpleNamespace(name=task)

        def evaluate(self, episodes, *, deterministic, seed):
            self.asked.append((episodes, seed))
            start = np.random.default_rng(seed).normal(size=episodes)
            noise = np.random.default_rng([seed, self.better]).normal(size=episodes)
            return Evaluation(100 * start + noise + 2 * self.better, np.ones(episodes))

    good, bad = Plays(1), Plays(0)
    found = paired.compare(cast(Any, good), cast(Any, bad))
    assert found.probability > 0.95
    assert found.episodes < 50
    assert good.asked == bad.asked
    assert paired.compare(cast(Any, bad), cast(Any, good), episodes=3).episodes == 3
    with pytest.raises(ValueError, match=r"^level"):
        paired.compare(cast(Any, good), cast(Any, bad), level=0.4)
    with pytest.raises(ValueError, match=r"^second: expected an agent of Push, found one of Pull"):
        paired.compare(cast(Any, good), cast(Any, Plays(0, "Pull")))
    with pytest.raises(ValueError, match=r"^second: expected an agent, found 'runs/a'"):
        paired.compare(cast(Any, good), cast(Any, "runs/a"))


@pytest.mark.slow
def test_several_trainings_run_at_a_time(tmp_path):
    done = bayespg(
        "compare", "CartPole-v1", "--algorithms", "pgpe", "--steps", 100, "--episodes", 1,
        "--seeds", 2, "--jobs", 2, "--out", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "2 runs of 100 steps, 2 at a time" in done.output
    kept = json.loads((tmp_path / "compare.json").read_text())
    assert sorted(run["seed"] for run in kept["runs"]) == [0, 1]
