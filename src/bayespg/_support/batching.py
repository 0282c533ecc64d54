"""Branches of functions that are mapped over many runs."""

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from bayespg._support.types import Array


@jax.custom_batching.custom_vmap
def in_any_run(condition: Bool[Array, ""]) -> Bool[Array, ""]:
    """The condition of a `jax.lax.cond` whose first branch is costly, rarely needed, and right for
    runs that do not need it too.

    `vmap` computes both branches of a `cond` for all runs where its condition differs between
    them. This condition is the same for all: whether it holds in any of them.
    """
    return condition


@in_any_run.def_vmap
def _(axis_size: int, batched: list[bool], condition: Bool[Array, " runs"]):
    del axis_size, batched
    return in_any_run(jnp.any(condition, 0)), False
