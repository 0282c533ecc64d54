"""bayespg train, evaluate, plot, watch and environments, as a user meets them."""

import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bayespg.agents import Agent
from bayespg.cli import app, main
from bayespg.runs import Run


def bayespg(*arguments):
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    small = ("--steps", 150, "--episodes", 2, "--seeds", 2, "--tensorboard")
    done = bayespg("train", "CartPole-v1", *small, "--out", folder)
    assert done.exit_code == 0, done.output
    assert "10 parameters" in done.output
    return folder


def test_a_run_directory_holds_everything(run):
    for seed in (0, 1):
        found = Run.open(run / f"seed-{seed}")
        assert found.config["environment"] == "CartPole-v1"
        assert found.config["seed"] == seed
        assert found.metrics()["steps"][-1] >= 150
        assert list((run / f"seed-{seed}" / "tensorboard").iterdir())
    assert Image.open(run / "plots" / "learning.png").size[0] > 800


def test_evaluate_tells_episodes_from_seeds(run):
    shown = bayespg("evaluate", run, "--episodes", 3).output
    assert "95 % over 3 episodes" in shown
    assert "Over 2 seeds" in shown


def test_plot_compares_runs(run, tmp_path):
    bayespg("plot", run, run / "seed-1", "--out", tmp_path / "both.png")
    assert np.asarray(Image.open(tmp_path / "both.png")).std() > 0


def test_watch_writes_a_film(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    bayespg("watch", run, "--out", tmp_path / "film.gif")
    assert Image.open(tmp_path / "film.gif").n_frames > 5


def test_a_finished_run_has_nothing_to_resume(run):
    assert bayespg("train", "--resume", run).output.count("done") == 2


def test_resuming_begins_the_seeds_that_had_not_begun(tmp_path, monkeypatch):
    folder = tmp_path / "three"
    learn = Agent.learn

    def interrupted(self, *arguments, **keywords):
        learn(self, *arguments, **keywords)
        self.interrupted = self.settings.seed == 1
        return self

    small = ("--steps", 30, "--episodes", 1, "--seeds", 3, "--out", folder)
    with monkeypatch.context() as patched:
        patched.setattr(Agent, "learn", interrupted)
        done = bayespg("train", "CartPole-v1", *small)
    assert done.exit_code == 130
    assert "Not begun: seed 2." in done.output
    assert f"--resume {folder}" in done.output.replace("\n", "")
    assert not (folder / "seed-2").exists()
    done = bayespg("train", "--resume", folder)
    assert done.exit_code == 0, done.output
    assert Run.open(folder / "seed-2").config["seed"] == 2
    assert "3 seeds" in done.output
    with pytest.raises(ValueError, match="holds seeds with steps 30, not 40"):
        bayespg(
            "train", "CartPole-v1", "--steps", 40, "--episodes", 1, "--seed", 5, "--out", folder
        )


def test_environments_lists_the_paper_s_and_gymnasium_s():
    shown = bayespg("environments").output
    assert "mountain-car" in shown
    assert "CartPole-v1" in shown
    assert bayespg("environments", "jax/").output.count("Gymnasium's, in JAX") == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train"], "give an environment"),
        (["train", "CartPol-v1"], "did you mean 'CartPole"),
        (["train", "CartPole-v1", "--policy", "linera"], "did you mean 'linear'"),
        (["train", "CartPole-v1", "--algorithm", "bca"], "did you mean 'bac'"),
        (["train", "CartPole-v1", "--algorithm", "bac", "--estimator", "mc"], "one of the two"),
        (["train", "--resume", "there", "--steps", "10"], "steps: a run goes on as it began"),
        (["train", "CartPole-v1", "--hidden", "big"], "expected widths"),
        (["train", "CartPole-v1", "--discount", "2"], "discount: expected a number from 0 to 1"),
        (["train", "CartPole-v1", "--hidden", "64,64"], "hidden: (64, 64) would have no effect"),
        (["train", "CartPole-v1", "--rate", "0.1"], "rate: 0.1 would have no effect"),
        (["train", "CartPole-v1", "--bounds", "squash"], "bounds: 'squash' would have no effect"),
        (["train", "mountain-car", "--policy", "mlp"], "policy: 'mlp' would have no effect"),
        (["train", "mountain-car", "--horizon", "7"], "horizon: 7 would have no effect"),
        (["train", "CartPole-v1", "--algorithm", "bpg", "--estimator", "bac"], "one of the two"),
        (["train", "--resume", "there", "--seed", "0"], "seed: a run goes on as it began"),
        (["train", "--resume", "nowhere"], "no run is here"),
        (["evaluate", "nowhere"], "no run is here"),
    ],
)
def test_a_wrong_word_gets_one_sentence(words, says, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bayespg", *words])
    monkeypatch.setattr("bayespg.compilation.remember", lambda: None)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert says in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
