import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import assert_equal_trees, problem

from bayespg import fisher, quadrature
from bayespg.algebra.sparsification import Sparsify
from bayespg.quadrature import model1, model2

INF = float("inf")
M, n = 8, 2
FORMS = ["dual", "weight"]
SPREAD = np.linspace(0.05, 0.4, M)
CORRELATED = 0.1 * np.eye(M) + 0.02 * np.ones((M, M))
NOISE1 = {"one": 0.1, "each path": SPREAD, "each component": np.outer(SPREAD, [1, 3])}
NOISE2 = {"one": 0.1, "each path": SPREAD}
SCALES = {"unit": 1.0, "one": 2.5, "each component": np.array([0.5, 3.0])}


def assert_moments(posterior, expected, rtol=1e-8):
    np.testing.assert_allclose(posterior.mean, expected.mean, rtol=rtol)
    np.testing.assert_allclose(posterior.covariance, expected.covariance, rtol=rtol, atol=1e-9)
    np.testing.assert_allclose(posterior.info["evidence"], expected.log_evidence, rtol=rtol)


# Models 1 and 2 against the printed formulas.


@pytest.mark.slow(
    *(f"each path-{scale}-{form}" for scale in SCALES for form in FORMS),
    *(f"one-each component-{form}" for form in FORMS),
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("noise", NOISE1.values(), ids=NOISE1)
def test_model1_is_the_papers(batch, noise, scale, form):
    assert_moments(
        model1(*batch, noise=noise, scale=scale, form=form), oracle.model1(*batch, noise, scale)
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("baseline", [0.0, 4.0, INF])
@pytest.mark.parametrize("noise", NOISE2.values(), ids=NOISE2)
def test_model2_is_the_papers_plus_a_constant(batch, noise, baseline, scale, form):
    assert_moments(
        model2(*batch, noise=noise, baseline=baseline, scale=scale, form=form),
        oracle.model2(*batch, noise, baseline, scale),
    )


@pytest.mark.parametrize("baseline", [0.0, 4.0, INF])
def test_model2_takes_noise_that_paths_share(batch, baseline):
    assert_moments(
        model2(*batch, noise=CORRELATED, baseline=baseline),
        oracle.model2(*batch, CORRELATED, baseline),
    )


@pytest.mark.parametrize("model", ["model1", "model2"])
def test_fewer_paths_than_parameters_are_enough(wide, model):
    assert_moments(getattr(quadrature, model)(*wide, noise=0.1), getattr(oracle, model)(*wide, 0.1))


@pytest.mark.parametrize("model", ["model1", "model2"])
def test_one_path_is_enough(model):
    one = problem(1, n)
    assert_moments(getattr(quadrature, model)(*one), getattr(oracle, model)(*one))


@pytest.mark.parametrize("model", [model1, model2])
def test_dual_and_weight_space_agree_to_rounding(batch, model):
    dual, weight = (model(*batch, noise=0.1, form=form) for form in FORMS)
    for field in ("mean", "covariance", "influence", "explained", "freedom"):
        np.testing.assert_allclose(
            getattr(dual, field), getattr(weight, field), rtol=1e-9, atol=1e-12
        )
    assert dual.info["evidence"] == pytest.approx(weight.info["evidence"])


def test_without_noise_model2_interpolates(wide):
    U, R, G = wide
    posterior = model2(U, R, G, noise=0.0)
    np.testing.assert_allclose(U @ posterior.natural, R, rtol=1e-9)


def test_explained_and_freedom_are_their_traces(batch):
    U, R, G = batch
    posterior = model2(U, R, G, noise=SPREAD, baseline=INF)
    C = oracle.inverse(oracle.fisher_kernel(U, G) + np.diag(SPREAD), INF)
    explained = np.trace(np.linalg.solve(G, U.T @ C @ U)) / n
    np.testing.assert_allclose(posterior.explained, explained, rtol=1e-9)
    np.testing.assert_allclose(posterior.freedom, np.trace(np.diag(SPREAD) @ C), rtol=1e-9)


# Leaving one path out.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noise", NOISE1.values(), ids=NOISE1)
def test_model1s_influence_equals_refitting(batch, noise, form):
    posterior = model1(*batch, noise=noise, form=form)
    for i in range(M):
        U, R, noise_ = oracle.without(i, batch.scores, batch.returns, noise)
        refit = oracle.model1(U, R, batch.fisher, noise_)
        np.testing.assert_allclose(posterior.influence[i], posterior.mean - refit.mean, atol=1e-8)


@pytest.mark.parametrize("baseline", [0.0, 4.0, INF])
@pytest.mark.parametrize("noise", [*NOISE2.values(), CORRELATED], ids=[*NOISE2, "shared"])
def test_model2s_influence_equals_refitting(batch, noise, baseline):
    posterior = model2(*batch, noise=noise, baseline=baseline)
    for i in range(M):
        U, R, noise_ = oracle.without(i, batch.scores, batch.returns, noise)
        refit = oracle.model2(U, R, batch.fisher, noise_, baseline)
        np.testing.assert_allclose(posterior.influence[i], posterior.mean - refit.mean, atol=1e-8)


def test_an_average_fisher_matrix_loses_the_path_too(batch):
    """The gradient is G w: without path i, w of the refit and G averaged over the others."""
    U, R, _ = batch
    with jax.enable_x64(True):
        average = fisher.monte_carlo(jnp.asarray(U), damping=0.0)
    G = U.T @ U / M
    posterior = model2(U, R, average, noise=0.1, baseline=INF)
    for i in range(M):
        U_, R_ = oracle.without(i, U, R)
        w = np.linalg.solve(G, oracle.model2(U_, R_, G, 0.1, INF).mean)
        expected = posterior.mean - U_.T @ U_ / (M - 1) @ w
        np.testing.assert_allclose(posterior.influence[i], expected, atol=1e-8)


# Sparsification, Proposition 5.

FOUR = problem(M, 4)
DROPS = {"model1": 20.0, "model2": 3.0}


@pytest.mark.parametrize("model", DROPS)
def test_threshold_zero_equals_dense(batch, model):
    run = getattr(quadrature, model)
    dense, sparse = (run(*batch, noise=0.1, sparsify=s) for s in (None, Sparsify(0.0)))
    for field in ("mean", "covariance", "influence", "explained", "freedom"):
        np.testing.assert_allclose(
            getattr(sparse, field), getattr(dense, field), rtol=1e-7, atol=1e-9
        )
    assert sparse.info["evidence"] == pytest.approx(dense.info["evidence"])


@pytest.mark.slow("model1-one", "model2-one")
@pytest.mark.parametrize("noise", NOISE2.values(), ids=NOISE2)
@pytest.mark.parametrize("model", DROPS)
def test_a_dictionary_that_drops_members_gives_proposition_5(model, noise):
    threshold = DROPS[model]
    kernel = oracle.quadratic_kernel if model == "model1" else oracle.fisher_kernel
    members, _ = oracle.dictionary(kernel(FOUR.scores, FOUR.fisher), threshold)
    assert 1 < len(members) < (4 if model == "model2" else M)
    posterior = getattr(quadrature, model)(*FOUR, noise=noise, sparsify=Sparsify(threshold))
    assert posterior.info["dictionary_size"] == len(members)
    assert posterior.info["dictionary_refused"] == 0
    assert_moments(posterior, getattr(oracle, f"sparse_{model}")(*FOUR, threshold, noise))


def test_a_sparse_process_takes_a_baseline_and_a_scale():
    U, R, G = FOUR
    K = oracle.fisher_kernel(U, G)
    members, A = oracle.dictionary(K, DROPS["model2"])
    K_, B_ = A @ K[np.ix_(members, members)] @ A.T, U[members].T @ A.T
    posterior = model2(
        *FOUR, noise=SPREAD, baseline=INF, scale=3.0, sparsify=Sparsify(DROPS["model2"])
    )
    expected = oracle.condition(3 * K_, 3 * B_, 3 * G, R, np.diag(SPREAD), INF)
    assert_moments(posterior, expected)


def test_a_sparse_influence_equals_refitting_with_the_same_dictionary():
    U, R, G = FOUR
    K = oracle.fisher_kernel(U, G)
    members, A = oracle.dictionary(K, DROPS["model2"])
    K_, B_ = A @ K[np.ix_(members, members)] @ A.T, U[members].T @ A.T
    posterior = model2(*FOUR, noise=SPREAD, sparsify=Sparsify(DROPS["model2"]))
    for i in range(M):
        K_i, noise, y = oracle.without(i, K_, SPREAD, R)
        refit = oracle.condition(K_i, np.delete(B_, i, 1), G, y, np.diag(noise))
        np.testing.assert_allclose(posterior.influence[i], posterior.mean - refit.mean, atol=1e-8)


def test_each_component_of_a_sparse_model1_has_its_own_noise():
    noise = np.outer(SPREAD, [1, 3, 1, 2])
    posterior = model1(*FOUR, noise=noise, sparsify=Sparsify(DROPS["model1"]))
    for j in range(4):
        expected = oracle.sparse_model1(*FOUR, DROPS["model1"], noise[:, j])
        np.testing.assert_allclose(posterior.mean[j], expected.mean[j], rtol=1e-8)
        np.testing.assert_allclose(posterior.covariance[j, j], expected.covariance[j, j], rtol=1e-8)


@pytest.mark.slow("model1")
@pytest.mark.parametrize("model", [model1, model2])
def test_a_full_dictionary_says_so(model):
    posterior = model(*FOUR, noise=0.1, sparsify=Sparsify(0.1, capacity=2))
    assert posterior.info["dictionary_size"] == 2
    assert posterior.info["dictionary_refused"] > 0
    assert posterior.info["dictionary_residual"] > 0.1
    assert np.linalg.eigvalsh(posterior.covariance)[0] > 0


# Invariants.

bounded = st.floats(-3, 3, allow_subnormal=False)
seeds = st.integers(0, 10_000)


@given(seed=seeds, noise=st.floats(1e-3, 10), baseline=st.sampled_from([0.1, INF]))
def test_model2s_covariance_is_positive_and_at_most_the_prior(seed, noise, baseline):
    U, R, G = problem(M, n, seed)
    posterior = model2(U, R, G, noise=noise, baseline=baseline)
    tolerance = 1e-9 * np.trace(G)
    assert np.linalg.eigvalsh(posterior.covariance)[0] >= -tolerance
    assert np.linalg.eigvalsh(G - posterior.covariance)[0] >= -tolerance
    assert 0 <= posterior.explained <= 1
    np.testing.assert_allclose(posterior.covariance, posterior.covariance.T, atol=tolerance)


@given(seed=seeds, noise=st.floats(1e-3, 10))
def test_model1s_variance_is_positive_and_at_most_the_prior(seed, noise):
    variances = np.diag(model1(*problem(M, n, seed), noise=noise).covariance)
    assert (variances > 0).all()
    assert (variances <= 1 + n).all()


@given(seed=seeds, T=st.tuples(bounded, bounded, bounded, bounded))
def test_reparameterisation_transforms_the_gradient_as_it_should(seed, T):
    T = np.reshape(T, (n, n))
    assume(abs(np.linalg.det(T)) > 0.1)
    U, R, G = problem(M, n, seed)
    for model, options in ((model1, {}), (model2, {"baseline": INF})):
        plain = model(U, R, G, noise=0.1, **options)
        turned = model(U @ T, R, T.T @ G @ T, noise=0.1, **options)
        scale = np.abs(plain.mean).max()
        np.testing.assert_allclose(turned.mean, T.T @ plain.mean, atol=1e-7 * scale)
        if model is model2:
            np.testing.assert_allclose(T @ turned.natural, plain.natural, atol=1e-6 * scale)
            np.testing.assert_allclose(
                turned.covariance, T.T @ plain.covariance @ T, atol=1e-8 * np.trace(G)
            )


@given(seed=seeds, shift=st.floats(-1e4, 1e4))
def test_a_flat_baseline_makes_model2_blind_to_a_shift_of_the_returns(seed, shift):
    U, R, G = problem(M, n, seed)
    here, there = (model2(U, r, G, noise=0.1, baseline=INF) for r in (R, R + shift))
    np.testing.assert_allclose(there.mean, here.mean, atol=1e-8)
    np.testing.assert_allclose(there.covariance, here.covariance)
    np.testing.assert_allclose(there.influence, here.influence, atol=1e-8)


@given(seed=seeds, factor=st.floats(-100, 100))
def test_the_mean_is_linear_in_the_returns(seed, factor):
    U, R, G = problem(M, n, seed)
    for model in (model1, model2):
        np.testing.assert_allclose(
            model(U, factor * R, G, noise=0.1).mean,
            factor * model(U, R, G, noise=0.1).mean,
            rtol=1e-9,
            atol=1e-9,
        )


@given(seed=seeds, order=st.permutations(range(M)))
def test_the_order_of_paths_does_not_matter(seed, order):
    U, R, G = problem(M, n, seed)
    for model in (model1, model2):
        here, there = model(U, R, G, noise=0.1), model(U[order], R[order], G, noise=0.1)
        np.testing.assert_allclose(there.mean, here.mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(there.influence, here.influence[order], atol=1e-8)


@given(seed=seeds)
def test_natural_is_fisher_inverse_times_mean(seed):
    U, R, G = problem(M, n, seed)
    for model in (model1, model2):
        posterior = model(U, R, G, noise=0.1)
        np.testing.assert_allclose(G @ posterior.natural, posterior.mean, rtol=1e-9, atol=1e-9)


@given(seed=seeds, c=st.floats(0.01, 100))
def test_scaling_kernel_and_noise_together_scales_the_covariance_only(seed, c):
    U, R, G = problem(M, n, seed)
    for model in (model1, model2):
        plain, scaled = model(U, R, G, noise=0.1), model(U, R, G, noise=0.1 * c, scale=c)
        np.testing.assert_allclose(scaled.mean, plain.mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(scaled.covariance, c * plain.covariance, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("units", [np.array([1e-12, 1e12]), np.array([1e6, 1e-6])])
def test_units_of_the_parameters_do_not_matter(batch, units):
    U, R, G = batch
    plain = model2(U, R, G, noise=0.1, baseline=INF)
    scaled = model2(U * units, R, G * np.outer(units, units), noise=0.1, baseline=INF)
    np.testing.assert_allclose(scaled.mean / units, plain.mean, rtol=1e-8)
    np.testing.assert_allclose(scaled.natural * units, plain.natural, rtol=1e-8)


# Inside transformations.

ESTIMATES = {
    "model1": lambda U, R, G: model1(U, R, G, noise=0.1),
    "model1 sparse": lambda U, R, G: model1(U, R, G, noise=0.1, sparsify=Sparsify(0.5)),
    "model2": lambda U, R, G: model2(U, R, G, noise=0.1, baseline=INF),
    "model2 dual": lambda U, R, G: model2(U, R, G, noise=0.1, form="dual"),
}


@pytest.mark.slow("model1 sparse", "model2 dual")
@pytest.mark.parametrize("estimate", ESTIMATES.values(), ids=ESTIMATES)
def test_jit_and_vmap_equal_the_eager_answer(estimate):
    batches = [problem(M, n, seed) for seed in range(3)]
    eager = [estimate(*batch) for batch in batches]
    stacked = [np.stack(field) for field in zip(*batches, strict=True)]
    with jax.enable_x64(True):
        assert_equal_trees(jax.jit(estimate)(*batches[0]), eager[0])
        together = jax.jit(jax.vmap(estimate))(*stacked)
    assert_equal_trees(together, jax.tree.map(lambda *leaves: np.stack(leaves), *eager))


def test_hyperparameters_may_be_traced(batch):
    def estimate(noise, baseline, scale):
        return model2(*batch, noise=noise, baseline=baseline, scale=scale)

    with jax.enable_x64(True):
        for baseline in (0.0, 4.0, INF):
            found = jax.jit(estimate)(0.1, baseline, 2.0)
            assert_equal_trees(found, estimate(0.1, baseline, 2.0))


@pytest.mark.parametrize("baseline", [4.0])
def test_the_evidence_can_be_differentiated(batch, baseline):
    def evidence(noise):
        return model2(*batch, noise=noise, baseline=baseline).info["evidence"]

    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(evidence))(0.3)
    expected = (evidence(0.3 + 1e-5) - evidence(0.3 - 1e-5)) / 2e-5
    assert slope == pytest.approx(expected, rel=1e-5)


def test_inside_jit_the_caller_chooses_the_precision(batch):
    arrays = [jnp.asarray(a) for a in batch]
    found = jax.jit(ESTIMATES["model2"])(*arrays)
    assert found.mean.dtype == jnp.float32
    np.testing.assert_allclose(found.mean, ESTIMATES["model2"](*batch).mean, rtol=1e-3)


# A prior of the gradient from elsewhere.

U, R, G = problem(M, n)


def known_prior(n, seed=3):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n))
    return rng.normal(size=n), A @ A.T + 0.5 * np.eye(n)


def gaussian(U, y, noise, G, m, S):
    """The posterior of g = G w with g ~ N(m, S) and y = U w + noise, by conditioning a joint
    Gaussian."""
    W = np.linalg.inv(G)
    C = U @ W @ S @ W @ U.T + noise
    cross = S @ W @ U.T
    gain = np.linalg.solve(C, cross.T).T
    return m + gain @ (y - U @ W @ m), S - gain @ cross.T


@pytest.mark.parametrize("form", ["dual", "weight"])
def test_a_prior_of_the_gradient_is_updated_by_bayes_rule(form):
    m, S = known_prior(n)
    found = model2(U, R, G, noise=0.3, form=form, prior_mean=m, prior_covariance=S)
    mean, covariance = gaussian(U, R, 0.3 * np.eye(M), G, m, S)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.natural, np.linalg.solve(G, mean), rtol=1e-8)
    lower, upper = found.interval(0.95, robust=False)
    np.testing.assert_allclose((lower + upper) / 2, mean, rtol=1e-8)


def test_influences_are_changes_of_the_mean_with_a_prior_too():
    m, S = known_prior(n)
    prior = {"noise": 0.3, "prior_mean": m, "prior_covariance": S}
    found = model2(U, R, G, **prior)
    without = model2(np.delete(U, 2, 0), np.delete(R, 2), G, **prior)
    np.testing.assert_allclose(found.influence[2], found.mean - without.mean, rtol=1e-6)


def test_a_prior_of_zero_mean_and_scale_g_is_the_usual_one():
    usual = model2(U, R, G, noise=0.3, scale=2.0)
    same = model2(U, R, G, noise=0.3, prior_mean=np.zeros(n), prior_covariance=2.0 * G)
    np.testing.assert_allclose(same.mean, usual.mean, rtol=1e-8)
    np.testing.assert_allclose(same.covariance, usual.covariance, rtol=1e-7, atol=1e-10)


def test_much_data_outweighs_a_wrong_prior_and_little_does_not():
    m, S = 100 * np.ones(n), 1e-6 * np.eye(n)
    sure = model2(U, R, G, noise=0.3, prior_mean=m, prior_covariance=S)
    np.testing.assert_allclose(sure.mean, m, rtol=1e-3)
    vague = model2(U, R, G, noise=1e-3, prior_mean=m, prior_covariance=1e8 * np.eye(n))
    np.testing.assert_allclose(vague.mean, G @ np.linalg.lstsq(U, R)[0], rtol=1e-3)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"prior_mean": np.zeros(n + 1)}, "^prior_mean: "),
        ({"prior_mean": np.full(n, np.nan)}, "^prior_mean: "),
        ({"prior_covariance": -np.eye(n)}, "^prior_covariance: not positive"),
        ({"prior_covariance": np.zeros((n, n))}, "^prior_covariance: expected a regular"),
        ({"prior_covariance": np.eye(n), "scale": 2.0}, "^scale: has no effect"),
    ],
)
def test_a_bad_prior_is_named(changed, says):
    with pytest.raises(ValueError, match=says):
        model2(U, R, G, noise=0.3, **changed)
