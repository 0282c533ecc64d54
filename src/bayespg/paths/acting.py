"""Acting: from observations to actions, in one compiled program on the CPU."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support import compilation, device
from bayespg._support.random import WORD, child, host_uniform
from bayespg._support.types import Array
from bayespg.paths import persistence
from bayespg.policies import AnyPolicy


class Acting:
    """A function from observations of all rows to actions, for `play`. The policy is moved to the
    CPU once: the observations come from there, and a step is too little work for another device.
    `memories` are those of the rows, None before the first step; `times` gives for each step of the
    episodes that explore persistently the one whose random numbers it uses.

    The first wave draws with `key`, every other with a key of its own, so that an episode's draws
    depend on its place in the batch and not on what was played before it.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        key: PRNGKeyArray,
        memories: Any = None,
        times: np.ndarray | None = None,
    ):
        arrays, fixed = eqx.partition(policy, eqx.is_array)
        self._arrays = jax.device_put(arrays, device.cpu())
        rest, structure = jax.tree.flatten(fixed)  # hashable where a dictionary in it is not
        self._act = _actor(tuple(rest), structure, times is not None)
        self._key, self._wave = key, (0, key)
        self._start, self.memories, self._times = policy.start, memories, times

    def __call__(
        self, observations: np.ndarray, time: int, wave: int, first: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Step `time` of the episodes of a wave. `first` tells which rows begin an episode; unless
        it is given, all do at time 0."""
        if first is None:
            first = np.full(len(observations), time == 0)
        if wave != self._wave[0]:
            self._wave = wave, child(self._key, WORD - wave) if wave else self._key
        if self.memories is None:  # all episodes begin, so their values are not used
            lanes, start = len(first), jax.eval_shape(self._start)
            self.memories = jax.tree.map(lambda m: np.zeros((lanes, *m.shape), m.dtype), start)
        held = time if self._times is None else int(self._times[time])
        before = wave * len(observations)
        choices, actions, self.memories = self._act(
            self._arrays, self._wave[1], observations, (time, held, before), self.memories, first
        )
        return np.asarray(choices), np.asarray(actions)


@functools.lru_cache(64)
def _actor(rest: tuple[Any, ...], structure: Any, persists: bool) -> Callable[..., Any]:
    """The acting function, compiled once for all policies of the same kind."""
    fixed = structure.unflatten(rest)

    @functools.partial(jax.jit, compiler_options=compilation.on_one_thread())
    def act(arrays, key, observations, at_step, memories, first):
        policy = eqx.combine(arrays, fixed)

        def begun(start, memory):
            return jnp.where(first.reshape(-1, *(1 for _ in start.shape)), start, memory)

        memories = jax.tree.map(begun, policy.start(), memories)
        at, memories = jax.vmap(policy.step)(memories, observations)
        time, held, before = at_step
        choices = at.sample(jax.random.fold_in(key, time))
        if persists:
            again = at.sample(jax.random.fold_in(key, held))
            choices = persistence.among(again, choices, before)
        return choices, *jax.vmap(policy.settle)(memories, choices)

    return act


def times_of(key: PRNGKeyArray, horizon: int, rho: Float[Array, ""] | None) -> np.ndarray | None:
    """For each step the one whose random numbers it uses, where exploration persists: `held` of
    `bayespg.paths.persistence` without a compiled program."""
    if rho is None:
        return None
    fresh = host_uniform(child(key, WORD), horizon) >= np.asarray(rho)
    return np.maximum.accumulate(np.where(fresh, np.arange(horizon), 0))
