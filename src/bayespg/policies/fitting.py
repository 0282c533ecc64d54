"""Whether a policy fits an environment, by the shapes of what it takes and gives."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bayespg.environments import Environment, observation
from bayespg.environments.spaces import Actions, Choices
from bayespg.policies.base import AnyPolicy, Policy


def check(policy: AnyPolicy, seen: jax.ShapeDtypeStruct, actions: Actions | None) -> Any:
    """ValueError unless the policy takes observations of this shape and type, and gives actions of
    this kind; nothing is computed. Returns the shape and type of an action."""

    def acted(key, x):
        at, memory = policy.step(policy.start(), x)
        return at, policy.settle(memory, at.sample(key))[0]

    at, action = of_observation(type(policy).__name__, acted, jax.random.key(0), seen)
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

    refusal = (
        f"{type(environment).__name__} does not take an action of {type(policy).__name__}, "
        f"{_given(action, None)}"
    )
    states = _shapes(refusal, stepped, jax.random.key(0))
    before, after = ([leaf.shape for leaf in jax.tree.leaves(tree)] for tree in states)
    if before != after:
        raise ValueError(f"policy: {refusal}: its states become {after}, they were {before}")


def of_observation(
    name: str, function: Callable[..., Any], given: Any, seen: jax.ShapeDtypeStruct
) -> Any:
    """The shapes and types of function(given, observation); ValueError where it does not take the
    observation."""
    real = jnp.issubdtype(seen.dtype, jnp.floating)
    x = jax.ShapeDtypeStruct(seen.shape, jnp.float32 if real else seen.dtype)
    refusal = f"{name} does not take an observation of shape {seen.shape} and type {seen.dtype}"
    return _shapes(refusal, function, given, x)


def _shapes(refusal: str, function: Callable[..., Any], *given: Any) -> Any:
    """What the function returns, as shapes and types."""
    try:
        return eqx.filter_eval_shape(function, *given)
    except (TypeError, ValueError, IndexError) as problem:
        line = str(problem).strip().split("\n")[0]
        raise ValueError(f"policy: {refusal}: {line}") from problem


def _wanted(actions: Actions) -> str:
    if not isinstance(actions, Choices):
        return f"actions of {actions.size} numbers"
    sizes = ", ".join(map(str, actions.sizes))
    return f"a choice of {sizes}" if actions.scalar else f"choices of {sizes}"


def _given(action: Any, sizes: tuple[int, ...] | None) -> str:
    if sizes is not None:
        return f"{'a choice' if len(sizes) == 1 else 'choices'} of {', '.join(map(str, sizes))}"
    return f"{action.dtype} of shape {action.shape}"
