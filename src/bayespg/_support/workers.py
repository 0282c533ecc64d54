"""Workers that answer requests, and a pool that repeats what a lost worker did not answer.

A pool has up to `count` workers, started when there is work and kept until it is closed. `answers`
sends every worker what the requests share, once, and then one request at a time; a new worker gets
None first, for which it prepares. A request that raised or took longer than `limit` is repeated by
another worker, or by the same one after a new start, up to `ATTEMPTS` times. A request whose worker
was lost is repeated later, after a pause that doubles each time: on machines that may be taken away
at any moment that is ordinary. It is given up only if it was lost `LOSSES` times while no other
request was lost, so that it is itself the likely reason, or while no request was answered. Answers
have the order of the requests, so that nothing depends on the number of workers or on which of them
answered.

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
"""How often a request that raises or takes too long is made before its failure is raised."""
LOSSES = 8
"""How often a worker may be lost over the same request, or before it has started, as above."""
PAUSE, LONGEST = 0.25, 30.0
"""Seconds before a request is repeated whose worker was lost for the first time, and the most."""
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
    """A process somewhere that runs `RequestHandler` and answers one request at a time."""

    name: str
    order = 0
    """The number of the call of `WorkerPool.answers` whose shared part it has."""

    @abc.abstractmethod
    def ask(self, shared: Any, request: bytes) -> None:
        """Send a request, with the `WorkerPool.put` of what requests share unless it is there
        already."""

    @abc.abstractmethod
    def answer(self) -> bytes:
        """Wait for an answer, as `RequestHandler` packs it; raises `Lost`."""

    def close_pipe(self) -> None:
        """Tell the worker to end, without waiting for it."""
        return

    @abc.abstractmethod
    def end(self, patience: float = 0.0) -> None:
        """End the worker: by itself within `patience` seconds, or by force."""


class WorkerPool(abc.ABC):
    """Workers that answer with the function `make()`, which cloudpickle must be able to send."""

    def __init__(self, make: bytes, count: int, limit: float | None):
        self.count, self.limit, self._make = count, limit, make
        self._order = self._started = 0
        self.workers: list[Worker] = []
        self._starting: set[Worker] = set()
        weakref.finalize(self, _end, self.workers)

    @abc.abstractmethod
    def start(self, name: str) -> Worker:
        """Start a worker, without waiting for it."""

    @abc.abstractmethod
    def wait(self, workers: Sequence[Any], seconds: float | None) -> list[Any]:
        """Those that have answered or ended, after `seconds` at the latest."""

    def put(self, shared: bytes) -> Any:
        """What `Worker.ask` is given for what requests share."""
        return shared

    def answers(self, shared: Any, requests: Sequence[Any]) -> list[Any]:
        """The answers to all requests, in their order; `Failed` names one that failed."""
        self._order += 1
        put = self.put(cloudpickle.dumps(shared))
        left = Waiting(len(requests))
        results: list[Any] = [None] * len(requests)
        busy: dict[Worker, tuple[int, float]] = {}
        started = time.monotonic()
        try:
            while left or busy:
                while left.may_start() and len(self.workers) < min(self.count, len(requests)):
                    self._started += 1
                    worker = self.start(f"worker {self._started}")
                    self.workers.append(worker)
                    self._starting.add(worker)
                    self._ask(worker, put, None)
                for worker in self.workers:
                    if worker in busy or worker in self._starting:
                        continue
                    if (number := left.next()) is not None:
                        busy[worker] = number, time.monotonic() + (self.limit or math.inf)
                        self._ask(worker, put, requests[number])
                until = min([end for _, end in busy.values()] or [started + START])
                if len(busy) < self.count:
                    until = min(until, left.until())
                for worker in self._wait([*busy, *self._starting], until):
                    number, _ = busy.pop(worker, (None, 0.0))
                    try:
                        sound, answer = cloudpickle.loads(worker.answer())
                        if not sound:
                            raise answer
                        if number is not None:
                            results[number] = answer
                        self._starting.discard(worker)
                        left.answered(number)
                        started = time.monotonic()
                    except Exception as problem:
                        self._failed(worker, number, problem, left)
                for worker, (number, end) in list(busy.items()):
                    if time.monotonic() >= end:
                        del busy[worker]
                        late = Late(f"{worker.name} took longer than {self.limit:g} seconds")
                        self._failed(worker, number, late, left)
                stuck = len(self._starting) == len(self.workers) and not busy
                if stuck and time.monotonic() >= started + START:
                    raise Lost(f"no worker has started within {START:g} seconds")
        finally:
            for worker in busy:
                self._remove(worker)
        return results

    def _ask(self, worker: Worker, put: Any, request: Any) -> None:
        known, worker.order = worker.order == self._order, self._order
        worker.ask(None if known else put, cloudpickle.dumps(request))

    def _remove(self, worker: Worker) -> None:
        worker.end()
        self._starting.discard(worker)
        self.workers.remove(worker)

    def _wait(self, workers: Sequence[Any], until: float) -> list[Any]:
        seconds = None if until == math.inf else max(until - time.monotonic(), 0.0)
        if workers:
            return self.wait(workers, seconds)
        time.sleep(seconds or 0.0)
        return []

    def _failed(
        self, worker: Worker, number: int | None, problem: Exception, left: "Waiting"
    ) -> None:
        """Make the request again, or raise. A worker that is lost, or could not start, is replaced
        by the loop that called this."""
        lost = isinstance(problem, Lost)
        if lost or number is None:
            self._remove(worker)
        again = left.lost(number) if lost and not isinstance(problem, Late) else left.failed(number)
        if not again:
            raise problem if number is None else Failed(number, problem)
        if lost:
            logging.getLogger("bayespg").warning("%s; another one takes its place", problem)

    def close(self) -> None:
        """End all workers; those that are still starting have nothing to finish."""
        for worker in list(self._starting):
            self._remove(worker)
        _end(self.workers)


class Waiting:
    """The requests that are still to be made, and how often each has failed. The start of a worker
    has the number None."""

    def __init__(self, count: int):
        self._waiting = collections.deque(range(count))
        self._failures: collections.Counter[int | None] = collections.Counter()
        self._unanswered: collections.Counter[int | None] = collections.Counter()
        """Losses since any request was answered; of starts, since a worker has started."""
        self._alone: collections.Counter[int | None] = collections.Counter()
        """Losses of each request since another was lost."""
        self._pauses: collections.Counter[int | None] = collections.Counter()
        self._not_before: dict[int | None, float] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def may_start(self) -> bool:
        """Whether a worker may be started now."""
        return self._not_before.get(None, 0.0) <= time.monotonic()

    def next(self) -> int | None:
        """The next request, if there is one that need not wait any longer."""
        now = time.monotonic()
        for number in self._waiting:
            if self._not_before.get(number, 0.0) <= now:
                self._waiting.remove(number)
                return number
        return None

    def until(self) -> float:
        """When the next of those that wait may be made."""
        now = time.monotonic()
        times = [self._not_before.get(number, 0.0) for number in (*self._waiting, None)]
        return min((t for t in times if t > now), default=math.inf)

    def answered(self, number: int | None) -> None:
        """A request was answered, or a worker has started."""
        if number is None:
            del self._unanswered[None]
        else:
            self._unanswered.clear()

    def failed(self, number: int | None) -> bool:
        """Whether a request that has failed is to be made again, then as the next."""
        self._failures[number] += 1
        if number is None or self._failures[number] >= ATTEMPTS:
            return False
        self._waiting.appendleft(number)
        return True

    def lost(self, number: int | None) -> bool:
        """Whether a request whose worker was lost is to be made again, then after a pause and
        before others, so that there are others to compare it with. Workers that are lost together
        while they start count once."""
        if number is None and not self.may_start():
            return True
        for other in [n for n in self._alone if n != number]:
            del self._alone[other]
        for counts in (self._alone, self._unanswered, self._pauses):
            counts[number] += 1
        if self._unanswered[number] >= LOSSES:
            return False
        if number is not None and self._alone[number] >= LOSSES:
            return False
        pause = min(PAUSE * 2.0 ** (self._pauses[number] - 1), LONGEST)
        self._not_before[number] = time.monotonic() + pause
        if number is not None:
            self._waiting.appendleft(number)
        return True


def _end(workers: list[Worker]) -> None:
    """End workers, by themselves or by force."""
    until = time.monotonic() + PATIENCE
    for worker in workers:
        worker.close_pipe()
    for worker in workers:
        worker.end(max(until - time.monotonic(), 0.0))
    workers.clear()


class RequestHandler:
    """What runs in a worker: answers packed for the way back, exceptions included."""

    def __init__(self, make: bytes):
        self._make = make
        self._shared = self._answer = None

    def __call__(self, shared: bytes | None, request: bytes) -> bytes:
        """Answer a request; without `shared`, it shares what the one before has."""
        try:
            if shared is not None:
                self._shared = None  # not that of earlier requests, where the next line fails
                self._shared = cloudpickle.loads(shared)
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


def _packed(sound: bool, result: Any) -> bytes:
    try:
        return cloudpickle.dumps((sound, result))
    except Exception as problem:  # an answer, or an exception, that does not travel
        failure = RuntimeError(f"{type(result).__name__} cannot be sent: {problem}")
        return cloudpickle.dumps((False, failure))
