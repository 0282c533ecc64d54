"""Experiments side by side, each in a process with cores of its own.

One experiment seldom fills a machine: it compiles on one core, and on a GPU it waits for many small
programs in turn. The processes share a GPU, so none of them may take its memory in advance: the
command line sees to that.
"""

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from typing import Any

from bayespg import _threads

Work = Callable[..., Any]
"""Called with a name, its arguments and ``advance(fraction, what)``; importable, so that another
process finds it."""
SPAWN = multiprocessing.get_context("spawn")


def run(
    names: Mapping[str, tuple], work: Work, jobs: int, advance: Callable[[str, float, str], None]
) -> Iterator[tuple[str, Any]]:
    """``work(name, *arguments, advance)`` for every name, `jobs` at a time, as they end.

    An error is raised when all others have ended; on Ctrl-C the processes end at once.
    """
    shares: queue.SimpleQueue[set[int] | None] = queue.SimpleQueue()
    for cores in _shares(jobs):
        shares.put(cores)

    def follow(name: str) -> Any:
        cores = shares.get()
        try:
            return _follow(name, work, names[name], cores, advance)
        finally:
            shares.put(cores)

    with ThreadPoolExecutor(jobs) as threads:
        started = {threads.submit(follow, name): name for name in names}
        try:
            yield from _ended(started)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


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
    """The cores of each process; all of them where the system does not say."""
    if sys.platform != "linux":
        return [None] * jobs
    mine = sorted(os.sched_getaffinity(0))
    return [set(mine[job % len(mine) :: jobs]) for job in range(jobs)]


def _follow(name: str, work: Work, arguments: tuple, cores: set[int] | None, advance: Any) -> Any:
    here, there = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_alone, args=(there, cores, work, name, arguments), daemon=True)
    process.start()
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
            f"{name}: its process ended with status {process.exitcode} before it was done "
            "(too little memory?); run it alone, or with fewer --jobs"
        ) from None
    finally:
        process.join()


def _alone(
    said: Connection, cores: set[int] | None, work: Work, name: str, arguments: tuple
) -> None:
    """In a process of its own, which lives no longer than its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if cores is not None:
        os.sched_setaffinity(0, cores)
        _threads.protect()
    try:
        said.send((work(name, *arguments, lambda f, what: said.send((float(f), what))),))
    except Exception as error:
        error.add_note(f"(in {name})")
        said.send(error)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
