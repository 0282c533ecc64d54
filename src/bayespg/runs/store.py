"""A training run on disk, which can be resumed even if it was killed.

A directory with config.json (how it was started), metrics.csv (one row per update), checkpoint.npz
(all that is needed to resume), checkpoint.previous.npz (the one before), best.npz (the best so far)
and a lock, held while a process trains in it.

    >>> with Run.create("results/lqr", {"seed": 0}) as run:
    ...     run.log({"update": 1, "return": -3.2})
    ...     run.checkpoint(state, {"update": 1})
    >>> with Run.open("results/lqr") as run:
    ...     state, meta = run.restore(template)
    ...     run.truncate(meta["update"])
"""

import contextlib
import hashlib
import json
import math
import os
import re
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayespg._support import files
from bayespg._support.files import write_whole
from bayespg._support.warning import warn
from bayespg.runs.checkpoints import Damaged, StrPath, as_json, load, pack
from bayespg.runs.columns import Column, tag

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None

CONFIG, METRICS, LOCK, EVENTS = "config.json", "metrics.csv", "lock", "tensorboard"
CHECKPOINT, PREVIOUS, BEST = "checkpoint.npz", "checkpoint.previous.npz", "best.npz"
DAMAGED = "checkpoint.damaged.npz"
UNFINISHED = re.compile(
    r"\.(config\.json|metrics\.csv|checkpoint\S*|best\.npz)\.\w+\.partial|checkpoint\.[0-9a-f]{16}\.npz"
)
"""Files that a killed process may leave in a run."""


def _staged(config: dict[str, Any]) -> str:
    """The name of a checkpoint until its configuration is written."""
    content = json.dumps(config, sort_keys=True).encode()
    return f"checkpoint.{hashlib.sha256(content).hexdigest()[:16]}.npz"


class Run:
    """The directory of a training run. Reading needs no lock; writing is done inside ``with``."""

    def __init__(self, path: StrPath, config: dict[str, Any], tensorboard: bool = False):
        """Use `create` or `open`."""
        self.path, self.config = Path(path), config
        self._home = self.path.absolute()  # an environment may change the working directory
        self._lock: Any = None
        self._columns: list[str] = []
        self._writer, self._events = summary_writer() if tensorboard else None, None

    def __repr__(self) -> str:
        task, steps = (self.config.get(name) for name in ("environment", "steps"))
        of = f" of {task}" if isinstance(task, str) else ""
        return f"Run('{self.path}'{of}{f', {steps:,} steps' if isinstance(steps, int) else ''})"

    @classmethod
    def create(cls, path: StrPath, config: dict[str, Any], *, tensorboard: bool = False) -> "Run":
        """A new run, in a directory that holds none. `tensorboard` mirrors the metrics."""
        content = as_json("config", config)
        run = cls(path, json.loads(content), tensorboard)
        run.path.mkdir(parents=True, exist_ok=True)
        with run:
            for name in (CONFIG, METRICS, CHECKPOINT, PREVIOUS, BEST):
                if os.path.lexists(run.path / name):
                    raise ValueError(
                        f"{path}: already holds a run ({name}); resume it or choose another "
                        "directory"
                    )
            write_whole(run._home / CONFIG, content)
        return run

    @classmethod
    def open(cls, path: StrPath, *, tensorboard: bool = False) -> "Run":
        """An existing run, to be resumed or read."""
        file = Path(path) / CONFIG
        if file.parent.is_file():
            raise ValueError(f"{path}: is a file; a run or a saved agent is a folder, give that")
        if not file.is_file():
            found = f"no {CONFIG} in it" if file.parent.is_dir() else "no such directory"
            from bayespg.runs import seeds  # which is built on runs

            of = seeds.begun(file.parent)
            hint = f"one of its seeds, {of[0]}" if of else "the directory of one"
            raise ValueError(f"{path}: not a run, {found}; give {hint}")
        return cls(path, files.read_json(file, dict), tensorboard)

    def __enter__(self) -> "Run":
        # Each entry opens the file again, and the lock belongs to what was opened: a second Run of
        # this process is kept out as one of another process is.
        lock = os.fdopen(files.open_own(self._home / LOCK, os.O_RDWR), "r+b", buffering=0)
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            holder = lock.read(20).strip()
            lock.close()
            if not isinstance(problem, BlockingIOError):
                raise
            pid = int(holder) if holder.isdigit() else "unknown"
            whose = "this process already" if pid == os.getpid() else f"another process (pid {pid})"
            raise ValueError(
                f"{self.path}: in use by {whose}; wait for it or choose another directory"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk the holder of the lock is not recorded
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n".encode())
        self._lock = lock
        _HELD.add(self)
        self._tidy()
        return self

    def _tidy(self) -> None:
        """Finish or discard what a killed process had begun to write."""
        staged = self._home / _staged(self.config)
        if staged.exists():
            (self._home / PREVIOUS).unlink(missing_ok=True)
            os.replace(staged, self._home / CHECKPOINT)
        files.forget(self._home, UNFINISHED)

    def __exit__(self, *_: object) -> None:
        events, self._events, self._columns = self._events, None, []
        try:
            if events is not None:
                events.close()
        finally:
            self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        _HELD.discard(self)
        if lock is not None:
            lock.close()

    def _file(self, name: str) -> Path:
        """The path to write to; ValueError if another process may be writing there."""
        if self._lock is None:
            raise ValueError(f"{self.path}: not locked; write {name} inside `with run:`")
        try:
            there = os.stat(self._home / LOCK, follow_symlinks=False)
        except OSError:
            there = None
        if there is None or not os.path.samestat(there, os.fstat(self._lock.fileno())):
            raise ValueError(
                f"{self.path}: {name} is not written, because the directory or its {LOCK} was "
                "removed or replaced during training; resume what is there, or save the agent "
                "elsewhere"
            )
        return self._home / name

    def checkpoint(
        self, tree: Any, meta: dict[str, Any] | None = None, *, best: bool = False
    ) -> None:
        """Save a checkpoint and keep the previous one. The metrics are written to disk first, so
        that no checkpoint is ahead of them. With `best` it is kept until a better one comes."""
        path, metrics = self._file(CHECKPOINT), self._file(METRICS)
        if metrics.exists():
            with os.fdopen(files.open_own(metrics, os.O_WRONLY), "wb") as file:
                os.fsync(file.fileno())
        content = pack(tree, meta)
        write_whole(path, content, previous=self._home / PREVIOUS)
        if best:
            write_whole(self._file(BEST), content)

    def replace(
        self, config: dict[str, Any], tree: Any, meta: dict[str, Any] | None = None
    ) -> None:
        """Replace configuration and state: both or neither, even if the process is killed. Until
        the configuration is written, the state has a temporary name derived from it."""
        content = as_json("config", config)
        config = json.loads(content)
        write_whole(self._file(_staged(config)), pack(tree, meta))
        write_whole(self._file(CONFIG), content)
        self.config = config
        self._tidy()

    def restore(self, template: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest intact checkpoint, as `load` returns it; None if there is none.

        A damaged one is put aside, so that it does not take the place of the one before.
        """
        answer = self._newest(template)
        if _staged(files.read_json(self._home / CONFIG, dict)) != _staged(self.config):
            raise ValueError(f"{self.path}: was saved again while it was being read; load it again")
        return answer

    def best(self, template: Any) -> tuple[Any, dict[str, Any]] | None:
        """The best checkpoint, as `load` returns it; None if there is none."""
        path = self._home / BEST
        return load(path, template) if path.exists() else None

    def _newest(self, template: Any) -> tuple[Any, dict[str, Any]] | None:
        newest, previous = self._home / CHECKPOINT, self._home / PREVIOUS
        with contextlib.suppress(FileNotFoundError):
            return load(self._home / _staged(self.config), template)
        try:
            return load(newest, template)
        except FileNotFoundError:  # never made, or killed between two renames
            return load(previous, template) if previous.exists() else None
        except Damaged as problem:
            if not previous.exists():
                raise
            answer = load(previous, template)
            warn(f"{problem}. Going on from {PREVIOUS}", RuntimeWarning)
            if self._lock is not None:
                os.replace(newest, self._home / DAMAGED)
            return answer

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of numbers, one of them ``update``; the first row sets the columns. Floats
        are read back exactly; None becomes nan."""
        path = self._file(METRICS)
        columns = self._columns or self._table(mend=True)[0]
        lines = [] if columns else [_header(row)]
        columns = columns or lines[0]
        if row.keys() != set(columns):
            raise ValueError(f"log: expected columns {', '.join(columns)}, found {', '.join(row)}")
        cells = [_cell(name, row[name]) for name in columns]
        file = files.open_own(path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(file).st_size
            try:
                files.write_all(file, _text([*lines, cells]))
            except OSError as problem:
                os.ftruncate(file, size)
                raise files.unwritten(path, problem) from problem
        finally:
            os.close(file)
        self._columns = columns
        if self._writer is not None:
            scalars = dict(zip(columns, map(float, cells), strict=True))
            step = int(scalars.pop(Column.STEPS, scalars[Column.UPDATE]))
            if self._events is None:
                folder, suffix = str(self._home / EVENTS), f".{step}"
                self._events = self._writer(folder, purge_step=step, filename_suffix=suffix)
            for name, value in scalars.items():
                if math.isfinite(value):  # tensorboardX prints a warning for each that is not
                    self._events.add_scalar(tag(name), value, step)

    def truncate(self, update: int) -> None:
        """Delete the rows after `update`, and a partial last row left by a kill."""
        path = self._file(METRICS)
        columns, rows = self._table(mend=True)
        if columns:
            updates = self._updates(columns, rows)
            kept = [row for row, at in zip(rows, updates, strict=True) if at <= update]
            write_whole(path, _text([columns, *kept]))

    def expect(self, update: int) -> None:
        """ValueError if the run has rows after `update`: it has been trained further since the
        agent was loaded."""
        last = max(self._updates(*self._table()), default=update)
        if last > update:
            raise ValueError(
                f"{self.path}: has been trained to update {last} since this agent was at update "
                f"{update}; resume it again to continue from there"
            )

    def metrics(self) -> dict[str, np.ndarray]:
        """The metrics, column by column; integers if all entries are."""
        columns, rows = self._table()
        cells = zip(*rows, strict=True) if rows else [()] * len(columns)
        return {name: self._numbers(name, of) for name, of in zip(columns, cells, strict=True)}

    def _table(self, mend: bool = False) -> tuple[list[str], list[list[str]]]:
        """Columns and rows as text, without a partial last row, which `mend` removes from the
        file."""
        path = self._home / METRICS
        content = files.read(path) if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if mend and len(whole) < len(content):
            with os.fdopen(files.open_own(path, os.O_RDWR), "r+b") as file:
                os.ftruncate(file.fileno(), len(whole))
        try:
            lines = [line.split(",") for line in whole.decode().split("\n")[:-1]]
        except UnicodeDecodeError as problem:
            raise ValueError(f"{path}: is not text ({problem}); repair or delete it") from None
        columns, *rows = lines or [[]]
        if columns and (Column.UPDATE not in columns or len(set(columns)) < len(columns)):
            raise ValueError(
                f"{path}: line 1 must name the columns, each once and one of them 'update', found "
                f"{','.join(columns)!r:.60}; repair or delete it"
            )
        for number, row in enumerate(rows, start=2):
            if len(row) != len(columns):
                found = f"line {number} has {len(row)} cells, expected {len(columns)}"
                raise ValueError(f"{path}: {found}; repair or delete it")
        return columns, rows

    def _updates(self, columns: list[str], rows: list[list[str]]) -> np.ndarray:
        return self._numbers(Column.UPDATE, [row[columns.index(Column.UPDATE)] for row in rows])

    def _numbers(self, name: str, cells: Sequence[str]) -> np.ndarray:
        try:
            return np.array(cells, np.int64)
        except (ValueError, OverflowError):
            pass
        try:
            return np.array(cells, np.float64)
        except ValueError as problem:
            raise ValueError(
                f"{self._home / METRICS}: column {name} must hold numbers ({problem}); repair or "
                "delete it"
            ) from None


_HELD: weakref.WeakSet[Run] = weakref.WeakSet()
"""Runs that are locked."""


def _after_fork() -> None:
    """A forked worker must not hold the lock when its parent is killed."""
    for run in list(_HELD):
        run._release()


if fcntl is not None:
    os.register_at_fork(after_in_child=_after_fork)


def _header(row: dict[str, Any]) -> list[str]:
    if Column.UPDATE not in row:
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


def summary_writer() -> Any:
    """The class that writes events for TensorBoard; ImportError if its package is missing."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ImportError(
            "tensorboard: tensorboardX is missing; pip install 'bayespg[tensorboard]'"
        ) from None
    return SummaryWriter
