"""Work side by side, each piece in a process with its own cores.

One experiment of `bayespg reproduce` rarely uses a whole machine: it compiles on one core, and on a
GPU it runs many small programs one after the other. The processes share a GPU, so none of them may
reserve its memory in advance; the command line sets that up.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from multiprocessing import connection
from typing import Any

from bayespg._support import processes, threads

Work = Callable[..., Any]
"""A function called with a name, its arguments and ``advance(fraction, what)``. It must be
importable, because another process calls it."""
Failed = Callable[[str, Exception], Collection[str]]
"""Called with the name of work that has failed and its error. It returns the names of work that is
not begun any more."""
SPAWN = multiprocessing.get_context("spawn")


def run(
    names: Mapping[str, tuple],
    work: Work,
    jobs: int,
    advance: Callable[[str, float, str], None],
    failed: Failed | None = None,
) -> Iterator[tuple[str, Any]]:
    """Call ``work(name, *arguments, advance)`` for every name, `jobs` at a time, and yield the
    results as they finish.

    If one fails, the others finish first and then its error is raised, unless `failed` is given,
    which is told at once. Ctrl-C ends all processes at once.
    """
    waiting, shares, error = list(names), _shares(jobs), None
    running: dict[Any, tuple[str, Any, set[int] | None]] = {}
    try:
        while waiting or running:
            while waiting and shares:
                name, cores = waiting.pop(0), shares.pop(0)
                pipe, theirs = SPAWN.Pipe(duplex=False)
                job = (theirs, cores, work, name, names[name])
                process = SPAWN.Process(target=_alone, args=job, daemon=True)
                running[pipe] = name, process, cores
                with processes.isolated():
                    process.start()
                theirs.close()
            for pipe in connection.wait(list(running)):
                name, process, cores = running[pipe]
                message = _receive(pipe, name, process)
                if isinstance(message, tuple) and len(message) == 2:
                    advance(name, *message)
                    continue
                process.join()
                del running[pipe]
                shares.append(cores)
                if isinstance(message, tuple):
                    yield name, message[0]
                elif failed is None:
                    error = error or message
                else:
                    dropped = failed(name, message)
                    waiting = [one for one in waiting if one not in dropped]
    finally:
        for _, process, _ in running.values():
            if process.pid is not None:
                process.terminate()
    if error is not None:
        raise error


def _receive(pipe: Any, name: str, process: Any) -> tuple[float, str] | tuple[Any] | Exception:
    """What the process of a job says: how far it is, its result, or why it has failed."""
    try:
        return pipe.recv()
    except EOFError:
        process.join()
        return ChildProcessError(
            f"{name}: its process ended with status {process.exitcode} before it had finished, "
            "perhaps because memory ran out; run it alone, or with fewer --jobs"
        )
    except Exception as problem:  # a result or an error that cannot be read here
        return problem


def _shares(jobs: int) -> list[set[int] | None]:
    """The cores of each process, or None where the system cannot restrict them."""
    if sys.platform != "linux":
        return [None] * jobs
    mine = sorted(os.sched_getaffinity(0))
    return [set(mine[job % len(mine) :: jobs]) for job in range(jobs)]


def _alone(pipe: Any, cores: set[int] | None, work: Work, name: str, arguments: tuple) -> None:
    """Do the work in this process, which ends when its parent ends."""
    processes.exit_with_parent()
    if cores is not None:
        os.sched_setaffinity(0, cores)
        threads.protect()
    try:
        pipe.send((work(name, *arguments, lambda f, what: pipe.send((float(f), what))),))
    except Exception as error:
        error.add_note(f"(in {name})")
        pipe.send(error)
