"""Compiled programs remembered from one process to the next: by the command, and once an agent is
made."""

import os
from pathlib import Path

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
