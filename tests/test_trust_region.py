"""Steps as long as the policy may change, and optimisers of optax turned around."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import problem

from bayespg import monte_carlo, updates

n = 3
LIMIT, SLACK = 0.01, 1.5
G = problem(8, n).fisher.astype(np.float32)
THETA = jnp.array([0.3, -0.2, 1.0], jnp.float32)
SHAPES = {
    "quadratic": lambda s: s,
    "steeper": lambda s: 50 * s,
    "flatter": lambda s: s / 50,
    "quartic": lambda s: s**2,
    "exponential": lambda s: jnp.expm1(100 * s),
    "barrier": lambda s: jnp.where(s < LIMIT / 3, s, jnp.inf),
    "hole": lambda s: jnp.where(s < LIMIT / 30, s, jnp.nan),
    "wall": lambda s: jnp.where(s < LIMIT / 1e9, s, jnp.inf),
    "not a number": lambda s: s * jnp.nan,
    "infinite": lambda s: s + jnp.inf,
    "flat": lambda s: 0 * s,
}
"""Divergences as functions of half the squared step in the metric of G."""
NUMBER = {name: jnp.asarray(i) for i, name in enumerate(SHAPES)}


def posterior_of(gradient):
    return monte_carlo.average(jnp.tile(jnp.asarray(gradient), (2, 1)), G)


@jax.jit
def along(number, theta):
    d = theta - THETA
    return jax.lax.switch(number, list(SHAPES.values()), d @ G @ d / 2)


@functools.partial(jax.jit, static_argnums=2)
def compiled(number, gradient, natural):
    """One program for all shapes."""
    transformation = updates.trust_region(LIMIT, natural=natural, slack=SLACK)
    return transformation.update(
        gradient, transformation.init(THETA), THETA,
        posterior=posterior_of(gradient), divergence=lambda t: along(number, t),
    )  # fmt: skip


def step(name, gradient, natural=True):
    return compiled(NUMBER[name], gradient, natural)


GRADIENT = jnp.array([1.0, -2.0, 0.5], jnp.float32)


@pytest.mark.parametrize("name", SHAPES)
def test_the_divergence_ends_at_most_slack_times_the_limit(name):
    change, state = step(name, GRADIENT)
    assert np.isfinite(change).all()
    after = along(NUMBER[name], THETA + change)
    if state.step > 0:
        assert after <= SLACK * LIMIT * 1.01
        assert state.divergence == pytest.approx(float(after), rel=0.02)
        np.testing.assert_allclose(
            change, state.step * np.linalg.solve(G, GRADIENT), rtol=1e-3, atol=1e-6
        )
    else:
        np.testing.assert_array_equal(change, 0)
        assert state.divergence == 0
    assert (state.step > 0) == (name not in ("wall", "not a number", "infinite"))


@given(st.floats(1e-6, 1e6), st.integers(0, 99))
def test_where_the_divergence_is_quadratic_the_step_ends_at_the_limit(scale, seed):
    """Whatever the size of the gradient, and with a metric as much as 50 times off."""
    g = jnp.asarray(scale * np.random.default_rng(seed).normal(size=n), jnp.float32)
    for name in ("quadratic", "steeper", "flatter"):
        assert step(name, g)[1].divergence == pytest.approx(LIMIT, rel=0.01)


def test_the_plain_gradient_is_followed_where_asked():
    change, state = step("quadratic", GRADIENT, False)
    np.testing.assert_allclose(change, state.step * GRADIENT, rtol=1e-6)
    assert state.divergence == pytest.approx(LIMIT, rel=0.01)


def test_a_step_ascends():
    for natural in (True, False):
        assert step("quadratic", GRADIENT, natural)[0] @ GRADIENT > 0


@pytest.mark.parametrize("gradient", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("natural", [True, False])
def test_a_gradient_of_zero_or_of_no_number_makes_no_step(gradient, natural):
    change, state = step("quadratic", jnp.full(n, gradient, jnp.float32), natural)
    np.testing.assert_array_equal(change, 0)
    assert state.step == state.divergence == 0


@pytest.mark.parametrize("limit", [0.0, -1.0, np.nan])
def test_the_limit_is_positive(limit):
    with pytest.raises(ValueError, match="limit: expected a positive number, found"):
        updates.trust_region(limit)


def test_a_fisher_matrix_is_needed_for_the_natural_direction_only():
    bare = monte_carlo.average(jnp.tile(GRADIENT, (2, 1)))
    for natural in (True, False):
        transformation = updates.trust_region(LIMIT, natural=natural)

        def ask(transformation=transformation):
            return transformation.update(
                GRADIENT, transformation.init(THETA), THETA,
                posterior=bare, divergence=lambda t: along(NUMBER["quadratic"], t),
            )  # fmt: skip

        if natural:
            with pytest.raises(ValueError, match="Fisher"):
                ask()
        else:
            assert ask()[1].step > 0


@pytest.mark.parametrize("optimiser", [optax.sgd(0.1), optax.adam(0.1), optax.rmsprop(0.1)])
def test_an_optimiser_turned_around_climbs(optimiser):
    """To the top of -|theta|^2 / 2, some of the way in 30 steps."""
    transformation = updates.ascending(optimiser)

    @jax.jit
    def climb(theta):
        def once(now, _):
            theta, state = now
            change, state = transformation.update(
                -theta, state, theta, posterior=None, divergence=None
            )
            return (optax.apply_updates(theta, change), state), None

        return jax.lax.scan(once, (theta, transformation.init(theta)), None, 30)[0][0]

    assert np.linalg.norm(climb(THETA)) < 0.5 * np.linalg.norm(THETA)


def test_gradient_descent_turned_around_is_the_conventional_update():
    one, other = updates.ascending(optax.sgd(0.3)), updates.conventional(0.3)
    posterior = posterior_of(GRADIENT)
    found = [t.update(GRADIENT, t.init(THETA), THETA, posterior=posterior)[0] for t in (one, other)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
