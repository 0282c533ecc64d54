"""Returns as text, and advice where they do not move."""

import math

import gymnasium
import numpy as np
import pytest

from bayespg.agents.hints import AFTER, EQUAL, FAINT, LONG, Constant, Stuck, Unconfirmed
from bayespg.environments.host import Host
from bayespg.runs.columns import Column, familiar, tag
from bayespg.runs.numbers import over_seeds, shown


def test_numbers_have_as_many_decimals_as_the_largest_needs():
    assert shown(0.84, 0.8, -0.0123) == ["0.840", "0.800", "-0.012"]
    assert shown(-1.5, 0.25) == ["-1.50", "0.25"]
    assert shown(1234.56, 0.5) == ["1,234.6", "0.5"]
    assert shown(0.0, float("nan")) == ["0.0", "nan"]
    assert Column.RETURN.show(0.5) == "0.500"
    assert shown(-1.7e-5, 2.5e-6, 0.0) == ["-1.7e-05", "2.5e-06", "0"]
    assert shown(-1.32e31, 1.0) == ["-1.32e+31", "1"]


def test_two_seeds_are_shown_themselves_and_three_with_an_interval():
    assert over_seeds(np.array([484.0])) == ""
    assert over_seeds(np.array([500.0, 468.0])) == "2 seeds: 468.0 and 500.0"
    assert over_seeds(np.array([1.0, 2.0, 3.0])) == "95 % over 3 seeds -0.48 to 4.48"
    assert over_seeds(np.array([500.0] * 9 + [494.0])) == "95 % over 10 seeds 498.0 to 500.0"


def test_columns_are_grouped_in_tensorboard():
    assert [tag(name) for name in ("return", "slope", "divergence", "scale")] == [
        "rollout/return", "gradient/slope", "train/divergence", "train/scale"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "gain", "noise", "said"),
    [
        ("linear", 0.0, 1.0, True), ("linear", 0.1, 1.0, False), ("linear", 0.0, 0.0, False),
        ("mlp", 0.0, 1.0, False), (None, 0.0, 1.0, False),
    ],
)  # fmt: skip
def test_advice_comes_once_and_only_where_returns_do_not_move(policy, gain, noise, said):
    stuck, rng = Stuck(policy), np.random.default_rng(0)
    found = [
        stuck({"update": k, "return": gain * k + noise * rng.normal()}) for k in range(1, 2 * AFTER)
    ]
    assert [k for k, sentence in enumerate(found, 1) if sentence] == [AFTER] * said


def test_a_few_returns_far_from_the_others_do_not_hide_that_returns_have_moved():
    stuck, rng = Stuck("fourier"), np.random.default_rng(0)
    for k in range(1, AFTER + 1):
        far = -10_000.0 * (k % 30 == 5)
        assert stuck({"update": k, "return": 0.1 * k + far + rng.normal()}) is None


@pytest.mark.parametrize(
    ("episodes", "confirmed", "at"),
    [
        (2, [0.0] * 3 * LONG, LONG),
        (2, [0.0] * (LONG - 1) + [FAINT] + [0.0] * 2 * LONG, 2 * LONG),
        (2, [FAINT] * 2 * LONG, None),
        ("auto", [0.0] * 2 * LONG, None),
    ],
)
def test_more_episodes_are_advised_once_after_many_updates_that_confirm_nothing(
    episodes, confirmed, at
):
    hint = Unconfirmed(episodes)
    found = {k: hint({"confirmed": share}) for k, share in enumerate(confirmed, 1)}
    said = {k: sentence for k, sentence in found.items() if sentence}
    assert list(said) == ([at] if at else [])
    assert all("episodes=8" in sentence for sentence in said.values())
    assert Unconfirmed(2)({}) is None


@pytest.mark.parametrize(
    ("row", "at"),
    [
        ({}, [EQUAL]), ({"return_error": math.nan}, [EQUAL]), ({"return_error": 0.1}, []),
        ({"return": 0.0, "return_error": 0.0}, [EQUAL]), ({"return": math.nan}, []),
        ({"update": 2}, []),
    ],
)  # fmt: skip
def test_returns_that_are_all_the_same_are_told_once(row, at):
    hint = Constant()
    rows = ({"update": k, "return": -200.0, "return_error": 1e-15} | row for k in range(1, 60))
    said = {k: sentence for k, sentence in enumerate(map(hint, rows), 1) if sentence}
    assert list(said) == at
    assert all(shown(row.get("return", -200.0))[0] in sentence for sentence in said.values())


def test_returns_that_differ_once_are_not_all_the_same():
    hint = Constant()
    rows = ({"update": k, "return": float(k == 9), "return_error": 0.0} for k in range(1, 60))
    assert not any(map(hint, rows))


def test_a_wrapper_that_changes_rewards_is_named():
    wrapped = gymnasium.wrappers.NormalizeReward(gymnasium.make("CartPole-v1"))
    with pytest.warns(UserWarning, match=r"NormalizeReward changes the rewards.*raw returns"):
        Host(wrapped)


def test_curves_have_the_names_of_stable_baselines_too():
    row = {"return": 3.0, "length": 10.0, "steps": 200.0, "seconds": 4.0}
    assert familiar(row) == {
        "rollout/ep_rew_mean": 3.0, "rollout/ep_len_mean": 10.0, "time/total_timesteps": 200.0,
        "time/fps": 50.0,
    }  # fmt: skip
    assert familiar({"update": 1.0}) == {}
