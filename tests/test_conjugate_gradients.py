"""Conjugate gradients for one right-hand side and for several."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.algebra.conjugate_gradients import conjugate_gradients, together

n, k = 40, 4


@functools.cache
def system() -> tuple[np.ndarray, np.ndarray]:
    """A matrix with condition number 1,000, and right-hand sides of very different sizes."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    A = (Q * np.logspace(0, 3, n)) @ Q.T
    return A, rng.normal(size=(k, n)) * np.array([[1e-3], [1.0], [1.0], [1e3]])


def solve(B, precondition=None, **settings):
    A = jnp.asarray(system()[0], jnp.float32)
    precondition = precondition or (lambda r: r / jnp.diagonal(A))
    ask = conjugate_gradients if B.ndim == 1 else together
    return jax.jit(lambda B: ask(lambda v: A @ v, B, precondition, **settings))(
        jnp.asarray(B, jnp.float32)
    )


def residuals(B, found):
    A, _ = system()
    left = np.asarray(found, float) @ A - B
    return np.linalg.norm(left, axis=-1) / np.linalg.norm(B, axis=-1)


@pytest.mark.parametrize("tolerance", [0.3, 1e-4])
def test_residuals_end_below_the_tolerance(tolerance):
    _, B = system()
    assert np.all(residuals(B, solve(B, tolerance=tolerance)) <= 1.1 * tolerance)
    assert residuals(B[1], solve(B[1], tolerance=tolerance)) <= 1.1 * tolerance


def test_the_solutions_are_those_of_the_dense_system():
    A, B = system()
    found, expected = solve(B, tolerance=1e-6, most=100), np.linalg.solve(A, B.T).T
    error = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.all(error < 1e-3)


@pytest.mark.slow
def test_one_row_together_is_one_row_alone():
    _, B = system()
    for most in (1, 3, 7):
        alone = solve(B[1], most=most)
        np.testing.assert_allclose(
            solve(B[1:2], most=most)[0], alone, atol=1e-4 * np.abs(alone).max()
        )


def test_several_rows_need_fewer_iterations_together():
    _, B = system()
    alone = np.array([residuals(b, solve(b, most=6)) for b in B])
    assert np.all(residuals(B, solve(B, most=6)) < 0.8 * alone)


def test_rows_may_repeat_and_may_be_zero():
    _, B = system()
    B = np.stack([B[1], -2 * B[1], 0 * B[1], B[2]])
    found = np.asarray(solve(B, tolerance=1e-3))
    assert np.all(found[2] == 0)
    kept = np.array([0, 1, 3])
    assert np.all(residuals(B[kept], found[kept]) <= 1.1e-3)
    np.testing.assert_allclose(found[1], -2 * found[0], atol=1e-2 * np.abs(found[1]).max())


def test_an_exact_inverse_ends_at_once():
    A, B = system()
    inverse = jnp.asarray(np.linalg.inv(A), jnp.float32)
    assert np.all(residuals(B, solve(B, lambda r: inverse @ r, most=1)) < 1e-3)


def test_a_right_hand_side_that_is_not_finite_has_no_answer():
    _, B = system()
    B = np.where(np.arange(k)[:, None] == 1, np.nan, B)
    assert np.isnan(solve(B[1], tolerance=1e-3)).all()
    assert np.isnan(solve(B, tolerance=1e-3)[1]).all()
