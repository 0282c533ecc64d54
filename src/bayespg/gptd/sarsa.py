"""GPSARSA: control with the critic of state-action values (Engel, Mannor and Meir, 2005).

The critic of Section 7.1 on pairs (x, a) learns while its greedy actions are played.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, PRNGKeyArray, Shaped

from bayespg._support import checks
from bayespg._support.precision import run, traced
from bayespg._support.types import Array
from bayespg.environments import Environment, observe
from bayespg.gptd.critic import Critic
from bayespg.gptd.online import Online


def greedy(
    critic: Critic, states: Shaped[Array, "M *state"], choices: int
) -> tuple[Int[Array, " M"], Float[Array, "M A"]]:
    """The choice of largest posterior mean at each state, and the means Q(x, a). Pairs are (x, a)
    with both as vectors."""
    M = states.shape[0]
    x = jnp.repeat(states.reshape(M, -1), choices, 0)
    a = jnp.tile(jnp.arange(choices), M)[:, None]
    dtype = jnp.result_type(critic.weights)
    Q = critic.mean((x.astype(dtype), a.astype(dtype))).reshape(M, choices)
    return jnp.argmax(Q, -1).astype(jnp.int32), Q


def sarsa(
    critic: Online,
    environment: Environment,
    choices: int,
    key: PRNGKeyArray,
    episodes: int,
    *,
    epsilon: float | Float[Array, ""] = 0.1,
    state_map: Any = None,
) -> tuple[Online, Int[Array, " E"]]:
    """Play `episodes`, each action the greedy one or, with probability `epsilon`, any of the
    `choices`, and observe every transition. The critic after them, and the length of each episode.

    `critic` is a `gptd.online` whose points are (x, a), for instance with a `kernels.Product`; x
    are the observations as vectors, through `state_map` if it is given. An episode that reaches the
    environment's horizon is truncated.
    """
    choices, episodes = checks.whole("choices", choices, 2), checks.whole("episodes", episodes, 1)
    if not traced(epsilon):
        epsilon = checks.real("epsilon", epsilon, least=0, most=1)
    return run(_sarsa, critic, environment, choices, key, episodes, epsilon, state_map)


def _sarsa(critic, environment, choices, key, episodes, epsilon, state_map):
    def seen(states):
        x = observe(environment, states)
        return (x if state_map is None else state_map(x)).reshape(states.shape[0], -1)

    def act(critic: Online, states, key):
        best = greedy(critic.critic(), seen(states), choices)[0]
        explore, which = jax.random.split(key)
        other = jax.random.randint(which, best.shape, 0, choices, best.dtype)
        return jnp.where(jax.random.uniform(explore, best.shape) < epsilon, other, best)

    def pair(states, actions):
        dtype = jnp.result_type(critic.noise)
        return seen(states)[0].astype(dtype), actions.astype(dtype)

    def step(carry):
        critic, states, actions, t, key, _ = carry
        key, key_step, key_act = jax.random.split(key, 3)
        following, rewards, ended = environment.step(key_step, states, actions)
        ended, reward = ended[0], rewards[0].astype(jnp.result_type(critic.noise))
        chosen = act(critic, following, key_act)
        critic = jax.lax.cond(
            ended,
            lambda c: c.terminate(reward),
            lambda c: c.observe(reward, pair(following, chosen)),
            critic,
        )
        return critic, following, chosen, t + 1, key, ended

    def episode(critic: Online, key):
        key_reset, key_act, key = jax.random.split(key, 3)
        states = environment.reset(key_reset, 1)
        actions = act(critic, states, key_act)
        critic = critic.begin(pair(states, actions))
        start = critic, states, actions, jnp.zeros((), int), key, jnp.asarray(False)
        critic, _, _, t, *_ = jax.lax.while_loop(
            lambda carry: ~carry[5] & (carry[3] < environment.horizon), step, start
        )
        return critic.truncate(), t  # which changes nothing where the episode has terminated

    return jax.lax.scan(episode, critic, jax.random.split(key, episodes))
