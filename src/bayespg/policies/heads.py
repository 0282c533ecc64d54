"""From features to a distribution of actions: policies for any observation vector and any action
space."""

import abc

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg._support.types import Array
from bayespg.environments.spaces import Actions, Choices
from bayespg.policies import distributions
from bayespg.policies.base import Policy
from bayespg.policies.distributions import Distribution
from bayespg.policies.features import Features

SCALE = 1.0
"""Length of the vector of initial standard deviations of a Gaussian policy, in units of half the
actions' range."""


def initial_scale(size: int) -> float:
    """Initial standard deviation of each of `size` components of an action. The more components
    there are, the less noise each has: what noise costs grows with their number, and with too much
    of it a body with many joints learns to keep still before it learns to walk."""
    return SCALE / np.sqrt(size)


class Head(eqx.Module):
    """Features to a distribution."""

    @abc.abstractmethod
    def __call__(self, phi: Float[Array, " k"]) -> Distribution: ...


class Choice(Head):
    """Softmax: a choice for each of `sizes`, logits linear in the features. At zero all choices are
    equally likely."""

    weights: Float[Array, "K k"]
    sizes: tuple[int, ...] = eqx.field(static=True)
    scalar: bool = eqx.field(static=True)
    """Whether the action is one number rather than a vector of them."""

    def __init__(self, features: int, sizes: tuple[int, ...], scalar: bool):
        self.weights = np.zeros((sum(sizes), features), np.float32)
        self.sizes, self.scalar = sizes, scalar

    def __call__(self, phi: Float[Array, " k"]) -> Distribution:
        return distributions.choice(self.weights @ phi, self.sizes, self.scalar)


class Normals(Head):
    """Gaussian: means linear in the features, one scale per component that does not depend on the
    state.

    The action is the draw itself; the environment clips it to its bounds, so that the score is that
    of a Gaussian.
    """

    weights: Float[Array, "d k"]
    log_scale: Float[Array, " d"]

    def __init__(self, features: int, size: int, scale: float = 1.0):
        self.weights = np.zeros((size, features), np.float32)
        self.log_scale = np.full(size, np.log(scale), np.float32)

    def __call__(self, phi: Float[Array, " k"]) -> Distribution:
        return distributions.Gaussians(self.weights @ phi, self.log_scale)


class Composed(Policy):
    """mu(a|x) = head(features(x))."""

    features: Features
    head: Head

    def __call__(self, state: Float[Array, " *d"]) -> Distribution:
        return self.head(self.features(jnp.ravel(state)))


def composed(features: Features, actions: Actions) -> Composed:
    """A policy whose choices are equally likely, or whose means are in the middle of the range."""
    if isinstance(actions, Choices):
        return Composed(features, Choice(features.size, actions.sizes, actions.scalar))
    return Composed(features, Normals(features.size, actions.size, initial_scale(actions.size)))
