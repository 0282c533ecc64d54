"""An environment in a process of its own.

Processes are spawned, never forked: a fork of a process in which JAX has started threads can hang.
"""

import contextlib
import multiprocessing
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle

Serve = Callable[[], Callable[[Any], Any]]
"""Called once in the process, gives the function that answers requests."""


class Worker:
    """Answers requests, one at a time. `make` may be anything that cloudpickle takes."""

    def __init__(self, make: Serve):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        packed = cloudpickle.dumps(make)
        self._process = context.Process(target=_serve, args=(theirs, packed), daemon=True)
        self._process.start()
        theirs.close()
        self._end = weakref.finalize(self, _finish, self._pipe, self._process)

    def ask(self, request: Any) -> None:
        self._pipe.send_bytes(cloudpickle.dumps(request))

    def answer(self) -> Any:
        """Of the last request; what it raised there is raised here."""
        try:
            sound, found = cloudpickle.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError) as problem:
            code = self._process.exitcode
            raise RuntimeError(f"a worker process ended by itself (exit code {code})") from problem
        if not sound:
            raise found
        return found

    def close(self) -> None:
        self._end()


def _finish(pipe: Any, process: Any) -> None:
    pipe.close()
    process.join(2)
    if process.is_alive():
        process.terminate()


def _serve(pipe: Any, packed: bytes) -> None:
    with contextlib.suppress(EOFError, KeyboardInterrupt, ConnectionError):
        try:
            answer = cloudpickle.loads(packed)()
        except Exception as problem:
            pipe.recv_bytes()
            pipe.send_bytes(cloudpickle.dumps((False, problem)))
            return
        while True:
            request = cloudpickle.loads(pipe.recv_bytes())
            try:
                reply = (True, answer(request))
            except Exception as problem:
                reply = (False, problem)
            pipe.send_bytes(cloudpickle.dumps(reply))
