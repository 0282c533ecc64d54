"""The gradient of the smoothed return: closed forms against numerical integration and a NumPy
transliteration."""

import jax
import numpy as np
import oracle
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, f, norm

from bayespg import fisher, kernels, quadrature, search
from bayespg.search import hyperparameters, smoothed

M, n, S = 9, 2, 0.4
RNG = np.random.default_rng(0)
MEAN = np.array([0.3, -0.2])
X = MEAN + 0.5 * RNG.normal(size=(M, n))
Y = np.sin(X[:, 0]) + X[:, 1] ** 2 + 5.0 + 0.1 * RNG.normal(size=M)
LENGTHS = np.array([0.9, 1.4])


@pytest.mark.parametrize("scale", [1e-168, 1e-160, 1e290, {0.1}, "0.1"])
def test_a_bad_scale_is_named(scale):
    for ask in (search.scores, lambda X, **of: search.gradient_posterior(X, Y, **of)):
        with pytest.raises(ValueError, match=r"^scale: "):
            ask(X, mean=MEAN, scale=scale)


def naive(X, y, mean, scale, length, amplitude, noise):
    """Cross-covariances by finite differences of the kernel mean, which is a product over
    parameters; the prior covariance by those of its double integral."""
    length = np.broadcast_to(length, mean.shape)

    def between(p, q, s2):  # E k(p + s z, q + s' z')
        w = length**2 + s2
        return amplitude * np.prod(length / np.sqrt(w)) * np.exp(-0.5 * np.sum((p - q) ** 2 / w))

    K = np.array([[between(p, q, 0.0) for q in X] for p in X])
    h, E = 1e-4, np.eye(mean.size) * 1e-4
    B = np.array([
        [(between(mean + e, x, scale**2) - between(mean - e, x, scale**2)) / (2 * h) for x in X]
        for e in E
    ])  # fmt: skip
    two = 2 * scale**2
    B0 = np.array([
        [sum(i * j * between(mean + i * e, mean + j * f, two) for i in (1, -1) for j in (1, -1))
         for f in E] for e in E
    ]) / (4 * h**2)  # fmt: skip
    return oracle.condition(K, B, B0, y, noise * np.eye(len(y)), np.inf)


@pytest.mark.parametrize("length", [0.8, LENGTHS])
def test_the_posterior_is_the_transliteration(length):
    kernel = kernels.Scaled(kernels.Gaussian(length), 2.5)
    found = search.gradient_posterior(X, Y, mean=MEAN, scale=S, kernel=kernel, noise=0.01)
    expected = naive(X, Y, MEAN, S, length, 2.5, 0.01)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.info["evidence"], expected.log_evidence, rtol=1e-7)
    for i in range(M):
        left, right = (np.delete(a, i, 0) for a in (X, Y))
        without = search.gradient_posterior(
            left, right, mean=MEAN, scale=S, kernel=kernel, noise=0.01
        )
        np.testing.assert_allclose(found.influence[i], found.mean - without.mean, atol=1e-8)


def test_the_gradient_is_that_of_numerical_integration():
    x = np.linspace(-2.5, 2.5, 12)[:, None]
    found = search.gradient_posterior(x, np.sin(2 * x[:, 0]), mean=[0.3], scale=0.5)
    score = quad(lambda t: np.sin(2 * t) * norm.pdf(t, 0.3, 0.5) * (t - 0.3) / 0.25, -6, 6)[0]
    assert abs(found.mean[0] - score) < 3 * found.standard_deviation[0] + 1e-6
    assert abs(found.mean[0] - score) < 0.02


def test_the_fisher_matrix_is_exact():
    found = search.gradient_posterior(X, Y, mean=MEAN, scale=S)
    np.testing.assert_allclose(found.natural, S**2 * found.mean)
    G = fisher.Isotropic(n, S)
    np.testing.assert_allclose(G.matrix(), np.eye(n) / S**2, rtol=1e-6)
    np.testing.assert_allclose(G.solve(G.multiply(X)), X, rtol=1e-6)
    U = search.scores(X, mean=MEAN, scale=S)
    dense = quadrature.model2(U, Y, np.eye(n) / S**2, baseline=np.inf)
    np.testing.assert_allclose(quadrature.model2(U, Y, G, baseline=np.inf).mean, dense.mean)


def test_a_very_long_kernel_is_model_two():
    """Among functions that are nearly linear the mean return plays no part, and what is left is
    the linear Fisher kernel."""
    length, slope = 1e3, 4.0
    kernel = kernels.Scaled(kernels.Gaussian(length), slope * length**2)
    found = search.gradient_posterior(X, Y, mean=MEAN, scale=S, kernel=kernel, noise=0.1)
    U = search.scores(X, mean=MEAN, scale=S)
    linear = quadrature.model2(
        U, Y, fisher.Isotropic(n, S), noise=0.1, baseline=np.inf, scale=slope * S**2
    )
    np.testing.assert_allclose(found.mean, linear.mean, rtol=1e-4)
    np.testing.assert_allclose(found.covariance, linear.covariance, rtol=1e-4, atol=1e-8)


@pytest.mark.slow
def test_what_is_chosen_has_the_greatest_evidence():
    chosen = search.gradient_posterior(X, Y, mean=MEAN, scale=S)
    length, amplitude, noise = (float(chosen.info[k]) for k in ("length", "amplitude", "noise"))
    best = naive(X, Y, MEAN, S, length, amplitude, noise).log_evidence
    np.testing.assert_allclose(chosen.info["evidence"], best, rtol=1e-6)
    for factor in (0.5, 2.0):
        for other in (
            (length * factor, amplitude, noise), (length, amplitude * factor, noise * factor),
            (length, amplitude * factor, noise),
        ):  # fmt: skip
            assert naive(X, Y, MEAN, S, *other).log_evidence < best + 1e-3
    kernel = kernels.Scaled(kernels.Gaussian(length), amplitude)
    again = search.gradient_posterior(X, Y, mean=MEAN, scale=S, kernel=kernel)
    np.testing.assert_allclose(again.info["evidence"], best, atol=0.15)  # of a grid
    again = search.gradient_posterior(X, Y, mean=MEAN, scale=S, noise=noise)
    np.testing.assert_allclose(again.info["evidence"], best, atol=0.15)  # of a grid


def test_without_a_kernel_it_averages_over_lengths_and_ratios():
    """Each with its own best noise, weighted by evidence."""
    found = search.gradient_posterior(X, Y, mean=MEAN, scale=S)
    each = []
    ratios = np.geomspace(3 / M, 10.0 ** hyperparameters.RATIOS[1], hyperparameters.GRID)
    for length in hyperparameters.LENGTHS * S * np.sqrt(n):
        kernel = kernels.Gaussian(length)
        K = np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, -1) / length**2)
        P = np.eye(M) - 1 / M
        w, Q = np.linalg.eigh(P @ K @ P)
        z = (Q.T @ (Y - Y.mean())) ** 2
        for ratio in ratios:
            v = np.sum(z / (1 + ratio * np.maximum(w, 0))) / (M - 1)
            of = kernels.Scaled(kernel, ratio * v)
            each.append(search.gradient_posterior(X, Y, mean=MEAN, scale=S, kernel=of, noise=v))
    evidence = np.array([float(one.info["evidence"]) for one in each])
    weights = np.exp(evidence - evidence.max())
    weights[weights < smoothed.NEGLIGIBLE] = 0
    weights /= weights.sum()
    means = np.array([one.mean for one in each])
    mean = weights @ means
    covariance = sum(w * np.asarray(one.covariance) for w, one in zip(weights, each, strict=True))
    covariance = covariance + np.einsum("k,ki,kj", weights, means - mean, means - mean)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.covariance, covariance * (M - 1) / (M - 3), rtol=1e-5)


def test_numpy_and_jax_share_the_formula_of_the_evidence():
    K = np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, -1))
    values, Q = np.linalg.eigh(K)
    given = np.array([0.5, 20.0]), np.maximum(values, 0.0), Q.T @ Y, Q.T @ np.ones(M)
    one, other = hyperparameters.profile(*given), hyperparameters.profile(*given, jax.numpy)
    for here, there in zip(one, other, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-3)
    for ratio, quadratic, log_det in zip(given[0], *one, strict=True):
        C = np.linalg.inv(ratio * K + np.eye(M))
        P = C - np.outer(C.sum(1), C.sum(1)) / C.sum()
        np.testing.assert_allclose(quadratic, Y @ P @ Y, rtol=1e-8)
        np.testing.assert_allclose(log_det, np.log(C.sum()) - np.linalg.slogdet(C)[1], rtol=1e-8)


def test_errors_share_the_scale_if_it_is_estimated():
    """The region is that of F, which is larger than that of the normal distribution."""
    found = search.gradient_posterior(X, Y, mean=MEAN, scale=S)
    freedom, root = float(found.scale_freedom), np.linalg.cholesky(found.covariance)
    assert 1 < freedom < M
    normal, shared = chi2.ppf(0.95, n) / n, f.ppf(0.95, n, freedom)
    between = found.mean + root @ np.full(n, np.sqrt((normal + shared) / 2))
    assert found.contains(between, 0.95, robust=False)
    kernel = kernels.Scaled(kernels.Gaussian(0.8), 2.5)
    known = search.gradient_posterior(X, Y, mean=MEAN, scale=S, kernel=kernel, noise=0.01)
    assert known.scale_freedom is None


def test_units_do_not_matter():
    first = search.gradient_posterior(X, Y, mean=MEAN, scale=S)
    other = search.gradient_posterior(10 * X, 1e6 * Y - 7, mean=10 * MEAN, scale=10 * S)
    np.testing.assert_allclose(other.mean, 1e5 * first.mean, rtol=1e-5)
    np.testing.assert_allclose(other.covariance, 1e10 * first.covariance, rtol=1e-4, atol=1e-3)


def test_inside_a_program_it_is_the_same(x64):
    eager = search.gradient_posterior(X, Y, mean=MEAN, scale=S)
    found = jax.jit(lambda y: search.gradient_posterior(X, y, mean=MEAN, scale=S).mean)(Y)
    np.testing.assert_allclose(found, eager.mean, rtol=1e-6)


@pytest.mark.slow
def test_many_parameters_have_an_operator():
    few, many = RNG.normal(size=(2, 6, 2100))
    found = search.gradient_posterior(few, few[:, 0], mean=np.zeros(2100), scale=1.0)
    direction = many[0]
    slope, spread, _ = (np.asarray(v) for v in (found.mean @ direction, *_along(found, direction)))
    assert np.isfinite(slope)
    assert spread > 0


def _along(found, direction):
    return np.sqrt(direction @ np.asarray(found.covariance.multiply(direction))), None


WRONG = [
    ("parameters", {"parameters": X[0]}),
    ("parameters", {"parameters": np.full((M, n), np.nan)}),
    ("returns", {"returns": Y[:-1]}),
    ("returns", {"returns": np.full(M, np.inf)}),
    ("returns", {"returns": np.ones(M)}),
    ("returns", {"parameters": X[:1], "returns": Y[:1]}),
    ("mean", {"mean": np.zeros(3)}),
    ("scale", {"scale": 0.0}),
    ("scale", {"scale": -1.0}),
    ("noise", {"noise": 0.0}),
    ("kernel", {"kernel": kernels.Constant(1.0)}),
    ("kernel", {"kernel": kernels.Gaussian(-1.0)}),
]


@pytest.mark.parametrize(("name", "change"), WRONG)
def test_bad_input_is_named(name, change):
    given = {"parameters": X, "returns": Y, "mean": MEAN, "scale": S} | change
    with pytest.raises(ValueError, match=f"^{name}: "):
        search.gradient_posterior(given.pop("parameters"), given.pop("returns"), **given)


def test_duplicates_are_allowed():
    twice = np.concatenate([X, X])
    found = search.gradient_posterior(twice, np.concatenate([Y, Y]), mean=MEAN, scale=S)
    assert np.isfinite(found.mean).all()
