"""Processes of this machine: workers that answer requests, and what every process started here
needs.

On Linux a process is forked from a server that has imported this package and nothing else has
happened in, so that it starts in milliseconds; elsewhere it is spawned. It is never forked from the
process that runs JAX, whose threads would be missing in it. The main script is not imported in it:
no guard `if __name__ == "__main__":` is needed, and what a script defines is sent by value.

Nothing is left behind: a process ends with the one that started it, however that ended, also in the
middle of a request. Ctrl-C, which a terminal sends to all processes, reaches the first alone.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from multiprocessing import connection, resource_tracker
from typing import Any

from bayespg._support.workers import Lost, RequestHandler, Worker, WorkerPool

PRELOADED = "bayespg.paths.players"
"""The module that the server has imported: everything that a worker needs."""
PATIENCE = 2.0
"""Seconds that a process has to end after a signal before it gets the next."""


class Process(Worker):
    """A process that answers requests over a pipe."""

    def __init__(self, make: bytes, name: str):
        self.pipe, theirs = context().Pipe()
        self._process = context().Process(target=_serve, args=(theirs, make), daemon=True)
        with isolated():
            self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.name = f"{name} (process {self.pid})"

    def ask(self, shared: bytes | None, request: bytes) -> None:
        with contextlib.suppress(OSError):  # of a process that has ended: `answer` says so
            self.pipe.send((shared, request))

    def answer(self) -> bytes:
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            self._process.join(PATIENCE)
            raise Lost(f"{self.name} {_exit_reason(self._process.exitcode)}") from None

    def close_pipe(self) -> None:
        self.pipe.close()

    def end(self, patience: float = 0.0) -> None:
        self.close_pipe()
        self._process.join(patience)
        for force in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                force()
                self._process.join(PATIENCE)


class Processes(WorkerPool):
    """A pool of processes."""

    def start(self, name: str) -> Process:
        return Process(self._make, name)

    def wait(self, workers: Sequence[Process], seconds: float | None) -> list[Process]:
        by_pipe = {worker.pipe: worker for worker in workers}
        return [by_pipe[pipe] for pipe in connection.wait(list(by_pipe), seconds)]  # pyright: ignore


def _exit_reason(code: int | None) -> str:
    match code:
        case None:
            return "closed its connection"
        case -9:
            return "was killed by SIGKILL, which is also what a lack of memory looks like"
        case _ if code < 0:
            return f"was killed by signal {-code} ({signal.strsignal(-code)})"
        case _:
            return f"ended with exit code {code}"


def context() -> Any:
    """How processes are started."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload([PRELOADED])
    return forkserver


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """A process started here does not receive Ctrl-C, and does not import the main script."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    before = block_interrupts()
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block_interrupts() -> Any:
    """Block Ctrl-C in this thread and in the processes that it starts, which inherit that: the
    parent decides what ends. Returns the signals blocked before; None on Windows, which cannot."""
    if not hasattr(signal, "pthread_sigmask"):
        return None
    resource_tracker.ensure_running()  # which a first start would do, and unblock interrupts
    return signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def exit_with_parent() -> None:
    """In a process started here: it lives no longer than the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it cannot be blocked
    threading.Thread(target=_leave, daemon=True).start()


def _leave() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _serve(pipe: Any, make: bytes) -> None:
    """The loop of the process, until the other end of the pipe is closed."""
    exit_with_parent()
    handler = RequestHandler(make)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(handler(*pipe.recv()))
    handler.close()
