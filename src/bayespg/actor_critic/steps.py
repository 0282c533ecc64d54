"""Steps as the regression sees them, the prior, and features of both its kernels."""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from bayespg import fisher as fishers
from bayespg import gptd, kernels
from bayespg._support.types import Array
from bayespg.algebra import sparse, sparsification
from bayespg.algebra.conditioning import Groups, Segments, Tails
from bayespg.algebra.sparse import Matrix
from bayespg.fisher import Fisher
from bayespg.kernels import Kernel
from bayespg.posterior import Covariance, Damped, Multiple

NoiseOn = Literal["returns", "rewards"]
EXACT = 1e-9
"""Largest share of a state's prior variance that the weight form may lose."""


class Steps(NamedTuple):
    """N steps of E episodes as the regression sees them, y = V(x) + u'w + noise."""

    states: Float[Array, "N d"]
    scores: Matrix
    """Zero where the step is not taken."""
    y: Float[Array, " N"]
    """Returns-to-go, or rewards."""
    tails: Tails
    ahead: Float[Array, " N"] | None = None
    """With noise on the rewards: gamma where another step of the episode follows, else 0."""

    @property
    def taken(self) -> Bool[Array, " N"]:
        """False for padding, and for steps whose observation is not used."""
        return self.tails.taken

    @property
    def groups(self) -> Groups:
        return self.tails.groups

    @property
    def segments(self) -> Segments:
        """The tails seen through noise of the same variance everywhere."""
        return self.tails.weighted(jnp.ones_like(self.y))

    @property
    def observations(self) -> Int[Array, ""]:
        """Steps that are used, less one for each tail."""
        return self.segments.observations(self.y.size)

    def see(self, Psi: Float[Array, "N k"]) -> Float[Array, "N k"]:
        """Functions of the states as the observations show them: as they are, or the differences
        psi_t - gamma psi_{t+1}."""
        if self.ahead is not None:
            Psi = Psi - self.ahead[:, None] * jnp.roll(Psi, -1, 0)
        return jnp.where(self.taken[:, None], Psi, 0.0)


def layout(
    states: Float[Array, "N d"],
    scores: Matrix,
    rewards: Float[Array, " N"],
    last: Bool[Array, " N"],
    terminated: Bool[Array, " N"],
    taken: Bool[Array, " N"],
    discount: float | Float[Array, ""],
    groups: Groups,
    noise_on: NoiseOn = "returns",
) -> Steps:
    """Steps in a row, `taken` false for padding after the last step of an episode."""
    if noise_on == "returns":
        rows = (rewards, last | ~taken, terminated & taken)
        find = functools.partial(gptd.targets, discount=discount)
        if groups.ids is None:  # all episodes side by side
            shape = (groups.count, groups.length)
            found = jax.vmap(find)(*(x.reshape(shape) for x in rows))
        else:
            found = find(*rows)
        tail = jnp.where(taken, found.tail.reshape(-1), 0.0)
        y = jnp.where(taken, found.y.reshape(-1), 0.0)
        return Steps(states, _masked(scores, taken), y, Tails(tail, groups, taken))
    used = taken & (terminated | ~last)
    none = Tails(jnp.zeros_like(rewards), groups, used)
    ahead = jnp.where(taken & ~last, jnp.asarray(discount, rewards.dtype), 0.0)
    return Steps(states, _masked(scores, used), jnp.where(used, rewards, 0.0), none, ahead)


def _masked(scores: Matrix, kept: Bool[Array, " N"]) -> Matrix:
    return sparse.scaled(scores, kept.astype(float))


class Prior(NamedTuple):
    """k(z, z') = k_x(x, x') + scale u' D^-1 u' (Eq. 38): w ~ N(0, scale D^-1)."""

    state_kernel: Kernel
    fisher: Fisher
    """D: G itself, or G with damping where G is singular."""
    scale: float | Float[Array, ""]
    information: Fisher | None = None
    """G, where D is not G: the gradient is G w."""

    @property
    def readout(self) -> Fisher:
        """G."""
        return self.fisher if self.information is None else self.information

    def cross(self, U: Float[Array, "N n"]) -> Float[Array, "N n"]:
        """B', the prior covariance of u'w and the gradient: c U D^-1 G, which is c U for D = G
        (Eq. 41)."""
        if self.information is None:
            return self.scale * U
        return self.scale * self.information.multiply(self.fisher.solve(U))

    def covariance(self) -> Float[Array, "n n"]:
        """B_0 of the gradient: c G D^-1 G, which is c G for D = G (Eq. 41)."""
        return self.cross(self.readout.matrix())

    def spread(self) -> Covariance:
        """B_0 as an operator."""
        if self.information is None:
            return Multiple(self.fisher, self.scale)
        return Damped(self.information, self.fisher, self.scale)

    def directions(self) -> Float[Array, ""]:
        """tr(D^-1 B_0) / c: the rank of G for D = G."""
        dense = fishers.as_dense(self.fisher)
        if self.information is None:
            return fishers.directions(dense)
        return jnp.sum(dense.whiten(dense.whiten(self.information.matrix()).T) ** 2)


def state_features(
    steps: Steps, kernel: Kernel, rank: int
) -> tuple[Float[Array, "N p"], dict[str, Array]]:
    """Psi with K_x = Psi Psi', as the observations show it: the kernel's own features, or a pivoted
    Cholesky of low rank."""
    own = kernels.features(kernel, steps.states)
    if own is not None:
        return steps.see(own), {}
    found = low_rank(steps.states, kernel, min(rank, steps.y.size))
    return steps.see(found.features), {"state_rank": found.rank, "state_residual": found.residual}


def score_features(steps: Steps, prior: Prior) -> tuple[Float[Array, "N n"], Float[Array, "n n"]]:
    """Scores whitened by D, and the matrix that brings their weights back to a gradient: a root of
    G where D = G."""
    dense = fishers.as_dense(prior.fisher)
    whitened = dense.whiten(sparse.dense(steps.scores))
    if prior.information is None:
        return whitened, dense.colour(jnp.eye(dense.size)).T
    return whitened, dense.whiten(prior.information.matrix())


def low_rank(X: Float[Array, "N d"], kernel: Kernel, capacity: int) -> sparsification.LowRank:
    """A pivoted Cholesky factor of the kernel's matrix over states."""
    variances = kernels.diagonal(kernel, X)

    def row(i):
        return kernels.gram(kernel, X[i][None], X)[0]

    return sparsification.pivoted(row, variances, capacity, EXACT)
