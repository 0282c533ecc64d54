"""Drawing paths in any environment: Gymnasium's on the host, JAX's on the device."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.random import host_key
from bayespg._support.types import Array
from bayespg.environments import Adapted, Environment, classic, observation, spaces
from bayespg.environments.host import EnvironmentFailure, Host, Lanes
from bayespg.environments.spaces import Actions
from bayespg.environments.trajectories import Trajectories
from bayespg.environments.vector import Vector
from bayespg.paths.acting import Acting, times_of
from bayespg.paths.players import Players
from bayespg.paths.rollout import EpisodeBuffer, certain_length, play, rollout
from bayespg.policies import AnyPolicy, fitting
from bayespg.policies.deterministic import Greedy


class World(abc.ABC):
    """An environment in which paths are drawn with a policy."""

    name: str
    horizon: int
    discount: float
    observation: jax.ShapeDtypeStruct
    """Shape and type of one observation."""
    environment: Environment | None = None
    """The environment itself, if it is one in JAX."""
    actions: Actions | None = None
    """The action space, for policies by name; None if it is not known."""
    masks: int = 0
    """The number of entries at the end of an observation that say which actions are allowed."""

    @property
    def real(self) -> bool:
        """Whether observations are real numbers."""
        return bool(jnp.issubdtype(self.observation.dtype, jnp.floating))

    def play(
        self,
        policy: AnyPolicy,
        key: PRNGKeyArray,
        seeds: list[int],
        greedy: bool = False,
        persistence: Float[Array, ""] | None = None,
    ) -> Trajectories:
        """One episode for each seed; `greedy` always takes the most likely action, `persistence` is
        that of exploration."""
        return self._play(Greedy(policy) if greedy else policy, key, seeds, persistence)

    @abc.abstractmethod
    def _play(self, policy, key, seeds, persistence) -> Trajectories: ...

    def play_each(
        self, policies: Sequence[AnyPolicy], keys: Sequence[PRNGKeyArray], seeds: list[int]
    ) -> list[Trajectories]:
        """One episode of each policy, with the most likely actions."""
        each = zip(policies, keys, seeds, strict=True)
        return [self.play(policy, key, [seed], True) for policy, key, seed in each]

    def expected(self, policy: AnyPolicy, episodes: int) -> Trajectories | None:
        """Zeros of the shapes that `play` will return, or None if these are not known in
        advance."""
        return None

    def refuse_misfit(self, policy: AnyPolicy) -> None:
        """ValueError unless the policy takes the observations and gives actions of the kind."""
        fitting.check(policy, self.observation, self.actions)

    @abc.abstractmethod
    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        """An observation, or a batch of them, as rows that a policy takes, and whether it was a
        batch."""

    @abc.abstractmethod
    def decode(self, actions: np.ndarray) -> list[Any]:
        """The policy's actions, each as input of the environment."""


class OnHost(World):
    """Gymnasium."""

    def __init__(self, host: Lanes):
        self.host, self.horizon, self.discount = host, host.horizon, host.discount
        self.name, self.actions = host.name, host.actions
        self.observation = jax.ShapeDtypeStruct((host.width,), np.float32)
        self.masks = host.masks

    def _play(self, policy, key, seeds, persistence) -> Trajectories:
        times = times_of(key, self.horizon, persistence)
        return play(self.host, Acting(policy, key, times=times), seeds)

    def expected(self, policy: AnyPolicy, episodes: int) -> Trajectories | None:
        T = certain_length(self.host, episodes)
        if T is None:
            return None

        def chosen(key, seen):
            return policy.step(policy.start(), seen)[0].sample(key)

        choice = jax.eval_shape(chosen, host_key(0), self.observation)
        buffer = EpisodeBuffer(self.host, episodes)
        buffer.for_actions(np.zeros((1, *choice.shape), choice.dtype))
        return buffer.until(T)

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        return self.host.observations.rows(observation)

    def decode(self, actions: np.ndarray) -> list[Any]:
        return self.host.actions.decode(actions)


class InWorkers(OnHost):
    """Gymnasium in other processes, which play whole episodes. The paths are those that this
    process would draw with as many `lanes`."""

    def __init__(self, host: Host, players: Players):
        super().__init__(host)
        self.players = players

    def _play(self, policy, key, seeds, persistence) -> Trajectories:
        times = times_of(key, self.horizon, persistence)
        return self.players.batch(policy, key, seeds, times)

    def play_each(
        self, policies: Sequence[AnyPolicy], keys: Sequence[PRNGKeyArray], seeds: list[int]
    ) -> list[Trajectories]:
        return self.players.each([Greedy(policy) for policy in policies], keys, seeds)


def actions_in_jax(environment: Environment) -> Actions | None:
    """The action space of an environment in JAX, if it is known."""
    if isinstance(environment, Adapted):
        return environment.actions
    if isinstance(environment, classic.Discrete):
        return spaces.actions(gymnasium.spaces.Discrete(environment.choices))
    if isinstance(environment, classic.InBounds):
        return spaces.actions(gymnasium.spaces.Box(-1.0, 1.0, (1,)))
    return None


class OnDevice(World):
    """JAX: whole paths in one compiled program."""

    def __init__(self, environment: Environment):
        adapted = isinstance(environment, Adapted)
        self.name = environment.name if adapted else type(environment).__name__
        if isinstance(environment, classic.Continuous):
            environment = classic.InBounds(environment)  # pyright: ignore[reportCallIssue]
        self.environment, self.actions = environment, actions_in_jax(environment)
        self.horizon, self.discount = environment.horizon, environment.discount
        self.observation = observation(environment)

    def refuse_misfit(self, policy: AnyPolicy) -> None:
        assert self.environment is not None
        fitting.check_in_jax(policy, self.environment, self.actions)

    def _play(self, policy, key, seeds, persistence) -> Trajectories:
        """All episodes follow from the key; only the number of seeds matters. An observation or a
        reward that is not finite raises `EnvironmentFailure`."""
        paths, sound = _draw(self.environment, policy, key, len(seeds), persistence)
        if not sound:
            raise EnvironmentFailure(f"{self.name}, {_first_bad(paths)}")
        return paths

    def rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        values, shape = np.asarray(observation), self.observation.shape
        if values.dtype.kind not in "biuf":
            raise ValueError(f"expected numbers, found entries of type {values.dtype}")
        values = values.astype(np.float32)
        several = values.shape[1:] == shape and values.ndim == len(shape) + 1
        if values.shape != shape and not (several and len(values)):
            raise ValueError(f"expected shape {shape}, or (B, ...) of them, found {values.shape}")
        return values if several else values[None], several

    def decode(self, actions: np.ndarray) -> list[Any]:
        if isinstance(self.environment, classic.InBounds | Adapted):
            actions = np.asarray(self.environment.within(actions))
        return list(actions)


AnyEnvironment = (
    str | gymnasium.Env | Callable[[], gymnasium.Env] | gymnasium.vector.VectorEnv | Environment
)
"""A Gymnasium id, an environment, a function that makes one, a vector environment, or one in
JAX."""


def world(
    environment: AnyEnvironment,
    *,
    workers: int | str | None = None,
    episode_timeout: float | None = None,
    **options: Any,
) -> World:
    """The world of an environment; `options` are those of `Host`."""
    if workers is None and episode_timeout is not None:
        raise ValueError("episode_timeout: is for episodes played by workers; give workers= too")
    if isinstance(environment, Environment):
        return OnDevice(environment)
    if isinstance(environment, gymnasium.vector.VectorEnv):
        if workers is not None:
            raise ValueError("workers: a vector environment has processes of its own, or none")
        own = ("discount", "horizon", "masks")
        return OnHost(Vector(environment, **{k: options[k] for k in own if k in options}))
    if workers is None:
        return OnHost(Host(environment, **options))
    if isinstance(environment, gymnasium.Env):
        raise ValueError("workers: give an id, or a function that makes the environment")
    lanes = options.pop("lanes", 8)
    host = Host(environment, lanes=1, **options)
    return InWorkers(host, Players(host, environment, lanes, workers, episode_timeout))


@eqx.filter_jit
def _draw(environment, policy, key, count, persistence):
    """Paths, and whether all numbers in them are finite."""
    paths = rollout(environment, policy, key, count, persistence)
    return paths, ~jnp.any(jnp.stack([jnp.any(bad) for *_, bad in _not_finite(paths)]))


def _not_finite(paths: Trajectories) -> list[tuple[int, str, Any, Any]]:
    """Arrays of the steps that were taken, with flags where they are not finite. Each entry is
    (step number of the first row, words for a message, array, flags by time and path)."""
    last = jnp.arange(len(paths.mask))[:, None] == paths.lengths - 1
    final = jnp.broadcast_to(paths.final, (len(paths.mask), *paths.final.shape))

    def bad(x: Any, taken: Any) -> Any:
        return taken & ~jnp.isfinite(x).reshape(*taken.shape, -1).all(-1)

    acted, rewarded = bad(paths.actions, paths.mask), bad(paths.rewards, paths.mask)
    return [
        (0, "observation holds", paths.states, bad(paths.states, paths.mask)),
        (1, "action that the policy drew holds", paths.actions, acted),
        (1, "reward is", paths.rewards, rewarded),
        (1, "observation holds", final, bad(final, last)),
    ]


def _first_bad(paths: Trajectories) -> str:
    """The episode and the step at which the first number that is not finite appeared."""
    checked = _not_finite(paths)
    step, k, t, m = min(
        (offset + t, k, t, m)
        for k, (offset, _, _, where) in enumerate(checked)
        for t, m in np.argwhere(where).tolist()
    )
    _, words, values, _ = checked[k]
    here = np.ravel(values[t, m])
    value = here[~np.isfinite(here)][0]
    where = f"episode {m + 1} of {len(paths.final)}, step {step}"
    return f"{where}: the {words} {value}; expected finite numbers"
