"""Every experiment runs, and its report is whole."""

import dataclasses
import json
from pathlib import Path
from typing import get_args

import experiments
import jax
import numpy as np
import pytest

from bayespg._support import files
from bayespg.learning import estimators
from bayespg.learning.updates import conventional
from bayespg.policies import Tabular, mountain_car_softmax, ship_steering_cmac
from bayespg.reproduce import (
    EXPERIMENTS,
    gradients,
    learning,
    lqr_learning,
    lqr_noise,
    page,
    report,
)
from bayespg.reproduce.claims import Verdict, ratios
from bayespg.reproduce.gradients import angular_error, squared_error
from bayespg.reproduce.samples import Samples

RESULTS = Path(__file__).parent.parent / "docs" / "results"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lqr-gradient", "lqr-gradient-readings", "lqr-noise", "lengths"])
def test_gradient_experiments_report_every_curve_with_errors(name, tmp_path, monkeypatch):
    import lengths

    import bayespg.reproduce.lqr_gradient as figure1
    import bayespg.reproduce.lqr_noise as figure2

    for module in (figure1, figure2, lengths):
        monkeypatch.setattr(module, "sizes", lambda settings: (5, 100))
    check(name, 6, tmp_path)


@pytest.mark.slow
def test_sparsification_reports_errors_and_times(tmp_path, monkeypatch):
    from bayespg.reproduce import sparsification

    monkeypatch.setattr(sparsification, "TAUS", (1e-4, 1.0))
    monkeypatch.setattr(sparsification, "REPEATS", 3)
    monkeypatch.setattr(sparsification, "RUNS", 4)
    check("sparsification", 4, tmp_path)


@pytest.mark.slow
def test_costs_are_reported(tmp_path, monkeypatch):
    from bayespg.reproduce import sparsification

    monkeypatch.setattr(sparsification, "RUNS", 4)
    check("costs", 3, tmp_path)


@pytest.mark.slow
def test_variances_at_two_lengths_are_reported(tmp_path, monkeypatch):
    import bayespg.reproduce.random_walk_gradient as figure6

    monkeypatch.setattr(figure6, "STEPS", (0.9, 0.7))
    monkeypatch.setattr(figure6, "LONGEST", 60)
    check("random-walk-lengths", 4, tmp_path)


@pytest.mark.slow
def test_search_reports_every_estimator(tmp_path, monkeypatch):
    import search_gradients as search

    monkeypatch.setattr(search, "QUICK", (1, 2))
    monkeypatch.setattr(search, "ROUNDS", 2)
    check("search", 4, tmp_path)


def test_error_bars_on_tasks_report_every_cell(tmp_path, monkeypatch):
    """Numbers of one batch, as they come from the posteriors."""
    import uphill_tasks

    def judged(environment, policy, judged, truth, paths, keys):
        n, runs, rng = truth.size, 40, np.random.default_rng(0)
        followed = [(*rng.uniform(size=(2, runs)), rng.normal(size=runs)) for _ in range(2)]
        components = (rng.normal(size=(runs, n)), np.ones((runs, n)), np.full((runs, n), 3.0))
        return [
            (followed, components, tuple(np.full(runs, x) for x in (1, 1, n, 3))) for _ in judged
        ]

    monkeypatch.setattr(uphill_tasks, "_statistics", judged)
    monkeypatch.setattr(uphill_tasks, "brute_force", lambda *_, **__: (np.ones(10), np.zeros(10)))
    monkeypatch.setattr(
        uphill_tasks, "_stages", lambda agent, counts, key: [(k, agent.policy) for k in range(3)]
    )
    check("uphill-tasks", 5, tmp_path)


@pytest.mark.slow
def test_error_bars_on_tasks_are_measured(tmp_path, monkeypatch):
    import uphill_tasks

    size = uphill_tasks.Size(("CartPole",), {"linear": (2,), "fourier": (2,)}, (1, 2), 40)
    monkeypatch.setattr(uphill_tasks, "size", lambda settings: size)
    monkeypatch.setattr(uphill_tasks, "DOUBT", np.inf)  # 40 episodes leave the gradient in doubt
    check("uphill-tasks", 3, tmp_path)


@pytest.mark.slow("lqr-fisher", "lqr-variance", "lqr-readings", "lqr-fisher-readings")
@pytest.mark.parametrize(
    "name",
    ["lqr-optimisation", "lqr-fisher", "lqr-variance", "lqr-readings", "lqr-fisher-readings"],
)
def test_optimisation_experiments_report_every_curve_with_errors(name, tmp_path, monkeypatch):
    def learn(methods, sizes, settings, progress):
        rng = np.random.default_rng(0)
        return {
            (name, M): learning.Learned(
                np.arange(101), 0.31 + rng.exponential(size=(settings.runs, 101)), None
            )
            for name in methods
            for M in sizes
        }

    monkeypatch.setattr(lqr_learning, "learn", learn)
    check(name, 10, tmp_path)


@pytest.mark.slow
def test_the_random_walk_s_gradient_reports_every_estimator(tmp_path, monkeypatch):
    import bayespg.reproduce.random_walk_gradient as figure6

    kept = (*figure6.PAPER, "BAC", figure6.PRINTED, figure6.BAC, figure6.OURS)
    few = {name: figure6.ESTIMATORS[name] for name in kept}
    monkeypatch.setattr(figure6, "ESTIMATORS", few)
    monkeypatch.setattr(figure6, "LOOKS", {name: figure6.LOOKS[name] for name in kept})
    of_kept = [
        row
        for row in figure6.CLAIMS
        if {name for cells in row.pairs.values() for _, name in cells} <= few.keys()
    ]
    monkeypatch.setattr(figure6, "CLAIMS", of_kept)
    monkeypatch.setattr(figure6, "sizes", lambda settings: (5,))
    check("random-walk-gradient", 4, tmp_path)


POLICIES = {
    "random-walk-learning": lambda runs: Tabular(np.full((runs, 9), 1.5)),
    "random-walk-printed": lambda runs: Tabular(np.full((runs, 9), 1.5)),
    "mountain-car": mountain_car_softmax,
    "mountain-car-long": mountain_car_softmax,
    "ship-steering": ship_steering_cmac,
    "ship-steering-printed": ship_steering_cmac,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_learning_experiments_report_every_curve_with_errors(name, tmp_path, monkeypatch):
    def learn(task, methods, settings, progress):
        found = {}
        for M, N in task.updates.items():
            for k, method in enumerate(methods):
                at = np.arange(0, N + 1, task.every or 1)
                values = np.random.default_rng(k).uniform(size=(settings.runs, at.size))
                policy = jax.tree.map(lambda leaf: leaf[0], POLICIES[name](1))
                ended = np.zeros(settings.runs)
                found[method, M] = learning.Learned(at, values, policy, ended)
        return found

    monkeypatch.setattr(learning, "learn", learn)
    check(name, 3, tmp_path)


@pytest.mark.slow
def test_partial_observation_reports_every_policy_and_method(tmp_path, monkeypatch):
    at, rng = np.arange(11), np.random.default_rng(0)

    def learn(task, methods, settings, progress):
        return {
            (method, M): learning.Learned(at, rng.uniform(size=(settings.runs, 11)), None)
            for method in methods
            for M in task.updates
        }

    monkeypatch.setattr(learning, "learn", learn)
    check("partial-observation", 3, tmp_path)


@pytest.mark.slow
def test_learning_and_tuning_run_every_method_from_the_same_start(monkeypatch):
    from bayespg.environments import RandomWalk
    from bayespg.reproduce import random_walk_learning as figure7

    task = learning.Task(RandomWalk(horizon=40), figure7._start, {3: 4})
    methods = {name: figure7.METHODS[name] for name in ("MCPG", "BPG")}
    methods = {
        k: dataclasses.replace(m, update=lambda M: conventional(0.1)) for k, m in methods.items()
    }
    found = learning.learn(task, methods, report.Settings(runs=2), lambda *_: None)
    np.testing.assert_allclose(found["MCPG", 3].values[:, 0], found["BPG", 3].values[:, 0])
    assert found["BPG", 3].values.shape == (2, 4)
    outcome = learning.tune(
        task, {"MCPG": methods["MCPG"]}, (0.01, 1.0),
        lambda h: h.expected_return.mean(), report.Settings(runs=2), lambda *_: None,
    )  # fmt: skip
    assert outcome.extra["best"] == {"MCPG, M = 3": 0.01}


def check(name, runs, tmp_path):
    experiment = (EXPERIMENTS | experiments.EXPERIMENTS)[name]
    settings = dataclasses.replace(experiment.settings(None, 0, True, False), runs=runs)
    fractions = []
    with jax.enable_x64(True):
        outcome = experiment.run(settings, lambda fraction, what: fractions.append(fraction))
    assert all(0 <= fraction <= 1 for fraction in fractions)
    content = report.write(experiment, settings, outcome, tmp_path, 1.0)
    assert report.done(experiment, settings, tmp_path)
    assert json.loads((tmp_path / f"{name}.json").read_text("utf-8")) == content
    assert all((tmp_path / f"{name}{kind}").stat().st_size > 10_000 for kind in (".svg", ".png"))
    assert len(content["claims"]) >= 2
    assert len({claim["id"] for claim in content["claims"]}) == len(content["claims"])
    for claim in content["claims"]:
        assert claim["effects"]
        assert claim["verdict"] in get_args(Verdict)
    for curve in content["curves"]:
        assert len(curve["x"]) == len(curve["mean"]) == len(curve["standard_error"])
        assert np.all(np.isfinite(curve["mean"]))


def test_numbers_on_disk_are_short_and_what_is_not_finite_is_null():
    text = files.readable({"a": [1 / 3, np.float64(np.nan), 2], "b": {"c": (np.inf, "x [1, 2]")}})
    assert '"a": [0.333333, null, 2]' in text
    assert json.loads(text) == {"a": [0.333333, None, 2], "b": {"c": [None, "x [1, 2]"]}}


@pytest.mark.slow
def test_learning_starts_every_method_from_the_same_policies():
    methods = {name: lqr_learning.method(name, "") for name in ("MCPG", "BPG")}
    found = lqr_learning.learn(methods, (5,), report.Settings(runs=6), lambda *_: None)
    costs = {name: found[name, 5].values for name in methods}
    np.testing.assert_allclose(costs["MCPG"][:, 0], costs["BPG"][:, 0], rtol=1e-12)
    assert costs["BPG"].shape == (6, 101)


def test_errors_of_known_estimates():
    exact = np.array([3.0, 4.0])
    estimate = np.array([[3.0, 4.0], [-4.0, 3.0]])
    np.testing.assert_allclose(squared_error(estimate, exact), [0.0, 50.0])
    np.testing.assert_allclose(angular_error(estimate, exact), [0.0, 90.0], atol=1e-5)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"claims": [{"claim": "as of old"}]}'])
def test_what_is_damaged_or_old_is_not_taken_for_done(text, tmp_path):
    experiment = EXPERIMENTS["bandit"]
    for kind in (".svg", ".png", ".json"):
        (tmp_path / f"bandit{kind}").write_text(text)
    assert not report.done(experiment, experiment.settings(None, 0, True, False), tmp_path)
    assert page.read(tmp_path, ["bandit"]) == []


def test_noise_adds_to_the_error_of_monte_carlo_what_was_sampled():
    """T sigma_r^2 tr G / M, against stored runs with noise, whose intervals hold jointly."""
    stored = Samples.load(RESULTS / "lqr-noise.npz")
    sampled, known = (
        {
            M: (stored["σ_r = 0: square", "MC", M], lqr_noise.value(stored, what, "MC", M))
            for M in stored.sizes()
        }
        for what in ("σ_r = 1: square", "exact: 1")
    )
    for wide, narrow in zip(ratios(sampled), ratios(known), strict=True):
        assert wide.low < narrow.low < narrow.high < wide.high
        assert 1.001 < narrow.value < 1.003


@pytest.mark.slow
def test_a_fisher_matrix_from_other_paths_is_that_of_as_many(x64):
    """Its mean over batches is the exact one, and it is not that of the batch itself."""
    environment, policy = gradients.lqr_setting()
    own, other = estimators.monte_carlo_fisher, lqr_learning.BY_OTHERS.fisher

    @jax.jit
    @jax.vmap
    def both(key):
        batch = estimators.draw(environment, policy, key, 10)
        return [choice(batch).G for choice in (own, other)]

    first, second = both(jax.random.split(jax.random.key(0), 2_000))
    exact = np.asarray(environment.fisher(policy))
    error = np.std(second, 0, ddof=1) / 2_000**0.5
    np.testing.assert_array_less(np.abs(np.mean(second, 0) - exact), 5 * error)
    assert abs(np.corrcoef(first[:, 0, 0], second[:, 0, 0])[0, 1]) < 5 / 2_000**0.5
