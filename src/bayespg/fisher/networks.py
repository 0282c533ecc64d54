"""The Fisher matrix of a network's steps, by products with its Jacobian.

A derivative along a direction costs only as much as a few evaluations. With the actions integrated
out,

    G = sum_i w_i J_i' F_i J_i + damping I = R'R + damping I,

where J_i is the Jacobian of the distribution's parameters at state i and F_i = A_i'A_i their Fisher
information. Systems are solved by conjugate gradients, preconditioned with the Fisher matrix of a
few states (Woodbury): in float32 they fail without it.
"""

import dataclasses
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.algebra.conjugate_gradients import conjugate_gradients
from bayespg.algebra.sparsification import evenly_spaced
from bayespg.fisher.matrices import Fisher
from bayespg.paths.scores import Jacobian, Linearised
from bayespg.policies import flatten

SUBSET = 128
"""The number of states from which the preconditioner is made."""
ITERATIONS, TOLERANCE = 10, 0.1
"""The largest number of iterations of conjugate gradients per solve, and the relative residual at
which they end: far below the error of a few episodes."""


class Subset(eqx.Module):
    """Z'Z, close to the Fisher matrix of a few states, from which systems a Z'Z + b I are
    solved."""

    Z: Float[Array, "k n"]
    eigenvalues: Float[Array, " k"]
    Q: Float[Array, "k k"]
    """Z Z' = Q diag(eigenvalues) Q'."""

    @property
    def trace(self) -> Float[Array, ""]:
        return jnp.sum(self.eigenvalues)

    def effective(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        """tr((G + delta I)^-1 G): how many directions the damping leaves."""
        return jnp.sum(self.eigenvalues / (self.eigenvalues + damping))

    def solve(self, v: Float[Array, " n"], a, b) -> Float[Array, " n"]:
        """(a Z'Z + b I)^-1 v = [v - Z' Q diag(a / (b + a l)) Q' Z v] / b."""
        inner = self.Q @ ((a / (b + a * self.eigenvalues)) * (self.Q.T @ (self.Z @ v)))
        return (v - self.Z.T @ inner) / b


def subset(jacobian: Jacobian, weights: Float[Array, " N"], count: int = SUBSET) -> Subset:
    """The preconditioner of `count` evenly spaced states among those with positive weight.

    State i has one row z = s_i'A J instead of the r rows of A J, which costs one gradient instead
    of r. The signs s_i are those of the i-th Walsh function: z z' differs from J'A'A J by products
    of different rows, whose signs cancel over neighbouring states.
    """
    rows = evenly_spaced(weights > 0, count)
    each = jnp.sum(weights) * weights[rows] / jnp.maximum(jnp.sum(weights[rows]), 1e-30)
    theta, rebuild = flatten(jacobian.policy)

    def row(i, state, weight):
        A = jacobian.policy(state).fisher_root()
        signs = 1 - 2 * (jax.lax.population_count(i & jnp.arange(len(A))) % 2)
        gradient = jax.grad(lambda t: signs @ A @ ravel_pytree(rebuild(t)(state))[0])(theta)
        return jnp.sqrt(weight).astype(gradient.dtype) * gradient

    states = jax.tree.map(lambda x: x[rows], jacobian.states)
    Z = jax.vmap(row)(jnp.arange(count), states, each)
    eigenvalues, Q = jnp.linalg.eigh(Z @ Z.T)
    return Subset(Z, jnp.maximum(eigenvalues, 0.0), Q)


class Network(Fisher):
    """R'R + damping I of the steps of a network."""

    jacobian: Jacobian
    weights: Float[Array, " N"]
    subset: Subset
    damping: Float[Array, ""]
    iterations: int = eqx.field(static=True, default=ITERATIONS)
    tolerance: float = eqx.field(static=True, default=TOLERANCE)

    @property
    def size(self) -> int:
        return self.jacobian.size

    def trace(self) -> Float[Array, ""]:
        return self.subset.trace + self.size * self.damping

    def effective(self, G: Fisher) -> Float[Array, ""]:
        return self.subset.effective(self.damping)

    def damped(self, damping: Float[Array, ""]) -> "Network":
        return dataclasses.replace(self, damping=self.damping + damping)

    def both(self, U: Jacobian) -> tuple[Callable, Callable]:
        """Products with the scores U and with R at once, w to (U w, R w) and (a, b) to U'a + R'b.

        The states of a matrix that was made from steps are those of U, and one product with the
        Jacobian each way serves both; one that was made from states alone is of other states.
        """
        at = self.jacobian.linearise()
        A = self._root(at)
        if at.scores is None:
            of_scores = U.products()

            def apart(w):
                return of_scores.times(w), jnp.einsum("nrp,np->nr", A, at.push(w))

            def added(a, b):
                return of_scores.transposed_times(a) + at.pull(jnp.einsum("nrp,nr->np", A, b))

            return apart, added
        S = at.scores * U.weights[:, None]

        def forward(w):
            Jw = at.push(w)
            return jnp.sum(S * Jw, -1), jnp.einsum("nrp,np->nr", A, Jw)

        def backward(a, b):
            return at.pull(S * a[:, None] + jnp.einsum("nrp,nr->np", A, b))

        return forward, backward

    def _root(self, at: Linearised) -> Float[Array, "N r p"]:
        """R = A J."""
        return at.roots * jnp.sqrt(self.weights)[:, None, None].astype(at.roots.dtype)

    def solve_roughly(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        floor = jnp.finfo(self.subset.Z.dtype).eps * self.subset.trace / self.size
        damping = jnp.maximum(self.damping, floor)
        return jnp.vectorize(lambda v: self.subset.solve(v, 1.0, damping), signature="(n)->(n)")(V)

    def _product(self) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
        at = self.jacobian.linearise()
        F = jnp.einsum("nrp,nrq->npq", at.roots, at.roots) * self.weights[:, None, None].astype(
            at.roots.dtype
        )
        return lambda w: at.pull(jnp.einsum("npq,nq->np", F, at.push(w))) + self.damping * w

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        return jnp.vectorize(self._product(), signature="(n)->(n)")(V)

    def solve(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        product = self._product()

        def one(v):
            return conjugate_gradients(
                product, v, self.solve_roughly, tolerance=self.tolerance, most=self.iterations
            )

        return jnp.vectorize(one, signature="(n)->(n)")(V)

    def sample(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape n"]:
        at, dtype = self.jacobian.linearise(), self.subset.Z.dtype
        A = self._root(at)

        def one(key):
            key_steps, key_rest = jax.random.split(key)
            b = jax.random.normal(key_steps, A.shape[:2], dtype)
            rest = jax.random.normal(key_rest, (self.size,), dtype)
            return at.pull(jnp.einsum("nrp,nr->np", A, b)) + jnp.sqrt(self.damping) * rest

        drawn = jax.lax.map(one, jax.random.split(key, max(1, math.prod(shape))))
        return drawn.reshape(*shape, self.size)

    def matrix(self) -> Float[Array, "n n"]:
        return self.multiply(jnp.eye(self.size, dtype=self.subset.Z.dtype))


def network(jacobian: Jacobian, weights: Float[Array, " N"]) -> Network:
    """G of the steps whose scores are `jacobian`, or of its states, each with its weight, and no
    damping."""
    sampled = subset(jacobian, weights)
    return Network(jacobian, weights, sampled, jnp.zeros((), sampled.Z.dtype))
