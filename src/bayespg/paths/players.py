"""Workers that play whole episodes, with the policy on their own CPU.

    players = Players(host, environment, lanes=8, workers=4, limit=60.0)
    players.batch(policy, key, seeds)

A policy travels once per batch, an episode's seed goes out and its steps come back. Every worker
compiles the program with which one process acts in `lanes` episodes at once, and uses the row that
the episode would have there (`play_wave`), so that the steps are the same, bit for bit, with any
number of workers and however often an episode is repeated. (Processors of different kinds may
round differently: that matters on a cluster of unlike machines.)
"""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from bayespg._support import compilation, processes
from bayespg._support.precision import to_numpy
from bayespg._support.workers import LOSSES, Failed, Late, Lost, WorkerPool
from bayespg.environments import spaces
from bayespg.environments.host import EnvironmentFailure, Host
from bayespg.environments.trajectories import Trajectories
from bayespg.paths.acting import Acting
from bayespg.paths.rollout import Episode, EpisodeBuffer, play_wave
from bayespg.policies import AnyPolicy

LIMIT = 3600.0
"""Seconds that an episode may take unless told otherwise."""


class WorkersLost(EnvironmentFailure):
    """Episodes could not be played because their workers were lost again and again."""


class Orders(NamedTuple):
    """What the episodes of a batch share."""

    policies: Sequence[AnyPolicy]
    keys: Sequence[Any]
    lanes: int
    double: bool
    times: np.ndarray | None

    def acting(self, number: int) -> Acting:
        """How the policy of this number acts."""
        key = jax.random.wrap_key_data(self.keys[number])
        return Acting(self.policies[number], key, times=self.times)


class Request(NamedTuple):
    """One episode: whose policy, its place in the batch, and its seed."""

    policy: int
    wave: int
    row: int
    seed: int


class Players:
    """A pool that plays the episodes of a host elsewhere: `workers` is a number of processes, "ray"
    or the address of a cluster."""

    def __init__(
        self, host: Host, environment: Any, lanes: int, workers: int | str, limit: float | None
    ):
        self.lanes, self._host, self._workers = lanes, host, workers
        self._limit = LIMIT if limit is None else limit
        self._make, self._crew = _sendable(_maker(host, environment), environment), None
        host.close()

    @property
    def pool(self) -> WorkerPool:
        """The workers; they are started when there is something to play."""
        if self._crew is None:
            if isinstance(self._workers, int):
                self._crew = processes.Processes(self._make, self._workers, self._limit)
            else:
                from bayespg._support import cluster

                self._crew = cluster.on(self._workers, self._make, self._limit)
        return self._crew

    def batch(
        self,
        policy: AnyPolicy,
        key: PRNGKeyArray,
        seeds: Sequence[int],
        times: np.ndarray | None = None,
    ) -> Trajectories:
        """What `play` with this `Acting` would return."""
        requests = [Request(0, *divmod(j, self.lanes), seed) for j, seed in enumerate(seeds)]
        return self._batch(self._play([policy], [key], requests, self.lanes, times))

    def each(
        self, policies: Sequence[AnyPolicy], keys: Sequence[PRNGKeyArray], seeds: Sequence[int]
    ) -> list[Trajectories]:
        """One episode of each policy."""
        requests = [Request(k, 0, 0, seed) for k, seed in enumerate(seeds)]
        return [self._batch([one]) for one in self._play(policies, keys, requests, 1)]

    def _batch(self, played: list[Trajectories]) -> Trajectories:
        """Episodes in one batch, padded."""
        buffer = EpisodeBuffer(self._host, len(played))
        for j, one in enumerate(played):
            buffer.insert(j, one)
        return buffer.closed(self._host)

    def _play(
        self,
        policies: Sequence[AnyPolicy],
        keys: Sequence[PRNGKeyArray],
        requests: list[Request],
        lanes: int,
        times: np.ndarray | None = None,
    ) -> list[Trajectories]:
        words = [np.asarray(jax.random.key_data(key)) for key in keys]
        double = bool(jax.config.read("jax_enable_x64"))
        # Arrays of NumPy keep their precision on their way.
        orders = Orders(to_numpy(policies), words, lanes, double, times)
        try:
            return self.pool.answers(orders, requests)
        except Failed as failure:
            problem = failure.problem
            if isinstance(problem, EnvironmentFailure):
                raise problem from None
            where = f"episode of seed {requests[failure.number].seed}"
            kind, hint = EnvironmentFailure, ""
            if isinstance(problem, Late):
                hint = "; episode_timeout= sets the limit"
            elif isinstance(problem, Lost):
                kind, hint = WorkersLost, f", as {LOSSES - 1} before it that played this episode"
            raise kind(f"{self._host.name}, {where}: {problem}{hint}") from problem
        except Lost as problem:
            raise WorkersLost(f"{self._host.name}: {problem}") from None

    def close(self) -> None:
        """End the workers; the next batch starts them again."""
        if self._crew is not None:
            self._crew.close()


def _maker(host: Host, environment: Any) -> Callable[[], "Player"]:
    """What a worker calls for its environment: made as here, with the spaces of the policy."""
    if isinstance(environment, str):  # which may be registered in this process alone
        spec = host.environments[0].spec or environment
        environment = functools.partial(gymnasium.make, spec, disable_env_checker=True)
    return functools.partial(
        Player, environment, host.observations.space, host.acted, host.name,
        discount=host.discount, horizon=host.horizon, masks=host.masks > 0,
    )  # fmt: skip


class Player:
    """In a worker: plays an episode with one environment."""

    def __init__(
        self, environment: Any, observed: gymnasium.Space, acted: gymnasium.Space, name: str,
        **options: Any,
    ):  # fmt: skip
        os.environ["NPROC"] = "1"
        jax.config.update("jax_platforms", "cpu")
        compilation.remember()
        self._host = Host(environment, lanes=1, **options)
        self._host.observations, self._host.acted = spaces.Observations(observed), acted
        self._host.name = name
        self._orders: Orders | None = None

    def __call__(self, orders: Orders, request: Request | None) -> Trajectories | None:
        if self._orders is not orders:
            self._orders, self._acting = orders, functools.cache(orders.acting)
        with jax.enable_x64(orders.double):
            acting = self._acting(0 if request is None else request.policy)
            if request is None:  # compile
                acting(np.zeros((orders.lanes, self._host.width), np.float32), 0, 0)
                return None
            buffer = EpisodeBuffer(self._host, 1)
            episode = [Episode(request.row, request.seed, 0)]
            play_wave(self._host, acting, request.wave, episode, orders.lanes, buffer)
            return buffer.alone()

    def close(self) -> None:
        self._host.close()


def _sendable(make: Callable[[], Any], environment: Any) -> bytes:
    """The function packed for other processes; ValueError that names what cannot be sent."""
    try:
        return cloudpickle.dumps(make)
    except Exception as problem:
        inside = {}
        if inspect.isfunction(environment):
            variables = inspect.getclosurevars(environment)
            inside = {**variables.nonlocals, **variables.globals}
        stuck = [f"'{name}'" for name, value in inside.items() if not _travels(value)]
        what = f"uses {' and '.join(stuck)}, which" if stuck else ""
        raise ValueError(
            f"workers: the function that makes the environment {what} cannot be sent to another "
            f"process ({problem}); create it inside the function"
        ) from None


def _travels(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
