"""Distributions of actions, with the Fisher information of their parameters."""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Float, Int, PRNGKeyArray, Shaped

from bayespg._support.random import normal
from bayespg._support.types import Array


class Distribution(eqx.Module):
    """A distribution whose array fields are its parameters.

    Fields may have a leading axis of paths; `sample` then draws for all paths from one key.
    """

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Shaped[Array, "..."]: ...

    @abc.abstractmethod
    def mode(self) -> Shaped[Array, "..."]:
        """The most likely action of each path."""

    @abc.abstractmethod
    def log_prob(self, action: Shaped[Array, " *action"]) -> Float[Array, ""]: ...

    @abc.abstractmethod
    def fisher_root(self) -> Float[Array, "r p"]:
        """A with A'A = E[d log p d log p'], with respect to the fields, flattened in their
        order."""

    @abc.abstractmethod
    def divergence(self, other: Any) -> Float[Array, ""]:
        """Kullback-Leibler divergence to another distribution of the same kind: E[log p - log
        q]."""

    def sizes_of_choices(self) -> tuple[int, ...] | None:
        """Among how many options each choice is made; None if that is not known, as for real
        actions."""
        return None


class Normal(Distribution):
    """N(mean, scale^2) for a scalar action."""

    mean: Float[Array, " *M"]
    scale: Float[Array, " *M"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " *M"]:
        return self.mean + self.scale * normal(key, self.mean.shape, self.mean.dtype)

    def mode(self) -> Float[Array, " *M"]:
        return self.mean

    def log_prob(self, action: Float[Array, ""]) -> Float[Array, ""]:
        z = (action - self.mean) / self.scale
        return -0.5 * (z**2 + jnp.log(2 * jnp.pi)) - jnp.log(self.scale)

    def fisher_root(self) -> Float[Array, "2 2"]:
        """A'A = diag(1, 2) / scale^2."""
        return jnp.diag(jnp.array([1.0, math.sqrt(2.0)], jnp.result_type(self.scale))) / self.scale

    def divergence(self, other: "Normal") -> Float[Array, ""]:
        ratio, away = self.scale / other.scale, (self.mean - other.mean) / other.scale
        return 0.5 * (ratio**2 + away**2 - 1) - jnp.log(ratio)


class UnitNormal(Distribution):
    """N(mean, 1) for a scalar action."""

    mean: Float[Array, " *M"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, " *M"]:
        return self.mean + normal(key, self.mean.shape, self.mean.dtype)

    def mode(self) -> Float[Array, " *M"]:
        return self.mean

    def log_prob(self, action: Float[Array, ""]) -> Float[Array, ""]:
        return -0.5 * ((action - self.mean) ** 2 + jnp.log(2 * jnp.pi))

    def fisher_root(self) -> Float[Array, "1 1"]:
        return jnp.ones((1, 1), self.mean.dtype)

    def divergence(self, other: "UnitNormal") -> Float[Array, ""]:
        return 0.5 * (self.mean - other.mean) ** 2


class Bernoulli(Distribution):
    """1 with probability p = 1 / (1 + e^-logit), otherwise 0."""

    logit: Float[Array, " *M"]

    def sample(self, key: PRNGKeyArray) -> Int[Array, " *M"]:
        uniform = jax.random.uniform(key, self.logit.shape, self.logit.dtype)
        return (uniform < jax.nn.sigmoid(self.logit)).astype(jnp.int32)

    def mode(self) -> Int[Array, " *M"]:
        return (self.logit > 0).astype(jnp.int32)

    def log_prob(self, action: Int[Array, ""]) -> Float[Array, ""]:
        return jax.nn.log_sigmoid((2 * action - 1) * self.logit)

    def fisher_root(self) -> Float[Array, "1 1"]:
        """A'A = p (1 - p)."""
        variance = jax.nn.sigmoid(self.logit) * jax.nn.sigmoid(-self.logit)
        return jnp.sqrt(variance).reshape(1, 1)

    def divergence(self, other: "Bernoulli") -> Float[Array, ""]:
        p, log = jax.nn.sigmoid(self.logit), jax.nn.log_sigmoid
        yes, no = log(self.logit) - log(other.logit), log(-self.logit) - log(-other.logit)
        return p * yes + (1 - p) * no

    def sizes_of_choices(self) -> tuple[int, ...]:
        return (2,)


class Categorical(Distribution):
    """i with probability p_i = e^logits_i / sum_j e^logits_j."""

    logits: Float[Array, "*M K"]

    def sample(self, key: PRNGKeyArray) -> Int[Array, " *M"]:
        """One uniform number per path, through the inverse of the distribution function. A draw
        that rounding has moved to a choice of probability zero becomes the mode."""
        p = jax.nn.softmax(self.logits)
        uniform = jax.random.uniform(key, self.logits.shape[:-1], self.logits.dtype)
        below = jnp.cumsum(p, -1)[..., :-1]
        drawn = jnp.sum(uniform[..., None] >= below, -1, dtype=jnp.int32)
        possible = jnp.take_along_axis(p, drawn[..., None], -1)[..., 0] > 0
        return jnp.where(possible, drawn, self.mode())

    def mode(self) -> Int[Array, " *M"]:
        return jnp.argmax(self.logits, -1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, ""]) -> Float[Array, ""]:
        """Selected by comparison, so that the derivative contains no scatter."""
        logs = jax.nn.log_softmax(self.logits)
        return jnp.sum(jnp.where(jnp.arange(logs.shape[-1]) == action, logs, 0.0), -1)

    def fisher_root(self) -> Float[Array, "K K"]:
        """A = diag(sqrt p) (I - 1 p'), so that A'A = diag(p) - p p'."""
        p = jax.nn.softmax(self.logits)
        return jnp.sqrt(p)[:, None] * (jnp.eye(p.size, dtype=p.dtype) - p)

    def divergence(self, other: "Categorical") -> Float[Array, ""]:
        log = jax.nn.log_softmax
        return jnp.sum(jax.nn.softmax(self.logits) * (log(self.logits) - log(other.logits)))

    def sizes_of_choices(self) -> tuple[int, ...]:
        return (self.logits.shape[-1],)


class Gaussians(Distribution):
    """Independent N(mean_i, exp(log_scale_i)^2), one for each component of the action."""

    mean: Float[Array, "*M d"]
    log_scale: Float[Array, "*M d"]

    def sample(self, key: PRNGKeyArray) -> Float[Array, "*M d"]:
        noise = normal(key, self.mean.shape, self.mean.dtype)
        return self.mean + jnp.exp(self.log_scale) * noise

    def mode(self) -> Float[Array, "*M d"]:
        return self.mean

    def log_prob(self, action: Float[Array, " d"]) -> Float[Array, ""]:
        z = (action - self.mean) * jnp.exp(-self.log_scale)
        return -0.5 * jnp.sum(z**2 + jnp.log(2 * jnp.pi)) - jnp.sum(self.log_scale)

    def fisher_root(self) -> Float[Array, "r r"]:
        """A'A = diag(exp(-2 log_scale), 2)."""
        twos = jnp.full_like(self.log_scale, math.sqrt(2.0))
        return jnp.diag(jnp.concatenate([jnp.exp(-self.log_scale), twos]))

    def divergence(self, other: "Gaussians") -> Float[Array, ""]:
        log_ratio = self.log_scale - other.log_scale
        away = (self.mean - other.mean) * jnp.exp(-other.log_scale)
        return jnp.sum(0.5 * (jnp.exp(2 * log_ratio) + away**2 - 1) - log_ratio)


class _Independent(Distribution):
    """Independent choices, the components of one action."""

    @abc.abstractmethod
    def _each(self) -> list[Categorical]: ...

    def sample(self, key: PRNGKeyArray) -> Int[Array, "*M c"]:
        each = self._each()
        keys = jax.random.split(key, len(each))
        return jnp.stack([one.sample(k) for one, k in zip(each, keys, strict=True)], -1)

    def mode(self) -> Int[Array, "*M c"]:
        return jnp.stack([one.mode() for one in self._each()], -1)

    def log_prob(self, action: Int[Array, " c"]) -> Float[Array, ""]:
        return sum(one.log_prob(action[i]) for i, one in enumerate(self._each()))  # pyright: ignore

    def fisher_root(self) -> Float[Array, "r p"]:
        return block_diag(*(one.fisher_root() for one in self._each()))

    def divergence(self, other: Any) -> Float[Array, ""]:
        both = zip(self._each(), other._each(), strict=True)
        return sum(one.divergence(another) for one, another in both)  # pyright: ignore


class Categoricals(_Independent):
    """Independent choices, `sizes[i]` options for the i-th; their logits are concatenated."""

    logits: Float[Array, "*M K"]
    sizes: tuple[int, ...] = eqx.field(static=True)

    def _each(self) -> list[Categorical]:
        ends = np.cumsum(self.sizes)
        return [
            Categorical(self.logits[..., e - s : e]) for e, s in zip(ends, self.sizes, strict=True)
        ]

    def sizes_of_choices(self) -> tuple[int, ...] | None:
        return self.sizes if sum(self.sizes) == self.logits.shape[-1] else (self.logits.shape[-1],)


class Pair(_Independent):
    """Two independent choices, the components of one action."""

    first: Categorical
    second: Categorical

    def _each(self) -> list[Categorical]:
        return [self.first, self.second]

    def sizes_of_choices(self) -> tuple[int, ...]:
        return self.first.sizes_of_choices() + self.second.sizes_of_choices()


class Fixed(Distribution):
    """An action that does not depend on chance; it has no density, and so no score."""

    action: Shaped[Array, "..."]

    def sample(self, key: PRNGKeyArray) -> Shaped[Array, "..."]:
        return self.action

    def mode(self) -> Shaped[Array, "..."]:
        return self.action

    def log_prob(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a deterministic policy has no density; train it with PGPE")

    fisher_root = divergence = log_prob


def choice(logits: Float[Array, " K"], sizes: tuple[int, ...], scalar: bool) -> Distribution:
    """A choice of each of `sizes`; with `scalar` the action is one number, not a vector."""
    return Categorical(logits) if scalar else Categoricals(logits, sizes)
