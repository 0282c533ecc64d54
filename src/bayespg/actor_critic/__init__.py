"""The gradient from single steps: Bayesian actor-critic (Section 7.2, sparse in 7.3).

The critic's prior is k(z, z') = k_x(x, x') + c u' G^-1 u'. The state kernel says nothing about the
gradient, because scores integrate to zero, and the Fisher kernel says all of it (Proposition 6):

    E[grad eta] = B alpha,   Cov[grad eta] = B_0 - B C B',   B = c U,   B_0 = c G

In terms of weights Q(z) = V(x) + u(z)'w with w ~ N(0, c G^-1), and the gradient is G w. There are
four ways to the same numbers.

    dual         factorises the N x N matrix of all steps                            N^3
    weight       features of the state kernel and whitened scores                    N p^2
    dictionary   features of a dictionary of state-action pairs (Proposition 7)      N m^2
    matrix-free  conjugate gradients on the precision of w, products with U alone    N n

The paper's noise is white on the returns-to-go (Eq. 32), which takes what the coming actions do to
the return for noise. With lambda (`lambda_`) and b = gamma lambda, values and advantages are solved
for together from

    sum_l b^l r_{t+l} = sum_l b^l (V(x_{t+l}) - gamma V(x_{t+l+1})) + u(z_t)'w + noise.

lambda = 1 is the paper's model. lambda = 0 has white noise on the rewards and explains what the
coming actions do by their own scores: far more accurate where transitions are nearly deterministic,
biased where they are not or where the state kernel cannot represent V. V is the mean of Q over
actions, because scores have mean zero.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespg import fisher as fishers
from bayespg import gptd, kernels
from bayespg._support import checks
from bayespg._support.precision import in_float64, to_float64, traced
from bayespg._support.types import Array
from bayespg.actor_critic import forms, products
from bayespg.actor_critic.products import ITERATIONS, TOLERANCE, Smoother
from bayespg.actor_critic.scales import LEAST, chosen
from bayespg.actor_critic.steps import (
    EXACT,
    RANK,
    Prior,
    Steps,
    layout,
    low_rank,
    score_features,
    state_features,
)
from bayespg.algebra import sparse, sparsification
from bayespg.algebra.conditioning import Groups
from bayespg.algebra.sparse import Linear, Matrix, Rows
from bayespg.algebra.sparsification import Sparsify
from bayespg.fisher import Damped, Dense, Fisher
from bayespg.kernels import Kernel
from bayespg.posterior import LARGE, GradientPosterior, informed
from bayespg.quadrature import regular

__all__ = [
    "EXACT",
    "ITERATIONS",
    "LARGE",
    "RANK",
    "TOLERANCE",
    "Form",
    "Prior",
    "Smoother",
    "Steps",
    "chosen",
    "gradient_posterior",
    "layout",
    "of_steps",
    "score_features",
    "state_features",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Form = Literal["auto", "dual", "weight", "matrix-free"]
MOST = 2048
"""Features beyond which a state kernel is said to have no low rank."""
MIXED = (
    "sparsify: a dictionary of state-action pairs cannot tell V from Q, which lambda_ below 1 "
    "needs; leave sparsify out or give lambda_=1.0"
)


@checks.renamed(trace="lambda_", smoothing="lambda_")
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
    fisher_scale: float | Float[Array, ""] | None = None,
    noise: float | Float[Array, ""] | None = 1.0,
    sparsify: Sparsify | None = None,
    lambda_: float | Float[Array, ""] = 1.0,
    form: Form = "auto",
    episodes: int | None = None,
    prior_mean: Float[Array, " n"] | None = None,
    prior_covariance: Float[Array, "n n"] | None = None,
) -> GradientPosterior:
    """The posterior of the gradient given steps, one after the other (Propositions 6 and 7).

    `last` marks the steps that end an episode and `terminated` those that end it in an absorbing
    state; the last reward of a truncated episode is not used, and an episode still running at the
    end of the data counts as truncated. `fisher` is that of steps, Eq. 40, un-normalised:
    `fisher.g_est` or `fisher.actions_integrated_out`. `scores` is an (N, n) array or `sparse.Rows`.
    `lambda_` is lambda, from 1, the paper's noise on returns-to-go, to 0, noise on rewards.
    `noise` is the variance s^2 of that noise and `fisher_scale` is c, 1 unless given. `noise` None
    chooses both, and a factor on the state kernel, by their evidence; ``info`` then has "noise",
    "fisher_scale" and "state_scale".

    `sparsify` builds a dictionary of state-action pairs (Proposition 7). Without it the answer is
    exact, by the cheapest `form`; with more than 2048 parameters, or sparse scores, that is
    matrix-free and the covariance an operator. With `lambda_` below 1 the mean relies on fitted
    values and so has a bias; `probability_uphill` judges it by returns. Inside a transformation
    `episodes`, their number, must be given.

    `prior_mean` and `prior_covariance` are those of the gradient, from a simulator or an earlier
    update (`bayespg.posterior.informed`); without them they are zero and c G.
    """
    given = _Given(states, scores, rewards, fisher, last, terminated, discount)
    named = (prior_mean, prior_covariance, fisher_scale)
    plain = sparsify is None and form != "matrix-free"
    _refuse_without_effect(*named, noise, plain and not traced(given, fisher_scale, noise, lambda_))
    if traced(given, fisher_scale, noise, lambda_):
        if episodes is None:
            raise ValueError("episodes: inside a transformation give the number of episodes")
        return _from_arrays(
            given, fisher_scale, noise, state_kernel, sparsify, lambda_, form, episodes, RANK
        )
    given = _checked(given)
    checks.one_of("form", form, ("auto", "dual", "weight", "matrix-free"))
    lambda_ = checks.fraction("lambda_", lambda_)
    if 0 < lambda_ < 1:
        lambda_ = np.asarray(lambda_)  # one program for all of them
    state_kernel = gptd.checked_kernel("state_kernel", state_kernel)
    sparsification.checked(sparsify)
    count = int(given.last[:-1].sum()) + 1
    if noise is None and not (given.terminated.any() or count < len(given.rewards)):
        raise ValueError("noise: every episode is a single truncated pair; nothing to choose by")
    noise = None if noise is None else checks.positive("noise", noise, ())
    if fisher_scale is not None:
        fisher_scale = checks.positive("fisher_scale", fisher_scale, ())
    ranked = noise is None or (sparsify is None and form != "dual")
    rank = _rank(given.states, state_kernel) if ranked else RANK
    if form == "auto":
        form = _choose(given.scores, given.fisher)
        if ranked and form == "weight" and rank + given.scores.shape[1] >= len(given.rewards):
            form = "dual"
    scale = 1.0 if fisher_scale is None else fisher_scale
    elsewhere = informed.checked(prior_mean, prior_covariance, given.fisher, scale)
    posterior = in_float64(_from_arrays)(
        given._replace(prior=elsewhere), fisher_scale, noise, state_kernel, sparsify, lambda_, form,
        count, rank,
    )  # fmt: skip
    return _sound(posterior, chosen_noise=noise is None)


def _sound(posterior: GradientPosterior, chosen_noise: bool) -> GradientPosterior:
    """The posterior; ValueError if the numbers given were too extreme for it."""
    tiny = 2 * LEAST * np.finfo(float).tiny
    if chosen_noise and not tiny < posterior.info["noise"] < np.inf:
        raise ValueError(
            "rewards: so large or small that their variance is beyond float64; give them in other "
            "units, for instance divided by their largest"
        )
    regular(posterior.info.get("condition", 1.0), posterior.mean)
    return checks.sound("scores, rewards", posterior)


def _refuse_without_effect(mean, covariance, scale, noise, plain: bool) -> None:
    """ValueError for a prior of the gradient, or a scale of it, that would not be used."""
    if (mean is not None or covariance is not None) and not (plain and noise is not None):
        raise ValueError(
            "prior_mean, prior_covariance: are for plain arrays with a given noise, without "
            "sparsify and the matrix-free form; leave them out"
        )
    if covariance is not None and scale is not None:
        raise ValueError("fisher_scale: has no effect with prior_covariance; leave it out")
    if noise is None and scale is not None:
        raise ValueError("fisher_scale: noise=None chooses it too; leave it out, or give noise")


class _Given(NamedTuple):
    """The arrays of `gradient_posterior`, as they are given or checked."""

    states: Any
    scores: Any
    rewards: Any
    fisher: Any
    last: Any
    terminated: Any
    discount: Any
    prior: informed.Informed | None = None
    """A prior of the gradient from elsewhere."""


def _from_arrays(
    given: _Given, scale, noise, state_kernel, sparsify, lambda_, form, episodes, rank
) -> GradientPosterior:
    states, scores, rewards, fisher, last, terminated, discount, elsewhere = given
    N = rewards.shape[0]
    last = jnp.asarray(last).at[-1].set(True)
    episode = jnp.cumsum(jnp.roll(last, 1)) - 1  # a step after an end begins an episode
    rows = (
        jnp.asarray(states).reshape(N, -1), scores, jnp.asarray(rewards), last,
        jnp.asarray(terminated), jnp.ones(N, bool), discount, Groups(episodes, episode),
    )  # fmt: skip
    steps = layout(*rows, lambda_)
    D, G = fishers.as_fisher(fisher), None
    if isinstance(D, Damped):
        D, G = D.solver, D.information
    prior = Prior(state_kernel, D, 1.0 if scale is None else scale, information=G)
    info = {}
    if elsewhere is not None:
        G = fishers.as_dense(prior.fisher)
        known = jnp.where(steps.taken, scores @ elsewhere.weights(G.G), 0.0)
        steps = steps._replace(y=steps.y - known)
        prior = Prior(state_kernel, Dense(elsewhere.precision(G.G)), 1.0, information=G)
    if noise is None:
        prior, noise = chosen(steps, prior, rank)
        state_scale = prior.state_kernel.scale  # pyright: ignore[reportAttributeAccessIssue]
        info = {"noise": noise, "fisher_scale": prior.scale, "state_scale": state_scale}
    posterior = of_steps(steps, prior, noise, sparsify=sparsify, form=form, rank=rank)
    posterior = eqx.tree_at(lambda p: p.info, posterior, posterior.info | info)
    if elsewhere is not None:
        posterior = informed.around(posterior, elsewhere, prior.readout)
    if isinstance(lambda_, float | int) and lambda_ == 1:
        return posterior
    alone = _unbiased(layout(*rows), prior.state_kernel, noise, discount, rank)
    return eqx.tree_at(lambda p: p.unbiased, posterior, alone, is_leaf=lambda x: x is None)


def _unbiased(steps: Steps, kernel: Kernel, noise, discount, rank: int) -> Float[Array, "E n"]:
    """The gradient that each episode shows alone, sum_t gamma^t u_t (y_t - V(x_t)) with y the
    returns-to-go and V their regression on the states: it judges a mean with lambda < 1."""
    Psi, _ = state_features(steps, kernel, rank)
    left = Smoother(Psi, jnp.asarray(noise, Psi.dtype), steps.segments)(steps.y)
    ids = steps.groups.row_ids(left.size)
    begins = jnp.flatnonzero(jnp.diff(ids, prepend=-1), size=steps.groups.count)
    left = left * jnp.asarray(discount, left.dtype) ** (jnp.arange(left.size) - begins[ids])
    if not isinstance(steps.scores, Linear):
        return steps.groups.sum(steps.scores * left[:, None])
    at, each = steps.scores.products(), jnp.arange(steps.groups.count)
    return jax.lax.map(lambda e: at.transposed_times(jnp.where(ids == e, left, 0.0)), each)


def of_steps(
    steps: Steps,
    prior: Prior,
    noise: float | Float[Array, ""],
    *,
    sparsify: Sparsify | None = None,
    form: Form = "auto",
    rank: int = RANK,
    tolerance: float = TOLERANCE,
    iterations: int = ITERATIONS,
) -> GradientPosterior:
    """`gradient_posterior` for steps already laid out. `rank` is the most features that a state
    kernel without finitely many of its own gets; what they miss is in `info`. Fewer `iterations` of
    conjugate gradients, in the matrix-free form, shrink the answer towards zero."""
    if form == "auto":
        form = _choose(steps.scores, prior.fisher)
    if sparsify is not None and steps.residuals is not None:
        raise ValueError(MIXED)
    if sparsify is not None:
        return forms.dictionary(steps, prior, noise, sparsify)
    if form == "dual":
        return forms.dual(steps, prior, noise)
    Psi, info = state_features(steps, prior.state_kernel, rank)
    if form == "matrix-free":
        return products.posterior(steps, prior, noise, Psi, info, tolerance, iterations)
    return forms.weight(steps, prior, noise, Psi, info)


def _choose(scores: Matrix, fisher: Any) -> Form:
    large = isinstance(scores, Linear) or scores.shape[1] > LARGE
    fisher = fisher.solver if isinstance(fisher, Damped) else fisher
    lazy = isinstance(fisher, Fisher) and not isinstance(fisher, Dense)
    return "matrix-free" if large or lazy else "weight"


# What a caller may pass.


def _checked(given: _Given) -> _Given:
    r, last, terminated, gamma = gptd.checked_steps(
        given.rewards, given.last, given.terminated, given.discount
    )
    X = checks.array("states", given.states)
    if X.ndim == 0 or X.shape[0] != r.size:
        raise ValueError(f"states: expected {r.size} rows, one per reward, found shape {X.shape}")
    if isinstance(given.scores, Rows):
        scores = _checked_rows(given.scores, r.size)
        lazy = isinstance(given.fisher, Fisher)
        # Beside a matrix, dense scores are no larger than it.
        U = np.zeros((0, scores.size)) if lazy else np.asarray(in_float64(sparse.dense)(scores))
    else:
        scores = U = checks.scores(given.scores)
        if U.shape[0] != r.size:
            raise ValueError(f"scores: expected {r.size} rows, one per reward, found {U.shape[0]}")
    fisher = to_float64(fishers.checked(given.fisher, U))
    return _Given(X, scores, r, fisher, last, terminated, gamma)


def _checked_rows(scores: Rows, count: int) -> Rows:
    values, indices = checks.array("scores", scores.values), np.asarray(scores.indices)
    if values.shape[0] != count or indices.shape != values.shape:
        raise ValueError(
            f"scores: expected {count} sparse rows, one per reward, found shape {values.shape}"
        )
    if indices.min(initial=0) < 0 or indices.max(initial=0) >= scores.size:
        raise ValueError(f"scores: an index lies outside 0 to {scores.size - 1}")
    return Rows(indices, values, scores.size)


def _rank(states: np.ndarray, kernel: Kernel) -> int:
    """How many features the state kernel needs over these states."""
    X = states.reshape(len(states), -1)
    with jax.enable_x64(True):
        if kernels.features(kernel, X[:1]) is not None:
            return 0
    capacity = min(RANK, len(X))
    while True:
        features = in_float64(low_rank)(X, kernel, capacity)
        if features.rank < capacity or capacity == len(X):
            return int(features.rank)
        if capacity >= MOST:
            raise ValueError(
                f"state_kernel: its matrix over these {len(X)} states has no low rank (a state "
                f"still misses {float(features.residual):.1e} after {capacity} features); give "
                "sparsify=Sparsify(threshold, capacity), a longer length scale or kernels.Nystrom"
            )
        capacity = min(2 * capacity, len(X))
