"""Schedules of rates and limits, and normalised rewards."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import bayespg
from bayespg.environments.spaces import Observations
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import schedules
from bayespg.learning.advance import no_statistics
from bayespg.learning.rewards import scaled


def test_schedules_take_the_values_of_their_formulas():
    falling, paper = schedules.of("linear:0.05:0.01:40"), schedules.of("hyperbolic:0.2:20")
    np.testing.assert_allclose(
        [falling(j) for j in (0, 10, 40, 99)], [0.05, 0.04, 0.01, 0.01], rtol=1e-6
    )
    np.testing.assert_allclose([paper(j) for j in (0, 20, 60)], [0.2, 0.1, 0.05], rtol=1e-6)
    assert schedules.of(0.3) == 0.3


@pytest.mark.parametrize("text", ["linear:1:2", "cosine:1:2:3", "linear:1:0:9", "linear:a:b:c", ""])
def test_what_is_no_schedule_is_named(text):
    with pytest.raises(ValueError, match=r"^limit: expected a number above 0, linear:START:END"):
        bayespg.BAC("CartPole-v1", "linear", limit=text)


def test_the_limit_of_an_update_follows_its_schedule_also_after_resuming(tmp_path):
    def made(limit):
        return bayespg.BAC("CartPole-v1", "linear", seed=0, horizon=20, limit=limit)

    agent = made("linear:0.05:0.0005:3")
    moved = [agent.update()["divergence"] for _ in range(3)]
    assert agent.config["limit"] == "linear:0.05:0.0005:3"
    agent.save(tmp_path / "kept")
    loaded = bayespg.load(tmp_path / "kept")
    moved.append(loaded.update()["divergence"])
    assert agent.update()["divergence"] == moved[-1]
    for limit, found in zip((0.05, 0.0335, 0.017, 0.0005), moved, strict=True):
        assert found <= 1.5 * limit
    assert moved[0] > 20 * moved[-1]
    with pytest.raises(ValueError, match="conjugate-gradients takes a number"):
        bayespg.BAC("CartPole-v1", "linear", update="conjugate-gradients", limit="hyperbolic:1:2")


def test_the_rate_of_an_optimiser_follows_its_schedule():
    agent = bayespg.BAC(
        "CartPole-v1", "linear", update="adam", rate="linear:0.1:0.001:1", horizon=20
    )
    first, second = (agent.update()["step_norm"] for _ in range(2))
    assert second < 0.05 * first


def batch(rewards):
    rewards = np.asarray(rewards, np.float32)
    T, M = rewards.shape
    return Trajectories(
        np.zeros((T, M, 1)), np.zeros((T, M)), rewards, np.arange(T)[:, None] < [T, 2],
        np.zeros(M, bool), np.zeros((M, 1)),
    )  # fmt: skip


def test_rewards_are_divided_by_the_spread_of_their_discounted_sums():
    statistics, seen = no_statistics(()), []
    for seed in range(2):
        paths = batch(100 * np.random.default_rng(seed).normal(size=(5, 2)))
        found, statistics = scaled(paths, statistics, 0.9)
        for m, length in enumerate((5, 2)):
            total = 0.0
            for r in paths.rewards[:length, m]:
                total = 0.9 * total + r
                seen.append(total)
        unit = np.std(seen)
        expected = np.where(paths.mask, paths.rewards, 0) / unit
        np.testing.assert_allclose(found.rewards, expected, rtol=1e-3)
    spike = batch([[0, 0]] * 400 + [[1, 0]])
    assert scaled(spike, no_statistics(()), 0.9)[0].rewards.max() == 10


def test_returns_are_reported_as_the_environment_gives_them():
    plain, normalised = (
        bayespg.BAC("CartPole-v1", "linear", seed=0, horizon=20, normalise_rewards=wanted)
        for wanted in (False, True)
    )
    rows = plain.update(), normalised.update()
    assert rows[0]["return"] == rows[1]["return"]
    assert rows[0]["slope"] > 2 * rows[1]["slope"] > 0
    assert float(normalised.state.rewards.count) == pytest.approx(rows[0]["steps"], rel=1e-3)


def test_images_are_refused_unless_the_policy_is_the_user_s():
    pictures = spaces.Box(0, 255, (96, 96, 3), np.uint8)
    with pytest.raises(ValueError, match=r"images of shape \(96, 96, 3\).*27,648 pixels.*policy="):
        Observations(pictures).refuse_images()
    Observations(spaces.Box(0, 255, (128,), np.uint8)).refuse_images()
    assert eqx.is_array(jnp.asarray(Observations(pictures).encode(pictures.sample())))
