"""bayespg compare: ours beside rivals, with the same evaluations."""

import json
import math
import sys
import types

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bayespg.agents import compare
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


@pytest.mark.slow
def test_one_page_shows_ours_beside_rivals_and_goes_on_where_it_stopped(
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
