"""Estimators for policies of any size, on one footing: targets y of single steps in, the posterior
of the gradient of the mean over steps out.

    Monte Carlo    mean_t u_t y_t, with y the advantages: the policy gradient with GAE
    rebased        the same less a fit of y by the states of the same batch
    joint          states and scores fitted together: the actor-critic's posterior

All give a damped Fisher matrix with the actions integrated out, so that any of them can be
followed along the natural gradient.
"""

import abc
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from bayespg import monte_carlo
from bayespg._support.types import Array
from bayespg.actor_critic import networks
from bayespg.actor_critic.networks import Batch, Curvature
from bayespg.learning import values
from bayespg.policies import Policy, flatten
from bayespg.policies.features import Features
from bayespg.posterior import GradientPosterior

FEWEST = 0.1
"""Directions that a policy without information, one that no longer explores, is taken to have."""


class Targets(eqx.Module):
    """Steps of M paths, T each with padding, and what each is worth."""

    states: Shaped[Array, "M T ..."]
    actions: Shaped[Array, "M T *action"]
    y: Float[Array, "M T"]
    taken: Bool[Array, "M T"]

    def batch(self, policy: Policy) -> Batch:
        def flat(x):
            return x.reshape(-1, *x.shape[2:])

        return Batch(policy, flat(self.states), flat(self.actions), flat(self.taken))


class Damping(eqx.Module):
    """delta = kappa tr(G) / n, with kappa smaller for `many` steps."""

    few_steps: float = 1.0
    many_steps: float = 0.1
    many: int = 2000

    def __call__(self, batch: Batch, subset: networks.Preconditioner) -> Float[Array, ""]:
        kappa = jnp.where(jnp.sum(batch.taken) < self.many, self.few_steps, self.many_steps)
        trace = subset.trace / subset.Z.shape[-1]
        return (kappa * trace + 1e-8).astype(subset.Z.dtype)


class NetworkEstimator(eqx.Module):
    """Policy and targets to a posterior."""

    features: Features
    """Of states, for the part of y that the state alone explains."""
    damping: Damping = Damping()
    iterations: int = eqx.field(static=True, default=networks.ITERATIONS)

    @abc.abstractmethod
    def __call__(
        self, policy: Policy, targets: Targets, key: PRNGKeyArray
    ) -> GradientPosterior: ...

    def curvature(self, batch: Batch, key: PRNGKeyArray) -> Curvature:
        subset = networks.precondition(batch, key)
        return Curvature(batch, self.damping(batch, subset), subset, self.iterations)


Baseline = Literal["none", "mean", "states"]


class MonteCarlo(NetworkEstimator):
    """mean_t u_t y_t, y less a baseline: none, its mean, or its regression on the states of this
    batch ("rebased")."""

    baseline: Baseline = eqx.field(static=True, default="mean")

    def __call__(self, policy: Policy, targets: Targets, key: PRNGKeyArray) -> GradientPosterior:
        batch = targets.batch(policy)
        y = targets.y
        if self.baseline != "none":
            flat, scale = standardised(targets)
            if self.baseline == "states":
                flat = without_states(self.features, batch)(flat)
            y = scale * flat.reshape(y.shape)
        each = of_episodes(policy, targets, y)
        M, N = each.shape[0], jnp.sum(batch.taken)
        return monte_carlo.average(each * (M / N).astype(each.dtype), self.curvature(batch, key))


class Joint(NetworkEstimator):
    """y = V(x) + u'w + noise, in units in which y has variance 1 and the noise too.

    `advantage` is the prior variance of u'w: the scale of the Fisher kernel follows from it and
    the number of directions that the damping leaves.
    """

    advantage: float = 0.05

    def __call__(self, policy: Policy, targets: Targets, key: PRNGKeyArray) -> GradientPosterior:
        batch = targets.batch(policy)
        G = self.curvature(batch, key)
        y, scale = standardised(targets)
        directions = G.subset.effective(G.damping)
        c = (self.advantage / jnp.maximum(directions, FEWEST)).astype(y.dtype)
        smooth = without_states(self.features, batch)
        P = networks.Precision(G, c, smooth)
        products, inverse = P.system()
        none = jnp.zeros(products.shape, y.dtype)
        w = inverse(products.backward(smooth(y), none))
        alpha = smooth(y - products.forward(w)[0])
        pulls = of_episodes(policy, targets, alpha.reshape(targets.taken.shape))
        M = pulls.shape[0]
        return GradientPosterior(
            mean=scale * products.information(w),
            covariance=networks.Spread(P, scale),
            fisher=G,
            influence=networks.LeftOut(P, scale * (M / max(M - 1, 1)), pulls),
            explained=jnp.ones((), y.dtype),
            freedom=jnp.asarray(max(M - 1.0, 1.0), y.dtype),
            info={"damping": G.damping, "directions": directions},
        )


def standardised(targets: Targets) -> tuple[Float[Array, " N"], Float[Array, ""]]:
    """y with mean 0 and variance 1 over the steps taken, and what it was divided by: 0 where they
    differ by rounding alone."""
    y, scale = values.centred(targets.y.reshape(-1), targets.taken.reshape(-1))
    return y / jnp.where(scale > 0, scale, 1.0), scale


def without_states(features: Features, batch: Batch) -> networks.Smoother:
    """From targets to what features of the states leave of them."""
    Psi = values.basis(features, batch.states)
    return networks.Smoother(jnp.where(batch.taken[:, None], Psi, 0.0))


def of_episodes(
    policy: Policy, targets: Targets, credit: Float[Array, "M T"]
) -> Float[Array, "M n"]:
    """sum_t u_t credit_t for each path."""
    theta, rebuild = flatten(policy)

    def one(states, actions, weights):
        def total(t):
            logs = jax.vmap(lambda x, a: rebuild(t)(x).log_prob(a))(states, actions)
            return jnp.sum(weights * logs)

        return jax.grad(total)(theta)

    credit = jnp.where(targets.taken, credit, 0.0)
    return jax.vmap(one)(targets.states, targets.actions, credit)
