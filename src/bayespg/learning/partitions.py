"""Other partitions of the integrand into a Gaussian process and a known part (Section 10).

The gradient is E[sum_t gamma^t u(z_t) Q(z_t)] (Eq. 7). Models 1 and 2 and the actor-critic are
three partitions of it; here are two more, per step z = (x, a), with returns-to-go as observations:

                          Gaussian process       known part               kernel
    ScoredSteps           Q(z) u(z)              occupancy of z           (1 + u'G^-1 u')^2
    Observed              Q(z)                   occupancy times u(z)     any kernel on (x, a)

Both take the returns-to-go less their mean, in units in which they have variance 1; what follows
after the time limit is not asked for.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bayespg import fisher as fishers
from bayespg import quadrature
from bayespg._support.types import Array
from bayespg.algebra.conditioning import Groups
from bayespg.environments.trajectories import returns_to_go
from bayespg.kernels import Kernel
from bayespg.learning import values
from bayespg.learning.batch import Batch, flat
from bayespg.learning.estimators import Estimator, Needs, refuse_memory
from bayespg.learning.metric import steps_integrated_out
from bayespg.learning.regression import StateMap, identity
from bayespg.policies import score
from bayespg.policies.distributions import Distribution, Normal
from bayespg.posterior import GradientPosterior, rescaled

__all__ = ["Observed", "ScoredSteps"]


def __dir__() -> list[str]:
    return sorted(__all__)


MASKED = 1e12
"""The noise variance of padding, which is not observed."""


def _targets(batch: Batch, noise: float):
    """Returns-to-go with variance 1, path after path, their units, and the noise of each step."""
    paths = batch.steps
    y, units = values.centred(returns_to_go(paths, batch.discount), paths.mask)
    units = jnp.where(units > 0, units, 1.0)
    return flat(y / units), units, jnp.where(flat(paths.mask), noise, MASKED).astype(batch.dtype)


def _by_path(posterior: GradientPosterior, batch: Batch) -> GradientPosterior:
    """Leaving out a path instead of a step: the sum over its steps, to first order."""
    T, M = batch.paths.mask.shape
    by_step: Any = posterior.influence
    by_path = Groups(M, length=T).sum(by_step)
    return eqx.tree_at(
        lambda p: (p.influence, p.added, p.unbiased), posterior, (by_path, None, None),
        is_leaf=lambda x: x is None,
    )  # fmt: skip


class ScoredSteps(Estimator):
    """Model 1 of single steps: f(z) = Q(z) u(z) is the process and g the occupancy.

    With nu = sum_t gamma^t Pr(z_t = z) / m, where m is the sum of gamma^t over a path, and G =
    E_nu[u u'], the quadratic Fisher kernel has the integrals of Proposition 3, b_i = 1 + u_i'G^-1
    u_i and b_0 = 1 + n, because E[u | x] = 0. The gradient is m int f dnu.
    """

    noise: float = 1.0

    needs: ClassVar[Needs] = Needs(states=True)

    def __call__(self, batch: Batch) -> GradientPosterior:
        refuse_memory(self, batch.policy)
        y, units, noise = _targets(batch, self.noise)
        weights = fishers.step_weights(batch.steps, batch.discount)
        mass = jnp.sum(weights) / weights.shape[1]
        G = fishers.Dense(steps_integrated_out(batch).matrix() / mass)
        posterior = quadrature.model1(batch.step_scores(), y, G, noise=noise)  # type: ignore[arg-type]
        return rescaled(_by_path(posterior, batch), mass * units)


class Observed(Estimator):
    """Q(z) alone is the process, with any `kernel` on pairs (x, a) that sees no score:

        B_i = (1/M) sum_t,paths gamma^t int u(x_t, a) k((x_t, a), z_i) mu(a | x_t) da

    The states are those of the batch and the actions are integrated out: a sum over choices, or
    Gauss-Hermite quadrature with `nodes` for one normal number. `kernel` is for y of variance 1.
    """

    kernel: Kernel
    noise: float = 1.0
    state_map: StateMap = eqx.field(static=True, default=identity)
    nodes: int = eqx.field(static=True, default=8)

    needs: ClassVar[Needs] = Needs(states=True)

    def __call__(self, batch: Batch) -> GradientPosterior:
        refuse_memory(self, batch.policy)
        paths, policy = batch.steps, batch.policy
        y, units, noise = _targets(batch, self.noise)
        states, actions = flat(paths.states), flat(paths.actions)
        seen = flat(self.state_map(paths.states)).astype(batch.dtype).reshape(len(y), -1)
        drawn = actions.astype(batch.dtype)[:, None]
        weights = flat(fishers.step_weights(paths, batch.discount)) / paths.mask.shape[1]

        def at(state):
            choices, probabilities = _actions(policy(state), self.nodes)  # type: ignore[operator]
            u = jax.vmap(lambda a: score(policy, state, a))(choices)  # type: ignore[arg-type]
            return choices, probabilities[:, None] * u

        choices, gradients = jax.vmap(at)(states)
        count = choices.shape[1]
        nodes = jnp.repeat(seen, count, 0), choices.astype(batch.dtype).reshape(-1, 1)
        W = (weights[:, None, None] * gradients).reshape(-1, gradients.shape[-1])
        posterior = quadrature.sampled(
            self.kernel, (seen, drawn), y, nodes, W, noise=noise, fisher=steps_integrated_out(batch)
        )
        return rescaled(_by_path(posterior, batch), units)


def _actions(at: Distribution, nodes: int) -> tuple[Array, Float[Array, " k"]]:
    """Actions and their probabilities, with which expectations are sums."""
    sizes = at.sizes_of_choices()
    if sizes is not None and len(sizes) == 1:
        choices = jnp.arange(sizes[0])
        return choices, jnp.exp(jax.vmap(at.log_prob)(choices))
    if not isinstance(at, Normal):
        raise ValueError(
            "policy: actions are integrated out where they are one choice or one normal number, "
            f"not {type(at).__name__}; use another estimator"
        )
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    dtype = at.mean.dtype
    return at.mean + at.scale * z.astype(dtype), jnp.asarray(w / w.sum(), dtype)
