"""Before bayespg is imported: shapes are checked at run time, and hypothesis repeats itself."""

import os

os.environ.setdefault("NPROC", "4")  # before JAX starts; see bayespg._threads

import equinox as eqx
import hypothesis
import jax
import jaxtyping
import lineax as lx
import numpy as np
import optax
import pytest
from oracle import Problem, problem

__all__ = ["eqx", "lx", "optax"]  # imported while `Array` is still theirs

jaxtyping.Array = jax.Array | np.ndarray
jaxtyping.install_import_hook("bayespg", "typecheck.check")

hypothesis.settings.register_profile(
    "bayespg", deadline=None, derandomize=True, max_examples=15, database=None
)
hypothesis.settings.load_profile("bayespg")


@pytest.fixture
def batch() -> Problem:
    """Eight paths, two parameters."""
    return problem(8, 2)


@pytest.fixture
def wide() -> Problem:
    """Fewer paths than parameters."""
    return problem(3, 4)


@pytest.fixture
def x64():
    """JAX in float64 for one test."""
    with jax.enable_x64(True):
        yield
