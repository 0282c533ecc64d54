"""Before bayespg is imported: shapes are checked at run time, and hypothesis repeats itself."""

import os

os.environ.setdefault("NPROC", "8")  # before JAX starts; see bayespg._threads

import hypothesis
import jax
import jaxtyping
import pytest
from oracle import Problem, problem

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
