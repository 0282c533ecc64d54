"""Updates as optax transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracle import problem

from bayespg import actor_critic, evidence, monte_carlo, quadrature, updates
from bayespg.algebra.sparsification import Sparsify
from bayespg.kernels import Gaussian


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


P = problem(30, 3)
STEPS = {"last": np.arange(30) % 5 == 4, "terminated": np.zeros(30, bool), "discount": 0.9}


def evidence_chosen(P):
    choice = evidence.choose_model1(*P)
    noise = np.broadcast_to(choice.noise, P.scores.shape)
    return quadrature.model1(*P, noise=noise, scale=choice.scale)


def actor_critic_of(P, scale, **options):
    return actor_critic.gradient_posterior(
        P.scores[:, :1], *P, state_kernel=Gaussian(1.0), fisher_scale=scale, **STEPS, **options
    )


POSTERIORS = {
    "model 1, scaled": lambda c: quadrature.model1(*P, scale=c),
    "model 1, a scale a component": lambda c: quadrature.model1(*P, scale=c * np.arange(1, 4)),
    "model 1, sparse": lambda c: quadrature.model1(*P, scale=c, sparsify=Sparsify(0.1)),
    "model 1, evidence": lambda c: evidence_chosen(P._replace(returns=c * P.returns)),
    "model 2": lambda c: quadrature.model2(*P, scale=c),
    "model 2, other units": lambda c: quadrature.model2(
        P.scores * c, P.returns, P.fisher * c**2, noise=10.0
    ),
    "model 2, sparse": lambda c: quadrature.model2(*P, scale=c, sparsify=Sparsify(0.1)),
    "actor-critic": lambda c: actor_critic_of(P, c),
    "actor-critic, dual": lambda c: actor_critic_of(P, c, form="dual"),
    "actor-critic, matrix-free": lambda c: actor_critic_of(P, c, form="matrix-free"),
    "reinforce": lambda c: monte_carlo.reinforce(P.scores, c * P.returns),
    "one path": lambda c: monte_carlo.reinforce(P.scores[:1], P.returns[:1]),
}


SLOW = (
    "actor-critic", "model 1, sparse", "model 1, evidence", "model 2, sparse",
    "actor-critic, dual", "actor-critic, matrix-free",
)  # fmt: skip


@pytest.mark.slow(*(f"{name}-{scale}" for name in SLOW for scale in (0.0001, 1.0, 10000.0)))
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("name", POSTERIORS)
def test_the_factor_of_bpg_var_lies_between_0_and_1(x64, name, scale):
    """It is one minus the share of the prior variance that is left."""
    posterior = POSTERIORS[name](scale)
    factor = apply(updates.variance_scaled(1.0), posterior) / posterior.mean
    assert np.all((factor >= 0) & (factor <= 1 + 1e-12))
    if posterior.prior is None:
        np.testing.assert_allclose(factor, posterior.explained, rtol=1e-12)
    elif name != "actor-critic, matrix-free":  # whose variances are estimates
        left = posterior.standard_deviation**2 / posterior.prior.diagonal()
        np.testing.assert_allclose(factor, 1 - left, atol=1e-9)


@pytest.mark.slow("actor-critic")
@pytest.mark.parametrize(
    "name", ["model 1, scaled", "model 2", "actor-critic", "actor-critic, dual"]
)
def test_the_priors_are_those_of_the_models(name):
    c, n = 0.01, 3
    expected = c * (1 + n) * np.ones(n) if name == "model 1, scaled" else c * np.diag(P.fisher)
    np.testing.assert_allclose(POSTERIORS[name](c).prior.diagonal(), expected, rtol=1e-6)


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
