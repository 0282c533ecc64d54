"""Tuned settings: they are what the stored sweeps chose, and users get them by name."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bayespg
from bayespg.agents.tuned import TUNED, Tuned
from bayespg.cli.commands import app
from bayespg.runs.store import Run

DOCS = Path(__file__).parents[1] / "docs"
SWEEPS = DOCS / "results" / "tuned"


@pytest.fixture
def cartpole(monkeypatch):
    """Settings for a task that needs no MuJoCo."""
    chosen = Tuned({"episodes": 2, "limit": 0.02}, 5000, (100, 104))
    monkeypatch.setitem(TUNED, "CartPole-v1", chosen)


def test_the_package_has_the_settings_of_the_sweeps_that_other_seeds_confirmed():
    rows = [line.split(" | ") for line in (DOCS / "benchmarks.md").read_text("utf-8").splitlines()]
    verdicts = {row[0].removeprefix("| "): row[-1] for row in rows if len(row) == 6}
    verdicts = {task: verdicts[task] for task in (path.stem for path in SWEEPS.glob("*.json"))}
    assert set(verdicts.values()) == {"better |", "not better |"}
    assert {task for task, said in verdicts.items() if said == "better |"} == set(TUNED)


def test_the_settings_are_the_best_of_the_stored_sweep(cartpole):
    for task, tuned in TUNED.items():
        found = json.loads((SWEEPS / f"{task}.json").read_text())
        assert found["environment"] == task
        assert (found["steps"], tuple(found["seeds"])) == (tuned.steps, tuned.seeds)
        ends = [sum(one["returns_at_the_end"]) for one in found["combinations"]]
        best = found["combinations"][ends.index(max(ends))]
        # When the sweep was run, two episodes per update were the default and lambda had another
        # name.
        names = {"smoothing": "lambda_"}
        settings = {names.get(name, name): value for name, value in best["settings"].items()}
        assert {"episodes": 2} | settings == tuned.settings


def test_an_agent_has_them_and_the_changes_to_them(cartpole):
    agent = bayespg.tuned("CartPole-v1", seed=3, episodes=7)
    assert agent.config["seed"] == 3
    assert agent.config["episodes"] == 7
    assert agent.config["limit"] == TUNED["CartPole-v1"].settings["limit"]
    with pytest.raises(ValueError, match=r"tuned: .* 'Taxi-v3'; there are for .*CartPole-v1"):
        bayespg.tuned("Taxi-v3")


def test_a_run_has_them_unless_the_user_says_otherwise(tmp_path, cartpole, monkeypatch):
    tuned = TUNED["CartPole-v1"]
    with_policy = tuned._replace(
        settings=tuned.settings | {"policy": "linear", "estimator": "gpomdp"}
    )
    monkeypatch.setitem(TUNED, "CartPole-v1", with_policy)
    words = ["train", "CartPole-v1", "--tuned", "--horizon", "10", "--steps", "20"]
    done = CliRunner().invoke(app, [*words, "--episodes", "2", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "Tuned on seeds 100 to 104: report others." in done.output
    config = Run.open(tmp_path / "run" / "seed-0").config
    assert config["episodes"] == 2
    assert config["policy"] == "linear"
    assert config["steps"] == 20
    assert config["limit"] == TUNED["CartPole-v1"].settings["limit"]
    for wrong, says in (
        (["Taxi-v3", "--tuned"], "tuned: there are no tuned settings for 'Taxi-v3'"),
        (["CartPole-v1", "--tuned", "--algorithm", "pgpe"], "tuned: is for --algorithm bac"),
    ):
        assert str(CliRunner().invoke(app, ["train", *wrong]).exception).startswith(says)
