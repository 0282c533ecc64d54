import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from oracle import problem, standard_errors

from bayespg import fisher, quadrature
from bayespg.environments import LQR
from bayespg.fisher import Dense, Implicit, Inverse, LowRank
from bayespg.policies import LinearGaussian
from bayespg.rollout import rollout
from bayespg.scores import of_paths

pytestmark = pytest.mark.usefixtures("x64")

n = 4
G = problem(8, n).fisher
ROOT = np.random.default_rng(1).normal(size=(2, n))
DAMPING = np.array([0.5, 1.0, 2.0, 0.1])
CASES = {
    "dense": (lambda: Dense(jnp.asarray(G)), G),
    "low rank": (lambda: LowRank(ROOT, DAMPING), ROOT.T @ ROOT + np.diag(DAMPING)),
    "inverse": (lambda: Inverse(Dense(jnp.asarray(G))), np.linalg.inv(G)),
    "implicit": (lambda: Implicit(lx.MatrixLinearOperator(jnp.asarray(G))), G),
    "matrix-free": (
        lambda: Implicit(
            lx.FunctionLinearOperator(lambda v: G @ v, jax.ShapeDtypeStruct((n,), jnp.float64))
        ),
        G,
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    make, expected = CASES[request.param]
    return make(), expected


@pytest.mark.parametrize("shape", [(n,), (3, n), (2, 3, n)])
def test_multiply_and_solve_act_on_rows_and_undo_each_other(case, shape):
    found, expected = case
    V = jnp.asarray(np.random.default_rng(2).normal(size=shape))
    np.testing.assert_allclose(found.multiply(V), V @ expected, rtol=1e-8)
    np.testing.assert_allclose(found.solve(V), V @ np.linalg.inv(expected), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.solve(found.multiply(V)), V, rtol=1e-7, atol=1e-9)


def test_matrix_and_diagonal_are_those_of_a_covariance(case):
    found, expected = case
    assert found.size == n
    np.testing.assert_allclose(found.matrix(), expected, rtol=1e-9)
    np.testing.assert_allclose(found.diagonal(), np.diag(expected), rtol=1e-9)
    np.testing.assert_allclose(found.matrix(), found.matrix().T, rtol=1e-9)
    assert np.linalg.eigvalsh(found.matrix())[0] > 0


def test_samples_have_covariance_fisher(case):
    found, expected = case
    samples = np.asarray(found.sample(jax.random.key(0), (20_000,)))
    assert standard_errors(samples, np.zeros(n), expected) < 4


def test_samples_have_the_shape_asked_for(case):
    assert case[0].sample(jax.random.key(0), (2, 3)).shape == (2, 3, n)


def test_every_kind_gives_model2_the_same_answer(case):
    found, expected = case
    U, R, _ = problem(8, n)
    posterior = quadrature.model2(U, R, found, noise=0.1, form="dual")
    dense = quadrature.model2(U, R, expected, noise=0.1, form="dual")
    np.testing.assert_allclose(posterior.mean, dense.mean, rtol=1e-7)
    np.testing.assert_allclose(posterior.covariance, dense.covariance, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(posterior.natural, dense.natural, rtol=1e-7)


def test_whitened_scores_carry_the_fisher_kernel():
    U, _, _ = problem(8, n)
    found = Dense(jnp.asarray(G))
    S = found.whiten(jnp.asarray(U))
    np.testing.assert_allclose(S @ S.T, U @ np.linalg.solve(G, U.T), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.colour(S), U, rtol=1e-9, atol=1e-12)


def test_log_determinant_is_that_of_the_matrix():
    assert Dense(jnp.asarray(G)).log_determinant() == pytest.approx(np.linalg.slogdet(G)[1])


def test_a_singular_matrix_acts_as_a_generalised_inverse_on_its_range():
    low = problem(3, n).scores[:2]
    singular = Dense(jnp.asarray(low.T @ low))
    w = singular.solve(jnp.asarray(low))
    np.testing.assert_allclose(singular.multiply(w), low, rtol=1e-9)
    np.testing.assert_allclose(w @ low.T, low @ np.linalg.pinv(low.T @ low) @ low.T, atol=1e-9)


def test_units_of_the_parameters_do_not_spoil_the_conditioning():
    D = np.array([1e-12, 1e-3, 1.0, 1e12])
    U, _, _ = problem(8, n)
    scaled = Dense(jnp.asarray(G * np.outer(D, D)))
    np.testing.assert_allclose(
        scaled.solve(jnp.asarray(U * D)) * D, U @ np.linalg.inv(G), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(scaled.solve(scaled.multiply(jnp.asarray(U / D))) * D, U, rtol=1e-9)


def blinded():
    """No information on parameter 1."""
    U, R, _ = problem(8, n)
    blind = G.copy()
    blind[1] = blind[:, 1] = U[:, 1] = 0
    return U, R, blind


@pytest.mark.parametrize("form", ["dual", "weight"])
def test_a_parameter_without_information_stays_at_zero(form):
    U, R, blind = blinded()
    rest = [0, 2, 3]
    found = quadrature.model2(U, R, blind, noise=0.1, form=form)
    known = quadrature.model2(U[:, rest], R, G[np.ix_(rest, rest)], noise=0.1, form=form)
    np.testing.assert_allclose(found.mean[rest], known.mean, rtol=1e-9)
    np.testing.assert_allclose(found.natural[rest], known.natural, rtol=1e-9)
    assert found.mean[1] == found.natural[1] == 0


@pytest.mark.parametrize("form", ["dual", "weight"])
def test_a_parameter_without_information_has_no_variance(form):
    posterior = quadrature.model2(*blinded(), noise=0.1, form=form)
    assert posterior.covariance[1, 1] == 0


def test_a_parameter_without_information_is_drawn_as_zero():
    found = Dense(jnp.asarray(blinded()[2]))
    np.testing.assert_array_equal(found.sample(jax.random.key(0), (3,))[:, 1], 0)


def test_monte_carlo_is_the_average_outer_product():
    U, _, _ = problem(8, n)
    found = fisher.monte_carlo(jnp.asarray(U))
    expected = np.mean([np.outer(u, u) for u in U], 0)
    np.testing.assert_allclose(found.matrix(), expected, rtol=1e-12)
    np.testing.assert_allclose(
        np.einsum("irn,irm->nm", found.factors, found.factors) / len(U), expected, rtol=1e-12
    )


@pytest.mark.parametrize("M", [3, 8])
def test_damping_adds_to_the_diagonal(M):
    U = jnp.asarray(problem(M, n).scores)
    found = fisher.monte_carlo(U, damping=0.3)
    assert isinstance(found, LowRank if n > M else Dense)
    np.testing.assert_allclose(found.matrix(), U.T @ U / M + 0.3 * np.eye(n), rtol=1e-12)


def test_the_recursion_with_steps_one_over_i_ends_at_monte_carlo():
    U = jnp.asarray(problem(8, n).scores)
    found = fisher.recursive(U, 1 / jnp.arange(1, 9), 100 * jnp.eye(n))
    np.testing.assert_allclose(found.matrix(), fisher.monte_carlo(U).matrix(), rtol=1e-12)


def test_the_recursive_inverse_is_the_inverse_of_the_recursion():
    U = jnp.asarray(problem(8, n).scores)
    steps = 1 / jnp.arange(2, 10)
    found = fisher.recursive_inverse(U, steps, jnp.linalg.inv(G))
    expected = fisher.recursive(U, steps, jnp.asarray(G))
    np.testing.assert_allclose(found.matrix(), expected.matrix(), rtol=1e-9)
    np.testing.assert_allclose(found.solve(U), expected.solve(U), rtol=1e-9, atol=1e-12)


LQR_PATHS = 2000
draw = eqx.filter_jit(rollout)
integrate = eqx.filter_jit(fisher.actions_integrated_out)
score = eqx.filter_jit(of_paths)


@pytest.fixture(scope="module")
def lqr():
    with jax.enable_x64(True):
        environment, policy = LQR(), LinearGaussian(-0.2, 1.0)
        return environment, policy, draw(environment, policy, jax.random.key(0), LQR_PATHS)


def test_integrating_actions_out_and_outer_products_both_estimate_the_exact_matrix(lqr):
    """Entries of each average lie within 4 standard errors, estimated from its terms."""
    environment, policy, paths = lqr
    exact = fisher.exact(environment, policy).matrix()
    for found in (
        integrate(policy, paths),
        fisher.monte_carlo(score(policy, paths)),
    ):
        terms = jnp.einsum("irn,irm->inm", found.factors, found.factors)
        np.testing.assert_allclose(terms.mean(0), found.matrix(), rtol=1e-12)
        error = 4 * terms.std(0) / np.sqrt(LQR_PATHS)
        assert (jnp.abs(found.matrix() - exact) <= error + 1e-9).all()


def test_a_fitted_model_gives_the_exact_matrix_as_paths_grow(lqr):
    environment, policy, paths = lqr
    found = fisher.maximum_likelihood(environment, policy, paths).matrix()
    np.testing.assert_allclose(found, fisher.exact(environment, policy).matrix(), rtol=0.03)


def test_a_fitted_model_needs_a_linear_gaussian_environment(lqr):
    with pytest.raises(TypeError, match="maximum_likelihood"):
        fisher.maximum_likelihood(None, *lqr[1:])


def test_an_array_an_operator_and_an_object_are_all_accepted():
    operator = lx.MatrixLinearOperator(jnp.asarray(G))
    dense = Dense(jnp.asarray(G))
    assert isinstance(fisher.as_fisher(jnp.asarray(G)), Dense)
    assert isinstance(fisher.as_fisher(operator), Implicit)
    assert fisher.as_fisher(dense) is dense
