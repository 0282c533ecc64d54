"""Parts of an experiment, kept on disk as they are finished.

With a folder for them, an interrupted experiment resumes where it stopped, and several processes
that are given the same folder share the work: each takes a part that nobody is at work on, and
waits for those of the others at the end.
"""

import functools
import io
import re
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from bayespg._support.files import make_directory, write_whole
from bayespg.reproduce.samples import DAMAGED

try:
    import fcntl
except ImportError:  # Windows: processes do not share work there, but resume it
    fcntl = None

Part = dict[str, np.ndarray]
"""What one part computes: arrays by name."""
Work = Callable[[], Part]
Progress = Callable[[float, str], None]
"""Called with the fraction done and a short description of the current step."""
Cell = TypeVar("Cell", bound=Hashable)


def between(progress: Progress, start: float, end: float) -> Progress:
    """The progress of a stage that takes a computation from `start` to `end`."""
    return lambda fraction, what: progress(start + (end - start) * fraction, what)


def compute(
    cells: Mapping[str, Cell],
    work: Callable[[Cell, Progress], Part],
    folder: Path | None,
    progress: Progress,
    size: Callable[[Cell], float] = lambda cell: 1.0,
) -> dict[Cell, Part]:
    """What `work` computes for every cell. A cell is a part with its label, and takes a share of
    the progress in proportion to its `size`."""
    total, ready = sum(map(size, cells.values())), 0.0
    computed: dict[Cell, Part] = {}

    def part(cell: Cell, label: str) -> Part:
        progress(ready, label)
        return work(cell, between(progress, ready, ready + size(cell) / total))

    parts = {label: functools.partial(part, cell, label) for label, cell in cells.items()}
    for label, arrays in done(parts, folder):
        computed[cells[label]] = arrays
        ready = min(ready + size(cells[label]) / total, 1.0)
    return {cell: computed[cell] for cell in cells.values()}


def done(parts: Mapping[str, Work], folder: Path | None) -> Iterator[tuple[str, Part]]:
    """Every part, by its label, as it becomes available; those that `folder` holds already are
    read from it."""
    if folder is None:
        yield from ((label, work()) for label, work in parts.items())
        return
    make_directory(folder)
    taken = set()
    for wait in (False, True):  # at first those that nobody is at work on
        for label, work in parts.items():
            if label in taken:
                continue
            with _locked(folder / f"{_slug(label)}.lock", wait) as mine:
                if mine:
                    taken.add(label)
                    yield label, _kept(folder, label, work)


def _kept(folder: Path, label: str, work: Work) -> Part:
    path = folder / f"{_slug(label)}.npz"
    if not path.exists():
        buffer = io.BytesIO()
        np.savez(buffer, **work())  # pyright: ignore[reportArgumentType]
        write_whole(path, buffer.getvalue())
    try:
        with np.load(path) as stored:
            return dict(stored)
    except (OSError, EOFError, ValueError, *DAMAGED) as error:
        raise ValueError(f"{path}: damaged ({error}); delete it to compute it again") from error


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the lock was obtained. It is released as the file is closed, also if the process
    ends."""
    with path.open("a") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def _slug(label: str) -> str:
    """A file name that people can read and that no two labels share."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', label).strip('-')}-{zlib.crc32(label.encode()):08x}"
