"""Agents: training on real tasks, and what happens when something goes wrong."""

import dataclasses
import functools
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import get_args

import equinox as eqx
import gymnasium
import jax
import numpy as np
import optax
import pytest
from gymnasium import spaces

import bayespg
from bayespg import callbacks
from bayespg.agents import load, names
from bayespg.agents.agent import Agent
from bayespg.agents.settings import Settings
from bayespg.agents.store import Best
from bayespg.environments import LQR, History, MountainCar, RandomWalk
from bayespg.environments.host import EnvironmentFailure
from bayespg.learning import trust
from bayespg.learning.batch import MOST_DENSE
from bayespg.learning.estimators import BAC as Rule
from bayespg.learning.estimators import Metric
from bayespg.learning.metric import DAMPING, SHARE
from bayespg.policies import Tabular, VectorGaussian, mountain_car_softmax, named
from bayespg.runs import store
from bayespg.runs.columns import Column
from bayespg.runs.store import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import kills

ACTIONS = {
    "discrete": spaces.Discrete(3, start=-1),
    "box": spaces.Box(-2.0, 2.0, (1,), np.float32),
    "multi": spaces.MultiDiscrete([3, 2]),
}


class Walk(gymnasium.Env):
    """Keep x near zero for a dozen steps: quick to learn and quick to run."""

    observation_space = spaces.Box(-10.0, 10.0, (2,), np.float32)

    def __init__(self, kind="discrete", length=12, worth=1.0, trouble=None):
        self.action_space, self.length = ACTIONS[kind], length
        self.worth, self.trouble = worth, trouble

    def _seen(self):
        return np.array([self.x, self.v], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v, self.t = self.np_random.normal(), 0.0, 0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        push = float(np.ravel(action)[0]) - (self.action_space == ACTIONS["multi"])
        self.t += 1
        self.v = 0.8 * self.v + 0.2 * push + 0.05 * self.np_random.normal()
        self.x += self.v
        reward = self.worth * (1.0 - abs(self.x)) if self.worth else 1.0
        if self.trouble is not None and self.t == 5:
            self.trouble(self)
        return self._seen(), reward, abs(self.x) > 4, self.t >= self.length, {}


gymnasium.register("Walk-v0", Walk)


def rows_of(agent, steps, **options):
    kept = []
    agent.learn(steps, callbacks=lambda _, row: kept.append(row), progress=False, **options)
    return kept


def leaves(agent):
    state = agent.state
    return [np.asarray(x) for x in jax.tree.leaves((state.policy, state.critic, state.normaliser))]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


@pytest.mark.slow
def test_a_walk_is_learned_within_forty_updates():
    """The highest return is 12; a policy without preferences earns less than 2."""
    agent = Agent("Walk-v0", "linear", episodes=4, seed=1)
    returns = [agent.update()["return"] for _ in range(40)]
    assert np.mean(returns[-10:]) > 7


@pytest.mark.slow
def test_cartpole_is_balanced_within_forty_thousand_steps():
    rows, stop = [], callbacks.StopAtReturn(450, last=2)
    agent = bayespg.BAC("CartPole-v1", seed=0)
    agent.learn(40_000, callbacks=[lambda _, row: rows.append(row), stop], progress=False)
    assert agent.evaluate(5).mean > 400
    assert all(0 <= row["divergence"] <= 1.5 * 0.05 for row in rows)
    assert rows[-1]["steps"] < 40_000
    assert rows[-1]["episodes"] <= 4 * len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", names.ESTIMATORS)
def test_every_estimator_by_name_takes_sound_steps(name):
    agent = Agent("Walk-v0", estimator=name, episodes=6, seed=2)
    for _ in range(3):
        row = agent.update()
        assert row["sound"] == 1
        assert np.isfinite(row["slope"])
    assert all(np.isfinite(x).all() for x in leaves(agent))


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        pytest.param(policy, kind, marks=() if (i + j) % 3 == 0 else pytest.mark.slow)
        for i, policy in enumerate(get_args(named.Name))
        for j, kind in enumerate(ACTIONS)
    ],
)  # every policy once, every space at least once
def test_every_policy_acts_in_every_space(policy, kind):
    agent = Agent(lambda: Walk(kind), policy, hidden=(4,) if policy == "mlp" else None, seed=3)
    assert agent.world.host.environments[0].action_space.contains(agent.predict(np.zeros(2)))
    paths = agent.draw()
    assert paths.mask.sum() > 0


def test_objects_may_stand_for_names():
    update = optax.chain(optax.scale(-1.0), optax.adam(1e-2))
    agent = Agent(Walk(), estimator=bayespg.estimators.GPOMDP(), update=update, episodes=4)
    assert agent.update()["sound"] == 1


def test_resuming_on_gymnasium_continues_exactly(tmp_path):
    whole = Agent("Walk-v0", "linear", seed=4)
    rows_of(whole, 160)
    half = Agent("Walk-v0", "linear", seed=4)
    rows_of(half, 80, run=tmp_path / "run")
    agent, run = load.resume(tmp_path / "run")
    assert same(agent, half)
    agent.learn(160 - int(agent.state.steps), run=run, progress=False)
    assert same(agent, whole)
    updates = Run.open(tmp_path / "run").metrics()["update"]
    np.testing.assert_array_equal(updates, np.arange(1, int(whole.state.updates) + 1))


@pytest.mark.slow
def test_resuming_in_jax_continues_bit_for_bit(tmp_path):
    def made():
        task = MountainCar(horizon=50), mountain_car_softmax()
        return Agent(*task, "gpomdp", episodes=4, seed=5)  # quick to compile

    whole = made()
    rows_of(whole, 800)
    rows_of(made(), 400, run=tmp_path / "run")
    objects = {"environment": MountainCar(horizon=50), "policy": mountain_car_softmax()}
    agent, run = load.resume(tmp_path / "run", **objects)
    agent.learn(800 - int(agent.state.steps), run=run, progress=False)
    assert same(agent, whole)


def test_a_run_is_trained_for_longer_as_if_it_had_been_longer_from_the_start(tmp_path):
    whole = Agent("Walk-v0", "linear", seed=4)
    rows_of(whole, 200, run=tmp_path / "whole")
    agent = Agent("Walk-v0", "linear", seed=4)
    rows_of(agent, 100, run=tmp_path / "run")
    rows_of(agent, 200 - int(agent.state.steps), run=tmp_path / "run")
    assert same(agent, whole)
    run = Run.open(tmp_path / "run")
    assert (run.config["steps"], run.config["extended"]) == (200, [100])
    assert same(bayespg.load(tmp_path / "run"), whole)
    assert same(*(bayespg.load(tmp_path / name, best=True) for name in ("run", "whole")))
    with pytest.raises(ValueError, match=r"already holds a run with seed 4; choose another"):
        rows_of(Agent("Walk-v0", "linear", seed=5), 10, run=tmp_path / "run")
    agent.update()
    with pytest.raises(ValueError, match=r"a different state of the agent.*bayespg\.resume"):
        rows_of(agent, 10, run=tmp_path / "run")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return kills.Undisturbed(tmp_path_factory.mktemp("kills") / "run")


def test_killed_at_any_write_a_run_ends_with_the_same_numbers(tmp_path, undisturbed):
    """Also while it is resumed, and where the disk is full. benchmarks/kills.py does it 500 times,
    once at each of its calls too."""
    for full in (False, True):
        moments = [50, 19, 3, 18, 21, 1, 20, 2]
        found = kills.disturbed(tmp_path / str(full), undisturbed, moments, full)
        assert found == (len(moments), "")


def test_a_best_policy_that_was_not_written_is_written(tmp_path, undisturbed):
    """Killed right after the checkpoint of an update that is the best, whatever comes after."""
    copied = store.write_whole

    def killed(path, content, previous=None):
        if path.name == store.BEST and len(kept) == last:
            raise kills.Killed
        if path.name == store.BEST:
            kept.append(path)
        copied(path, content, previous)

    kept, last = [], len(set(undisturbed.best)) - 2  # of the best policies written before it
    assert last > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "write_whole", killed)
        with pytest.raises(kills.Killed):
            kills.train(tmp_path / "run", undisturbed.steps)
    assert undisturbed.wrong(tmp_path / "run") == ""
    kills.train(tmp_path / "run", undisturbed.steps)
    assert undisturbed.wrong(tmp_path / "run", finished=True) == ""


def test_resuming_refuses_what_is_not_whole(tmp_path):
    agent = Agent("Walk-v0", "linear", "gpomdp", seed=4)
    rows_of(agent, 60, run=tmp_path / "run")
    rows = (tmp_path / "run" / "metrics.csv").read_text()
    for changed, says in (rows[:-40], "rows are missing"), (rows.replace("1", "2", 1), "checksum"):
        (tmp_path / "run" / "metrics.csv").write_text(changed)
        with pytest.raises(ValueError, match=rf"metrics\.csv: .*{says}"):
            bayespg.resume(tmp_path / "run")
        with pytest.raises(ValueError, match=rf"metrics\.csv: .*{says}"):
            rows_of(agent, 60, run=tmp_path / "run")
        assert (tmp_path / "run" / "metrics.csv").read_text() == changed
        assert same(bayespg.load(tmp_path / "run"), agent)
    (tmp_path / "run" / "metrics.csv").write_text(rows)
    for name in ("checkpoint.npz", "checkpoint.previous.npz"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(ValueError, match="there is no checkpoint to continue from"):
        bayespg.resume(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.csv").read_text() == rows


def test_an_agent_that_was_trained_before_its_run_is_resumed_as_it_was(tmp_path):
    """Killed in the first update of the run."""

    def killed(*_):
        raise kills.Killed

    agent = Agent("Walk-v0", "linear", "gpomdp", seed=4)
    agent.update()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "log", killed)
        with pytest.raises(kills.Killed):
            rows_of(agent, 60, run=tmp_path / "run")
    again, _ = load.resume(tmp_path / "run")
    assert int(again.state.updates) == 1


def test_the_best_policy_ends_the_ten_updates_with_the_highest_mean_return():
    judge = Best(range(9))
    assert [judge(value) for value in (9, 0, 100, 0, -9)] == [True, True, True, False, False]
    assert Best([5.0] * 20)(5.0)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "run"])
def test_learning_can_end_with_the_best_policy(tmp_path, where):
    agent, seen = bayespg.PGPE("Walk-v0", seed=3), []
    run = tmp_path / "run" if where == "run" else None

    def look(agent, row):
        seen.append((row["return"], agent.state.policy.weights))

    agent.learn(episodes=80, callbacks=look, run=run, keep="best", progress=False)
    judge = Best()
    best = [at for at, (value, _) in enumerate(seen) if judge(value)][-1]
    assert best < len(seen) - 1
    np.testing.assert_array_equal(agent.state.policy.weights, seen[best][1])
    assert int(agent.state.updates) == len(seen)
    if where == "run":
        loaded = (bayespg.load(run, best=kept).state.policy.weights for kept in (True, False))
        for weights, at in zip(loaded, (best, -1), strict=True):
            np.testing.assert_array_equal(weights, seen[at][1])
        with pytest.raises(ValueError, match="a different state of the agent"):
            agent.learn(10, run=run, progress=False)


def test_callbacks_are_told_of_start_update_and_end(tmp_path):
    told = []

    class Tell(callbacks.Callback):
        def start(self, agent):
            told.append("start")

        def update(self, agent, row):
            told.append(row["update"])

        def end(self, agent):
            told.append("end")

    def stop(agent, row):
        if row["update"] == 2:
            raise ArithmeticError

    agent = Agent("Walk-v0", "linear", "gpomdp")
    lines = callbacks.JSONLines(tmp_path / "logs" / "rows.jsonl")
    with pytest.raises(ArithmeticError):
        agent.learn(1000, callbacks=[Tell(), lines, stop], progress=False)
    assert told == ["start", 1, 2, "end"]
    rows = [json.loads(line) for line in (tmp_path / "logs" / "rows.jsonl").open()]
    assert [row["update"] for row in rows] == [1, 2]
    assert rows[0]["explained"] is None


def test_evaluations_keep_the_best_agent(tmp_path):
    agent = Agent("Walk-v0", "linear", seed=1, episodes=2)
    check = callbacks.Evaluate(every=2, episodes=5, best=tmp_path / "best")
    agent.learn(400, callbacks=check, progress=False)
    values = [one.mean for _, one in check.evaluations]
    assert bayespg.load(tmp_path / "best").evaluate(5).mean == max(values)


def test_saved_and_loaded_it_acts_alike(tmp_path):
    agent = Agent("Walk-v0", "linear", "gpomdp", seed=6)
    agent.update()
    agent.save(tmp_path / "walk")
    agent.save(tmp_path / "walk")
    loaded = bayespg.load(tmp_path / "walk")
    assert same(agent, loaded)
    for x in np.random.default_rng(0).normal(size=(5, 2)):
        assert agent.predict(x) == loaded.predict(x)
    np.testing.assert_array_equal(agent.evaluate(5).returns, loaded.evaluate(5).returns)


def test_what_was_an_object_must_be_given_again(tmp_path):
    Agent(Walk, "linear", seed=6).save(tmp_path / "walk")
    with pytest.raises(ValueError, match=r"environment was an object.*environment="):
        bayespg.load(tmp_path / "walk")
    assert bayespg.load(tmp_path / "walk", environment=Walk).evaluate(2).returns.size == 2


def test_a_save_replaces_the_one_before_as_a_whole(tmp_path):
    first, second = (
        Agent("Walk-v0", "linear", seed=6),
        Agent("Walk-v0", episodes=3, discount=0.5, seed=7),
    )
    first.save(tmp_path / "kept")
    second.save(tmp_path / "kept")
    found = bayespg.load(tmp_path / "kept")
    assert found.settings == second.settings
    assert same(found, second)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "checkpoint.npz", "config.json"
    ]  # fmt: skip


def test_only_saved_agents_are_replaced(tmp_path):
    agent = Agent("Walk-v0", "linear", seed=6)
    agent.learn(10, run=tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match=r"run: holds a training run, .*another directory"):
        agent.save(tmp_path / "run")
    (tmp_path / "other").mkdir()
    for content, says in ('{"model": 1}', "not of a saved agent"), ("{", "damaged"):
        (tmp_path / "other" / "config.json").write_text(content)
        with pytest.raises(ValueError, match=rf"config\.json.*{says}"):
            agent.save(tmp_path / "other")
        assert (tmp_path / "other" / "config.json").read_text() == content


def test_two_agents_do_not_write_one_run(tmp_path):
    Agent("Walk-v0", "linear", seed=6).learn(10, run=tmp_path / "run", progress=False)
    (one, its_run), (other, other_run) = (load.resume(tmp_path / "run") for _ in range(2))
    with its_run, pytest.raises(ValueError, match="in use by this process already"):
        other.learn(10, run=other_run, progress=False)
    one.learn(100, run=its_run, progress=False)
    last = int(one.state.updates)
    with pytest.raises(ValueError, match=f"trained to update {last} since .* resume it again"):
        other.learn(10, run=other_run, progress=False)
    one.learn(10, run=its_run, progress=False)
    updates = Run.open(tmp_path / "run").metrics()["update"]
    np.testing.assert_array_equal(updates, np.arange(1, int(one.state.updates) + 1))


def test_saving_leaves_no_run_behind(tmp_path):
    def alive():
        gc.collect()
        runs = sum(type(thing) is Run for thing in gc.get_objects())
        return runs, len(os.listdir("/dev/fd"))

    agent = Agent("Walk-v0", "linear", seed=6)
    agent.save(tmp_path / "kept")
    gc.freeze()  # what other tests left is not looked at
    before = alive()
    for _ in range(3):
        agent.save(tmp_path / "kept")
    assert alive() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"environment": 5}, "environment: expected a JSON string, found 5"),
        ({"environment": "Nowhere-v0"}, "Nowhere-v0'; import the module .* --import"),
        ({"environment": "Walk-v9"}, "did you mean 'Walk-v0'.* import the module .* --import"),
        ({"policy": "liner"}, "did you mean 'linear'"),
        ({"options": [1]}, r"options: expected a JSON object, found \[1\]"),
        ({"options": {"render_mode": 5}}, ""),
        (
            {"policy": "mlp", "hidden": [60000, 60000]},
            "hidden: .* is a network of 3,600,120,000 weights or more, at most",
        ),
        ({"hidden": "32"}, "hidden: expected a JSON list, found '32'"),
        ({"update": {}}, "update: expected a JSON string, found {}"),
        ({"options": {"id": "CartPole-v1"}}, ""),
        ({"seed": "x"}, "seed"),
        ({"discount": float("nan")}, "discount: expected"),
        ({"depth": 3}, "depth: no such setting"),
        ({"lanes": 8}, "has the setting lanes of an earlier version of bayespg"),
        ({"self": 3}, ""),
    ],
)
def test_a_configuration_that_makes_no_agent_is_named(tmp_path, change, says):
    config = Agent("Walk-v0").config | change
    Run.create(tmp_path / "run", config)
    with pytest.raises(ValueError, match=rf"(?s)run/config\.json: .*{says}") as told:
        bayespg.load(tmp_path / "run")
    assert str(told.value).count("--import") == ("--import" in says)


def test_numbers_in_a_checkpoint_may_be_wrong(tmp_path):
    agent = Agent("Walk-v0", "linear", seed=6)
    agent.save(tmp_path / "kept")
    for seconds in ("x", None, [1]):
        with Run.open(tmp_path / "kept") as run:
            run.checkpoint(agent.state, {"seconds": seconds})
        assert bayespg.load(tmp_path / "kept").update()["seconds"] < 100


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module beside a run, which leaves a trace where it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "evil.py").write_text(
        "import gymnasium, pathlib\npathlib.Path(__file__).with_name('trace').touch()\n"
    )
    yield tmp_path / "beside" / "trace"
    sys.modules.pop("beside.evil", None)


@pytest.mark.parametrize(
    "change",
    [
        {"environment": "beside.evil:Walk-v0"},
        {"options": {"env_id": "beside.evil:Walk-v0"}},
        {"options": {"a": [{"b": "beside.evil:Walk-v0"}]}},
        {"options": {"beside.evil:Walk-v0": 1}},
    ],
)
def test_a_directory_runs_no_code_of_its_own(tmp_path, evil, change):
    agent = Agent("Walk-v0", "linear", seed=6)
    with Run.create(tmp_path / "run", agent.config | change) as run:
        run.checkpoint(agent.state)
    for read in (bayespg.load, bayespg.resume, load.reopen):
        for imports in ((), "beside", ["json"]):
            with pytest.raises(ValueError, match=r"import the module 'beside\.evil'.* --import"):
                read(tmp_path / "run", imports=imports)
    assert not evil.exists()
    given = {name: agent.config[name] for name in change}
    assert same(bayespg.load(tmp_path / "run", **given), agent)
    assert not evil.exists()


def test_a_path_with_a_colon_is_no_module(tmp_path):
    config = Agent("Walk-v0").config
    for path in ("Q:/models/ant.xml", r"Q:\\ant.xml"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        Run.create(tmp_path / "run", config | {"options": {"xml_file": path}})
        with pytest.raises(ValueError, match="unexpected keyword argument 'xml_file'"):
            load.reopen(tmp_path / "run")


def test_a_module_is_imported_where_the_call_names_it(tmp_path, evil):
    agent = Agent("Walk-v0", "linear", seed=6)
    with Run.create(tmp_path / "run", agent.config | {"environment": "beside.evil:Walk-v0"}) as run:
        run.checkpoint(agent.state)
    assert same(bayespg.load(tmp_path / "run", imports="beside.evil"), agent)
    assert evil.exists()
    evil.unlink()
    sys.modules.pop("beside.evil")
    Agent("beside.evil:Walk-v0")
    assert evil.exists()


class Shifted(LQR):
    """Far from zero and from variance 1."""

    def reset(self, key, paths):
        return 50 + 10 * super().reset(key, paths)

    def step(self, key, states, actions):
        following, rewards, ends = super().step(key, (states - 50) / 10, actions)
        return 50 + 10 * following, rewards, ends


@pytest.mark.slow
def test_observations_in_jax_are_normalised_where_asked(tmp_path):
    task = History(Shifted(), 2), VectorGaussian(np.zeros(2), 1.0)

    def made(**options):
        return Agent(*task, estimator="model2", seed=5, **options)

    assert made().state.normaliser is None
    whole = made(normalise=True)
    rows_of(whole, 400)
    statistics = whole.state.normaliser
    assert np.all((statistics.mean > 20) & (statistics.mean < 80) & (statistics.variance > 60))
    whole.evaluate(3)
    assert whole.state.normaliser is statistics
    rows_of(made(normalise=True), 200, run=tmp_path / "run")
    objects = dict(zip(("environment", "policy"), task, strict=True))
    agent, run = load.resume(tmp_path / "run", **objects)
    agent.learn(400 - int(agent.state.steps), run=run, progress=False)
    assert same(agent, whole)
    assert np.ndim(agent.predict(np.full((2, *whole.world.observation.shape[1:]), 50.0))) == 0


def test_whole_numbers_are_not_normalised():
    policy = Tabular(np.zeros(4))
    assert Agent(RandomWalk(4), policy).state.normaliser is None
    with pytest.raises(ValueError, match="normalise: the observations are whole numbers"):
        Agent(RandomWalk(4), policy, normalise=True)


def test_on_gymnasium_observations_are_normalised_unless_told_otherwise():
    assert Agent("Walk-v0").state.normaliser is not None
    assert Agent("Walk-v0", normalise=False).state.normaliser is None


def test_evaluation_leaves_the_agent_alone():
    agent = Agent("Walk-v0", "linear", seed=7)
    agent.update()
    before = leaves(agent)
    first, second = agent.evaluate(10), agent.evaluate(10)
    np.testing.assert_array_equal(first.returns, second.returns)
    assert all(np.array_equal(a, b) for a, b in zip(before, leaves(agent), strict=True))
    low, high = first.interval
    assert low < first.mean < high


def breaking(env):
    raise RuntimeError("the wheel came off")


def blinding(env):
    env.x = np.nan


@pytest.mark.parametrize(("trouble", "says"), [(breaking, "the wheel came off"), (blinding, "nan")])
def test_a_failing_environment_is_named_and_the_run_can_go_on(tmp_path, trouble, says):
    agent = Agent(Walk, "linear", "gpomdp", seed=8)
    rows_of(agent, 50, run=tmp_path / "run")
    whole = int(agent.state.updates)
    agent, run = load.resume(tmp_path / "run", environment=lambda: Walk(trouble=trouble))
    with pytest.raises(EnvironmentFailure, match=f"Walk.*seed [0-9]+, step 5.*{says}"):
        agent.learn(50, run=run, progress=False)
    agent, run = load.resume(tmp_path / "run", environment=Walk)
    assert int(agent.state.updates) == whole
    agent.learn(50, run=run, progress=False)


@pytest.mark.slow(
    "model2-rewards of 1e8",
    "bac-episodes of one step",
    "model2-episodes of one step",
    "bac-rewards of 1e-8",
    "model2-rewards of 1e-8",
    "model2-constant rewards",
)
@pytest.mark.parametrize(
    "environment",
    [
        lambda: Walk(worth=1e8),
        lambda: Walk(worth=0.0),
        lambda: Walk(length=1),
        lambda: Walk("box", worth=1e-8),
    ],
    ids=["rewards of 1e8", "constant rewards", "episodes of one step", "rewards of 1e-8"],
)
@pytest.mark.parametrize("estimator", ["bac", "model2"])
def test_strange_rewards_bring_no_nan(environment, estimator):
    agent = Agent(environment, "linear", estimator, seed=9)
    for _ in range(3):
        agent.update()
    assert all(np.isfinite(x).all() for x in leaves(agent))


class Still(gymnasium.Env):
    """Ten steps with constant `what`: observations or rewards; or with the length one, episodes of
    a single step."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, kind, what):
        self.action_space, self.what = ACTIONS[kind], what

    def _seen(self):
        seen = self.np_random.normal(size=3).astype(np.float32)
        return np.full(3, 2.0, np.float32) if self.what == "observations" else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        worth = float(np.ravel(action)[0]) + 0.1 * self.np_random.normal()
        reward = 1.0 if self.what == "rewards" else worth
        return self._seen(), reward, False, self.t >= (1 if self.what == "length" else 10), {}


@pytest.mark.slow(
    "box-observations", "discrete-rewards", "box-rewards", "discrete-length", "box-length"
)
@pytest.mark.parametrize("what", ["observations", "rewards", "length"])
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_a_task_that_says_little_ends_its_budget_with_a_sentence(kind, what, capsys):
    agent = Agent(functools.partial(Still, kind, what), seed=0)
    agent.learn(100 if what == "length" else 600)
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said
    assert ("Every episode of the first 20 updates returned 10.0" in said) == (what == "rewards")
    assert all(np.isfinite(x).all() for x in leaves(agent))
    assert int(agent.state.steps) >= (100 if what == "length" else 600)


def test_a_policy_that_has_become_deterministic_brings_no_nan():
    agent = Agent("Walk-v0", "linear", seed=10)
    with agent.precision():
        agent.state = eqx.tree_at(
            lambda s: s.policy.head.weights, agent.state, replace_fn=lambda w: w.at[0, -1].set(1e4)
        )
    for _ in range(2):
        agent.update()
    assert all(np.isfinite(x).all() for x in leaves(agent))


def test_callbacks_evaluate_keep_and_stop(tmp_path):
    agent = Agent("Walk-v0", "linear", seed=11)
    evaluate = callbacks.Evaluate(every=2, episodes=3)
    keep = callbacks.Checkpoint(tmp_path, every=2)
    rows = []
    stop = callbacks.StopAtReturn(-1e9, last=4)
    all_four = [evaluate, keep, stop, lambda agent, row: rows.append(row)]
    agent.learn(10**6, callbacks=all_four, progress=False)
    assert len(rows) == 4
    assert [steps for steps, _ in evaluate.evaluations] == [rows[1]["steps"], rows[3]["steps"]]
    assert same(bayespg.load(tmp_path / "000004"), agent)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epsiodes": 3}, "epsiodes: no such setting"),
        ({"policy": "liner"}, "did you mean 'linear'"),
        (
            {"policy": 3},
            "policy: expected a name, a Policy, a MemoryPolicy or a network, .* found int",
        ),
        ({"estimator": "bacc"}, "did you mean 'bac'"),
        ({"estimator": ["bac"]}, "estimator: expected a name or an estimator"),
        ({"update": "naturel"}, "did you mean 'natural'"),
        ({"update": "chain"}, "update: unknown name 'chain'"),
        ({"update": "lbfgs"}, "update: unknown name 'lbfgs'"),
        ({"update": ["adam"]}, "update: expected a name or an optax transformation"),
        ({"environment": "CartPol-v1"}, "did you mean 'CartPole-v"),
        ({"environment": 3}, "environment: expected an id"),
        ({"options": 3}, "options: expected a dictionary"),
    ],
)
def test_a_wrong_word_is_named(options, says):
    with pytest.raises(ValueError, match=says):
        Agent(**{"environment": "Walk-v0"} | options)


WRONG = {
    "episodes": [0, 1.5, True, "4", "many", np.nan],
    "discount": [-0.1, 1.5, True, "1", np.nan],
    "lambda_": [-0.1, 1.5, True, "1", np.nan],
    "damping": [0.0, -1, True, "1", np.inf],
    "limit": [0.0, -1, True, "1", np.inf],
    "rate": [0.0, -1, True, "1", np.nan],
    "hidden": [5, "32", (), (0,), (2.5,), (True,), {"a": 1}],
    "horizon": [0, 2.5, True, "7"],
    "workers": [0, 2.5, True, "many"],
    "episode_timeout": [0.0, True, "1", np.inf],
    "normalise": [1, "no"],
    "masks": [1, "no"],
    "persistence": [-0.1, 1.5, True, "1"],
    "seed": [-1, 1.5, True, "0", None, 2**63],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_of_a_setting_is_named(name):
    assert set(WRONG) == {field.name for field in dataclasses.fields(Settings)}
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=f"^{name}: expected "):
            Agent("Walk-v0", **{name: value})


def test_numbers_of_numpy_are_recorded_as_plain_ones():
    options = {"episodes": np.int64(2), "discount": np.float32(0.5), "seed": np.uint8(7)}
    config = Agent(Walk, **options, normalise=np.bool_(True)).config
    assert json.loads(json.dumps(config))["seed"] == 7
    assert config["normalise"] is True


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda a: a.evaluate(1.5), "episodes: expected a whole number from 1, found 1.5"),
        (lambda a: a.evaluate(True), "episodes: expected a whole number"),
        (lambda a: a.evaluate(2, seed=-1), "seed: expected a whole number from 0"),
        (lambda a: a.evaluate(2, seed=2**63), "seed: expected a whole number from 0"),
        (lambda a: a.evaluate(2, deterministic="no"), "deterministic: expected True or False"),
        (lambda a: a.learn(1.5), "steps: expected a whole number from 1, found 1.5"),
        (lambda a: a.learn(np.inf), "steps: expected a whole number"),
        (lambda a: a.learn(True), "steps: expected a whole number"),
        (lambda a: a.learn(9, callbacks=3), "callbacks: expected functions of agent and row"),
        (lambda a: a.learn(9, callbacks=[3]), "callbacks: expected functions of agent and row"),
        (lambda a: a.learn(9, run=3), "run: expected a directory"),
        (lambda a: a.learn(9, progress="no"), "progress: expected True or False"),
        (lambda a: a.learn(9, tensorboard=True), "tensorboard: True would have no effect"),
        (lambda a: a.predict("left"), "observation: "),
        (lambda a: a.predict([1.0]), "observation: "),
    ],
)
def test_a_wrong_argument_of_a_call_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call(Agent("Walk-v0"))


def test_seeds_that_differ_in_their_upper_bits_differ():
    def policy(seed):
        return np.asarray(
            Agent("Walk-v0", "mlp", hidden=(4,), seed=seed).policy.features.weights[0]
        )

    assert not np.array_equal(policy(1), policy(2**32 + 1))


# What is recorded is what was done.

CAR = {"environment": MountainCar(), "policy": mountain_car_softmax()}
IGNORED = [
    (CAR | {"discount": 0.5}, "discount: 0.5 .* MountainCar has its own discount, 0.99"),
    (CAR | {"horizon": 7}, "horizon: 7 .* MountainCar ends episodes after 200 steps"),
    (CAR | {"workers": 2}, "workers: 2 .* MountainCar runs in JAX"),
    ({"episode_timeout": 5.0}, "episode_timeout: is for episodes played by workers"),
    ({"processes": 2}, "^`processes` was renamed; use workers=N"),
    ({"smoothing": 0.9}, r"^`smoothing` was renamed; use lambda_=\.\.\."),
    ({"trace": 0.9}, r"^`trace` was renamed; use lambda_=\.\.\."),
    ({"reuse": True}, "^`reuse` was deleted: it lost runs; leave it out"),
    ({"normalise_rewards": None}, "^`normalise_rewards` was deleted: .*NormalizeReward"),
    ({"lanes": 2}, "^`lanes` was deleted: it is chosen by itself; leave it out"),
    ({"bounds": "clip"}, "^`bounds` was deleted: actions are always clipped; leave it out"),
    (CAR | {"hidden": (4,)}, "hidden: .* a Softmax of your own has no such layers"),
    (CAR | {"options": {"g": 1}}, "options: .* no Gymnasium id"),
    ({"environment": "mountain-car", "policy": "mlp"}, "policy: 'mlp' .* the paper's policy"),
    ({"environment": "lqr", "discount": 0.5}, "discount: 0.5 .* LQR has its own discount, 1"),
    ({"environment": "lqr", "options": {"g": 1}}, "options: .* no Gymnasium id"),
    ({"environment": Walk, "options": {"g": 1}}, "options: .* no Gymnasium id"),
    ({"environment": "CartPole-v1", "horizon": 501}, "horizon: 501 .* after 500 steps"),
    ({"hidden": (64, 64)}, "hidden: .* fourier has no such layers"),
    ({"rate": 0.1}, "rate: 0.1 .* natural takes no rate"),
    ({"update": "conjugate-gradients", "rate": 0.1}, "rate: 0.1 .* takes no rate"),
    ({"update": "adam", "limit": 0.1}, "limit: 0.1 .* adam has no such limit"),
    ({"update": "variance-scaled", "limit": 0.1}, "limit: 0.1 .* has no such limit"),
    ({"update": optax.sgd(1.0), "rate": 0.1}, "rate: 0.1 .* of your own takes no rate"),
    ({"update": optax.sgd(1.0), "limit": 0.1}, "limit: 0.1 .* of your own has no such limit"),
    ({"estimator": "model2", "lambda_": 1.0}, "lambda_: 1.0 .* model2 has no lambda"),
    ({"estimator": "gpomdp", "lambda_": 1.0}, "lambda_: 1.0 .* gpomdp has no lambda"),
    ({"estimator": "model2", "damping": 1.0}, "damping: 1.0 .* model2 has no damping to choose"),
    ({"estimator": "bac-paper", "damping": 1.0}, "damping: 1.0 .* bac-paper has no damping"),
    ({"estimator": Rule(metric=Metric(2.0)), "damping": 1.0}, "damping: 1.0 .* of your own has no"),
]


@pytest.mark.parametrize(("options", "says"), IGNORED, ids=[says for _, says in IGNORED])
def test_a_setting_that_would_have_no_effect_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Agent(**{"environment": "Walk-v0"} | options)


NOTHING = {"hidden": None, "rate": None}


@pytest.mark.parametrize(
    ("options", "done"),
    [
        ({}, NOTHING | {
            "episodes": "auto", "policy": "fourier", "limit": 0.05, "lambda_": "auto"
        }),
        ({"policy": "tiles"}, {"episodes": 2}),
        ({"policy": "mlp"}, {"hidden": (16, 16)}),
        ({"update": "adam"}, {"limit": None, "rate": 1e-3}),
        ({"estimator": "model2"}, {"lambda_": None, "discount": 0.99, "normalise": True}),
        ({"environment": "lqr", "estimator": "mc"}, {
            "policy": "paper", "discount": 1.0, "horizon": 20, "normalise": False
        }),
        ({"environment": "CartPole-v1"}, {"horizon": 500}),
        ({"environment": "CartPole-v1", "horizon": 7}, {"horizon": 7}),
        ({"environment": "Pendulum-v1"}, {
            "policy": "mlp", "hidden": (16, 16)
        }),
        ({"environment": "Pendulum-v1", "estimator": "mcpg"}, {"policy": "linear", "episodes": 2}),
    ],
)  # fmt: skip
def test_the_configuration_says_what_was_done_and_makes_the_same_agent(options, done):
    agent = Agent(**{"environment": "Walk-v0"} | options)
    assert {name: agent.config[name] for name in done} == done
    assert Agent(**agent.config).config == agent.config


def test_damping_is_that_of_the_metric_and_recorded():
    default, other = (
        Agent("Walk-v0", "linear", "gpomdp", **given) for given in ({}, {"damping": 100.0})
    )  # quick to compile
    assert [one.config["damping"] for one in (default, other)] == [DAMPING, 100.0]
    assert default.update()["step_norm"] != pytest.approx(other.update()["step_norm"], rel=0.01)
    network = Agent("Walk-v0", "mlp", hidden=(4,))
    assert network.config["damping"] == pytest.approx(SHARE * network.parameter_count)
    assert Agent("Walk-v0", estimator=Rule(metric=Metric(2.0))).config["damping"] == 2.0


def test_the_estimator_of_an_agent_has_the_same_name_among_estimators():
    assert bayespg.BAC("Walk-v0")._estimator == bayespg.estimators.BAC()
    paper = Agent("Walk-v0", "linear", "bac-paper")._estimator
    assert paper == bayespg.estimators.BACPaper(noise=None)
    assert Agent("Walk-v0", estimator="mcpg").config["damping"] is None


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path):
    quick = ("Walk-v0", "linear", "gpomdp")
    rows_of(Agent(*quick), 50, run=tmp_path / "run")
    with pytest.raises(ValueError, match="resume"):
        rows_of(Agent(*quick), 50, run=tmp_path / "run")


# In processes of their own.

COMMAND = [sys.executable, "-m", "bayespg"]


def started(*arguments, cwd):
    """The command as users run it, with compiled programs remembered, here below `cwd`."""
    user = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=cwd, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=user | {"XDG_CACHE_HOME": str(cwd / "cache")},
    )  # fmt: skip


def rows_in(path):
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def wait_for_rows(path, count, process):
    """Until the file has more rows than `count`, however long that takes."""
    while rows_in(path) <= count:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_at_any_moment_it_continues_and_ctrl_c_says_how(tmp_path):
    metrics = tmp_path / "run" / "seed-0" / "metrics.csv"
    small = ("--episodes", "2", "--steps", "1000000", "--out", "run")
    process = started("train", "CartPole-v1", *small, cwd=tmp_path)
    updates = 0
    for more in (0, 2):
        wait_for_rows(metrics, updates + more, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        updates = rows_in(metrics)  # one more, perhaps, than the checkpoint holds
        agent, _ = load.resume(tmp_path / "run" / "seed-0")
        last = int(agent.state.updates)
        assert last >= updates - 1
        process = started("train", "--resume", "run", cwd=tmp_path)
    wait_for_rows(metrics, updates, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "bayespg train --resume run/seed-0" in said
    agent, _ = load.resume(tmp_path / "run" / "seed-0")
    assert int(agent.state.updates) > last
    assert json.loads((tmp_path / "run" / "seed-0" / "config.json").read_text())["seed"] == 0


@pytest.mark.slow
def test_three_trainings_at_once_all_finish(tmp_path):
    code = (
        "import bayespg; a = bayespg.BAC('CartPole-v1', 'mlp', hidden=(4,), episodes=4, seed={});"
        "a.learn(2000, progress=False)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code.format(k)], cwd=tmp_path, env=os.environ)
        for k in range(3)
    ]
    assert [process.wait(timeout=280) for process in processes] == [0, 0, 0]


@pytest.mark.slow
def test_auto_plays_more_episodes_the_less_they_agree():
    agent = Agent("Walk-v0", "linear", episodes="auto")
    assert agent.config["episodes"] == "auto"
    for rho, episodes in ((1.0, 2), (0.08, 2), (0.07, 4), (0.01, 8), (0.004, 16), (-0.5, 16)):
        trusted = np.float32(rho), np.float32(1.0)
        agent.state = eqx.tree_at(lambda s: (s.trust.signal, s.trust.pairs), agent.state, trusted)
        assert agent.episodes == episodes
    assert agent.draw().mask.shape[1] == 16
    row = agent.update()
    assert row[Column.EPISODES] == 16
    assert agent.episodes in trust.SIZES


@pytest.mark.slow
def test_episodes_of_a_network_confirm_one_another():
    agent = Agent("Walk-v0", "mlp", episodes="auto", seed=0)
    rows = [agent.update() for _ in range(2)]
    assert agent.parameter_count > MOST_DENSE
    assert 0 <= rows[-1][Column.CONFIRMED] < 1


@pytest.mark.parametrize("options", [{"estimator": "model2"}, {"policy": "tiles"}])
def test_auto_is_refused_where_agreement_is_not_measured(options):
    with pytest.raises(ValueError, match=r"^episodes: 'auto' needs .*; give a number"):
        Agent("Walk-v0", episodes="auto", **options)


# As one file.


def test_an_agent_saved_as_one_file_is_loaded_elsewhere(tmp_path):
    agent = bayespg.BAC("Walk-v0", policy="linear", seed=3)
    agent.update()
    path = tmp_path / "walk.bayespg"
    agent.save(path)
    agent.save(path)  # replaced
    assert [p.name for p in tmp_path.iterdir()] == ["walk.bayespg"]
    with zipfile.ZipFile(path) as archive:
        assert sorted(archive.namelist()) == ["checkpoint.npz", "config.json"]
    moved = path.rename(tmp_path / "elsewhere.bayespg")
    other = bayespg.BAC.load(moved)
    assert other.config == agent.config
    for name, values in agent.parameters.items():
        np.testing.assert_array_equal(other.parameters[name], values)
    with pytest.raises(ValueError, match="only runs keep a best one"):
        bayespg.load(moved, best=True)


def archive_of(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("members", "compression", "said"),
    [
        ({"config.json": "{}"}, zipfile.ZIP_STORED, "holds 'config.json'"),
        ({"config.json": "{}", "../x": "y"}, zipfile.ZIP_STORED, "holds "),
        ({"config.json": "{}", "checkpoint.npz": "y" * 999}, zipfile.ZIP_DEFLATED, "is compressed"),
        (
            {"config.json": "{", "checkpoint.npz": "y"},
            zipfile.ZIP_STORED,
            "not a saved agent",
        ),
    ],
)
def test_a_file_that_is_no_saved_agent_is_refused_by_its_name(tmp_path, members, compression, said):
    path = archive_of(tmp_path / "x.bayespg", members, compression)
    with pytest.raises(ValueError, match=said):
        bayespg.load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"x\.bayespg: not a saved agent"):
        bayespg.load(path)


# Words of Stable-Baselines3.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learning_rate": 3e-4}, "rate="), ({"policy_kwargs": {}}, "hidden="),
        ({"n_steps": 128}, "episodes="), ({"ent_coef": 0.1}, "persistence="),
        ({"policy": "MlpPolicy"}, "'mlp'"),
    ],
)  # fmt: skip
def test_words_of_stable_baselines_are_answered_with_ours(given, said):
    with pytest.raises(ValueError, match=said):
        bayespg.BAC("CartPole-v1", **given)


def test_a_policy_is_evaluated_in_another_environment():
    agent = bayespg.BAC("CartPole-v1", policy="linear", seed=0)

    def halved():
        return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda r: r / 2)

    here = agent.evaluate(5)
    with pytest.warns(UserWarning, match="TransformReward changes the rewards"):
        there = agent.evaluate(5, environment=halved)
    np.testing.assert_allclose(there.returns, here.returns / 2)
    assert agent.world.name == "CartPole-v1"
    with pytest.raises(ValueError, match="train a new agent there"):
        agent.evaluate(5, environment="Acrobot-v1")


def test_observations_normalised_twice_are_warned_of():
    made = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))
    with pytest.warns(UserWarning, match="NormalizeObservation keeps statistics of its own"):
        bayespg.BAC(made, policy="linear")


def test_a_module_that_is_not_on_the_path_is_answered_with_what_to_do():
    with pytest.raises(ValueError, match=r"PYTHONPATH=\. in front of the command"):
        bayespg.BAC("no_such_module:Arm-v0")


@pytest.mark.parametrize("name", ["rate", "limit"])
def test_a_schedule_given_as_a_function_is_answered_with_what_to_give(name):
    with pytest.raises(ValueError, match=rf"^{name}: .* update=optax.sgd\(optax.linear_schedule"):
        bayespg.BAC("CartPole-v1", **{name: lambda left: left})


@pytest.mark.parametrize("name", ["seed-3", "alone"])
def test_a_run_in_a_folder_of_seeds_says_which_seed(tmp_path, capsys, name):
    agent = bayespg.PGPE("Walk-v0", seed=3)
    agent.learn(episodes=1, run=tmp_path / name)
    assert ("seed 3: " in capsys.readouterr().out) == (name == "seed-3")
