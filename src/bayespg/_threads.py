"""A thread pool that cannot deadlock.

XLA's CPU backend can freeze when its pool has exactly two threads, which is what a two-core machine
gives it: a vmapped loop with Cholesky factorisations inside waits for itself. The pool takes its
size from the environment variable ``NPROC`` when the backend starts, and any other size is safe, so
on machines of two or three cores `protect` asks for four. A value the user has set is left alone.
"""

import logging
import os
import sys
import warnings

SAFE_POOL = 4


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
    """Set ``NPROC`` before JAX reads it; warn where it is too late."""
    if cores() not in (2, 3) or "NPROC" in os.environ:
        return
    if backend_started():
        warnings.warn(
            f"JAX was started before bayespg with a pool of {cores()} threads, with which XLA can "
            f"deadlock on the CPU. Import bayespg first, or set NPROC={SAFE_POOL} yourself.",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    os.environ["NPROC"] = str(SAFE_POOL)
    logging.getLogger("bayespg").info(
        "set NPROC=%d: XLA's CPU pool of %d threads can deadlock", SAFE_POOL, cores()
    )
