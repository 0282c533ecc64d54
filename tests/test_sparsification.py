import dataclasses

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from bayespg._support.precision import in_float64
from bayespg.algebra import sparsification
from bayespg.algebra.sparsification import Sparsify

U, R, G = oracle.problem(8, 4)
K = oracle.quadratic_kernel(U, G)
THRESHOLD = 20.0
M = len(K)


def _build(K, threshold: float, capacity: int):
    return sparsification.build(
        lambda i, members: K[i, members], jnp.diagonal(K), threshold, capacity
    )


def _pivoted(K, capacity: int, tolerance: float):
    return sparsification.pivoted(lambda i: K[i], jnp.diagonal(K), capacity, tolerance)


build = in_float64(_build)
pivoted = in_float64(_pivoted)
info = in_float64(sparsification.Dictionary.info)
functional = in_float64(sparsification.Dictionary.functional)


def members(found) -> list[int]:
    return found.members[found.used].tolist()


def test_the_threshold_of_these_tests_really_drops_samples():
    assert 2 <= len(oracle.dictionary(K, THRESHOLD)[0]) <= M - 2


def test_a_sample_joins_if_it_is_farther_than_the_threshold_from_the_span():
    assert members(build(K, THRESHOLD, M)) == oracle.dictionary(K, THRESHOLD)[0]


def test_features_are_the_rows_of_a_times_the_factor():
    found = build(K, THRESHOLD, M)
    chosen, A = oracle.dictionary(K, THRESHOLD)
    m = len(chosen)
    L = np.linalg.cholesky(K[np.ix_(chosen, chosen)])
    np.testing.assert_allclose(found.features[:, :m], A @ L, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.features[:, m:], 0)
    np.testing.assert_allclose(found.factor[:m, :m], L, rtol=1e-9, atol=1e-9)


def test_the_approximation_errs_by_at_most_the_threshold_on_the_diagonal():
    found = build(K, THRESHOLD, M)
    gap = K - found.features @ found.features.T
    np.testing.assert_allclose(gap[np.ix_(members(found), members(found))], 0, atol=1e-9)
    assert found.residual == pytest.approx(np.diag(gap).max())
    assert 0 < found.residual <= THRESHOLD


def test_the_functional_projects_the_cross_covariance_onto_the_members():
    found = build(K, THRESHOLD, M)
    chosen, A = oracle.dictionary(K, THRESHOLD)
    B = np.random.default_rng(0).normal(size=(3, M))
    V = functional(found, B)
    np.testing.assert_allclose(V @ found.features.T, B[:, chosen] @ A.T, rtol=1e-9, atol=1e-9)


def test_threshold_zero_reproduces_the_kernel():
    found = build(K, 0.0, M)
    np.testing.assert_allclose(found.features @ found.features.T, K, rtol=1e-9)


def test_a_threshold_above_every_kernel_value_leaves_the_dictionary_empty():
    found = build(K, 1e9, M)
    assert members(found) == []
    np.testing.assert_array_equal(found.features, 0)


def test_repeated_samples_join_once():
    twice = np.repeat(np.arange(4), 2)
    found = build(K[np.ix_(twice, twice)], 1e-9, M)
    assert members(found) == [0, 2, 4, 6]


def test_a_full_dictionary_projects_and_says_how_many_it_refused():
    found = build(K, THRESHOLD, 2)
    chosen, A = oracle.dictionary(K, THRESHOLD, 2)
    assert members(found) == chosen
    assert info(found)["dictionary_size"] == 2
    assert info(found)["dictionary_refused"] > 0
    assert found.residual > THRESHOLD
    np.testing.assert_allclose(
        found.features @ found.features.T, A @ K[np.ix_(chosen, chosen)] @ A.T, rtol=1e-9, atol=1e-9
    )


def test_an_unfilled_dictionary_refuses_nobody():
    found = build(K, THRESHOLD, M)
    assert info(found)["dictionary_refused"] == 0
    assert info(found)["dictionary_size"] == len(members(found))


def test_the_order_of_arrival_decides_who_is_in():
    back = build(K[::-1, ::-1], THRESHOLD, M)
    assert members(back) == oracle.dictionary(K[::-1, ::-1], THRESHOLD)[0]


@pytest.mark.parametrize("threshold", [-0.1, float("nan")])
def test_a_negative_threshold_is_refused(threshold):
    with pytest.raises(ValueError, match="sparsify: threshold"):
        Sparsify(threshold)


@pytest.mark.parametrize("capacity", [0, -3])
def test_a_dictionary_without_room_is_refused(capacity):
    with pytest.raises(ValueError, match="sparsify: capacity"):
        Sparsify(0.1, capacity)


def test_a_setting_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sparsify(0.1).threshold = 0.2


# Pivoted Cholesky.


def greedy(K, capacity: int, tolerance: float) -> list[int]:
    """The worst represented sample next, until none misses more than `tolerance`."""
    chosen: list[int] = []
    while len(chosen) < capacity:
        inverse = np.linalg.inv(K[np.ix_(chosen, chosen)])
        left = np.diag(K) - np.einsum("ij,jk,ik->i", K[:, chosen], inverse, K[:, chosen])
        if left.max() <= tolerance * np.diag(K).max():
            break
        chosen.append(int(left.argmax()))
    return chosen


def projection(K, chosen):
    return K[:, chosen] @ np.linalg.inv(K[np.ix_(chosen, chosen)]) @ K[chosen]


def test_with_room_and_no_tolerance_the_kernel_is_reproduced():
    found = pivoted(K, M, 0.0)
    np.testing.assert_allclose(found.features @ found.features.T, K, rtol=1e-9)
    assert found.rank == M
    assert found.residual == 0


@pytest.mark.parametrize(("capacity", "tolerance"), [(3, 0.0), (M, 0.1), (M, 0.02), (2, 0.1)])
def test_the_worst_represented_sample_comes_next(capacity, tolerance):
    found = pivoted(K, capacity, tolerance)
    chosen = greedy(K, capacity, tolerance)
    assert 1 < len(chosen) < M
    assert found.rank == len(chosen)
    approximate = found.features @ found.features.T
    np.testing.assert_allclose(approximate, projection(K, chosen), rtol=1e-8)
    np.testing.assert_array_equal(found.features[:, len(chosen) :], 0)
    assert found.residual == pytest.approx(np.diag(K - approximate).max())


def test_no_sample_misses_more_than_the_tolerance_where_there_is_room():
    for tolerance in (0.3, 0.1, 0.02):
        found = pivoted(K, M, tolerance)
        gap = np.diag(K - found.features @ found.features.T)
        assert np.all((gap > -1e-9) & (gap <= tolerance * np.diag(K).max()))


def test_the_rank_is_that_of_the_matrix():
    low = oracle.fisher_kernel(U, G)  # of four parameters
    found = pivoted(low, M, 1e-9)
    assert found.rank == 4
    np.testing.assert_allclose(found.features @ found.features.T, low, rtol=1e-7, atol=1e-9)
    twice = np.repeat(np.arange(4), 2)
    assert pivoted(K[np.ix_(twice, twice)], M, 1e-9).rank == 4


def test_a_kernel_of_zeros_has_rank_zero():
    found = pivoted(0 * K, M, 1e-9)
    assert found.rank == found.residual == 0
    np.testing.assert_array_equal(found.features, 0)
