"""A thread pool large enough not to deadlock.

A batched LAPACK call of jaxlib (Cholesky, triangular solve) distributes its parts over XLA's CPU
pool and waits for them on a thread of that same pool. If there are as many such calls at once as
threads in the pool, all of them wait for ever: two are enough on a machine with two cores. The pool
takes its size from the environment variable ``NPROC`` when the backend starts; `protect` asks for
8, more than the calls that a program here has in flight. (One thread is safe too, and leaves the
other cores idle; many more slow other processes down.) A value that the user has set is not
changed.

OpenBLAS, which does that linear algebra, starts as many threads as there are cores, and for
matrices of a few hundred rows they are slower than one thread: by a factor of two to ten, most on a
busy machine. ``OPENBLAS_NUM_THREADS`` is set to 1 for libraries that are loaded later: SciPy's,
which JAX uses. NumPy's own has been loaded by then and keeps its threads.
"""

import logging
import os
import sys

import numpy as np  # noqa: F401  (before its threads are counted)

from bayespg._support.warning import warn

SAFE_POOL = 8
RISKY = 4
"""Pool sizes up to this have been seen to deadlock."""


def cores() -> int:
    """Cores this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def backend_started() -> bool:
    """Whether JAX has already created its devices (and read ``NPROC``)."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def protect() -> None:
    """Set ``NPROC`` before JAX reads it, and one thread for OpenBLAS; warn where it is too late."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if cores() == 1 or cores() >= SAFE_POOL or "NPROC" in os.environ:
        return
    if backend_started():
        if cores() > RISKY:
            return
        warn(
            f"JAX was started before bayespg with a pool of {cores()} threads, with which XLA can "
            f"deadlock on the CPU. Import bayespg first, or set NPROC={SAFE_POOL} yourself.",
            RuntimeWarning,
        )
        return
    os.environ["NPROC"] = str(SAFE_POOL)
    logging.getLogger("bayespg").info(
        "set NPROC=%d: XLA's CPU pool of %d threads can deadlock", SAFE_POOL, cores()
    )
