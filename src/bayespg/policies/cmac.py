"""The policy of ship steering, Section 8.3: a CMAC, the average of overlapping tilings."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bayespg._support.types import Array
from bayespg.environments import ship_steering
from bayespg.policies.base import SparsePolicy
from bayespg.policies.distributions import UnitNormal


class CMAC(SparsePolicy):
    """a ~ N(sum_i w_i phi_i(x) / sum_i phi_i(x), 1), phi_i(x) = 1 in the one tile of each tiling
    that holds x.

    Tiling j is shifted by j displacement / tilings tiles, modulo a tile. Unequal displacements keep
    the tilings from lying along a diagonal; these are prime to 9, so that each dimension has nine
    offsets. Where a dimension does not wrap around, the first and the last tile extend beyond the
    bounds, so that every state has a tile in each tiling. Weights are in the order of tilings, then
    of tiles, the last dimension running fastest.
    """

    weights: Float[Array, "*runs n"]
    low: tuple[float, ...] = eqx.field(static=True, default=ship_steering.LOW)
    high: tuple[float, ...] = eqx.field(static=True, default=ship_steering.HIGH)
    tiles: tuple[int, ...] = eqx.field(static=True, default=(5, 5, 36, 5))
    tilings: int = eqx.field(static=True, default=9)
    wraps: tuple[bool, ...] = eqx.field(static=True, default=(False, False, True, False))
    """Dimensions whose last tile adjoins the first."""
    displacement: tuple[int, ...] = eqx.field(static=True, default=(1, 2, 4, 7))

    def __check_init__(self):
        expected = self.tilings * math.prod(self.tiles)
        if self.weights.shape[-1] != expected:
            raise ValueError(
                f"weights: {self.tilings} tilings of {self.tiles} tiles need {expected} entries, "
                f"found {self.weights.shape[-1]}"
            )

    def active(self, state: Float[Array, " d"]) -> Int[Array, " k"]:
        """The tile of each tiling that holds the state."""
        low, high = jnp.array(self.low, state.dtype), jnp.array(self.high, state.dtype)
        tiles, tiling = np.array(self.tiles), np.arange(self.tilings)
        shifts = tiling[:, None] * np.array(self.displacement) % self.tilings / self.tilings
        at = (state - low) / (high - low) * tiles + jnp.array(shifts, state.dtype)
        at = jnp.where(np.array(self.wraps), jnp.floor(at) % tiles, jnp.clip(at, 0, tiles - 1))
        number = jnp.array(tiling, jnp.int32), *at.astype(jnp.int32).T
        return jnp.ravel_multi_index(number, (self.tilings, *self.tiles), mode="clip")

    def local(self, weights: Float[Array, " k"], state: Float[Array, " d"]) -> UnitNormal:
        return UnitNormal(weights.mean())

    def __call__(self, state: Float[Array, " d"]) -> UnitNormal:
        return self.local(jnp.asarray(self.weights)[self.active(state)], state)


def ship_steering_cmac(runs: int | None = None) -> CMAC:
    """The paper's policy, 9 tilings of 5 x 5 x 36 x 5 tiles, at zero."""
    return CMAC(jnp.zeros((*(() if runs is None else (runs,)), 9 * 5 * 5 * 36 * 5)))
