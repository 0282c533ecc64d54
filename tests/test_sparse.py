"""Sparse rows against the same matrix written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.algebra import sparse
from bayespg.algebra.sparse import Rows

pytestmark = pytest.mark.usefixtures("x64")

N, n, k = 6, 5, 3
rng = np.random.default_rng(0)
A, W = rng.normal(size=N), rng.normal(size=n)


def make(rows: int, seed: int, repeats: bool = False) -> tuple[Rows, np.ndarray]:
    """Sparse rows, and what they stand for entry by entry."""
    rng = np.random.default_rng(seed)
    indices = np.array([rng.choice(n, k, replace=repeats) for _ in range(rows)])
    values = rng.normal(size=(rows, k))
    full = np.zeros((rows, n))
    for i in range(rows):
        for j in range(k):
            full[i, indices[i, j]] += values[i, j]
    return Rows(jnp.asarray(indices), jnp.asarray(values), n), full


@pytest.fixture(params=[False, True], ids=["no column twice", "columns repeated"])
def pair(request):
    return make(N, 1, request.param)


def test_products_are_those_of_the_matrix(pair):
    for U in pair:
        np.testing.assert_allclose(sparse.times(U, W), pair[1] @ W, rtol=1e-12)
        np.testing.assert_allclose(sparse.transposed_times(U, A), pair[1].T @ A, rtol=1e-12)


def test_written_out_it_is_the_matrix(pair):
    for U in pair:
        np.testing.assert_allclose(sparse.dense(U), pair[1], rtol=1e-12)


def test_rows_are_scaled_one_by_one(pair):
    for U in pair:
        found = sparse.scaled(U, A)
        assert isinstance(found, type(U))
        np.testing.assert_allclose(sparse.dense(found), A[:, None] * pair[1], rtol=1e-12)


def test_some_rows_are_taken_in_the_order_asked_for(pair):
    for U in pair:
        found = sparse.take(U, jnp.array([4, 0, 4]))
        assert isinstance(found, Rows) == isinstance(U, Rows)
        np.testing.assert_array_equal(sparse.dense(found), pair[1][[4, 0, 4]])


def test_squares_of_columns_are_summed_where_no_row_repeats_one():
    for U in make(N, 2):
        np.testing.assert_allclose(
            sparse.squared_columns(U), (make(N, 2)[1] ** 2).sum(0), rtol=1e-12
        )


@pytest.mark.parametrize(
    "rows", [pytest.param(M, marks=pytest.mark.slow) for M in (1, 31)] + [70]
)  # below, near and above one batch of 32
def test_gram_is_the_product_with_the_transpose(pair, rows):
    U, full = make(rows, 3, True)
    np.testing.assert_allclose(sparse.gram(U, pair[0]), full @ pair[1].T, rtol=1e-12, atol=1e-12)


def test_all_of_it_works_inside_jit_and_vmap():
    def all_of_it(U, w, a):
        return (
            sparse.times(U, w),
            sparse.transposed_times(U, a),
            sparse.dense(sparse.scaled(U, a)),
            sparse.squared_columns(U),
            sparse.gram(U, U),
        )

    pairs = [make(N, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(U for U, _ in pairs))
    found = jax.jit(jax.vmap(all_of_it, (0, None, None)))(stacked, W, A)
    for i, (_, full) in enumerate(pairs):
        expected = full @ W, full.T @ A, A[:, None] * full, (full**2).sum(0), full @ full.T
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one[i], other, rtol=1e-10, atol=1e-12)


def test_precision_is_that_of_the_values():
    U = Rows(jnp.zeros((2, 1), int), jnp.ones((2, 1), jnp.float32), n)
    a, w = jnp.ones(2, jnp.float32), jnp.ones(n, jnp.float32)
    for found in (sparse.times(U, w), sparse.transposed_times(U, a), sparse.dense(U)):
        assert found.dtype == jnp.float32
