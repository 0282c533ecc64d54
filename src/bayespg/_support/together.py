"""Work side by side, each piece in a process with its own cores.

One experiment of `bayespg reproduce` rarely uses a whole machine: it compiles on one core, and on a
GPU it runs many small programs one after the other. The processes share a GPU, so none of them may
reserve its memory in advance; the command line sets that up.
"""

import multiprocessing
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from bayespg._support import processes, threads

Work = Callable[..., Any]
"""A function called with a name, its arguments and ``advance(fraction, what)``. It must be
importable, because another process calls it."""
SPAWN = multiprocessing.get_context("spawn")


def run(
    names: Mapping[str, tuple], work: Work, jobs: int, advance: Callable[[str, float, str], None]
) -> Iterator[tuple[str, Any]]:
    """Call ``work(name, *arguments, advance)`` for every name, `jobs` at a time, and yield the
    results as they finish.

    If one fails, the others finish first and then its error is raised. Ctrl-C ends all processes
    at once.
    """
    shares: queue.SimpleQueue[set[int] | None] = queue.SimpleQueue()
    for cores in _shares(jobs):
        shares.put(cores)
    group = _Group()

    def follow(name: str) -> Any:
        cores = shares.get()
        try:
            return _follow(name, work, names[name], cores, group, advance)
        finally:
            shares.put(cores)

    # Ctrl-C in a terminal is sent to every process in it. The threads block that signal, and a
    # process that they start inherits the block, so that only this process has to handle it.
    with ThreadPoolExecutor(jobs, initializer=processes.block_interrupts) as threads:
        try:
            yield from _ended({threads.submit(follow, name): name for name in names})
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            group.end()
            raise


class _Group:
    """Processes that are ended together; none can be started after that."""

    def __init__(self) -> None:
        self._lock, self._started, self._ended = threading.Lock(), [], False

    def start(self, process: SpawnProcess) -> None:
        with self._lock:
            if self._ended:
                raise RuntimeError("interrupted before it began")
            process.start()
            self._started.append(process)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for process in self._started:
                process.terminate()


def _ended(started: Mapping[Future, str]) -> Iterator[tuple[str, Any]]:
    failed = None
    for future in as_completed(started):
        if (error := future.exception()) is None:
            yield started[future], future.result()
        else:
            failed = failed or error
    if failed is not None:
        raise failed


def _shares(jobs: int) -> list[set[int] | None]:
    """The cores of each process, or None where the system cannot restrict them."""
    if sys.platform != "linux":
        return [None] * jobs
    mine = sorted(os.sched_getaffinity(0))
    return [set(mine[job % len(mine) :: jobs]) for job in range(jobs)]


def _follow(
    name: str, work: Work, arguments: tuple, cores: set[int] | None, group: _Group, advance: Any
) -> Any:
    here, there = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_alone, args=(there, cores, work, name, arguments), daemon=True)
    group.start(process)
    there.close()
    try:
        while True:
            match here.recv():
                case float(fraction), str(what):
                    advance(name, fraction, what)
                case BaseException() as error:
                    raise error
                case (result,):
                    return result
    except EOFError:
        process.join()
        raise RuntimeError(
            f"{name}: its process ended with status {process.exitcode} before it had finished, "
            "perhaps because memory ran out; run it alone, or with fewer --jobs"
        ) from None
    finally:
        process.join()


def _alone(
    said: Connection, cores: set[int] | None, work: Work, name: str, arguments: tuple
) -> None:
    """Do the work in this process, which ends when its parent ends."""
    processes.leave_with_parent()
    if cores is not None:
        os.sched_setaffinity(0, cores)
        threads.protect()
    try:
        said.send((work(name, *arguments, lambda f, what: said.send((float(f), what))),))
    except Exception as error:
        error.add_note(f"(in {name})")
        said.send(error)
