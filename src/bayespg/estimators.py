"""From a policy and its paths to the posterior of the gradient (Algorithm 1).

An estimator is any function of a `Sample`; the classes here put a way to obtain G and a model
together, so that training, calibration and the experiments treat all of them alike.
"""

import abc
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float, PRNGKeyArray

from bayespg import evidence, monte_carlo, quadrature, scores
from bayespg import fisher as fishers
from bayespg.environments import Environment
from bayespg.fisher import Fisher
from bayespg.policies import Policy, as_dtype, flatten, score
from bayespg.posterior import GradientPosterior
from bayespg.rollout import walk
from bayespg.sparsification import Sparsify
from bayespg.trajectories import Trajectories
from bayespg.types import Array


class Sample(eqx.Module):
    """Paths drawn with a policy in an environment, with their scores and returns."""

    environment: Environment
    policy: Policy
    paths: Trajectories
    scores: Float[Array, "M n"]
    returns: Float[Array, " M"]

    @property
    def acting(self) -> Policy:
        """The policy in the precision of the paths."""
        return as_dtype(self.policy, self.paths.rewards.dtype)


def draw(
    environment: Environment,
    policy: Policy,
    key: PRNGKeyArray,
    paths: int,
    dtype: DTypeLike | None = None,
) -> Sample:
    """A sample of `paths` paths, drawn and summed in `dtype` (None: the policy's own precision).

    Scores and returns are in the precision of the policy.
    """
    theta = flatten(policy)[0]
    dtype = theta.dtype if dtype is None else dtype
    acting = as_dtype(policy, dtype)
    discount = jnp.asarray(environment.discount, dtype)

    def add(sums, t, states, actions, rewards, running):
        U, R = sums
        u = jax.vmap(lambda x, a: score(acting, x, a))(states, actions)
        weight = discount**t if environment.discount != 1 else 1.0
        return U + jnp.where(running[:, None], u, 0), R + jnp.where(running, weight * rewards, 0)

    start = (jnp.zeros((paths, theta.size), dtype), jnp.zeros(paths, dtype))
    drawn, (U, R) = walk(environment, acting, key, paths, start, add)
    return Sample(environment, policy, drawn, U.astype(theta.dtype), R.astype(theta.dtype))


FisherChoice = Callable[[Sample], Fisher]
"""A way to obtain G; the functions below, or one's own."""


def exact(sample: Sample) -> Fisher:
    return fishers.exact(sample.environment, sample.policy)  # type: ignore[arg-type]


def actions_integrated_out(sample: Sample) -> Fisher:
    return fishers.actions_integrated_out(sample.acting, sample.paths)


def monte_carlo_fisher(sample: Sample) -> Fisher:
    return fishers.monte_carlo(sample.scores)


def maximum_likelihood(sample: Sample) -> Fisher:
    return fishers.maximum_likelihood(sample.environment, sample.policy, sample.paths)


class Estimator(eqx.Module):
    """Sample -> GradientPosterior."""

    @abc.abstractmethod
    def __call__(self, sample: Sample) -> GradientPosterior: ...


class Model1(Estimator):
    """Bayesian quadrature with Model 1. `noise` None chooses noise and kernel scale by evidence.

    `reward_noise` is the standard deviation of noise on each reward: the measurement noise of
    component j is then T sigma_r^2 u_j^2 (Section 6.2.1), added to `noise`.
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
            T = sample.environment.horizon
            noise = noise + T * self.reward_noise**2 * U**2
        return quadrature.model1(U, R, G, noise=noise, scale=scale, sparsify=self.sparsify)


class Model2(Estimator):
    """Bayesian quadrature with Model 2. `noise` None chooses noise and kernel scale by evidence."""

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
        noise = noise + sample.environment.horizon * self.reward_noise**2
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


class GPOMDP(Estimator):
    """Monte Carlo with each reward credited to the actions before it."""

    fisher: FisherChoice | None = eqx.field(static=True, default=None)

    def __call__(self, sample: Sample) -> GradientPosterior:
        U = jnp.swapaxes(scores.of_steps(sample.acting, sample.paths), 0, 1)
        U = U.astype(sample.scores.dtype)
        G = None if self.fisher is None else self.fisher(sample)
        rewards = jnp.where(sample.paths.mask, sample.paths.rewards, 0.0)
        return monte_carlo.gpomdp(U, rewards.T, G, discount=sample.environment.discount)
