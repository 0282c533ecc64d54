"""Before bayespg is imported: shapes are checked at run time, hypothesis is repeatable."""

import os
import sys

os.environ.setdefault("NPROC", "4")

import equinox
import hypothesis
import jax
import jaxtyping
import lineax
import numpy as np
import optax

jaxtyping.Array = jax.Array | np.ndarray
jaxtyping.install_import_hook("bayespg", "typecheck.check")
hypothesis.settings.register_profile(
    "bayespg", deadline=None, derandomize=True, max_examples=15, database=None
)
hypothesis.settings.load_profile("bayespg")
