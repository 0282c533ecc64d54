import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg._support.batching import in_any_run
from bayespg.fisher import Dense


def chosen(x):
    """What is costly is x^2, and right for all x."""
    return jax.lax.cond(in_any_run(x < 0), lambda: x**2, lambda: x * jnp.abs(x))


@pytest.mark.parametrize("worst", [1.0, -1.0])
@pytest.mark.parametrize("levels", [1, 2])
def test_a_branch_that_no_run_needs_is_not_computed(worst, levels):
    """The branches of a `cond` that is not the same for all runs become a `select`."""
    f, x = chosen, jnp.array([worst, 2.0, 3.0])
    for level in range(levels):
        f, x = jax.vmap(f), x if level == 0 else jnp.stack([x, 2 * x])
    np.testing.assert_array_equal(f(x), x**2)
    program = str(jax.make_jaxpr(f)(x))
    assert "cond[" in program
    assert "select_n" not in program


def test_singular_matrices_among_regular_ones_are_factorised_as_alone():
    several = np.stack([np.diag([1.0, 2.0]), np.diag([1.0, 0.0]), np.ones((2, 2))])
    b = np.array([3.0, 3.0])
    with jax.enable_x64(True):
        found = jax.vmap(lambda G: Dense(G).solve(b))(jnp.asarray(several))
    expected = [Dense(G).solve(b) for G in several]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
