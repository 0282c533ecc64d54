"""Parameters of policies as NumPy arrays, and agents as bytes.

An agent is pickled and copied as what it was made of and the arrays of its state: its compiled
programs, lanes and processes are made again.
"""

import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support import checks
from bayespg.environments.spaces import Bounded, Choices
from bayespg.policies import AnyPolicy, flatten


def parameters(policy: AnyPolicy) -> dict[str, np.ndarray]:
    """Copies of the parameters by name. In their order and flattened they are theta, the columns
    of scores."""
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(policy, eqx.is_inexact_array))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.array(leaf)
        for path, leaf in leaves
    }


def vector(values: Any, like: Mapping[str, np.ndarray]) -> np.ndarray:
    """Parameters by name, or already as one vector, as a vector; ValueError where they are not of
    the kind of `like`."""
    if not isinstance(values, Mapping):
        theta, count = checks.array("parameters", values), sum(x.size for x in like.values())
        if theta.shape != (count,):
            raise ValueError(
                f"parameters: expected {count} numbers or a dictionary of arrays, found shape "
                f"{theta.shape}"
            )
        return theta
    if values.keys() != like.keys():
        raise ValueError(f"parameters: expected {sorted(like)}, found {sorted(map(str, values))}")
    parts = {name: checks.array(f"parameters[{name!r}]", values[name]) for name in like}
    for name, part in parts.items():
        if part.shape != like[name].shape:
            raise ValueError(
                f"parameters[{name!r}]: expected shape {like[name].shape}, found {part.shape}"
            )
    return np.concatenate([part.ravel() for part in parts.values()])


def replaced(policy: AnyPolicy, values: Any) -> AnyPolicy:
    """The policy with other parameters."""
    theta, rebuild = flatten(policy)
    return rebuild(jnp.asarray(vector(values, parameters(policy)), theta.dtype))


def alike(one: Any, other: Any) -> bool:
    """Whether two states differ by their numbers only."""
    shapes = (jax.tree.map(lambda leaf: getattr(leaf, "shape", None), x) for x in (one, other))
    return bool(eqx.tree_equal(*shapes))


def refuse_another_kind(agent: Any, other: Any) -> None:
    """ValueError unless the policy of one agent can act in the environment of the other."""
    kinds = [_kind(one.world.actions) for one in (agent, other)]
    if kinds[0] != kinds[1] or not alike(agent.state, other.state):
        shapes = [one.world.observation.shape for one in (agent, other)]
        raise ValueError(
            f"environment: expected observations of shape {shapes[0]} and {kinds[0]}, found "
            f"{shapes[1]} and {kinds[1]}; train a new agent there"
        )


def _kind(actions: Any) -> str:
    """The kind of actions that a policy must draw."""
    match actions:
        case Bounded():
            return f"actions of {actions.size} numbers"
        case Choices():
            return f"choices among {', '.join(map(str, actions.sizes))}"
    return "actions of a policy of your own"


def arrays(state: Any) -> list[np.ndarray | None]:
    """The leaves of a state as NumPy arrays, PRNG keys as their data; None where a leaf is none."""

    def plain(leaf: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)

    return [plain(leaf) if eqx.is_array(leaf) else None for leaf in jax.tree.leaves(state)]


def with_arrays(template: Any, arrays: list[np.ndarray | None]) -> Any:
    """The state that had these arrays; `template` has its structure."""
    leaves, structure = jax.tree.flatten(template)

    def leaf(like: Any, array: np.ndarray | None) -> Any:
        if array is None:
            return like
        if _is_key(like):
            return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
        return array

    return structure.unflatten(map(leaf, leaves, arrays))


def equal(one: Any, other: Any) -> bool:
    """Whether two states hold the same numbers."""
    pairs = zip(arrays(one), arrays(other), strict=True)
    return all(a is b or np.array_equal(a, b, equal_nan=True) for a, b in pairs)  # pyright: ignore


def packed(asked: dict[str, Any], content: Any) -> bytes:
    """What an agent was made of, functions and classes of a script or notebook included."""
    try:
        return cloudpickle.dumps((asked, content))
    except Exception as problem:
        raise TypeError(
            "agent: it cannot be pickled or copied, because what it was made of cannot "
            f"({type(problem).__name__}: {problem}); give the environment as an id or a function "
            "that makes it, or use agent.save and bayespg.load"
        ) from problem


def unpacked(content: bytes) -> Any:
    """What `packed` was given."""
    return pickle.loads(content)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
