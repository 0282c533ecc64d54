"""Every experiment runs, and its report is whole."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bayespg.reproduce import EXPERIMENTS, optimisation, report
from bayespg.reproduce.gradients import angular_error, squared_error


@pytest.mark.parametrize("name", ["lqr-gradient", "lqr-noise"])
def test_gradient_experiments_report_every_curve_with_errors(name, tmp_path, monkeypatch):
    import bayespg.reproduce.lqr_gradient as figure1
    import bayespg.reproduce.lqr_noise as figure2

    for module in (figure1, figure2):
        monkeypatch.setattr(module, "sizes", lambda settings: (5, 100))
    check(name, 6, tmp_path)


@pytest.mark.parametrize("name", ["lqr-optimisation", "lqr-fisher", "lqr-variance"])
def test_optimisation_experiments_report_every_curve_with_errors(name, tmp_path, monkeypatch):
    def learn(methods, settings, progress, sizes=optimisation.SIZES):
        rng = np.random.default_rng(0)
        return {
            (name, M): 0.31 + rng.exponential(size=(settings.runs, 101))
            for name in methods
            for M in sizes
        }

    import bayespg.reproduce.lqr_fisher as figure4
    import bayespg.reproduce.lqr_optimisation as figure3
    import bayespg.reproduce.lqr_variance as figure5

    for module in (figure3, figure4, figure5):
        monkeypatch.setattr(module, "learn", learn)
    check(name, 10, tmp_path)


def check(name, runs, tmp_path):
    experiment = EXPERIMENTS[name]
    settings = dataclasses.replace(experiment.settings(None, 0, True, False), runs=runs)
    fractions = []
    with jax.enable_x64(True):
        outcome = experiment.run(settings, lambda fraction, what: fractions.append(fraction))
    assert all(0 <= fraction <= 1 for fraction in fractions)
    path, picture = report.write(experiment, settings, outcome, tmp_path, 1.0)
    content = json.loads(path.read_text())
    assert picture.stat().st_size > 10_000
    assert len(content["claims"]) >= 2
    for curve in content["curves"]:
        assert len(curve["x"]) == len(curve["mean"]) == len(curve["standard_error"])
        assert np.all(np.isfinite(curve["mean"]))


def test_learning_starts_every_method_from_the_same_policies():
    methods = {name: optimisation.METHODS[name] for name in ("MCPG", "BPG")}
    costs = optimisation.learn(methods, report.Settings(runs=6), lambda *_: None, sizes=(5,))
    np.testing.assert_array_equal(costs["MCPG", 5][:, 0], costs["BPG", 5][:, 0])
    assert costs["BPG", 5].shape == (6, 101)


def test_errors_of_known_estimates():
    exact = np.array([3.0, 4.0])
    estimate = np.array([[3.0, 4.0], [-4.0, 3.0]])
    np.testing.assert_allclose(squared_error(estimate, exact), [0.0, 50.0])
    np.testing.assert_allclose(angular_error(estimate, exact), [0.0, 90.0], atol=1e-5)
