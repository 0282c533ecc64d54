"""The protocols of policies. Score and Fisher information follow from the density by
differentiation."""

import abc
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Shaped

from bayespg._support.types import Array
from bayespg.policies.distributions import Distribution

P = TypeVar("P", bound=eqx.Module)


Memory = Any
"""A tree of arrays: the internal state of one path; empty for a policy without memory."""
Observation = Shaped[Array, " *observation"]
State = Shaped[Array, " *state"]
Action = Shaped[Array, " *action"]
Choice = Shaped[Array, " *choice"]


class AnyPolicy(eqx.Module):
    """mu(c|m, o; theta): a choice c given the memory m and the observation o. The inexact arrays
    it holds, also in lists, dictionaries and modules such as `equinox.nn.MLP`, are theta."""

    @abc.abstractmethod
    def start(self) -> Memory:
        """The memory before the first observation."""

    @abc.abstractmethod
    def step(self, memory: Memory, observation: Observation) -> tuple[Distribution, Memory]:
        """The distribution of choices, and the memory after the observation."""

    @abc.abstractmethod
    def settle(self, memory: Memory, choice: Choice) -> tuple[Action, Memory]:
        """The action that the environment gets, and the memory of the next step."""


class Policy(AnyPolicy):
    """mu(a|x; theta): a policy without memory. Its choices are its actions."""

    @abc.abstractmethod
    def __call__(self, state: State) -> Distribution:
        """The distribution of actions at a state."""

    def start(self) -> Memory:
        return ()

    def step(self, memory: Memory, observation: Observation) -> tuple[Distribution, Memory]:
        return self(observation), memory

    def settle(self, memory: Memory, choice: Choice) -> tuple[Action, Memory]:
        return choice, memory


def remembers(policy: AnyPolicy) -> bool:
    """Whether the policy has a memory."""
    return bool(jax.tree.leaves(policy.start()))


class SparsePolicy(Policy):
    """A policy with few active parameters at each state: theta is one vector, `weights`.

    Scores and Fisher matrices of such a policy are `sparse.Rows`, never dense.
    """

    weights: eqx.AbstractVar[Float[Array, " n"]]

    @abc.abstractmethod
    def active(self, state: State) -> Int[Array, " k"]:
        """Indices of the active parameters at a state, without repetition."""

    @abc.abstractmethod
    def local(self, weights: Float[Array, " k"], state: State) -> Distribution:
        """The distribution of actions at a state, given its active parameters."""


def score(policy: Policy, state: State, action: Action) -> Float[Array, " n"]:
    """u(z) = grad log mu(a|x; theta), Eq. 39."""
    theta, rebuild = flatten(policy)
    return jax.grad(lambda t: rebuild(t)(state).log_prob(action))(theta)


def sparse_score(
    policy: SparsePolicy, state: State, action: Action
) -> tuple[Int[Array, " k"], Float[Array, " k"]]:
    """The nonzero entries of u(z): indices and values."""
    active = policy.active(state)
    gradient = jax.grad(lambda w: policy.local(w, state).log_prob(action))
    return active, gradient(jnp.asarray(policy.weights)[active])


def sparse_information_root(
    policy: SparsePolicy, state: State
) -> tuple[Int[Array, " k"], Float[Array, "r k"]]:
    """The nonzero columns of `information_root`: indices and values."""
    active = policy.active(state)
    weights = jnp.asarray(policy.weights)[active]
    J = jax.jacobian(lambda w: ravel_pytree(policy.local(w, state))[0])(weights)
    return active, policy.local(weights, state).fisher_root() @ J


def information_root(policy: eqx.Module, state: State) -> Float[Array, "r n"]:
    """A J with (A J)'(A J) = E_{a|x}[u u']: the Fisher matrix at a state, the action integrated
    out, of a policy, or of another module that maps states to distributions.

    J is the Jacobian of the distribution's parameters and A a root of their Fisher information.
    """
    theta, rebuild = flatten(policy)
    J = jax.jacobian(lambda t: ravel_pytree(rebuild(t)(state))[0])(theta)  # pyright: ignore[reportCallIssue]
    at: Distribution = policy(state)  # pyright: ignore[reportCallIssue]
    return at.fisher_root() @ J


def flatten(policy: P) -> tuple[Float[Array, " n"], Callable[[Float[Array, " n"]], P]]:
    """theta as one vector, and a function from such a vector to a policy."""
    parameters, rest = eqx.partition(policy, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(parameters)
    return theta, lambda t: eqx.combine(unravel(t), rest)  # pyright: ignore


def slower(policy: eqx.Module, factor: float) -> Float[np.ndarray, " n"]:
    """For each parameter a factor of its step: `factor` for log standard deviations, else one."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(policy, eqx.is_inexact_array))
    names = [(jax.tree_util.keystr(path), leaf.size) for path, leaf in leaves]
    factors = [np.full(size, factor if "log_scale" in name else 1.0) for name, size in names]
    return np.concatenate(factors).astype(leaves[0][1].dtype)


def count(policy: AnyPolicy) -> int:
    """n, the number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(policy, eqx.is_inexact_array)))


def as_arrays(policy: P) -> P:
    """The policy with its numbers as arrays of JAX: NumPy arrays and Python floats. Everything else
    stays, such as the activations that `equinox.nn.MLP` holds."""
    numbers = (np.ndarray, np.generic, float, complex)
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, numbers) else x, policy)


def as_dtype(policy: P, dtype: DTypeLike) -> P:
    """The policy with its parameters in another precision."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, policy)
