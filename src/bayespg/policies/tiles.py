"""Tile coding for observations of few dimensions: many parameters, few of them active at a
state."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bayespg._support.types import Array
from bayespg.policies import distributions
from bayespg.policies.base import SparsePolicy
from bayespg.policies.distributions import Distribution

SCALE = 0.5
"""Standard deviation of Gaussian actions, in units of half the action's range."""


class Tiles(SparsePolicy):
    """Outputs sum over tilings of the weights of the tile that holds x; tiling j is shifted by
    (2i + 1) j / tilings tiles in dimension i. Outputs are logits, or means of Gaussians whose
    scale is fixed."""

    weights: Float[Array, " n"]
    inputs: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True, default=())
    """Numbers of options of the choices; empty for Gaussians."""
    scalar: bool = eqx.field(static=True, default=False)
    tiles: int = eqx.field(static=True, default=6)
    tilings: int = eqx.field(static=True, default=8)
    low: float = eqx.field(static=True, default=-2.5)
    high: float = eqx.field(static=True, default=2.5)

    def active(self, state: Float[Array, " d"]) -> Int[Array, " k"]:
        tiling, dimension = np.arange(self.tilings)[:, None], np.arange(self.inputs)
        shift = (tiling * (2 * dimension + 1) % self.tilings) / self.tilings
        at = (state - self.low) / (self.high - self.low) * self.tiles + shift.astype(state.dtype)
        at = jnp.clip(at, 0, self.tiles).astype(jnp.int32)
        shape = self.tilings, *(self.tiles + 1,) * self.inputs
        number = jnp.arange(self.tilings, dtype=jnp.int32)
        index = jnp.ravel_multi_index((number, *at.T), shape, mode="clip")
        return (index[:, None] * self.outputs + jnp.arange(self.outputs)).reshape(-1)

    def local(self, weights: Float[Array, " k"], state: Float[Array, " d"]) -> Distribution:
        sums = weights.reshape(self.tilings, self.outputs).sum(0)
        if self.sizes:
            return distributions.choice(sums, self.sizes, self.scalar)
        return distributions.Gaussians(sums, jnp.full_like(sums, math.log(SCALE)))

    def __call__(self, state: Float[Array, " d"]) -> Distribution:
        return self.local(jnp.asarray(self.weights)[self.active(state)], state)


def size(inputs: int, outputs: int, tiles: int = 6, tilings: int = 8) -> int:
    return tilings * (tiles + 1) ** inputs * outputs
