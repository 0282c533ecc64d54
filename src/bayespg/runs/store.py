"""A training run on disk, which can be resumed even if it was killed.

A directory with config.json (how it was started), metrics.csv (one row per update), checkpoint.npz
(all that is needed to resume), checkpoint.previous.npz (the one before), best.npz (the best so
far), best.previous.npz (the best before it) and, while a process trains in it, a lock.

A checkpoint also says what belongs to it: the seed, the digest of the rows that metrics.csv held,
and the digest of the best checkpoint, or that it is the best itself. So the best is known whenever
the process is killed: best.npz is a copy, which is made after the checkpoint and, where it is
missing, made again by `restore`.

    >>> with Run.create("results/lqr", {"seed": 0}) as run:
    ...     run.log({"update": 1, "return": -3.2})
    ...     run.checkpoint(state, {"update": 1})
    >>> with Run.open("results/lqr") as run:
    ...     state, meta = run.restore(template)
    ...     run.truncate(meta["update"])
"""

import contextlib
import filecmp
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
from bayespg.runs.checkpoints import Checkpoint, Damaged, StrPath, as_json, pack, read
from bayespg.runs.columns import Column, familiar, tag

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None

CONFIG, METRICS, LOCK, EVENTS = "config.json", "metrics.csv", "lock", "tensorboard"
CHECKPOINT, PREVIOUS, BEST = "checkpoint.npz", "checkpoint.previous.npz", "best.npz"
DAMAGED, BEST_BEFORE = "checkpoint.damaged.npz", "best.previous.npz"
MEMBER = re.compile(r"seed-(0|[1-9][0-9]*)")
"""The name of a run directory in a folder of seeds (`bayespg.runs.seeds`)."""
UNFINISHED = re.compile(
    r"\.(config\.json|metrics\.csv|checkpoint\S*|best\.npz)\.\w+\.partial|checkpoint\.[0-9a-f]{16}\.npz"
)
"""Files that a killed process may leave in a run."""


def _staged(config: dict[str, Any]) -> str:
    """The name of a checkpoint until its configuration is written."""
    content = json.dumps(config, sort_keys=True).encode()
    return f"checkpoint.{hashlib.sha256(content).hexdigest()[:16]}.npz"


def started_seeds(folder: Path) -> list[Path]:
    """The run directories of the seeds that have begun, in the order of their numbers."""
    directories: dict[int, Path] = {}
    for child in folder.glob("seed-*"):
        if (child / CONFIG).exists():
            number = MEMBER.fullmatch(child.name)
            if number is None:
                raise ValueError(
                    f"{child}: is a run, but its name is not seed- and a number; rename it or move "
                    "it out of the folder"
                )
            directories[int(number[1])] = child
    return [directories[k] for k in sorted(directories)]


class Run:
    """The directory of a training run. Reading needs no lock; writing is done inside ``with``."""

    def __init__(self, path: StrPath, config: dict[str, Any], tensorboard: bool = False):
        """Use `create` or `open`."""
        self.path, self.config = Path(path), config
        self._home = self.path.absolute()  # an environment may change the working directory
        self._lock: Any = None
        self._columns: list[str] = []
        self._metrics: Any = None
        """Size and hash of the rows that are written; None where they must be read first."""
        self._best: str | None = None
        """The digest of the best checkpoint, where it is known."""
        self._restored: dict[str, Any] | None = None
        """What the checkpoint that was restored says about the run; None if there was none."""
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
        run._refuse_link()
        files.make_directory(run.path)
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
            missing = f"no {CONFIG} in it" if file.parent.is_dir() else "no such directory"
            of = started_seeds(file.parent)
            hint = f"one of its seeds, {of[0]}" if of else "the directory of one"
            raise ValueError(f"{path}: not a run, {missing}; give {hint}")
        return cls(path, files.read_json(file, dict), tensorboard)

    def __enter__(self) -> "Run":
        # Each entry opens the file again, and the lock belongs to what was opened: a second Run of
        # this process is kept out as one of another process is.
        self._refuse_link()
        lock = self._locked()
        while not self._in_place(lock):  # another process has just ended, and removed it
            lock.close()
            lock = self._locked()
        with contextlib.suppress(OSError):  # on a full disk the holder of the lock is not recorded
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n".encode())
        self._lock = lock
        _HELD.add(self)
        self._clean_up()
        return self

    def _refuse_link(self) -> None:
        """ValueError if this is a link in a folder of seeds. Another link was given by the user."""
        if MEMBER.fullmatch(self._home.name):
            files.refuse_link(self._home)

    def _locked(self) -> Any:
        """The lock file, opened and locked."""
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
        return lock

    def _in_place(self, lock: Any) -> bool:
        """Whether an open lock file is the one in the directory."""
        try:
            there = os.stat(self._home / LOCK, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(lock.fileno()))

    def _clean_up(self) -> None:
        """Finish or discard what a killed process had begun to write."""
        staged = self._home / _staged(self.config)
        if staged.exists():
            (self._home / PREVIOUS).unlink(missing_ok=True)
            os.replace(staged, self._home / CHECKPOINT)
        files.forget(self._home, UNFINISHED)

    def __exit__(self, *_: object) -> None:
        events, self._events, self._columns = self._events, None, []
        self._metrics = self._best = self._restored = None
        try:
            if events is not None:
                events.close()
            if self._lock is not None and self._in_place(self._lock):
                with contextlib.suppress(OSError):  # Windows keeps a file that is open
                    os.unlink(self._home / LOCK)
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
        if not self._in_place(self._lock):
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
            files.sync(metrics)
        content, digest = pack(tree, meta, self._header(self.config, best or self._best))
        write_whole(path, content, previous=self._home / PREVIOUS)
        if best:
            write_whole(self._file(BEST), content, previous=self._home / BEST_BEFORE)
            self._best = digest

    def _header(self, config: dict[str, Any], best: bool | str | None) -> dict[str, Any]:
        """What a checkpoint says about the run: its seed, the rows that belong to it, and the
        digest of the best checkpoint, or True if it is the best itself."""
        if self._metrics is None:
            whole = self._rows()
            self._metrics = [len(whole), hashlib.sha256(whole)]
        size, rows = self._metrics
        metrics = {"bytes": size, "sha256": rows.hexdigest()}
        return {"seed": config.get("seed"), "metrics": metrics, "best": best}

    def replace(
        self, config: dict[str, Any], tree: Any, meta: dict[str, Any] | None = None
    ) -> None:
        """Replace configuration and state: both or neither, even if the process is killed. Until
        the configuration is written, the state has a temporary name derived from it."""
        content = as_json("config", config)
        config = json.loads(content)
        state, _ = pack(tree, meta, self._header(config, self._best))
        write_whole(self._file(_staged(config)), state)
        write_whole(self._file(CONFIG), content)
        self.config = config
        self._clean_up()

    def restore(self, template: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest intact checkpoint, as `load` returns it; None if there is none.

        Inside `with`, a damaged one is put aside, so that it does not take the place of the one
        before, and best.npz is written if a killed process did not come to it.
        """
        newest = self._newest(template)
        if _staged(files.read_json(self._home / CONFIG, dict)) != _staged(self.config):
            raise ValueError(f"{self.path}: was saved again while it was being read; load it again")
        self._restored = newest and newest.run
        if newest is None:
            return None
        if self._lock is not None:
            self._restore_best(newest, template)
        return newest.tree, newest.meta

    def best(self, template: Any) -> tuple[Any, dict[str, Any]] | None:
        """The best checkpoint, as `load` returns it; None if there is none."""
        newest = self._newest(template)
        while newest is not None:
            try:
                best = self._best_of(newest, template)
            except ValueError:
                before, newest = newest, self._newest(template)
                if newest is None or newest.digest == before.digest:
                    raise  # not because the run continues meanwhile
            else:
                return (best.tree, best.meta) if best else None
        return None

    def _best_of(self, newest: Checkpoint, template: Any) -> Checkpoint | None:
        """The best checkpoint at the time of the newest one, which says which it is."""
        stated = newest.run.get("best")
        if stated in (None, True):
            return newest if stated else None
        for path in (self._home / BEST, self._home / BEST_BEFORE):
            with contextlib.suppress(FileNotFoundError, Damaged):
                checkpoint = read(path, template)
                if stated == checkpoint.digest:
                    return checkpoint
        raise ValueError(
            f"{self._home / BEST}: is not the best policy that {newest.path.name} names; put a "
            "copy of it back, or train on until there is a better one"
        )

    def _restore_best(self, newest: Checkpoint, template: Any) -> None:
        """Make best.npz what the newest checkpoint says it is."""
        path, self._best = self._file(BEST), newest.run.get("best")
        try:
            best = self._best_of(newest, template)
        except ValueError as problem:
            warn(str(problem), RuntimeWarning)
            return
        if best is None:
            return
        self._best = best.digest
        if best is newest and not (path.is_file() and filecmp.cmp(path, newest.path, False)):
            write_whole(path, files.read(newest.path), previous=self._home / BEST_BEFORE)
        elif best.path == self._home / BEST_BEFORE:
            os.replace(best.path, path)

    def _newest(self, template: Any) -> Checkpoint | None:
        newest, previous = self._home / CHECKPOINT, self._home / PREVIOUS
        with contextlib.suppress(FileNotFoundError):
            return self._check_seed(read(self._home / _staged(self.config), template))
        try:
            return self._check_seed(read(newest, template))
        except FileNotFoundError:  # never made, or killed between two renames
            return self._check_seed(read(previous, template)) if previous.exists() else None
        except Damaged as problem:
            if not previous.exists():
                raise
            answer = self._check_seed(read(previous, template))
            warn(f"{problem}. Resuming from {PREVIOUS}", RuntimeWarning)
            if self._lock is not None:
                os.replace(newest, self._home / DAMAGED)
            return answer

    def _check_seed(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint, or ValueError if it is of another seed."""
        seeds = checkpoint.run.get("seed"), self.config.get("seed")
        if None not in seeds and seeds[0] != seeds[1]:
            raise ValueError(
                f"{checkpoint.path}: is of a run with seed {seeds[0]!r:.40}, and {CONFIG} says "
                f"{seeds[1]!r:.40}; put the checkpoint of this run back"
            )
        return checkpoint

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of numbers, one of them ``update``; the first row sets the columns. Floats
        are read back exactly; None becomes nan."""
        path = self._file(METRICS)
        columns = self._columns or self._table(repair=True)[0]
        lines = [] if columns else [_header(row)]
        columns = columns or lines[0]
        if row.keys() != set(columns):
            raise ValueError(f"log: expected columns {', '.join(columns)}, found {', '.join(row)}")
        cells = [_cell(name, row[name]) for name in columns]
        file = files.open_own(path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(file).st_size
            try:
                files.write_all(file, added := _text([*lines, cells]))
            except OSError as problem:
                os.ftruncate(file, size)
                raise files.write_error(path, problem) from problem
        finally:
            os.close(file)
        self._columns = columns
        if self._metrics is not None:
            self._metrics[0] += len(added)
            self._metrics[1].update(added)
        if self._writer is not None:
            scalars = dict(zip(columns, map(float, cells), strict=True))
            curves = familiar(scalars)
            step = int(scalars.pop(Column.STEPS, scalars[Column.UPDATE]))
            curves |= {tag(name): value for name, value in scalars.items()}
            if self._events is None:
                files.refuse_link(self._home / EVENTS)
                folder, suffix = str(self._home / EVENTS), f".{step}"
                self._events = self._writer(folder, purge_step=step, filename_suffix=suffix)
            for name, value in curves.items():
                if math.isfinite(value):  # tensorboardX prints a warning for each that is not
                    self._events.add_scalar(name, value, step)

    def truncate(self, update: int) -> None:
        """Delete the rows after `update`, and a partial last row left by a kill."""
        path = self._file(METRICS)
        columns, rows = self._table(repair=True)
        if columns:
            updates = self._updates(columns, rows)
            kept = [row for row, at in zip(rows, updates, strict=True) if at <= update]
            self._metrics = None
            write_whole(path, _text([columns, *kept]))

    def verify(self, update: int) -> None:
        """ValueError unless metrics.csv holds the rows that belong to the checkpoint that was
        restored, of `update`. Rows after them are left to `truncate` and `expect`."""
        path, content = self._home / METRICS, self._rows()
        again = "or load the agent and train it in a new directory"
        if self._restored is None:
            if count := len(self._table()[1]):
                raise ValueError(
                    f"{path}: has rows of {count} updates, and there is no checkpoint to "
                    f"continue from; put a copy of {CHECKPOINT} back, or train in a new directory"
                )
            return
        match self._restored.get("metrics"):
            case {"bytes": int(size), "sha256": str(digest)}:
                if len(content) < size:
                    raise ValueError(
                        f"{path}: rows are missing, it has {len(content):,} of {size:,} bytes up "
                        f"to update {update}; put a copy of it back, {again}"
                    )
                if hashlib.sha256(content[:size]).hexdigest() != digest:
                    raise ValueError(
                        f"{path}: wrong checksum, a row up to update {update} was changed; put a "
                        f"copy of it back, {again}"
                    )

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

    def _table(self, repair: bool = False) -> tuple[list[str], list[list[str]]]:
        """Columns and rows as text, without a partial last row, which `repair` removes from the
        file."""
        path, whole = self._home / METRICS, self._rows()
        if repair and path.exists() and len(whole) < path.stat().st_size:
            files.sync(path, len(whole))
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

    def _rows(self) -> bytes:
        """The content of metrics.csv without a partial last row."""
        path = self._home / METRICS
        content = files.read(path) if path.exists() else b""
        return content[: content.rfind(b"\n") + 1]

    def _updates(self, columns: list[str], rows: list[list[str]]) -> np.ndarray:
        return self._numbers(Column.UPDATE, [row[columns.index(Column.UPDATE)] for row in rows])

    def _numbers(self, name: str, cells: Sequence[str]) -> np.ndarray:
        with contextlib.suppress(ValueError, OverflowError):
            return np.array(cells, np.int64)
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
    number = np.asarray(np.nan if value is None else value)
    if number.shape != () or number.dtype.kind not in "biuf":
        kind = f"{type(value).__name__} of shape {number.shape}"
        raise ValueError(f"log: {name} must be one number, found {kind}")
    return repr(float(number)) if number.dtype.kind == "f" else str(int(number))


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
