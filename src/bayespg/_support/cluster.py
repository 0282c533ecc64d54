"""Workers and tasks on Ray: on a cluster, or on the machine itself.

A worker is an actor with one CPU. What requests share is sent to it once, by way of the cluster's
store if it is large. An actor that is lost, with its machine or without, is replaced by
`bayespg._support.workers`, as a process is.
"""

# Ray is an extra, which may be absent where types are checked.
# pyright: reportMissingImports=false

import logging
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from bayespg._support.together import Failed
from bayespg._support.workers import Lost, RequestHandler, Worker, WorkerPool

LARGE = 100_000
"""Bytes from which a message goes by way of Ray's store, which costs milliseconds."""


def connect(address: str) -> Any:
    """Ray, connected: to the cluster that is there already, that RAY_ADDRESS names or that
    `address` names; "ray" starts one on this machine otherwise."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ImportError("workers: Ray is not installed; pip install 'bayespg[ray]'") from None
    if not ray.is_initialized():
        try:
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if host and port.isdigit():  # Ray would wait minutes for an address without an answer
                socket.create_connection((host, int(port)), timeout=10).close()
            with warnings.catch_warnings():  # Ray starts its programs with fork and exec
                warnings.filterwarnings("ignore", ".*os.fork", RuntimeWarning)
                ray.init(
                    address=None if address == "ray" else address, include_dashboard=False,
                    logging_level=logging.ERROR, log_to_driver=False,
                )  # fmt: skip
        except Exception as problem:  # Ray raises plain exceptions, too
            why = str(problem).strip().split("\n")[0]
            where = "Ray did not start" if address == "ray" else f"no Ray cluster at '{address}'"
            raise ValueError(f"workers: {where} ({why})") from None
    return ray


def on(address: str, make: bytes, limit: float | None) -> "Actors":
    """A pool with as many actors as the cluster has CPUs."""
    ray = connect(address)
    return Actors(make, max(int(ray.cluster_resources().get("CPU", 1)), 1), limit)


def run(
    names: Mapping[str, tuple],
    work: Callable[..., Any],
    jobs: int,
    advance: Callable[[str, float, str], None],
    address: str,
    failed: Failed | None = None,
) -> Iterator[tuple[str, Any]]:
    """`bayespg._support.together.run` on Ray: a task with one CPU for each name. A task whose
    machine is lost is started again elsewhere."""
    ray = connect(address)
    listener = ray.remote(num_cpus=0)(ProgressListener).remote()
    task = ray.remote(num_cpus=1, max_retries=3)(_task)
    waiting, error, running = list(names), None, {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                packed = cloudpickle.dumps((work, names[name]))
                running[task.remote(listener, sys.path, name, packed)] = name
            done, _ = ray.wait(list(running), num_returns=1, timeout=0.5)
            for name, fraction, what in ray.get(listener.messages.remote()):
                advance(name, fraction, what)
            for one in done:
                name = running.pop(one)
                try:
                    yield name, ray.get(one)
                except Exception as problem:
                    problem = getattr(problem, "cause", None) or problem
                    if failed is None:
                        error = error or problem
                    else:
                        dropped = failed(name, problem)
                        waiting = [one for one in waiting if one not in dropped]
    finally:
        for one in running:
            ray.cancel(one, force=True)
    if error is not None:
        raise error


class ProgressListener:
    """Collects what tasks say about their progress."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[str, float, str]] = {}

    def record(self, name: str, fraction: float, what: str) -> None:
        self._latest[name] = name, fraction, what

    def messages(self) -> list[tuple[str, float, str]]:
        latest, self._latest = self._latest, {}
        return list(latest.values())


def _task(listener: Any, path: list[str], name: str, packed: bytes) -> Any:
    sys.path += [folder for folder in path if folder not in sys.path]
    work, arguments = cloudpickle.loads(packed)
    return work(name, *arguments, lambda f, what: listener.record.remote(name, float(f), what))


class Actor(Worker):
    """An actor of Ray that runs `RequestHandler`."""

    def __init__(self, make: bytes, name: str):
        import ray

        self.name = f"{name} (on Ray)"
        self._actor: Any = ray.remote(num_cpus=1, max_restarts=0)(Remote).remote(make, sys.path)
        self.reference: Any = None

    def ask(self, shared: Any, request: bytes) -> None:
        self.reference = self._actor.answer.remote(shared, request)

    def answer(self) -> bytes:
        import ray
        from ray import exceptions

        try:
            return ray.get(self.reference)
        except exceptions.RayError as problem:
            why = str(problem).strip().split("\n")[0]
            raise Lost(f"{self.name} was lost: {why}") from None

    def end(self, patience: float = 0.0) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)


class Actors(WorkerPool):
    """A pool of actors."""

    def start(self, name: str) -> Actor:
        return Actor(self._make, name)

    def wait(self, workers: Sequence[Actor], seconds: float | None) -> list[Actor]:
        import ray

        by_reference = {worker.reference: worker for worker in workers}
        done, _ = ray.wait(list(by_reference), num_returns=1, timeout=seconds)
        return [by_reference[one] for one in done]

    def put(self, shared: bytes) -> Any:
        import ray

        return ray.put(shared) if len(shared) > LARGE else shared


class Remote:
    """In the actor's process."""

    def __init__(self, make: bytes, path: list[str]):
        sys.path += [folder for folder in path if folder not in sys.path]
        self._handler = RequestHandler(make)

    def answer(self, shared: bytes | None, request: bytes) -> bytes:
        return self._handler(shared, request)
