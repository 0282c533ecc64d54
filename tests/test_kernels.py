import jax.numpy as jnp
import numpy as np
import pytest
from oracle import fisher_kernel, problem, quadratic_kernel
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from bayespg import kernels
from bayespg.fisher import Dense, Inverse

pytestmark = pytest.mark.usefixtures("x64")

U, _, G = problem(8, 2)
ORACLE = {kernels.Linear: fisher_kernel, kernels.Quadratic: quadratic_kernel}


@pytest.fixture(params=[kernels.Linear, kernels.Quadratic])
def kernel(request):
    return request.param(Dense(jnp.asarray(G)))


def test_gram_diagonal_and_single_pairs_are_the_printed_kernel(kernel):
    expected = ORACLE[type(kernel)](U, G)
    np.testing.assert_allclose(kernel.gram(jnp.asarray(U), jnp.asarray(U)), expected, rtol=1e-9)
    np.testing.assert_allclose(kernel.diagonal(jnp.asarray(U)), np.diag(expected), rtol=1e-9)
    np.testing.assert_allclose(kernels.gram(kernel, jnp.asarray(U)), expected, rtol=1e-9)
    np.testing.assert_allclose(kernel.gram(U[:3], U), expected[:3], rtol=1e-9)


def test_features_and_functional_carry_the_kernel_and_its_integrals(kernel):
    Psi, V = kernel.features(U), kernel.functional()
    np.testing.assert_allclose(Psi @ Psi.T, kernel.gram(U, U), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(V @ Psi.T, kernel.cross(U), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(V @ V.T, kernel.prior(), rtol=1e-9, atol=1e-9)


def test_a_fisher_matrix_that_is_not_dense_has_features_too(kernel):
    other = type(kernel)(Inverse(Dense(jnp.linalg.inv(G))))
    Psi = other.features(U)
    np.testing.assert_allclose(Psi @ Psi.T, kernel.gram(U, U), rtol=1e-8, atol=1e-9)


# Propositions 3 and 4 on the Gaussian bandit: a ~ N(0, 1), u = (a, a^2 - 1), G = diag(1, 2).


def bandit_score(a):
    return np.stack([a, a**2 - 1], -1)


BANDIT = np.diag([1.0, 2.0])
ACTIONS = np.array([-1.3, 0.2, 2.1])


def expectation(f) -> float:
    return quad(lambda a: f(a) * norm.pdf(a), -12, 12, epsabs=1e-11)[0]


def double_expectation(f) -> float:
    """A trapezium rule on a grid: exact to rounding for a polynomial times a Gaussian."""
    t = np.linspace(-12, 12, 121)
    weights = norm.pdf(t) * (t[1] - t[0])
    return weights @ f(t[:, None], t[None, :]) @ weights


def linear(a, b):
    return np.sum(bandit_score(a) * bandit_score(b) / [1, 2], -1)


def quadratic(a, b):
    return (1 + linear(a, b)) ** 2


def test_proposition_3_holds_under_numerical_integration():
    kernel = kernels.Quadratic(Dense(jnp.asarray(BANDIT)))
    cross = [expectation(lambda a, b=b: quadratic(a, b)) for b in ACTIONS]
    np.testing.assert_allclose(kernel.cross(bandit_score(ACTIONS))[0], cross, rtol=1e-8)
    np.testing.assert_allclose(kernel.prior(), [[double_expectation(quadratic)]], rtol=1e-9)


def test_proposition_4_holds_under_numerical_integration():
    """grad Pr = u Pr."""
    kernel = kernels.Linear(Dense(jnp.asarray(BANDIT)))

    def u(a, j):
        return bandit_score(a)[..., j]

    cross = [
        [expectation(lambda a, b=b, j=j: u(a, j) * linear(a, b)) for b in ACTIONS] for j in (0, 1)
    ]
    prior = [
        [
            double_expectation(lambda a, b, i=i, j=j: u(a, i) * linear(a, b) * u(b, j))
            for j in (0, 1)
        ]
        for i in (0, 1)
    ]
    np.testing.assert_allclose(kernel.cross(bandit_score(ACTIONS)), cross, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(kernel.prior(), prior, rtol=1e-9, atol=1e-9)


def test_a_constant_changes_no_integral_of_the_fisher_kernel():
    """The score integrates to zero, so B and B_0 are those without the constant."""
    for j in range(2):
        assert expectation(lambda a, j=j: bandit_score(a)[j]) == pytest.approx(0, abs=1e-10)


# The Gaussian kernel against a Gaussian measure.

MEASURES = {
    1: (np.array([0.4]), np.array([[0.7]]), 0.8),
    2: (np.array([0.4, -1.0]), np.array([[0.7, 0.3], [0.3, 1.1]]), np.array([0.9, 1.6])),
}


def grid(mean, covariance, nodes=81):
    """A tensor trapezium rule over eight standard deviations: exact to rounding."""
    root = np.linalg.cholesky(covariance)
    t = np.linspace(-8, 8, nodes)
    axes = np.stack(np.meshgrid(*[t] * len(mean), indexing="ij"), -1).reshape(-1, len(mean))
    x = mean + axes @ root.T
    weights = multivariate_normal(mean, covariance).pdf(x)
    return x, weights / weights.sum()


@pytest.mark.slow("1")
@pytest.mark.parametrize("d", [1, 2])
def test_gaussian_integrals_match_numerical_integration(d):
    mean, covariance, length_scale = MEASURES[d]
    points = np.random.default_rng(0).normal(size=(4, d))
    kernel = kernels.Gaussian(length_scale)
    x, weights = grid(mean, covariance)

    def k(a, b):
        return np.exp(-0.5 * np.sum(((a[:, None] - b[None]) / length_scale) ** 2, -1))

    np.testing.assert_allclose(
        kernel.integral(points, mean, covariance), weights @ k(x, points), rtol=1e-9
    )
    coarse, mass = grid(mean, covariance, 41)
    np.testing.assert_allclose(
        kernel.double_integral(covariance), mass @ k(coarse, coarse) @ mass, rtol=1e-9
    )
    np.testing.assert_allclose(kernels.gram(kernel, points, x[:5]), k(points, x[:5]), rtol=1e-9)


def test_kernels_add_and_scale():
    linear, constant = kernels.Linear(Dense(jnp.asarray(G))), kernels.Constant(2.0)
    both = kernels.Sum(kernels.Scaled(linear, 3.0), constant)
    np.testing.assert_allclose(
        kernels.gram(both, jnp.asarray(U)), 3 * fisher_kernel(U, G) + 2, rtol=1e-9
    )


def test_explained_is_the_share_of_prior_variance_removed(kernel):
    C = np.linalg.inv(kernel.gram(U, U) + 0.1 * np.eye(8))
    B, B0 = np.asarray(kernel.cross(U)), np.asarray(kernel.prior())
    expected = np.trace(np.linalg.solve(B0, B @ C @ B.T)) / len(B0)
    np.testing.assert_allclose(kernel.explained(U, B @ C), expected, rtol=1e-9)


# Kernels with finitely many features.

POINTS = np.random.default_rng(1).normal(size=(4, 2))
QUERY = np.random.default_rng(2).normal(size=(5, 2))
SMOOTH = kernels.Gaussian(np.array([0.9, 1.6]))


def smooth(X, Y):
    return np.exp(-0.5 * np.sum(((X[:, None] - Y[None]) / [0.9, 1.6]) ** 2, -1))


def seen_through(X, Y, points=POINTS):
    """k(x, Z) K_ZZ^-1 k(Z, y)."""
    return smooth(X, points) @ np.linalg.inv(smooth(points, points)) @ smooth(points, Y)


def test_a_kernel_seen_through_points_is_exact_on_them():
    found = kernels.gram(kernels.Nystrom(SMOOTH, POINTS), POINTS)
    np.testing.assert_allclose(found, smooth(POINTS, POINTS), rtol=1e-9)


def test_elsewhere_it_is_the_projection_onto_them():
    found = kernels.Nystrom(SMOOTH, POINTS)
    expected = seen_through(QUERY, QUERY)
    np.testing.assert_allclose(kernels.gram(found, QUERY), expected, rtol=1e-8)
    np.testing.assert_allclose(kernels.diagonal(found, QUERY), np.diag(expected), rtol=1e-8)
    np.testing.assert_allclose(found(QUERY[0], QUERY[1]), expected[0, 1], rtol=1e-8)
    assert np.all(np.diag(expected) < 1)


def test_points_given_twice_change_nothing():
    twice = kernels.Nystrom(SMOOTH, np.repeat(POINTS, 2, 0))
    assert twice.root.shape[1] == len(POINTS)
    expected = seen_through(QUERY, QUERY)
    np.testing.assert_allclose(kernels.gram(twice, QUERY), expected, rtol=1e-7)


def test_on_a_dense_grid_it_is_the_kernel():
    grid = np.linspace(-3, 3, 40)[:, None]
    x = np.linspace(-2.9, 2.9, 17)[:, None]
    kernel = kernels.Gaussian(0.8)
    found = kernels.gram(kernels.Nystrom(kernel, grid), x)
    np.testing.assert_allclose(found, kernels.gram(kernel, x), atol=1e-6)


NYSTROM = kernels.Nystrom(SMOOTH, POINTS)
FINITE = {
    "points": NYSTROM,
    "constant": kernels.Constant(2.5),
    "scaled": kernels.Scaled(NYSTROM, 3.0),
    "sum": kernels.Sum(kernels.Scaled(NYSTROM, 3.0), kernels.Constant(2.5)),
    "nested": kernels.Scaled(kernels.Sum(kernels.Constant(), kernels.Scaled(NYSTROM, 2.0)), 0.1),
}


@pytest.mark.parametrize("finite", FINITE.values(), ids=FINITE)
def test_features_reproduce_the_kernel(finite):
    Psi = kernels.features(finite, jnp.asarray(QUERY))
    expected = kernels.gram(finite, QUERY)
    np.testing.assert_allclose(Psi @ Psi.T, expected, rtol=1e-9)
    np.testing.assert_allclose(kernels.diagonal(finite, QUERY), np.diag(expected), rtol=1e-9)
    np.testing.assert_allclose(finite(QUERY[0], QUERY[3]), expected[0, 3], rtol=1e-9)


def test_compositions_are_what_they_say():
    expected = 0.1 * (1 + 2 * seen_through(QUERY, QUERY))
    np.testing.assert_allclose(kernels.gram(FINITE["nested"], QUERY), expected, rtol=1e-8)


@pytest.mark.parametrize(
    "infinite",
    [
        SMOOTH,
        kernels.Scaled(SMOOTH, 2.0),
        kernels.Sum(NYSTROM, SMOOTH),
        kernels.Sum(SMOOTH, NYSTROM),
    ],
)
def test_a_kernel_with_infinitely_many_features_has_none_to_give(infinite):
    assert kernels.features(infinite, jnp.asarray(QUERY)) is None


def test_state_action_pairs_have_the_sum_of_both_kernels():
    kernel = kernels.StateAction(SMOOTH, Dense(jnp.asarray(G)), 0.3)
    X, V = POINTS, U[:4]
    expected = smooth(X, X) + 0.3 * fisher_kernel(V, G)
    np.testing.assert_allclose(kernels.gram(kernel, (X, V)), expected, rtol=1e-9)
    np.testing.assert_allclose(kernels.diagonal(kernel, (X, V)), np.diag(expected), rtol=1e-9)
    np.testing.assert_allclose(kernel((X[0], V[0]), (X[1], V[1])), expected[0, 1], rtol=1e-9)
