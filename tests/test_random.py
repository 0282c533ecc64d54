"""The cheap generator: normal, independent, and an ordinary JAX key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from bayespg._support.random import child, fast_key, host_key, host_uniform, normal

COUNT = 400_000


def test_normals_have_the_moments_and_the_distribution_of_a_normal():
    z = np.asarray(normal(fast_key(0), (COUNT,)), np.float64)
    errors = np.sqrt(np.array([1, 2, 15, 96]) / COUNT)  # of the first four moments
    found = [np.mean(z), np.mean(z**2) - 1, np.mean(z**3), np.mean(z**4) - 3]
    assert np.all(np.abs(found) < 4.5 * errors)
    assert scipy.stats.kstest(z, "norm").pvalue > 1e-3


def test_the_inverse_distribution_function_is_accurate():
    words = np.linspace(0, 2**32 - 1, 9_999).astype(np.uint32)
    from bayespg._support.random import _quantile

    tail = ((words >> 1) + 0.5) / 2.0**31
    expected = np.where(words & 1, -1, 1) * scipy.stats.norm.isf(tail / 2)
    np.testing.assert_allclose(_quantile(jnp.asarray(words)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_streams_of_split_keys_are_uncorrelated():
    z = jax.vmap(lambda key: normal(key, (2_000,)))(jax.random.split(fast_key(1), 100))
    correlations = np.corrcoef(np.asarray(z))[np.triu_indices(100, 1)]
    # Under independence 2000 r^2 has mean 1 and variance 2.
    assert abs(np.mean(2_000 * correlations**2) - 1) < 5 * np.sqrt(2 / correlations.size)


def test_split_and_fold_in_give_distinct_keys():
    key = fast_key(2)
    split = jax.random.key_data(jax.random.split(key, 10_000))
    folded = jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(10_000)))
    together = np.concatenate([split, folded])
    assert len(np.unique(together, axis=0)) == 20_000


@pytest.mark.slow
def test_other_keys_and_precisions_work_too():
    assert normal(jax.random.key(0), (3,)).dtype == jnp.float32
    with jax.enable_x64(True):
        assert normal(fast_key(0), (3,), jnp.float64).dtype == jnp.float64


def test_a_seed_repeats_itself_and_seeds_differ():
    first, again, other = (np.asarray(normal(fast_key(s), (8,))) for s in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_keys_on_the_host_are_those_of_jax():
    with jax.enable_x64(True):
        for seed in (0, 7, 2**40 + 3):
            key = jax.random.key(seed)
            ours = host_key(seed)
            assert (jax.random.key_data(ours) == jax.random.key_data(key)).all()
            for number in (0, 1, 12345):
                one, other = child(ours, number), jax.random.fold_in(key, number)
                assert (jax.random.key_data(one) == jax.random.key_data(other)).all()
            assert (jax.random.split(key)[1] == child(ours, 1)).all()


@pytest.mark.parametrize("double", [False, True])
def test_uniform_numbers_on_the_host_are_those_of_jax(double):
    with jax.enable_x64(double):
        for seed in (0, 2**40 + 5):
            ours = host_uniform(host_key(seed), 777)
            theirs = np.asarray(jax.random.uniform(host_key(seed), (777,)))
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)
