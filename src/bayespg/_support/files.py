"""Files in directories that may come from anywhere.

They are written atomically and never through a link; they are read only if they are plain files of
a plausible size.
"""

import contextlib
import errno
import io
import json
import math
import os
import re
import secrets
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

LARGEST_JSON = 2**20
"""Largest size in bytes of a JSON file or header; those written here have a few hundred."""
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)

_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read(path: Path, most: int | None = None) -> bytes:
    """The content of a plain file; ValueError if it is not one or has more than `most` bytes."""
    descriptor = os.open(path, os.O_RDONLY | _NO_WAIT)  # a pipe does not block
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ValueError(f"{path}: expected a file, found a directory, pipe or device")
    with os.fdopen(descriptor, "rb") as file:
        if most is not None and status.st_size > most:
            raise ValueError(f"{path}: has {status.st_size:,} bytes, expected at most {most:,}")
        return file.read() if most is None else file.read(most)


def read_json(path: Path, kind: type[Any] | tuple[type[Any], ...]) -> Any:
    """A JSON object (dict) or list; ValueError names the file and says what is wrong with it."""
    content = read(path, LARGEST_JSON)
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path}: damaged ({problem}); repair it or start again") from None
    if not isinstance(parsed, kind):
        expected = "a JSON object" if kind is dict else "a JSON object or list"
        raise ValueError(f"{path}: expected {expected}, found {parsed!r:.40}; repair it")
    return parsed


def members(content: bytes) -> dict[str, bytes]:
    """The members of a zip archive in which nothing is compressed, so that it cannot hold more than
    its own size, and no member claims more than it has. Anything else raises an exception of any
    kind."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        listed = archive.infolist()
        if any(m.compress_type != zipfile.ZIP_STORED for m in listed):
            raise ValueError("a member is compressed")
        if sum(m.file_size for m in listed) > len(content):
            raise ValueError("the members claim more than the file holds")
        parts = {m.filename: archive.read(m) for m in listed}
    if len(parts) < len(listed):
        raise ValueError("two members have the same name")
    return parts


def read_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The arrays in an archive that `numpy.savez` has written, as `members` reads it."""
    parts = members(content).items()
    return {name.removesuffix(".npy"): _array(part) for name, part in parts}


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array is in another format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "biufc" or min(shape, default=0) < 0 or size != len(content) - file.tell():
        raise ValueError("an array is not what its own header says")
    return np.load(io.BytesIO(content), allow_pickle=False)


def open_own(path: Path, flags: int) -> int:
    """The descriptor of a plain file that is to be changed in place; the file is created if
    missing.

    A symbolic link, a second name of another file, a pipe or a device is refused.
    """
    try:
        file = os.open(path, flags | os.O_CREAT | _NOT_A_LINK | _NO_WAIT, 0o666)
    except OSError as problem:
        if path.is_symlink():
            raise _no_own(path, "a symbolic link") from None
        raise write_error(path, problem) from problem
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(file)
        raise _no_own(path, "a hard link, a pipe or a device")
    return file


def refuse_link(directory: Path) -> None:
    """ValueError if a directory that is to be written to is a symbolic link."""
    if directory.is_symlink():
        raise _no_own(directory, "a symbolic link")


def _no_own(path: Path, kind: str) -> ValueError:
    return ValueError(
        f"{path}: is {kind}, and what it leads to would be overwritten; delete it or put a copy "
        "in its place"
    )


def sync(path: Path, size: int | None = None) -> None:
    """Force a file to disk; with `size`, first remove what it holds after that many bytes."""
    file = open_own(path, os.O_RDWR)
    try:
        if size is not None:
            os.ftruncate(file, size)
        os.fsync(file)
    except OSError as problem:
        raise write_error(path, problem) from problem
    finally:
        os.close(file)


def make_directory(path: Path) -> None:
    """Make a directory that may be there already, with those above it; an error says what to do."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        advice = f"this directory cannot be created ({problem.strerror}); choose another"
        raise OSError(problem.errno, advice, str(path)) from problem


def write_whole(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Write a file atomically; the old content moves to `previous`.

    The content goes to a new file beside the old one, is forced to disk, and only then takes the
    name. A link of that name is replaced, never followed.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOT_A_LINK, 0o666)
        try:
            write_all(file, content)
            os.fsync(file)
        finally:
            os.close(file)
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(partial, path)
    except OSError as problem:
        with contextlib.suppress(OSError):  # a read-only disk refuses this too
            partial.unlink()
        raise write_error(path, problem) from problem


def write_json(path: Path, content: Any) -> None:
    """Write results as a JSON file that people can read, atomically."""
    write_whole(path, readable(content).encode())


def readable(content: Any) -> str:
    """JSON with six digits per number, null for numbers that are not finite, and each list of
    numbers on one line."""
    text = json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\s([^][{}\"]+)\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(of) for key, of in value.items()}
        case list() | tuple():
            return [_plain(of) for of in value]
        case str() | bool() | int() | None:
            return value
        case _:
            number = float(value)
            return float(f"{number:.6g}") if math.isfinite(number) else None


def forget(directory: Path, names: re.Pattern[str]) -> None:
    """Remove what killed processes left there; no other process may be writing these files."""
    for entry in directory.iterdir():
        if names.fullmatch(entry.name):
            entry.unlink(missing_ok=True)


def write_all(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


def write_error(path: Path, problem: OSError) -> OSError:
    """The same error with a message that says what remains and what to do."""
    advice = "what was there before is kept; "
    if problem.errno in FULL:
        advice += "make room, then resume"
    elif problem.errno == errno.ENOENT:
        advice = "its directory does not exist; create it or choose another"
    else:
        advice += "choose another place or repair this one"
    return OSError(problem.errno, f"not written ({problem.strerror}), {advice}", str(path))


def printable(text: object) -> str:
    """Text that a terminal, a figure and a page can show: control characters and invalid bytes,
    which the name of a file may contain, are escaped."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode()
        for c in str(text)
    )
