"""Updates as optax transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracle import problem

from bayespg import quadrature, updates


@pytest.fixture(scope="module")
def posterior():
    p = problem(30, 3)
    return quadrature.model1(p.scores, p.returns, p.fisher)


def apply(transformation, posterior, steps=1):
    state = transformation.init(posterior.mean)
    for _ in range(steps):
        change, state = transformation.update(
            posterior.mean, state, posterior.mean, posterior=posterior
        )
    return np.asarray(change)


def test_conventional_ascends_the_mean(posterior):
    np.testing.assert_allclose(
        apply(updates.conventional(0.1), posterior), 0.1 * posterior.mean, rtol=1e-6
    )


def test_rates_may_differ_between_components(posterior):
    rate = np.array([0.1, 0.0, 2.0])
    np.testing.assert_allclose(
        apply(updates.conventional(rate), posterior), rate * posterior.mean, rtol=1e-6
    )


def test_the_paper_s_schedule_halves_after_twenty_updates(posterior):
    transformation = updates.conventional(updates.hyperbolic(0.3))
    np.testing.assert_allclose(apply(transformation, posterior), 0.3 * posterior.mean, rtol=1e-6)
    np.testing.assert_allclose(
        apply(transformation, posterior, 21), 0.15 * posterior.mean, rtol=1e-6
    )


def test_natural_solves_with_the_fisher_matrix(posterior):
    np.testing.assert_allclose(
        apply(updates.natural(0.1), posterior), 0.1 * posterior.natural, rtol=1e-4
    )


def test_bpng_multiplies_by_the_determinant(posterior):
    change = apply(updates.natural(0.1, times_determinant=True), posterior)
    determinant = np.linalg.det(posterior.fisher.G)
    np.testing.assert_allclose(change, 0.1 * determinant * posterior.natural, rtol=1e-4)


def test_bpg_var_scales_by_certainty(posterior):
    n = posterior.mean.size
    scaling = ((1 + n) * np.eye(n) - posterior.covariance) / (1 + n)
    np.testing.assert_allclose(
        apply(updates.variance_scaled(0.1), posterior), 0.1 * scaling @ posterior.mean, rtol=1e-4
    )


def test_bpg_var_does_not_move_on_no_knowledge():
    p = problem(30, 3)
    vague = quadrature.model1(p.scores, p.returns, p.fisher, noise=1e12)
    assert np.linalg.norm(apply(updates.variance_scaled(1.0), vague)) < 1e-6


def test_transformations_chain_with_optax(posterior):
    chain = optax.chain(
        updates.natural_gradient(), optax.clip_by_global_norm(1e-3), updates.ascend(1.0)
    )
    np.testing.assert_allclose(np.linalg.norm(apply(chain, posterior)), 1e-3, rtol=1e-5)


def test_updates_compile(posterior):
    transformation = updates.natural(0.1)

    @jax.jit
    def step(posterior):
        state = transformation.init(posterior.mean)
        return transformation.update(posterior.mean, state, posterior=posterior)[0]

    np.testing.assert_allclose(step(posterior), 0.1 * posterior.natural, rtol=1e-3)
    assert isinstance(jnp.asarray(step(posterior)), jax.Array)
