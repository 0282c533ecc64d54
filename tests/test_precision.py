import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg import evidence, monte_carlo, quadrature
from bayespg._support.precision import in_float64, to_float64, to_numpy, traced

ESTIMATES = [
    quadrature.model1,
    quadrature.model2,
    evidence.choose_model1,
    evidence.choose_model2,
    monte_carlo.reinforce,
]


def third(x):
    return x / 3


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_plain_arrays_are_answered_in_numpy_float64_with_jax_left_in_float32(estimate, batch):
    assert not jax.config.jax_enable_x64
    found = estimate(*batch)
    leaves = [leaf for leaf in jax.tree.leaves(found) if eqx.is_inexact_array_like(leaf)]
    assert not any(isinstance(leaf, jax.Array) for leaf in leaves)
    assert {np.asarray(leaf).dtype for leaf in leaves} == {np.dtype(np.float64)}
    assert not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


def test_an_error_leaves_the_setting_unchanged():
    with pytest.raises(ZeroDivisionError):
        in_float64(lambda x: 1 // 0)(np.ones(1))
    assert not jax.config.jax_enable_x64


def test_float64_answers_are_exact_to_its_rounding():
    assert in_float64(third)(np.ones(2))[0] == 1 / 3


def test_a_function_is_compiled_once():
    assert in_float64(third) is in_float64(third)


def test_tracing_is_seen_inside_transformations_only():
    seen = []
    jax.jit(lambda x: seen.append(traced({"x": x}, 1.0)) or x)(1.0)
    jax.vmap(lambda x: seen.append(traced(x)) or x)(jnp.ones(2))
    assert seen == [True, True]
    assert not traced(np.ones(2), jnp.ones(2), [1.0], None)


def test_conversion_keeps_keys_and_everything_that_is_not_an_array():
    key = jax.random.key(0)
    tree = to_numpy({"array": jnp.ones(2), "key": key, "name": "x"})
    assert isinstance(tree["array"], np.ndarray)
    assert tree["key"] is key
    assert tree["name"] == "x"


def test_only_floating_point_leaves_become_float64():
    tree = to_float64({"float": jnp.ones(2), "int": jnp.arange(2), "number": 1.0})
    assert tree["float"].dtype == np.float64
    assert tree["int"].dtype == jnp.arange(2).dtype
    assert tree["number"] == 1.0
