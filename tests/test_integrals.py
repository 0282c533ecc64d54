"""Integrals in general, against numerical integration and the printed formulas."""

import jax
import numpy as np
import oracle
import pytest
from oracle import assert_equal_trees
from scipy.integrate import quad
from scipy.stats import norm

from bayespg import quadrature

INF = float("inf")
M, n = 8, 2
SPREAD = np.linspace(0.05, 0.4, M)
CORRELATED = 0.1 * np.eye(M) + 0.02 * np.ones((M, M))


def spd(size: int, seed: int) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(size, size))
    return root @ root.T / size + 0.1 * np.eye(size)


LENGTH = 0.9
POINTS = np.linspace(-2.5, 2.5, 6)[:, None]


def kernel(x, y):
    return np.exp(-0.5 * (x - y) ** 2 / LENGTH**2)


def expectation(f) -> float:
    """Under N(0.3, 0.8^2)."""
    return quad(lambda x: f(x) * norm.pdf(x, 0.3, 0.8), -8, 8, epsabs=1e-11)[0]


@pytest.mark.parametrize("noise", [0.0, 0.1, np.linspace(0.1, 0.5, 6), spd(6, 1)])
def test_a_scalar_integral_is_the_printed_posterior(noise):
    K, b, b0 = spd(6, 0), np.linspace(0.1, 0.6, 6), 3.0
    y = np.arange(6.0)
    found = quadrature.integral(K, y, b, b0, noise=noise)
    expected = oracle.condition(K, b[None], np.array([[b0]]), y, oracle.covariance(noise, 6))
    np.testing.assert_allclose(found.mean, expected.mean[0], rtol=1e-9)
    np.testing.assert_allclose(found.covariance, expected.covariance[0, 0], rtol=1e-9)
    np.testing.assert_allclose(found.log_evidence, expected.log_evidence, rtol=1e-9)
    assert np.shape(found.mean) == np.shape(found.covariance) == ()


def test_a_vector_g_integrates_to_a_vector():
    """rho = int f(x) (1, x) N(x) dx, b and b_0 by numerical integration."""
    x, t = POINTS[:, 0], np.linspace(-8, 8, 401)
    g = np.stack([np.ones_like(t), t]) * norm.pdf(t, 0.3, 0.8) * (t[1] - t[0])
    b, b0 = g @ kernel(t[:, None], x), g @ kernel(t[:, None], t) @ g.T
    y = np.sin(x)
    found = quadrature.integral(kernel(x[:, None], x), y, b, b0, noise=1e-6)
    exact = [expectation(np.sin), expectation(lambda t: t * np.sin(t))]
    assert found.covariance.shape == (2, 2)
    assert (np.abs(found.mean - exact) < 3 * np.sqrt(np.diag(found.covariance))).all()
    expected = oracle.condition(kernel(x[:, None], x), b, b0, y, 1e-6 * np.eye(6))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-7)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-9)


def test_a_prior_mean_that_is_right_is_returned():
    K, b = spd(6, 0), np.linspace(0.1, 0.6, 6)
    y = np.arange(6.0)
    found = quadrature.integral(K, y, b, 3.0, prior_mean=y, prior_integral=7.0)
    assert found.mean == pytest.approx(7.0)


def test_a_prior_mean_is_subtracted_and_its_integral_added():
    K, b, y, f = spd(6, 0), np.linspace(0.1, 0.6, 6), np.arange(6.0), np.cos(np.arange(6))
    found = quadrature.integral(K, y, b, 3.0, noise=0.1, prior_mean=f, prior_integral=7.0)
    bare = quadrature.integral(K, y - f, b, 3.0, noise=0.1)
    assert found.mean == pytest.approx(7 + bare.mean)
    assert found.covariance == bare.covariance


def blocks(A, k: int = 2, size: int = 3):
    return A.reshape(k, size, k, size).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("noise", ["none", "one", "each", "cross"])
def test_a_vector_valued_process_is_equation_17(noise):
    """Two components, three samples; kernels and noise correlated across components."""
    rng = np.random.default_rng(3)
    K = blocks(np.kron(spd(2, 0), spd(3, 1)))
    b = rng.normal(size=(2, 2, 3))
    b = b + b.transpose(1, 0, 2)  # k_jl = k_lj
    y, f, rho0 = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), np.array([1.0, -2.0])
    each = rng.uniform(0.1, 1, (3, 2))
    given_noise, Sigma = {
        "none": (0.0, np.zeros((6, 6))),
        "one": (0.3, 0.3 * np.eye(6)),
        "each": (each, np.diag(each.T.reshape(-1))),
        "cross": (blocks(spd(6, 2)), spd(6, 2)),
    }[noise]
    found = quadrature.vector_integral(
        K, y, b, 99 * np.eye(2), noise=given_noise, prior_mean=f, prior_integral=rho0
    )
    expected = oracle.vector_integral(K, y, b, 99 * np.eye(2), blocks(Sigma), f, rho0)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-8)
    np.testing.assert_allclose(found.log_evidence, expected.log_evidence, rtol=1e-8)


def test_independent_components_decouple():
    """Eq. 18."""
    K, b, y = spd(3, 0), np.array([0.1, 0.2, 0.3]), np.arange(6.0).reshape(3, 2)
    I = np.eye(2)
    found = quadrature.vector_integral(
        I[:, :, None, None] * K, y, I[:, :, None] * b, 2 * I, noise=0.1
    )
    alone = [quadrature.integral(K, y[:, j], b, 2.0, noise=0.1) for j in range(2)]
    np.testing.assert_allclose(found.mean, [a.mean for a in alone], rtol=1e-9)
    np.testing.assert_allclose(
        found.covariance, np.diag([a.covariance for a in alone]), rtol=1e-9, atol=1e-12
    )


def test_integrals_are_answered_inside_jit():
    K, b, y = spd(6, 0), np.linspace(0.1, 0.6, 6), np.arange(6.0)
    with jax.enable_x64(True):
        found = jax.jit(lambda y: quadrature.integral(K, y, b, 3.0, noise=0.1))(y)
    assert_equal_trees(found, quadrature.integral(K, y, b, 3.0, noise=0.1))


# Bayes-Hermite quadrature.


def test_bayes_hermite_is_exact_in_the_span_of_its_kernel():
    """Noiseless samples of f = sum_j w_j k(x, x_j) determine f, so the integral too."""
    w = np.array([1.0, -2, 0.5, 3, -1, 0.3])

    def f(x):
        return kernel(x, POINTS[:, 0]) @ w

    found = quadrature.bayes_hermite(f, POINTS, [0.3], [[0.64]], length_scale=LENGTH)
    assert found.mean == pytest.approx(expectation(lambda x: f(np.array([x]))), rel=1e-8)


def test_bayes_hermite_integrates_its_posterior_mean():
    y = np.cos(POINTS[:, 0])
    found = quadrature.bayes_hermite(y, POINTS, [0.3], [[0.64]], length_scale=LENGTH, noise=0.01)
    K = kernel(POINTS, POINTS.T) + 0.01 * np.eye(6)
    alpha = np.linalg.solve(K, y)
    expected = expectation(lambda x: kernel(x, POINTS[:, 0]) @ alpha)
    assert found.mean == pytest.approx(expected, rel=1e-9)


def test_bayes_hermite_in_two_dimensions_converges_to_the_integral():
    """E[exp(i w'x)] is known for a Gaussian, here its real part."""
    mean, S, w = np.array([0.3, -0.2]), np.array([[0.5, 0.2], [0.2, 0.4]]), np.array([1.0, 0.7])
    exact = np.cos(w @ mean) * np.exp(-w @ S @ w / 2)
    t = np.linspace(-2, 2, 6)
    grid = mean + np.stack(np.meshgrid(t, t), -1).reshape(-1, 2)
    found = quadrature.bayes_hermite(
        lambda x: np.cos(x @ w), grid, mean, S, length_scale=[1.2, 1.5], noise=1e-9
    )
    assert found.mean == pytest.approx(exact, abs=1e-3)
    assert abs(found.mean - exact) < 3 * np.sqrt(found.covariance)


def test_the_scale_of_bayes_hermite_scales_its_variance():
    y = np.cos(POINTS[:, 0])
    one, four = (
        quadrature.bayes_hermite(
            y, POINTS, [0.3], [[0.64]], length_scale=LENGTH, scale=c, noise=0.01 * c
        )
        for c in (1.0, 4.0)
    )
    assert four.mean == pytest.approx(one.mean)
    assert four.covariance == pytest.approx(4 * one.covariance)
