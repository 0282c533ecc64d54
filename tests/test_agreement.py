"""The probability that following the mean goes uphill, from the agreement of paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import problem
from scipy import stats
from test_posterior import make

from bayespg import monte_carlo, quadrature
from bayespg.fisher import Dense
from bayespg.posterior import Influence, believed, no_weights, uphill
from bayespg.posterior.agreement import (
    DIRECTIONS,
    EDGE,
    GROUPS,
    HIDDEN,
    NOTHING_TO_LEARN,
    RATIOS,
    SHAPE,
    STRENGTH,
    agreement,
    compared,
    contributions,
    prior,
    spread,
)

agreement, contributions = jax.jit(agreement), jax.jit(contributions)


def oracle(C, metric=None, direction=None):
    """The definition with SciPy: density of the F ratio and of the squared cosines, and
    Student's t."""
    A = np.eye(C.shape[1]) if metric is None else metric
    M, total = len(C), C.sum(0)
    d = total if direction is None else direction
    cosine = total @ A @ d / np.sqrt((total @ A @ total) * (d @ A @ d))
    K = C @ A @ C.T
    i, j = np.where(~np.eye(M, dtype=bool))
    lengths = np.diag(K)[i] * np.diag(K)[j]
    s = np.sum(K[i, j]) / np.sqrt(M * (M - 1) * lengths.sum())
    squared = np.sum(K[i, j] ** 2) / lengths.sum()
    pairs = min(lengths.sum() ** 2 / np.sum(lengths**2) / 2, SHAPE) if M > 2 else 0
    weights, stated = np.asarray(prior(float(M)), float).copy(), np.empty((32, 13))
    for row, r in enumerate(RATIOS):
        for column, f in enumerate(DIRECTIONS):
            mu, shows = M * r / f, M * r / (1 + HIDDEN * r) / f
            edge = max(EDGE / f**2 / (M - 1), 1e-5)
            share = np.clip(1 / M + (1 - 1 / M) * s, edge, 1 - edge)
            between, within = share, 1 - share
            F = between * (M - 1) / within
            density = stats.f.logpdf(F / (1 + shows), f, f * (M - 1)) + np.log(F / (1 + shows))
            if pairs:
                density += pairs / 2 * (np.log(squared * f) - squared * f)
            weights[row, column] *= np.exp(density)
            noise = (between / (1 + mu) + within) / (f * M)
            t = cosine * np.sqrt(between * mu / (1 + mu) / noise)
            stated[row, column] = stats.t.cdf(t, f * M)
    answer = np.sum(weights * stated) / np.sum(weights)
    return np.clip(answer, 2.0**-M, 1 - 2.0**-M)


@pytest.mark.slow("3", "30")
@pytest.mark.parametrize("M", [2, 3, 6, 30])
def test_it_is_the_average_over_the_ratio_of_signal_to_noise(M):
    rng = np.random.default_rng(M)
    U, R, G = rng.normal(size=(M, 3)), rng.normal(size=M) + 0.5, problem(6, 3).fisher
    found = monte_carlo.reinforce(U, R, G)
    C = R[:, None] * U
    assert found.probability_uphill() == pytest.approx(oracle(C), abs=5e-3)
    expected = oracle(C, np.linalg.inv(G))
    assert found.probability_uphill(natural=True) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("M", [2, 8])
def test_paths_that_all_agree_say_no_more_than_coin_tosses(M):
    most = 1 - 2.0**-M
    assert most - 0.01 < agreement(jnp.ones((M, M))) <= most


def drawn(rng, M, n, runs, scored):
    """Inner products and signs of the slope, for gradients from the hyperprior: of the gradient
    plus noise or, if `scored`, of returns g'u + noise times scores u."""
    v = rng.beta(2, 0.5, size=runs)  # z^2 / (1 + z^2)
    length = STRENGTH * np.sqrt(v / (1 - v))
    z = np.where(rng.uniform(size=runs) < NOTHING_TO_LEARN, 0, np.minimum(length, 100))
    C, g = rng.normal(size=(runs, M, n)), z[:, None] / np.sqrt(M)
    if scored:
        C *= (g * C[..., 0] + rng.normal(size=(runs, M)))[..., None]
    else:
        C[..., 0] += g
    up = np.where(z > 0, 0.5 + 0.5 * np.sign(C.sum(1)[:, 0]), 0.5)
    return C @ C.transpose(0, 2, 1), up


@pytest.mark.parametrize(("M", "n"), [(4, 2), (4, 30), (30, 3), (20, 200)])
@pytest.mark.parametrize("scored", [False, True])
def test_over_its_hyperprior_it_is_right_above_and_below(M, n, scored):
    """1,000 batches; standard errors are 0.012 of the mean, and below 0.03 in each part."""
    K, up = drawn(np.random.default_rng(M * n), M, n, 1000, scored)
    said = np.asarray(jax.jit(jax.vmap(agreement))(jnp.asarray(K)))
    assert abs(np.mean(said - up)) < 0.04
    for part in (said > 0.9, (said > 0.7) & (said <= 0.9), said <= 0.7):
        if part.sum() > 100:
            assert abs(np.mean((said - up)[part])) < 0.08


@pytest.mark.parametrize(("M", "n"), [(4, 1), (4, 30), (20, 3), (15, 200)])
def test_heavy_tails_do_not_make_sure(M, n):
    """No gradient, contributions with heavy tails."""
    rng = np.random.default_rng(M)
    C = rng.normal(size=(400, M, n)) * rng.standard_t(2, size=(400, M, 1))
    said = np.asarray(jax.jit(jax.vmap(agreement))(jnp.asarray(C @ C.transpose(0, 2, 1))))
    assert said.mean() < 0.78
    assert np.mean(said > 0.95) < 0.03


@pytest.mark.parametrize(("signal", "low", "high"), [(0.0, 0.5, 0.55), (4.0, 0.94, 1.0)])
def test_a_run_learns_how_much_signal_there_is(signal, low, high):
    """Four paths per update and five directions; the mean over the last of 150 updates. With signal
    4 a step goes uphill with probability Phi(2) = 0.977."""
    rng, M, n, runs = np.random.default_rng(0), 4, 5, 40
    g = np.zeros(n)
    g[0] = np.sqrt(signal / M)

    def update(weights, C):
        posterior = make(M=M, n=n, mean=C.sum(0), added=C)
        said, weights = believed(posterior, False, weights)
        return weights, said

    C = rng.normal(size=(150, runs, M, n)) + g
    begin = jnp.broadcast_to(no_weights(jnp.float32), (runs, 32, 13))
    step = jax.vmap(update)
    said = np.asarray(jax.lax.scan(step, begin, jnp.asarray(C, jnp.float32))[1])
    assert low <= said[-30:].mean() <= high
    assert 0.55 < said[0].mean() < 0.9


def test_a_run_of_returns_times_scores_is_learned_in_many_directions():
    """Eight paths per update and 20 directions, R u with R = g'u + noise, whose lengths differ
    much; the mean over the last 50 of 150 updates. Steps of a signal of 16 go uphill in 99.9 %."""
    rng, M, n, runs = np.random.default_rng(5), 8, 20, 20
    said = {}
    for signal in (0.0, 16.0):
        U = rng.normal(size=(150, runs, M, n))
        R = np.sqrt(signal / M) * U[..., 0] + rng.normal(size=(150, runs, M))
        C = jnp.asarray(R[..., None] * U, jnp.float32)

        def update(weights, C):
            said, weights = believed(make(M=M, n=n, mean=C.sum(0), added=C), False, weights)
            return weights, said

        begin = jnp.broadcast_to(no_weights(jnp.float32), (runs, 32, 13))
        said[signal] = np.asarray(jax.lax.scan(jax.vmap(update), begin, C)[1])[-50:].mean()
    assert 0.5 <= said[0.0] < 0.55
    assert said[16.0] > 0.95


def test_a_few_long_contributions_do_not_hide_the_number_of_directions():
    """Without signal the mean squared cosine is 1 / f, however different the lengths are."""
    rng, f = np.random.default_rng(0), 20
    C = rng.normal(size=(2000, 6, f)) * rng.standard_t(2, size=(2000, 6, 1))
    of = jax.vmap(spread)(jnp.asarray(C @ C.transpose(0, 2, 1)))
    assert np.mean(of.shape) == pytest.approx(1 / f, rel=0.1)  # its standard error is 3 %
    assert np.all(of.pairs <= 15 + 1e-3)
    assert np.mean(of.share) == pytest.approx(1 / 6, abs=0.01)


def test_contributions_are_those_of_an_average():
    x = np.random.default_rng(0).normal(size=(7, 2))
    found = monte_carlo.average(jnp.asarray(x))
    np.testing.assert_allclose(
        contributions(found.mean, found.influence), x / 7, rtol=1e-4, atol=1e-6
    )


def test_contributions_under_a_strong_prior_are_the_influences():
    C = np.random.default_rng(0).normal(size=(7, 2))
    np.testing.assert_allclose(contributions(C.sum(0), jnp.asarray(C)), C, rtol=1e-5)


def test_padding_contributes_nothing():
    D = np.random.default_rng(0).normal(size=(4, 2))
    padded = np.concatenate([D, np.zeros((3, 2))])
    whole, part = (np.asarray(contributions(np.ones(2), jnp.asarray(x))) for x in (padded, D))
    np.testing.assert_allclose(whole[:4], part, rtol=1e-6)
    np.testing.assert_array_equal(whole[4:], 0)
    assert agreement(whole @ whole.T) == pytest.approx(float(agreement(part @ part.T)))


@pytest.mark.slow("6-3-inf", "3-6-0.0")
@pytest.mark.parametrize("baseline", [0.0, np.inf])
@pytest.mark.parametrize(("M", "n"), [(6, 3), (3, 6)])
def test_model2_is_judged_by_what_each_path_shows_alone(M, n, baseline):
    U, R, G = problem(M, n)
    found = quadrature.model2(U, R, G, noise=0.3, baseline=baseline)
    H, mean = (R - R.mean())[:, None] * U, np.asarray(found.mean)
    for natural, metric in ((False, None), (True, np.linalg.inv(G))):
        expected = oracle(H, metric, mean)
        assert found.probability_uphill(natural=natural) == pytest.approx(expected, abs=1e-2)


def fits(U, R, G):
    yield quadrature.model2(U, R, G, noise=0.1, baseline=np.inf)
    yield monte_carlo.reinforce(U, R, G, baseline="mean")
    yield monte_carlo.reinforce(U, R, G, baseline="best")
    yield monte_carlo.enac(U, R)


@pytest.mark.parametrize("rounding", [0.0, 1e-13])
def test_constant_returns_say_one_half(rounding):
    U, R, G = problem(12, 3)
    for found in fits(U, 500 + rounding * R, G):
        assert found.probability_uphill() == 0.5
        assert found.probability_uphill(natural=True) == 0.5


def test_one_path_says_one_half():
    U, R, G = problem(1, 3)
    assert quadrature.model2(U, R, G).probability_uphill() == 0.5
    assert monte_carlo.reinforce(U, R, G).probability_uphill(natural=True) == 0.5


def test_a_strong_gradient_is_found_and_its_units_do_not_matter():
    rng = np.random.default_rng(0)
    U = rng.normal(size=(30, 3))
    for unit in (1.0, 1e-150, 1e150):
        for found in fits(U, unit * (U @ [1.0, 2.0, 0.5]), np.eye(3)):
            assert found.probability_uphill() > 0.99


def test_a_natural_direction_needs_a_fisher_matrix_and_a_given_one_is_taken_as_it_is():
    U, R, G = problem(5, 2)
    with pytest.raises(ValueError, match="fisher="):
        monte_carlo.reinforce(U, R).probability_uphill(natural=True)
    with pytest.raises(ValueError, match=r"^natural: .*direction"):
        quadrature.model2(U, R, G).probability_uphill([1, 0], natural=True)


def test_the_models_own_answer_for_the_mean_is_that_along_it():
    U, R, G = problem(5, 2)
    found = quadrature.model2(U, R, G)
    along = found.probability_uphill(found.natural, robust=False)
    assert found.probability_uphill(natural=True, robust=False) == along


class Lazy(Influence):
    rows: jax.Array

    def along(self, direction):
        return self.rows @ direction

    def matrix(self, groups=None):
        parts = np.array_split(np.arange(len(self.rows)), groups or len(self.rows))
        return jnp.stack([self.rows[jnp.asarray(p)].sum(0) for p in parts])


def test_of_an_operator_groups_of_paths_are_judged():
    C = np.random.default_rng(0).normal(size=(16, 3)) + 0.3
    posterior = make(M=16, n=3, mean=C.sum(0), added=Lazy(jnp.asarray(C)))
    expected = oracle(C.reshape(GROUPS, 2, 3).sum(1))
    assert posterior.probability_uphill() == pytest.approx(expected, abs=5e-3)


def test_it_can_be_traced():
    C = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    posterior = make(M=5, mean=C.sum(0), added=C, fisher=Dense(jnp.eye(2)))
    found = jax.jit(lambda p: uphill(p, natural=True))(posterior)
    assert found == pytest.approx(oracle(np.asarray(C)), abs=5e-3)


@pytest.mark.parametrize("M", [2, 3, 6])
def test_the_judges_are_the_unbiased_gradients_of_paths(M):
    rng = np.random.default_rng(M)
    C, H, G = rng.normal(size=(M, 3)), rng.normal(size=(M, 3)) + 0.5, problem(M, 3).fisher
    found = make(
        M=M, n=3, mean=C.sum(0), added=C, unbiased=jnp.asarray(H), fisher=Dense(jnp.asarray(G))
    )
    expected = oracle(H, None, C.sum(0))
    assert found.probability_uphill() == pytest.approx(expected, abs=5e-3)
    expected = oracle(H, np.linalg.inv(G), C.sum(0))
    assert found.probability_uphill(natural=True) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("M", [4, 20])
def test_a_bias_that_all_paths_share_does_not_make_sure(M):
    """No gradient; the standard error of a share of 0.05 over 400 batches is 0.011."""
    rng = np.random.default_rng(M)
    H = rng.normal(size=(400, M, 5))
    C = 5.0 + 0.5 * H + rng.normal(size=(400, M, 5))

    def stated(H, C):
        return agreement(*compared(H, C.sum(0)))

    said = np.asarray(jax.jit(jax.vmap(stated))(jnp.asarray(H), jnp.asarray(C)))
    assert abs(said.mean() - 0.5) < 0.05
    assert np.mean(said > 0.95) < 0.05
    alike = np.asarray(jax.vmap(agreement)(jnp.asarray(C @ C.transpose(0, 2, 1))))
    assert alike.mean() > 0.9


def test_a_slope_that_paths_deny_is_below_one_half():
    H = np.random.default_rng(0).normal(size=(20, 3)) + 1.0
    K, cosine = compared(jnp.asarray(H), jnp.asarray(-np.ones(3)))
    assert cosine < -0.9
    assert agreement(K, cosine) < 0.01


def test_a_direction_is_judged_by_the_unbiased_gradients_too():
    H = np.random.default_rng(0).normal(size=(9, 2)) + np.array([0.5, 0.0])
    found = make(M=9, unbiased=jnp.asarray(H), added=jnp.asarray(H), mean=np.array([-3.0, 0.0]))
    alone = monte_carlo.average(jnp.asarray(H))
    for direction in ([1.0, 0.0], [-1.0, 2.0]):
        assert found.probability_uphill(direction) == pytest.approx(
            alone.probability_uphill(direction), abs=1e-6
        )
    needed = found.episodes_needed(0.9)
    assert needed == alone.episodes_needed(0.9)
