"""Agents whose policies remember: in JAX and on Gymnasium, from drawing to resuming."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import bayespg
from bayespg import estimators, kernels
from bayespg.agents import load, names
from bayespg.agents.agent import Agent
from bayespg.environments import TMaze
from bayespg.environments.host import Host
from bayespg.environments.vector import Vector
from bayespg.paths.acting import Acting
from bayespg.paths.observations import Normalised, no_statistics
from bayespg.paths.rollout import play
from bayespg.policies import FiniteStateController, Recurrent, memory
from bayespg.policies.deterministic import Greedy

MAZE = TMaze(length=1, horizon=3)
POLICIES = {
    "controller": FiniteStateController.random(jax.random.key(1), 4, 3, 2),
    "recurrent": Recurrent.random(jax.random.key(2), 4, 3, 2),
}
WITHOUT_STATES = [
    name for name, make in names.ESTIMATORS.items() if not make(0.95, None).needs.states
]
"""Estimators that take policies with memory."""


class Maze(gymnasium.Env):
    """The T-maze of one step in Gymnasium."""

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.position, self.time = int(self.np_random.integers(2)), 0, 0
        return self.observe(), {}

    def observe(self):
        return np.eye(4, dtype=np.float32)[3 if self.position else self.cue]

    def step(self, action):
        self.time += 1
        turns = self.position == 1 and action > 0
        reward = float(turns and action == 1 + self.cue)
        self.position = max(self.position, int(action == 0))
        return self.observe(), reward, turns, self.time >= 3, {}


class Push(Maze):
    """The same in one real number: beyond -0.3 and 0.3 it turns."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action):
        return super().step(0 if abs(action[0]) < 0.3 else 1 + int(action[0] > 0))


@pytest.fixture(params=POLICIES)
def policy(request):
    return POLICIES[request.param]


def leaves(agent):
    return [np.asarray(x) for x in jax.tree.leaves((agent.state.policy, agent.state.normaliser))]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def assert_remembered(policy, paths):
    """Each choice is the likeliest one given all that its own episode showed before."""
    for j, steps in enumerate(np.asarray(paths.lengths)):
        m = policy.start()
        for t in range(steps):
            at, m = policy(m, paths.states[t, j])
            np.testing.assert_array_equal(paths.actions[t, j], at.mode())
            m = policy.settle(m, at.mode())[1]


@pytest.mark.slow("recurrent-three", "controller-one", "recurrent-one")
@pytest.mark.parametrize(
    "lanes",
    [Host(Maze, lanes=3), Vector(SyncVectorEnv([Maze] * 3)), Host(Maze(), lanes=1)],
    ids=["three", "vector", "one"],
)
def test_every_episode_has_a_memory_of_its_own(policy, lanes):
    paths = play(lanes, Acting(Greedy(policy), jax.random.key(0)), list(range(8)))
    assert_remembered(policy, paths)
    drawn = play(lanes, Acting(policy, jax.random.key(0)), list(range(8)))
    assert drawn.actions.shape[:2] == drawn.mask.shape
    assert len(np.unique(drawn.actions[drawn.mask], axis=0)) > 2


def test_in_jax_greedy_choices_remember_as_well(policy):
    agent = Agent(MAZE, policy, "mc")
    assert_remembered(policy, agent.world.play(policy, jax.random.key(0), [0] * 5, greedy=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "environment", "kind"),
    [(name, MAZE, "controller") for name in WITHOUT_STATES]
    + [("model1", Maze, "controller"), ("mc-baseline", Maze, "recurrent")],
    ids=lambda one: "jax" if one is MAZE else "gymnasium" if one is Maze else one,
)
def test_every_estimator_of_paths_takes_sound_steps(name, environment, kind):
    agent = Agent(environment, POLICIES[kind], name, episodes=12, discount=1.0)
    for _ in range(2):
        row = agent.update()
        assert row["sound"] == 1
        assert np.isfinite(row["slope"])
    assert all(np.isfinite(x).all() for x in leaves(agent))


@pytest.mark.slow
@pytest.mark.parametrize("update", ["natural", "plain", "adam", "sgd", "variance-scaled"])
def test_every_update_moves_a_policy_with_memory(update):
    estimator = "model1" if "var" in update else "mc"
    rate = None if update in names.LIMITED else 0.01
    agent = Agent(MAZE, POLICIES["controller"], estimator, update, episodes=12, rate=rate)
    assert sum(agent.update()["step_norm"] for _ in range(3)) > 0


@pytest.mark.parametrize(
    "estimator", [*(name for name in names.ESTIMATORS if name not in WITHOUT_STATES), "object"]
)
def test_an_estimator_of_steps_is_refused_and_names_those_that_can(estimator, policy):
    if estimator == "object":
        estimator = estimators.BAC(kernels.Gaussian(1.0))
    kind = type(policy).__name__
    with pytest.raises(
        ValueError, match=f"fits values of states, and {kind} has a memory.*Model1, Model2, Rei"
    ):
        Agent(MAZE, policy, estimator)


def test_predict_remembers_until_told_to_forget():
    policy = POLICIES["recurrent"]
    agent = Agent(Maze, policy, "mc", normalise=False)
    seen = np.eye(4, dtype=np.float32)[[0, 2, 3, 3]]
    m, expected = policy.start(), []
    for o in seen:
        at, m = policy(m, o)
        expected.append(int(at.mode()))
    for _ in range(2):
        agent.reset()
        assert [agent.predict(o) for o in seen] == expected
    np.testing.assert_allclose(agent._memory[0], m, rtol=1e-6)
    agent.reset()
    assert agent._memory is None


@pytest.mark.slow
@pytest.mark.parametrize("environment", [MAZE, Maze], ids=["jax", "gymnasium"])
def test_saved_loaded_and_resumed_it_continues_exactly(tmp_path, environment):
    policy = POLICIES["controller"]

    def made():
        return Agent(environment, policy, "mc-baseline", episodes=8, seed=3, normalise=True)

    whole = made().learn(120, progress=False)
    made().learn(60, run=tmp_path / "run", progress=False)
    again, run = load.resume(tmp_path / "run", environment=environment, policy=policy)
    again.learn(120 - int(again.state.steps), run=run, progress=False)
    assert same(whole, again)
    loaded = bayespg.load(tmp_path / "run", environment=environment, policy=policy)
    for greedy in (False, True):
        found = [a.evaluate(6, deterministic=greedy).returns for a in (again, loaded)]
        np.testing.assert_array_equal(*found)


def test_what_it_sees_is_normalised_where_asked(policy):
    statistics = no_statistics((4,)).observe(np.random.default_rng(0).random((9, 4)), np.ones(9))
    o, m = np.ones(4, np.float32), policy.start()
    wrapped, plain = Normalised(policy, statistics), policy(m, statistics(o))
    for a, b in zip(*map(jax.tree.leaves, (wrapped.step(m, o), plain)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", [memory.normal, memory.normals])
def test_real_actions_reach_gymnasium(distribution):
    policy = Recurrent.random(jax.random.key(0), 4, 2, 3, distribution)
    agent = Agent(Push, policy, "mc", episodes=6)
    assert agent.update()["sound"] == 1
    assert Push.action_space.contains(agent.predict(np.zeros(4)))


@pytest.mark.slow
def test_bpg_learns_what_no_policy_without_memory_can():
    """1/2 is the most without memory."""
    agent = bayespg.BPG(
        MAZE, Recurrent.random(jax.random.key(0), 4, 3, 4),
        estimator=estimators.Model2(noise=0.1, scale=0.01, baseline=float("inf")),
        update="sgd", rate=1.0, episodes=40, seed=0,
    )  # fmt: skip
    agent.learn(18_000, progress=False)
    assert agent.evaluate(200).mean > 0.8
