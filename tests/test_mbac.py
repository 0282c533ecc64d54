"""`MBAC`: the agent that learns a model of its task."""

import json
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import bayespg
from bayespg.agents import judging, mbac, serialise
from bayespg.cli import app
from bayespg.environments.host import EnvironmentFailure
from bayespg.models.data import empty, numbers, transitions

TASK = "jax/MountainCarContinuous-v0"


@pytest.fixture(autouse=True, scope="module")
def _few():
    """Fewer and shorter simulated episodes, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        few = mbac.FEW._replace(paths=16)
        for name, value in {"UPDATES": 4, "FEW": few, "MANY": few, "LONGEST": 30}.items():
            patch.setattr(mbac, name, value)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mbac"
    agent = bayespg.MBAC("jax/CartPole-v1", seed=1)
    rows = []
    agent.learn(60, run=folder, callbacks=lambda _, row: rows.append(row), progress=False)
    return agent, folder, rows


def test_an_update_reports_its_columns(trained):
    agent, _, rows = trained
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["steps"] == int(agent.state.steps) == agent.state.data.count
    assert all(np.isfinite([row["return"], row["came"], row["ahead"]]).all() for row in rows)
    assert all(0 < row["ahead"] <= 30 for row in rows)


@pytest.mark.slow
def test_the_command_line_trains_and_draws(tmp_path):
    words = (
        "jax/CartPole-v1",
        "--algorithm",
        "mbac",
        "--steps",
        "20",
        "--out",
        str(tmp_path / "r"),
    )
    found = CliRunner().invoke(app, ["train", *words])
    assert found.exit_code == 0, found.output
    assert "mbac, fourier policy" in " ".join(found.output.split())
    assert (tmp_path / "r" / "plots" / "learning.png").exists()


@pytest.mark.slow
def test_one_command_draws_what_the_model_predicts(trained, tmp_path):
    _, folder, _ = trained
    out = tmp_path / "model.png"
    found = CliRunner().invoke(app, ["plot", str(folder), "--model", "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert out.stat().st_size > 10_000
    assert "share inside 95 % intervals" in found.output


@pytest.mark.slow
def test_the_page_of_a_run_says_what_the_model_promised(trained, tmp_path):
    _, folder, _ = trained
    page = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    assert "What the model promised" in (tmp_path / "page.html").read_text()


def test_the_model_predicts_the_episodes_it_was_learned_from(trained):
    agent, *_ = trained
    data = agent.state.data
    n = data.count
    found = agent.model.predict(data.states[:n], np.argmax(data.actions[:n], 1))
    error = np.abs(found.following - data.following[:n]) / np.std(data.states[:n], 0)
    assert np.median(error) < 0.05


def test_a_resumed_run_has_the_same_numbers(trained, tmp_path):
    agent, folder, _ = trained
    half = bayespg.MBAC("jax/CartPole-v1", seed=1)
    half.learn(20, run=tmp_path / "run", progress=False)
    assert int(half.state.updates) < int(agent.state.updates)
    again, run = bayespg.resume(tmp_path / "run")
    assert isinstance(again, bayespg.MBAC)
    again.learn(60 - int(again.state.steps), run=run, progress=False)
    for name, value in agent.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], value)
    np.testing.assert_array_equal(again.state.data.states, agent.state.data.states)
    loaded = bayespg.load(folder)
    seen = agent.state.data.states[:5]
    np.testing.assert_array_equal(loaded.predict(seen), agent.predict(seen))
    assert json.loads((folder / "config.json").read_text())["estimator"] == "mbac"


RUN = """
import sys
import bayespg
from bayespg.agents import mbac
few = mbac.FEW._replace(paths=16)
mbac.UPDATES, mbac.FEW, mbac.MANY, mbac.LONGEST = 4, few, few, 30
folder, steps = sys.argv[1], int(sys.argv[2])
try:
    agent, run = bayespg.resume(folder)
except (ValueError, OSError):
    agent, run = bayespg.MBAC("jax/CartPole-v1", seed=1), folder
agent.learn(steps - int(agent.state.steps), run=run, progress=False)
"""


@pytest.mark.slow
def test_a_run_that_was_killed_continues_with_the_same_numbers(trained, tmp_path):
    """By SIGKILL, as soon as two updates are on the disk."""
    folder = tmp_path / "run"
    words = [sys.executable, "-c", RUN, str(folder)]
    process = subprocess.Popen([*words, "100000"])
    table = folder / "metrics.csv"
    while not (table.exists() and len(table.read_text().splitlines()) >= 3):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    agent, *_ = trained
    done = int(bayespg.load(folder).state.steps)
    whole = bayespg.MBAC("jax/CartPole-v1", seed=1)
    steps = max(done + 30, int(agent.state.steps))
    subprocess.run([*words, str(steps)], check=True)
    whole.learn(steps, progress=False)
    again = bayespg.load(folder)
    assert serialise.equal(again.state, whole.state)


@pytest.mark.slow
def test_another_seed_has_other_numbers(trained):
    agent, *_ = trained
    other = bayespg.MBAC("jax/CartPole-v1", seed=2)
    other.update()
    assert not np.array_equal(other.state.data.states[:5], agent.state.data.states[:5])


def test_a_copy_continues_alike(trained):
    agent, *_ = trained
    other = agent.with_parameters(agent.parameters)
    assert other.state.data.count == agent.state.data.count
    assert other.evaluate(2).mean == agent.evaluate(2).mean


class Noise(gymnasium.Env):
    """Observations and rewards are noise, so that no model predicts them."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=4).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        seen, reward = self.np_random.normal(size=4).astype(np.float32), self.np_random.normal()
        return seen, float(reward), False, self.steps >= 30, {}


@pytest.mark.slow
def test_bac_takes_over_from_a_model_that_predicts_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "WINDOW", 4)
    agent = bayespg.MBAC(Noise, seed=0)
    with pytest.warns(UserWarning, match="with BAC") as said:
        agent.learn(300, run=tmp_path / "run", progress=False)  # with BAC alone at last
    sentences = [str(one.message) for one in said]
    assert sum("looks like noise" in one for one in sentences) == 1
    assert sum("the model was given up" in one for one in sentences) == 1
    assert agent.state.record.useless
    assert agent.state.updates > 4
    assert np.nanmax(agent.state.record.predicted) < 0.5
    plain = bayespg.BAC(Noise, seed=0)
    while int(plain.state.updates) < int(agent.state.plain.updates):
        plain.update()
    for name, value in plain.parameters.items():
        np.testing.assert_allclose(agent.parameters[name], value, rtol=1e-3, atol=1e-4)
    other = bayespg.load(tmp_path / "run", environment=Noise)
    for one in (agent, other):
        row = one.update()
        assert np.isfinite(row["slope_error"])
        assert row["steps"] == one.state.steps > 300
    for name, value in agent.parameters.items():
        np.testing.assert_array_equal(other.parameters[name], value)
    assert agent.predict(np.zeros(4)) in (0, 1)


def test_a_model_that_predicts_is_kept(trained):
    agent, _, rows = trained
    assert not agent.state.record.useless
    assert np.isnan(rows[0]["predicted"])
    assert all(0 <= row["predicted"] <= 1 for row in rows[1:])
    assert all(np.isnan(row["inside"]) or 0 <= row["inside"] <= 1 for row in rows)


def test_a_policy_that_gains_too_little_of_what_was_promised_is_given_up_and_then_the_model():
    record = judging.begin().after(0.0, (0.9, 0.9), 10.0)
    for number in range(judging.MISSES):
        record = record.promising(50.0, begun=True)
        for k in range(judging.TRIED):
            assert not record.missed
            record = record.after(0.0, (0.9, 0.9), 12.0 + k).promising(50.0, begun=False)
        assert record.kept == pytest.approx(3.5 / 40)
        assert record.missed
        assert record.misses == number + 1
    assert record.useless
    kept = judging.begin().after(0.0, (0.9, 0.9), 10.0)
    for _ in range(judging.TRIED):
        kept = kept.promising(50.0, begun=False).after(0.0, (0.9, 0.9), 48.0)
    assert kept.kept == pytest.approx(38 / 40)
    assert not kept.missed


def test_a_model_that_predicts_no_changes_of_the_state_is_kept_only_while_returns_rise():
    """As where velocities are hidden: returns have risen a little, and rise no more."""
    rng = np.random.default_rng(0)
    stalled = rising = known = judging.begin()
    for k in range(2 * judging.WINDOW):
        value = rng.normal() + (20 if k >= 5 else 0)
        stalled = stalled.after(value, (0.0, np.nan), np.nan)
        rising = rising.after(value + k, (0.0, np.nan), np.nan)
        known = known.after(value, (0.9, 0.0), np.nan)
    assert stalled.useless
    assert not rising.useless
    assert not known.useless


def test_a_policy_is_replaced_only_by_one_that_returns_more_in_the_same_episodes():
    rng = np.random.default_rng(0)
    returns, noise = rng.normal(size=64), rng.normal(size=64)
    assert mbac._better(returns + 0.5 + 0.1 * noise, returns)
    assert not mbac._better(returns - 0.5 + 0.1 * noise, returns)
    assert not mbac._better(returns + noise - noise.mean(), returns)
    assert not mbac._better(returns, returns)


def test_a_policy_that_is_not_improved_stays_the_same_in_its_own_units(monkeypatch):
    monkeypatch.setattr(mbac, "_better", lambda *_: False)
    agent = bayespg.MBAC("jax/CartPole-v1", seed=3)
    given = np.linspace(-1, 1, agent.parameter_count)
    agent = agent.with_parameters(given)
    agent.update()
    before, units = agent.state.actor, agent.model.states
    found = np.concatenate([x.ravel() for x in agent.parameters.values()])
    np.testing.assert_allclose(found, given, rtol=1e-6)
    np.testing.assert_allclose(before.normaliser.mean, units.mean, rtol=1e-5, atol=1e-6)
    row = agent.update()
    assert not np.array_equal(agent.model.states.mean, units.mean)
    assert serialise.equal(agent.state.actor, before)
    assert row["divergence"] == 0


@pytest.mark.slow
def test_the_model_s_gradient_is_the_prior_of_the_real_one(trained):
    agent, *_ = trained
    posterior, prior = agent.gradient(4, draws=3)
    n = agent.parameter_count
    assert posterior.mean.shape == prior.mean.shape == (n,)
    assert prior.covariance.shape == (n, n)
    low, high = posterior.interval(0.95)
    assert np.all(low < posterior.mean)
    assert np.all(posterior.mean < high)
    assert 0 < posterior.probability_uphill(prior.mean) < 1
    assert posterior.episodes_needed().more >= 0
    with pytest.raises(ValueError, match=r"^episodes: "):
        agent.gradient(1)


class Flat(gymnasium.Env):
    """One-step episodes, an observation that never changes, rewards that do not depend on it."""

    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Box(-np.inf, np.inf, (1,))
    reward, long = 1.0, False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), self.reward, not self.long, self.steps >= 5, {}


class Silent(Flat):
    """Episodes of five steps that all earn the same."""

    long = True


class Broken(Flat):
    reward = float("nan")


class Blind(Flat):
    """Its sensor fails."""

    def step(self, action):
        return np.full(2, np.nan, np.float32), *super().step(action)[1:]


class Picture(Flat):
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Flat, Silent])
def test_one_step_episodes_and_constant_observations_change_nothing(kind):
    """Nothing can be learned, and training continues."""
    agent = bayespg.MBAC(kind, seed=0, horizon=5)
    for _ in range(2):
        agent.update()
    assert all(np.isfinite(x).all() for x in agent.parameters.values())
    assert int(agent.state.updates) == 2


@pytest.mark.parametrize(
    ("environment", "given", "says"),
    [
        (Picture, {}, "^environment: .*images|vectors of real numbers"),
        ("CartPole-v1", {"policy": "mlp"}, "policy"),
        ("CartPole-v1", {"damping": 0.1}, "damping"),
        ("CartPole-v1", {"estimator": "bac"}, "estimator"),
        ("CartPole-v1", {"reward": 1.0}, "^reward: expected a function, found 1.0"),
        ("CartPole-v1", {"terminated": "function"}, "^terminated: was a function"),
        ("lqr", {}, "^environment: MBAC needs observations"),
    ],
)
def test_what_has_no_effect_or_does_not_fit_is_refused(environment, given, says):
    with pytest.raises(ValueError, match=says):
        bayespg.MBAC(environment, **given)


@pytest.mark.parametrize(("kind", "what"), [(Broken, "reward"), (Blind, "observation")])
def test_what_is_not_finite_is_named(kind, what):
    with pytest.raises(EnvironmentFailure, match=what):
        bayespg.MBAC(kind, seed=0, horizon=5).update()


def test_observations_of_hundreds_of_numbers_are_refused():
    class Wide(Flat):
        observation_space = spaces.Discrete(900)

    with pytest.raises(ValueError, match=r"^observations: a model of 900 numbers and 1 of actions"):
        bayespg.MBAC(Wide)


def test_a_model_needs_an_episode():
    with pytest.raises(ValueError, match=r"^model: nothing has been observed yet"):
        _ = bayespg.MBAC("jax/CartPole-v1").model


def test_a_run_with_a_user_s_function_asks_for_it_again(tmp_path):
    def reward(state, action, following):
        return -(state[0] ** 2)

    agent = bayespg.MBAC("jax/CartPole-v1", reward=reward, seed=0)
    agent.save(tmp_path / "agent")
    with pytest.raises(ValueError, match="reward: was a function when this was saved"):
        bayespg.load(tmp_path / "agent")
    assert bayespg.load(tmp_path / "agent", reward=reward).known.reward is reward


@pytest.mark.parametrize(
    ("reward", "ended", "silent"),
    [
        (lambda x, a: -0.1 * a[:, 0] ** 2, False, True),
        (lambda x, a: -np.abs(a).sum(1) - 1.0, False, True),
        (lambda x, a: np.full(len(a), -1.0), False, True),
        (lambda x, a: np.full(len(a), -1.0), True, False),
        (lambda x, a: np.zeros(len(a)), True, True),
        (lambda x, a: -0.1 * a[:, 0] ** 2 - x[:, 1] ** 2, False, False),
        (lambda x, a: -0.1 * a[:, 0] ** 2 + (x[:, 0] > 1.5), False, False),
    ],
)
def test_rewards_that_are_the_cost_of_actions_say_nothing_about_states(reward, ended, silent):
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(200, 2)).astype(np.float32), rng.uniform(-1, 1, (200, 2))
    rows = (x, a.astype(np.float32), reward(x, a).astype(np.float32), x + 0.1)
    over, first = (np.zeros(200, bool) for _ in range(2))
    over[-1] = ended
    data = empty(2, numbers(2), 512).with_rows(*rows, over, first)
    assert judging.silent(data) == silent


def test_where_observations_never_change_the_sentence_says_so():
    x = np.zeros((8, 2))
    data = transitions(x, np.arange(8) % 2, np.arange(8.0), x, np.ones(8, bool))
    assert "observations never change" in mbac._doubt(data)


def test_a_model_is_in_doubt_as_long_as_it_counts_most_as_noise():
    record = judging.begin()
    for noise, plain in ((0.1, False), (0.9, True), (0.9, True), (0.1, True), (0.1, False)):
        record = record.after(0.0, (np.nan, np.nan), 0.0, (noise, 0.0))
        assert record.plain == plain
    for _ in range(judging.WINDOW):
        assert not record.useless
        record = record.after(0.0, (np.nan, np.nan), 0.0, (0.0, 0.9))
    assert record.useless
