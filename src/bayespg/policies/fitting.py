"""Whether a policy fits an environment, by the shapes of what it takes and gives."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bayespg.environments import Environment, observation
from bayespg.environments.spaces import Actions, Choices
from bayespg.policies.base import AnyPolicy, Policy


def check(policy: AnyPolicy, seen: jax.ShapeDtypeStruct, actions: Actions | None) -> Any:
    """ValueError unless the policy takes observations of this shape and type, and gives actions of
    this kind; nothing is computed. Returns the shape and type of an action."""
    at, action = _shapes(policy, seen)
    if actions is None:
        return action
    if isinstance(actions, Choices):
        sizes = at.sizes_of_choices() if isinstance(policy, Policy) else None
        shape = () if actions.scalar else (len(actions.sizes),)
        whole = jnp.issubdtype(action.dtype, jnp.integer)
        fits = whole and action.shape == shape and sizes in (None, actions.sizes)
    else:
        sizes, fits = None, math.prod(action.shape) == actions.size
    if not fits:
        raise ValueError(
            f"policy: expected {_wanted(actions)}, found {_given(action, sizes)} from "
            f"{type(policy).__name__}; change the size of its output"
        )
    return action


def check_in_jax(policy: AnyPolicy, environment: Environment, actions: Actions | None) -> None:
    """`check` for an environment in JAX, whose `step` must take the actions."""
    action = check(policy, observation(environment), actions)

    def stepped(key):
        states = environment.reset(key, 2)
        batch = jnp.zeros((2, *action.shape), action.dtype)
        return states, environment.step(key, states, batch)[0]

    name, given = type(environment).__name__, f"of {type(policy).__name__}, {_given(action, None)}"
    try:
        before, after = jax.eval_shape(stepped, jax.random.key(0))
    except (TypeError, ValueError, IndexError) as problem:
        raise ValueError(
            f"policy: {name} does not take an action {given}: {_line(problem)}"
        ) from problem
    shapes = [[leaf.shape for leaf in jax.tree.leaves(states)] for states in (before, after)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"policy: {name} does not take an action {given}: its states become {shapes[1]}, they "
            f"were {shapes[0]}"
        )


def _shapes(policy: AnyPolicy, seen: jax.ShapeDtypeStruct) -> tuple[Any, Any]:
    """The distribution of choices and an action, as shapes and types."""

    def acted(key, x):
        at, memory = policy.step(policy.start(), x)
        return at, policy.settle(memory, at.sample(key))[0]

    real = jnp.issubdtype(seen.dtype, jnp.floating)
    x = jax.ShapeDtypeStruct(seen.shape, jnp.float32 if real else seen.dtype)
    try:
        return jax.eval_shape(acted, jax.random.key(0), x)
    except (TypeError, ValueError, IndexError) as problem:
        raise ValueError(
            f"policy: {type(policy).__name__} does not take an observation of shape {seen.shape} "
            f"and type {seen.dtype}: {_line(problem)}"
        ) from problem


def _line(problem: Exception) -> str:
    return str(problem).strip().split("\n")[0]


def _wanted(actions: Actions) -> str:
    if not isinstance(actions, Choices):
        return f"actions of {actions.size} numbers"
    sizes = ", ".join(map(str, actions.sizes))
    return f"a choice of {sizes}" if actions.scalar else f"choices of {sizes}"


def _given(action: Any, sizes: tuple[int, ...] | None) -> str:
    if sizes is not None:
        return f"{'a choice' if len(sizes) == 1 else 'choices'} of {', '.join(map(str, sizes))}"
    return f"{action.dtype} of shape {action.shape}"
