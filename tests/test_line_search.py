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
from bayespg.learning.line_search import Slope, begin, conjugate_gradients, try_step
from bayespg.learning.training import train
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


@functools.cache
def update(**settings):
    """An update and its compiled step; shared, so that each is compiled once."""
    rule = conjugate_gradients(
        **{"first_step": 0.1, "natural": False, "level": None, "doublings": 10} | settings
    )
    step = jax.jit(lambda s, t, p: rule.update(p.mean, s, t, posterior=p, divergence=None))
    return rule.init, step


def climb(gradient=quadratic, theta=START, key=None, *, searches=10, most=200, **settings):
    """The points at which line searches ended, the start first, and the states after them; all
    points at which a gradient was taken. It ends early after an update that changes nothing."""
    key = fast_key(0) if key is None else key
    init, step = update(**settings)
    points = [np.asarray(theta, float)]
    ends, states = [points[0]], []
    with jax.enable_x64(True):
        state = init(jnp.asarray(points[0]))
        for i in range(most):
            posterior = gradient(jnp.asarray(points[-1]), fold_in(key, i))
            change, state = step(state, jnp.asarray(points[-1]), posterior)
            points.append(points[-1] + np.asarray(change))
            if state.search.ended:
                ends.append(points[-1])
                states.append(jax.tree.map(np.asarray, state))
            if len(states) == searches or not np.any(change):
                break
    return np.array(ends), states, np.array(points)


def search(slope, first_step=0.1, doublings=10):
    """A whole line search."""
    with jax.enable_x64(True):
        state = begin(jnp.asarray(first_step))
        while not state.ended:
            trial = Slope(*map(jnp.asarray, slope(float(state.step))))
            state = compiled(state, trial, doublings)
    return state


compiled = jax.jit(try_step, static_argnums=2)
fold_in = jax.jit(jax.random.fold_in)


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
    assert float(search(straight(peak)[0]).step) == pytest.approx(peak, rel=1e-12)


def test_the_search_doubles_until_the_slope_is_down():
    slope, tried = straight(0.7)
    end = search(slope)
    assert tried == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert end.trials == 4
    assert end.bracketed


def test_the_search_halves_until_the_slope_is_up():
    slope, tried = straight(0.03)
    assert search(slope).bracketed
    assert tried == pytest.approx([0.1, 0.05, 0.025])


@pytest.mark.parametrize(
    ("sign", "steps"), [(1, [0.1, 0.2, 0.4, 0.8, 1.6]), (-1, 0.1 / 2.0 ** np.arange(5))]
)
def test_a_search_without_an_end_meets_its_bound(sign, steps):
    slope, tried = straight(sign * 1e9)
    end = search(slope, doublings=4)
    assert tried == pytest.approx(steps)
    assert float(end.step) == pytest.approx((steps[-1] + steps[-2]) / 2)
    assert not end.bracketed


def test_a_slope_near_zero_ends_the_search_halfway():
    slopes = {0.1: Slope(1.0, True, False), 0.2: Slope(0.01, False, False)}
    end = search(slopes.__getitem__)
    assert float(end.step) == pytest.approx(0.15)
    assert not end.bracketed


@pytest.mark.parametrize("bad_at", [1, 2])
def test_a_slope_that_is_not_finite_ends_the_search(bad_at):
    values = iter([1.0] * (bad_at - 1) + [math.nan])
    end = search(lambda s: Slope(next(values), True, False))
    assert math.isnan(end.step)
    assert end.trials == bad_at


# Conjugate gradients.


def test_three_searches_find_the_maximum_of_a_quadratic_in_three_dimensions():
    ends, states, _ = climb(searches=3)
    np.testing.assert_allclose(ends[-1], PEAK, atol=1e-10)
    assert all(state.search.bracketed for state in states)
    assert [bool(state.restarted) for state in states] == [False, False, False]


def test_one_search_is_enough_with_the_curvature_for_a_fisher_matrix():
    gradient = functools.partial(quadratic, fisher=CURVATURE)
    ends, _, _ = climb(gradient, searches=1, natural=True)
    np.testing.assert_allclose(ends[-1], PEAK, atol=1e-10)


def test_a_small_gradient_changes_nothing():
    _, states, points = climb(epsilon=1e-6)
    norms = np.linalg.norm(CURVATURE @ (PEAK - points).T, axis=0)
    assert norms[-1] ** 2 <= 1e-6 < norms[0] ** 2
    np.testing.assert_array_equal(points[-1], points[-2])
    assert states[-1].search.step == 0


def test_starting_at_the_maximum_stays_there():
    _, _, points = climb(theta=PEAK)
    np.testing.assert_array_equal(points, [PEAK, PEAK])


def test_a_direction_that_goes_down_is_restarted():
    """The second gradient, nearly opposite and small, makes gamma h outweigh it."""
    gradients = iter([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-0.5, 0.1], [1.0, 0.0], [-1.0, 0.0]])
    _, states, _ = climb(
        lambda theta, key: average(np.tile(next(gradients), (2, 1))), np.zeros(2), searches=2
    )
    assert states[1].restarted


@pytest.mark.parametrize("level", [None, 0.9])
def test_noisy_gradients_lead_near_the_maximum(level):
    noisy = functools.partial(quadratic, noise=1.0)
    away = [
        climb(noisy, key=fast_key(seed), level=level, epsilon=0.5)[0][-1] - PEAK
        for seed in range(20)
    ]
    assert np.linalg.norm(PEAK) > 2
    assert np.median(np.linalg.norm(away, axis=1)) < 0.7


@pytest.mark.slow
def test_error_bars_stop_the_doubling_where_nothing_is_known():
    """With noise alone a sign is up half the time, and surely up seldom."""
    flat = functools.partial(quadratic, noise=1.0, curvature=np.zeros((3, 3)))

    def steps(level):
        runs = [climb(flat, key=fast_key(i), level=level)[1] for i in range(10)]
        return np.array([state.search.step for run in runs for state in run])

    by_sign, by_level = steps(None), steps(0.95)
    assert by_sign.max() > 4 * by_level.max()
    assert by_level.mean() < by_sign.mean()


def test_the_first_trial_point_is_as_far_as_the_limit_allows():
    fisher = np.diag([1.0, 2.0, 4.0])
    gradient = functools.partial(quadratic, fisher=fisher)
    _, _, points = climb(gradient, most=1, limit=0.02, first_step=None, natural=True)
    step = points[1] - points[0]
    assert step @ fisher @ step / 2 == pytest.approx(0.02)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_gradient_that_is_not_finite_ends_the_search_where_it_began(bad):
    calls = []

    def gradient(theta, key):
        calls.append(theta)
        return quadratic(theta, key, noise=jnp.nan if len(calls) == bad + 1 else 0.0)

    _, states, points = climb(gradient, searches=1)
    assert len(calls) == bad + 1
    np.testing.assert_allclose(points[-1], points[0], atol=1e-12)
    assert states[-1].search.step == 0


# Policies.


def learn(estimator, updates=100, paths=40, **settings):
    rng = np.random.default_rng(0)
    kappa = np.array([0.5 * rng.normal(size=2) for _ in range(3)])
    search = {"first_step": 0.05, "level": 0.9, "natural": False, "doublings": 10} | settings
    return train(
        LQR(), BoundedLinearGaussian(kappa), estimator, conjugate_gradients(**search),
        key=fast_key(0), updates=updates, paths=paths, runs=3,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "settings"),
    [
        (Model2(baseline=float("inf")), {}),
        (Reinforce("best"), {}),
        (Model2(baseline=float("inf")), {"natural": True, "first_step": 10.0}),
        (Reinforce("best", exact), {"natural": True, "first_step": 10.0}),
    ],
    ids=["Model 2", "REINFORCE", "Model 2, natural", "REINFORCE, natural"],
)
def test_lqr_is_learned(estimator, settings):
    """0.307 is optimal. Where a search began is counted, not the points that it tried."""
    result = learn(estimator, **settings)
    with jax.enable_x64(True):
        ends = BoundedLinearGaussian(jnp.asarray(result.state.optimiser.base))
        costs = -np.asarray(jax.vmap(LQR().expected_return)(ends))
    assert np.median(costs) < 0.36 < 0.45 < -np.median(result.history.expected_return[:, 0])


@pytest.mark.slow
def test_a_small_gradient_ends_a_run_that_stops():
    result = train(
        MountainCar(horizon=20), mountain_car_softmax(), GPOMDP(),
        conjugate_gradients(first_step=0.1, natural=False, epsilon=1e6),
        key=fast_key(0), updates=3, paths=5, stop=1e-9,
    )  # fmt: skip
    np.testing.assert_array_equal(result.history.running, [True, False, False])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("first_step", 0.0),
        ("first_step", math.nan),
        ("first_step", -1.0),
        ("limit", 0.0),
        ("epsilon", -1.0),
        ("level", 0.3),
        ("level", 1.0),
        ("doublings", 0),
        ("doublings", 2.5),
    ],
)
def test_bad_input_is_named(argument, value):
    with pytest.raises(ValueError, match=argument):
        conjugate_gradients(**{argument: value})


def test_a_natural_gradient_needs_a_fisher_matrix():
    with pytest.raises(ValueError, match="fisher"):
        learn(Reinforce(), natural=True)


def test_a_first_step_is_needed_without_a_fisher_matrix():
    with pytest.raises(ValueError, match="first_step"):
        learn(Reinforce(), first_step=None)
