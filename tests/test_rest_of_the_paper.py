"""What the paper describes beside its algorithms, against brute force: Algorithm 1 path by path,
correlated components, Example 1, the return itself, second derivatives, prior means."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.linalg import inv
from oracle import problem

from bayespg import quadrature
from bayespg._support.random import fast_key
from bayespg.environments import Bandit
from bayespg.learning.batch import draw
from bayespg.paths import scores
from bayespg.policies import Gaussian

U, R, G = problem(20, 3)


@pytest.mark.slow("2-model2")
@pytest.mark.parametrize(("model", "batch"), [(1, quadrature.model1), (2, quadrature.model2)])
def test_path_by_path_gives_the_batch_answer_after_every_path(model, batch):
    online = quadrature.Online(G, model=model, noise=0.1, scale=2.0)
    np.testing.assert_allclose(online.mean, 0.0)
    for m, (u, r) in enumerate(zip(U, R, strict=True), 1):
        online.observe(u, r)
        if m in (1, 2, 17, 20):  # the room for paths doubles after 16
            whole = batch(U[:m], R[:m], G, noise=0.1, scale=2.0)
            np.testing.assert_allclose(online.mean, whole.mean, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(online.covariance, whole.covariance, rtol=1e-7, atol=1e-9)
    assert online.paths == 20


def test_before_any_path_the_posterior_is_the_prior():
    np.testing.assert_allclose(quadrature.Online(G).covariance, G)
    np.testing.assert_allclose(quadrature.Online(G, model=1).covariance, 4 * np.eye(3))


@pytest.mark.parametrize("wrong", [{"model": 3}, {"noise": 0.0}, {"scale": -1.0}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        quadrature.Online(G, **wrong)
    with pytest.raises(ValueError, match=r"score: "):
        quadrature.Online(G).observe(np.ones(2), 1.0)


@pytest.mark.parametrize("fisher", [{1.0}, None, [[1.0], [1.0, 2.0]], 2.0, np.zeros((0, 0)), "G"])
def test_path_by_path_names_a_bad_fisher_matrix(fisher):
    with pytest.raises(ValueError, match=r"^fisher: "):
        quadrature.Online(fisher)


ONES = np.ones((3, 3))


@pytest.mark.parametrize("model", [1, 2])
@pytest.mark.parametrize(
    ("name", "fisher", "score", "path_return", "noise"),
    [
        ("scores?", G, np.full(3, 1e160), 1.0, 0.1),
        ("scores?", G, np.full(3, 1e200), 1.0, 0.1),
        ("fisher", ONES, np.array([1.0, -1.0, 0.0]), 1.0, 0.1),
    ],
    ids=["1e160", "1e200", "outside"],
)
def test_path_by_path_refuses_what_the_batch_refuses(
    name, fisher, score, path_return, noise, model
):
    batch = {1: quadrature.model1, 2: quadrature.model2}[model]
    with pytest.raises(ValueError, match=rf"^{name}: "):
        batch(score[None], [path_return], fisher, noise=noise)
    online = quadrature.Online(fisher, model=model, noise=noise)
    with pytest.raises(ValueError, match=rf"^{name}: "):
        online.observe(score, path_return)
    assert online.paths == 0


def test_path_by_path_refuses_a_singular_system_and_keeps_what_it_has():
    online = quadrature.Online(G, noise=1e-14)
    online.observe(U[0], R[0])
    before = online.mean
    with pytest.raises(ValueError, match=r"^noise: the kernel matrix plus noise is singular"):
        online.observe(U[0], R[1])
    with pytest.raises(ValueError, match=r"^noise: the kernel matrix plus noise is singular"):
        quadrature.model2(U[[0, 0]], R[:2], G, noise=1e-14)
    np.testing.assert_array_equal(online.mean, before)
    with pytest.raises(ValueError, match=r"^path_return: "):
        online.observe(U[1], 10**400)
    with pytest.raises(ValueError, match=r"^score, path_return: "):
        quadrature.Online(G, noise=1e-9).observe(np.full(3, 1e-6), 1.7e308)


def kernel_and_integrals():
    inner = U @ inv(G) @ U.T
    return (1 + inner) ** 2, 1 + np.diag(inner), 4.0


@pytest.mark.parametrize("own", [True, False])
def test_coupled_components_are_proposition_1(own):
    D = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 0.7]]) if own else G
    K, b, b0 = kernel_and_integrals()
    full = quadrature.vector_integral(
        D[:, :, None, None] * K, R[:, None] * U, D[:, :, None] * b, D * b0, noise=0.2
    )
    found = quadrature.coupled(U, R, G, D if own else None, noise=0.2)
    np.testing.assert_allclose(found.mean, full.mean, rtol=1e-7)
    np.testing.assert_allclose(found.covariance, full.covariance, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.log_evidence, full.log_evidence, rtol=1e-9)


def test_without_coupling_it_is_model_1():
    found, plain = quadrature.coupled(U, R, G, np.eye(3)), quadrature.model1(U, R, G)
    np.testing.assert_allclose(found.mean, plain.mean, rtol=1e-6)
    np.testing.assert_allclose(found.covariance, plain.covariance, atol=1e-8)


def test_example_1_on_a_process_with_finitely_many_features(x64):
    """f = phi(x, theta)'w with w ~ N(0, I), so grad f = (d phi)'w."""

    def phi(x, theta):
        return jnp.array([jnp.sin(theta[0] * x), theta[1] * x**2, theta[0] * theta[1]])

    X, theta = jnp.linspace(-1, 1, 4), jnp.array([0.7, -1.2])

    @jax.jit
    def both(X):
        found = quadrature.gradient_kernel(
            lambda x, y, s, t: phi(x, s) @ phi(y, t), X, X[:3], theta
        )
        return found, jax.vmap(lambda x: jax.jacobian(phi, 1)(x, theta))(X)

    found, J = both(X)
    np.testing.assert_allclose(found, jnp.einsum("mpj,kpl->jlmk", J, J[:3]), atol=1e-12)


def test_the_expected_return_is_the_constant_of_model_2():
    """A constant of large variance, integrated as any other part of the return."""
    v = 1e6
    K = 2.0 * U @ inv(G) @ U.T + v
    whole = quadrature.integral(K, R, np.full(20, v), np.asarray(v), noise=0.3)
    found = quadrature.expected_return(U, R, G, noise=0.3, scale=2.0)
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-5)
    np.testing.assert_allclose(found.covariance, whole.covariance, rtol=1e-4)
    evidence = quadrature.model2(U, R, G, noise=0.3, scale=2.0, baseline=np.inf).info["evidence"]
    np.testing.assert_allclose(found.log_evidence, evidence, rtol=1e-9)


def test_scores_are_control_variates_of_the_expected_return():
    """Of a return that is linear in them nothing is left but the noise."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(30):
        U = rng.normal(size=(30, 3))
        R = 5 + U @ [1.0, -2.0, 3.0] + 0.1 * rng.normal(size=30)
        found = quadrature.expected_return(U, R, np.eye(3), noise=0.01, scale=10.0)
        errors.append((float(found.mean) - 5, R.mean() - 5))
    ours, mean = np.mean(np.square(errors), 0)
    assert ours < 0.05 * mean
    assert ours == pytest.approx(0.01 / 30, rel=0.6)


def test_the_hessian_weighs_paths_as_model_1_does():
    H = np.random.default_rng(0).normal(size=(20, 3, 3))
    K, b, b0 = kernel_and_integrals()
    found = quadrature.hessian(U, H, R, G, noise=0.2)
    for j, k in ((0, 0), (0, 1), (2, 1)):
        y = R * (U[:, j] * U[:, k] + (H[:, j, k] + H[:, k, j]) / 2)
        one = quadrature.integral(K, y, b, np.asarray(b0), noise=0.2)
        np.testing.assert_allclose(found.mean[j, k], one.mean, rtol=1e-7)
        np.testing.assert_allclose(found.covariance, one.covariance, rtol=1e-6)


def test_the_hessian_of_a_bandit_is_found_where_the_kernel_can_represent_it():
    """R = a^2 under N(m, s^2) has eta = m^2 + s^2. The entry of m, R (u u + grad u) = a^4 - a^2,
    has degree 4 in a, like the kernel: 100 actions give 2 to three digits."""
    a = np.random.default_rng(0).normal(size=100)
    U = np.stack([a, a**2 - 1], 1)
    derivatives = np.stack([[-np.ones(100), -2 * a], [-2 * a, 1 - 3 * a**2]]).transpose(2, 0, 1)
    found = quadrature.hessian(U, derivatives, a**2, np.diag([1.0, 2.0]))
    assert found.mean[0, 0] == pytest.approx(2.0, abs=1e-3)
    assert abs(np.mean(a**2 * (a**2 - 1)) - 2.0) > 0.05


@pytest.mark.slow
def test_derivatives_of_scores_are_those_of_the_paths_likelihood(x64):
    environment, policy = Bandit(reward=lambda a: a**2), Gaussian(0.0, 1.0)
    batch = draw(environment, policy, fast_key(0), 5)
    a = np.asarray(batch.paths.actions).reshape(-1)
    found = scores.hessians(batch.acting, batch.paths)
    np.testing.assert_allclose(found[:, 0, 0], -np.ones(5), rtol=1e-5)
    np.testing.assert_allclose(found[:, 0, 1], -2 * a, rtol=1e-5)
    np.testing.assert_allclose(found[:, 1, 1], 1 - 3 * a**2, rtol=1e-5)


def test_a_newton_step_finds_the_top_of_a_parabola_and_never_goes_downhill():
    H, top = -np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([1.0, -2.0])
    np.testing.assert_allclose(quadrature.newton(-H @ top, H, least=1e-3), top)
    step = quadrature.newton(np.array([1.0, 1.0]), np.diag([1.0, -1.0]), least=0.1)
    np.testing.assert_allclose(step, [1.0, 1.0])
    assert np.linalg.norm(quadrature.newton(np.ones(2), 0 * H, least=0.5)) == pytest.approx(8**0.5)


def test_a_prior_gradient_is_eq_14_with_a_prior_mean():
    g0 = np.array([1.0, -2.0, 0.5])
    C = inv(0.5 * U @ inv(G) @ U.T + 0.2 * np.eye(20))
    found = quadrature.model2_with_prior(U, R, G, g0, noise=0.2, scale=0.5)
    np.testing.assert_allclose(found.mean, g0 + 0.5 * U.T @ C @ (R - U @ inv(G) @ g0), rtol=1e-7)
    plain = quadrature.model2(U, R, G, noise=0.2, scale=0.5)
    np.testing.assert_allclose(found.covariance, plain.covariance)
    # Both means are judged by the same gradients of paths, from which they differ a little.
    assert found.probability_uphill() == pytest.approx(plain.probability_uphill(), abs=0.01)


def test_a_gradient_from_an_earlier_task_helps_the_next():
    """A slope that differs by a tenth, and five paths for three parameters."""
    rng, slope, errors = np.random.default_rng(0), np.array([1.0, -2.0, 3.0]), []
    for _ in range(20):
        U = rng.normal(size=(5, 3))
        arrays = U, U @ slope + rng.normal(size=5), np.eye(3)
        told = quadrature.model2_with_prior(*arrays, 1.1 * slope, noise=1.0, scale=0.1)
        untold = quadrature.model2(*arrays, noise=1.0, scale=10.0)
        errors.append([np.sum((p.mean - slope) ** 2) for p in (told, untold)])
    told, untold = np.mean(errors, 0)
    assert told < 0.3 * untold
