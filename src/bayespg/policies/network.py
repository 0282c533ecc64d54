"""A network of any library as a policy: what it computes from an observation becomes the logits of
choices, or the means of a Gaussian.

    eqx.nn.MLP(4, 2, 64, 2, key=key)        an equinox module
    (model, variables)                      a Flax module and what its `init` returned
    (transformed, parameters)               a transformed function of Haiku and its parameters
    (apply, parameters)                     a function apply(parameters, observation)

Libraries are told by the shape of what is given, so that none of them need be installed.
"""

import inspect
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Shaped

from bayespg._support import checks
from bayespg._support.types import Array
from bayespg.environments import spaces
from bayespg.environments.spaces import Actions, Bounded, Choices
from bayespg.policies import fitting
from bayespg.policies.base import Policy
from bayespg.policies.distributions import Distribution, Gaussians, choice
from bayespg.policies.features import Convolutional, Learned
from bayespg.policies.heads import Composed, composed, initial_scale

FORMS = (
    "an equinox module, (model, variables) of Flax, (transformed, parameters) of Haiku, or "
    "(apply, parameters) with a function apply(parameters, observation)"
)


class Network(Policy, Learned):
    """mu(a|x) with logits or means apply(parameters, x); the floating-point arrays among the
    parameters, and the logarithm of the scale of a Gaussian, are theta."""

    parameters: Any
    log_scale: Float[Array, " d"] | None
    """One number per component of a Gaussian action; None for choices."""
    apply: Callable[[Any, Any], Any] = eqx.field(static=True)
    sizes: tuple[int, ...] | None = eqx.field(static=True)
    """Among how many options each choice is made; None for a Gaussian."""
    scalar: bool = eqx.field(static=True)

    def __call__(self, state: Shaped[Array, " *state"]) -> Distribution:
        outputs = jnp.ravel(self.apply(self.parameters, state))
        if self.log_scale is not None:
            return Gaussians(outputs, self.log_scale)
        assert self.sizes is not None
        return choice(outputs, self.sizes, self.scalar)


def network(
    given: Any,
    actions: int | gymnasium.Space | Actions,
    observation: jax.ShapeDtypeStruct | None = None,
) -> Network:
    """The policy of a network: an equinox module, or a pair of a network and its parameters as at
    the top of this module.

    `actions` is a number of choices, or an action space of Gymnasium. With the shape and type of an
    `observation`, the size of the output is checked; agents do so by themselves.
    """
    actions = space_of(actions)
    apply, parameters = _functional(given)
    if isinstance(actions, Choices):
        outputs, each = sum(actions.sizes), "a logit for each choice"
        policy = Network(parameters, None, apply, actions.sizes, actions.scalar)
    else:
        outputs, each = actions.size, "a mean for each number"
        log_scale = np.full(outputs, np.log(initial_scale(outputs)), np.float32)
        policy = Network(parameters, log_scale, apply, None, False)
    if observation is not None:
        given = fitting.of_observation("the network", apply, parameters, observation)
        shapes = [leaf.shape for leaf in jax.tree.leaves(given)]
        expected = f"policy: expected a network with {outputs} outputs, {each} of an action"
        if len(shapes) != 1:
            raise ValueError(f"{expected}, found {len(shapes)} arrays; return one of them")
        if math.prod(shapes[0]) != outputs:
            raise ValueError(
                f"{expected}, found an output of shape {shapes[0]}; change the size of its output"
            )
    return policy


def convolutional(
    shape: tuple[int, ...], actions: int | gymnasium.Space | Actions, *, key: PRNGKeyArray
) -> Composed:
    """A small convolutional policy for images of `shape`: (height, width), with channels last or
    first. Below 36 pixels a side it has one layer of 3 x 3 filters (MinAtar), otherwise two layers
    with strides of 4 and 2 (84 x 84 grey); then 64 tanh units.

    Expect less of it than of a few good features: it has tens of thousands of weights, so that the
    posterior is known through products alone, a batch of episodes informs few of its directions,
    and learning takes many more episodes than with a policy of a few dozen numbers.
    """
    return composed(Convolutional(shape, key=key), space_of(actions))


class _Module(eqx.Module):
    """An equinox module without its arrays, such as the activations that it holds."""

    rest: Any = eqx.field(static=True)

    def __call__(self, arrays: Any, x: Any) -> Any:
        return eqx.combine(arrays, self.rest)(x)


def is_network(given: Any) -> bool:
    """Whether `network` takes it."""
    pair = isinstance(given, tuple) and len(given) == 2 and not hasattr(given, "apply")
    if pair:
        return callable(getattr(given[0], "apply", given[0]))
    return isinstance(given, eqx.Module) and callable(given) and not isinstance(given, Policy)


def _functional(given: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    """A function of parameters and an observation, and the parameters."""
    if not is_network(given):
        hint = ""
        if callable(getattr(given, "apply", None)) or callable(given):
            hint = "; its parameters are missing, give a pair"
        raise ValueError(f"network: expected {FORMS}, found {type(given).__name__}{hint}")
    if isinstance(given, eqx.Module):
        arrays, rest = eqx.partition(given, eqx.is_array)
        return _Module(rest), arrays
    model, parameters = given
    apply = getattr(model, "apply", model)
    if "rng" in list(inspect.signature(apply).parameters)[:2]:  # Haiku's second argument
        return _WithoutRandomness(apply), parameters
    return apply, parameters


class _WithoutRandomness(eqx.Module):
    apply: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, parameters: Any, x: Any) -> Any:
        return self.apply(parameters, None, x)


def space_of(actions: Any) -> Actions:
    if isinstance(actions, Choices | Bounded):
        return actions
    if not isinstance(actions, gymnasium.Space):
        actions = gymnasium.spaces.Discrete(checks.whole("actions", actions, 1))
    return spaces.actions(actions)
