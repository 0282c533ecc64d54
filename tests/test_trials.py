"""Searches over settings: what is drawn, what is stopped early, what mattered, and resuming.

Training is replaced by runs whose return is a function of their settings.
"""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from bayespg.agents import trials
from bayespg.agents.trials import Choice, Range, Trial
from bayespg.cli import continuing, sweep
from bayespg.cli.commands import app
from bayespg.runs import importance
from bayespg.runs.store import CONFIG, Run

SPACE = {"limit": Range(0.001, 1.0), "policy": Choice(("linear", "fourier"))}
WORDS = ["--set", "limit=0.001..1.0", "--set", "policy=linear,fourier", "--set",
         "estimator=gpomdp", "--steps", "4000", "--seeds", "2"]  # fmt: skip
EVERY = 100
"""Steps per update."""


def height(limit: float) -> float:
    """The return in the end: highest at 0.03, and nothing but `limit` matters."""
    return -((math.log10(limit) - math.log10(0.03)) ** 2)


@pytest.fixture
def trained(monkeypatch):
    """The names of the runs that were trained, with the steps that they were to reach."""
    monkeypatch.setattr(trials, "optuna_is_installed", lambda: False)
    done = []

    def fake(runs, jobs, advance, *, address, imports, until, failed):
        dropped = set()
        for name, (path, config) in runs.items():
            if len(done) == fake.interrupt_after:
                raise KeyboardInterrupt
            if name in dropped:
                continue
            if fake.fails(config):
                dropped |= {*failed(name, ZeroDivisionError("by zero\nand more"))}
                continue
            begun = (path / CONFIG).exists()
            run = Run.open(path) if begun else Run.create(path, config)
            last = int(run.metrics()["steps"][-1]) if begun else 0
            noise = np.random.default_rng([config["seed"], last]).normal(size=until // EVERY)
            with run:
                for k in range(last // EVERY, until // EVERY):
                    steps = EVERY * (k + 1)
                    returned = height(config["limit"]) * steps / 4000 + 0.01 * noise[k]
                    run.log({"update": k, "steps": steps, "return": returned, "sure": 0.5})
            done.append((name, until))
            yield name, 0.0

    fake.interrupt_after, fake.fails = math.inf, lambda config: False
    monkeypatch.setattr(continuing, "side_by_side", fake)
    monkeypatch.setattr(sweep.overview, "write", lambda paths, out: out)
    return done, fake


def search(folder, *more):
    return CliRunner().invoke(app, ["sweep", "CartPole-v1", *WORDS, "--out", str(folder), *more])


def count(done, until):
    return sum(steps == until for _, steps in done)


def test_poor_combinations_are_stopped_and_the_best_is_trained_to_the_end(tmp_path, trained):
    done, _ = trained
    shown = search(tmp_path, "--trials", "8")
    assert shown.exit_code == 0, (shown.output, shown.exception)
    assert [count(done, steps) for steps in (1000, 2000, 4000)] == [16, 8, 4]
    kept = json.loads((tmp_path / sweep.TABLE).read_text())["combinations"]
    heights = [height(one["settings"]["limit"]) for one in kept]
    assert "stopped_at" not in kept[int(np.argmax(heights))]
    assert sorted(one.get("stopped_at", 1.0) for one in kept) == 4 * [0.25] + 2 * [0.5] + 2 * [1.0]
    assert "stopped early" in shown.output
    assert f"limit={kept[int(np.argmax(heights))]['settings']['limit']}" in shown.output
    assert (tmp_path / sweep.PICTURE).stat().st_size > 5000
    done.clear()
    assert search(tmp_path, "--trials", "8").exit_code == 0
    assert done == []
    assert search(tmp_path, "--trials", "10").exit_code == 0
    assert count(done, 1000) == 4  # two more, and the decisions on the others stand
    more = json.loads((tmp_path / sweep.TABLE).read_text())["combinations"]
    assert [one["settings"] for one in more[:8]] == [one["settings"] for one in kept]
    done.clear()
    assert search(tmp_path, "--trials", "10", "--no-early-stopping").exit_code == 0
    again = json.loads((tmp_path / sweep.TABLE).read_text())["combinations"]
    assert not any("stopped_at" in one for one in again)
    assert all(steps == 4000 for _, steps in done)


@pytest.mark.slow("3", "26")
@pytest.mark.parametrize("after", [3, 18, 26])
def test_an_interrupted_search_ends_as_one_that_was_not(tmp_path, trained, after):
    done, fake = trained
    assert search(tmp_path / "whole", "--trials", "8").exit_code == 0
    done.clear()
    fake.interrupt_after = after
    assert search(tmp_path / "parts", "--trials", "8").exit_code != 0
    fake.interrupt_after = math.inf
    assert search(tmp_path / "parts", "--trials", "8").exit_code == 0
    whole, parts = (
        json.loads((tmp_path / name / sweep.TABLE).read_text()) for name in ("whole", "parts")
    )
    assert whole["combinations"] == parts["combinations"]
    assert len(done) == 28


def test_a_combination_that_fails_does_not_end_the_others(tmp_path, trained, monkeypatch):
    done, fake = trained
    pages = []
    monkeypatch.setattr(sweep.overview, "write", lambda paths, out: pages.append(paths) or out)
    fake.fails = lambda config: config["limit"] > 0.1 and config["seed"] == 1
    shown = search(tmp_path, "--trials", "8", "--no-early-stopping")
    assert shown.exit_code == 0, (shown.output, shown.exception)
    kept = json.loads((tmp_path / sweep.TABLE).read_text())["combinations"]
    poor = [one for one in kept if one["settings"]["limit"] > 0.1]
    assert 0 < len(poor) < 6
    assert all(one["failed"] == "seed 1: ZeroDivisionError: by zero and more" for one in poor)
    assert all("returns_at_the_end" not in one for one in poor)
    assert len(done) == 16 - len(poor)
    assert f"{len(poor)} of 8 combinations failed; the same command tries them" in shown.output
    assert len(pages[0]) == min(8 - len(poor), sweep.CURVES)
    assert (tmp_path / sweep.PICTURE).stat().st_size > 5000
    done.clear()
    fake.fails = lambda config: False  # the cause was mended
    assert search(tmp_path, "--trials", "8", "--no-early-stopping").exit_code == 0
    assert len(done) == len(poor)
    assert "failed" not in (tmp_path / sweep.TABLE).read_text()


def test_seeds_of_a_combination_that_has_failed_are_not_begun(tmp_path, trained):
    done, fake = trained
    fake.fails = lambda config: config["limit"] > 0.1 and config["seed"] == 0
    assert search(tmp_path, "--trials", "8").exit_code == 0
    kept = json.loads((tmp_path / sweep.TABLE).read_text())["combinations"]
    failed = [one for one in kept if "failed" in one]
    assert all(one["settings"]["limit"] > 0.1 for one in failed)
    assert count(done, 1000) == 2 * (8 - len(failed)) < 16
    assert count(done, 4000) > 0


def test_a_sweep_whose_combinations_all_fail_is_an_error(tmp_path, trained):
    _, fake = trained
    fake.fails = lambda config: True
    shown = search(tmp_path, "--trials", "3")
    assert shown.exit_code == 1
    assert "all combinations failed; the first, limit=" in shown.stderr
    assert "seed 0: ZeroDivisionError: by zero" in shown.stderr


def test_refused_settings_are_named_before_anything_is_trained(tmp_path, trained):
    done, _ = trained
    for words, says in (
        (["--set", "hidden=8x8"], "hidden=8x8 is refused: hidden: (8, 8) would have no effect"),
        (["--set", "discount=0.9,2"], "discount=2 is refused: discount: expected a number"),
    ):
        assert says in str(search(tmp_path, "--trials", "8", *words).exception)
    assert done == list(tmp_path.iterdir()) == []


def test_a_combination_that_failed_is_behind_those_that_were_stopped():
    failed, stopped, best = Trial({}, [9.0]), Trial({}, [-5.0], 0.25), Trial({}, [-5.0, -6.0])
    failed.fail("seed 0: no")
    failed.fail("seed 1: nor here")
    assert failed.failed == "seed 0: no"
    assert trials.places([failed, best, stopped, failed]).tolist() == [0.5, 3, 2, 0.5]


def test_more_seeds_of_a_search_train_what_is_missing(tmp_path, trained):
    done, _ = trained
    search(tmp_path, "--trials", "8")
    done.clear()
    assert search(tmp_path, "--trials", "8", "--seeds", "3").exit_code == 0
    assert [count(done, steps) for steps in (1000, 2000, 4000)] == [8, 4, 2]


def test_what_is_wrong_with_a_search_is_named(tmp_path, trained):
    assert "trials: limit has a range" in str(search(tmp_path).exception)
    for words, message in (
        (["--search", "random"], "search: says how --trials are chosen"),
        (["--trials", "3", "--search", "grid"], "search: "),
        (["--trials", "3", "--search", "optuna"], "search: optuna is not installed"),
        (["--trials", "3", "--set", "discount=0.9..0.5"], "with LOW below HIGH"),
        (["--trials", "3", "--set", "update=a..b"], "update needs numbers for a range"),
    ):
        assert message in str(search(tmp_path, *words).exception)
    assert search(tmp_path, "--trials", "2").exit_code == 0
    assert "with steps 4000, not 8000" in str(
        search(tmp_path, "--trials", "2", "--steps", "8000").exception
    )


def test_a_range_is_drawn_on_its_own_scale():
    rng = np.random.default_rng(0)
    logarithmic = [Range(0.001, 10.0).draw(rng) for _ in range(2000)]
    # Standard error 0.011.
    assert abs(np.mean(np.array(logarithmic) < 0.1) - 0.5) < 0.05
    whole = [Range(2, 9).draw(rng) for _ in range(200)]
    assert {type(x) for x in whole} == {int}
    assert set(whole) == set(range(2, 10))
    even = [Range(0.9, 0.999).draw(rng) for _ in range(200)]
    assert all(0.9 <= x <= 0.999 and x == float(f"{x:.3g}") for x in even)


def test_no_combination_is_drawn_twice_and_a_small_space_ends():
    space = {"a": Choice((1, 2)), "b": Choice((3, 4))}
    drawn = list(trials.at_random(space, 0))
    assert len(drawn) == 4
    assert len(list(trials.at_random(space, 0, drawn[:3]))) == 1


def test_few_combinations_or_equal_ones_are_not_stopped():
    few = [Trial({}, [float(k)]) for k in range(trials.FEW - 1)]
    equal = [Trial({}, [-200.0]) for _ in range(10)]
    for of in (few, equal):
        trials.stop_poor(of, of, 0)
        assert not any(trial.stopped for trial in of)


def test_importance_is_that_of_the_setting_which_matters():
    """Adjusted shares: one for the setting that orders all, and about zero for another."""
    rng = np.random.default_rng(0)
    settings = {"x": rng.uniform(size=40).tolist(), "word": ["a", "b"] * 20, "same": [1] * 40}
    places = np.argsort(np.argsort(settings["x"])).astype(float)
    found = importance.of(settings, places)
    assert found.keys() == {"x", "word"}
    assert found["x"].share > 0.9
    assert found["x"].share > found["x"].chance
    assert found["word"].share < found["word"].chance < 0.3


def test_optuna_looks_where_returns_were_high():
    pytest.importorskip("optuna")
    tried: list[Trial] = []
    for k in range(30):
        one = trials.by_optuna(SPACE, tried, 0, [trial.settings for trial in tried])
        stopped = 0.25 if k % 3 == 2 else None
        tried.append(Trial(one, [height(one["limit"])], stopped))
        if one["limit"] > 0.5:
            tried[-1].fail("seed 0: too large")
    first, last = tried[: trials.FIRST], tried[trials.FIRST :]
    early, late = (np.mean([height(t.settings["limit"]) for t in of]) for of in (first, last))
    assert late > early
    assert len({json.dumps(t.settings) for t in tried}) == 30
