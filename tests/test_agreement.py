"""The probability that following the mean goes uphill, judged path by path."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import problem
from test_posterior import make

from bayespg import monte_carlo, quadrature
from bayespg.fisher import Dense
from bayespg.posterior import Influence, uphill
from bayespg.posterior.agreement import (
    GROUPS,
    PATTERNS,
    agreement,
    contributions,
    judged,
    signs,
)

agreement, contributions = jax.jit(agreement), jax.jit(contributions)


def share_of_shorter(C, metric=None):
    """The definition: all patterns of signs, one by one."""
    A = np.eye(C.shape[1]) if metric is None else metric
    lengths = [
        (s @ C) @ A @ (s @ C) for s in map(np.array, itertools.product([1, -1], repeat=len(C)))
    ]
    ties = np.isclose(lengths, lengths[0])
    return np.mean(np.where(ties, 0.5, np.less(lengths, lengths[0])))


def test_it_is_the_share_of_sign_patterns_whose_sum_is_shorter():
    rng = np.random.default_rng(0)
    U, R, G = rng.normal(size=(6, 3)), rng.normal(size=6), problem(6, 3).fisher
    found = monte_carlo.reinforce(U, R, G)
    C = R[:, None] * U
    assert found.probability_uphill() == pytest.approx(share_of_shorter(C))
    expected = share_of_shorter(C, np.linalg.inv(G))
    assert found.probability_uphill(natural=True) == pytest.approx(expected)


@pytest.mark.parametrize("M", [1, 5, 11, 12])
def test_patterns_begin_with_none_changed(M):
    S = np.asarray(signs(M))
    assert S.shape == (min(2 ** (M - 1), PATTERNS), M)
    assert (S[0] == 1).all()
    assert set(np.unique(S)) <= {-1, 1}
    if M <= 11:
        assert len(np.unique(S, axis=0)) == len(S)


@pytest.mark.parametrize("M", [2, 8])
def test_paths_that_all_agree_say_as_much_as_so_many_can(M):
    assert agreement(jnp.ones((M, M))) == pytest.approx(1 - 2.0**-M)


@pytest.mark.parametrize(("M", "n"), [(4, 1), (4, 30), (20, 3), (15, 200)])
def test_pure_noise_is_uniform_whatever_its_spread(M, n):
    """Contributions with heavy tails; the standard error of the mean over 400 batches is 0.014."""
    rng = np.random.default_rng(M)
    C = rng.normal(size=(400, M, n)) * rng.standard_t(2, size=(400, M, 1))
    said = np.asarray(jax.jit(jax.vmap(agreement))(jnp.asarray(C @ C.transpose(0, 2, 1))))
    assert abs(said.mean() - 0.5) < 0.05
    assert np.mean(said > 0.95) < 0.05 + 3 * 0.011


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


@pytest.mark.parametrize("baseline", [0.0, np.inf])
@pytest.mark.parametrize(("M", "n"), [(6, 3), (3, 6)])
def test_model2_is_judged_by_what_each_path_shows_alone(M, n, baseline):
    U, R, G = problem(M, n)
    found = quadrature.model2(U, R, G, noise=0.3, baseline=baseline)
    alone = monte_carlo.reinforce(U, R, G, baseline="mean")
    for natural in (False, True):
        expected = alone.probability_uphill(natural=natural)
        assert found.probability_uphill(natural=natural) == pytest.approx(expected, abs=1e-9)


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
    U = rng.normal(size=(12, 3))
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
    expected = share_of_shorter(C.reshape(GROUPS, 2, 3).sum(1))
    assert posterior.probability_uphill() == pytest.approx(expected, abs=1e-6)


def test_it_can_be_traced():
    C = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    posterior = make(M=5, mean=C.sum(0), added=C, fisher=Dense(jnp.eye(2)))
    found = jax.jit(lambda p: uphill(p, natural=True))(posterior)
    assert found == pytest.approx(share_of_shorter(np.asarray(C)))


def share_of_flatter(K):
    """The definition of `judged`, pattern by pattern."""
    off = K - np.diag(np.diag(K))
    patterns = [np.array(s) for s in itertools.product([1, -1], repeat=len(K))]
    shares = []
    for slopes in ([s @ off.sum(0) for s in patterns], [s @ off @ s for s in patterns]):
        ties = np.isclose(slopes, slopes[0])
        shares.append(np.mean(np.where(ties, 0.5, np.less(slopes, slopes[0]))))
    return min(shares, key=lambda share: abs(share - 0.5))


@pytest.mark.parametrize("M", [2, 6])
def test_the_judges_are_the_unbiased_gradients_of_the_other_paths(M):
    rng = np.random.default_rng(M)
    C, H, G = rng.normal(size=(M, 3)), rng.normal(size=(M, 3)) + 0.5, problem(M, 3).fisher
    found = make(
        M=M, n=3, mean=C.sum(0), added=C, unbiased=jnp.asarray(H), fisher=Dense(jnp.asarray(G))
    )
    assert found.probability_uphill() == pytest.approx(share_of_flatter(C @ H.T), abs=1e-6)
    expected = share_of_flatter(C @ np.linalg.inv(G) @ H.T)
    assert found.probability_uphill(natural=True) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow("4-0.0", "20-5.0")
@pytest.mark.parametrize("bias", [0.0, 5.0])
@pytest.mark.parametrize("M", [4, 20])
def test_a_bias_that_all_paths_share_does_not_make_sure(M, bias):
    """No gradient; the standard error of a share of 0.05 over 400 batches is 0.011."""
    rng = np.random.default_rng(M)
    H = rng.normal(size=(400, M, 5))
    C = bias + 0.5 * H + rng.normal(size=(400, M, 5))
    said = np.asarray(jax.jit(jax.vmap(judged))(jnp.asarray(C @ H.transpose(0, 2, 1))))
    assert abs(said.mean() - 0.5) < 0.05
    assert np.mean(said > 0.95) < 0.05 + 3 * 0.011
    if bias:
        alike = np.asarray(jax.vmap(agreement)(jnp.asarray(C @ C.transpose(0, 2, 1))))
        assert alike.mean() > 0.9


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
