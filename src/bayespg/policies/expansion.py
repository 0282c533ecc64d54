"""A policy in a reproducing-kernel Hilbert space: a non-parametric actor (Section 10).

Logits, or the mean of a Gaussian, are functions h in the space of a kernel: h(x) = sum_i alpha_i
k(c_i, x), with a dictionary of states c_i that grows with the states that are visited.

The features of the policy are psi(x) = L^-1 k(C, x) with K(C, C) = L L'. They are orthonormal in
that space, so |h|^2 = w'w for h = psi'w: the gradient with respect to w is the functional gradient
E[sum_t gamma^t Q(z_t) (d log mu / d h) k(x_t, .)], projected onto the dictionary, and G^-1 times it
is the natural gradient in function space. Estimators, updates and agents need to know nothing of
it.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from bayespg._support import checks
from bayespg._support.precision import in_float64
from bayespg._support.types import Array
from bayespg.algebra import sparsification
from bayespg.algebra.sparsification import Sparsify
from bayespg.environments.spaces import Actions
from bayespg.policies.features import Features
from bayespg.policies.heads import Composed, composed
from bayespg.policies.network import space_of

PairKernel = Callable[[Any, Any], Any]
"""k(x, x') of two vectors, such as `kernels.Gaussian`; it must be hashable, which it is if its
parameters are Python numbers."""
Centres = tuple[tuple[float, ...], ...]


class Expansion(Features):
    """psi(x) = L^-1 k(C, s x), and 1, with s the `scales` of the components of x."""

    kernel: PairKernel = eqx.field(static=True)
    centres: Centres = eqx.field(static=True)
    """C: states times the scales."""
    scales: tuple[float, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return len(self.centres) + 1

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        C = jnp.asarray(np.array(self.centres), x.dtype)
        scaled = x * jnp.asarray(self.scales, x.dtype)
        k = jax.vmap(lambda c: jnp.asarray(self.kernel(c, scaled), x.dtype))(C)
        inverse = jnp.asarray(_inverse_root(self.kernel, self.centres), x.dtype)
        return jnp.concatenate([inverse @ k, jnp.ones_like(x, shape=(1,))])


@functools.cache
def _inverse_root(kernel: PairKernel, centres: Centres) -> Float[np.ndarray, "m m"]:
    """L^-1."""
    K = in_float64(_gram)(kernel, np.array(centres))
    return np.linalg.inv(np.linalg.cholesky(K))


def _gram(kernel, X):
    return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(X))(X)


def expansion(
    kernel: PairKernel,
    states: Shaped[Array, "N ..."],
    actions: int | gymnasium.Space | Actions,
    sparsify: Sparsify,
    *,
    scales: Float[Array, " d"] | float = 1.0,
) -> Composed:
    """A policy whose logits or means are zero functions of the space of `kernel`, with a dictionary
    of the `states` that the threshold of `sparsify` lets join, in the order in which they come.

    States are multiplied by `scales` before the kernel sees them. `actions` is a number of choices,
    or an action space of Gymnasium.
    """
    X = _states(states)
    given = checks.positive("scales", scales, ((), X.shape[1:]))
    s = tuple(float(of) for of in np.broadcast_to(given, X.shape[1:]))
    return composed(Expansion(kernel, _dictionary(kernel, X * s, sparsify), s), space_of(actions))


def expanded(policy: Composed, states: Shaped[Array, "N ..."], sparsify: Sparsify) -> Composed:
    """The same policy with those of the `states` in its dictionary that are new to it. Members come
    in order of arrival, so that L grows by rows and the new functions begin with weight zero."""
    before = getattr(policy, "features", None)
    if not isinstance(before, Expansion):
        raise ValueError("policy: expected one made by policies.expansion, found another kind")
    new = _states(states) * np.array(before.scales)
    centres = _dictionary(before.kernel, np.concatenate([before.centres, new]), sparsify)
    known = len(before.centres)
    if centres[:known] != before.centres:
        raise ValueError(
            "sparsify: not all members of the old dictionary would join; give its threshold or a "
            f"smaller one, and a capacity of at least {known}"
        )
    W = jnp.asarray(policy.head.weights)  # type: ignore[attr-defined]
    padded = jnp.concatenate(
        [W[:, :-1], jnp.zeros((len(W), len(centres) - known), W.dtype), W[:, -1:]], 1
    )
    head = eqx.tree_at(lambda h: h.weights, policy.head, padded)
    return Composed(Expansion(before.kernel, centres, before.scales), head)


def _dictionary(kernel: PairKernel, X: Float[np.ndarray, "N d"], sparsify: Sparsify) -> Centres:
    sparsification.checked(sparsify)
    capacity = min(sparsify.capacity or len(X), len(X))
    members, used = in_float64(_members)(kernel, X, sparsify.threshold, capacity)
    return tuple(tuple(map(float, x)) for x in X[members[used]])


def _members(kernel, X, threshold, capacity):
    dictionary = sparsification.build(
        lambda i, members: jax.vmap(lambda x: kernel(x, X[i]))(X[members]),
        jax.vmap(kernel)(X, X), threshold, capacity,
    )  # fmt: skip
    return dictionary.members, dictionary.used


def _states(states: Any) -> Float[np.ndarray, "N d"]:
    X = np.asarray(checks.array("states", states))
    if X.ndim < 2 or 0 in X.shape:
        raise ValueError(f"states: expected shape (N, d), one row per state, found {X.shape}")
    return X.reshape(len(X), -1)
