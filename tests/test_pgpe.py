"""`PGPE`: the agent that searches in the space of parameters."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import bayespg
from bayespg._support.random import episode_seeds
from bayespg.agents import metrics
from bayespg.agents.base import BaseAgent
from bayespg.agents.pgpe import LONGEST
from bayespg.environments.spaces import actions
from bayespg.policies import deterministic
from bayespg.policies.deterministic import CONSTANT


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three rounds on CartPole, in a run directory."""
    folder = tmp_path_factory.mktemp("runs") / "pgpe"
    rows = []
    agent = bayespg.PGPE("CartPole-v1", seed=1)
    agent.learn(episodes=15, run=folder, callbacks=lambda _, row: rows.append(row), progress=False)
    return agent, rows, folder


def test_no_kind_of_agent_overrides_what_all_share():
    """Each fills in what is abstract, and nothing else."""
    for kind in (bayespg.Agent, bayespg.PGPE):
        own = vars(kind).keys() & vars(BaseAgent).keys()
        assert {name for name in own if not name.startswith("__")} <= (
            BaseAgent.__abstractmethods__ | {"_abc_impl"}
        )


def test_a_budget_in_episodes_is_kept(trained):
    agent, rows, _ = trained
    assert agent.state.episodes == agent.search.episodes == 15
    assert agent.parameter_count == 5
    assert [row["episodes"] for row in rows] == [5, 10, 15]
    assert np.isfinite([value for row in rows for value in row.values()]).all()
    assert rows[-1]["return_at_best"] == agent.search.return_at_best


def test_units_are_those_of_all_observations_and_old_episodes_stay_valid(trained):
    """Gains times units are the parameters; every episode was played with its gains."""
    agent, *_ = trained
    units = np.asarray(agent.state.policy.units)
    assert (units > 0).all()
    assert not np.allclose(units, bayespg.PGPE("CartPole-v1", seed=1).state.policy.units)
    policy = agent.state.policy
    own = np.c_[policy.gains * units, policy.offset / CONSTANT].ravel()
    np.testing.assert_allclose(own, agent.search.best, rtol=1e-5, atol=1e-6)
    seeds = episode_seeds(1, 0, 5)
    keys = [jax.random.fold_in(agent.state.key, seed) for seed in seeds[:2]]
    played = agent.world.play_each(
        [policy.at(theta) for theta in agent.search.parameters[:2]], keys, seeds[:2]
    )
    again = [metrics.evaluation(one).returns[0] for one in played]
    np.testing.assert_array_equal(again, agent.search.returns[:2])


class Sizes(gymnasium.Env):
    """Four numbers of fixed sizes, one of them tiny and one zero."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Box(-1, 1, (1,))
    seen = np.array([10.0, 0.02, 1e-9, 0.0], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen, {}

    def step(self, action):
        return self.seen, float(action[0]), True, False, {}


def test_the_first_episode_is_random_and_gives_the_units():
    agent = bayespg.PGPE(Sizes, seed=0)
    agent.update()
    told, units = agent.search.parameters, agent.state.policy.units
    np.testing.assert_allclose(units[:2], Sizes.seen[:2], rtol=1e-5)
    units = np.append(np.where(units > 0, units, 1.0), 1.0)
    raw = units * np.random.default_rng([0, 0]).normal(size=5) / 2  # of four observations
    np.testing.assert_allclose(
        told[0], raw * min(1.0, LONGEST / np.linalg.norm(raw)), rtol=1e-5, atol=1e-9
    )
    assert (np.linalg.norm(told, axis=1) <= LONGEST * (1 + 1e-9)).all()


def test_if_an_episode_fails_the_search_is_what_it_was():
    agent = bayespg.PGPE(Sizes, seed=0)
    agent.update()
    before, play = agent.search.arrays(), agent.world.play_each
    calls = iter([play, play])
    agent.world.play_each = lambda *of: next(calls)(*of)
    with pytest.raises(StopIteration):
        agent.update()
    for name, array in agent.search.arrays().items():
        np.testing.assert_array_equal(array, before[name])
    agent.world.play_each = play
    agent.update()
    assert agent.search.episodes == agent.state.episodes == 10


@pytest.mark.parametrize("workers", [2, 7])
def test_workers_play_as_many_episodes_at_a_time(workers, monkeypatch):
    agent, sizes = bayespg.PGPE(Sizes, seed=0), []
    monkeypatch.setattr(bayespg.PGPE, "at_once", property(lambda _: workers))
    play = agent.world.play_each
    agent.world.play_each = lambda policies, *rest: (
        sizes.append(len(policies)) or play(policies, *rest)
    )
    agent.update()
    agent.update()
    assert sizes == {2: [1, 2, 2, 2, 2, 1], 7: [1, 6, 7]}[workers]


def test_it_resumes_exactly_and_loads(trained):
    agent, _, folder = trained
    again, run = bayespg.resume(folder)
    assert isinstance(again, bayespg.PGPE)
    np.testing.assert_array_equal(again.search.mean, agent.search.mean)
    observation = np.array([0.1, 0.0, 0.1, 0.0])
    assert bayespg.load(folder).predict(observation) == agent.predict(observation)
    one, other = agent.evaluate(2), again.evaluate(2)
    np.testing.assert_array_equal(one.returns, other.returns)
    again.learn(episodes=5, run=run, progress=False)
    fresh = bayespg.PGPE("CartPole-v1", seed=1).learn(episodes=20, progress=False)
    np.testing.assert_array_equal(fresh.search.mean, again.search.mean)


def test_max_episodes_ends_training_and_progress_counts_episodes(capsys):
    agent = bayespg.PGPE("CartPole-v1", seed=2, max_episodes=5)
    agent.learn(10_000).learn(10_000)
    assert agent.state.episodes == 5
    assert capsys.readouterr().out.startswith("5 episodes  100%")


@pytest.mark.parametrize(
    ("space", "outputs"),
    [
        (spaces.Discrete(1), 1), (spaces.Discrete(2), 1), (spaces.Discrete(3), 2),
        (spaces.MultiDiscrete([2, 4]), 4), (spaces.Box(-1, 1, (2,)), 2),
    ],
)  # fmt: skip
def test_few_outputs_for_every_kind_of_action(space, outputs):
    policy = deterministic.make("linear", 3, actions(space), jax.random.key(0), (4,))
    assert policy.weights.shape == (outputs, 4)
    theta = np.arange(4.0 * outputs) - 2
    moved = policy.at(theta)
    np.testing.assert_allclose(moved.theta(), theta)
    for x in np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32):
        action, scores = np.asarray(moved(x).mode()), moved.gains @ x + moved.offset
        if isinstance(space, spaces.Box):
            np.testing.assert_allclose(action, scores, rtol=1e-5)
        elif isinstance(space, spaces.MultiDiscrete):
            np.testing.assert_array_equal(action, [scores[0] > 0, np.argmax(scores[1:])])
        else:
            assert action == (scores[0] > 0 if space.n == 2 else np.argmax(scores))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_choices_are_the_corners_of_a_regular_simplex(size):
    corners = deterministic.corners(size)
    products = corners @ corners.T
    np.testing.assert_allclose(products, np.eye(size) - 1 / size, atol=1e-12)
    np.testing.assert_allclose(corners.sum(0), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "space", "directional"),
    [
        ("linear", spaces.Discrete(3), True), ("fourier", spaces.Discrete(2), True),
        ("mlp", spaces.Discrete(2), False), ("linear", spaces.Box(-1, 1, (2,)), False),
    ],
)  # fmt: skip
def test_only_directions_matter_to_policies_that_choose_by_linear_scores(name, space, directional):
    policy = deterministic.make(name, 3, actions(space), jax.random.key(0), (4,))
    assert policy.directional == directional
    if directional:
        theta = np.random.default_rng(1).normal(size=policy.theta().size)
        states = np.random.default_rng(2).normal(size=(20, 3)).astype(np.float32)
        one, other = (jax.vmap(policy.at(c * theta))(states).action for c in (1.0, 30.0))
        np.testing.assert_array_equal(one, other)


WRONG = [
    ("policy", {"policy": "tiles"}), ("discount", {"discount": 0.9}),
    ("estimator", {"estimator": "bac"}), ("update", {"update": "adam"}),
    ("hidden", {"hidden": (3,)}), ("max_episodes", {"max_episodes": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), WRONG)
def test_settings_without_effect_are_refused(name, given):
    with pytest.raises(ValueError, match=f"^{name}: "):
        bayespg.PGPE("CartPole-v1", **given)


@pytest.mark.parametrize("budget", [{}, {"steps": 5, "episodes": 5}])
def test_a_budget_is_one_of_two(budget):
    with pytest.raises(ValueError, match=r"^(steps|episodes): give steps or episodes"):
        bayespg.PGPE("CartPole-v1").learn(**budget)
