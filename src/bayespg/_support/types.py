"""Arrays of JAX or of NumPy, as this package takes and returns them."""

import jax
import numpy as np

Array = jax.Array | np.ndarray
