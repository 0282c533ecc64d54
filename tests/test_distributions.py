"""Distributions of discrete actions, and the normal of unit variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.policies import Bernoulli, Categorical, Distribution, UnitNormal

LOGITS = np.array([0.3, -1.2, 0.9, 0.0])


def outer_products(distribution: type[Distribution], parameters, actions, weights):
    """E[d log p d log p']."""

    def gradient(a):
        return jnp.atleast_1d(jax.grad(lambda q: distribution(q).log_prob(a))(parameters))

    D = jax.vmap(gradient)(actions)
    return jnp.einsum("q,qi,qj->ij", weights, D, D)


def of(distribution, actions):
    return np.exp([distribution.log_prob(jnp.asarray(a, jnp.int32)) for a in actions])


@pytest.mark.parametrize("logit", [-1.7, 0.0, 0.8])
def test_bernoulli_s_probabilities_and_information(x64, logit):
    at, p = Bernoulli(jnp.asarray(logit)), 1 / (1 + np.exp(-logit))
    np.testing.assert_allclose(of(at, [0, 1]), [1 - p, p], rtol=1e-12)
    actions = jnp.array([0, 1], jnp.int32)
    information = outer_products(Bernoulli, at.logit, actions, jnp.array([1 - p, p]))
    A = at.fisher_root()
    np.testing.assert_allclose(A.T @ A, information, rtol=1e-12)
    np.testing.assert_allclose(A.T @ A, [[p * (1 - p)]], rtol=1e-12)


def test_bernoulli_is_stable_far_out():
    at = Bernoulli(jnp.asarray(200.0))
    assert at.log_prob(jnp.asarray(0, jnp.int32)) == -200
    assert at.log_prob(jnp.asarray(1, jnp.int32)) == 0
    assert np.isfinite(at.fisher_root()).all()


def test_bernoulli_samples_have_its_frequency():
    logit = jnp.repeat(jnp.array([-1.0, 0.5]), 40_000)
    sample = Bernoulli(logit).sample(jax.random.key(0))
    assert sample.dtype == jnp.int32
    for half, value in zip(sample.reshape(2, -1), [-1.0, 0.5], strict=True):
        p = 1 / (1 + np.exp(-value))
        assert abs(half.mean() - p) < 4 * np.sqrt(p * (1 - p) / 40_000)


def test_categorical_s_probabilities_and_information(x64):
    at = Categorical(jnp.array(LOGITS))
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    np.testing.assert_allclose(of(at, range(4)), p, rtol=1e-12)
    actions = jnp.arange(4, dtype=jnp.int32)
    information = outer_products(Categorical, at.logits, actions, jnp.array(p))
    A = at.fisher_root()
    np.testing.assert_allclose(A.T @ A, information, atol=1e-14)
    np.testing.assert_allclose(A.T @ A, np.diag(p) - np.outer(p, p), atol=1e-14)


def test_categorical_is_stable_far_out():
    at = Categorical(jnp.array([300.0, 0.0, -300.0]))
    np.testing.assert_array_equal(
        [at.log_prob(jnp.asarray(a, jnp.int32)) for a in range(3)], [0, -300, -600]
    )
    assert at.sample(jax.random.key(0)) == 0
    assert Categorical(jnp.array([-300.0, 0.0, 300.0])).sample(jax.random.key(0)) == 2


def test_categorical_samples_have_its_frequencies():
    logits = jnp.stack([jnp.array(LOGITS), jnp.zeros(4)])
    sample = Categorical(jnp.repeat(logits, 40_000, 0)).sample(jax.random.key(1))
    assert sample.dtype == jnp.int32
    for half, row in zip(sample.reshape(2, -1), logits, strict=True):
        p = np.exp(row) / np.exp(row).sum()
        found = np.bincount(half, minlength=4) / 40_000
        assert np.all(np.abs(found - p) < 4 * np.sqrt(p * (1 - p) / 40_000))


def test_unit_normal_s_density_and_information(x64):
    at = UnitNormal(jnp.asarray(0.7))
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    information = outer_products(UnitNormal, at.mean, 0.7 + nodes, weights / weights.sum())
    A = at.fisher_root()
    np.testing.assert_allclose(A.T @ A, information, rtol=1e-12)
    grid = np.linspace(-9.3, 10.7, 4001)
    density = np.exp(jax.vmap(at.log_prob)(grid))
    np.testing.assert_allclose(density.sum() * (grid[1] - grid[0]), 1.0, rtol=1e-12)


def test_unit_normal_samples_have_its_moments():
    sample = UnitNormal(jnp.full(40_000, 0.5)).sample(jax.random.key(0))
    assert abs(sample.mean() - 0.5) < 4 / 200
    assert abs(sample.std() - 1) < 4 / np.sqrt(2 * 40_000)
