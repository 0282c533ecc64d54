"""The device that JAX computes on."""

import functools
import os
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


def choose(name: str) -> None:
    """Compute on the CPU or on a GPU from here on, in processes that are started later too."""
    if name not in ("cpu", "gpu"):
        raise ValueError(f"device: expected cpu or gpu, found {name!r}")
    try:
        device = jax.devices(name)[0]
    except RuntimeError:
        raise ValueError(
            f"device: JAX finds no {name} on this machine; for one of NVIDIA install it with pip "
            "install 'jax[cuda13]', and leave JAX_PLATFORMS unset"
        ) from None
    jax.config.update("jax_default_device", device)
    if name == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"


@functools.cache
def cpu() -> Any:
    """The CPU, on which policies act; where JAX_PLATFORMS leaves it out, the default device."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.devices()[0]


def all_devices() -> list[Any]:
    """The devices of the default platform; one alone where the user has chosen it."""
    chosen = jax.config.values["jax_default_device"]
    return jax.local_devices() if chosen is None else [chosen]
