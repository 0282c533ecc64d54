"""Workers that answer requests, and a crew that repeats what a lost worker did not answer.

A crew has up to `count` workers, started when there is work and kept until it is closed. `answers`
sends every worker what the requests share, once, and then one request at a time; a new worker gets
None first, for which it prepares. A request whose
worker ended, took longer than `limit` or raised is repeated by another worker, or by the same one
after a new start, up to `ATTEMPTS` times. Answers have the order of the requests, so that nothing
depends on the number of workers or on which of them answered.

A worker is any object with the methods of `Worker`: a process (`bayespg._support.processes`) or an
actor of Ray (`bayespg._support.cluster`).
"""

import abc
import collections
import contextlib
import logging
import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

ATTEMPTS = 3
"""How often a request is made before its failure is raised."""
PATIENCE = 2.0
"""Seconds that workers have to end by themselves, all together, before they are ended by force."""
START = 300.0
"""Seconds within which one of the workers must have started."""

Answer = Callable[[Any, Any], Any]
"""From what requests share and one request to an answer; the request None is to prepare for such
requests, without a limit of time. Its attribute `close`, if there is one, is
called when the worker ends."""


class Lost(RuntimeError):
    """A worker ended; the message says which and how."""


class Late(Lost):
    """A worker did not answer in time."""


class Failed(Exception):
    """A request failed every time: its number, and the last problem."""

    def __init__(self, number: int, problem: Exception):
        super().__init__(number, problem)
        self.number, self.problem = number, problem


class Worker(abc.ABC):
    """A process somewhere that runs `Served` and answers one request at a time."""

    name: str

    @abc.abstractmethod
    def ask(self, order: int, shared: Any, request: bytes) -> None:
        """Send a request with the `Crew.put` of what it shares with the others of its `order`."""

    @abc.abstractmethod
    def answer(self) -> bytes:
        """Wait for an answer, as `Served` packs it; raises `Lost`."""

    def hang_up(self) -> None:
        """Tell the worker to end, without waiting for it."""
        return

    @abc.abstractmethod
    def end(self, patience: float = 0.0) -> None:
        """End the worker: by itself within `patience` seconds, or by force."""


class Crew(abc.ABC):
    """Workers that answer with the function `make()`, which cloudpickle must be able to send."""

    def __init__(self, make: bytes, count: int, limit: float | None):
        self.count, self.limit, self._make = count, limit, make
        self._order = self._hired = 0
        self.workers: list[Worker] = []
        self._starting: set[Worker] = set()
        weakref.finalize(self, _end, self.workers)

    @abc.abstractmethod
    def hire(self, name: str) -> Worker:
        """Start a worker, without waiting for it."""

    @abc.abstractmethod
    def wait(self, workers: Sequence[Any], seconds: float | None) -> list[Any]:
        """Those that have answered or ended, at the latest after so many seconds."""

    def put(self, shared: bytes) -> Any:
        """What `Worker.ask` is given for what requests share."""
        return shared

    def answers(self, shared: Any, requests: Sequence[Any]) -> list[Any]:
        """The answers to all requests, in their order; `Failed` names one that failed."""
        self._order += 1
        order, put = self._order, self.put(cloudpickle.dumps(shared))
        waiting = collections.deque(range(len(requests)))
        found: list[Any] = [None] * len(requests)
        failures: collections.Counter[int] = collections.Counter()
        busy: dict[Worker, tuple[int, float]] = {}
        begun = time.monotonic()
        try:
            while waiting or busy:
                while len(self.workers) < min(self.count, len(requests)):
                    self._hire().ask(order, put, cloudpickle.dumps(None))
                for worker in self.workers:
                    if waiting and worker not in busy and worker not in self._starting:
                        number = waiting.popleft()
                        busy[worker] = number, time.monotonic() + (self.limit or math.inf)
                        worker.ask(order, put, cloudpickle.dumps(requests[number]))
                until = min((end for _, end in busy.values()), default=begun + START)
                for worker in self.wait([*busy, *self._starting], _left(until)):
                    number, _ = busy.pop(worker, (None, 0.0))
                    try:
                        answer = _read(worker.answer())
                        if number is not None:
                            found[number] = answer
                        self._starting.discard(worker)
                    except Exception as problem:
                        self._failed(worker, number, problem, failures, waiting)
                for worker, (number, end) in list(busy.items()):
                    if time.monotonic() >= end:
                        del busy[worker]
                        late = Late(f"{worker.name} took longer than {self.limit:g} seconds")
                        self._failed(worker, number, late, failures, waiting)
                stuck = len(self._starting) == len(self.workers) and not busy
                if stuck and time.monotonic() >= begun + START:
                    raise Lost(f"no worker has started within {START:g} seconds")
        finally:
            for worker in busy:
                self._let_go(worker)
        return found

    def _hire(self) -> Worker:
        self._hired += 1
        worker = self.hire(f"worker {self._hired}")
        self.workers.append(worker)
        self._starting.add(worker)
        return worker

    def _let_go(self, worker: Worker) -> None:
        worker.end()
        self._starting.discard(worker)
        self.workers.remove(worker)

    def _failed(
        self, worker: Worker, number: int | None, problem: Exception,
        failures: collections.Counter[int], waiting: collections.deque[int],
    ) -> None:  # fmt: skip
        """Count a failure; the request is the next to be made again. A worker that is lost, or
        could not start, is replaced by the loop that called this."""
        lost = isinstance(problem, Lost)
        if lost or number is None:
            self._let_go(worker)
        failures[-1 if number is None else number] += 1
        if number is None:
            if not lost or failures[-1] >= ATTEMPTS:
                raise problem
        elif failures[number] >= ATTEMPTS:
            raise Failed(number, problem)
        else:
            waiting.appendleft(number)
        if lost:
            logging.getLogger("bayespg").warning("%s; another one takes its place", problem)

    def close(self) -> None:
        """End all workers; those that are still starting have nothing to finish."""
        for worker in list(self._starting):
            self._let_go(worker)
        _end(self.workers)


def _end(workers: list[Worker]) -> None:
    """End workers, by themselves or by force."""
    until = time.monotonic() + PATIENCE
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.end(max(until - time.monotonic(), 0.0))
    workers.clear()


def _left(until: float) -> float | None:
    return None if until == math.inf else max(until - time.monotonic(), 0.0)


def _read(packed: bytes) -> Any:
    sound, found = cloudpickle.loads(packed)
    if not sound:
        raise found
    return found


class Served:
    """What runs in a worker: answers packed for the way back, exceptions included."""

    def __init__(self, make: bytes):
        self._make, self._order = make, 0
        self._shared = self._answer = None

    def __call__(self, order: int, shared: Any, request: bytes) -> bytes:
        """Answer a request; `shared` is read once per order and may be left out after that."""
        try:
            if order != self._order:
                self._order, self._shared = order, cloudpickle.loads(shared)
            self._answer = self._answer or cloudpickle.loads(self._make)()
            return _packed(True, self._answer(self._shared, cloudpickle.loads(request)))
        except Exception as problem:
            with contextlib.suppress(Exception):
                self.close()
            return _packed(False, problem)

    def close(self) -> None:
        """Forget the function; the next request makes it anew."""
        answer, self._answer = self._answer, None
        getattr(answer, "close", lambda: None)()


def _packed(sound: bool, found: Any) -> bytes:
    try:
        return cloudpickle.dumps((sound, found))
    except Exception as problem:  # an answer, or an exception, that does not travel
        said = RuntimeError(f"{type(found).__name__} cannot be sent: {problem}")
        return cloudpickle.dumps((False, said))
