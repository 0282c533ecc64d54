"""What an experiment measured in every run.

It is kept on disk, and claims are judged from it alone, so that a new claim needs no new run.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bayespg._support.files import write_whole

GROUPS = 100
"""Most groups of runs whose means are kept, where the runs themselves would fill many megabytes."""
BITS = 12
"""Significant bits that are kept: more than the standard error of any sample here can resolve."""
DAMAGED = (zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive raises, beside OSError, EOFError and ValueError."""
Key = tuple[str, str, int]
"""What was measured, of which method, with how many paths."""


class Samples(dict[Key, np.ndarray]):
    """One number (or row of numbers) per run, or per group of runs.

    Numbers in double precision are rounded to `BITS` significant bits as they come in, so that what
    is judged after a run is what is judged later from disk. Counts are kept as they are.
    """

    def __init__(self, cells: Mapping[Key, np.ndarray]):
        super().__init__({key: _rounded(np.asarray(values)) for key, values in cells.items()})

    def sizes(self, what: str | None = None) -> tuple[int, ...]:
        """The numbers of paths, in ascending order; those of one measurement if it is named."""
        return tuple(sorted({M for kind, _, M in self if what in (None, kind)}))

    def names(self, what: str) -> tuple[str, ...]:
        """The methods of one measurement, in their order."""
        return tuple(dict.fromkeys(name for kind, name, _ in self if kind == what))

    def save(self, path: Path) -> None:
        """One compressed file: all numbers in a row, and an index that says what they are."""
        index = [[*key, list(values.shape)] for key, values in self.items()]
        flat = [values.ravel() for values in self.values()]
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            index=np.array(json.dumps(index)),
            values=np.concatenate(flat) if flat else np.zeros(0, np.float32),
        )
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Samples":
        """What `save` wrote. ValueError if the file is damaged."""
        try:
            with np.load(path) as stored:
                index, values = json.loads(str(stored["index"])), stored["values"]
            cells, start = {}, 0
            for what, name, M, shape in index:
                end = start + int(np.prod(shape))
                cells[what, name, M] = values[start:end].reshape(shape)
                start = end
        except (OSError, EOFError, LookupError, TypeError, ValueError, *DAMAGED) as error:
            raise ValueError(f"{path}: not a file of samples, or damaged ({error})") from error
        return cls(cells)


def grouped(samples: Float[np.ndarray, "runs ..."]) -> Float[np.ndarray, "groups ..."]:
    """Means over at most `GROUPS` groups of consecutive runs.

    Their mean is that of the runs, and so is the standard error it is judged by.
    """
    values = np.asarray(samples, float)
    starts = np.arange(min(len(values), GROUPS)) * len(values) // min(len(values), GROUPS)
    counts = np.diff(starts, append=len(values)).reshape(-1, *[1] * (values.ndim - 1))
    return np.add.reduceat(values, starts) / counts


def _rounded(values: np.ndarray) -> Float[np.ndarray, "..."]:
    """In single precision, with `BITS` significant bits if the precision was double."""
    if values.dtype == np.float64:
        mantissa, exponent = np.frexp(values)
        values = np.ldexp(np.round(mantissa * 2.0**BITS), exponent - BITS)
    return values.astype(np.float32)
