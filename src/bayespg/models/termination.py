"""When an episode ends: logistic regression on the state that a step leads to.

    P(terminated | x') = 1 / (1 + exp(-psi(x')'v)),   v ~ N(0, I),

with psi = (1, x, x_i x_j, waves), each part in units of its prior standard deviation. The posterior
of v is Laplace's: a Gaussian at the maximum, found by Newton's method, whose precision is the
Hessian there. As long as no episode has ended by itself the probability is zero.

Few states end an episode and many do not. All of the former are used, up to `ENDS`, the states just
before them, and evenly spaced others, which are weighted with the number that they stand for.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from bayespg._support.types import Array
from bayespg.models.features import Quadratic, Waves

ENDS, OTHERS = 256, 1024
ITERATIONS, SETTLED = 30, 1e-3
"""Newton steps at most, and the change of the logits after which there are no more."""
LENGTH = 1.2
"""Length scale of the waves, in units of sqrt(d)."""
COUNT = 100
"""Number of waves."""
SIZES = (50.0, 50.0, 50.0, 15.0)
"""Prior standard deviations of the parts of psi."""
LONGEST = 4.0
"""How far a Newton step may change any logit."""


class Termination(eqx.Module):
    """The posterior of v."""

    features: Quadratic
    mean: Float[Array, " q"]
    root: Float[Array, "q q"]
    """Lower triangular L with L L' the precision."""
    known: Bool[Array, ""]
    """Whether any episode has ended by itself."""

    def draw(self, normals: Float[Array, " q"]) -> Float[Array, " q"]:
        """Weights drawn from the posterior, from standard normal numbers."""
        return self.mean + jax.scipy.linalg.solve_triangular(self.root.T, normals, lower=False)

    def probability(self, x: Float[Array, "N d"]) -> Float[Array, " N"]:
        """With v integrated out, by MacKay's approximation: sigmoid(m / sqrt(1 + pi s^2 / 8)) for a
        logit with mean m and variance s^2."""
        psi = self.features(x)
        back = jax.scipy.linalg.solve_triangular(self.root, psi.T, lower=True)
        logit = psi @ self.mean / jnp.sqrt(1 + math.pi / 8 * jnp.sum(back**2, 0))
        return jnp.where(self.known, jax.nn.sigmoid(logit), 0.0)


def fit(
    states: Float[Array, "C d"],
    following: Float[Array, "C d"],
    ended: Bool[Array, " C"],
    count: Int[Array, ""],
    waves: Waves,
) -> Termination:
    """The posterior given the first `count` rows, in units in which their numbers are of size
    one. A state from which a step was made had not ended the episode."""
    psi = terms(waves)
    at, is_end = newest(ended & (jnp.arange(len(ended)) < count))
    ends = jnp.sum(is_end)
    rows = evenly(count, OTHERS)
    share = jnp.maximum(count / OTHERS, 1.0).astype(states.dtype)
    other = jnp.where(jnp.arange(OTHERS) < count, share, 0.0)
    Psi = psi(jnp.concatenate([following[at], states[at], states[rows]]))
    y = jnp.concatenate([jnp.ones(ENDS), jnp.zeros(ENDS + OTHERS)]).astype(states.dtype)
    weights = jnp.concatenate([is_end, is_end, other])
    eye = jnp.eye(Psi.shape[1], dtype=Psi.dtype)

    def hessian(p):
        return (Psi * (weights * p * (1 - p))[:, None]).T @ Psi + eye

    def newton(carry):
        done, v, _ = carry
        p = jax.nn.sigmoid(Psi @ v)
        slope = Psi.T @ (weights * (y - p)) - v
        step = jax.scipy.linalg.solve(hessian(p), slope, assume_a="pos")
        change = jnp.max(jnp.abs(Psi @ step))
        return done + 1, v + step * jnp.minimum(1.0, LONGEST / jnp.maximum(change, 1e-9)), change

    def moving(carry):
        done, _, change = carry
        return (ends > 0) & (done < ITERATIONS) & (change > SETTLED)

    _, v, _ = jax.lax.while_loop(moving, newton, (0, jnp.zeros_like(Psi[0]), jnp.full((), jnp.inf)))
    root = jnp.linalg.cholesky(hessian(jax.nn.sigmoid(Psi @ v)))
    return Termination(psi, v, root, ends > 0)


def terms(waves: Waves) -> Quadratic:
    """psi."""
    return Quadratic(waves.stretched(LENGTH), SIZES)


def newest(ended: Bool[Array, " C"]) -> tuple[Int[Array, " E"], Float[Array, " E"]]:
    """The last `ENDS` rows that ended an episode, and ones for those, zeros for others where there
    are fewer."""
    C = len(ended)
    at = jnp.argsort(jnp.where(ended, -jnp.arange(C), 1), stable=True)[:ENDS]
    return at, (jnp.arange(len(at)) < jnp.sum(ended)).astype(jnp.result_type(float))


def evenly(count: Int[Array, ""], places: int) -> Int[Array, " places"]:
    """Evenly spaced rows of the first `count`; each of them once, and then others, where there are
    fewer."""
    at = jnp.arange(places)
    return jnp.where(count <= places, at, at * count // places)
