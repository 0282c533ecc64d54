"""benchmarks/suite.py: scores of known curves, and the tasks of benchmarks/random_tasks.py."""

import itertools
import json
import math
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import random_tasks
import suite
import suite_goals
import suite_report
import suite_tasks
from gymnasium.utils.env_checker import check_env
from scipy.stats import trim_mean

TASK = "CartPole-v1"
BUDGET, THRESHOLD, RANDOM = suite_tasks.TASKS[TASK]


def line(exploring, deterministic=None, **changes):
    """A run of the suite whose curves are given in normalised returns."""
    curves = np.array([exploring, exploring if deterministic is None else deterministic])
    returns = RANDOM + curves * (THRESHOLD - RANDOM)
    steps = np.linspace(0, BUDGET, curves.shape[1]).astype(int).tolist()
    return {
        "task": TASK, "label": "bayespg", "seed": 0, "budget": BUDGET, "steps": steps,
        **dict(zip(suite_tasks.FORMS, returns.tolist(), strict=True)),
        **{f"{form}_errors": [1.0] * len(steps) for form in suite_tasks.FORMS},
        "seconds": [s / 1000 for s in steps], "train_seconds": 50.0, "error": None,
    } | changes  # fmt: skip


class TestScore:
    def test_is_the_mean_of_both_curves_without_the_untrained_policy(self):
        found = line([9, 0, 0.5, 1, 0.5], [9, 1, 1, 1, 1])
        assert suite_report.score(found) == pytest.approx((0.5 + 1) / 2)

    def test_is_clipped_for_each_form(self):
        assert suite_report.score(line([0, -3, 1], [0, 5, 1])) == pytest.approx(0.75)

    def test_of_the_first_part_counts_steps_of_the_whole_budget(self):
        found = line([0, 0.2, 0.4, 0.6, 0.8, 1.0])
        assert suite_report.score(found, 0.2) == pytest.approx(0.2)
        part = found | {"steps": [s // 10 for s in found["steps"]], "budget": BUDGET // 10}
        assert suite_report.score(part, 0.2) == pytest.approx(0.6)

    @pytest.mark.parametrize("n", [1, 3, 4, 5, 10, 11])
    def test_interquartile_mean_is_scipys(self, n):
        values = np.random.default_rng(n).normal(size=(3, n))
        expected = trim_mean(values, 0.25, axis=1)
        np.testing.assert_allclose(suite_report.interquartile_mean(values), expected)

    def test_bootstrap_interval_has_the_width_of_the_standard_error(self):
        rng = np.random.default_rng(0)
        mean, low, high = suite_report.method_score(rng.normal(0.5, 0.1, (2, 200)))
        # An interquartile mean of normal values has 1.09 times the standard error of their mean.
        width = 2 * 1.96 * 1.09 * 0.1 / math.sqrt(200 * 2)
        assert low < mean < high
        assert 0.8 < (high - low) / width < 1.2

    def test_bootstrap_of_equal_seeds_has_no_width(self):
        assert suite_report.method_score([[0.25] * 5, [0.75] * 3]) == pytest.approx((0.5,) * 3)


class TestCurve:
    def test_the_threshold_is_met_where_two_evaluations_in_a_row_meet_it(self):
        found = line([0, 1, 0.5, 1, 1, 0])
        assert suite_report.first_met(found, "exploring") == (3 * BUDGET / 5, 3 * BUDGET / 5000)
        assert suite_report.first_met(line([0, 1, 0, 1]), "exploring") == (math.inf, math.inf)

    def test_the_last_evaluation_of_a_run_that_ended_when_solved_stands_for_the_rest(self):
        curve = RANDOM + np.array([0, 0.5, 1, 1]) * (THRESHOLD - RANDOM)
        run = {
            "task": TASK, "algorithm": "ARS", "seed": 3, "budget": BUDGET, "steps": 6000,
            "evaluated_at": [0, 2000, 4000, 6000], "train_seconds": 6.0,
            "stochastic": curve.tolist(), "deterministic": curve.tolist(),
        }  # fmt: skip
        found = suite_report.to_its_threshold(run)
        many = BUDGET // 2000
        assert found["steps"][-1] == BUDGET
        assert suite_report.score(found) == pytest.approx((many - 0.5) / many)
        assert suite_report.first_met(found, "exploring") == (4000, 4.0)
        assert suite_report.to_its_threshold(run | {"budget": BUDGET - 1}) is None

    def test_kept_is_nine_tenths_of_the_best_also_above_the_threshold(self):
        assert suite_report.kept(line([0, 1, 2, 2, 2, 1.9, 1.9, 1.9]))
        assert not suite_report.kept(line([0, 1, 2, 2, 2, 1.7, 1.7, 1.7]))

    def test_a_policy_that_never_changes_is_kept_unless_evaluations_are_noisy(self):
        exact, noisy = (
            line([1] * 21) | {f"{f}_errors": [error] * 21 for f in suite_tasks.FORMS}
            for error in (0.0, 0.3 * (THRESHOLD - RANDOM))
        )
        assert suite_report.constant_kept(exact) == 1
        assert 0.1 < suite_report.constant_kept(noisy) < 0.5

    def test_a_point_has_the_policy_with_which_its_step_was_taken(self):
        policy = 0
        curve = suite.Curve(np.array([0, 10, 20, 30]), lambda *_: [policy, policy])
        for policy, steps in ((0, 5), (1, 10), (2, 25), (3, 30)):  # noqa: B007
            curve.record(steps, 0.0)
        policy = 4
        curve.record(np.inf, 0.0)
        assert curve.returns["exploring"] == [0, 2, 2, 4]
        assert curve.steps == [0, 10, 20, 30]

    def test_a_run_that_ends_below_its_start_is_told(self, capsys):
        up, down = line([0.2, 0.4, 0.6, 0.8]), line([0.2, 0.8, 0.1, 0.1], seed=1)
        suite_report.start_end({"bayespg": {TASK: [up, down]}})
        said = capsys.readouterr().out
        assert "exploring: 1 of 2 runs end more than 3 standard errors below" in said
        assert "seed 1, exploring" in said

    def test_an_end_that_is_not_finite_counts_as_below(self):
        found = line([0.2, 0.4, 0.6, math.nan])
        assert suite_report.ends(found, "exploring")[2] == -math.inf

    def test_tables_and_pictures_of_two_methods(self, tmp_path):
        path = tmp_path / "runs.jsonl"
        for seed in range(3):
            suite.sb3.append(path, line([0, 0.5, 1, 1, 1, 1], seed=seed))
            suite.sb3.append(path, line([0, 0, 0, 0, 1, 1], seed=seed, label="ppo"))
        found = suite_report.stored([path])
        said = suite_report.tables(found)["all tasks"]
        assert "| bayespg | 0.900 (0.900 to 0.900) | 0.500" in said
        assert "| ppo | 0.400" in said
        suite_report.plot(found, tmp_path / "suite.png")
        assert (tmp_path / "suite.png").stat().st_size > 10_000

    def test_goals_that_are_met_and_missed(self):
        up = {}
        for task, (_, threshold, chance) in suite_tasks.TASKS.items():
            end = chance if task == "Swimmer-v5" else threshold
            curves = {form: [chance] + [end] * 5 for form in suite_tasks.FORMS}
            up[task] = [line([0] * 6, task=task) | curves]
        found = {"bayespg": up, "trpo": {TASK: [line([0, 0, 0, 0, 1, 1])]}}
        met = {(of.task, of.asked): of for of in suite_goals.goals(found)}
        assert met["1 tasks", "score 1.25 times that of TRPO"].measured == "1.000 and 0.400"
        assert met["Swimmer-v5", "100 within 40,000 steps"].measured == "never / never"
        assert met["5 tasks", "every seed of a classic task is solved"].met
        assert not met["CartPole-v1", "solved within 4,451 steps"].met
        with pytest.raises(SystemExit, match="no runs of bayespg on Acrobot-v1, "):
            list(suite_goals.goals({"bayespg": {TASK: up[TASK]}}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("episodes=16", 16), ("limit=0.02", 0.02), ("hidden=64,64", [64, 64]), ("policy=mlp", "mlp"),
     ("normalise=false", False)],
)  # fmt: skip
def test_settings_of_the_command_line(text, expected):
    assert suite.setting(text) == (text.split("=")[0], expected)


@pytest.mark.slow
def test_evaluations_leave_training_alone():
    def run(evaluations):
        settings = {"policy": "linear", "estimator": "mcpg", "episodes": 2}
        return suite.one(
            suite.Order("bayespg", "random/16", 3, settings, "", 0.01, evaluations, {})
        )

    few, many = run(1), run(4)
    assert few["error"] is None
    assert many["steps"] == [0, 75, 150, 225, 300]
    same = ("training_return", "trained_steps", "updates")
    assert [few[name] for name in same] == [many[name] for name in same]
    json.dumps(many, allow_nan=False)


class TestRandomTasks:
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("seed", [0, 3, 7, 14, 16])
    def test_obey_the_interface_of_gymnasium(self, seed):
        check_env(random_tasks.make(seed).unwrapped, skip_render_check=True)

    @pytest.mark.filterwarnings("ignore")
    def test_so_does_navigation(self):
        check_env(random_tasks.navigation().unwrapped, skip_render_check=True)

    def test_twenty_hold_everything_and_sixty_all_kinds(self):
        kinds = [random_tasks.kind(seed) for seed in range(60)]
        assert len(set(kinds)) == 60
        assert {k.reward for k in kinds[:20]} == set(random_tasks.REWARDS)
        assert {k.ending for k in kinds[:20]} == set(random_tasks.ENDINGS)
        assert {(k.dynamics, k.choices) for k in kinds[:20]} == set(
            itertools.product(random_tasks.DYNAMICS, (True, False))
        )

    def test_a_seed_determines_the_task_and_its_episodes(self):
        def play(task):
            env = random_tasks.make(task)
            env.action_space.seed(0)
            env.reset(seed=1)
            return [env.step(env.action_space.sample())[:2] for _ in range(20)]

        for (a, r), (b, s) in zip(play(9), play(9), strict=True):
            np.testing.assert_array_equal(a, b)
            assert r == s

    @pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 7, 8, 19])
    def test_random_actions_end_some_episodes_where_they_can_end(self, seed):
        env, ended, count = random_tasks.make(seed), 0, 12
        env.action_space.seed(seed)
        for episode in range(count):
            env.reset(seed=episode)
            terminated = truncated = False
            while not (terminated or truncated):
                seen, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                assert np.isfinite([*seen, reward]).all()
            ended += terminated
        env.close()
        ending = random_tasks.kind(seed).ending
        if ending in ("drift", "stable"):
            assert ended == 0
        else:
            assert 0 < ended < (count + 1 if ending == "failure" else count)

    def test_delayed_rewards_add_up_to_the_dense_ones(self):
        task = random_tasks.RandomTask(1)
        task.reset(seed=0)
        paid = owed = 0.0
        for _ in range(task.horizon):
            paid += task.step(0)[1]
            owed += task.unit * task._judged(task._state)[0]
        assert task.every > 1
        assert paid == pytest.approx(owed)


class TestRivals:
    """With a model in place of Stable-Baselines3's, which is not installed here."""

    @pytest.fixture
    def model(self, monkeypatch):
        class BaseCallback:
            num_timesteps = 0

        class Model:
            num_timesteps, ep_info_buffer, policy = 0, [{"r": 1.0}, {"r": 3.0}], None

            def learn(self, steps, callback):
                callback.model = self
                callback._on_training_start()
                while self.num_timesteps < steps:
                    self.num_timesteps += 400
                    callback.num_timesteps = self.num_timesteps
                    callback._on_step()
                    if self.num_timesteps > self.breaks:
                        raise RuntimeError("broken")

        class Evaluation:
            def __init__(self, model, *_):
                self.model = model

            def returns(self, deterministic):
                return [self.model.num_timesteps + deterministic] * suite.EPISODES

        model = Model()
        model.breaks, model.policy = math.inf, types.SimpleNamespace(parameters=list)
        name = "stable_baselines3.common.callbacks"
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(BaseCallback=BaseCallback))
        monkeypatch.setattr(suite.sb3, "build", lambda *_, **__: model)
        monkeypatch.setattr(suite.sb3, "Evaluation", Evaluation)
        return model

    def order(self, **changes):
        order = suite.Order("ppo", TASK, 0, {}, "ppo", 0.1, 5, {})
        return order._replace(**changes)

    def test_a_run_is_evaluated_with_the_policy_of_each_step(self, model):
        found = suite.one(self.order())
        assert found["steps"] == [0, 1000, 2000, 3000, 4000, 5000]
        assert found["exploring"] == [0, 1200, 2000, 3200, 4000, 5200]
        assert found["deterministic"] == [1, 1201, 2001, 3201, 4001, 5201]
        assert found["training_return"] == 2
        assert found["error"] is None
        json.dumps(found, allow_nan=False)

    def test_a_run_that_fails_keeps_its_last_policy(self, model):
        model.breaks = 2000
        found = suite.one(self.order())
        assert found["exploring"] == [0, 1200, 2000, 2400, 2400, 2400]
        assert found["error"] == "RuntimeError: broken"

    def test_each_plays_the_tasks_of_its_kind(self):
        def played(method):
            return {task for task in suite_tasks.TASKS if suite.METHODS[method].plays(task)}

        for method in ("ppo", "trpo", "a2c", "ars"):
            assert played(method) == set(suite_tasks.TASKS)
        assert played("sac") == played("td3")
        assert played("dqn").isdisjoint(played("sac"))
        assert played("dqn") | played("sac") == set(suite_tasks.TASKS)
        assert suite.METHODS["dqn"].plays("navigation")
        assert not suite.METHODS["sac"].plays("navigation")


@pytest.mark.slow
def test_steps_to_a_threshold_are_measured_by_a_script(tmp_path):
    """Its functions run in other processes, which must find them."""
    script, out = Path(suite.__file__).with_name("learning.py"), tmp_path / "ours.jsonl"
    arguments = ["learn", "--tasks", TASK, "--seeds", "1", "--steps", "100", "--out", str(out)]
    subprocess.run([sys.executable, str(script), *arguments, "--jobs", "1"], check=True)
    (of,) = map(json.loads, out.read_text().splitlines())
    assert (of["task"], of["seed"]) == (TASK, 0)
