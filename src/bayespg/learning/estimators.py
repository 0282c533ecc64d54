"""From a policy and its paths to the posterior of the gradient (Algorithm 1).

An estimator is any function of a `Sample`; the classes here put a way to obtain G and a model
together, so that training, calibration and the experiments treat all of them alike.
"""

import abc
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float, PRNGKeyArray

from bayespg import actor_critic, evidence, monte_carlo, quadrature
from bayespg import fisher as fishers
from bayespg._support.types import Array
from bayespg.algebra import conditioning, sparse
from bayespg.algebra.sparse import Rows
from bayespg.algebra.sparsification import Sparsify
from bayespg.environments import Environment
from bayespg.environments.trajectories import Trajectories, returns_to_go
from bayespg.fisher import Fisher
from bayespg.kernels import Kernel
from bayespg.paths import scores
from bayespg.paths.rollout import walk
from bayespg.paths.scores import of_paths as path_scores
from bayespg.policies import AnyPolicy, MemoryPolicy, as_dtype, flatten, score
from bayespg.posterior import GradientPosterior


class Sample(eqx.Module):
    """Paths drawn with a policy in an environment, with their scores and returns."""

    environment: Environment
    policy: AnyPolicy
    paths: Trajectories
    returns: Float[Array, " M"]
    path_scores: Float[Array, "M n"] | None = None
    """u(xi), where they were asked for."""

    @property
    def scores(self) -> Float[Array, "M n"]:
        if self.path_scores is None:
            raise ValueError("scores: this sample was drawn without the scores of its paths")
        return self.path_scores

    @property
    def acting(self) -> AnyPolicy:
        """The policy in the precision of the paths."""
        return as_dtype(self.policy, self.paths.rewards.dtype)


def draw(
    environment: Environment,
    policy: AnyPolicy,
    key: PRNGKeyArray,
    paths: int,
    dtype: DTypeLike | None = None,
    scores: bool = True,
) -> Sample:
    """A sample of `paths` paths, drawn and summed in `dtype` (None: the policy's own precision).

    Scores and returns are in the precision of the policy. `scores` False leaves out the scores of
    the paths, which estimators that look at single steps do not need. Those of a policy with memory
    are taken once the paths are drawn, from their start to their end.
    """
    theta = flatten(policy)[0]
    dtype = theta.dtype if dtype is None else dtype
    acting = as_dtype(policy, dtype)
    discount = jnp.asarray(environment.discount, dtype)

    def add(sums, t, states, actions, rewards, running):
        R, U = sums
        weight = discount**t if environment.discount != 1 else 1.0
        R = R + jnp.where(running, weight * rewards, 0)
        if U is not None:
            u = jax.vmap(lambda x, a: score(acting, x, a))(states, actions)  # pyright: ignore
            U = U + jnp.where(running[:, None], u, 0)
        return R, U

    later = scores and isinstance(policy, MemoryPolicy)
    sums = jnp.zeros((paths, theta.size), dtype) if scores and not later else None
    drawn, (R, U) = walk(environment, acting, key, paths, (jnp.zeros(paths, dtype), sums), add)
    U = path_scores(acting, drawn) if later else U
    U = None if U is None else U.astype(theta.dtype)
    return Sample(environment, policy, drawn, R.astype(theta.dtype), U)


StateMap = Callable[[Any], Any]
"""From states, time and paths in front, to what the state kernel takes."""


def _as_they_are(states: Any) -> Any:
    return states


FisherChoice = Callable[[Sample], Fisher]
"""A way to obtain G; the functions below, or one's own."""


def exact(sample: Sample) -> Fisher:
    return fishers.exact(sample.environment, sample.policy)  # type: ignore[arg-type]


def actions_integrated_out(sample: Sample) -> Fisher:
    return fishers.actions_integrated_out(sample.acting, sample.paths)


def monte_carlo_fisher(sample: Sample) -> Fisher:
    return fishers.monte_carlo(sample.scores)


def maximum_likelihood(sample: Sample) -> Fisher:
    return fishers.maximum_likelihood(sample.environment, sample.policy, sample.paths)  # type: ignore[arg-type]


def step_scores(sample: Sample) -> Float[Array, "T M n"] | Rows:
    """u(z_t), in the precision of the policy: a singular G needs the scores to lie in its range."""
    return scores.of_steps(sample.policy, sample.paths)


def steps_integrated_out(sample: Sample) -> Fisher:
    """G of steps, Eq. 40, the actions integrated out."""
    paths, discount = _like_policy(sample), sample.environment.discount
    return fishers.actions_integrated_out(sample.policy, paths, discount)


def stationary(sample: Sample) -> Fisher:
    """The average over steps, Eq. 42."""
    weights = fishers.step_weights(_like_policy(sample), stationary=True)
    return fishers.of_step_scores(step_scores(sample), weights)


def stationary_integrated_out(sample: Sample) -> Fisher:
    """The average over steps, the actions integrated out."""
    return fishers.actions_integrated_out(sample.policy, _like_policy(sample), stationary=True)


def g_est(sample: Sample) -> Fisher:
    """Algorithm 3 in expectation over its coins, the last pair of an episode weighed 1."""
    weights = fishers.g_est_weights(_like_policy(sample), sample.environment.discount)
    return fishers.of_step_scores(step_scores(sample), weights)


def g_est_as_printed(sample: Sample) -> Fisher:
    """Algorithm 3 in expectation over its coins, the last pair weighed 1 / (1 - gamma)."""
    discount = sample.environment.discount
    weights = fishers.g_est_weights(_like_policy(sample), discount, as_printed=True)
    return fishers.of_step_scores(step_scores(sample), weights)


def exact_steps(sample: Sample) -> Fisher:
    """G of steps in closed form, where the environment knows it."""
    return fishers.Dense(sample.environment.step_fisher(sample.policy))  # type: ignore[attr-defined]


def _like_policy(sample: Sample) -> Trajectories:
    """The paths with rewards, and so weights of steps, in the precision of the policy."""
    dtype = flatten(sample.policy)[0].dtype
    return eqx.tree_at(lambda p: p.rewards, sample.paths, sample.paths.rewards.astype(dtype))


class Estimator(eqx.Module):
    """Sample -> GradientPosterior."""

    @abc.abstractmethod
    def __call__(self, sample: Sample) -> GradientPosterior: ...


class StepEstimator(Estimator):
    """One that looks at single steps and needs no scores of whole paths."""


def return_noise(sample: Sample, reward_noise: float) -> Float[Array, " M"]:
    """The variance of each path's return that noise on its rewards makes: sigma_r^2 sum_t
    gamma^(2t) over the steps taken."""
    weights = fishers.step_weights(_like_policy(sample), sample.environment.discount)
    return reward_noise**2 * jnp.sum(weights**2, 0)


class Model1(Estimator):
    """Bayesian quadrature with Model 1. `noise` None chooses noise and kernel scale by evidence.

    `reward_noise` is the standard deviation sigma_r of noise on each reward: the measurement noise
    of component j is then sigma_r^2 u_j^2 sum_t gamma^(2t) (Section 6.2.1, where all paths have T
    steps and gamma = 1), added to `noise`.
    """

    noise: float | None = 1e-3
    scale: float = 1.0
    fisher: FisherChoice = eqx.field(static=True, default=actions_integrated_out)
    reward_noise: float = 0.0
    sparsify: Sparsify | None = eqx.field(static=True, default=None)

    def __call__(self, sample: Sample) -> GradientPosterior:
        U, R, G = sample.scores, sample.returns, self.fisher(sample)
        if self.noise is None:
            choice = evidence.choose_model1(U, R, G)
            noise, scale = jnp.broadcast_to(choice.noise, U.shape), choice.scale
        else:
            noise, scale = self.noise, self.scale
        if self.reward_noise:
            noise = noise + return_noise(sample, self.reward_noise)[:, None] * U**2
        return quadrature.model1(U, R, G, noise=noise, scale=scale, sparsify=self.sparsify)


class Model2(Estimator):
    """Bayesian quadrature with Model 2. `noise` None chooses noise and kernel scale by evidence.

    `reward_noise` is the standard deviation sigma_r of noise on each reward, which adds sigma_r^2
    sum_t gamma^(2t) to the noise of a path's return.
    """

    noise: float | None = 1e-3
    scale: float = 1.0
    baseline: float = eqx.field(static=True, default=0.0)
    fisher: FisherChoice = eqx.field(static=True, default=actions_integrated_out)
    reward_noise: float = 0.0
    sparsify: Sparsify | None = eqx.field(static=True, default=None)

    def __call__(self, sample: Sample) -> GradientPosterior:
        U, R, G = sample.scores, sample.returns, self.fisher(sample)
        if self.noise is None:
            choice = evidence.choose_model2(U, R, G, baseline=self.baseline)
            noise, scale = choice.noise, choice.scale
        else:
            noise, scale = self.noise, self.scale
        if self.reward_noise:
            noise = noise + return_noise(sample, self.reward_noise)
        return quadrature.model2(
            U, R, G, noise=noise, baseline=self.baseline, scale=scale, sparsify=self.sparsify
        )


class Reinforce(Estimator):
    """Monte Carlo over paths."""

    baseline: Literal["none", "mean", "best"] = eqx.field(static=True, default="none")
    fisher: FisherChoice | None = eqx.field(static=True, default=None)

    def __call__(self, sample: Sample) -> GradientPosterior:
        G = None if self.fisher is None else self.fisher(sample)
        return monte_carlo.reinforce(sample.scores, sample.returns, G, baseline=self.baseline)


class GPOMDP(StepEstimator):
    """Monte Carlo with each reward credited to the actions before it: the paper's MCPG."""

    fisher: FisherChoice | None = eqx.field(static=True, default=None)

    def __call__(self, sample: Sample) -> GradientPosterior:
        togo = returns_to_go(_like_policy(sample), sample.environment.discount)
        return _monte_carlo_steps(sample, togo, self.fisher)


class FittedValues(StepEstimator):
    """Monte Carlo less state values fitted to the same steps by Gaussian process regression."""

    state_kernel: Kernel
    noise: float = 1.0
    state_map: StateMap = eqx.field(static=True, default=_as_they_are)
    limit_ends: bool = eqx.field(static=True, default=False)
    fisher: FisherChoice | None = eqx.field(static=True, default=None)
    rank: int = eqx.field(static=True, default=actor_critic.RANK)

    def __call__(self, sample: Sample) -> GradientPosterior:
        T, M = sample.paths.mask.shape
        found = steps(sample, self.state_map, self.limit_ends)
        left = monte_carlo.without_state_values(found, self.state_kernel, self.noise, self.rank)
        return _monte_carlo_steps(sample, left.reshape(M, T).T, self.fisher)


class CompatibleLeastSquares(StepEstimator):
    """Natural actor-critic: returns-to-go regressed on state values and scores, no prior on w."""

    state_kernel: Kernel
    noise: float = 1.0
    state_map: StateMap = eqx.field(static=True, default=_as_they_are)
    limit_ends: bool = eqx.field(static=True, default=False)
    fisher: FisherChoice = eqx.field(static=True, default=steps_integrated_out)
    rank: int = eqx.field(static=True, default=actor_critic.RANK)

    def __call__(self, sample: Sample) -> GradientPosterior:
        found = steps(sample, self.state_map, self.limit_ends)
        prior = actor_critic.Prior(self.state_kernel, self.fisher(sample), FLAT)
        return actor_critic.of_steps(found, prior, self.noise, form="weight", rank=self.rank)


class ENAC(StepEstimator):
    """Episodic natural actor-critic (Peters and Schaal): returns regressed on path scores."""

    def __call__(self, sample: Sample) -> GradientPosterior:
        discount = sample.environment.discount
        U = jax.vmap(sparse.dense)(step_scores(sample))
        weights = fishers.step_weights(_like_policy(sample), discount)
        return monte_carlo.enac(jnp.einsum("tmn,tm->mn", U, weights), sample.returns)


FLAT = 1e8
"""Prior variance that leaves least squares alone."""


class BAC(StepEstimator):
    """Bayesian actor-critic (Algorithm 4, lines 3 to 6).

    `state_kernel` acts on `state_map` of the states. `limit_ends` says that a path cut off at the
    horizon has ended there, as where the time limit is part of the task; otherwise what would have
    followed is unknown. `noise_on` "rewards" is the better model where transitions are
    deterministic. `noise` None chooses the noise and the scales of both kernels by evidence.
    """

    state_kernel: Kernel
    noise: float | None = 1.0
    scale: float = 1.0
    state_map: StateMap = eqx.field(static=True, default=_as_they_are)
    limit_ends: bool = eqx.field(static=True, default=False)
    noise_on: actor_critic.NoiseOn = eqx.field(static=True, default="returns")
    fisher: FisherChoice = eqx.field(static=True, default=steps_integrated_out)
    sparsify: Sparsify | None = eqx.field(static=True, default=None)
    form: actor_critic.Form = eqx.field(static=True, default="auto")
    rank: int = eqx.field(static=True, default=actor_critic.RANK)
    iterations: int = eqx.field(static=True, default=actor_critic.ITERATIONS)

    def __call__(self, sample: Sample) -> GradientPosterior:
        found = steps(sample, self.state_map, self.limit_ends, self.noise_on)
        prior = actor_critic.Prior(self.state_kernel, self.fisher(sample), self.scale)
        noise = self.noise
        if noise is None:
            prior, noise = evidence.chosen(found, prior, self.rank)
        return actor_critic.of_steps(
            found, prior, noise, sparsify=self.sparsify, form=self.form, rank=self.rank,
            iterations=self.iterations,
        )  # fmt: skip


def steps(
    sample: Sample,
    state_map: StateMap = _as_they_are,
    limit_ends: bool = False,
    noise_on: actor_critic.NoiseOn = "returns",
) -> actor_critic.Steps:
    """The steps of a sample, path after path, as the critic's regression sees them."""
    if isinstance(sample.policy, MemoryPolicy):
        raise ValueError(
            f"policy: {type(sample.policy).__name__} has a memory, so what it sees is no Markov "
            "state and a critic has nothing to stand on; use estimators of whole paths, as Model1, "
            "Model2 and Reinforce are, or GPOMDP"
        )
    paths = _like_policy(sample)
    (T, M), dtype = paths.mask.shape, paths.rewards.dtype

    def flat(x: Any) -> Any:
        return jnp.swapaxes(x, 0, 1).reshape(M * T, *x.shape[2:])

    last = jnp.arange(T)[:, None] == paths.lengths - 1
    ended = jnp.ones(M, bool) if limit_ends else paths.terminated
    return actor_critic.layout(
        flat(state_map(paths.states)).astype(dtype).reshape(M * T, -1),
        jax.tree.map(flat, step_scores(sample)),
        flat(paths.rewards),
        flat(last),
        flat(last & ended),
        flat(paths.mask),
        sample.environment.discount,
        conditioning.Groups(M, length=T),
        noise_on,
    )


def _monte_carlo_steps(sample: Sample, credit, fisher) -> GradientPosterior:
    """mean over paths of sum_t gamma^t u(z_t) credit_t."""
    U, M = step_scores(sample), sample.returns.size
    credit = credit * fishers.step_weights(_like_policy(sample), sample.environment.discount)
    if isinstance(U, Rows):
        zeros = jnp.zeros((M, U.size), credit.dtype)
        each = zeros.at[jnp.arange(M)[:, None], U.indices].add(U.values * credit[..., None])
    else:
        each = jnp.einsum("tmn,tm->mn", U, credit)
    return monte_carlo.average(each, None if fisher is None else fisher(sample))
