import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import problem
from scipy.optimize import minimize_scalar

from bayespg import monte_carlo
from bayespg.monte_carlo import enac, gpomdp, reinforce
from bayespg.posterior import Diagonal

M, n, T = 8, 2, 3
BASELINES = ["none", "mean", "best"]


@pytest.fixture
def steps():
    rng = np.random.default_rng(0)
    return rng.normal(size=(M, T, n)), rng.normal(size=(M, T))


def test_reinforce_is_equation_6(batch):
    U, R, _ = batch
    expected = sum(r * u for r, u in zip(R, U, strict=True)) / M
    np.testing.assert_allclose(reinforce(U, R).mean, expected, rtol=1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_covariance_is_that_of_an_average(batch, baseline):
    U, R, G = batch
    best = R @ U**2 / np.sum(U**2, 0)
    b = {"none": 0.0, "mean": R.mean(), "best": best}[baseline]
    samples = (R[:, None] - b) * U
    posterior = reinforce(U, R, G, baseline=baseline)
    np.testing.assert_allclose(posterior.mean, samples.mean(0), rtol=1e-12)
    np.testing.assert_allclose(posterior.covariance, np.cov(samples.T) / M, rtol=1e-10)
    np.testing.assert_allclose(posterior.natural, np.linalg.solve(G, posterior.mean), rtol=1e-9)


@pytest.mark.parametrize("baseline", BASELINES)
def test_influence_is_the_jackknifes_and_leaves_paths_out_of_the_baseline_too(batch, baseline):
    U, R, _ = batch
    posterior = reinforce(U, R, baseline=baseline)
    for i in range(M):
        without = reinforce(np.delete(U, i, 0), np.delete(R, i), baseline=baseline).mean
        np.testing.assert_allclose(posterior.influence[i], posterior.mean - without, atol=1e-12)


def test_intervals_undo_the_bias_of_the_mean_baseline(batch):
    """(1/M) sum (R_i - mean R) u_i has the expectation (1 - 1/M) times the gradient."""
    U, R, _ = batch
    posterior = reinforce(U, R, baseline="mean")
    lower, upper = posterior.interval()
    np.testing.assert_allclose((lower + upper) / 2, posterior.mean * M / (M - 1), rtol=1e-9)


def test_the_best_baseline_has_the_least_second_moment(batch):
    """Of (R - b) u_j, whose mean does not depend on b when scores average to zero."""
    U, R, _ = batch
    U = U - U.mean(0)
    posterior = reinforce(U, R, baseline="best")
    for j in range(n):
        found = minimize_scalar(lambda b, j=j: np.mean(((R - b) * U[:, j]) ** 2))
        np.testing.assert_allclose(posterior.mean[j], np.mean((R - found.x) * U[:, j]), rtol=1e-6)


@pytest.mark.parametrize("baseline", ["mean", "best"])
@given(seed=st.integers(0, 10_000), shift=st.floats(-1e3, 1e3))
def test_a_baseline_makes_reinforce_blind_to_a_shift(baseline, seed, shift):
    U, R, _ = problem(M, n, seed)
    here, there = (reinforce(U, r, baseline=baseline) for r in (R, R + shift))
    np.testing.assert_allclose(there.mean, here.mean, atol=1e-9)
    np.testing.assert_allclose(there.covariance, here.covariance, atol=1e-9)


@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_gpomdp_credits_actions_with_the_rewards_after_them(steps, discount):
    U, r = steps
    samples = np.zeros((M, n))
    for i in range(M):
        for t in range(T):
            for s in range(t, T):
                samples[i] += U[i, t] * discount**s * r[i, s]
    posterior = gpomdp(U, r, discount=discount)
    np.testing.assert_allclose(posterior.mean, samples.mean(0), rtol=1e-10)
    np.testing.assert_allclose(posterior.covariance, np.cov(samples.T) / M, rtol=1e-10)


def test_gpomdp_of_one_step_is_reinforce(batch):
    U, R, G = batch
    one, other = gpomdp(U[:, None], R[:, None], G), reinforce(U, R, G)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-12)


def test_padding_with_zeros_changes_nothing(steps):
    U, r = steps
    longer = gpomdp(np.pad(U, ((0, 0), (0, 2), (0, 0))), np.pad(r, ((0, 0), (0, 2))))
    np.testing.assert_allclose(longer.mean, gpomdp(U, r).mean, rtol=1e-12)


@pytest.mark.parametrize("baseline", ["none", "mean", "best"])
def test_equal_returns_do_not_say_which_way_is_uphill(batch, baseline):
    posterior = monte_carlo.reinforce(batch[0], np.full(M, 5.0), baseline=baseline)
    assert posterior.probability_uphill() == 0.5


def test_one_path_alone_knows_nothing_of_its_spread():
    U, R, _ = problem(1, n)
    posterior = reinforce(U, R)
    np.testing.assert_allclose(posterior.mean, R[0] * U[0])
    assert np.isinf(posterior.standard_deviation).all()


def test_one_path_alone_gives_no_finite_interval():
    lower, upper = reinforce(*problem(1, n)[:2]).interval()
    assert np.isneginf(lower).all()
    assert np.isposinf(upper).all()


def test_one_path_alone_excludes_no_gradient_and_knows_no_direction():
    posterior = reinforce(*problem(1, n)[:2])
    assert posterior.contains(np.zeros(n))
    assert posterior.probability_uphill(np.ones(n)) == 0.5


def test_parameters_without_scores_have_no_gradient(batch):
    U, R, _ = batch
    U[:, 1] = 0
    for baseline in BASELINES:
        posterior = reinforce(U, R, baseline=baseline)
        assert posterior.mean[1] == posterior.covariance[1, 1] == 0


def test_beyond_2048_parameters_the_covariance_is_a_diagonal():
    rng = np.random.default_rng(0)
    U, R = rng.normal(size=(4, monte_carlo.LARGE + 2)), rng.normal(size=4)
    posterior = reinforce(U, R)
    assert isinstance(posterior.covariance, Diagonal)
    expected = np.std(R[:, None] * U, 0, ddof=1) / 2
    np.testing.assert_allclose(posterior.standard_deviation, expected, rtol=1e-9)


def test_jit_and_vmap_equal_the_eager_answer(steps):
    batches = [problem(M, n, seed) for seed in range(3)]
    stacked = [np.stack(field) for field in zip(*batches, strict=True)]
    with jax.enable_x64(True):
        best = jax.jit(jax.vmap(lambda U, R, G: reinforce(U, R, G, baseline="best")))(*stacked)
        steps_at_once = jax.jit(lambda U, r: gpomdp(U, r, discount=0.9))(*steps)
    for i, batch in enumerate(batches):
        eager = reinforce(*batch, baseline="best")
        np.testing.assert_allclose(best.mean[i], eager.mean, rtol=1e-10)
        np.testing.assert_allclose(best.covariance[i], eager.covariance, rtol=1e-10)
    np.testing.assert_allclose(steps_at_once.mean, gpomdp(*steps, discount=0.9).mean, rtol=1e-10)


def test_enac_is_least_squares_with_an_intercept(batch):
    U, R, _ = batch
    w = np.linalg.lstsq(np.column_stack([np.ones(M), U]), R)[0][1:]
    found = enac(U, R, ridge=0.0)
    np.testing.assert_allclose(found.natural, w, rtol=1e-9)
    np.testing.assert_allclose(found.mean, U.T @ U / M @ w, rtol=1e-9)


def test_enac_takes_the_shortest_of_many_fits(wide):
    U, R, _ = wide
    centred = U - U.mean(0)
    shortest = np.linalg.pinv(centred) @ (R - R.mean())
    found = enac(U, R, ridge=1e-9)
    np.testing.assert_allclose(found.mean, U.T @ U / len(U) @ shortest, rtol=1e-4, atol=1e-6)


@given(seed=st.integers(0, 10_000), shift=st.floats(-1e3, 1e3))
def test_enac_is_blind_to_a_shift(seed, shift):
    U, R, _ = problem(M, n, seed)
    np.testing.assert_allclose(enac(U, R + shift).mean, enac(U, R).mean, atol=1e-7)


def test_enac_names_a_mistake(batch):
    U, R, _ = batch
    with pytest.raises(ValueError, match=r"^returns: "):
        enac(U, R[:-1])
    with pytest.raises(ValueError, match=r"^scores: "):
        enac(U[:, 0], R)
