"""Ways to obtain the Fisher matrix G from a batch (Section 4.3 and Algorithm 3), and the metric
that is made from it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg._support.types import Array
from bayespg.fisher import Fisher
from bayespg.learning.batch import Batch, by_products, flat
from bayespg.paths import scores
from bayespg.policies import AnyPolicy, count
from bayespg.policies.features import learns_features

FisherChoice = Callable[[Batch], Fisher]
"""A way to obtain G from a batch; the functions below, or your own."""


def exact(batch: Batch) -> Fisher:
    """G of paths in closed form, if the environment has one."""
    return fishers.exact(batch.environment, batch.policy)  # type: ignore[arg-type]


def actions_integrated_out(batch: Batch) -> Fisher:
    """G of paths, Eq. 24, the actions integrated out."""
    return fishers.actions_integrated_out(batch.acting, batch.paths)


def monte_carlo_fisher(batch: Batch) -> Fisher:
    """G of paths from outer products of their scores."""
    return fishers.monte_carlo(batch.scores, damping=0.0)


def maximum_likelihood(batch: Batch) -> Fisher:
    """G of paths under a transition model fitted to them."""
    return fishers.maximum_likelihood(batch.environment, batch.policy, batch.paths)  # type: ignore[arg-type]


def steps_integrated_out(batch: Batch) -> Fisher:
    """G of steps, Eq. 40, the actions integrated out."""
    return _integrated_out(batch, stationary=False)


def stationary_integrated_out(batch: Batch) -> Fisher:
    """The average over steps, Eq. 42, the actions integrated out."""
    return _integrated_out(batch, stationary=True)


def _integrated_out(batch: Batch, stationary: bool) -> Fisher:
    paths, discount = batch.steps, batch.discount
    if not batch.by_products:
        return fishers.actions_integrated_out(batch.policy, paths, discount, stationary=stationary)
    weights = fishers.step_weights(paths, discount, stationary)
    U: Any = batch.step_scores()
    return fishers.network(U, flat(weights) / weights.shape[1])


def stationary(batch: Batch) -> Fisher:
    """The average over steps of outer products, Eq. 42."""
    return _of_step_scores(batch, fishers.step_weights(batch.steps, stationary=True))


def g_est(batch: Batch) -> Fisher:
    """Algorithm 3 in expectation over its random stops; the last pair of an episode has weight
    1."""
    return _of_step_scores(batch, fishers.g_est_weights(batch.steps, batch.discount))


def g_est_as_printed(batch: Batch) -> Fisher:
    """Algorithm 3 in expectation over its random stops; the last pair has weight 1 / (1 -
    gamma)."""
    weights = fishers.g_est_weights(batch.steps, batch.discount, as_printed=True)
    return _of_step_scores(batch, weights)


def _of_step_scores(batch: Batch, weights: Float[Array, "T M"]) -> Fisher:
    return fishers.of_step_scores(scores.of_steps(batch.policy, batch.paths), weights)


DAMPING, SHARE = 0.3, 0.004
"""Damping: of a policy that is linear in a few hundred weights, as a multiple of the mean
eigenvalue of G; of a network, as a share of the sum of its eigenvalues. Most of those are nearly
zero, so that their mean falls with the size of the network, and their sum does not."""


class Metric(eqx.Module):
    """D = G + delta I with delta = kappa tr(G) / n, kappa the damping: the metric of natural steps
    and of the prior. G is that of the states of recent batches, if the batch holds them."""

    damping: float | None = None
    """None: `DAMPING`, or for a network and any large policy n times `SHARE`."""

    def damping_of(self, policy: AnyPolicy) -> float:
        """kappa for this policy."""
        if self.damping is not None:
            return self.damping
        large = by_products(policy) or learns_features(policy)
        return SHARE * count(policy) if large else DAMPING

    def __call__(self, batch: Batch, G: Fisher) -> Fisher:
        kappa = self.damping_of(batch.policy)
        if batch.recent is not None:
            policy: Any = batch.policy
            states, taken = batch.recent.states, batch.recent.weights.astype(batch.dtype)
            weights = taken / jnp.sum(taken)
            if batch.by_products:
                G = fishers.network(scores.Jacobian(policy, states, None, taken), weights)
            else:
                G = fishers.of_states(policy, states, weights)
        size = G.trace() / G.size
        return G.damped((kappa * size + 1e-8).astype(size.dtype))
