"""The random walk of Section 8.1: what Figures 6 and 7 share."""

import jax.numpy as jnp
import numpy as np

from bayespg import kernels
from bayespg.environments import RandomWalk
from bayespg.learning.estimators import (
    BAC,
    CompatibleLeastSquares,
    FittedValues,
    g_est,
    g_est_as_printed,
)

STATE_KERNEL = kernels.Nystrom(kernels.Gaussian(3.0), jnp.arange(9.0)[:, None])
"""exp(-|x - x'|^2 / 18) on the nine states, exactly."""
NOISE, SCALE = 0.1, 0.01
"""sigma^2, which the paper does not give, and the paper's 0.01 k_F."""
START = float(np.log(41 / 9))
"""theta of Figure 6: right with probability 0.82."""

PAPER = BAC(STATE_KERNEL, NOISE, SCALE, fisher=g_est)
PRINTED = BAC(STATE_KERNEL, NOISE, SCALE, fisher=g_est_as_printed)
INTEGRATED = BAC(STATE_KERNEL, NOISE, SCALE)
OURS = BAC(STATE_KERNEL, None, trace=0.0)
"""Actions integrated out of G, noise on the rewards, all three variances by evidence."""
FIXED = BAC(kernels.Scaled(STATE_KERNEL, 100.0), 0.01, 0.1, trace=0.0)
"""The same with fixed variances, those of the rewards and of values of some ten: evidence wants
more than one episode."""
FITTED = FittedValues(STATE_KERNEL, NOISE)
COMPATIBLE = CompatibleLeastSquares(STATE_KERNEL, NOISE)


def walk(horizon: int) -> RandomWalk:
    return RandomWalk(horizon=horizon)
