import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from oracle import problem, standard_errors

from bayespg import evidence, monte_carlo, quadrature
from bayespg._support.statistics import student_quantile
from bayespg.algebra.sparsification import Sparsify
from bayespg.fisher import Dense, LowRank
from bayespg.posterior import (
    Diagonal,
    Downdate,
    GradientPosterior,
    Multiple,
    component_statistics,
    direction_statistics,
)
from bayespg.posterior.statistics import left_over

M, n = 8, 2
DRAWS = 20_000


def make(M: int = M, n: int = n, seed: int = 0, **fields) -> GradientPosterior:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n))
    defaults = {
        "mean": rng.normal(size=n),
        "covariance": root @ root.T,
        "fisher": None,
        "influence": rng.normal(size=(M, n)) / M,
        "explained": np.array(0.8),
        "freedom": np.array(M - 2.0),
        "info": {},
    }
    return GradientPosterior(**(defaults | fields))


@pytest.fixture
def posterior() -> GradientPosterior:
    return make()


def student(influence, explained, freedom):
    """Spread, and degrees of freedom 2M / (kurtosis - 1) between 1 and what the fit left."""
    squares = (influence / explained) ** 2
    variance = squares.sum(0)
    kurtosis = len(squares) * (squares**2).sum(0) / variance**2
    return np.sqrt(variance), np.clip(
        np.minimum(2 * len(squares) / (kurtosis - 1), freedom), 1, len(squares) - 1
    )


def test_the_standard_deviation_is_the_root_of_the_diagonal(posterior):
    np.testing.assert_allclose(
        posterior.standard_deviation, np.sqrt(np.diag(posterior.covariance)), rtol=1e-12
    )


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_models_interval_is_normal(posterior, level):
    reach = scipy.stats.norm.ppf(0.5 + level / 2) * posterior.standard_deviation
    lower, upper = posterior.interval(level, robust=False)
    np.testing.assert_allclose(lower, posterior.mean - reach, rtol=1e-12)
    np.testing.assert_allclose(upper, posterior.mean + reach, rtol=1e-12)


@pytest.mark.parametrize("explained", [np.array(0.8), np.array([0.5, 0.9])])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_robust_interval_is_students_about_the_unshrunk_mean(level, explained):
    posterior = make(explained=explained)
    spread, freedom = student(posterior.influence, explained, posterior.freedom)
    reach = spread * scipy.stats.t.ppf(0.5 + level / 2, freedom)
    lower, upper = posterior.interval(level)
    np.testing.assert_allclose(lower, posterior.mean / explained - reach, rtol=1e-9)
    np.testing.assert_allclose(upper, posterior.mean / explained + reach, rtol=1e-9)


def test_the_robust_covariance_is_the_sum_of_outer_products(posterior):
    expected = sum(np.outer(d, d) for d in posterior.influence / posterior.explained)
    np.testing.assert_allclose(posterior.robust_covariance, expected, rtol=1e-12)


@pytest.mark.parametrize("robust", [True, False])
def test_intervals_widen_with_the_level(posterior, robust):
    widths = [np.subtract(*posterior.interval(level, robust=robust)[::-1]) for level in (0.5, 0.9)]
    assert (widths[0] < widths[1]).all()


@pytest.mark.parametrize("robust", [True, False])
def test_a_region_holds_its_centre_and_not_what_is_far_away(posterior, robust):
    centre = posterior.mean / (posterior.explained if robust else 1)
    assert posterior.contains(centre, 0.5, robust=robust)
    assert not posterior.contains(centre + 1e3, 0.99, robust=robust)


@pytest.mark.parametrize("level", [0.3, 0.9])
def test_the_models_region_is_the_chi_squared_ellipsoid(posterior, level):
    root = np.linalg.cholesky(posterior.covariance)
    radius = np.sqrt(scipy.stats.chi2.ppf(level, n))
    for angle in np.linspace(0, 2 * np.pi, 5):
        edge = radius * root @ [np.cos(angle), np.sin(angle)]
        assert posterior.contains(posterior.mean + 0.999 * edge, level, robust=False)
        assert not posterior.contains(posterior.mean + 1.001 * edge, level, robust=False)


def test_the_robust_region_is_a_ball_in_the_metric_of_fisher():
    """Its radius is the same in every direction of that metric."""
    G = problem(M, n).fisher
    posterior = make(fisher=Dense(jnp.asarray(G)))
    root = np.linalg.cholesky(G)
    D = np.linalg.solve(root, (posterior.influence / posterior.explained).T).T
    K = D @ D.T
    V, q = np.trace(K), np.diag(K)
    rank = np.clip(V**2 / ((np.sum(K**2) - np.sum(q**2)) * M / (M - 1)), 1, n)
    kurtosis = M * np.sum(q**2) / V**2
    freedom = np.clip(min(2 * M / max(kurtosis - 1, 1e-3), posterior.freedom), 1, M - 1)
    radius = np.sqrt(V * scipy.stats.f.ppf(0.9, rank, freedom))
    for angle in np.linspace(0, 2 * np.pi, 5):
        edge = radius * root @ [np.cos(angle), np.sin(angle)]
        centre = posterior.mean / posterior.explained
        assert posterior.contains(centre + 0.999 * edge, 0.9)
        assert not posterior.contains(centre + 1.001 * edge, 0.9)


def test_the_models_probability_uphill_is_normal(posterior):
    d = np.array([1.0, -2.0])
    z = posterior.mean @ d / np.sqrt(d @ posterior.covariance @ d)
    assert posterior.probability_uphill(d, robust=False) == pytest.approx(scipy.stats.norm.cdf(z))


def test_the_robust_probability_uphill_is_students(posterior):
    d = np.array([1.0, -2.0])
    spread, freedom = student((posterior.influence @ d)[:, None], 0.8, posterior.freedom)
    t = posterior.mean @ d / 0.8 / spread[0]
    assert posterior.probability_uphill(d) == pytest.approx(scipy.stats.t.cdf(t, freedom[0]))


@pytest.mark.parametrize("robust", [True, False])
def test_uphill_one_way_is_downhill_the_other_whatever_the_length(posterior, robust):
    d = np.array([0.3, 1.0])
    up = posterior.probability_uphill(d, robust=robust)
    assert posterior.probability_uphill(-d, robust=robust) == pytest.approx(1 - up)
    assert posterior.probability_uphill(100 * d, robust=robust) == pytest.approx(up)
    assert 0 < up < 1


def test_a_gradient_known_exactly_is_uphill_or_not():
    certain = make(covariance=np.zeros((n, n)), influence=np.zeros((M, n)), mean=np.array([1.0, 0]))
    assert certain.probability_uphill([1, 0]) == 1
    assert certain.probability_uphill([-1, 0]) == 0
    assert certain.probability_uphill([0, 1]) == 0.5


def test_natural_is_fisher_inverse_times_mean(posterior):
    G = problem(M, n).fisher
    with jax.enable_x64(True):
        known = make(fisher=Dense(jnp.asarray(G)))
    np.testing.assert_allclose(known.natural, np.linalg.solve(G, known.mean), rtol=1e-9)


def test_natural_without_a_fisher_matrix_is_refused(posterior):
    with pytest.raises(ValueError, match=r"^natural: .*fisher="):
        _ = posterior.natural


def test_samples_have_the_posteriors_moments(posterior):
    samples = posterior.sample(jax.random.key(0), DRAWS)
    assert samples.shape == (DRAWS, n)
    assert samples.dtype == np.float64
    assert standard_errors(samples, posterior.mean, posterior.covariance) < 4


def test_samples_repeat_with_their_key(posterior):
    first, again, other = (posterior.sample(jax.random.key(s), 3) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_samples_of_a_singular_covariance_stay_on_its_range():
    singular = make(covariance=np.ones((n, n)))
    away = singular.sample(jax.random.key(0), 5) - singular.mean
    np.testing.assert_allclose(away[:, 0], away[:, 1], atol=1e-7)


# Covariances too large to write down, written down.

d = 5
U, R, G = problem(3, d)
LOW = U.T @ U + np.eye(d)


def explained_root(G, scale: float):
    """Z with Z'Z = B C B' for unit noise."""
    root = np.linalg.cholesky(scale * U @ np.linalg.solve(G, U.T) + np.eye(len(U)))
    return np.linalg.solve(root, scale * U)


Z, Z_LOW = explained_root(G, 2.0), explained_root(LOW, 2.0)
LAZY = {
    "diagonal": (lambda: Diagonal(jnp.linspace(0.5, 2, d)), np.diag(np.linspace(0.5, 2, d))),
    "downdate": (lambda: Downdate(Multiple(Dense(jnp.asarray(G)), 2.0), Z), 2 * G - Z.T @ Z),
    "low rank": (
        lambda: Downdate(Multiple(LowRank(U, 1.0), 2.0), Z_LOW),
        2 * LOW - Z_LOW.T @ Z_LOW,
    ),
}


@pytest.fixture(params=LAZY)
def lazy(request):
    make, expected = LAZY[request.param]
    with jax.enable_x64(True):
        return make(), expected


@pytest.mark.usefixtures("x64")
def test_an_operator_acts_as_its_matrix(lazy):
    found, expected = lazy
    V = jnp.asarray(np.random.default_rng(0).normal(size=(2, d)))
    np.testing.assert_allclose(found.multiply(V), V @ expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.diagonal(), np.diag(expected), rtol=1e-9)
    assert np.linalg.eigvalsh(expected)[0] > 0


def test_an_operators_samples_have_its_moments(lazy):
    found, expected = lazy
    posterior = make(n=d, covariance=found)
    samples = posterior.sample(jax.random.key(1), DRAWS)
    assert standard_errors(samples, posterior.mean, expected) < 4


@pytest.mark.slow("diagonal", "low rank")
def test_an_operator_serves_every_question_but_the_models_region(lazy):
    found, expected = lazy
    operator, dense = (make(n=d, covariance=c) for c in (found, expected))
    direction = np.arange(1.0, d + 1)
    np.testing.assert_allclose(operator.standard_deviation, dense.standard_deviation, rtol=1e-9)
    for robust in (True, False):
        np.testing.assert_allclose(
            operator.interval(robust=robust), dense.interval(robust=robust), rtol=1e-9
        )
        assert operator.probability_uphill(direction, robust=robust) == pytest.approx(
            dense.probability_uphill(direction, robust=robust)
        )
    assert operator.contains(operator.mean / 0.8)
    with pytest.raises(ValueError, match="robust=True"):
        operator.contains(operator.mean, robust=False)


BIG = quadrature.models.LARGE + 2


@pytest.fixture(scope="module")
def big():
    """More parameters than an (n, n) covariance is written down for, and what it would be."""
    rng = np.random.default_rng(0)
    V, U = rng.normal(size=(3, BIG)), rng.normal(size=(4, BIG))
    with jax.enable_x64(True):
        fisher = LowRank(V, 0.5)
    return U, rng.normal(size=4), fisher, V.T @ V + 0.5 * np.eye(BIG)


@pytest.mark.slow("sparsify1")
@pytest.mark.parametrize("sparsify", [None, Sparsify(1.0, 3)])
def test_beyond_2048_parameters_model2_holds_an_operator_equal_to_the_matrix(big, sparsify):
    U, R, fisher, G = big
    found = quadrature.model2(U, R, fisher, noise=5.0, baseline=2.0, sparsify=sparsify)
    assert isinstance(found.covariance, Downdate)
    K = U @ np.linalg.solve(G, U.T)
    B = U.T
    if sparsify is not None:
        assert found.info["dictionary_size"] == 3
        A = K[:, :3] @ np.linalg.inv(K[:3, :3])
        K, B = A @ K[:3, :3] @ A.T, B[:, :3] @ A.T
    C = np.linalg.inv(K + 2 + 5 * np.eye(4))
    np.testing.assert_allclose(found.mean, B @ C @ R, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(
        found.standard_deviation**2, np.diag(G) - np.sum((B @ C) * B, 1), rtol=1e-7
    )
    direction = np.ones(BIG)
    spread = np.sqrt(direction @ G @ direction - direction @ B @ C @ B.T @ direction)
    assert found.probability_uphill(direction, robust=False) == pytest.approx(
        scipy.stats.norm.cdf(found.mean.sum() / spread), rel=1e-6
    )


def test_beyond_2048_parameters_model1_holds_a_diagonal(big):
    U, R, fisher, _ = big
    found = quadrature.model1(U, R, fisher, noise=5.0)
    assert isinstance(found.covariance, Diagonal)
    assert found.standard_deviation.shape == (BIG,)
    assert np.isfinite(found.mean).all()


# What paths leave of the prior.


def test_a_component_that_no_path_informs_has_the_priors_interval():
    U, R = np.array([[1.0, 0], [-1, 0], [2, 0], [0.5, 0]]), np.array([1.0, 2, 0, 3])
    found = evidence.model2(U, R, np.eye(2))
    own = found.standard_deviation[1]
    assert own == pytest.approx(np.sqrt(found.prior.diagonal()[1]))
    lower, upper = found.interval(0.95)
    reach = own * scipy.stats.t.ppf(0.975, 3)  # the scale is chosen from four returns
    np.testing.assert_allclose([lower[1], upper[1]], [-reach, reach], rtol=1e-9)
    assert found.robust_covariance[1, 1] == pytest.approx(own**2)
    assert found.contains([found.mean[0], own])
    assert not found.contains([found.mean[0], 100 * own])
    assert found.probability_uphill([0, 1]) == 0.5


@pytest.mark.usefixtures("x64")
def test_what_is_left_of_the_prior_is_the_covariance_of_what_the_mean_misses():
    """L = (A / e - I) B_0 (A / e - I)', for components, directions and operators."""
    U, R, G = problem(4, 6)
    found = quadrature.model2(U, R, G, noise=0.3, scale=2.0, baseline=np.inf)
    P = np.eye(4) - 1 / 4
    C = np.linalg.pinv(P @ (2 * U @ np.linalg.solve(G, U.T) + 0.3 * np.eye(4)) @ P)
    A = 2 * U.T @ C @ U @ np.linalg.inv(G)
    e = np.trace(A @ A) / np.trace(A)
    assert found.retained == pytest.approx(e)
    away = A / e - np.eye(6)
    L = away @ (2 * G) @ away.T
    np.testing.assert_allclose(eqx.filter_jit(left_over)(found, jnp.eye(6)), L, atol=1e-9)
    D = found.influence / e
    np.testing.assert_allclose(found.robust_covariance, D.T @ D + L, atol=1e-9)
    components, along = map(eqx.filter_jit, (component_statistics, direction_statistics))
    centre, spread, _ = components(found)
    np.testing.assert_allclose(spread**2, np.diag(D.T @ D + L), rtol=1e-9)
    np.testing.assert_allclose(centre, found.mean / e, rtol=1e-12)
    d = np.arange(6.0)
    assert along(found, d)[1] ** 2 == pytest.approx(d @ (D.T @ D + L) @ d)
    Z = np.linalg.cholesky(2 * G - np.asarray(found.covariance) + 1e-12 * np.eye(6)).T
    lazy = eqx.tree_at(
        lambda p: p.covariance, found, Downdate(Multiple(Dense(jnp.asarray(G)), 2.0), Z)
    )
    np.testing.assert_allclose(components(lazy)[1], spread, rtol=1e-6)
    assert along(lazy, d)[1] == pytest.approx(float(along(found, d)[1]))


@pytest.mark.slow
def test_a_component_without_paths_and_without_a_prior_is_unknown():
    U, R, _ = problem(6, 3)
    U = U * [1.0, 1.0, 0.0]
    G = np.diag([1.0, 1.0, 0.0])
    untried = np.where([True, True, False], U, -0.3)  # as of an arm that no path pulled
    for found in (
        monte_carlo.reinforce(U, R),
        monte_carlo.reinforce(U, R, baseline="mean"),
        monte_carlo.reinforce(untried, R, baseline="mean"),
        monte_carlo.reinforce(untried, R, baseline="best"),
        quadrature.model1(U, R, G),
        quadrature.model2(U, R, G),
    ):
        lower, upper = found.interval()
        np.testing.assert_array_equal(np.isinf(upper - lower), [False, False, True])
        assert "2            0   unknown" in str(found)


@pytest.mark.parametrize("baseline", [0.0, np.inf])
def test_equal_scores_and_a_singular_fisher_matrix_contain_the_mean(baseline):
    p = np.array([0.2, 0.3, 0.5])
    U, G = np.tile([0.8, -0.3, -0.5], (4, 1)), np.diag(p) - np.outer(p, p)
    found = quadrature.model2(U, [1.0, 2, 3, 5], G, baseline=baseline)
    for robust in (True, False):
        centre = found.mean / (found.retained if robust else 1)
        assert found.contains(centre, robust=robust)
        assert not found.contains(centre + 1e3 * U[0], robust=robust)
        # In units of the square roots of its diagonal this is orthogonal to the range.
        outside = np.diag(G if robust else found.covariance)
        assert found.contains(centre + 1e3 * outside, robust=robust)


@pytest.mark.slow
@pytest.mark.parametrize("M", [8, 16])
def test_intervals_of_a_softmax_hold_also_for_arms_that_were_not_pulled(M):
    """Ten arms, 60 batches of new problems: 600 components, of which up to half were not pulled.
    The standard error of a share of 0.95 over 60 batches is at most 0.028."""
    n, batches, rng = 10, 60, np.random.default_rng(M)

    def fit(p, arms, R):
        G = Dense(jnp.diag(p) - jnp.outer(p, p))
        return component_statistics(evidence.model2(jnp.eye(n)[arms] - p, R, G))

    p = np.exp(rng.normal(size=(batches, n)))
    p /= p.sum(1, keepdims=True)
    worth = rng.normal(size=(batches, n))
    arms = np.array([rng.choice(n, M, p=row) for row in p])
    R = np.take_along_axis(worth, arms, 1) + rng.normal(size=(batches, M))
    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(fit))(p, jnp.asarray(arms), R)
    centre, spread, freedom = map(np.asarray, found)
    truth = p * (worth - np.sum(p * worth, 1, keepdims=True))
    held = np.abs(centre - truth) <= spread * scipy.stats.t.ppf(0.975, freedom)
    pulled = np.array([np.isin(np.arange(n), row) for row in arms])
    assert held.mean() >= 0.93
    assert held[~pulled].mean() >= 0.93
    assert np.isfinite(spread).all()
    assert np.median(spread[~pulled] / np.abs(truth[~pulled])) < 20


@pytest.fixture(scope="module")
def several() -> list[GradientPosterior]:
    """Posteriors of different batches, of a model with a Fisher matrix."""
    batches = [problem(10, 3, seed=seed) for seed in range(4)]
    return [quadrature.model2(U, R, G, baseline=np.inf) for U, R, G in batches]


QUESTIONS = {
    "interval": lambda p: p.interval(0.9),
    "the model's interval": lambda p: p.interval(0.9, robust=False),
    "contains": lambda p: p.contains(np.zeros(3), 0.5),
    "the model contains": lambda p: p.contains(np.zeros(3), 0.5, robust=False),
    "uphill": lambda p: p.probability_uphill(),
    "uphill, natural": lambda p: p.probability_uphill(natural=True),
    "uphill, the model": lambda p: p.probability_uphill(robust=False),
    "uphill along a direction": lambda p: p.probability_uphill(np.array([1.0, 0.0, 2.0])),
    "episodes": lambda p: p.episodes_needed(0.99),
    "sample": lambda p: p.sample(jax.random.key(0), 5),
}


@pytest.fixture(scope="module")
def answers(several):
    """Of each posterior alone."""
    return {name: [ask(posterior) for posterior in several] for name, ask in QUESTIONS.items()}


@pytest.mark.slow("True")
@pytest.mark.parametrize("x64", [True, False])
def test_answers_are_the_same_inside_a_transformation(x64, several, answers):
    @jax.jit
    @jax.vmap
    def ask(posterior):
        return {name: ask(posterior) for name, ask in QUESTIONS.items()}

    with jax.enable_x64(x64):
        together = ask(jax.tree.map(lambda *x: np.stack(x), *several))
    dtype = np.float64 if x64 else np.float32
    for name, found in together.items():
        assert all(a.dtype in (dtype, bool) for a in jax.tree.leaves(found)), name
        for i, expected in enumerate(answers[name]):
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                if name == "sample" and not x64:  # other random numbers in the other precision
                    assert a[i].shape == np.shape(b)
                    continue
                tolerance = {"rtol": 1e-8 if x64 else 1e-3, "atol": 1e-4}
                np.testing.assert_allclose(a[i], b, **tolerance, err_msg=name)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_certain_directions_are_masked_inside_a_transformation(level, several):
    together = jax.tree.map(lambda *x: np.stack(x), *several)
    found = jax.jit(jax.vmap(lambda p, level: p.certain(level), (0, None)))(together, level)
    for i, posterior in enumerate(several):
        expected = posterior.certain(level)
        assert np.sum(found.known[i]) == len(expected.slopes)
        rows = [np.asarray(row[i])[np.asarray(found.known[i])] for row in found]
        np.testing.assert_allclose(rows[1], expected.slopes, rtol=1e-2, atol=1e-3)
    assert np.asarray(found.known).any()


def test_the_level_of_an_interval_may_be_traced(posterior):
    upper = jax.jit(jax.vmap(lambda level: posterior.interval(level).upper))
    found = upper(jnp.array([0.5, 0.95]))
    for row, level in zip(found, (0.5, 0.95), strict=True):
        np.testing.assert_allclose(row, posterior.interval(level).upper, rtol=1e-4)


@pytest.mark.parametrize("bias", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("M", [pytest.param(M, marks=pytest.mark.slow) for M in (4, 64)] + [16])
def test_the_bias_that_unbiased_gradients_show_is_part_of_an_interval(M, bias):
    """Components of less noise and with a bias, beside unbiased ones. The standard error of a
    coverage of 0.95 over 100 batches of 10 components is 0.007, that of 0.5 is 0.016; without a
    bias intervals are wide, because the bias is not known to be zero. Their quantiles are those of
    the paths that count, which are fewer than all even where noise is normal."""
    rng = np.random.default_rng(M)
    noise, shift = rng.normal(size=(100, M, 10)), bias * rng.normal(size=(100, 1, 10))
    few = 0.3 * noise + 0.2 * rng.normal(size=noise.shape) + shift

    def judged(C, H):
        alone = monte_carlo.average(C)
        both = dataclasses.replace(alone, unbiased=H, added=C, bias_shows=True)
        return component_statistics(both), component_statistics(monte_carlo.average(H))

    found = jax.jit(jax.vmap(judged))(jnp.asarray(few), jnp.asarray(noise))
    held, width = {}, {}
    for level in (0.5, 0.95):
        for name, (centre, spread, freedom) in zip(("ours", "plain"), found, strict=True):
            reach = spread * student_quantile(level, np.asarray(freedom))
            held[name, level], width[name] = np.mean(np.abs(centre) <= reach), np.median(reach)
    assert 0.93 - 3 * 0.007 < held["ours", 0.95] < 0.995
    assert 0.45 - 3 * 0.016 < held["ours", 0.5] < (0.58 if bias == 1 else 0.65) + 3 * 0.016
    assert width["ours"] < {4: 1.5, 16: 1.25, 64: 1.1}[M] * width["plain"]


def test_a_posterior_that_nothing_judges_has_infinite_intervals():
    """As where all episodes return the same: influences are then errors of fitted values."""
    rng = np.random.default_rng(0)
    C = rng.normal(size=(4, 3))
    posterior = dataclasses.replace(
        monte_carlo.average(C), unbiased=np.zeros((4, 3)), added=C, bias_shows=True
    )
    assert posterior.probability_uphill() == 0.5
    assert np.isinf(posterior.interval(0.95)).all()
