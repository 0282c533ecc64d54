"""Compiled programs: compiled quickly, and cached on disk by the command line and by agents."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from bayespg._support import device


def remember() -> None:
    """Let JAX keep compiled programs under ~/.cache/bayespg, unless the user has set a
    directory."""
    if jax.config.values.get("jax_compilation_cache_dir"):
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = home / "bayespg" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # without a writable home only compile time is lost
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@functools.cache
def fast(platform: str | None = None, double: bool = True, brief: bool = True) -> dict[str, Any]:
    """XLA's options for programs of many small kernels, as those of an agent.

    On a CPU they halve the compile time and do not change the run time: LLVM's first level of
    optimisation vectorises too and, with JAX 0.10, kernels are made without MLIR. Later versions do
    not have that option and refuse its name. On a GPU XLA would compile and time dozens of Triton
    kernels for every product of matrices, which takes minutes and gains nothing for small ones.
    Where JAX was asked for no optimisations, there are none here.

    A program that is not `brief` has kernels made with MLIR: it runs a fifth faster, and compiles
    longer.

    In `double` precision sums are taken term by term: XLA would make each a tree of two or three
    kernels, for the sake of single precision, and a quarter of the compile time is spent on them.
    """
    if platform is None:
        device.require()
        platform = jax.default_backend()
    if jax.config.read("jax_disable_most_optimizations"):
        return {}
    if platform != "cpu":
        return {"xla_gpu_enable_triton_gemm": False} if platform in ("gpu", "cuda") else {}
    plain = jax.__version__.startswith("0.10.")
    return (
        {"xla_backend_optimization_level": 1}
        | ({"xla_cpu_use_fusion_emitters": False} if plain and brief else {})
        | ({"xla_disable_hlo_passes": "tree_reduction_rewriter"} if double else {})
    )


@functools.cache
def on_one_thread() -> dict[str, Any]:
    """XLA's options for a small program on the CPU whose numbers must not depend on the number of
    cores: a product of matrices that threads share out is summed in another order."""
    if device.cpu().platform != "cpu":
        return {}
    return fast("cpu", double=False) | {"xla_cpu_multi_thread_eigen": False}


@contextlib.contextmanager
def meanwhile(compile_program: Callable[[], Any] | None) -> Iterator[None]:
    """Compile a program in a thread while the body runs; JAX keeps it for the call that follows.

    An error is ignored here, because that call raises it again.
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
