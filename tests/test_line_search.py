"""Conjugate gradients and GSEARCH: exact on a quadratic, steady under noise, LQR learned."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg._support.random import fast_key
from bayespg.environments import LQR, MountainCar
from bayespg.learning.estimators import GPOMDP, Model2, Reinforce, exact
from bayespg.learning.line_search import (
    Slope,
    conjugate_gradients,
    line_search,
    searching,
    train,
)
from bayespg.monte_carlo import average
from bayespg.policies import BoundedLinearGaussian, mountain_car_softmax

# -(theta - PEAK)'CURVATURE (theta - PEAK) / 2
CURVATURE = np.diag([1.0, 3.0, 10.0]) + 0.5
PEAK = np.array([1.0, -2.0, 0.5])
START = np.zeros(3)


@eqx.filter_jit
def quadratic(theta, key, noise=0.0, curvature=CURVATURE, fisher=None):
    """The gradient of each of 20 paths is the exact one and a normal of deviation `noise`."""
    each = noise * jax.random.normal(key, (20, theta.size))
    return average(curvature @ (PEAK - theta) + each, fisher)


def climb(gradient=quadratic, theta=START, key=None, **kwargs):
    settings = {"first_step": 0.1, "iterations": 10, **kwargs}
    return conjugate_gradients(gradient, theta, fast_key(0) if key is None else key, **settings)


def straight(peak, slope=2.0):
    """The slopes along a line of a parabola, and the steps that were tried."""
    tried = []

    def at(s):
        tried.append(s)
        p = slope * (peak - s)
        return Slope(p, p > 0, p < 0)

    return at, tried


# GSEARCH.


@pytest.mark.parametrize("peak", [0.003, 0.09, 0.11, 0.7, 37.0])
def test_the_search_is_exact_on_a_parabola(peak):
    found = line_search(straight(peak)[0], 0.1)
    assert found.step == pytest.approx(peak, rel=1e-12)


def test_the_search_doubles_until_the_slope_is_down():
    slope, tried = straight(0.7)
    found = line_search(slope, 0.1)
    assert tried == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert found.trials == 4
    assert found.bracketed


def test_the_search_halves_until_the_slope_is_up():
    slope, tried = straight(0.03)
    assert line_search(slope, 0.1).bracketed
    assert tried == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.parametrize(
    ("sign", "steps"), [(1, [0.1, 0.2, 0.4, 0.8, 1.6]), (-1, 0.1 / 2.0 ** np.arange(5))]
)
def test_a_search_without_an_end_meets_its_bound(sign, steps):
    slope, tried = straight(sign * 1e9)
    found = line_search(slope, 0.1, doublings=4)
    assert tried == pytest.approx(steps)
    assert found.step == pytest.approx((steps[-1] + steps[-2]) / 2)
    assert not found.bracketed


def test_a_slope_near_zero_ends_the_search_halfway():
    slopes = {0.1: Slope(1.0, True, False), 0.2: Slope(0.01, False, False)}
    found = line_search(slopes.__getitem__, 0.1)
    assert found.step == pytest.approx(0.15)
    assert not found.bracketed


@pytest.mark.parametrize("bad_at", [1, 2])
def test_a_slope_that_is_not_finite_ends_the_search(bad_at):
    values = iter([1.0] * (bad_at - 1) + [math.nan])
    found = line_search(lambda s: Slope(next(values), True, False), 0.1)
    assert math.isnan(found.step)
    assert found.trials == bad_at


# Conjugate gradients.


def test_three_iterations_find_the_maximum_of_a_quadratic_in_three_dimensions():
    found = climb(iterations=3)
    np.testing.assert_allclose(found.parameters, PEAK, atol=1e-10)
    assert found.reason == "iterations"
    assert found.history.bracketed.all()
    np.testing.assert_array_equal(found.history.restarted, [True, False, False])


def test_one_iteration_is_enough_with_the_curvature_for_a_fisher_matrix():
    found = climb(functools.partial(quadratic, fisher=CURVATURE), iterations=1, natural=True)
    np.testing.assert_allclose(found.parameters, PEAK, atol=1e-10)


def test_a_small_gradient_ends_it():
    found = climb(epsilon=1e-6)
    history = found.history
    assert found.reason == "small gradient"
    assert history.gradient_norm[-1] ** 2 <= 1e-6 < history.gradient_norm[-2] ** 2
    assert history.step[-1] == 0
    assert history.evaluations[-1] == 1
    np.testing.assert_array_equal(found.parameters, history.parameters[-1])


def test_starting_at_the_maximum_ends_at_once():
    found = climb(theta=PEAK)
    assert found.reason == "small gradient"
    assert found.history.evaluations.sum() == 1


def test_a_direction_that_goes_down_is_restarted():
    """The second gradient, nearly opposite and small, makes gamma h outweigh it."""
    gradients = iter([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-0.5, 0.1], [1.0, 0.0], [-1.0, 0.0]])
    found = climb(
        lambda theta, key: average(np.tile(next(gradients), (2, 1))), np.zeros(2), iterations=2
    )
    np.testing.assert_array_equal(found.history.restarted, [True, True])


@pytest.mark.parametrize("level", [None, 0.9])
def test_noisy_gradients_lead_near_the_maximum(level):
    noisy = functools.partial(quadratic, noise=1.0)
    away = [
        climb(noisy, key=fast_key(seed), level=level, epsilon=0.5).parameters - PEAK
        for seed in range(20)
    ]
    assert np.linalg.norm(PEAK) > 2
    assert np.median(np.linalg.norm(away, axis=1)) < 0.7


def test_error_bars_stop_the_doubling_where_nothing_is_known():
    """With noise alone a sign is up half the time, and surely up seldom."""
    flat = functools.partial(quadratic, noise=1.0, curvature=np.zeros((3, 3)))

    def steps(level):
        runs = [climb(flat, key=fast_key(i), level=level) for i in range(10)]
        return np.concatenate([run.history.step for run in runs])

    by_sign, by_level = steps(None), steps(0.95)
    assert by_sign.max() > 4 * by_level.max()
    assert by_level.mean() < by_sign.mean()


def test_every_gradient_has_its_own_key_and_the_right_count():
    seen = []

    def gradient(theta, key):
        seen.append(jax.random.bits(key).item())
        return quadratic(theta, key)

    found = climb(gradient, iterations=3)
    assert len(set(seen)) == len(seen) == found.history.evaluations.sum()


@pytest.mark.parametrize("bad", [0, 1, 4])
def test_a_gradient_that_is_not_finite_ends_it_where_it_was(bad):
    count = iter(range(100))

    def gradient(theta, key):
        return quadratic(theta if next(count) != bad else jnp.full(3, jnp.nan), key)

    found = climb(gradient)
    assert found.reason == "not finite"
    assert np.isfinite(found.parameters).all()
    assert found.history.evaluations.sum() == bad + 1
    assert found.history.step[-1] == 0


# Policies.


def learn(estimator, seed=0, **kwargs):
    settings = {
        "key": fast_key(seed), "paths": 40, "first_step": 0.05, "iterations": 15, "level": 0.9
    }  # fmt: skip
    kappa = 0.5 * np.random.default_rng(seed).normal(size=2)
    return train(LQR(), BoundedLinearGaussian(kappa), estimator, **{**settings, **kwargs})


def final_cost(trained):
    with jax.enable_x64(True):
        return -float(LQR().expected_return(trained.policy))


@pytest.mark.slow("REINFORCE", "REINFORCE, natural")
@pytest.mark.parametrize(
    ("estimator", "kwargs"),
    [
        (Model2(baseline=float("inf")), {}),
        (Reinforce("best"), {}),
        (Model2(baseline=float("inf")), {"natural": True, "first_step": 10.0}),
        (Reinforce("best", exact), {"natural": True, "first_step": 10.0}),
    ],
    ids=["Model 2", "REINFORCE", "Model 2, natural", "REINFORCE, natural"],
)
def test_lqr_is_learned(estimator, kwargs):
    """0.307 is optimal."""
    runs = [learn(estimator, seed, **kwargs) for seed in range(3)]
    before = np.median([-run.history.expected_return[0] for run in runs])
    assert np.median([final_cost(run) for run in runs]) < 0.36 < 0.45 < before


def test_episodes_are_counted():
    history = learn(Reinforce(), paths=7, iterations=4).history
    np.testing.assert_array_equal(history.episodes, 7 * history.evaluations)
    assert np.all(history.evaluations >= 3)
    assert history.step.shape == history.sample_return.shape == (4,)
    assert np.isfinite(history.sample_return).all()


def test_where_the_expected_return_is_unknown_it_is_nan():
    """The mountain car: an estimator of steps, a policy of 32 parameters."""
    found = train(
        MountainCar(horizon=20), mountain_car_softmax(), GPOMDP(), key=fast_key(0), paths=5,
        first_step=0.1, iterations=2,
    )  # fmt: skip
    assert np.isnan(found.history.expected_return).all()
    assert np.all(found.history.sample_return < -10)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("first_step", 0.0),
        ("first_step", math.nan),
        ("first_step", -1.0),
        ("iterations", 0),
        ("iterations", 2.5),
        ("epsilon", -1.0),
        ("level", 0.3),
        ("level", 1.0),
        ("doublings", 0),
        ("theta", np.zeros((2, 2))),
        ("theta", np.array([0.0, math.nan])),
        ("theta", np.zeros(0)),
    ],
)
def test_bad_input_is_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        climb(**{argument: value})


def test_a_gradient_of_another_size_is_refused():
    with pytest.raises(ValueError, match="gradient"):
        climb(lambda theta, key: average(np.ones((2, 2))))


def test_no_paths_are_refused():
    with pytest.raises(ValueError, match="paths"):
        learn(Reinforce(), paths=0)


def test_a_natural_gradient_needs_a_fisher_matrix():
    with pytest.raises(ValueError, match="fisher"):
        learn(Reinforce(), natural=True)


# As an update among others.


def follow(update, updates, gradient=quadratic, key=fast_key(0), theta=START):
    """The points at which gradients were asked for, with the same keys as `conjugate_gradients`."""
    points = [np.asarray(theta, float)]
    with jax.enable_x64(True):
        state = update.init(jnp.asarray(points[0]))
        step = jax.jit(lambda s, t, p: update.update(p.mean, s, t, posterior=p, divergence=None))
        for i in range(updates):
            posterior = gradient(jnp.asarray(points[-1]), jax.random.fold_in(key, i))
            change, state = step(state, jnp.asarray(points[-1]), posterior)
            points.append(points[-1] + np.asarray(change))
    return np.array(points), state


@pytest.mark.parametrize("natural", [False, True])
@pytest.mark.parametrize(("level", "noise"), [(None, 0.0), (None, 3.0), (0.9, 3.0)])
def test_step_by_step_it_visits_the_points_of_the_whole_procedure(natural, level, noise):
    fisher = np.diag([1.0, 2.0, 4.0])
    gradient = functools.partial(quadratic, noise=noise, fisher=fisher)
    whole = climb(
        gradient, natural=natural, level=level, first_step=0.05, doublings=6,
        iterations=4 if noise else 2,  # the third would end where rounding decides
    )  # fmt: skip
    update = searching(first_step=0.05, natural=natural, level=level, doublings=6)
    points, state = follow(update, int(whole.history.evaluations.sum()), gradient)
    ends = np.cumsum(whole.history.evaluations)
    np.testing.assert_allclose(points[ends[:-1]], whole.history.parameters[1:], atol=1e-7)
    np.testing.assert_allclose(points[-1], whole.parameters, atol=1e-7)
    assert state.search.ended


def test_the_first_trial_point_is_as_far_as_the_limit_allows():
    fisher = np.diag([1.0, 2.0, 4.0])
    points, _ = follow(searching(0.02), 1, functools.partial(quadratic, fisher=fisher))
    step = points[1] - points[0]
    assert step @ fisher @ step / 2 == pytest.approx(0.02)


def test_a_gradient_that_is_not_finite_ends_the_search_where_it_began():
    calls = []

    def gradient(theta, key):
        calls.append(theta)
        bad = len(calls) == 3
        return quadratic(theta, key, fisher=np.eye(3), noise=jnp.nan if bad else 0.0)

    points, state = follow(searching(0.5, level=None), 3, gradient)
    assert not np.array_equal(points[2], points[0])
    np.testing.assert_allclose(points[3], points[0], atol=1e-12)
    assert state.search.ended
