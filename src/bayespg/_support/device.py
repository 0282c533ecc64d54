"""The device that JAX computes on."""

import functools
from typing import Any

import jax


@functools.cache
def require() -> None:
    """Start JAX; ValueError if JAX_PLATFORMS names a platform that is not available."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as problem:
        wanted = jax.config.values.get("jax_platforms")
        if not wanted:
            raise
        why = str(problem).split("(set JAX_PLATFORMS")[0].strip(" .")
        why = why or "there is none, or JAX was installed without it"
        raise ValueError(
            f"JAX_PLATFORMS: JAX cannot use '{wanted}' on this machine ({why}); unset the variable "
            "or set it to cpu"
        ) from None


@functools.cache
def cpu() -> Any:
    """The CPU, on which policies act; where JAX_PLATFORMS leaves it out, the default device."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.devices()[0]
