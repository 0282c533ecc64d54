"""Before bayespg is imported: shapes are checked at run time, and hypothesis repeats itself."""

import os

os.environ.setdefault("NPROC", "8")  # before JAX starts; see bayespg._threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share two cores

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


@pytest.fixture(autouse=True, scope="module")
def optimised(request):
    """A module that says ``COMPILE_QUICKLY = True`` has many small programs: XLA spends more time
    on optimising them than they take."""
    jax.config.update(
        "jax_disable_most_optimizations", getattr(request.module, "COMPILE_QUICKLY", False)
    )
    yield
    jax.config.update("jax_disable_most_optimizations", False)


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
