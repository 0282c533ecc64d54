"""Before bayespg is imported: how programs are compiled, what is checked while they run, and that
hypothesis repeats itself."""

import gc
import importlib.metadata
import os
import signal
from pathlib import Path

os.environ.setdefault("NPROC", "8")  # before JAX starts; see bayespg._support.threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share two cores
# XLA would spend more time on optimising the programs here than they take. The processes that tests
# start inherit this; JAX_DISABLE_MOST_OPTIMIZATIONS=0 XLA_FLAGS="" tests what users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Compiled programs are kept in the checkout: what many tests and their processes compile is
# compiled once, and not at all in a later run. No test needs the folder; `make clean` removes it.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".jax_cache")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # nobody reads these programs

import hypothesis
import jax
import jaxtyping
import pytest
from jax._src import pjit
from jax._src.interpreters import pxla
from oracle import Problem, problem

if os.environ.get("CHECK_SHAPES"):  # as `make test-all` does; the import alone takes 7 s longer
    jaxtyping.install_import_hook("bayespg", "typecheck.check")

if "XLA_FLAGS" not in os.environ and importlib.metadata.version("jaxlib").startswith("0.10."):
    # XLA's older emitters compile in less than half the time, and large programs faster in one
    # piece than in 32; jaxlib aborts on a flag that it does not know.
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background ignores Ctrl-C, and the processes that tests
    # start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "bayespg", deadline=None, derandomize=True, max_examples=15, database=None
)
hypothesis.settings.load_profile("bayespg")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name):
    """The mark `slow` with ids is for these cases of a parametrised test, all of which must exist;
    without ids it is for all of them."""
    made = yield
    items = made if isinstance(made, list) else []
    slow = {case for item in items for mark in item.iter_markers("slow") for case in mark.args}
    if missing := slow - {item.callspec.id for item in items if hasattr(item, "callspec")}:
        raise collector.CollectError(f"{name}: slow names cases that do not exist: {missing}")
    for item in items if slow else ():
        if item.callspec.id not in slow:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
    return made


def pytest_collection_finish():
    """What was collected stays until the end, so the garbage collector need not look at it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(autouse=True, scope="module")
def _forget_the_text_of_programs():
    """JAX keeps the MLIR text of the last 2,048 programs, not needed once they are compiled; while
    MLIR holds so many, it takes up to four times as long to write the next one."""
    yield
    for module, name in (pjit, "_pjit_lower"), (pxla, "_cached_lowering_to_hlo"):
        if hasattr(module, name):  # as in JAX 0.10
            getattr(module, name).cache_clear()


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


@pytest.fixture
def optimised():
    """For a test whose programs run longer than they compile."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
