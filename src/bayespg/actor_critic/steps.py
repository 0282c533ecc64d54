"""Steps as inputs of the regression, the prior, and the features of its two kernels."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from bayespg import fisher as fishers
from bayespg import gptd, kernels
from bayespg._support import checks
from bayespg._support.precision import traced
from bayespg._support.types import Array
from bayespg.algebra import sparse, sparsification
from bayespg.algebra.conditioning import Groups, Segments, Tails
from bayespg.algebra.sparse import Matrix
from bayespg.fisher import Fisher
from bayespg.kernels import Kernel
from bayespg.posterior import Damped, Invertible, Multiple

RANK = 64
"""The number of features of a state kernel inside a transformation, where it cannot be adapted."""
EXACT = 1e-9
"""The largest fraction of a state's prior variance that the weight form may lose."""


class Residuals(NamedTuple):
    """How the observation of a step shows a function psi of the states where lambda < 1: through
    the residuals psi_t - gamma psi_{t+1} from that step on, the l-th of them times
    (gamma lambda)^l."""

    observed: Bool[Array, " N"]
    """False at the last pair of a truncated episode, whose reward is not used."""
    ahead: Float[Array, " N"]
    """gamma where another step of the episode follows, otherwise 0."""
    carry: Float[Array, " N"] | None
    """gamma lambda where another step of the episode follows, otherwise 0; None for lambda = 0."""

    def __call__(self, Psi: Float[Array, "N k"], longest: int) -> Float[Array, "N k"]:
        """For episodes of at most `longest` steps.

        The sums S_t = D_t + carry_t S_{t+1} are computed by doubling, which is faster on a GPU than
        step by step: after j rounds each has 2^j terms.
        """
        D = jnp.where(self.observed[:, None], Psi, 0.0)
        D = D - self.ahead[:, None] * jnp.roll(Psi, -1, 0)
        if self.carry is None:
            return D
        N = Psi.shape[0]

        def double(j, state):
            S, carry = state
            later = (jnp.arange(N) + 2**j) % N
            return S + carry[:, None] * S[later], carry * carry[later]

        rounds = math.ceil(math.log2(max(longest, 1)))
        return jax.lax.fori_loop(0, rounds, double, (D, self.carry.astype(D.dtype)))[0]


class Steps(NamedTuple):
    """N steps of E episodes as the regression sees them, y = see(psi)'e + u'w + tails + noise."""

    states: Float[Array, "N d"]
    scores: Matrix
    """Zero where the step is not taken."""
    y: Float[Array, " N"]
    """Rewards from a step on, the l-th of them times (gamma lambda)^l."""
    tails: Tails
    residuals: Residuals | None = None
    """None for lambda = 1, where their sum is psi_t itself."""
    seen: Float[Array, "N p"] | None = None
    """The features of the state kernel as the observations show them, if they are known: they are
    the most expensive part of long episodes."""

    @property
    def taken(self) -> Bool[Array, " N"]:
        """False for padding."""
        return self.tails.taken

    @property
    def groups(self) -> Groups:
        """What is left out at a time: one episode, or several."""
        return self.tails.groups

    @property
    def segments(self) -> Segments:
        """The tails seen through noise of the same variance everywhere."""
        return self.tails.weighted(jnp.ones_like(self.y))

    @property
    def observations(self) -> Int[Array, ""]:
        """The number of steps that are used, minus one for each tail."""
        return self.segments.observations()

    def see(self, Psi: Float[Array, "N k"]) -> Float[Array, "N k"]:
        """Functions of the states as they enter the observations."""
        if self.residuals is not None:
            Psi = self.residuals(Psi, self.tails.groups.length or Psi.shape[0])
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
    lambda_: float | Float[Array, ""] = 1.0,
) -> Steps:
    """Steps in a row, `taken` false for padding after the last step of an episode.

    With H_b the matrix of Eq. 31 for the discount b, the model of the rewards is

        r = H_gamma Psi e + H_b (U w + eps),   b = gamma lambda,   eps white,

    where lambda is `lambda_`. Solved for U w + eps it is a regression with white noise, in which
    the null vector b^(steps to the last pair) of a truncated episode's H_b is an unknown tail.
    """
    exactly = None if traced(lambda_) else checks.fraction("lambda_", lambda_)
    ends = last | ~taken
    rows = (rewards, ends, terminated & taken)
    carry = discount if exactly == 1 else discount * lambda_
    find = functools.partial(gptd.targets, discount=carry)
    if groups.ids is None:  # all episodes side by side
        shape = (groups.count, groups.length)
        segments = jax.vmap(find)(*(x.reshape(shape) for x in rows))
    else:
        segments = find(*rows)
    tail = jnp.where(taken, segments.tail.reshape(-1), 0.0)
    y = jnp.where(taken, segments.y.reshape(-1), 0.0)
    steps = Steps(states, sparse.scaled(scores, taken.astype(float)), y, Tails(tail, groups, taken))
    if exactly == 1:
        return steps

    def within(factor):
        return jnp.where(ends, 0.0, jnp.asarray(factor, y.dtype))

    observed = taken & (terminated | ~last)
    return steps._replace(
        residuals=Residuals(observed, within(discount), None if exactly == 0 else within(carry))
    )


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

    def spread(self) -> Invertible:
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
    if steps.seen is not None:
        return steps.seen, {}
    own = kernels.features(kernel, steps.states)
    if own is not None:
        return steps.see(own), {}
    low = low_rank(steps.states, kernel, min(rank, steps.y.size))
    return steps.see(low.features), {"state_rank": low.rank, "state_residual": low.residual}


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
