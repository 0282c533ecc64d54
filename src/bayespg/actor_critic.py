"""The gradient from single steps: Bayesian actor-critic (Section 7.2, sparse in 7.3).

The critic's prior is k(z, z') = k_x(x, x') + c u' G^-1 u'. The state kernel says nothing about the
gradient, because scores integrate to zero, and the Fisher kernel says all of it (Proposition 6):

    E[grad eta] = B alpha,   Cov[grad eta] = B_0 - B C B',   B = c U,   B_0 = c G

Four ways to the same numbers. In the weights' view Q(z) = V(x) + u(z)'w with w ~ N(0, c G^-1), and
the gradient is G w.

    dual         factorises the N x N matrix of all steps                            N^3
    weight       features of the state kernel and whitened scores                    N p^2
    dictionary   features of a dictionary of state-action pairs (Proposition 7)      N m^2
    matrix-free  conjugate gradients on the precision of w, products with U alone    N n

The paper's noise is white on the returns-to-go (Eq. 32). With noise on the rewards instead,

    r_t = V(x_t) + u(z_t)'w - gamma V(x_{t+1}) + N_t,

what the coming actions do to the return is explained by their own scores, where Eq. 32 takes it for
noise: far more accurate where transitions are nearly deterministic, biased where they are not. V is
the mean of Q over actions, because scores have mean zero.
"""

import functools
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg import checks, conditioning, gptd, kernels, sparse, sparsification
from bayespg import fisher as fishers
from bayespg.conditioning import Groups, Regression, Segments, Tails
from bayespg.fisher import Dense, Fisher
from bayespg.kernels import Kernel
from bayespg.posterior import LARGE, Covariance, Downdate, GradientPosterior
from bayespg.precision import in_float64, to_float64, traced
from bayespg.sparse import Matrix, Rows
from bayespg.sparsification import Sparsify
from bayespg.types import Array

Form = Literal["auto", "dual", "weight", "matrix-free"]
NoiseOn = Literal["returns", "rewards"]
RANK = 64
"""Features of a state kernel inside a transformation, where their number cannot be adapted."""
MOST = 2048
"""Features beyond which a state kernel is said to have no low rank."""
EXACT = 1e-9
"""Largest share of a state's prior variance that the weight form may lose."""
TOLERANCE, ITERATIONS = 1e-8, 1000
"""Of the conjugate gradients in the matrix-free form."""
MIXED = (
    "sparsify: a dictionary of state-action pairs cannot tell V from Q, which noise_on='rewards' "
    "needs; leave sparsify out or take noise_on='returns'"
)
LEFT_OUT = 4e7
"""Numbers in the per-episode Gram matrices beyond which episodes are left out to first order."""


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
    """k(z, z') = k_x(x, x') + scale u' G^-1 u'."""

    state_kernel: Kernel
    fisher: Fisher
    scale: float | Float[Array, ""]


def gradient_posterior(
    states: Float[Array, "N *d"],
    scores: Matrix,
    rewards: Float[Array, " N"],
    fisher: Fisher | Float[Array, "n n"],
    *,
    last: Bool[Array, " N"],
    terminated: Bool[Array, " N"],
    discount: float,
    state_kernel: Kernel,
    fisher_scale: float | Float[Array, ""] = 1.0,
    noise: float | Float[Array, ""] = 1.0,
    sparsify: Sparsify | None = None,
    noise_on: NoiseOn = "returns",
    form: Form = "auto",
    episodes: int | None = None,
) -> GradientPosterior:
    """The posterior of the gradient given steps, one after the other (Propositions 6 and 7).

    `last` marks the steps that end an episode and `terminated` those that end it in an absorbing
    state; the last reward of a truncated episode is not used, and an episode still running at the
    end of the data counts as truncated. `fisher` is that of steps, Eq. 40, un-normalised:
    `fisher.g_est` or `fisher.actions_integrated_out`. `scores` is an (N, n) array or `sparse.Rows`.
    `noise` is the variance s^2, of the returns-to-go or, with `noise_on` "rewards", of the rewards:
    the better model where transitions are deterministic.

    `sparsify` builds a dictionary of state-action pairs (Proposition 7). Without it the answer is
    exact, by the cheapest `form`; with more than 2048 parameters, or sparse scores, that is
    matrix-free and the covariance an operator. Inside a transformation `episodes`, their number,
    must be given.
    """
    arrays = (states, scores, rewards, fisher, last, terminated, fisher_scale, noise)
    if traced(*arrays):
        if episodes is None:
            raise ValueError("episodes: inside a transformation give the number of episodes")
        return _from_arrays(
            *arrays, discount, state_kernel, sparsify, noise_on, form, episodes, RANK
        )
    states, scores, rewards, fisher, last, terminated, gamma = _checked(
        states, scores, rewards, fisher, last, terminated, discount
    )
    if form not in ("auto", "dual", "weight", "matrix-free"):
        raise ValueError(
            f"form: expected 'auto', 'dual', 'weight' or 'matrix-free', found {form!r}"
        )
    if noise_on not in ("returns", "rewards"):
        raise ValueError(f"noise_on: expected 'returns' or 'rewards', found {noise_on!r}")
    if noise_on == "rewards" and sparsify is not None:
        raise ValueError(MIXED)
    state_kernel = gptd.checked_kernel("state_kernel", state_kernel)
    sparsification.checked(sparsify)
    scale = checks.positive("fisher_scale", fisher_scale, ())
    noise = checks.positive("noise", noise, ())
    count = int(last[:-1].sum()) + 1
    chosen = _choose(scores, fisher) if form == "auto" else form
    rank = RANK
    if sparsify is None and chosen != "dual":
        rank = _rank(states, state_kernel)
        n = scores.size if isinstance(scores, Rows) else scores.shape[1]
        if form == "auto" and chosen == "weight" and rank + n >= len(rewards):
            chosen = "dual"
    found = in_float64(_from_arrays)(
        states, scores, rewards, fisher, last, terminated, scale, noise, gamma,
        state_kernel, sparsify, noise_on, chosen, count, rank,
    )  # fmt: skip
    if not np.all(np.isfinite(found.mean)):
        raise ValueError(
            "noise: the kernel matrix plus noise is singular; give a larger noise variance"
        )
    return found


def _from_arrays(
    states, scores, rewards, fisher, last, terminated, scale, noise, discount,
    state_kernel, sparsify, noise_on, form, episodes, rank,
) -> GradientPosterior:  # fmt: skip
    N = rewards.shape[0]
    last = jnp.asarray(last).at[-1].set(True)
    episode = jnp.cumsum(jnp.roll(last, 1)) - 1  # a step after an end begins an episode
    steps = layout(
        jnp.asarray(states).reshape(N, -1), scores, jnp.asarray(rewards), last,
        jnp.asarray(terminated), jnp.ones(N, bool), discount, Groups(episodes, episode), noise_on,
    )  # fmt: skip
    prior = Prior(state_kernel, fishers.as_fisher(fisher), scale)
    return of_steps(steps, prior, noise, sparsify=sparsify, form=form, rank=rank)


def of_steps(
    steps: Steps,
    prior: Prior,
    noise: float | Float[Array, ""],
    *,
    sparsify: Sparsify | None = None,
    form: Form = "auto",
    rank: int = RANK,
    iterations: int = ITERATIONS,
) -> GradientPosterior:
    """`gradient_posterior` for steps already laid out. `rank` is the most features that a state
    kernel without finitely many of its own gets; what they miss is in `info`. `iterations` bounds
    the conjugate gradients of the matrix-free form: fewer shrink the answer towards zero."""
    if form == "auto":
        form = _choose(steps.scores, prior.fisher)
    if sparsify is not None and steps.ahead is not None:
        raise ValueError(MIXED)
    if sparsify is not None:
        return _in_weight_space(steps, prior, noise, *_dictionary(steps, prior, sparsify))
    if form == "dual":
        return _dual(steps, prior, noise)
    Psi, info = state_features(steps, prior.state_kernel, rank)
    if form == "matrix-free":
        return _matrix_free(steps, prior, noise, Psi, info, iterations)
    whitened, root = score_features(steps, prior.fisher)
    c = jnp.sqrt(jnp.asarray(prior.scale, root.dtype))
    features = jnp.concatenate([Psi, c * whitened], -1)
    V = jnp.concatenate([jnp.zeros((root.shape[0], Psi.shape[1]), root.dtype), c * root], -1)
    return _in_weight_space(steps, prior, noise, features, V, jnp.zeros(()), info)


def _choose(scores: Matrix, fisher: Any) -> Form:
    large = isinstance(scores, Rows) or scores.shape[1] > LARGE
    lazy = isinstance(fisher, Fisher) and not isinstance(fisher, Dense)
    return "matrix-free" if large or lazy else "weight"


def state_features(
    steps: Steps, kernel: Kernel, rank: int
) -> tuple[Float[Array, "N p"], dict[str, Array]]:
    """Psi with K_x = Psi Psi', as the observations show it: the kernel's own features, or a pivoted
    Cholesky of low rank."""
    own = kernels.features(kernel, steps.states)
    if own is not None:
        return steps.see(own), {}
    found = _low_rank(steps.states, kernel, min(rank, steps.y.size))
    return steps.see(found.features), {"state_rank": found.rank, "state_residual": found.residual}


def score_features(steps: Steps, fisher: Fisher) -> tuple[Float[Array, "N n"], Float[Array, "n n"]]:
    """Whitened scores, and the root of G that brings their weights back to a gradient."""
    dense = fishers.as_dense(fisher)
    return dense.whiten(sparse.dense(steps.scores)), dense.colour(jnp.eye(dense.size)).T


def _dictionary(steps: Steps, prior: Prior, sparsify: Sparsify):
    """Features, functional and what they leave out of the prior, of a dictionary of pairs."""
    X, U, c = steps.states, steps.scores, prior.scale
    state_kernel, taken = prior.state_kernel, steps.taken
    if isinstance(U, Rows):
        K = _gram(steps, prior)
        row, variances = (lambda i, members: K[i, members]), jnp.diagonal(K)
    else:
        solved = prior.fisher.solve(U)

        def row(i, members):
            states = kernels.gram(state_kernel, X[i][None], X[members])[0]
            return states + c * (solved[members] @ U[i])

        variances = kernels.diagonal(state_kernel, X) + c * jnp.sum(U * solved, -1)
        variances = jnp.where(taken, variances, 0.0)
    N = variances.size
    found = sparsification.build(row, variances, sparsify.threshold, min(sparsify.capacity or N, N))
    Psi = jnp.where(taken[:, None], found.features, 0.0)
    V = found.functional_of(c * sparse.dense(sparse.take(U, found.members)).T)
    large = V.shape[0] > LARGE
    remainder = None if large else c * prior.fisher.matrix() - V @ V.T
    return Psi, V, remainder, found.info()


def _gram(steps: Steps, prior: Prior) -> Float[Array, "N N"]:
    G, U = prior.fisher, steps.scores
    if isinstance(U, Rows) and isinstance(G, fishers.Sparse):
        K = G.kernel(U, U)
    else:
        U = sparse.dense(U)
        K = U @ G.solve(U).T
    seen = steps.see(steps.see(kernels.gram(prior.state_kernel, steps.states)).T)
    return seen + prior.scale * K


def _in_weight_space(
    steps: Steps, prior: Prior, noise, Psi, V, remainder, info
) -> GradientPosterior:
    at = conditioning.regress(Psi, steps.y[:, None], noise, steps.tails)
    mean = (V @ at.weights)[:, 0]
    root = at.covariance_root(V)
    G = prior.fisher
    if remainder is None:
        covariance: Any = Downdate(G, prior.scale, at.explained_root(V))
        explained = jnp.ones(())
    else:
        covariance = remainder + root.T @ root
        dense = fishers.as_dense(G)
        kept = jnp.sum(dense.whiten(V.T) ** 2) - jnp.sum(dense.whiten(root) ** 2)
        explained = kept / (prior.scale * fishers.rank(dense))
    spread = jnp.sum(solve_triangular(at.factor, jnp.eye(V.shape[1]), lower=True) ** 2)
    return GradientPosterior(
        mean=mean,
        covariance=covariance,
        fisher=G,
        influence=fishers.leave_one_out(G, mean, _leave_out(at, steps.groups) @ V.T),
        explained=explained,
        freedom=_observations(steps) - V.shape[1] + spread,
        info=_info(steps, at.log_evidence, at.condition, G) | info,
    )


def _leave_out(at: Regression, groups: Groups) -> Float[Array, "E p"]:
    """The change of the weights when an episode is left out: (P - X_e'X_e)^-1 X_e' r_e, exact.

    Where those matrices would be too many, P^-1 X_e' r_e: with so many episodes, one alone changes
    P little.
    """
    pull = groups.sum(at.X * at.residuals)
    p = at.X.shape[1]
    if groups.count * p**2 > LEFT_OUT:
        return cho_solve((at.factor, True), pull.T).T
    without = at.factor @ at.factor.T - groups.grams(at.X)
    return jax.vmap(lambda P, b: cho_solve((jnp.linalg.cholesky(P), True), b))(without, pull)


def _dual(steps: Steps, prior: Prior, noise) -> GradientPosterior:
    taken, G, c = steps.taken, prior.fisher, prior.scale
    K = _gram(steps, prior)
    U = sparse.dense(steps.scores)
    s2 = jnp.where(taken, noise, 1.0)
    at = conditioning.dual(K, c * U.T, c * G.matrix(), steps.y[:, None], s2, steps.tails)
    mean = (at.gain @ steps.y[:, None])[:, 0]
    assert at.covariance is not None
    dense = fishers.as_dense(G)
    return GradientPosterior(
        mean=mean,
        covariance=at.covariance,
        fisher=G,
        influence=fishers.leave_one_out(G, mean, _leave_out_dual(at, steps)),
        explained=jnp.sum(at.gain.T * dense.solve(U)) / fishers.rank(dense),
        freedom=at.freedom - jnp.sum(~taken),
        info=_info(steps, at.log_evidence, at.condition, G),
    )


def _leave_out_dual(at: conditioning.Conditioned, steps: Steps) -> Float[Array, "E n"]:
    """(B C)_e C_ee^+ alpha_e: the change of the mean when an episode is left out, exact.

    C_ee is singular along the tail of a truncated episode, where alpha has nothing.
    """
    groups = steps.groups
    ids = groups.row_ids(steps.y.size)
    assert at.whitener is not None
    C = at.whitener.T @ at.whitener
    unit = steps.segments.unit

    def one(e):
        own = ids == e
        block = jnp.where(own[:, None] & own, C + unit[:, None] * unit, jnp.eye(ids.size))
        x = jnp.linalg.solve(block, jnp.where(own, at.alpha[:, 0], 0.0))
        return at.gain @ jnp.where(own, x, 0.0)

    return jax.lax.map(one, jnp.arange(groups.count))


def _observations(steps: Steps) -> Int[Array, ""]:
    return steps.segments.observations(steps.y.size)


def _info(steps: Steps, evidence, condition, G: Fisher) -> dict[str, Any]:
    return {
        "evidence": jnp.sum(evidence),
        "condition": condition,
        "jitter": G.jitter if isinstance(G, Dense) else jnp.zeros(()),
        "observations": _observations(steps),
    }


class Precision(eqx.Module):
    """P = G/c + U' A^-1 U, the posterior precision of w; A = K_x + s^2 I with the tails
    removed."""

    scores: Matrix
    fisher: Fisher
    scale: float | Float[Array, ""]
    noise: float | Float[Array, ""]
    tails: Segments
    features: Float[Array, "N p"]
    """Of the state kernel, in units of the noise and with the tails removed."""
    factor: Float[Array, "p p"]
    iterations: int = eqx.field(static=True)

    def smooth(self, a: Float[Array, " N"]) -> Float[Array, " N"]:
        """A^-1 a."""
        b = self.tails.remove(jnp.where(self.tails.taken, a, 0.0)[:, None])
        X = self.features
        b = b - X @ cho_solve((self.factor, True), X.T @ b)
        return self.tails.remove(b)[:, 0] / self.noise

    def multiply(self, w: Float[Array, " n"]) -> Float[Array, " n"]:
        seen = self.smooth(sparse.times(self.scores, w))
        return self.fisher.multiply(w) / self.scale + sparse.transposed_times(self.scores, seen)

    def solve(self, b: Float[Array, " n"]) -> Float[Array, " n"]:
        diagonal = (
            self.fisher.diagonal() / self.scale + sparse.squared_columns(self.scores) / self.noise
        )
        return fishers.conjugate_gradients(
            self.multiply, b, diagonal, tolerance=TOLERANCE, most=self.iterations
        )


class Implicit(Covariance):
    """G P^-1 G, by conjugate gradients."""

    precision: Precision

    def multiply(self, V: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        G, P = self.precision.fisher, self.precision
        return jnp.vectorize(lambda v: G.multiply(P.solve(G.multiply(v))), signature="(n)->(n)")(V)

    def diagonal(self) -> Float[Array, " n"]:
        """Estimated from 64 draws, a relative error of 18 % each: exactly it would take n
        solves."""
        return jnp.mean(self.sample(jax.random.key(0), 64) ** 2, 0)

    def sample(self, key: PRNGKeyArray, k: int) -> Float[Array, "k n"]:
        """G P^-1 b with b ~ N(0, P): a draw from N(0, G/c) plus U' A^-1 times one from N(0, A)."""
        P = self.precision

        def one(key: PRNGKeyArray) -> Float[Array, " n"]:
            key_prior, key_state, key_noise = jax.random.split(key, 3)
            prior = P.fisher.sample(key_prior, ()) / jnp.sqrt(P.scale)
            N, p = P.features.shape
            state = P.features @ jax.random.normal(key_state, (p,))
            noise = jax.random.normal(key_noise, (N,))
            seen = P.smooth(jnp.sqrt(P.noise) * (state + noise))
            return P.fisher.multiply(P.solve(prior + sparse.transposed_times(P.scores, seen)))

        return jax.lax.map(one, jax.random.split(key, k))


def _matrix_free(
    steps: Steps, prior: Prior, noise, Psi, info, iterations: int
) -> GradientPosterior:
    """w = P^-1 U' A^-1 y by conjugate gradients. Episodes are left out to first order."""
    noise = jnp.asarray(noise, steps.y.dtype)
    tails = steps.segments
    X = tails.remove(Psi) / jnp.sqrt(noise)
    factor = jnp.linalg.cholesky(jnp.eye(X.shape[1]) + X.T @ X)
    P = Precision(steps.scores, prior.fisher, prior.scale, noise, tails, X, factor, iterations)
    w = P.solve(sparse.transposed_times(steps.scores, P.smooth(steps.y)))
    alpha = P.smooth(steps.y - sparse.times(steps.scores, w))
    G, ids = prior.fisher, steps.groups.row_ids(steps.y.size)

    def left_out(e):
        pull = noise * P.smooth(jnp.where(ids == e, alpha, 0.0))
        return G.multiply(P.solve(sparse.transposed_times(steps.scores, pull)))

    return GradientPosterior(
        mean=G.multiply(w),
        covariance=Implicit(P),
        fisher=G,
        influence=jax.lax.map(left_out, jnp.arange(steps.groups.count)),
        explained=jnp.ones(()),
        freedom=jnp.sum(steps.taken).astype(steps.y.dtype),
        info={"observations": _observations(steps)} | info,
    )


# What a caller may pass.


def _checked(states, scores, rewards, fisher, last, terminated, discount):
    r, last, terminated, gamma = gptd.checked_steps(rewards, last, terminated, discount)
    X = checks.array("states", states)
    if X.ndim == 0 or X.shape[0] != r.size:
        raise ValueError(f"states: expected {r.size} rows, one a reward, found shape {X.shape}")
    if isinstance(scores, Rows):
        values = checks.array("scores", scores.values)
        indices = np.asarray(scores.indices)
        if values.shape[0] != r.size or indices.shape != values.shape:
            raise ValueError(
                f"scores: expected {r.size} sparse rows, one a reward, found shape {values.shape}"
            )
        if indices.min(initial=0) < 0 or indices.max(initial=0) >= scores.size:
            raise ValueError(f"scores: an index lies outside 0 to {scores.size - 1}")
        if isinstance(fisher, Fisher) and fisher.size != scores.size:
            raise ValueError(
                f"fisher: acts on R^{fisher.size} but scores have {scores.size} columns"
            )
        return X, Rows(indices, values, scores.size), r, to_float64(fisher), last, terminated, gamma
    U = checks.scores(scores)
    if U.shape[0] != r.size:
        raise ValueError(f"scores: expected {r.size} rows, one a reward, found {U.shape[0]}")
    return X, U, r, to_float64(fishers.checked(fisher, U)), last, terminated, gamma


def _rank(states: np.ndarray, kernel: Kernel) -> int:
    """How many features the state kernel needs over these states."""
    if _finite(kernel, states[:1]):
        return 0
    X = states.reshape(len(states), -1)
    capacity = min(RANK, len(X))
    while True:
        found = in_float64(_low_rank)(X, kernel, capacity)
        if found.rank < capacity or capacity == len(X):
            return int(found.rank)
        if capacity >= MOST:
            raise ValueError(
                f"state_kernel: its matrix over these {len(X)} states has no low rank (a state "
                f"still misses {float(found.residual):.1e} after {capacity} features); give "
                "sparsify=Sparsify(threshold, capacity), a longer length scale or kernels.Nystrom"
            )
        capacity = min(2 * capacity, len(X))


def _low_rank(X, kernel: Kernel, capacity: int) -> sparsification.LowRank:
    variances = kernels.diagonal(kernel, X)

    def row(i):
        return kernels.gram(kernel, X[i][None], X)[0]

    return sparsification.pivoted(row, variances, capacity, EXACT)


def _finite(kernel: Kernel, state: np.ndarray) -> bool:
    with jax.enable_x64(True):
        return kernels.features(kernel, state.reshape(1, -1)) is not None
