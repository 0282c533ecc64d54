"""A training run on disk: killed at any moment, it can be taken up again.

A directory with config.json (how it was started), metrics.csv (one row an update), checkpoint.npz
(all that is needed to go on), checkpoint.previous.npz (the one before) and a lock, held while a
process trains in it.

    >>> with Run.create("results/lqr", {"seed": 0}) as run:
    ...     run.log({"update": 1, "return": -3.2})
    ...     run.checkpoint(state, {"update": 1})
    >>> with Run.open("results/lqr") as run:
    ...     state, meta = run.restore(template)
    ...     run.truncate(meta["update"])

A checkpoint is a plain .npz, each array under its path in the tree, and nothing is ever unpickled:
the structure comes from a template, the state that the same configuration starts from. The file is
written beside the old one, forced to disk, and only then takes its name.
"""

import hashlib
import io
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None

FORMAT, VERSION = "bayespg-checkpoint", 1
CONFIG, METRICS, LOCK, EVENTS = "config.json", "metrics.csv", "lock", "tensorboard"
CHECKPOINT, PREVIOUS = "checkpoint.npz", "checkpoint.previous.npz"
DAMAGED = "checkpoint.damaged.npz"
STORED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, bool, int, float, complex)
"""Leaves that a checkpoint holds; others (functions, strings) come from the template."""

StrPath = str | os.PathLike[str]


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


def save(path: StrPath, tree: Any, meta: dict[str, Any] | None = None) -> None:
    """Arrays, numbers and PRNG keys of a tree, and a JSON object, in one file: whole or not at
    all."""
    write_whole(Path(path), _pack(tree, meta))


def load(path: StrPath, template: Any) -> tuple[Any, dict[str, Any]]:
    """What was saved: arrays as NumPy arrays of the dtype they had, whatever JAX's precision, and
    the JSON object. The template must agree in names, shapes and dtypes."""
    arrays, header = _unpack(Path(path))
    leaves, structure = _named(template)
    wanted = _stored(leaves)
    other = "; it belongs to another configuration, give the one in the run's config.json"
    for what, a, b in ("lacks", wanted, arrays), ("has extra", arrays, wanted):
        if names := sorted(a.keys() - b.keys()):
            shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
            raise ValueError(f"{path}: {what} leaves, {len(names)} ({shown}){other}")
    for name, leaf in wanted.items():
        found = arrays[name]
        if name in header["keys"]:
            found = jax.random.wrap_key_data(jnp.asarray(found), impl=header["keys"][name])
        like = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if (found.shape, found.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"{path}: leaf {name} is {found.dtype} of shape {found.shape}, "
                f"expected {like.dtype} of shape {like.shape}{other}"
            )
        if isinstance(leaf, np.generic):
            found = found[()]
        leaves[name] = found if hasattr(leaf, "dtype") else found.item()
    return structure.unflatten(leaves.values()), header["meta"]


def _pack(tree: Any, meta: dict[str, Any] | None) -> bytes:
    from bayespg.version import __version__

    arrays, keys = {}, {}
    for name, leaf in _stored(_named(tree)[0]).items():
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = np.asarray(leaf)
        if arrays[name].dtype.kind not in "biufc":
            raise ValueError(f"tree: leaf {name} of type {arrays[name].dtype} cannot be saved")
    header = {"format": FORMAT, "version": VERSION, "bayespg": __version__, "keys": keys}
    arrays[FORMAT] = np.frombuffer(_json("meta", header | {"meta": meta or {}}), np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays, sha256=_digest(arrays))
    return file.getvalue()


def _unpack(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    content = path.read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = dict(file)
        header = json.loads(arrays[FORMAT].tobytes())
        version, author, written = header["version"], header["bayespg"], arrays.pop("sha256")
    except Exception as problem:  # there is no end to the ways in which a damaged archive fails
        raise Damaged(
            f"{path}: found {len(content):,} bytes that are not a whole bayespg checkpoint; "
            "use an earlier one or a copy"
        ) from problem
    if version > VERSION:
        raise ValueError(
            f"{path}: written by bayespg {author} in format {version}, known here are formats "
            f"up to {VERSION}; upgrade bayespg"
        )
    if not np.array_equal(written, _digest(arrays)):
        raise Damaged(f"{path}: wrong checksum, it was changed; use an earlier one or a copy")
    del arrays[FORMAT]
    return arrays, header


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


def _json(name: str, value: Any) -> bytes:
    try:
        return json.dumps(value, indent=1, default=lambda x: x.item()).encode() + b"\n"
    except (TypeError, ValueError, AttributeError) as problem:
        raise ValueError(f"{name}: must be plain JSON ({problem})") from None


def write_whole(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Whole or not at all; what was there before moves to `previous`."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(partial, path)
    except OSError as problem:
        partial.unlink(missing_ok=True)
        raise _unwritten(path, problem) from problem


def _unwritten(path: Path, problem: OSError) -> OSError:
    advice = "what was there before is kept; make room or mend the disk, then resume"
    return OSError(problem.errno, f"not written ({problem.strerror}), {advice}", str(path))


class Run:
    """The directory of a training run. Reading needs no lock; writing is done inside ``with``."""

    def __init__(self, path: StrPath, config: dict[str, Any], tensorboard: bool = False):
        """Use `create` or `open`."""
        self.path, self.config = Path(path), config
        self._lock: int | None = None
        self._columns: list[str] = []
        self._writer, self._events = _tensorboard() if tensorboard else None, None

    @classmethod
    def create(cls, path: StrPath, config: dict[str, Any], *, tensorboard: bool = False) -> "Run":
        """A new run, in a directory that holds none. `tensorboard` mirrors the metrics."""
        content = _json("config", config)
        run = cls(path, json.loads(content), tensorboard)
        run.path.mkdir(parents=True, exist_ok=True)
        with run:
            for name in (CONFIG, METRICS, CHECKPOINT, PREVIOUS):
                if (run.path / name).exists():
                    raise ValueError(
                        f"{path}: already holds a run ({name}); resume it or choose another "
                        "directory"
                    )
            write_whole(run.path / CONFIG, content)
        return run

    @classmethod
    def open(cls, path: StrPath, *, tensorboard: bool = False) -> "Run":
        """A run that was created before, to be resumed or read."""
        file = Path(path) / CONFIG
        if not file.is_file():
            found = f"no {CONFIG} in it" if file.parent.is_dir() else "no such directory"
            seeds = sorted(file.parent.glob(f"seed-*/{CONFIG}"))
            hint = f"one of its seeds, {seeds[0].parent}" if seeds else "the directory of one"
            raise ValueError(f"{path}: not a run, {found}; give {hint}")
        try:
            config = json.loads(file.read_bytes())
        except ValueError as problem:
            raise ValueError(f"{file}: damaged ({problem}); mend it or start again") from None
        if not isinstance(config, dict):
            raise ValueError(f"{file}: expected a JSON object, found {config!r:.40}; mend it")
        return cls(path, config, tensorboard)

    def __enter__(self) -> "Run":
        lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            pid = os.read(lock, 20).decode().strip() or "unknown"
            os.close(lock)
            if not isinstance(problem, BlockingIOError):
                raise
            raise ValueError(
                f"{self.path}: in use by another process (pid {pid}); wait for it or choose "
                "another directory"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock
        if fcntl is not None:  # a forked worker must not hold the lock when its parent is killed
            os.register_at_fork(after_in_child=self._release)
        return self

    def __exit__(self, *_: object) -> None:
        if self._events is not None:
            self._events.close()
        self._events, self._columns = None, []
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _file(self, name: str) -> Path:
        if self._lock is None:
            raise ValueError(f"{self.path}: not locked; write {name} inside `with run:`")
        return self.path / name

    def checkpoint(self, tree: Any, meta: dict[str, Any] | None = None) -> None:
        """Save all that is needed to go on; keep the one before. The metrics reach the disk first,
        so that no checkpoint is ahead of them."""
        path = self._file(CHECKPOINT)
        if (self.path / METRICS).exists():
            with (self.path / METRICS).open("ab") as file:
                os.fsync(file.fileno())
        write_whole(path, _pack(tree, meta), previous=self.path / PREVIOUS)

    def restore(self, template: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest whole checkpoint, as `load` gives it; None where none was made.

        A damaged one is put aside, so that it does not take the place of the one before.
        """
        newest, previous = self.path / CHECKPOINT, self.path / PREVIOUS
        try:
            return load(newest, template)
        except FileNotFoundError:  # never made, or killed between two renames
            return load(previous, template) if previous.exists() else None
        except Damaged as problem:
            if not previous.exists():
                raise
            answer = load(previous, template)
            warnings.warn(f"{problem}. Going on from {PREVIOUS}", RuntimeWarning, stacklevel=2)
            if self._lock is not None:
                os.replace(newest, self.path / DAMAGED)
            return answer

    def log(self, row: dict[str, Any]) -> None:
        """Append numbers, one of them the ``update``; the first row names the columns. Floats read
        back exactly, None is nan."""
        path = self._file(METRICS)
        columns = self._columns or self._table(mend=True)[0]
        lines = [] if columns else [_header(row)]
        columns = columns or lines[0]
        if row.keys() != set(columns):
            raise ValueError(f"log: expected columns {', '.join(columns)}, found {', '.join(row)}")
        cells = [_cell(name, row[name]) for name in columns]
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(_text([*lines, cells]))
        except OSError as problem:
            os.truncate(path, size)
            raise _unwritten(path, problem) from problem
        self._columns = columns
        if self._writer is not None:
            scalars = dict(zip(columns, map(float, cells), strict=True))
            step = int(scalars.pop("update"))
            if self._events is None:
                folder, suffix = str(self.path / EVENTS), f".{step}"
                self._events = self._writer(folder, purge_step=step, filename_suffix=suffix)
            for name, value in scalars.items():
                self._events.add_scalar(name, value, step)

    def truncate(self, update: int) -> None:
        """Forget the rows after `update`, that of a checkpoint, and half a row left by a kill."""
        path = self._file(METRICS)
        columns, rows = self._table(mend=True)
        if columns:
            at = columns.index("update")
            write_whole(path, _text([columns, *(row for row in rows if float(row[at]) <= update)]))

    def metrics(self) -> dict[str, np.ndarray]:
        """Column by column; integers where all are."""
        columns, rows = self._table()
        cells = zip(*rows, strict=True) if rows else [()] * len(columns)
        return {name: _numbers(column) for name, column in zip(columns, cells, strict=True)}

    def _table(self, mend: bool = False) -> tuple[list[str], list[list[str]]]:
        """Columns and rows as text, without half a row at the end, which `mend` cuts off."""
        path = self.path / METRICS
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if mend and len(whole) < len(content):
            os.truncate(path, len(whole))
        columns, *rows = [line.split(",") for line in whole.decode().split("\n")[:-1]] or [[]]
        for number, row in enumerate(rows, start=2):
            if len(row) != len(columns):
                found = f"line {number} has {len(row)} cells, expected {len(columns)}"
                raise ValueError(f"{path}: {found}; mend or delete it")
        return columns, rows


def _header(row: dict[str, Any]) -> list[str]:
    if "update" not in row:
        raise ValueError(f"log: a row needs its 'update', found {', '.join(row) or 'nothing'}")
    for name in row:
        if not re.fullmatch(r'[^,"\r\n]+', name):
            raise ValueError(f"log: {name!r} cannot be the name of a column")
    return list(row)


def _cell(name: str, value: Any) -> str:
    found = np.asarray(np.nan if value is None else value)
    if found.shape != () or found.dtype.kind not in "biuf":
        kind = f"{type(value).__name__} of shape {found.shape}"
        raise ValueError(f"log: {name} must be one number, found {kind}")
    return repr(float(found)) if found.dtype.kind == "f" else str(int(found))


def _text(lines: list[list[str]]) -> bytes:
    return "".join(",".join(cells) + "\n" for cells in lines).encode()


def _numbers(cells: tuple[str, ...]) -> np.ndarray:
    try:
        return np.array(cells, np.int64)
    except (ValueError, OverflowError):
        return np.array(cells, np.float64)


def _tensorboard() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ImportError(
            "tensorboard: tensorboardX is missing; pip install 'bayespg[tensorboard]'"
        ) from None
    return SummaryWriter
