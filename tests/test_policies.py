"""Scores and Fisher information by differentiation, against the paper's closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.policies import (
    BoundedLinearGaussian,
    Gaussian,
    LinearGaussian,
    Normal,
    flatten,
    information_root,
    score,
)

POLICIES = {
    "gaussian": Gaussian(0.2, 0.7),
    "linear": LinearGaussian(-0.4, 0.6),
    "bounded": BoundedLinearGaussian(np.array([0.4, -0.3])),
}


@pytest.fixture(params=POLICIES)
def policy(request):
    with jax.enable_x64(True):
        yield jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), POLICIES[request.param])


def test_the_bandit_policy_has_the_paper_s_score_and_information():
    with jax.enable_x64(True):
        policy = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), Gaussian(0.0, 1.0))
        u = score(policy, jnp.zeros(()), jnp.asarray(1.7))
        A = information_root(policy, jnp.zeros(()))
    np.testing.assert_allclose(u, [1.7, 1.7**2 - 1], rtol=1e-12)
    np.testing.assert_allclose(A.T @ A, np.diag([1.0, 2.0]), atol=1e-12)


def test_the_linear_policy_s_score_is_that_of_the_paper():
    with jax.enable_x64(True):
        gain, scale, x, a = -0.4, 0.6, 0.9, 0.1
        policy = LinearGaussian(jnp.asarray(gain), jnp.asarray(scale))
        u = score(policy, jnp.asarray(x), jnp.asarray(a))
    e = (a - gain * x) / scale
    np.testing.assert_allclose(u, [x * e / scale, (e**2 - 1) / scale], rtol=1e-12)


def test_kappa_reaches_the_paper_s_optimum():
    policy = BoundedLinearGaussian(np.array([-0.16, 60.0]))
    assert abs(float(policy.gain) + 0.92) < 1e-3
    assert abs(float(policy.scale) - 0.001) < 1e-6


def test_information_is_the_expectation_of_squared_scores(policy):
    x = jnp.asarray(0.7)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    at = policy(x)
    U = jax.vmap(lambda a: score(policy, x, a))(at.mean + at.scale * nodes)
    expected = jnp.einsum("q,qi,qj->ij", weights / weights.sum(), U, U)
    A = information_root(policy, x)
    np.testing.assert_allclose(A.T @ A, expected, rtol=1e-9, atol=1e-12)


def test_scores_have_mean_zero(policy):
    x = jnp.asarray(-0.3)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    at = policy(x)
    U = jax.vmap(lambda a: score(policy, x, a))(at.mean + at.scale * nodes)
    np.testing.assert_allclose(weights @ U / weights.sum(), 0.0, atol=1e-12)


def test_flatten_and_rebuild_are_inverse(policy):
    theta, rebuild = flatten(policy)
    again, _ = flatten(rebuild(theta))
    np.testing.assert_array_equal(theta, again)


def test_normal_samples_have_its_moments():
    with jax.enable_x64(True):
        at = Normal(jnp.full(40_000, 0.5), jnp.full(40_000, 2.0))
        a = at.sample(jax.random.key(0))
    assert abs(a.mean() - 0.5) < 4 * 2.0 / 200
    assert abs(a.std() - 2.0) < 4 * 2.0 / np.sqrt(2 * 40_000)
