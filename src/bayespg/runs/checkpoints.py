"""Checkpoint files: arrays, numbers and PRNG keys of a tree, and a JSON object.

A checkpoint is a plain .npz with each array under its path in the tree, and nothing is ever
unpickled: the structure comes from a template, the state that the same configuration starts from.
The file is written beside the old one, forced to disk, and only then takes its name.
"""

import hashlib
import io
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support import files
from bayespg._support.files import write_whole

FORMAT, VERSION = "bayespg-checkpoint", 2
STORED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)
"""Leaves that a checkpoint holds; others (functions, strings) come from the template."""
StrPath = str | os.PathLike[str]


class Damaged(ValueError):
    """A damaged checkpoint."""


def save(path: StrPath, tree: Any, meta: dict[str, Any] | None = None) -> None:
    """Save arrays, numbers and PRNG keys of a tree, and a JSON object, atomically in one file."""
    write_whole(Path(path), pack(tree, meta)[0])


def load(path: StrPath, template: Any) -> tuple[Any, dict[str, Any]]:
    """Load what was saved: arrays as NumPy arrays of the dtype they had, whatever JAX's precision,
    and the JSON object. The template must agree in names, shapes and dtypes.

    The file may come from anywhere: no code in it is run, it is never decompressed, and one that
    is much larger than the template, or that claims to be, is refused before it is read.
    """
    checkpoint = read(Path(path), template)
    return checkpoint.tree, checkpoint.meta


class Checkpoint(NamedTuple):
    """What a file holds."""

    path: Path
    tree: Any
    meta: dict[str, Any]
    run: dict[str, Any]
    """What `Run` says about the files beside it; empty for an agent alone."""
    digest: str


def read(path: Path, template: Any) -> Checkpoint:
    """All that a file holds, as `load` reads it."""
    leaves, structure = _named(template)
    wanted = _stored(leaves)
    arrays, header, digest = _unpack(path, _room(wanted))
    for what, a, b in ("lacks", wanted, arrays), ("has extra", arrays, wanted):
        if names := sorted(a.keys() - b.keys()):
            shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
            raise _other(path, f"{what} leaves, {len(names)} ({shown})")
    for name, leaf in wanted.items():
        leaves[name] = _leaf(path, name, leaf, arrays[name], header["keys"].get(name))
    tree = structure.unflatten(leaves.values())
    return Checkpoint(path, tree, header["meta"], header.get("run", {}), digest)


def _leaf(path: Path, name: str, leaf: Any, stored: Any, key: Any) -> Any:
    """A stored array in the form of the template; `key` is the kind of a PRNG key, otherwise
    None."""
    if key is not None:
        try:
            stored = jax.random.wrap_key_data(jnp.asarray(stored), impl=key)
        except Exception as problem:  # any error of JAX about an unknown kind or wrong data
            raise Damaged(
                f"{path}: leaf {name} is no PRNG key of kind {key!r:.40}; use an earlier one or a "
                "copy"
            ) from problem
    like = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if (stored.shape, stored.dtype) != (like.shape, like.dtype):
        raise _other(
            path,
            f"leaf {name} is {stored.dtype} of shape {stored.shape}, expected {like.dtype} of "
            f"shape {like.shape}",
        )
    if isinstance(leaf, np.generic):
        stored = stored[()]
    return stored if hasattr(leaf, "dtype") else stored.item()


def _other(path: Path, problem: str) -> ValueError:
    return ValueError(
        f"{path}: {problem}; it belongs to another configuration, give the one in the run's "
        "config.json"
    )


def _room(wanted: dict[str, Any]) -> int:
    """The largest size in bytes of a checkpoint with these leaves: twice their own, so that one of
    another precision is read and the error names what differs, plus overhead."""

    def size(name: str, leaf: Any) -> int:
        itemsize = getattr(getattr(leaf, "dtype", None), "itemsize", 16)
        return 2 * math.prod(np.shape(leaf)) * itemsize + 4 * len(name) + 1024

    return files.LARGEST_JSON + sum(size(name, leaf) for name, leaf in wanted.items())


def pack(
    tree: Any, meta: dict[str, Any] | None, run: dict[str, Any] | None = None
) -> tuple[bytes, str]:
    """The content of a checkpoint file, and its digest."""
    from bayespg._support.version import __version__

    arrays, keys = {}, {}
    for name, leaf in _stored(_named(tree)[0]).items():
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = np.asarray(leaf)
        if arrays[name].dtype.kind not in "biufc":
            raise ValueError(f"tree: leaf {name} of type {arrays[name].dtype} cannot be saved")
    header = {"format": FORMAT, "version": VERSION, "bayespg": __version__, "keys": keys}
    header |= {"meta": meta or {}, "run": run or {}}
    arrays[FORMAT] = np.frombuffer(as_json("meta", header), np.uint8)
    file, digest = io.BytesIO(), _digest(arrays)
    np.savez(file, **arrays, sha256=digest)
    return file.getvalue(), digest.tobytes().hex()


def _unpack(path: Path, most: int) -> tuple[dict[str, np.ndarray], dict[str, Any], str]:
    """Arrays, header and digest of a file of at most `most` bytes."""
    if (size := path.stat().st_size) > most:
        raise _other(path, f"has {size:,} bytes, expected at most {most:,}")
    content = files.read(path, most)
    try:
        arrays = files.read_arrays(content)
        header = json.loads(arrays[FORMAT].tobytes())
        version, author, written = header["version"], header["bayespg"], arrays.pop("sha256")
        newer, known = version > VERSION, version == VERSION
        parts = header.get("keys"), header.get("meta"), header.get("run", {})
        if known and not all(isinstance(part, dict) for part in parts):
            raise ValueError("keys, meta and run must be JSON objects")
    except Exception as problem:  # a damaged archive can fail in any way
        raise Damaged(
            f"{path}: found {len(content):,} bytes that are not a whole bayespg checkpoint; "
            "use an earlier one or a copy"
        ) from problem
    if not known:
        advice = "upgrade bayespg" if newer else "train again, or use that version"
        raise ValueError(
            f"{path}: written by bayespg {author!s:.20} in format {version}, known here is format "
            f"{VERSION}; {advice}"
        )
    digest = _digest(arrays)
    if not np.array_equal(written, digest):
        raise Damaged(f"{path}: wrong checksum, it was changed; use an earlier one or a copy")
    del arrays[FORMAT]
    return arrays, header, digest.tobytes().hex()


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}, structure


def _stored(leaves: dict[str, Any]) -> dict[str, Any]:
    return {name: leaf for name, leaf in leaves.items() if isinstance(leaf, STORED)}


def _digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    sha = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        sha.update(json.dumps([name, array.dtype.str, array.shape]).encode() + array.tobytes())
    return np.frombuffer(sha.digest(), np.uint8)


def as_json(name: str, value: Any) -> bytes:
    """A value as JSON, or ValueError that names it."""
    try:
        content = json.dumps(value, indent=1, default=lambda x: x.item()).encode() + b"\n"
    except (TypeError, ValueError, AttributeError, RecursionError) as problem:
        raise ValueError(f"{name}: must be plain JSON ({problem})") from None
    if len(content) > files.LARGEST_JSON:
        raise ValueError(
            f"{name}: has {len(content):,} bytes as JSON, at most {files.LARGEST_JSON:,} are "
            "stored; keep arrays in the tree"
        )
    return content
