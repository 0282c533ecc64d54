"""Updates of the policy as optax transformations (Algorithm 2, line 3).

Each takes the posterior as an extra argument: ``update(posterior.mean, state, theta,
posterior=posterior)``. All ascend. The three of the paper are `conventional`, `natural` and
`variance_scaled`; they are chains of the small ones below, and so are yours:
``optax.chain(natural_gradient(), optax.adam(...), optax.scale(-1))``.

A rate or a limit may be traced: ``vmap`` over it trains with many at once. Two updates that were
made in the same way are equal, so that the second needs no other compiled program.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float

from bayespg._support.precision import traced
from bayespg._support.types import Array
from bayespg.fisher import Dense, Fisher, as_dense
from bayespg.posterior import GradientPosterior

__all__ = [
    "HALVINGS",
    "Rate",
    "TrustState",
    "ascend",
    "ascending",
    "conventional",
    "hyperbolic",
    "measures_divergence",
    "natural",
    "natural_gradient",
    "scale_by_certainty",
    "scale_by_fisher_determinant",
    "trust_region",
    "variance_scaled",
    "within_range",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Rate = float | Float[Array, ""] | Float[Array, " n"] | Callable[[Any], Any]


Make = Callable[..., optax.GradientTransformation]


class _Made(eqx.Module):
    """A transformation as a tree of the arguments that it is made from."""

    make: Make = eqx.field(static=True)
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def init(self, params: Any) -> Any:
        return self.make(*self.args, **self.kwargs).init(params)

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        made = optax.with_extra_args_support(self.make(*self.args, **self.kwargs))
        return made.update(updates, state, params, **extra)


def from_arguments(make: Make) -> Callable[..., optax.GradientTransformationExtraArgs]:
    """A decorator for functions that make an optax transformation. What they make is a tree whose
    leaves are their arguments: equal if these are equal, and traced if one of these is."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> optax.GradientTransformationExtraArgs:
        make(*args, **kwargs)  # which checks the arguments
        tree = _Made(make, args, kwargs)
        return optax.GradientTransformationExtraArgs(tree.init, tree.update)

    return made


class hyperbolic(eqx.Module):
    """beta_j = beta_0 c / (c + j), the paper's schedule with c = 20; c infinite keeps the rate."""

    initial: float | Float[Array, " n"]
    halving: float | Float[Array, ""] = 20.0

    def __call__(self, j: Any) -> Any:
        return jnp.asarray(self.initial) / (1 + j / self.halving)


@from_arguments
def ascend(rate: Rate) -> optax.GradientTransformation:
    """Multiply by a learning rate: a number, one per component, or a schedule."""
    schedule = rate if callable(rate) else lambda j: jnp.asarray(rate)
    return optax.scale_by_schedule(schedule)


def natural_gradient() -> optax.GradientTransformationExtraArgs:
    """Replace the gradient by G^-1 times it; directions in the null space of G are left out."""
    return _stateless(lambda g, posterior: within_range(_fisher(posterior), g)[1])


def scale_by_certainty() -> optax.GradientTransformationExtraArgs:
    """Multiply each component by 1 - variance / prior variance (Section 6.2.2).

    The factor lies between 0, for a component about which nothing is known, and 1. With Model 1,
    whose covariances are diagonal, it is the paper's [b_0 I - Cov] / b_0, b_0 = 1 + n times the
    kernel's scale. An estimate without a prior, such as Monte Carlo, is multiplied by the fraction
    `explained`: 1, or 0 for a single path.
    """

    def scale(g: Array, posterior: GradientPosterior) -> Array:
        if posterior.prior is None:
            return g * jnp.clip(posterior.explained, 0.0, 1.0)
        variance, prior = posterior.standard_deviation**2, posterior.prior.diagonal()
        left = jnp.where(prior > 0, variance / jnp.where(prior > 0, prior, 1.0), 1.0)
        return g * jnp.clip(1 - left, 0.0, 1.0)

    return _stateless(scale)


def scale_by_fisher_determinant() -> optax.GradientTransformationExtraArgs:
    """Multiply by det G, as the paper does in BPNG."""

    def scale(g: Array, posterior: GradientPosterior) -> Array:
        return g * jnp.exp(as_dense(_fisher(posterior)).log_determinant())

    return _stateless(scale)


def within_range(
    fisher: Fisher, g: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The part of g in the range of G, and G^+ times it.

    A direction of the null space changes no probability, so the return cannot depend on it: what an
    estimate has there is error. Only a dense G may have such directions; every other form is
    damped.
    """
    d = fisher.solve(g)
    return fisher.multiply(d) if isinstance(fisher, Dense) else g, d


def _fisher(posterior: GradientPosterior) -> Fisher:
    if posterior.fisher is None:
        raise ValueError("update: this needs a Fisher matrix; give the estimator fisher=")
    return posterior.fisher


def _stateless(
    function: Callable[[Array, GradientPosterior], Array],
) -> optax.GradientTransformationExtraArgs:
    def update(updates, state, params=None, *, posterior: GradientPosterior, **_):
        del params
        return function(updates, posterior), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)  # pyright: ignore


class TrustState(NamedTuple):
    """The last step."""

    step: Float[Array, ""]
    """Multiple of the direction; 0 if no step was accepted."""
    divergence: Float[Array, ""]


def measures_divergence(state: Any) -> bool:
    """Whether the update with this state measures how far the policy moves: `trust_region`, alone
    or inside another update."""
    parts = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, TrustState))
    return any(isinstance(part, TrustState) for part in parts)


HALVINGS = 10


@from_arguments
def trust_region(
    limit: float = 0.01, *, natural: bool = True, slack: float = 1.5
) -> optax.GradientTransformationExtraArgs:
    """Step along G^-1 g (or g) until the policy has changed by `limit`, in Kullback-Leibler
    divergence.

    `divergence(theta)`, an extra argument of each update, measures that change, over states of
    recent batches in `train` and in agents alike. Since it grows with the square of the step, one
    measurement tells how long the step must be; it is then halved until the divergence is at most
    `slack` times the limit. `allowed` is the share of the limit that the agreement of episodes
    allows (`bayespg.learning.trust`), and `slower` a factor of each component of the direction. The
    part of the gradient in the null space of G, where no divergence limits a step, is left out. The
    parameters do not change if the gradient is zero or the step is still too long after ten
    halvings. If the gradient is finite and its direction is not, the change is NaN.
    """
    if not traced(limit) and not limit > 0:
        raise ValueError(f"limit: expected a positive number, found {limit}")
    whole = limit

    def init(params):
        nothing = jnp.zeros((), params.dtype)
        return TrustState(nothing, nothing)

    def update(updates, state, params, *, posterior, divergence, allowed=1.0, slower=1.0, **_):
        limit = whole * allowed
        # Only the direction counts, so squares of large or small gradients need never be formed.
        finite = jnp.all(jnp.isfinite(updates))
        unit = jnp.max(jnp.abs(updates))
        unit = jnp.where(finite & (unit > 0), unit, 1.0)
        g = d = updates / unit
        if natural or posterior.fisher is not None:
            g, direction = within_range(_fisher(posterior), g)
            d = direction if natural else g
        d = slower * d
        slope = g @ d
        first = jnp.where(slope > 0, jnp.sqrt(2 * limit / jnp.where(slope > 0, slope, 1.0)), 0.0)

        def going(now):
            j, _, change = now
            return (j < 2) | (j < 2 + HALVINGS) & ~(change <= slack * limit)

        def measure(now):
            """The first step, the one that its divergence asks for, and its halves."""
            j, step, seen = now
            sound = jnp.isfinite(seen) & (seen > 0)
            longer = jnp.sqrt(limit / jnp.where(sound, seen, limit))
            longer = jnp.where(sound & (j == 1), jnp.clip(longer, 0.05, 20.0), 0.5)
            step = jnp.where(j == 0, first, step * longer)
            return j + 1, step, divergence(params + step * d)

        _, step, change = jax.lax.while_loop(going, measure, (0, first, jnp.zeros_like(first)))
        step = jnp.where(change <= slack * limit, step, 0.0)
        change = jnp.where(step > 0, change, 0.0)
        lost = finite & ~jnp.all(jnp.isfinite(d))
        moved = jnp.where(lost, jnp.nan, jnp.where(step > 0, step * d, 0.0))
        return moved, TrustState(
            (step / unit).astype(params.dtype), change.astype(params.dtype)
        )  # fmt: skip

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore


@from_arguments
def ascending(optimiser: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Any optax optimiser, which descends, turned around: ``ascending(optax.adam(1e-3))``."""
    return optax.chain(optax.scale(-1.0), optax.with_extra_args_support(optimiser))


@from_arguments
def conventional(rate: Rate) -> optax.GradientTransformationExtraArgs:
    """theta += rate E[grad]."""
    return optax.with_extra_args_support(ascend(rate))


@from_arguments
def natural(
    rate: Rate, *, times_determinant: bool = False
) -> optax.GradientTransformationExtraArgs:
    """theta += rate G^-1 E[grad]; BPNG of the paper multiplies the rate by det G."""
    parts = [natural_gradient(), ascend(rate)]
    if times_determinant:
        parts.insert(1, scale_by_fisher_determinant())
    return optax.chain(*parts)


@from_arguments
def variance_scaled(rate: Rate) -> optax.GradientTransformationExtraArgs:
    """BPG-var: theta_j += rate (1 - Cov_jj / B_0,jj) E[grad_j], see `scale_by_certainty`."""
    return optax.chain(scale_by_certainty(), ascend(rate))
