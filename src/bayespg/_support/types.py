"""Arrays as this package takes and gives them: of JAX or of NumPy."""

import jax
import numpy as np

Array = jax.Array | np.ndarray
