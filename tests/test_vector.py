"""Vector environments: whatever their autoreset does, the episodes are those of single ones."""

import functools

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from test_host import SEEDS, Counting, Faulty, by_state

from bayespg.agents import load
from bayespg.agents.agent import Agent
from bayespg.environments.host import FALLBACK, EnvironmentFailure, Host
from bayespg.environments.vector import Vector
from bayespg.paths.acting import Acting
from bayespg.paths.rollout import play
from bayespg.policies import named

MODES = list(AutoresetMode)


def sync(make, lanes=3, mode=AutoresetMode.NEXT_STEP, **options):
    make = functools.partial(gymnasium.make, make) if isinstance(make, str) else make
    return SyncVectorEnv([make] * lanes, autoreset_mode=mode, **options)


def assert_same(one, other):
    for a, b in zip(vars(one).values(), vars(other).values(), strict=True):
        np.testing.assert_array_equal(a, b)


def policy_for(lanes):
    key = jax.random.key(1)
    found = named.make("linear", lanes.observations.size, lanes.actions, key, ())
    return jax.tree.map(lambda w: w + jax.random.normal(jax.random.key(2), w.shape), found)


@pytest.mark.slow(*(f"Pendulum-v1-True-{mode}" for mode in MODES))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "copy"), [("CartPole-v1", True), ("CartPole-v1", False), ("Pendulum-v1", True)]
)
def test_paths_are_those_of_single_environments(name, mode, copy):
    """In one wave and in several."""
    host, vector = Host(name, lanes=5), Vector(sync(name, 5, mode, copy=copy))
    policy, key = policy_for(host), jax.random.key(3)
    assert vector.horizon == host.horizon
    drawn = [play(lanes, Acting(policy, key), SEEDS) for lanes in (host, vector)]
    assert_same(*drawn)
    if name == "CartPole-v1":
        assert len(set(drawn[0].lengths.tolist())) > 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lanes", [1, 3, 20])
def test_no_step_of_another_episode_gets_in(mode, lanes):
    """Lengths from one step to eight, ends and cuts, lanes that wait for others."""
    expected = play(Host(Counting, lanes=lanes), by_state, SEEDS)
    vector = Vector(sync(Counting, lanes, mode))
    assert_same(play(vector, by_state, SEEDS), expected)
    assert_same(play(vector, by_state, SEEDS), expected)


@pytest.mark.parametrize("mode", MODES)
def test_the_horizon_cuts_whatever_the_environment_would_do(mode):
    expected = play(Host(Counting, lanes=3, horizon=4), by_state, SEEDS)
    assert_same(play(Vector(sync(Counting, 3, mode), horizon=4), by_state, SEEDS), expected)
    assert Vector(sync(Counting)).horizon == FALLBACK


@pytest.mark.slow
def test_processes_of_gymnasium_s_own_change_nothing():
    mode = AutoresetMode.SAME_STEP
    vector = Vector(AsyncVectorEnv([Counting] * 2, autoreset_mode=mode, context="forkserver"))
    expected = play(Host(Counting, lanes=2), by_state, SEEDS)
    try:
        assert_same(play(vector, by_state, SEEDS), expected)
    finally:
        vector.close()


class Nested(Counting):
    """The same in a dictionary with a tuple in it."""

    observation_space = spaces.Dict(
        a=spaces.Box(-100, 100, (1,)), b=spaces.Tuple([spaces.Box(-100, 100, (1,))])
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def observe(self):
        time, noise = super().observe()
        return {"a": np.array([time]), "b": (np.array([noise]),)}

    def step(self, action):
        self.time += 1
        found, ends = self.observe(), self.time == self.end
        return found, float(action[1]), ends and self.absorbs, ends and not self.absorbs, {}


@pytest.mark.parametrize("mode", MODES)
def test_spaces_of_every_kind_go_through(mode):
    def act(observations, time, wave):
        return (np.stack([observations[:, 1] > 0, observations[:, 0] > 2], 1).astype(int),) * 2

    expected = play(Host(Nested, lanes=3), act, SEEDS)
    assert_same(play(Vector(sync(Nested, 3, mode)), act, SEEDS), expected)


def test_one_that_takes_a_single_seed_repeats_itself_all_the_same():
    vector = Vector(gymnasium.make_vec("CartPole-v1", 3, "vector_entry_point"))
    policy, key = policy_for(vector), jax.random.key(3)
    first = play(vector, Acting(policy, key), SEEDS)
    assert_same(first, play(vector, Acting(policy, key), SEEDS))
    assert len(np.unique(first.states[0, :, 0])) == len(SEEDS)
    assert vector.horizon == 500
    assert vector.name == "CartPole-v1"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("observation is NaN", "lane 0, episode of seed 71, step 3: .*observation holds nan"),
        ("reward is infinite", "lane 0, episode of seed 71, step 3: .*reward is -inf"),
        ("raises", "one of lanes 0, 1 with episodes of seeds 71, 72, step 3: KeyError: 'wheel'"),
        ("raises at reset", "one of lanes 0, 1 .* 71, 72, step 0: .*no memory left"),
    ],
)
def test_a_failure_says_where(fault, says, mode):
    vector = Vector(sync(lambda: Faulty(fault), 2, mode))
    with pytest.raises(EnvironmentFailure, match=f"^SyncVectorEnv, {says}"):
        play(vector, by_state, [71, 72])


class Damaged(gymnasium.vector.VectorWrapper):
    """A vector environment that does not answer for each lane, or not in kind."""

    def __init__(self, environment, fault):
        super().__init__(environment)
        self.fault = fault

    def reset(self, **options):
        observations, infos = self.env.reset(**options)
        return observations[:1] if self.fault == "few at reset" else observations, infos

    def step(self, actions):
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        match self.fault:
            case "few observations":
                observations = observations[:1]
            case "many rewards":
                rewards = np.ones(5)
            case "one reward":
                rewards = 1.0
            case "text":
                terminated = ["False", "False"]
            case "no infos":
                infos = None
        return observations, rewards, terminated, truncated, infos


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("few at reset", "step 0: .*observation: expected 2, one for each lane, found 1"),
        ("few observations", "step 1: .*observation: expected 2, one for each lane, found 1"),
        ("many rewards", "step 1: .*reward: expected 2, one for each lane, found 5"),
        ("one reward", "step 1: .*reward: expected 2, one for each lane, found 1"),
        ("text", "step 1: .*terminated is 'False', not true or false"),
        ("no infos", "step 1: .*info is None, not a dictionary"),
    ],
)
def test_what_is_not_one_answer_for_each_lane_is_refused(fault, says):
    vector = Vector(Damaged(sync(Counting, 2), fault))
    with pytest.raises(EnvironmentFailure, match=f"^SyncVectorEnv, one of lanes 0, 1 .*, {says}"):
        play(vector, by_state, [71, 72])


def test_what_goes_wrong_after_an_episode_s_end_is_not_looked_at():
    vector = Vector(sync(lambda: Faulty("observation is NaN"), 2), horizon=2)
    assert play(vector, by_state, [71, 72]).mask.sum() == 4


@pytest.mark.slow
def test_an_agent_learns_and_continues_exactly(tmp_path):
    def made():
        return Agent(sync("CartPole-v1", 4), "linear", episodes=8, seed=0)

    agent = made().learn(1_000, progress=False)
    assert agent.evaluate(8).mean > 30
    made().learn(500, run=tmp_path / "run", progress=False)
    again, run = load.resume(tmp_path / "run", environment=sync("CartPole-v1", 4))
    again.learn(1_000 - int(again.state.steps), run=run, progress=False)
    for a, b in zip(*(jax.tree.leaves(x.state.policy) for x in (agent, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert agent.predict(np.zeros(4)) in (0, 1)


def test_processes_are_the_vector_environment_s_own_affair():
    with pytest.raises(ValueError, match="workers: a vector environment has processes of its own"):
        Agent(sync("CartPole-v1"), workers=2)
