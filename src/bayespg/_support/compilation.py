"""Compiled programs: made quickly, and remembered from one process to the next by the command and
once an agent is made."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax


def remember() -> None:
    """Let JAX keep compiled programs under ~/.cache/bayespg, unless the user has set a place."""
    if jax.config.values.get("jax_compilation_cache_dir"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = home / "bayespg" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written costs compile time, nothing else
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@functools.cache
def quickly() -> dict[str, Any]:
    """XLA's options for programs of many small kernels, as those of an agent, on a CPU.

    They take half as long to compile and as long to run: LLVM's first level of optimisation
    vectorises too and, with JAX 0.10, kernels are made without MLIR. Later versions have no such
    choice, and refuse its name.
    """
    if jax.default_backend() != "cpu":
        return {}
    plain = jax.__version__.startswith("0.10.")
    return {"xla_backend_optimization_level": 1} | (
        {"xla_cpu_use_fusion_emitters": False} if plain else {}
    )


@contextlib.contextmanager
def meanwhile(compile_program: Callable[[], Any] | None) -> Iterator[None]:
    """Compile a program in a thread while the body runs; JAX keeps it for the call that follows.

    An error is left to that call, which meets it again.
    """
    if compile_program is None:
        yield
        return

    def quietly() -> None:
        with contextlib.suppress(Exception):
            compile_program()

    thread = threading.Thread(target=quietly)
    thread.start()
    try:
        yield
    finally:
        thread.join()
