"""Learned models of a task: regression, termination, and draws that are environments."""

import dataclasses

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bayespg import estimators, models, rollout, training, updates
from bayespg.environments import classic, spaces
from bayespg.models import data, features, networks, regression
from bayespg.models.model import WIDER
from bayespg.policies import named


def problem(rows=40, size=6, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    Phi = rng.normal(size=(rows, size))
    Y = Phi @ rng.normal(size=(size, outputs)) + 0.3 * rng.normal(size=(rows, outputs))
    return Phi, Y


def regressed(Phi, Y):
    with jax.enable_x64(True):
        return jax.jit(regression.regress)(
            jnp.asarray(Phi.T @ Phi), jnp.asarray(Phi.T @ Y), jnp.asarray(np.sum(Y**2, 0)),
            jnp.asarray(float(len(Y))),
        )  # fmt: skip


def test_regression_is_the_posterior_of_a_gaussian_prior():
    Phi, Y = problem()
    found = regressed(Phi, Y)
    N, p = Phi.shape
    for o in range(Y.shape[1]):
        best = -np.inf
        for ridge in regression.RIDGES:
            shape = Phi @ Phi.T + ridge * np.eye(N)
            tau = Y[:, o] @ np.linalg.solve(shape, Y[:, o]) / N
            evidence = multivariate_normal.logpdf(Y[:, o], np.zeros(N), tau * shape)
            if evidence > best:
                best, chosen = evidence, (ridge, tau)
        ridge, tau = chosen
        precision = Phi.T @ Phi / (ridge * tau) + np.eye(p) / tau
        mean = np.linalg.solve(precision, Phi.T @ Y[:, o] / (ridge * tau))
        np.testing.assert_allclose(found.evidence[o], best, rtol=1e-8)
        np.testing.assert_allclose(found.noise[o], ridge * tau, rtol=1e-8)
        np.testing.assert_allclose(found.mean[:, o], mean, rtol=1e-8)
        variance = np.einsum("ij,ji->i", Phi, np.linalg.solve(precision, Phi.T))
        with jax.enable_x64(True):
            np.testing.assert_allclose(found.variance(jnp.asarray(Phi))[:, o], variance, rtol=1e-7)


def test_draws_have_the_mean_and_covariance_of_the_posterior():
    found = regressed(*problem())
    with jax.enable_x64(True):
        normals = jax.random.normal(jax.random.key(0), (20_000, *found.mean.shape))
        draws = np.asarray(jax.vmap(found.draw)(normals))[:, :, 0]
    V = np.asarray(found.vectors)
    covariance = V @ np.diag(np.asarray(found.values)[:, 0]) @ V.T
    error = np.sqrt(np.diag(covariance) / len(draws))
    assert np.all(np.abs(draws.mean(0) - found.mean[:, 0]) < 4.5 * error)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert np.max(np.abs(np.cov(draws.T) - covariance) / scale) < 4.5 * np.sqrt(2 / len(draws))


def test_a_row_far_from_the_others_has_little_weight():
    Phi, Y = problem(200)
    with jax.enable_x64(True):
        Phi, Y, ones = jnp.asarray(Phi), jnp.asarray(Y), jnp.ones(200)
        found = jax.jit(lambda Y: regression.robust_weights(Phi, Y, ones)(Phi, Y))(
            Y.at[7, 0].add(50.0)
        )
    assert found[7] < 0.01
    assert np.median(found) > 0.8


def test_the_fast_cosine_is_the_cosine():
    x = np.linspace(-50, 50, 10_001, dtype=np.float32)
    found = np.asarray(features.cosine(jnp.asarray(x)))
    np.testing.assert_allclose(found, np.cos(x.astype(np.float64)), atol=5e-6)


def noisy(rows, seed=0):
    """A damped oscillator with noise, driven by one number: states, actions, rewards, following."""
    rng = np.random.default_rng(seed)
    x, a = rng.normal(size=(rows, 2)), rng.uniform(-1, 1, size=(rows, 1))
    y = x + 0.1 * np.stack([x[:, 1], -np.sin(x[:, 0]) + a[:, 0]], 1)
    y += 0.02 * rng.normal(size=y.shape)
    r = -(x[:, 0] ** 2) + 0.05 * rng.normal(size=rows)
    return x, a, r, y


@pytest.fixture(scope="module")
def oscillator():
    x, a, r, y = noisy(400)
    found = models.transitions(x, a, r, y, np.zeros(400, bool))
    return models.fit(found)


def test_intervals_of_one_step_hold_what_follows(oscillator):
    """95 % of 2,000 numbers would have a standard error of 0.5 %."""
    x, a, r, y = noisy(1000, seed=1)
    found = oscillator.predict(x, a)
    inside = np.abs(found.following - y) < 1.96 * found.following_deviation
    assert 0.93 < inside.mean() < 0.97
    paid = np.abs(found.rewards - r) < 1.96 * found.rewards_deviation
    assert 0.92 < paid.mean() < 0.98
    assert np.all(np.asarray(found.terminated) == 0)
    assert 0.01 < np.median(found.following_deviation) < 0.04


def test_intervals_widen_where_nothing_was_observed(oscillator):
    near, far = (oscillator.predict([[x, 0.0]], [[0.0]]).following_deviation for x in (0.0, 8.0))
    assert far[0, 1] > 5 * near[0, 1]  # sin(x) is not known there
    assert far[0, 0] < 2 * near[0, 0]  # x and its speed are, by a line


@eqx.filter_jit
def stepped(environment, states, actions):
    return environment.step(jax.random.key(0), states, actions)


def ending(rows=500, seed=0):
    """Steps that end an episode where x > 1, and then earn 10 more."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 2))
    a = rng.integers(0, 2, rows)
    y = x + 0.1 * (2 * a[:, None] - 1)
    over = y[:, 0] > 1
    return models.transitions(x, a, -1.0 + 10.0 * over, y, over)


def test_termination_and_what_it_earns_are_learned():
    model = models.fit(ending())
    found = model.predict([[0.99, 0.0], [0.7, 0.0], [-0.5, 0.0], [0.99, 0.0]], [1, 1, 1, 0])
    assert found.terminated[0] > 0.8
    assert np.all(found.terminated[1:] < 0.2)
    np.testing.assert_allclose(found.rewards, -1.0, atol=1e-3)
    np.testing.assert_allclose(model.offset, 10.0, atol=1e-3)
    x = jnp.array([[0.999, 0.0], [0.0, 0.0]], jnp.float32)
    _, rewards, ended = stepped(model.environment(), x, jnp.array([1, 1]))
    np.testing.assert_array_equal(ended, [True, False])
    np.testing.assert_allclose(rewards, [9.0, -1.0], atol=1e-2)


def test_a_goal_pays_and_a_wall_does_not():
    rng = np.random.default_rng(0)
    x, a = rng.uniform(-1, 1, size=(500, 2)), rng.integers(0, 2, 500)
    y = x + 0.1 * (2 * a[:, None] - 1)
    over = np.abs(y[:, 0]) > 1
    model = models.fit(models.transitions(x, a, 1.0 * (y[:, 0] > 1), y, over))
    states = jnp.array([[0.999, 0.0], [-0.999, 0.0]], jnp.float32)
    _, rewards, ended = stepped(model.environment(), states, jnp.array([1, 0]))
    np.testing.assert_array_equal(ended, [True, True])
    np.testing.assert_allclose(rewards, [1.0, 0.0], atol=0.1)


def test_the_share_of_noise_is_small_in_a_known_task_and_near_one_in_a_shuffled_one():
    data = ending()
    assert max(models.fit(data).noise) < 0.01
    n, order = data.count, np.random.default_rng(0).permutation(data.count)
    following = np.concatenate([data.following[:n][order], data.following[n:]])
    assert models.fit(dataclasses.replace(data, following=following)).noise[0] > 0.7


def test_rewards_that_are_paid_late_are_expected_on_average_and_known_in_their_sums():
    """Every tenth step pays for ten, which must not look like outliers beside nine zeros; random
    rewards are not known in sums either."""
    t = np.arange(1201) / 40
    states = np.stack([np.sin(t), np.cos(t)], 1)
    x, y, a = states[:-1], states[1:], np.zeros((1200, 1))
    costs = -(x[:, 0] ** 2)
    late = np.where(np.arange(1200) % 10 == 9, costs.reshape(-1, 10).sum(1).repeat(10), 0.0)
    never = np.zeros(1200, bool)
    model = models.fit(models.transitions(x, a, late, y, never))
    assert model.noise[1] < 0.1
    np.testing.assert_allclose(model.predict(x, a).rewards.mean(), costs.mean(), rtol=0.02)
    random = np.random.default_rng(0).normal(size=1200)
    assert models.fit(models.transitions(x, a, random, y, never)).noise[1] > 0.6


def test_a_user_s_functions_replace_what_is_learned():
    known = models.Knowledge(reward=lambda x, a, y: y[0] + a, terminated=lambda x, a, y: y[1] > 0.5)
    environment = models.fit(ending()).environment(known=known)
    x = jnp.array([[0.0, 0.0], [0.0, 0.9]], jnp.float32)
    y, rewards, ended = stepped(environment, x, jnp.array([1, 0]))
    np.testing.assert_allclose(rewards, y[:, 0] + np.array([1, 0]), atol=1e-6)
    np.testing.assert_array_equal(ended, [False, True])


def played(task, policy, seed=0, paths=3):
    environment = task()
    if isinstance(environment, classic.Continuous):
        environment = classic.InBounds(environment)
        space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    else:
        space = gymnasium.spaces.Discrete(environment.choices)
    actions = spaces.actions(space)
    size = 3 if task is classic.Pendulum else 4
    made = named.make(policy, size, actions, jax.random.key(0))
    drawn = rollout(environment, made, jax.random.key(seed), paths, jnp.asarray(0.9))
    found = data.empty(size, data.inputs_of(actions), 1024).with_paths(drawn)
    return made, found


@pytest.fixture(scope="module", params=[classic.Pendulum, classic.CartPole])
def learned(request):
    policy, found = played(request.param, "linear")
    return policy, found, models.fit(found)


@pytest.mark.slow
def test_a_learned_model_is_an_environment(learned):
    """The contract of environments: shapes, types, ranges, and the same numbers from the same
    key."""
    policy, found, model = learned
    draws = [model.environment(jax.random.key(k), horizon=50) for k in (0, 0, 1)]
    paths = [rollout(one, policy, jax.random.key(3), 16) for one in draws]
    np.testing.assert_array_equal(paths[0].states, paths[1].states)
    assert not np.array_equal(paths[0].states, paths[2].states)
    for one in [*paths, rollout(model.environment(horizon=50), policy, jax.random.key(3), 16)]:
        assert one.states.shape == (50, 16, found.states.shape[1])
        assert one.states.dtype == one.rewards.dtype == jnp.float32
        assert np.isfinite(one.states).all()
        assert np.isfinite(one.rewards).all()
        rows = found.states[: found.count]
        wide = (WIDER + 0.05) * np.ptp(rows, axis=0) + 1e-3
        seen = np.asarray(one.states)[np.asarray(one.mask)]
        both = np.r_[rows, found.following[: found.count]]
        assert np.all((seen > both.min(0) - wide) & (seen < both.max(0) + wide))


@pytest.mark.slow
def test_training_runs_on_a_learned_model(learned):
    policy, _, model = learned
    found = training.train(
        model.environment(horizon=20), policy, estimators.BAC(), updates.trust_region(0.01),
        key=jax.random.key(0), updates=2, paths=4,
    )  # fmt: skip
    assert np.isfinite(found.history.sample_return).all()
    assert found.history.running.all()


@pytest.mark.slow
def test_angles_stay_on_their_circle():
    policy, found = played(classic.Pendulum, "linear")
    model = models.fit(found)
    paths = rollout(model.environment(horizon=50), policy, jax.random.key(0), 8)
    np.testing.assert_allclose(np.sum(np.asarray(paths.states)[..., :2] ** 2, -1), 1, atol=1e-4)
    assert np.all(np.asarray(model.observed.circles.pairs)[2] == 0)


def test_numbers_on_a_circle_are_paired_and_memory_grows_with_their_number_only():
    rng = np.random.default_rng(0)
    angle, noise = rng.uniform(0, 6, 64), rng.normal(size=64)
    x = jnp.asarray(np.stack([2 * np.cos(angle), noise, 2 * np.sin(angle), 0 * noise], 1))
    found = features.circles_of(x, jnp.ones(64))
    np.testing.assert_allclose(found.squares, [4, 0, 4, 0], rtol=1e-6)
    np.testing.assert_array_equal(found.pairs[0], [1, 0, 1, 0])
    many = jax.ShapeDtypeStruct((10_000, 100), jnp.float32), jnp.ones(10_000)
    size = jax.jit(features.circles_of).lower(*many).compile().memory_analysis()
    assert size.temp_size_in_bytes < 50e6


def test_the_oldest_transitions_are_replaced():
    found = data.empty(1, models.numbers(1), 4)
    for k in range(6):
        one = np.full((1, 1), float(k))
        found = found.with_rows(one, one, one[0], one + 1, [False], [k == 0])
    assert found.count == 4
    assert sorted(found.states[:, 0]) == [2, 3, 4, 5]
    assert int(found.seen) == 6


@pytest.mark.slow("2", "7")
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_few_transitions_and_constant_observations_are_enough(rows):
    """One-step episodes with an observation that never changes."""
    x = np.c_[np.full(rows, 3.0), np.arange(rows)]
    found = models.transitions(x, np.zeros(rows, int), np.ones(rows), x, np.ones(rows, bool))
    model = models.fit(found)
    environment = model.environment(jax.random.key(0))
    start = eqx.filter_jit(environment.reset)(jax.random.key(2), 4)
    y, rewards, ended = stepped(environment, start, jnp.zeros(4, jnp.int32))
    np.testing.assert_allclose(y[:, 0], 3.0, rtol=1e-5)
    assert np.isfinite(y).all()
    assert np.isfinite(rewards).all()
    assert ended.dtype == bool


GOOD = {
    "states": np.zeros((3, 2)), "actions": np.zeros(3, int), "rewards": np.zeros(3),
    "following": np.zeros((3, 2)), "terminated": np.zeros(3, bool),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"states": np.full((3, 2), np.nan)}, "^states: "),
        ({"states": np.zeros(3)}, r"^states: expected shape \(N, d\)"),
        ({"states": np.zeros((0, 2))}, r"^states: expected shape \(N, d\)"),
        ({"following": np.zeros((3, 1))}, r"^following: expected shape \(3, 2\)"),
        ({"rewards": [0, np.nan, 0]}, "^rewards: "),
        ({"rewards": np.zeros(2)}, "^rewards: "),
        ({"actions": np.zeros(2, int)}, "^actions: expected 3 of them, found 2"),
        ({"actions": np.full((3, 1), np.inf)}, "^actions: expected finite numbers"),
        ({"terminated": [0.5, 0, 1]}, "^terminated: "),
    ],
)
def test_bad_transitions_are_named(changed, says):
    with pytest.raises(ValueError, match=says):
        models.transitions(**GOOD | changed)


def test_bad_calls_are_named(oscillator):
    with pytest.raises(ValueError, match=r"^transitions: expected at least one, found none"):
        models.fit(data.empty(2, models.choices(2), 512))
    with pytest.raises(ValueError, match=r"^states: expected shape \(N, 2\), found \(1, 3\)"):
        oscillator.predict(np.zeros((1, 3)), np.zeros((1, 1)))
    with pytest.raises(ValueError, match=r"^horizon: "):
        oscillator.environment(horizon=0)


def paths_of_oscillator(rows=60, seed=3):
    """An episode of the oscillator, as transitions."""
    rng = np.random.default_rng(seed)
    x, states = 0.5 * rng.normal(size=2), []
    a = rng.uniform(-1, 1, size=(rows, 1))
    for t in range(rows):
        states.append(x)
        x = x + 0.1 * np.array([x[1], -np.sin(x[0]) + a[t, 0]]) + 0.02 * rng.normal(size=2)
    states = np.array([*states, x])
    first = np.arange(rows) == 0
    return models.transitions(states[:-1], a, np.zeros(rows), states[1:], ~first & False, first)


@pytest.mark.slow
def test_intervals_of_many_steps_hold_what_follows(oscillator):
    """Ten episodes of 16 states: numbers of one episode depend on each other, so that the share
    counts like that of a hundred independent ones, with a standard error of 2 %."""
    episodes = [paths_of_oscillator(seed=k) for k in range(10)]
    for steps in (1, 10):
        share = np.mean([models.inside(oscillator, one, steps) for one in episodes])
        assert 0.87 < share <= 1
    assert np.isnan(models.inside(oscillator, episodes[0], 61))


def test_a_forecast_widens_and_follows_the_episode(oscillator):
    real = paths_of_oscillator()
    n = real.count
    found = models.forecast(oscillator, real.states[0], real.actions[:n])
    assert found.mean.shape == found.deviation.shape == (n, 2)
    assert np.all(found.deviation[20] > 2 * found.deviation[0])
    apart = np.abs(found.mean - real.following[:n]) / found.deviation
    assert np.mean(apart < 3) > 0.95
    with pytest.raises(ValueError, match=r"^encoded: expected shape \(T, 1\)"):
        models.forecast(oscillator, real.states[0], np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"^start: expected shape \(2,\)"):
        models.forecast(oscillator, real.states, real.actions[:n])


def test_choices_are_decoded():
    two = data.choices(3, 2)
    made = jnp.array([[2, 0], [0, 1]])
    np.testing.assert_array_equal(two.decoded(two(made)), made)


@pytest.fixture(scope="module")
def kinked():
    """A task whose changes have kinks in eight numbers, and networks that learned it."""
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(900, 8)).astype(np.float32), rng.uniform(-1, 1, (900, 2))
    y = x + 0.3 * np.abs(x[:, ::-1]) + 0.2 * a[:, :1] * np.sign(x)
    r = np.abs(x).sum(1)
    return models.transitions(x, a, r, y, np.zeros(900, bool))


@pytest.mark.slow
def test_networks_predict_kinks_that_waves_do_not(kinked):
    whole = kinked
    some = data.empty(8, whole.inputs, 1024).with_rows(
        *(z[:700] for z in (whole.states, whole.actions, whole.rewards, whole.following,
                            whole.terminated, whole.first))
    )  # fmt: skip
    plain = models.fit(some)
    learner = networks.begin(jax.random.key(0), 10, 9)
    for k in range(3):
        learner = networks.learned(learner, some, plain.units, jax.random.key(k))
    by_networks = dataclasses.replace(plain, networks=learner.networks)
    x, a, y = (z[700:900] for z in (whole.states, whole.actions, whole.following))
    errors, inside = [], []
    for model in (plain, by_networks):
        found = model.predict_encoded(x, a)
        apart = np.abs(np.asarray(found.following) - y)
        errors.append(np.mean(apart**2))
        inside.append(np.mean(apart < 1.96 * np.asarray(found.following_deviation)))
    assert errors[1] < 0.7 * errors[0]
    assert 0.8 < inside[1] <= 1.0
    mean, draw = by_networks.environment(), by_networks.environment(jax.random.key(1))
    for environment in (mean, draw):
        states = environment.reset(jax.random.key(2), 6)
        following, rewards, ended = environment.step(
            jax.random.key(3), states, jnp.zeros((6, 2), states.dtype)
        )
        assert following.shape == states.shape
        assert np.isfinite(rewards).all()
        assert not ended.any()
    assert by_networks.noise[0] < plain.noise[0]
    assert models.forecast(by_networks, x[0], a[:5]).mean.shape == (5, 8)


def test_a_number_that_is_nearly_always_the_same_has_its_range_as_unit():
    x = np.zeros((200, 2))
    x[:, 1] = np.random.default_rng(0).normal(size=200)
    x[7, 0] = 4.0
    with jax.enable_x64(True):
        weights = jnp.ones(200)
        plain = features.units_of(jnp.asarray(x), weights)
        found = features.rare_in_range(plain, jnp.asarray(x), weights)
    assert found.scale[0] == pytest.approx(3.98)
    assert found.scale[1] == plain.scale[1]
