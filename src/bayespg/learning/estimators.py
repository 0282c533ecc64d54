"""From a batch of paths to the posterior of the gradient (Algorithm 1; Algorithm 4, lines 3 to 6).

An estimator is any function of a `Batch`; the classes here put a way to obtain G and a model
together, so that training, agents, calibration and the experiments treat all of them alike.

    whole paths    Model1, Model2; Reinforce, ENAC (rivals)
    single steps   BAC, BACPaper; GPOMDP, FittedValues, MonteCarlo, CompatibleLeastSquares (rivals)
"""

import abc
import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float

from bayespg import actor_critic, evidence, monte_carlo, quadrature
from bayespg import fisher as fishers
from bayespg._support.precision import traced
from bayespg._support.types import Array
from bayespg.algebra.sparsification import Sparsify
from bayespg.fisher.networks import ITERATIONS, TOLERANCE
from bayespg.kernels import Kernel
from bayespg.learning import values
from bayespg.learning.batch import Batch, Lambda, draw
from bayespg.learning.metric import (
    FisherChoice,
    Metric,
    actions_integrated_out,
    exact,
    g_est,
    g_est_as_printed,
    maximum_likelihood,
    monte_carlo_fisher,
    stationary,
    stationary_integrated_out,
    steps_integrated_out,
)
from bayespg.learning.regression import (
    StateMap,
    carried,
    credit,
    identity,
    like_returns,
    products,
    standardised,
    state_kernel,
    steps,
    without,
)
from bayespg.learning.values import Values
from bayespg.paths import scores
from bayespg.paths.persistence import informed
from bayespg.policies import remembers
from bayespg.policies.features import COUNT, Timed, of_values
from bayespg.posterior import GradientPosterior, rescaled

__all__ = [
    "BAC",
    "ENAC",
    "GPOMDP",
    "BACPaper",
    "CompatibleLeastSquares",
    "Estimator",
    "FisherChoice",
    "FittedValues",
    "Metric",
    "Model1",
    "Model2",
    "MonteCarlo",
    "Needs",
    "Reinforce",
    "StateMap",
    "actions_integrated_out",
    "draw",
    "exact",
    "g_est",
    "g_est_as_printed",
    "maximum_likelihood",
    "monte_carlo_fisher",
    "refuse_memory",
    "return_noise",
    "standardised",
    "stationary",
    "stationary_integrated_out",
    "steps",
    "steps_integrated_out",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class Needs(NamedTuple):
    """What an estimator needs from a batch."""

    path_scores: bool = False
    """u(xi), which is best summed while paths are drawn."""
    states: bool = False
    """Markov states, which the observations of a policy with memory are not."""
    lambda_: Lambda | None = None
    """lambda, or None for an estimator without one."""
    recent: bool = False
    """States of earlier batches, for the metric."""
    products: bool = False
    """Only products with the scores of a network, for which single precision is enough."""


class Estimator(eqx.Module):
    """Batch -> GradientPosterior."""

    needs: ClassVar[Needs] = Needs()
    """Subclasses that need more override this."""

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> GradientPosterior: ...

    def values(self, size: int, dtype: DTypeLike) -> Values | None:
        """Values of states before the first batch, for observations of `size` numbers; None for an
        estimator that uses no values of earlier batches."""
        return None


def refuse_memory(estimator: Estimator, policy: Any) -> None:
    """ValueError if the estimator needs Markov states and the policy has a memory."""
    if estimator.needs.states and remembers(policy):
        raise ValueError(
            f"estimator: {type(estimator).__name__} fits values of states, and "
            f"{type(policy).__name__} has a memory, so its observations are not Markov "
            "states; use an estimator of whole paths (Model1, Model2, Reinforce, ENAC) or GPOMDP"
        )


def return_noise(batch: Batch, reward_noise: float) -> Float[Array, " M"]:
    """The variance of each path's return due to noise on its rewards: sigma_r^2 sum_t gamma^(2t)
    over the steps taken."""
    weights = fishers.step_weights(batch.steps, batch.discount)
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

    needs: ClassVar[Needs] = Needs(path_scores=True)

    def __call__(self, batch: Batch) -> GradientPosterior:
        U, R, G = batch.scores, batch.returns, self.fisher(batch)
        noise, scale = self.noise, self.scale
        if noise is None:
            choice = evidence.choose_model1(U, R, G)
            noise, scale = jnp.broadcast_to(choice.noise, U.shape), choice.scale
        if traced(self.reward_noise) or self.reward_noise:
            noise = noise + return_noise(batch, self.reward_noise)[:, None] * U**2
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

    needs: ClassVar[Needs] = Needs(path_scores=True)

    def __call__(self, batch: Batch) -> GradientPosterior:
        U, R, G = batch.scores, batch.returns, self.fisher(batch)
        noise, scale = self.noise, self.scale
        if noise is None:
            scale, noise, *_ = evidence.choose_model2(U, R, G, baseline=self.baseline)
        if traced(self.reward_noise) or self.reward_noise:
            noise = noise + return_noise(batch, self.reward_noise)
        return quadrature.model2(
            U, R, G, noise=noise, baseline=self.baseline, scale=scale, sparsify=self.sparsify
        )


class Reinforce(Estimator):
    """Monte Carlo over paths."""

    baseline: Literal["none", "mean", "best"] = eqx.field(static=True, default="none")
    fisher: FisherChoice | None = eqx.field(static=True, default=None)

    needs: ClassVar[Needs] = Needs(path_scores=True)

    def __call__(self, batch: Batch) -> GradientPosterior:
        G = None if self.fisher is None else self.fisher(batch)
        return monte_carlo.reinforce(batch.scores, batch.returns, G, baseline=self.baseline)


Weights = Literal["discounted", "uniform"]
"""Weights of steps: gamma^t in a mean over paths, which gives the gradient of the discounted
return; or equal weights in a mean over steps, as usual in practice."""


class MonteCarlo(Estimator):
    """Monte Carlo over steps, sum_t u(z_t) credit_t with each reward credited to the actions before
    it: the policy gradient theorem (Eq. 7).

    The credit of a step is its return-to-go or, with `lambda_`, its advantage under the critic of
    earlier batches (GAE), less a `baseline`: none, the mean of the credits, or their regression on
    the states of the same batch ("states"). `state_kernel` None stands for Fourier features, in
    units in which the credits have variance 1; `noise` is that of the regression.
    """

    baseline: Literal["none", "mean", "states"] = eqx.field(static=True, default="none")
    lambda_: Lambda | None = eqx.field(static=True, default=None)
    weights: Weights = eqx.field(static=True, default="discounted")
    fisher: FisherChoice | None = eqx.field(static=True, default=None)
    metric: Metric | None = None
    state_kernel: Kernel | None = None
    noise: float = 1.0
    state_map: StateMap = eqx.field(static=True, default=identity)
    limit_ends: bool = eqx.field(static=True, default=False)
    rank: int = eqx.field(static=True, default=actor_critic.RANK)
    waves: int = eqx.field(static=True, default=COUNT)
    """Random features among the Fourier features."""

    @property
    def needs(self) -> Needs:  # pyright: ignore[reportIncompatibleVariableOverride]
        fits = self.baseline == "states" or self.lambda_ is not None
        return Needs(
            states=fits, lambda_=self.lambda_, recent=self.metric is not None, products=True
        )

    def values(self, size: int, dtype: DTypeLike) -> Values | None:
        return None if self.lambda_ is None else values.start(of_values(size))

    def __call__(self, batch: Batch) -> GradientPosterior:
        refuse_memory(self, batch.policy)
        G = None if self.fisher is None else self.fisher(batch)
        if G is not None and self.metric is not None:
            G = self.metric(batch, G)
        posterior = monte_carlo.average(self.samples(batch), G)
        if self.lambda_ is None or self.lambda_ == 1:
            return posterior
        return _judged(posterior, batch, self)

    def samples(self, batch: Batch) -> Float[Array, "M n"]:
        """The gradient of each path."""
        weights = fishers.step_weights(batch.steps, batch.discount, self.weights == "uniform")
        return scores.of_paths(batch.policy, batch.paths, self._credit(batch) * weights)

    def _credit(self, batch: Batch) -> Float[Array, "T M"]:
        lambda_ = None if self.lambda_ is None else batch.lambda_of(self.lambda_)
        if self.baseline == "none":
            return credit(batch, lambda_)
        if self.baseline == "mean":
            y, units = standardised(credit(batch, lambda_), batch.paths.mask)
            return units * y
        by_critic, lambda_ = lambda_ is not None, 1.0 if lambda_ is None else lambda_
        timed = self.limit_ends and self.state_kernel is None
        rows = steps(
            batch, self.state_map, self.limit_ends, lambda_, by_critic, score=False, timed=timed
        )
        kernel, units = state_kernel(self.state_kernel, rows, timed, self.waves), 1.0
        if self.state_kernel is None:
            y, units = standardised(rows.y, rows.taken)
            rows = rows._replace(y=y)
        left = monte_carlo.without_state_values(rows, kernel, self.noise, self.rank)
        T, M = batch.paths.mask.shape
        return units * left.reshape(M, T).T


WAVES = 20
"""Random features of the states in `by_returns`: with 100 it would take most of the time of what is
said about an update (docs/calibration.md)."""


def by_returns(of: "MonteCarlo | BAC", batch: Batch) -> Float[Array, "M n"]:
    """The gradient of each path without the bias of `of`: returns-to-go less a regression on the
    states."""
    uniform = of.weights == "uniform" if isinstance(of, MonteCarlo) else of.uniform
    alone = MonteCarlo(
        "states", None, "uniform" if uniform else "discounted", state_kernel=of.state_kernel,
        noise=1.0 if of.noise is None else of.noise, state_map=of.state_map,
        limit_ends=of.limit_ends, rank=of.rank, waves=WAVES,
    )  # fmt: skip
    return alone.samples(batch)


def _judged(
    posterior: GradientPosterior, batch: Batch, of: "MonteCarlo | BAC"
) -> GradientPosterior:
    """The posterior of an estimator that has a bias, with lambda < 1 or because conjugate gradients
    end early, and beside it gradients without one; zeros where rewards say nothing about actions:
    nothing judges the posterior then."""
    H = jnp.where(informed(batch.paths), by_returns(of, batch), 0.0)
    return dataclasses.replace(posterior, unbiased=H, bias_shows=True)


def GPOMDP(fisher: FisherChoice | None = None) -> MonteCarlo:
    """Monte Carlo with returns-to-go: the paper's MCPG."""
    return MonteCarlo(fisher=fisher)


def FittedValues(
    state_kernel: Kernel,
    noise: float = 1.0,
    state_map: StateMap = identity,
    limit_ends: bool = False,
    fisher: FisherChoice | None = None,
    rank: int = actor_critic.RANK,
) -> MonteCarlo:
    """Monte Carlo less state values fitted to the same steps by Gaussian process regression."""
    return MonteCarlo(
        "states", None, "discounted", fisher, None, state_kernel, noise, state_map, limit_ends, rank
    )


class ENAC(Estimator):
    """Episodic natural actor-critic (Peters and Schaal): returns regressed on path scores."""

    def __call__(self, batch: Batch) -> GradientPosterior:
        weights = fishers.step_weights(batch.steps, batch.discount)
        return monte_carlo.enac(scores.of_paths(batch.policy, batch.paths, weights), batch.returns)


FLAT = 1e8
"""A prior variance so large that the prior has no effect."""


def CompatibleLeastSquares(
    state_kernel: Kernel,
    noise: float = 1.0,
    state_map: StateMap = identity,
    limit_ends: bool = False,
    fisher: FisherChoice = steps_integrated_out,
    rank: int = actor_critic.RANK,
) -> "BAC":
    """Natural actor-critic: returns-to-go regressed on state values and scores, no prior on w."""
    return BACPaper(
        state_kernel, noise, FLAT, state_map, limit_ends, fisher=fisher, form="weight", rank=rank
    )


class BAC(Estimator):
    """Bayesian actor-critic: states and scores explain the returns together, and the scores' part
    is the gradient. It is the estimator of `bayespg.BAC`; `BACPaper` is Algorithm 4 as printed.

    It is for any task, without a scale to choose: observations are taken in units in which they
    have variance 1, values have the variance of the returns times `value_scale`, `advantage` is the
    prior variance of u'w, and the scale c of the Fisher kernel follows from the number of
    directions that the damping of the `metric` leaves. After the first batch of a run, what the
    batches so far say about values is their prior. The gradient is a mean over steps, and the
    metric is that of recent states. `lambda_` is lambda of `actor_critic`, or "auto", which is
    `bayespg.learning.batch.lambda_by_episodes`.

    With `limit_ends` an episode that reaches its time limit counts as ended, and values depend on
    the time that is left. If what would have followed were an unknown instead, an episode's rewards
    could no longer say that it went worse than the others, and where states drift away the gradient
    of a batch would point the wrong way (docs/findings.md).

    With many parameters the posterior is computed by products alone, with `iterations` conjugate
    gradients to `tolerance`.
    """

    state_kernel: Kernel | None = None
    """None: Fourier features of the states as the policy sees them."""
    noise: float | None = 1.0
    """Variance of what is observed; None, without `advantage`: chosen by evidence, with the scales
    of both kernels."""
    scale: float | None = None
    """c, if there is no `advantage` that it follows from."""
    state_map: StateMap = eqx.field(static=True, default=identity)
    limit_ends: bool = eqx.field(static=True, default=True)
    lambda_: Lambda = eqx.field(static=True, default="auto")
    fisher: FisherChoice = eqx.field(static=True, default=stationary_integrated_out)
    sparsify: Sparsify | None = eqx.field(static=True, default=None)
    form: actor_critic.Form = eqx.field(static=True, default="auto")
    rank: int = eqx.field(static=True, default=actor_critic.RANK)
    tolerance: float = eqx.field(static=True, default=TOLERANCE)
    iterations: int = eqx.field(static=True, default=ITERATIONS)
    advantage: float | None = 0.05
    metric: Metric | None = eqx.field(default_factory=Metric)
    value_scale: float = eqx.field(static=True, default=10.0)

    def __check_init__(self):
        """A scale beside the advantage that determines it would have no effect."""
        for name, ignored in (("scale", self.scale is not None), ("noise", self.noise is None)):
            if ignored and self.advantage is not None:
                raise ValueError(
                    f"{name}: {getattr(self, name)} would have no effect, because advantage "
                    f"determines the scales; use estimators.BACPaper, or give advantage=None"
                )

    @property
    def needs(self) -> Needs:  # pyright: ignore[reportIncompatibleVariableOverride]
        recent = self.metric is not None
        return Needs(states=True, lambda_=self.lambda_, recent=recent, products=True)

    def values(self, size: int, dtype: DTypeLike) -> Values | None:
        own = self.state_kernel is not None or self.state_map is not identity
        if self.advantage is None or own:
            return None
        return values.carried(Timed(size + 1) if self.limit_ends else of_values(size), dtype)

    def __call__(self, batch: Batch) -> GradientPosterior:
        refuse_memory(self, batch.policy)
        timed = self.limit_ends and self.state_kernel is None
        lambda_ = batch.lambda_of(self.lambda_)
        rows = steps(batch, self.state_map, self.limit_ends, lambda_, timed=timed)
        kernel, G, units = state_kernel(self.state_kernel, rows, timed), self.fisher(batch), None
        info = {}
        prior = actor_critic.Prior(kernel, G, 1.0 if self.scale is None else self.scale)
        if self.metric is not None:
            prior = prior._replace(fisher=self.metric(batch, G), information=G)
        noise = 1.0 if self.noise is None else self.noise
        if self.advantage is not None:
            earlier = batch.critic
            rows = rows if earlier is None else without(earlier, rows)
            y, units = values.centred(rows.y, rows.taken)
            divisor = jnp.where(units > 0, units, 1.0)
            rows = rows._replace(y=(y if self.lambda_ == 1 else rows.y) / divisor)
            if self.state_kernel is None:
                kernel = alone = like_returns(kernel, batch, divisor, self.value_scale)
                if earlier is not None:
                    before = values.rescaled(earlier, 1 / divisor)
                    kernel, now, rows = carried(before, rows, alone)
                    info = {"values": values.rescaled(now, divisor)}
                prior = prior._replace(state_kernel=kernel)
            directions = prior.fisher.effective(G)
            c = self.advantage / jnp.maximum(directions, FEWEST)
            prior = prior._replace(scale=c.astype(rows.y.dtype))
            info |= {"directions": directions} | products(rows, prior, noise, self.rank)
        elif self.noise is None:
            prior, noise = evidence.chosen(rows, prior, self.rank)
        posterior = actor_critic.of_steps(
            rows, prior, noise, sparsify=self.sparsify, form=self.form, rank=self.rank,
            tolerance=self.tolerance, iterations=self.iterations,
        )  # fmt: skip
        posterior = eqx.tree_at(lambda p: p.info, posterior, posterior.info | info)
        posterior = posterior if units is None else rescaled(posterior, units)
        if self.lambda_ == 1 and not batch.by_products:
            return posterior
        return _judged(posterior, batch, self)

    @property
    def uniform(self) -> bool:
        """Whether the gradient is a mean over steps of equal weight."""
        return self.fisher in (stationary, stationary_integrated_out)


FEWEST = 0.1
"""Least number of directions, for a policy that no longer explores and has no information."""


def BACPaper(
    state_kernel: Kernel | None = None,
    noise: float | None = 1.0,
    scale: float = 1.0,
    state_map: StateMap = identity,
    limit_ends: bool = False,
    lambda_: float = 1.0,
    fisher: FisherChoice = steps_integrated_out,
    sparsify: Sparsify | None = None,
    form: actor_critic.Form = "auto",
    rank: int = actor_critic.RANK,
    tolerance: float = actor_critic.TOLERANCE,
    iterations: int = actor_critic.ITERATIONS,
) -> BAC:
    """The paper's actor-critic (Algorithm 4, lines 3 to 6): `state_kernel` acts on `state_map` of
    the states, returns-to-go are observed with variance `noise`, and `scale` is that of the Fisher
    kernel.

    What would have followed a path that was cut off at the horizon is unknown; with `limit_ends` it
    counts as ended, for tasks of which the time limit is a part. `lambda_` 0 is the better model
    where transitions are deterministic. `noise` None chooses the noise and the scales of both
    kernels by evidence.
    """
    return BAC(
        state_kernel, noise, scale, state_map, limit_ends, lambda_, fisher, sparsify, form, rank,
        tolerance, iterations, advantage=None, metric=None,
    )  # fmt: skip
