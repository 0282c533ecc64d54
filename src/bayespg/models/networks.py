"""An ensemble of small networks: the family of models for many dimensions and contacts.

Each member predicts means and variances of the change of the state and of the reward, all in their
units, from state and action. They begin at different weights and learn from different rows; where
they disagree, little is known (Lakshminarayanan et al., 2017; Chua et al., 2018). Members go on
learning from where they were when there are new transitions, a number of steps that is in
proportion to these, so that an update's cost does not grow with the data.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.models.data import Transitions
from bayespg.models.features import FARTHEST, Units

MEMBERS, HIDDEN = 5, (96, 96)
ROWS, RATE = 256, 1e-3
"""Rows per step of Adam and member, and the rate of steps."""
FIRST, LEAST, MOST, EACH = 500, 100, 1500, 2.0
"""Steps when networks begin to learn; later at least, at most, and per new transition."""
LOWEST, HIGHEST = -10.0, 2.0
"""Bounds of the logarithm of a variance."""
SHARPNESS = 0.5
"""The likelihood of a row counts with this power of its variance: rows that are predicted badly
would otherwise hardly be learned from (Seitzer et al., 2022)."""


class Networks(eqx.Module):
    """The members, their weights side by side."""

    weights: tuple[Float[Array, "E i o"], ...]
    biases: tuple[Float[Array, "E 1 o"], ...]
    noise: Float[Array, " o"]
    """The mean of the variances where they learned."""

    def __call__(
        self, x: Float[Array, "*E N d"], a: Float[Array, "*E N k"], farthest: float = FARTHEST
    ) -> tuple[Float[Array, "E N o"], Float[Array, "E N o"]]:
        """Means and variances by each member, for rows of its own or for the same rows."""
        z = jnp.concatenate([jnp.clip(x, -farthest, farthest), a], -1).astype(jnp.float32)
        z = jnp.broadcast_to(z, (len(self.weights[0]), *z.shape[-2:]))
        h = z
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = jax.nn.swish(h @ W + b)
        y = jnp.concatenate([h, z], -1) @ self.weights[-1] + self.biases[-1]
        mean, free = jnp.split(y, 2, -1)
        bounded = LOWEST + (HIGHEST - LOWEST) * jax.nn.sigmoid(free)
        return mean, jnp.exp(bounded)


class Learner(eqx.Module):
    """Networks and what they need to go on learning."""

    networks: Networks
    moments: Any
    seen: Int[np.ndarray, ""]
    """Transitions in all when they last learned."""


def begin(key: PRNGKeyArray, inputs: int, outputs: int) -> Learner:
    """Networks that have learned nothing: all means are near zero."""
    sizes, weights, biases = (inputs, *HIDDEN), [], []
    for i, o in zip(sizes, (*HIDDEN, 2 * outputs), strict=True):
        last = len(weights) == len(HIDDEN)
        i = i + inputs if last else i
        key, one = jax.random.split(key)
        size = (0.1 if last else 1.0) / np.sqrt(i)
        weights.append(size * jax.random.normal(one, (MEMBERS, i, o), jnp.float32))
        biases.append(jnp.zeros((MEMBERS, 1, o), jnp.float32))
    networks = Networks(tuple(weights), tuple(biases), jnp.ones(outputs, jnp.float32))
    return Learner(networks, optax.adam(RATE).init(networks), np.asarray(0, np.int64))  # pyright: ignore


def learned(
    learner: Learner, data: Transitions, units: tuple[Units, Units, Units], key: PRNGKeyArray
) -> Learner:
    """After some steps with all transitions, in these units of states, changes and rewards."""
    fresh, begun = int(data.seen) - int(learner.seen), int(learner.seen) > 0
    steps = int(np.clip(EACH * fresh, LEAST if begun else FIRST, MOST))
    states, changes, payments = (
        tuple(np.asarray(z, np.float32) for z in (u.mean, u.scale)) for u in units
    )
    with jax.enable_x64(False):
        networks, moments = _train(
            learner.networks, learner.moments, key,
            (data.states, data.actions, data.rewards, data.following, data.terminated),
            (states, changes, payments), data.count, steps,
        )  # fmt: skip
        return Learner(networks, moments, np.asarray(data.seen, np.int64))  # pyright: ignore


@jax.jit
def _train(networks, moments, key, transitions, units, count, steps):
    states, actions, rewards, following, ended = transitions
    x, d, r = (Units(*u) for u in units)
    X = x(states)
    Y = jnp.concatenate([d(following - states), r(rewards[:, None])], 1)
    # The reward of a step that ends an episode is not that of others (`bayespg.models.model`).
    counts = jnp.ones_like(Y).at[:, -1].set(jnp.where(ended, 0.0, 1.0))
    optimiser = optax.adam(RATE)

    def loss(networks, rows):
        mean, variance = networks(X[rows], actions[rows])
        fit = (Y[rows] - mean) ** 2 / variance + jnp.log(variance)
        share = jax.lax.stop_gradient(variance) ** SHARPNESS
        return jnp.sum(jnp.mean(counts[rows] * share * fit, (1, 2)))

    def step(k, carry):
        networks, moments = carry
        rows = jax.random.randint(jax.random.fold_in(key, k), (MEMBERS, ROWS), 0, count)
        slope = jax.grad(loss)(networks, rows)
        change, moments = optimiser.update(slope, moments)
        return optax.apply_updates(networks, change), moments

    networks, moments = jax.lax.fori_loop(0, steps, step, (networks, moments))
    rows = jax.random.randint(key, (MEMBERS, ROWS), 0, count)
    noise = jnp.mean(networks(X[rows], actions[rows])[1], (0, 1))
    return eqx.tree_at(lambda n: n.noise, networks, noise), moments
