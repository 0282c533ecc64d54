"""Runs side by side: each is the run that one process would have made, and resumes."""

import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from bayespg._support import device
from bayespg.agents import jobs, load, trials
from bayespg.agents.agent import Agent
from bayespg.cli import continuing, sweep
from bayespg.cli.commands import app

COMPILE_QUICKLY = True
SMALL = {"estimator": "gpomdp", "policy": "linear", "horizon": 20}


@pytest.fixture(scope="module")
def expected():
    return Agent("CartPole-v1", **SMALL, seed=3).learn(200, progress=False)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_job_trains_what_an_agent_trains_and_finishes_what_was_stopped(tmp_path, expected):
    said = []
    config = Agent("CartPole-v1", **SMALL, seed=3).config | {"steps": 200}

    def advance(fraction, what):
        said.append((fraction, what))
        if len(said) == 2:
            raise KeyboardInterrupt

    arguments = ("seed 3", tmp_path / "run", config, [], False, None)
    with pytest.raises(KeyboardInterrupt):
        jobs.train(*arguments, advance)
    last = jobs.train(*arguments, advance)
    assert_same(load.load(tmp_path / "run").policy, expected.policy)
    assert said[-1][0] == 1.0
    assert f"return {last:.1f}" in said[-1][1]
    assert np.isnan(jobs.train(*arguments, advance))  # done


@pytest.mark.slow
def test_seeds_in_processes_are_those_of_one_and_a_folder_resumes(tmp_path, expected):
    words = ["train", "CartPole-v1", "--estimator", "gpomdp", "--policy", "linear", "--horizon",
             "20", "--steps", "200", "--out", str(tmp_path / "f")]  # fmt: skip
    done = CliRunner().invoke(app, [*words, "--seed", "3", "--seeds", "2", "--jobs", "2"])
    assert done.exit_code == 0, done.output
    assert "2 seeds" in done.output
    assert_same(load.load(tmp_path / "f" / "seed-3").policy, expected.policy)
    more = ["train", "--resume", str(tmp_path / "f"), "--steps", "400", "--jobs", "2"]
    done = CliRunner().invoke(app, more)
    assert done.exit_code == 0, done.output
    assert int(load.load(tmp_path / "f" / "seed-4").state.steps) >= 400


def test_workers_and_jobs_contradict_each_other():
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--workers", "2", "--jobs", "2"])
    assert "workers: play the episodes of one seed" in str(done.exception)


def test_combinations_are_all_and_their_values_are_what_settings_take():
    def combinations(varied):
        return trials.every(sweep.parsed(varied))

    found = combinations(["limit=0.01,0.03", "policy=linear,mlp", "hidden=8x8"])
    assert len(found) == 4
    assert found[0] == {"limit": 0.01, "policy": "linear", "hidden": (8, 8)}
    assert combinations(["episodes=4", "normalise=false"]) == [{"episodes": 4, "normalise": False}]
    assert combinations(["lambda=0.9"]) == combinations(["lambda_=0.9"])
    assert combinations(["lambda=0.9"]) == [{"lambda_": 0.9}]
    for wrong in (["limit"], ["limit="], ["seed=1,2"], ["limit=1", "limit=2"]):
        with pytest.raises(ValueError, match=r"^set: "):
            combinations(wrong)
    with pytest.raises(ValueError, match=r"^trials: limit has a range"):
        combinations(["limit=0.01..0.1"])


def one_after_the_other(monkeypatch) -> list[tuple[str, int]]:
    """Runs are trained in this process; returns the list to which each adds its name and how far
    it is to go."""

    def here(runs, number, advance, *, address, imports, until, failed):
        for name, one in runs.items():
            trained.append((name, until))
            yield name, jobs.train(name, *one, [], False, until, lambda fraction, what: None)

    trained = []
    monkeypatch.setattr(continuing, "side_by_side", here)
    return trained


@pytest.mark.slow
def test_a_sweep_trains_what_is_missing_and_compares(tmp_path, monkeypatch):
    """In this process, one run after the other."""

    trained = one_after_the_other(monkeypatch)
    words = ["sweep", "CartPole-v1", "--set", "estimator=gpomdp", "--set", "horizon=20",
             "--set", "limit=0.01,0.03", "--steps", "60", "--out", str(tmp_path)]  # fmt: skip
    for seeds, new in ((1, 2), (2, 2), (2, 0)):
        trained.clear()
        done = CliRunner().invoke(app, [*words, "--seeds", str(seeds)])
        assert done.exit_code == 0, (done.output, done.exception)
        assert len(trained) == new
    assert "Best at the end: estimator=gpomdp, horizon=20, limit=0.0" in done.output
    assert "limit=0.03" in (tmp_path / "report.html").read_text()
    kept = json.loads((tmp_path / sweep.TABLE).read_text())
    assert kept["seeds"] == [0, 1]
    assert [one["settings"]["limit"] for one in kept["combinations"]] == [0.01, 0.03]
    assert all(len(one["returns_at_the_end"]) == 2 for one in kept["combinations"])


def test_a_device_that_is_not_there_is_a_sentence():
    done = CliRunner().invoke(app, ["train", "CartPole-v1", "--device", "gpu"])
    if all(one.platform == "cpu" for one in jax.devices()):
        assert str(done.exception).startswith("device: JAX finds no gpu on this machine")
    with pytest.raises(ValueError, match="device: expected cpu or gpu, found 'tpu'"):
        device.choose("tpu")
