"""Gymnasium environments: what goes wrong is located, and nothing of an episode is lost."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym

from bayespg.environments import host
from bayespg.environments.host import FALLBACK, EnvironmentFailure, Host
from bayespg.paths import rollout
from bayespg.paths.rollout import play


class Counting(gymnasium.Env):
    """Observes (time, noise) and pays the noise; the seed draws the noise, and the length unless
    told. Every third seed ends in an absorbing state, the others are cut off."""

    observation_space = gym.Box(-100, 100, (2,))
    action_space = gym.Box(-1, 1, (1,))

    def __init__(self, length: int | None = None):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.absorbs = (seed or 0) % 3 == 0
        self.end = self.length or int(self.np_random.integers(1, 9))
        self.time = 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.time, self.np_random.normal()], np.float32)

    def step(self, action):
        self.time += 1
        observation = self.observe()
        ends = self.time == self.end
        reward = observation[1] + action[0]
        return observation, reward, ends and self.absorbs, ends and not self.absorbs, {}


class Faulty(Counting):
    """Goes wrong at the third step, or at once."""

    def __init__(self, fault: str):
        super().__init__(8)
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        if self.fault == "raises at reset":
            raise RuntimeError("no memory left")
        found = super().reset(seed=seed)
        match self.fault:
            case "forgets info at reset":
                return found[0]
            case "info at reset is missing":
                return found[0], None
            case "actions change at reset":
                self.action_space = gym.Discrete(3)
            case "NaN at reset":
                found[0][1] = np.nan
        return found

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.time == 3:
            match self.fault:
                case "raises":
                    raise KeyError("wheel")
                case "reward is NaN":
                    reward = np.nan
                case "reward is infinite":
                    reward = -np.inf
                case "reward is beyond float32":
                    reward = 1e39
                case "reward is no number":
                    reward = None
                case "reward is text":
                    reward = "3.0"
                case "reward is a vector":
                    reward = np.ones(2)
                case "reward is complex":
                    reward = 1j
                case "terminated is text":
                    return observation, reward, "False", False, {}
                case "terminated is missing":
                    return observation, reward, None, False, {}
                case "truncated is info":
                    return observation, reward, False, {}, False
                case "truncated is a number":
                    return observation, reward, False, 2, {}
                case "info is missing":
                    return observation, reward, False, False, None
                case "observation is text":
                    observation = ["1", "2"]
                case "observation is beyond float32":
                    observation = np.array([0.0, 1e39])
                case "exits":
                    raise SystemExit(3)
                case "observation is NaN":
                    observation[1] = np.nan
                case "observation is infinite":
                    observation[0] = np.inf
                case "observation changes shape":
                    observation = np.zeros(3)
                case "observation is missing":
                    observation = None
                case "forgets truncated":
                    return observation, reward, False, {}
        return observation, reward, *rest


FAULTS = {
    "raises at reset": "no memory left",
    "forgets info at reset": "expected observation and info, found ndarray",
    "info at reset is missing": "info is None, not a dictionary",
    "actions change at reset": r"the action space is Discrete\(3\) where it was Box",
    "NaN at reset": "the observation holds nan",
    "raises": "KeyError: 'wheel'",
    "exits": "SystemExit: 3",
    "reward is NaN": "reward is nan",
    "reward is infinite": "reward is -inf",
    "reward is beyond float32": "reward is 1e",
    "reward is no number": "the reward is None, not a number",
    "reward is text": "the reward is '3.0', not a number",
    "reward is a vector": r"the reward is array\(.*\), not a number",
    "reward is complex": "the reward is 1j, not a number",
    "terminated is text": "terminated is 'False', not true or false",
    "terminated is missing": "terminated is None, not true or false",
    "truncated is info": "info is False, not a dictionary",
    "truncated is a number": "truncated is 2, not true or false",
    "info is missing": "info is None, not a dictionary",
    "observation is text": "observation of type <U1, expected numbers",
    "observation is beyond float32": "observation holds inf",
    "observation is NaN": "observation holds nan",
    "observation is infinite": "observation holds inf",
    "observation changes shape": r"observation of shape \(3,\), the space says \(2,\)",
    "observation is missing": "observation of type object, expected numbers",
    "forgets truncated": "expected observation, reward, terminated, truncated and info, found 4",
}


def by_state(observations, time, wave):
    """Actions that depend on a lane's own observation alone, exact however many there are."""
    return (observations[:, 1:] / 4,) * 2


def upright(observations, time, wave):
    return ((observations[:, 2] > 0).astype(int),) * 2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_says_where_so_that_it_can_be_seen_again(fault):
    made = Host(lambda: Faulty(fault), lanes=2)
    step = 0 if "reset" in fault else 3
    where = f"^Faulty, episode of seed 71, step {step}: .*{FAULTS[fault]}"
    with pytest.raises(EnvironmentFailure, match=where):
        play(made, by_state, [71, 72])


class Loose(Counting):
    """Answers with numbers and booleans of other types."""

    def __init__(self, as_number, as_flag):
        super().__init__(4)
        self.as_number, self.as_flag = as_number, as_flag

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        observation = observation.astype(float).tolist()
        flags = self.as_flag(terminated), self.as_flag(truncated)
        return [observation, self.as_number(reward), *flags, info]


@pytest.mark.parametrize("as_flag", [int, float, np.bool_, np.array, lambda x: np.array([x])])
@pytest.mark.parametrize("as_number", [float, np.float64, np.array, lambda x: np.array([[x]])])
def test_one_number_and_one_flag_may_have_any_type(as_number, as_flag):
    expected = play(Host(Counting(4)), by_state, [0, 1])
    found = play(Host(Loose(as_number, as_flag)), by_state, [0, 1])
    np.testing.assert_array_equal(found.rewards, expected.rewards)
    np.testing.assert_array_equal(found.states, expected.states)
    np.testing.assert_array_equal(found.terminated, expected.terminated)


def test_an_environment_that_never_ends_is_cut_off_at_the_horizon():
    paths = play(Host(Counting(10**9), horizon=5), by_state, [0, 3])
    np.testing.assert_array_equal(paths.lengths, [5, 5])
    assert not paths.terminated.any()


def test_without_any_limit_the_fallback_holds_and_is_announced_once():
    made = Host(Counting(10**9))
    with pytest.warns(UserWarning, match="^Counting has no time limit: .* 1000 steps; .*horizon="):
        paths = play(made, by_state, [0])
    assert Host(Counting()).horizon == FALLBACK == paths.lengths[0]
    assert not paths.terminated.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(made, by_state, [0])


@pytest.mark.parametrize(
    "quiet",
    [
        lambda: Host(Counting(8)),
        lambda: Host(Counting(10**9), horizon=8),
        lambda: Host(gymnasium.wrappers.TimeLimit(Counting(10**9), 8)),
    ],
)
def test_nothing_is_announced_where_nothing_is_cut_or_a_limit_is_known(quiet):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert play(quiet(), by_state, [0, 1]).lengths.tolist() == [8, 8]


def test_the_shorter_of_the_horizon_and_the_environment_s_own_limit_holds():
    assert Host("CartPole-v1", lanes=1).horizon == 500
    assert Host("CartPole-v1", lanes=1, horizon=50).horizon == 50
    assert Host("CartPole-v1", lanes=1, horizon=5000).horizon == 500


def test_an_end_at_the_horizon_is_an_end():
    paths = play(Host(Counting(4), horizon=4), by_state, [0, 1])
    np.testing.assert_array_equal(paths.terminated, [True, False])


def naive(environment, seed):
    """One episode after Gymnasium's manual."""
    observation, _ = environment.reset(seed=seed)
    states, actions, rewards = [], [], []
    while True:
        action = by_state(observation[None], 0, True)[0][0]
        states.append(observation)
        actions.append(action)
        observation, reward, terminated, truncated, _ = environment.step(np.clip(action, -1, 1))
        rewards.append(reward)
        if terminated or truncated:
            return states, actions, rewards, terminated, observation


SEEDS = [5, 3, 8, 9, 12, 1, 40, 41, 42, 43, 44]


@pytest.mark.parametrize("lanes", [1, 3, 20])
def test_every_step_is_that_of_a_naive_loop_and_is_counted_once(lanes):
    paths = play(Host(Counting, lanes=lanes), by_state, SEEDS)
    lengths = []
    for j, seed in enumerate(SEEDS):
        states, actions, rewards, terminated, final = naive(Counting(), seed)
        T = len(states)
        lengths.append(T)
        np.testing.assert_array_equal(paths.mask[:, j], np.arange(len(paths.mask)) < T)
        np.testing.assert_array_equal(paths.states[:T, j], states)
        np.testing.assert_array_equal(paths.actions[:T, j], actions)
        np.testing.assert_array_equal(paths.rewards[:T, j], np.float32(rewards))
        np.testing.assert_array_equal(paths.final[j], final)
        assert paths.terminated[j] == terminated == (seed % 3 == 0)
    np.testing.assert_array_equal(paths.lengths, lengths)
    assert {1, max(lengths)} <= set(lengths)


def test_the_seeds_decide_the_episodes_whatever_the_number_of_lanes():
    first = play(Host("CartPole-v1", lanes=1), upright, SEEDS)
    for lanes in (2, 11):
        again = play(Host("CartPole-v1", lanes=lanes), upright, SEEDS)
        for one, other in zip(vars(first).values(), vars(again).values(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_episode_does_not_depend_on_those_before_it_in_its_lane():
    made = Host(Counting())
    alone = play(made, by_state, [8])
    after = play(made, by_state, [3, 5, 8])
    np.testing.assert_array_equal(alone.rewards[:, 0], after.rewards[:, 2])


def test_episodes_of_one_step_are_whole():
    paths = play(Host(lambda: Counting(1), lanes=2), by_state, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(paths.lengths, 1)
    np.testing.assert_array_equal(paths.final[:, 0], 1)
    np.testing.assert_array_equal(paths.terminated, [True, False, False, True, False])


AT_ONCE = 16


@pytest.mark.parametrize(
    ("length", "horizon", "padded"),
    [
        (5, 9, 9),
        (5, AT_ONCE, AT_ONCE),
        (5, 6 * AT_ONCE, AT_ONCE),
        (AT_ONCE, 6 * AT_ONCE, AT_ONCE),
        (AT_ONCE + 1, 6 * AT_ONCE, 4 * AT_ONCE),
        (4 * AT_ONCE + 1, 6 * AT_ONCE, 6 * AT_ONCE),
    ],
)
def test_paths_are_padded_to_one_of_a_handful_of_lengths(length, horizon, padded, monkeypatch):
    monkeypatch.setattr(rollout, "AT_ONCE", AT_ONCE)
    paths = play(Host(Counting(length), horizon=horizon), by_state, [0])
    assert len(paths.states) == len(paths.rewards) == len(paths.mask) == padded
    assert paths.lengths == [length]


@pytest.mark.parametrize(("length", "padded"), [(1, 16), (16, 16), (17, 64), (257, 1000)])
@pytest.mark.parametrize("horizon", [None, 1000])
def test_episodes_without_a_time_limit_are_padded_to_few_steps(length, padded, horizon):
    host = Host(Counting(length), horizon=horizon)
    paths = play(host, by_state, [0])
    assert len(paths.mask) == padded
    assert paths.lengths == [length]
    assert rollout.certain_length(host, 1) is None


def test_idle_lanes_are_asked_and_not_listened_to():
    asked = []

    def act(observations, time, wave):
        asked.append((len(observations), time))
        return by_state(observations, time, wave)

    paths = play(Host(lambda: Counting(3), lanes=4), act, [0, 1])
    assert asked == [(4, 0), (4, 1), (4, 2)]
    assert paths.mask.sum() == 6


def test_an_environment_has_one_lane_and_a_function_makes_as_many_as_are_needed():
    assert Host(Counting(), lanes=5).lanes == 1
    made = Host(Counting, lanes=5)
    assert (made.lanes, len(made.environments)) == (5, 2)
    play(made, by_state, [0, 1, 2])
    assert len({id(e) for e in made.environments}) == 3
    play(made, by_state, range(7))
    assert len({id(e) for e in made.environments}) == 5
    assert made.name == "Counting"
    assert Host("CartPole-v1", lanes=2).name == "CartPole-v1"


def test_a_function_that_makes_the_same_environment_again_is_refused():
    one = Counting()
    with pytest.raises(ValueError, match="gave the same environment twice"):
        Host(lambda: one, lanes=2)
    assert Host(lambda: one, lanes=1).lanes == 1


def test_close_closes_all():
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    host = Host(Closing, lanes=3)
    play(host, by_state, range(3))
    host.close()
    assert len(set(closed)) == 3


@pytest.mark.parametrize(
    ("typo", "meant"), [("CartPol-v1", "CartPole-v1"), ("Pendulum1", "Pendulum-v1")]
)
def test_a_typo_is_answered_with_what_was_meant(typo, meant):
    with pytest.raises(ValueError, match=f"'{typo}'; did you mean '{meant}'"):
        Host(typo)


@pytest.mark.parametrize("name", ["Qqqqqq", "no_such_module:Task-v0", "CartPole-v7", "a b", ""])
def test_a_name_that_nothing_has_is_said_to_be_nobody_s(name):
    with pytest.raises(ValueError, match="environment: "):
        Host(name)


@pytest.mark.parametrize("thing", [3, None, lambda: 3])
def test_what_is_no_environment_is_refused(thing):
    """Asked of the function behind Host, whose annotations the tests check."""
    with pytest.raises(ValueError, match="environment: expected an id"):
        host._make(thing, {})


def test_an_environment_that_raises_when_it_is_made_is_named():
    def fail():
        raise RuntimeError("no display")

    gymnasium.register("Failing-v0", entry_point=fail)
    try:
        with pytest.raises(ValueError, match="Failing-v0 cannot be made: RuntimeError: no display"):
            Host("Failing-v0")
    finally:
        del gymnasium.registry["Failing-v0"]


def test_an_environment_whose_package_is_missing_is_not_taken_for_a_typo():
    gymnasium.register("Absent-v0", entry_point="no_such_package.tasks:Task")
    try:
        with pytest.raises(ValueError, match=r"Absent-v0 cannot be made: .*no_such_package"):
            Host("Absent-v0")
    finally:
        del gymnasium.registry["Absent-v0"]


@pytest.mark.parametrize("options", [{"discount": 1.5}, {"discount": -0.1}, {"horizon": 0}])
def test_options_out_of_range_are_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        Host(Counting, **options)


def test_options_reach_the_environment_and_unknown_ones_are_refused():
    made = Host("FrozenLake-v1", lanes=1, options={"map_name": "8x8"})
    assert made.observations.size == 64
    with pytest.raises((TypeError, ValueError), match="wings"):
        Host("CartPole-v1", lanes=1, options={"wings": 2})
