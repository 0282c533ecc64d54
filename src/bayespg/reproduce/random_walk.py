"""The random walk of Section 8.1: settings and estimators shared by Figures 6 and 7."""

import jax.numpy as jnp
import numpy as np

from bayespg import kernels
from bayespg.learning.estimators import (
    BACPaper,
    CompatibleLeastSquares,
    FittedValues,
    g_est,
    g_est_as_printed,
)

STATE_KERNEL = kernels.Nystrom(kernels.Gaussian(3.0), jnp.arange(9.0)[:, None])
"""exp(-|x - x'|^2 / 18) on the nine states, represented exactly by nine features."""
NOISE, SCALE = 0.1, 0.01
"""The noise variance sigma^2, which the paper does not state, and the factor of its 0.01 k_F."""
START = float(np.log(41 / 9))
"""The parameter theta of Figure 6: the walk moves right with probability 0.82."""

PAPER = BACPaper(STATE_KERNEL, NOISE, SCALE, fisher=g_est)
PRINTED = BACPaper(STATE_KERNEL, NOISE, SCALE, fisher=g_est_as_printed)
INTEGRATED = BACPaper(STATE_KERNEL, NOISE, SCALE)
OURS = BACPaper(STATE_KERNEL, None, lambda_=0.0)
"""Actions integrated out of G, noise on the rewards, and all three variances chosen by evidence."""
FIXED = BACPaper(kernels.Scaled(STATE_KERNEL, 100.0), 0.01, 0.1, lambda_=0.0)
"""The same with fixed variances, chosen for the noise of the rewards and for values of about ten.
Evidence needs more than one episode, and Figure 7 also has updates of a single episode."""
FITTED = FittedValues(STATE_KERNEL, NOISE)
COMPATIBLE = CompatibleLeastSquares(STATE_KERNEL, NOISE)
