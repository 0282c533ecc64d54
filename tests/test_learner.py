"""One update: what is rounding, what is not finite, and the policy that acts is the one that
learns."""

import functools
import math

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from bayespg import fisher, updates
from bayespg.agents.agent import Agent
from bayespg.environments import LQR, RandomWalk
from bayespg.environments.host import EnvironmentFailure
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import estimators
from bayespg.learning.advance import STAGES, NotFinite
from bayespg.paths.observations import no_statistics
from bayespg.policies import LinearGaussian, Tabular, flatten


class Drift(gymnasium.Env):
    """Six steps of a walk, observed in units of `size` and paid in units of `worth`, or 0.1 a step
    whatever one does."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, worth=1.0, size=1.0, constant=False):
        self.worth, self.size, self.constant = worth, size, constant

    def _seen(self):
        return (self.size * np.array([self.x, self.v])).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.v, self.t = self.np_random.normal(), 0.0, 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        self.v = 0.8 * self.v + 0.2 * (action - 1) + 0.05 * self.np_random.normal()
        self.x += self.v
        reward = 0.1 if self.constant else self.worth * (1 - abs(self.x))
        return self._seen(), reward, False, self.t >= 6, {}


def agent(
    estimator="bac", update="natural", *, episodes=5, seed=1, horizon=6, normalise=None,
    policy=None, **of,
):  # fmt: skip
    return Agent(
        functools.partial(Drift, **of), policy, estimator, update, episodes=episodes,
        seed=seed, horizon=horizon, normalise=normalise,
    )  # fmt: skip


def leaves(agent):
    s = agent.state
    kept = (s.policy, s.critic, s.normaliser, s.optimiser, s.updates, s.steps, s.episodes)
    return [np.asarray(x) for x in jax.tree.leaves(kept)]


# Rounding.


@pytest.mark.slow("model2", "enac")
@pytest.mark.parametrize("name", ["model2", "mc-baseline", "enac"])
def test_returns_that_are_all_equal_make_no_step(name):
    """Their gradients are sums that cancel; what is left of them is rounding."""
    one = agent(name, episodes=7, constant=True)
    for _ in range(2):
        row = one.update()
        assert row["gradient_norm"] == row["step_norm"] == row["slope"] == 0
        assert row["sure"] == 0.5
        assert row["sound"] == 1
    assert not np.asarray(one.policy.head.weights).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "update"),
    [("model1", "natural"), ("model1", "plain"), ("mc", "conjugate-gradients")],
)
def test_steps_are_not_led_into_the_null_space(name, update):
    """Adding to the logits of all actions changes no probability, so no divergence limits it."""
    one = agent(name, update)
    for _ in range(3):
        assert one.update()["step_norm"] < 10
    weights = np.asarray(one.policy.head.weights)
    common = np.broadcast_to(weights.mean(0), weights.shape)
    assert np.linalg.norm(weights - common) > 0
    assert np.linalg.norm(common) < np.linalg.norm(weights - common)


def test_what_a_gradient_has_in_the_null_space_is_left_out(x64):
    A = np.array([[1.0, -1.0, 0.0], [0.0, 300.0, -300.0]])
    G = A.T @ A
    g = G @ [1.0, 2.0, 4.0]
    inside, d = updates.within_range(fisher.Dense(G), jnp.asarray(g + 5.0))
    np.testing.assert_allclose(inside.sum(), 0, atol=1e-6)
    np.testing.assert_allclose(G @ d, inside, rtol=1e-9)
    same, _ = updates.within_range(fisher.Dense(G), jnp.asarray(g))
    np.testing.assert_allclose(same, g, rtol=1e-9)


class Bandit(gymnasium.Env):
    """One choice of two in a context; the right one is worth one."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.right = int(self.np_random.integers(2))
        return np.array([2.0 * self.right - 1], np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action == self.right), False, True, {}


@pytest.mark.slow("bac", "bac-returns")
@pytest.mark.parametrize("name", ["bac", "bac-returns", "fitted"])
def test_episodes_of_one_step_that_are_truncated_are_learned_from(name):
    """Random choices are right in half of the episodes; 64 of them are all right by chance in
    2^-64, and 0.9 or more of them in 1e-11."""
    one = Agent(Bandit, "linear", name, seed=0, episodes=8)
    for _ in range(30):
        row = one.update()
    assert row["sound"] == 1
    assert one.evaluate(64).mean > 0.9


# What is not finite.

SIZES = [1e-25, 1e-10, 1e19, 1e30]


@pytest.mark.slow("gpomdp", "model2")
@pytest.mark.parametrize("name", ["bac", "gpomdp", "model2"])
def test_units_of_the_rewards_do_not_matter(name):
    """To the ends of single precision, and the error bars neither."""

    def last(worth):
        one = agent(name, policy="linear", worth=worth)
        one.update()
        return one.update()

    expected = last(1.0)
    for worth in SIZES if name != "model2" else SIZES[1:]:
        row = last(worth)
        unknown = ("explained", "known", "trace", "kappa", "advantage")
        known = {k: v for k, v in row.items() if k not in unknown}
        assert all(math.isfinite(value) for value in known.values())
        assert row["sound"] == 1
        for scaled in ("gradient_norm", "slope", "slope_error", "return_error"):
            assert row[scaled] / worth == pytest.approx(expected[scaled], rel=0.02)
        for plain in ("sure", "freedom", "step_norm", "divergence", "explained"):
            assert row[plain] == pytest.approx(expected[plain], rel=0.02, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize(
    ("options", "stage"),
    [
        ({"worth": 1e38}, "returns"),
        ({"size": 1e20}, "statistics of the observations"),
        pytest.param(
            {"size": 1e20, "normalise": False, "estimator": "bac"},
            "gradient|step",
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param({"worth": 1e30, "update": update}, "step", marks=pytest.mark.slow)
            for update in ("adam", "conjugate-gradients")
        ),
    ],
)
def test_an_update_that_is_not_finite_is_not_made_and_names_its_stage(options, stage):
    """Networks learn in single precision, which ends at 3e38."""
    one = agent(**{"estimator": "gpomdp", "policy": "mlp"} | options)
    before = leaves(one)
    with pytest.raises(NotFinite, match=f"update 1: the ({stage}) .*not finite.*after update 0"):
        one.update()
    assert all(np.array_equal(a, b) for a, b in zip(before, leaves(one), strict=True))
    assert np.isfinite(one.evaluate(2).lengths).all()


class Undescribed(estimators.Estimator):
    """Monte Carlo whose episodes have influences that are not finite."""

    def __call__(self, batch):
        found = estimators.GPOMDP(estimators.steps_integrated_out)(batch)
        return eqx.tree_at(lambda p: p.influence, found, jnp.nan * found.influence)


@pytest.mark.slow
def test_what_only_describes_an_update_does_not_stop_it_and_is_reported_once(recwarn):
    one = agent(Undescribed(), policy="linear")
    before = one.parameters
    row = one.update()
    one.update()
    said = [str(w.message) for w in recwarn if "not finite" in str(w.message)]
    assert len(said) == 1
    assert said[0].startswith("update 1: slope_error, freedom not finite")
    assert row["sound"] == 1
    assert all(math.isnan(row[name]) for name in ("slope_error", "freedom"))
    assert math.isfinite(row["slope"])
    assert not any(np.array_equal(before[k], v) for k, v in one.parameters.items())


@pytest.mark.slow("rewards-model2", "states-model2")
@pytest.mark.parametrize("name", ["bac", "model2"])
@pytest.mark.parametrize("what", ["rewards", "states"])
def test_sound_is_zero_where_anything_is_not_finite(name, what):
    """The learner itself, given paths that nobody looked at."""
    one = agent(name, policy="linear")
    one.update()
    paths = one.draw()
    broken = {k: np.array(getattr(paths, k)) for k in Trajectories.__dataclass_fields__}
    broken[what][2, 1] = np.nan
    with one.precision():
        state, record = one._learn(Trajectories(**broken))
        assert record.sound == 0
        assert record.stage < len(STAGES)
    for new, old in ((state.policy, one.policy), (state.critic, one.state.critic)):
        assert all(map(np.array_equal, jax.tree.leaves(new), jax.tree.leaves(old)))


class Broken(LQR):
    """Pays nonsense in its third step."""

    what: float = math.nan

    def step(self, key, states, actions):
        following, rewards, ends = super().step(key, states, actions)
        return following, jnp.where(following > 1e30, rewards, self.what), ends


@pytest.mark.slow
@pytest.mark.parametrize("what", [math.nan, math.inf])
def test_an_environment_in_jax_that_pays_nonsense_is_named(what):
    one = Agent(Broken(what=what), LinearGaussian(-0.2, 1.0), "model2")
    for ask in (one.update, one.evaluate):
        with pytest.raises(
            EnvironmentFailure, match=f"Broken, episode 1 of [0-9]+, step 1: the reward is {what}"
        ):
            ask()


def test_statistics_of_large_observations_stay_numbers():
    rng = np.random.default_rng(0)
    found = no_statistics((2,))
    for _ in range(3):
        x = 1e18 * rng.normal(size=(5000, 2))
        found = found.observe(jnp.asarray(x, jnp.float32), jnp.ones(5000, bool))
    np.testing.assert_allclose(np.sqrt(found.variance), 1e18, rtol=0.05)
    assert np.abs(found(jnp.asarray(x, jnp.float32))).max() < 10


# Precision.


def probabilities(policy, states):
    return np.asarray(jax.vmap(lambda x: jax.nn.softmax(policy.step((), x)[0].logits))(states))


@pytest.mark.parametrize("name", ["model2", "bac"])
def test_the_policy_that_acts_is_the_one_that_learns(name):
    """Also with weights of 1e9, of which single precision keeps too few digits."""
    one = agent(name, policy="linear")
    one.update()
    with one.precision():
        theta, rebuild = flatten(one.policy)
        far = 1e9 * np.tile([1.0, 0.5, 0.25], 3)
        policy = rebuild(theta + far.astype(theta.dtype))
        one.state = eqx.tree_at(lambda s: s.policy, one.state, policy)
        raw = one.draw().states[:6, 0]
        acting = one.state.acting
        seen = one.state.normaliser(raw)
        learning = probabilities(policy, jnp.asarray(seen, theta.dtype))
        assert flatten(acting.policy)[0].dtype == theta.dtype
        np.testing.assert_array_equal(probabilities(acting, raw), learning)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "policy"),
    [(LQR(), LinearGaussian(-0.2, 1.0)), (RandomWalk(4), Tabular(np.zeros(4)))],
    ids=["reals", "whole numbers"],
)
@pytest.mark.parametrize("name", ["model2", "gpomdp"])
def test_paths_in_jax_are_drawn_in_the_precision_of_learning(environment, policy, name):
    one = Agent(environment, policy, name)
    assert one.draw().rewards.dtype == np.float64
    assert one.update()["sound"] == 1
