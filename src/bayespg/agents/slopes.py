"""The gradient at a policy, from real episodes, with a learned model as the prior.

Each draw of the model predicts a gradient. Their mean m and covariance C are what the model
believes. What it may be wrong about is a gradient N(0, c G), so that the prior is

    g ~ N(m, S),   S = C + c G,   n c = max(D, DOUBT^2 m'G^-1 m),

where D estimates (g - m)'G^-1 (g - m) without bias, from pairs of different real episodes. Where
real episodes do not contradict the model, it counts as wrong by the share `DOUBT` of its gradient;
where they do, c is large, and what remains is the estimate of Model 2 from real episodes alone.
"""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg import quadrature
from bayespg._support.types import Array
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import metric
from bayespg.learning.batch import Batch, of_paths
from bayespg.learning.estimators import MonteCarlo
from bayespg.models.environment import Learned
from bayespg.paths.observations import Normalised, Normaliser
from bayespg.paths.rollout import rollout
from bayespg.policies import AnyPolicy
from bayespg.posterior import GradientPosterior
from bayespg.posterior.informed import Informed

PATHS = 128
"""Simulated episodes per draw of the model; half of them begin where episodes begin, and count."""
DOUBT = 0.5
DAMPING = 1e-3
"""Share of the mean of its diagonal that is added to G, which few episodes leave singular."""
LEAST = 0.1
"""Least share of the variance of what m leaves of the returns that counts as noise."""


@eqx.filter_jit
def predicted(
    environment: Learned, policy: AnyPolicy, normaliser: Normaliser, key: PRNGKeyArray
) -> Float[Array, " n"]:
    """The gradient of the expected discounted return in a learned environment."""
    paths = rollout(environment, Normalised(policy, normaliser), key, PATHS)
    half = PATHS - PATHS // 2  # as `Observed.starts` orders them
    first = Trajectories(
        paths.states[:, :half], paths.actions[:, :half], paths.rewards[:, :half],
        paths.mask[:, :half], paths.terminated[:half], paths.final[:half],
    )  # fmt: skip
    batch = of_paths(
        policy, first, discount=environment.discount, horizon=environment.horizon,
        normaliser=normaliser,
    )  # fmt: skip
    return MonteCarlo("states")(batch).mean


def believed(gradients: Float[np.ndarray, "D n"]) -> Informed:
    """Mean and covariance of the gradients that draws of a model predict."""
    each = np.asarray(gradients, float)
    return Informed(each.mean(0), np.cov(each.T))  # pyright: ignore[reportArgumentType]


def corrected(batch: Batch, prior: Informed) -> GradientPosterior:
    """The posterior of the gradient given real episodes."""
    U, R = (np.asarray(x, float) for x in (batch.scores, batch.returns))
    fisher: Any = metric.actions_integrated_out(batch)
    G, (M, n) = np.asarray(fisher.G, float), U.shape
    G = G + DAMPING * np.trace(G) / n * np.eye(n)
    m, C = (np.asarray(x) for x in prior)
    apart = np.asarray(MonteCarlo("states").samples(batch), float) - m
    K = apart @ np.linalg.solve(G, apart.T)
    wrong = (K.sum() - np.trace(K)) / (M * (M - 1))
    c = max(wrong, DOUBT**2 * m @ np.linalg.solve(G, m)) / n
    spread = float(np.var(R - U @ np.linalg.solve(G, m), ddof=1))
    signal = c * float(np.mean(np.sum(U * np.linalg.solve(G, U.T).T, 1)))
    return quadrature.model2(
        U, R, G, noise=max(spread - signal, LEAST * spread), baseline=np.inf, prior_mean=m,
        prior_covariance=C + c * G,
    )  # fmt: skip
