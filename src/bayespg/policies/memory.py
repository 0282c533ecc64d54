"""Policies with internal state, for partially observed tasks (Section 5).

After Aberdeen and Baxter (2001). A step of such a policy is a choice c ~ mu(c|m, o; theta), given
the memory m and the observation o. The choice is the action, or the action and something for the
memory. Given the observations and choices of a path, its memories are a function of theta, so that

    u(xi) = grad sum_t log mu(c_t|m_t(theta), o_t; theta)

is the score of Eq. 5, with the derivative through the memory. Given what came before, the scores of
a step have mean zero, and those of different steps are uncorrelated, as without memory.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Int, PRNGKeyArray, Shaped

from bayespg._support.types import Array
from bayespg.policies.base import (
    Action,
    AnyPolicy,
    Memory,
    Observation,
    Policy,
    flatten,
    information_root,
    remembers,
    score,
)
from bayespg.policies.distributions import Categorical, Distribution, Gaussians, Normal, Pair


class MemoryPolicy(AnyPolicy):
    """A policy with memory: write `start`, `__call__` and `settle`."""

    @abc.abstractmethod
    def __call__(self, memory: Memory, observation: Observation) -> tuple[Distribution, Memory]:
        """The distribution of choices, and the memory after the observation."""

    def step(self, memory: Memory, observation: Observation) -> tuple[Distribution, Memory]:
        return self(memory, observation)


class FiniteStateController(MemoryPolicy):
    """Memory i in 0 .. K-1; action a and next memory j are drawn independently of each other:

    p(a|i, o) proportional to exp(actions_ia'o),   p(j|i, o) proportional to exp(transitions_ij'o).

    A choice is (a, j). Observations are vectors; with unit vectors the policy is a table. It starts
    in memory 0. With K = 1 it is a memoryless softmax policy. At zero all memories are equivalent
    and have the same gradient: start elsewhere, as `random` does.
    """

    actions: Float[Array, "*runs K A d"]
    transitions: Float[Array, "*runs K K d"]

    @staticmethod
    def random(
        key: PRNGKeyArray, observations: int, actions: int, memories: int, scale: float = 1.0
    ) -> "FiniteStateController":
        """Parameters from N(0, scale^2)."""
        K, (key_actions, key_transitions) = memories, jax.random.split(key)
        return FiniteStateController(
            scale * jax.random.normal(key_actions, (K, actions, observations)),
            scale * jax.random.normal(key_transitions, (K, K, observations)),
        )

    def start(self) -> Int[Array, ""]:
        return jnp.zeros((), jnp.int32)

    def __call__(
        self, memory: Int[Array, ""], observation: Float[Array, " *observation"]
    ) -> tuple[Pair, Int[Array, ""]]:
        o = observation.reshape(-1)
        actions, transitions = (jnp.asarray(w)[memory] for w in (self.actions, self.transitions))
        return Pair(Categorical(actions @ o), Categorical(transitions @ o)), memory

    def settle(
        self, memory: Int[Array, ""], choice: Int[Array, "2"]
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        return choice[0], jnp.asarray(choice[1], jnp.int32)


def normal(outputs: Float[Array, "2"]) -> Normal:
    """N(y_0, e^(2 y_1)): for a recurrent policy with a real action."""
    return Normal(outputs[0], jnp.exp(outputs[1]))


def normals(outputs: Float[Array, " k"]) -> Gaussians:
    """Independent N(y_i, e^(2 y_{d+i})), i < d: for actions that are vectors."""
    return Gaussians(*jnp.split(outputs, 2))


class Recurrent(MemoryPolicy):
    """h_t = GRU(o_t, h_{t-1}), h_{-1} = 0; a_t from `distribution` of an affine function of h_t."""

    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear
    distribution: Callable[[Array], Distribution] = eqx.field(static=True, default=Categorical)

    @staticmethod
    def random(
        key: PRNGKeyArray,
        observations: int,
        outputs: int,
        memories: int,
        distribution: Callable[[Array], Distribution] = Categorical,
    ) -> "Recurrent":
        """Equinox's parameters: uniform within 1 / sqrt(memories)."""
        key_cell, key_head = jax.random.split(key)
        cell = eqx.nn.GRUCell(observations, memories, key=key_cell)
        return Recurrent(cell, eqx.nn.Linear(memories, outputs, key=key_head), distribution)

    def start(self) -> Float[Array, " H"]:
        return jnp.zeros(self.cell.hidden_size, self.cell.weight_hh.dtype)

    def __call__(
        self, memory: Float[Array, " H"], observation: Observation
    ) -> tuple[Distribution, Memory]:
        memory = self.cell(jnp.ravel(observation), jnp.asarray(memory))
        return self.distribution(self.head(memory)), memory

    def settle(self, memory: Float[Array, " H"], choice: Action) -> tuple[Action, Memory]:
        return choice, memory


# Of one path, time in front; of any policy.

Observations = Shaped[Array, "T *observation"]
Choices = Shaped[Array, "T *choice"]


def unroll(policy: AnyPolicy, observations: Observations, choices: Choices) -> Distribution:
    """mu(.|m_t, o_t; theta) for all t: one distribution whose fields have time in front."""

    def step(memory: Memory, now: tuple[Array, Array]) -> tuple[Memory, Distribution]:
        observation, choice = now
        at, memory = policy.step(memory, observation)
        return policy.settle(memory, choice)[1], at

    if not remembers(policy):
        return jax.vmap(lambda o: policy.step((), o)[0])(observations)
    return jax.lax.scan(step, policy.start(), (observations, choices))[1]


def log_probs(
    policy: AnyPolicy, observations: Observations, choices: Choices
) -> Float[Array, " T"]:
    """log mu(c_t|m_t, o_t; theta)."""
    return jax.vmap(lambda at, c: at.log_prob(c))(unroll(policy, observations, choices), choices)


def step_scores(
    policy: AnyPolicy, observations: Observations, choices: Choices
) -> Float[Array, "T n"]:
    """The terms of u(xi). With a memory in forward mode, which needs less storage than the graphs
    of all steps."""
    if isinstance(policy, Policy):
        return jax.vmap(lambda x, a: score(policy, x, a))(observations, choices)
    theta, rebuild = flatten(policy)
    return jax.jacfwd(lambda t: log_probs(rebuild(t), observations, choices))(theta)


def information_roots(
    policy: AnyPolicy, observations: Observations, choices: Choices
) -> Float[Array, "T r n"]:
    """A_t J_t with (A_t J_t)'(A_t J_t) = E[u_t u_t'] given what came before: the choice of each
    step integrated out.

    J_t is the Jacobian of that step's distribution, through a memory in forward mode, and A_t a
    root of its Fisher information.
    """
    if isinstance(policy, Policy):
        return jax.vmap(lambda x: information_root(policy, x))(observations)
    theta, rebuild = flatten(policy)

    def parameters(t):
        along = unroll(rebuild(t), observations, choices)
        return jax.vmap(lambda at: ravel_pytree(at)[0])(along), along

    J, along = jax.jacfwd(parameters, has_aux=True)(theta)
    return jax.vmap(lambda at: at.fisher_root())(along) @ J
