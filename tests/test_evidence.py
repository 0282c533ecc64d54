import jax
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import problem

from bayespg import evidence, fisher, quadrature
from bayespg._support.precision import in_float64
from bayespg.fisher import Dense
from bayespg.posterior import component_statistics

INF = float("inf")
M, n = 8, 2
BASELINES = [0.0, INF, None]
seeds = st.integers(0, 10_000)

spectrum = in_float64(evidence.spectrum)
profile = in_float64(evidence.profile)


def log_evidence(batch, scale, noise, baseline) -> float:
    U, R, G = batch
    S = scale * oracle.fisher_kernel(U, G) + noise * np.eye(len(R))
    return oracle.log_evidence(R, S, float(baseline))


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_evidence_reported_is_that_of_the_choice(batch, baseline):
    choice = evidence.choose_model2(*batch, baseline=baseline)
    expected = log_evidence(batch, choice.scale, choice.noise, choice.baseline)
    assert choice.log_evidence == pytest.approx(expected, rel=1e-9)
    posterior = quadrature.model2(
        *batch, scale=choice.scale, noise=choice.noise, baseline=choice.baseline
    )
    assert posterior.info["evidence"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("baseline", BASELINES)
@given(seed=seeds, spread=st.floats(-2, 2))
def test_no_other_hyperparameters_with_enough_signal_have_more_evidence(baseline, seed, spread):
    rng = np.random.default_rng(seed)
    U, R, G = problem(M, n, seed)
    batch = U, R + 10**spread * rng.normal(size=M), G
    choice = evidence.choose_model2(*batch, baseline=baseline)
    noises = np.var(batch[1]) * 10 ** rng.uniform(-2, 1, 30)
    ratios = evidence.SIGNAL / M * 10 ** rng.uniform(0, 4, 30)
    others = 10 ** rng.uniform(-4, 4, 30) if baseline is None else np.full(30, baseline)
    for s2, ratio, v in zip(noises, ratios, others, strict=True):
        assert choice.log_evidence >= log_evidence(batch, ratio * s2, s2, v * s2) - 1e-6
    assert choice.scale / choice.noise >= evidence.SIGNAL / M * (1 - 1e-9)


def test_where_the_signal_is_held_up_the_baseline_is_the_best_for_it():
    """Returns without a slope, so that c/s^2 stays at its least value."""
    rng = np.random.default_rng(11)
    U, _, G = problem(M, n, 11)
    R = rng.normal(size=M) * 10 ** rng.uniform(-1, 1) + 3 * rng.normal()
    choice = evidence.choose_model2(U, R, G, baseline=None)
    least = evidence.SIGNAL / M
    assert choice.scale / choice.noise == pytest.approx(least)
    found = spectrum(U @ np.linalg.inv(np.linalg.cholesky(G)).T, R)
    others = [profile(found, np.array(least), np.array(10**w))[0] for w in np.linspace(-4, 4, 81)]
    assert choice.log_evidence >= max(others) - 1e-6


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_choice_follows_the_units_of_the_returns(batch, baseline):
    U, R, G = batch
    here, there = (evidence.choose_model2(U, c * R, G, baseline=baseline) for c in (1, 100))
    assert there.scale == pytest.approx(1e4 * here.scale)
    assert there.noise == pytest.approx(1e4 * here.noise)


@given(seed=seeds, shift=st.floats(-1e3, 1e3))
def test_with_a_flat_baseline_a_shift_of_the_returns_changes_nothing(seed, shift):
    U, R, G = problem(M, n, seed)
    here, there = (evidence.choose_model2(U, r, G) for r in (R, R + shift))
    np.testing.assert_allclose(there.log_evidence, here.log_evidence, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shift", [1e6, -1e6])
def test_not_even_a_shift_that_is_large_beside_the_spread(batch, shift):
    """Rounding of 1e6 is 1e-10; the floor of the noise must not be 1e-10 times its square."""
    U, R, G = batch
    here, there = (evidence.choose_model2(U, r, G) for r in (R, R + shift))
    np.testing.assert_allclose(there.noise, here.noise, rtol=1e-6)
    np.testing.assert_allclose(there.scale, here.scale, rtol=1e-6)
    assert there.log_evidence == pytest.approx(float(here.log_evidence), rel=1e-6)
    found, expected = (evidence.model2(U, r, G).mean for r in (R + shift, R))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_the_units_of_the_parameters_do_not_matter(batch):
    U, R, G = batch
    D = np.array([1e-3, 1e4])
    here = evidence.choose_model2(U, R, G)
    there = evidence.choose_model2(U * D, R, G * np.outer(D, D))
    np.testing.assert_allclose(there, here, rtol=1e-7)


def test_true_hyperparameters_are_found_from_many_paths():
    """2000 paths: noise variance 0.25 has a standard error of 0.25 sqrt(2 / 2000)."""
    rng = np.random.default_rng(0)
    U, _, G = problem(2000, n)
    R = (
        5
        + U @ np.linalg.solve(np.linalg.cholesky(G).T, rng.normal(size=n))
        + rng.normal(size=2000) / 2
    )
    choice = evidence.choose_model2(U, R, G)
    assert abs(choice.noise - 0.25) < 4 * 0.25 * np.sqrt(2 / 2000)


@pytest.mark.slow
def test_model1s_choice_is_made_component_by_component(batch):
    U, R, G = batch
    choice = evidence.choose_model1(*batch)
    assert choice.scale.shape == choice.noise.shape == (n,)
    noise = np.broadcast_to(choice.noise, (M, n))
    posterior = quadrature.model1(*batch, scale=choice.scale, noise=noise)
    assert posterior.info["evidence"] == pytest.approx(float(choice.log_evidence), rel=1e-9)
    K = oracle.quadratic_kernel(U, G)
    rng = np.random.default_rng(0)
    best = 0.0
    for j in range(n):
        y = R * U[:, j]
        best += max(
            oracle.log_evidence(y, ratio * s2 * K + s2 * np.eye(M))
            for s2 in np.var(y) * 10 ** rng.uniform(-3, 1, 15)
            for ratio in evidence.SIGNAL / M * 10 ** rng.uniform(0, 4, 15)
        )
    assert choice.log_evidence >= best


@pytest.mark.parametrize("shape", [(8, 2), (3, 4)])
@pytest.mark.parametrize("baseline", [0.0, 0.7, INF])
def test_the_profile_is_the_evidence_at_its_best_noise(shape, baseline):
    U, R, G = problem(*shape)
    Psi = U @ np.linalg.inv(np.linalg.cholesky(G)).T
    value, s2 = profile(spectrum(Psi, R), np.array(1.3), np.array(baseline))
    K = 1.3 * oracle.fisher_kernel(U, G) + np.eye(len(R))

    def at(noise):
        return oracle.log_evidence(R, noise * K, noise * baseline)

    assert value == pytest.approx(at(s2), rel=1e-9)
    assert value >= max(at(0.99 * s2), at(1.01 * s2))


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("returns", ["constant", "zero", "noiseless"])
def test_returns_without_noise_have_a_finite_choice(batch, returns, baseline):
    U, _, G = batch
    R = {"constant": np.full(M, 3.0), "zero": np.zeros(M), "noiseless": U @ [1.0, 2.0]}[returns]
    choice = evidence.choose_model2(U, R, G, baseline=baseline)
    assert choice.noise > 0
    assert choice.scale > 0
    assert np.isfinite([choice.scale, choice.noise, choice.log_evidence]).all()


@pytest.mark.parametrize("model", [evidence.model1, evidence.model2])
def test_equal_returns_say_nothing_of_the_gradient(batch, model):
    U, _, G = batch
    posterior = model(U, np.full(M, 3.0), G)
    assert posterior.probability_uphill() == 0.5
    assert not np.any(posterior.mean)
    assert np.isinf(posterior.interval(0.95)).all()


def test_noiseless_returns_give_the_exact_gradient(batch):
    U, _, G = batch
    w = np.array([1.0, 2.0])
    choice = evidence.choose_model2(U, 5 + U @ w, G)
    posterior = quadrature.model2(
        U, 5 + U @ w, G, scale=choice.scale, noise=choice.noise, baseline=choice.baseline
    )
    np.testing.assert_allclose(posterior.mean, G @ w, rtol=1e-4)


CHOICES = {
    "model1": evidence.choose_model1,
    "model2": evidence.choose_model2,
    "model2, baseline too": lambda U, R, G: evidence.choose_model2(U, R, G, baseline=None),
}


@pytest.mark.slow("model1", "model2")
@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
def test_jit_and_vmap_equal_the_eager_answer(choose):
    batches = [problem(M, n, seed) for seed in range(3)]
    eager = [choose(*batch) for batch in batches]
    stacked = [np.stack(field) for field in zip(*batches, strict=True)]
    with jax.enable_x64(True):
        alone = jax.jit(choose)(*batches[0])
        together = jax.jit(jax.vmap(choose))(*stacked)
    for found, expected in (
        (alone, eager[0]),
        (together, jax.tree.map(lambda *leaves: np.stack(leaves), *eager)),
    ):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_one_path_is_refused():
    with pytest.raises(ValueError, match="two or more"):
        evidence.choose_model2(np.ones((1, 2)), np.ones(1), np.eye(2))


def test_returns_and_scores_that_vanish_leave_numbers(x64):
    """A policy that no longer explores: scores whose squares are below the least number."""
    U, R = 1e-159 * np.ones((4, 2)), np.array([1.0, 2.0, 1.0, 1.0])
    found = jax.jit(evidence._choose_model1)(U, R, Dense(np.zeros((2, 2))))
    assert all(np.isfinite(x).all() for x in found)
    assert (np.asarray(found.noise) > 0).all()


# Without an n x n array.


@pytest.mark.parametrize("model", ["model1", "model2"])
def test_the_posterior_is_that_of_the_choice(batch, model):
    U, R, G = batch
    choice = getattr(evidence, f"choose_{model}")(U, R, G)
    options = {"scale": choice.scale, "noise": choice.noise, "baseline": choice.baseline}
    if model == "model1":
        options = {"scale": choice.scale, "noise": np.broadcast_to(choice.noise, U.shape)}
    expected = getattr(quadrature, model)(U, R, G, **options)
    found = getattr(evidence, model)(U, R, G)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-6, atol=1e-9)


@pytest.mark.slow("40")
@pytest.mark.parametrize("paths", [5, 40])
def test_model1_with_one_noise_per_component_is_the_same_in_every_form(paths):
    """By one spectrum of K for all components, by one factorisation for each, and by features."""
    U, R, G = problem(paths, n)
    scale, noise = np.array([0.5, 2.0]), np.broadcast_to([0.1, 0.3], U.shape)
    slightly = noise * (1 + 1e-12 * np.arange(paths)[:, None])  # not the same for all paths
    spectral, each, weight = (
        quadrature.model1(U, R, G, noise=s2, scale=scale, form=form)
        for s2, form in ((noise, "dual"), (slightly, "dual"), (noise, "weight"))
    )
    for field in ("mean", "covariance", "influence", "explained", "freedom"):
        expected = getattr(each, field)
        np.testing.assert_allclose(getattr(spectral, field), expected, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(getattr(weight, field), expected, rtol=1e-6, atol=1e-9)
    assert spectral.info["evidence"] == pytest.approx(each.info["evidence"])


def largest(traced) -> int:
    """The number of entries of the largest array that a program makes."""
    sizes = [v.aval.size for e in traced.eqns for v in e.outvars if hasattr(v.aval, "size")]
    inner = jax.tree.leaves(
        [list(e.params.values()) for e in traced.eqns],
        is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
    )
    programs = [getattr(x, "jaxpr", x) for x in inner if hasattr(x, "eqns") or hasattr(x, "jaxpr")]
    return max([*sizes, *map(largest, programs)])


@pytest.mark.parametrize("kind", ["isotropic", "outer products"])
@pytest.mark.parametrize("model", ["model1", "model2"])
def test_no_array_is_larger_than_the_scores_by_more_than_a_factor(model, kind):
    """3,000 parameters and 10 episodes: n x n would be 300 times the scores."""

    def run(U, R):
        G = fisher.monte_carlo(U) if kind == "outer products" else fisher.Isotropic(3000, 1.0)
        found = getattr(evidence, model)(U, R, G)
        return found.mean, component_statistics(found)

    with jax.enable_x64(True):
        program = jax.make_jaxpr(run)(np.ones((10, 3000)), np.arange(10.0))
    assert largest(program.jaxpr) <= 50 * 10 * 3000


@pytest.mark.slow
@pytest.mark.parametrize("model", ["model1", "model2"])
def test_a_hundred_thousand_parameters(model):
    rng = np.random.default_rng(0)
    U = rng.normal(size=(20, 100_000))
    w = rng.normal(size=100_000) / np.sqrt(100_000)
    R = 5 + 3 * U @ w + rng.normal(size=20)
    found = getattr(evidence, model)(U, R, fisher.Isotropic(100_000, 1.0))
    lower, upper = found.interval()
    assert np.mean((lower <= 3 * w) & (3 * w <= upper)) > 0.9
