"""The steps of a batch as inputs of a regression, and the credit of each step."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg import actor_critic, kernels
from bayespg import fisher as fishers
from bayespg._support.precision import traced
from bayespg._support.types import Array
from bayespg.algebra.conditioning import Groups, Tails
from bayespg.environments.trajectories import Trajectories, returns_to_go
from bayespg.kernels import Kernel
from bayespg.learning import values
from bayespg.learning.batch import Batch, flat
from bayespg.learning.values import Values
from bayespg.policies.features import COUNT, Timed, of_values

StateMap = Callable[[Any], Any]
"""From states, with axes of time and paths in front, to inputs of the state kernel."""


def identity(states: Any) -> Any:
    return states


def credit(batch: Batch, lambda_: float | None) -> Float[Array, "T M"]:
    """Returns-to-go, or advantages under the critic."""
    if lambda_ is None:
        return returns_to_go(batch.steps, batch.discount)
    if batch.critic is None:
        raise ValueError(
            "lambda_: advantages need a batch with a critic; train and agents have one"
        )
    return values.advantages(batch.steps, batch.critic, batch.discount, lambda_)


def steps(
    batch: Batch,
    state_map: StateMap = identity,
    limit_ends: bool = False,
    lambda_: float = 1.0,
    by_critic: bool = False,
    score: bool = True,
    timed: bool = False,
) -> actor_critic.Steps:
    """The steps of a batch, path after path, as inputs of the regression: sums of rewards with
    `lambda_` (see `actor_critic.layout`) or, `by_critic`, advantages under the critic with it.

    The last reward of a truncated path is not used, because what would have followed is unknown. If
    every path is a single step that was truncated, as in a bandit with a time limit, that would
    leave nothing: these paths count as ended, with their reward as the return. With `limit_ends`
    every truncated path counts as ended; `timed` states then have the share of the time that is
    left as a further number, as values fall to zero towards the limit.
    """
    paths, dtype = batch.steps, batch.dtype
    T, M = paths.mask.shape
    states = flat(state_map(paths.states)).astype(dtype).reshape(M * T, -1)
    if timed:
        left = flat(time_left(paths, batch.horizon, batch.discount)).astype(dtype)
        states = jnp.concatenate([states, left[:, None]], 1)
    U = batch.step_scores() if score else jnp.zeros((M * T, 0), dtype)
    groups = Groups(M, length=T)
    taken = flat(paths.mask)
    if by_critic:
        tails = Tails(jnp.zeros(M * T, dtype), groups, taken)
        return actor_critic.Steps(states, U, flat(credit(batch, lambda_)), tails)
    last = jnp.arange(T)[:, None] == paths.lengths - 1
    bandit = jnp.all((paths.lengths == 1) & ~paths.terminated)
    ended = jnp.ones(M, bool) if limit_ends else paths.terminated | bandit
    return actor_critic.layout(
        states, U, flat(paths.rewards), flat(last), flat(last & ended), taken, batch.discount,
        groups, lambda_,
    )  # fmt: skip


def time_left(
    paths: Trajectories, horizon: int, discount: float | Float[Array, ""]
) -> Float[Array, "T M"]:
    """For each step the share of the time that is left before the limit, later steps discounted:
    (1 - gamma^(h-t)) / (1 - gamma^h). The limit h is where the longest truncated path of the batch
    was cut off, as environments may have limits that they do not state, or else the horizon."""
    T, M = paths.mask.shape
    cut = jnp.max(jnp.where(paths.terminated, 0, paths.lengths))
    h = jnp.where(cut > 0, cut, horizon)
    left, whole = jnp.maximum(h - jnp.arange(T), 0), h
    if traced(discount) or discount < 1:
        gamma = jnp.log(jnp.maximum(discount, 1e-30))
        left, whole = (-jnp.expm1(x * gamma) for x in (left, whole))
    return jnp.broadcast_to((left / whole)[:, None], (T, M)).astype(paths.rewards.dtype)


def state_kernel(
    kernel: Kernel | None, steps: actor_critic.Steps, timed: bool = False, waves: int = COUNT
) -> Kernel:
    """The kernel given, or that of features with this number of waves."""
    if kernel is not None:
        return kernel
    inputs = steps.states.shape[1]
    if timed:
        return kernels.OfFeatures(Timed(inputs, waves), wide=2)
    return kernels.OfFeatures(of_values(inputs, waves))


def like_returns(
    kernel: Any, batch: Batch, units: Float[Array, ""], scale: float = 1.0
) -> kernels.OfFeatures:
    """A prior of values with `scale` times the variance of the returns-to-go, and a mean that may
    be far from zero."""
    paths = batch.steps
    returns = returns_to_go(paths, batch.discount)
    spread = values.centred(returns, paths.mask)[1]
    spread = jnp.where(spread > 0, spread, 1.0)
    level = values.root_mean_square(returns, paths.mask) / spread
    wide, variance = 100 + 10 * level**2, scale * (spread / units) ** 2
    return kernels.OfFeatures(kernel.of, wide, variance, kernel.wide)


def without(earlier: Values, steps: actor_critic.Steps) -> actor_critic.Steps:
    """The steps with observations less what values of earlier batches predict of them, and with
    their features as `seen`."""
    Psi = steps.see(jax.vmap(earlier.features)(steps.states))
    y = jnp.where(steps.taken, steps.y - Psi @ earlier.weights, 0.0)
    return steps._replace(y=y, seen=Psi)


def carried(
    earlier: Values, steps: actor_critic.Steps, alone: kernels.OfFeatures
) -> tuple[Kernel, Values, actor_critic.Steps]:
    """The prior of values given earlier batches, as a kernel of their errors; the values given
    these `steps` too, which are `without` the earlier values and in units of their noise; and the
    steps with the features of that kernel as `seen`. `alone` is the prior if there were no earlier
    batches."""
    Psi: Any = steps.seen
    root = values.widened(earlier, alone.variances(Psi.dtype))
    now = values.conditioned(earlier, root, Psi, steps.y)
    return kernels.Weighted(earlier.features, root), now, steps._replace(seen=Psi @ root)


def standardised(
    y: Float[Array, "*N"], taken: Bool[Array, "*N"]
) -> tuple[Float[Array, "*N"], Float[Array, ""]]:
    """y with mean 0 and variance 1 over the steps taken, and its standard deviation before: 0 if
    the entries differ by rounding only."""
    y, scale = values.centred(y, taken)
    return y / jnp.where(scale > 0, scale, 1.0), scale


def products(
    steps: actor_critic.Steps, prior: actor_critic.Prior, noise: Any, rank: int
) -> dict[str, Array]:
    """Inner products K_ij = h_i'D^-1 h_j of the contributions of episodes to the gradient, for
    `bayespg.learning.trust`.

    h_i = sum_t u_t (y_t - V(x_t)) over the steps of episode i. For a network D^-1 is that of the
    preconditioner, so that K costs little more than a gradient; for sparse scores there is none.
    """
    D = prior.fisher
    U: Any = steps.scores
    if not isinstance(D, fishers.Dense | fishers.Network):
        return {}
    Psi, _ = actor_critic.state_features(steps, prior.state_kernel, rank)
    left = actor_critic.Smoother(Psi, jnp.asarray(noise, Psi.dtype), steps.segments)(steps.y)
    h = steps.groups.sum(U * left[:, None]) if eqx.is_array(U) else U.sums(left, steps.groups)
    return {"products": h @ D.solve_roughly(h).T}
