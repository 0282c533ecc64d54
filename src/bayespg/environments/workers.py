"""Processes that answer requests, each one at a time.

Every request has a number, which its answer repeats, so that answers cannot be mixed up. A process
that ended, or was interrupted before it answered, is started again at its next request. Processes
are spawned, never forked: a fork of a process in which JAX has started threads can hang.
"""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from typing import Any

import cloudpickle

Serve = Callable[[], Callable[[Any], Any]]
"""Called in the process before the first request, returns the function that answers them all. An
attribute `close` of that function is called when the process is told to end."""

CONTEXT: Any = multiprocessing.get_context("spawn")
PATIENCE = 2.0
"""Seconds that processes have to end by themselves before they are terminated."""


class WorkerEnded(RuntimeError):
    """A process ended without an answer; the message says which and how."""


class Worker:
    """A process that answers with the function `make()`; cloudpickle must be able to send
    `make`."""

    def __init__(self, make: Serve, name: str = "worker"):
        self.name = name
        self._packed = cloudpickle.dumps(make)
        self._number = self._answered = 0
        self._start()

    def _start(self) -> None:
        pipe, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_serve, args=(theirs, self._packed), daemon=True)
        with _interrupts_blocked():
            process.start()
        theirs.close()
        self._pipe, self._process, self._new = pipe, process, True

    @property
    def owes(self) -> bool:
        """Whether an answer is outstanding."""
        return self._answered != self._number

    def ask(self, request: Any) -> None:
        """Send a request; `answer` fetches what comes of it."""
        if self.owes:
            self.end()
        if self._pipe.closed:
            self._start()
        self._number += 1
        with contextlib.suppress(OSError):  # of a process that has ended: `answer` says so
            self._pipe.send_bytes(cloudpickle.dumps((self._number, request)))

    def answer(self) -> Any:
        """The answer to the last request; what was raised there is raised here."""
        try:
            number, sound, found = cloudpickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerEnded(self._last_words()) from None
        if number != self._number:
            self.end()
            raise WorkerEnded(
                f"{self.name} answered request {number} where {self._number} was asked; the next "
                "call starts it again"
            )
        self._answered, self._new = number, False
        if not sound:
            raise found
        return found

    def _last_words(self) -> str:
        """The error for a process that does not answer any more; ends the process."""
        self._process.join(PATIENCE)
        code = self._process.exitcode
        self.end()
        match code:
            case None:
                what = "closed its connection"
            case -9:
                what = "was killed by SIGKILL, which is also what a lack of memory looks like"
            case _ if code < 0:
                what = f"was killed by signal {-code} ({signal.strsignal(-code)})"
            case _ if self._new:
                what = (
                    f"ended with exit code {code} before its first answer, and printed why (a "
                    'script that starts workers must run under `if __name__ == "__main__":`)'
                )
            case _:
                what = f"ended with exit code {code}"
        return f"{self.name} (process {self._process.pid}) {what}; the next call starts it again"

    def hang_up(self) -> None:
        """Tell the process to end, without waiting for it."""
        self._pipe.close()
        self._answered = self._number

    def end(self, patience: float = 0.0) -> None:
        """End the process: by itself within `patience` seconds, or by force."""
        self.hang_up()
        self._process.join(patience)
        for force in (self._process.terminate, self._process.kill):
            if self._process.is_alive():
                force()
                self._process.join(PATIENCE)


def ask_all(requests: Sequence[tuple[Worker, Any]]) -> list[Any]:
    """The answers of several workers in parallel; an exception takes the place of an answer that
    failed.

    All answers are awaited, so that none is left unread. An interrupt
    ends the workers that have not answered yet.
    """
    try:
        for worker, request in requests:
            worker.ask(request)
        return [_outcome(worker) for worker, _ in requests]
    finally:
        for worker, _ in requests:
            if worker.owes:
                worker.end()


def _outcome(worker: Worker) -> Any:
    try:
        return worker.answer()
    except Exception as problem:
        return problem


def end_all(workers: Sequence[Worker]) -> None:
    """End several workers within `PATIENCE` seconds together, or by force."""
    for worker in workers:
        worker.hang_up()
    until = time.monotonic() + PATIENCE
    for worker in workers:
        worker.end(max(until - time.monotonic(), 0.0))


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process started here does not receive Ctrl-C, which a terminal sends to all processes: the
    parent decides what ends."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which a first start would do, and unblock interrupts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Any, packed: bytes) -> None:
    """The loop of the process, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            number, request = cloudpickle.loads(pipe.recv_bytes())
            try:
                answer = answer or cloudpickle.loads(packed)()
                reply = True, answer(request)
            except Exception as problem:
                reply = False, problem
            pipe.send_bytes(_packed(number, *reply))
    getattr(answer, "close", lambda: None)()


def _packed(number: int, sound: bool, found: Any) -> bytes:
    try:
        return cloudpickle.dumps((number, sound, found))
    except Exception as problem:  # an answer, or an exception, that does not travel
        said = RuntimeError(f"{type(found).__name__} cannot be sent: {problem}")
        return cloudpickle.dumps((number, False, said))
