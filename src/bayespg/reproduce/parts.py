"""Parts of an experiment, kept on disk as they are finished.

With a folder for them, an interrupted experiment resumes where it stopped, and several processes
that are given the same folder share the work: each takes a part that nobody is at work on, and
waits for those of the others at the end.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bayespg._support.files import write_whole

try:
    import fcntl
except ImportError:  # Windows: processes do not share work there, but resume it
    fcntl = None

Part = dict[str, np.ndarray]
"""What one part computes: arrays by name."""
Work = Callable[[], Part]


def done(parts: Mapping[str, Work], folder: Path | None) -> Iterator[tuple[str, Part]]:
    """Every part, by its label, as it becomes available; those that `folder` holds already are
    read from it."""
    if folder is None:
        yield from ((label, work()) for label, work in parts.items())
        return
    folder.mkdir(parents=True, exist_ok=True)
    left = []
    for label, work in parts.items():
        with _locked(folder / f"{_slug(label)}.lock", wait=False) as mine:
            if mine:
                yield label, _kept(folder, label, work)
            else:
                left.append(label)
    for label in left:
        with _locked(folder / f"{_slug(label)}.lock", wait=True):
            yield label, _kept(folder, label, parts[label])


def _kept(folder: Path, label: str, work: Work) -> Part:
    path = folder / f"{_slug(label)}.npz"
    if not path.exists():
        buffer = io.BytesIO()
        np.savez(buffer, **work())  # pyright: ignore[reportArgumentType]
        write_whole(path, buffer.getvalue())
    with np.load(path) as stored:
        return dict(stored)


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the lock was obtained; the system releases it if the process ends."""
    with path.open("a") as file:
        if fcntl is None:
            yield True
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _slug(label: str) -> str:
    """A file name that people can read and that no two labels share."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', label).strip('-')}-{zlib.crc32(label.encode()):08x}"
