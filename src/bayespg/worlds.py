"""Where paths are drawn: Gymnasium's environments on the host, JAX's on the device."""

import abc
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, Shaped

from bayespg.environments import Environment, observe
from bayespg.environments.host import Host, Lanes
from bayespg.environments.vector import Vector
from bayespg.policies import Policy
from bayespg.rollout import play, rollout
from bayespg.trajectories import Trajectories
from bayespg.types import Array


class World(abc.ABC):
    """An environment that policies can be sent into."""

    horizon: int
    discount: float
    shape: tuple[int, ...]
    """Of an observation."""
    real: bool = True
    """Whether observations are real numbers."""

    @abc.abstractmethod
    def play(
        self, policy: Policy, key: PRNGKeyArray, seeds: list[int], greedy: bool = False
    ) -> Trajectories:
        """An episode for each seed; `greedy` takes the likeliest action always."""

    @abc.abstractmethod
    def encode(self, observation: Any) -> np.ndarray:
        """An observation as policies take it."""

    @abc.abstractmethod
    def decode(self, actions: np.ndarray) -> Any:
        """The first of a policy's actions, as the environment takes it."""


class OnHost(World):
    """Gymnasium."""

    def __init__(self, host: Lanes):
        self.host, self.horizon, self.discount = host, host.horizon, host.discount
        self.shape = (host.observations.size,)

    def play(
        self, policy: Policy, key: PRNGKeyArray, seeds: list[int], greedy: bool = False
    ) -> Trajectories:
        return play(self.host, acting(policy, key, greedy), seeds)

    def encode(self, observation: Any) -> np.ndarray:
        return self.host.observations.encode(observation)

    def decode(self, actions: np.ndarray) -> Any:
        return self.host.actions.decode(actions)[0]


class OnDevice(World):
    """JAX: whole paths in one compiled program."""

    def __init__(self, environment: Environment):
        self.environment = environment
        self.horizon, self.discount = environment.horizon, environment.discount
        seen = jax.eval_shape(
            lambda key: observe(environment, environment.reset(key, 1)), jax.random.key(0)
        )
        self.shape, self.real = seen.shape[1:], jnp.issubdtype(seen.dtype, jnp.floating)

    def play(
        self, policy: Policy, key: PRNGKeyArray, seeds: list[int], greedy: bool = False
    ) -> Trajectories:
        """All episodes follow from the key; of the seeds only their number counts."""
        return _draw(self.environment, Greedy(policy) if greedy else policy, key, len(seeds))

    def encode(self, observation: Any) -> np.ndarray:
        return np.asarray(observation, np.float32)

    def decode(self, actions: np.ndarray) -> Any:
        return actions[0]


AnyEnvironment = (
    str | gymnasium.Env | Callable[[], gymnasium.Env] | gymnasium.vector.VectorEnv | Environment
)
"""A Gymnasium id, an environment, a function that makes one, several in one, or one in JAX."""


def world(environment: AnyEnvironment, **options: Any) -> World:
    """The world of an environment; `options` are those of `Host`."""
    if isinstance(environment, Environment):
        return OnDevice(environment)
    if isinstance(environment, gymnasium.vector.VectorEnv):
        if options.get("processes"):
            raise ValueError("processes: a vector environment has its own, or none")
        own = ("discount", "horizon", "bounds")
        return OnHost(Vector(environment, **{k: options[k] for k in own if k in options}))
    return OnHost(Host(environment, **options))


def acting(
    policy: Policy, key: PRNGKeyArray, greedy: bool = False
) -> Callable[[np.ndarray, int], np.ndarray]:
    """From observations of all lanes to actions; the policy goes to the device once."""
    arrays, fixed = eqx.partition(policy, eqx.is_array)
    act, arrays = _actor(fixed, greedy), jax.device_put(arrays)
    return lambda observations, tick: np.asarray(act(arrays, key, observations, tick))


@functools.lru_cache(64)
def _actor(fixed: Any, greedy: bool) -> Callable[..., jax.Array]:
    """Compiled once for all policies of a kind."""

    @jax.jit
    def act(arrays, key, observations, tick):
        found = jax.vmap(eqx.combine(arrays, fixed))(observations)
        return found.mode() if greedy else found.sample(jax.random.fold_in(key, tick))

    return act


@eqx.filter_jit
def _draw(environment, policy, key, count):
    return rollout(environment, policy, key, count)


class Greedy(Policy):
    """A policy that always takes the likeliest action."""

    policy: Policy

    def __call__(self, state: Shaped[Array, " *state"]) -> Any:
        return Certain(self.policy(state))


class Certain(eqx.Module):
    """The likeliest action of a distribution, whatever the key."""

    of: Any

    def sample(self, key: PRNGKeyArray) -> Shaped[Array, "..."]:
        return self.of.mode()
