"""The protocols of environments, and of those with exact answers.

Rewards are always maximised: a cost is negated in its environment and nowhere else.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from bayespg._support.types import Array


class Environment(eqx.Module):
    """A Markov decision process in pure JAX, written for a batch of M paths, with one key per
    step for all of them."""

    horizon: eqx.AbstractVar[int]
    """Steps after which a path is truncated."""
    discount: eqx.AbstractVar[float]

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray, paths: int) -> Shaped[Array, "M *state"]:
        """Draw x_0 from P_0, once for each path."""

    @abc.abstractmethod
    def step(
        self,
        key: PRNGKeyArray,
        states: Shaped[Array, "M *state"],
        actions: Shaped[Array, "M *action"],
    ) -> tuple[Shaped[Array, "M *state"], Float[Array, " M"], Bool[Array, " M"]]:
        """Draw next states and rewards; the last result is true where the next state is
        absorbing."""


class PartiallyObserved(Environment):
    """A partially observable Markov decision process (Section 5): a policy sees o and never x.

    Its states are any tree of arrays with a leading axis of paths. What the policy has seen is part
    of them: o is drawn from P_o(o|x) by `reset` and `step`, together with x.
    """

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray, paths: int) -> Any: ...

    @abc.abstractmethod
    def step(
        self, key: PRNGKeyArray, states: Any, actions: Shaped[Array, "M *action"]
    ) -> tuple[Any, Float[Array, " M"], Bool[Array, " M"]]: ...

    @abc.abstractmethod
    def observe(self, states: Any) -> Shaped[Array, "M *observation"]:
        """What the policy sees."""


class Wrapper(PartiallyObserved):
    """An environment around another one, which is the same in all that is not replaced."""

    environment: eqx.AbstractVar[Environment]

    def reset(self, key: PRNGKeyArray, paths: int) -> Any:
        return self.environment.reset(key, paths)

    def step(
        self, key: PRNGKeyArray, states: Any, actions: Shaped[Array, "M *action"]
    ) -> tuple[Any, Float[Array, " M"], Bool[Array, " M"]]:
        return self.environment.step(key, states, actions)

    def observe(self, states: Any) -> Shaped[Array, "M *observation"]:
        return observe(self.environment, states)

    @property
    def horizon(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.environment.horizon

    @property
    def discount(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.environment.discount


def observe(environment: Environment, states: Any) -> Shaped[Array, "M *observation"]:
    """The observations of a partially observed environment, otherwise the states."""
    return environment.observe(states) if isinstance(environment, PartiallyObserved) else states


def observation(environment: Environment) -> jax.ShapeDtypeStruct:
    """Shape and type of one observation."""
    return jax.eval_shape(
        lambda key: observe(environment, environment.reset(key, 1))[0], jax.random.key(0)
    )


class Solved(Environment):
    """An environment whose expected return and Fisher matrix are known for certain policies."""

    known: ClassVar[tuple[str, ...]] = ()
    """Attributes that such a policy has."""

    def solves(self, policy: Any) -> bool:
        """Whether the exact answers for this policy are known."""
        return all(hasattr(policy, name) for name in self.known)

    @abc.abstractmethod
    def expected_return(self, policy: Any) -> Float[Array, ""]:
        """eta(theta)."""

    @abc.abstractmethod
    def fisher(self, policy: Any) -> Float[Array, "n n"]:
        """G(theta) of a path, Eq. 24, in the policy's own parameters."""


def expected_return(environment: Environment, policy: Any) -> Float[Array, ""]:
    """eta(theta) if it is known, otherwise NaN."""
    if isinstance(environment, Solved) and environment.solves(policy):
        return environment.expected_return(policy)
    return jnp.asarray(jnp.nan)


def check_solved(environment: Environment, policy: Any) -> None:
    """TypeError if the exact answers for this policy are not known."""
    if not isinstance(environment, Solved):
        raise TypeError(f"{type(environment).__name__} has no closed form; estimate instead")
    if not environment.solves(policy):
        raise TypeError(
            f"{type(environment).__name__} has exact answers for policies with "
            f"{' and '.join(environment.known)}, which {type(policy).__name__} does not have; "
            "estimate instead"
        )


def exact_gradient(environment: Solved, policy: Any) -> Float[Array, " n"]:
    """The gradient of the expected return, by differentiating its closed form."""
    check_solved(environment, policy)
    return ravel_pytree(jax.grad(environment.expected_return)(policy))[0]


def gaussian_fisher(
    policy: Any, mean: str, weight: Float[Array, ""], steps: int
) -> Float[Array, "n n"]:
    """Fisher matrix of `steps` actions N(c_t m, s^2) whose c_t^2 sum to `weight` in expectation:

    (weight dm dm' + 2 steps ds ds') / s^2, with m = policy.<mean> and s = policy.scale.
    """
    dm, ds = (
        ravel_pytree(jax.grad(lambda p, name=name: 1.0 * getattr(p, name))(policy))[0]
        for name in (mean, "scale")
    )
    return (weight * jnp.outer(dm, dm) + 2 * steps * jnp.outer(ds, ds)) / policy.scale**2
