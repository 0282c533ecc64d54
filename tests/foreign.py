"""Arrays of other frameworks, by what they offer."""

import numpy as np


class OnlyDLPack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OnlyArray:
    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype)


class Attached(OnlyArray):
    """Like a PyTorch tensor that carries a graph."""

    def detach(self):
        return OnlyArray(self._array)

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call detach() first")
