"""Settings chosen from the data: several estimators, of which the one is followed whose steps other
episodes certify.

Each candidate j proposes a direction from all episodes but the i-th, d_j = D_j^-1 g_j(-i), with a
length by which all change the policy equally: d_j'G d_j = 1, G without damping. Episode i, which
had no part in it, says how steep it is: h_i'd_j, with h_i the gradient that its returns show, less
fitted values: noisy, without bias. Trace, damping, prior and older batches may thus trade bias for
noise in any way: what counts is the slope of the step that results. One update says little, so
differences from the first candidate are averaged over updates, and another one is followed while
its mean difference is above zero by two standard errors.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from bayespg._support.types import Array
from bayespg.fisher import Fisher
from bayespg.learning.batch import Batch, by_products
from bayespg.learning.estimators import BAC, Estimator, Needs, adaptive, by_returns
from bayespg.learning.information import Metric
from bayespg.posterior import GradientPosterior

MEMORY = 0.95
"""Decay of the running means per update."""
CLEARLY = 2.0
"""Standard errors by which the mean difference of a candidate must be above zero."""
CHANGES: tuple[dict[str, Any], ...] = (
    {"trace": 0.8}, {"trace": 0.98}, {"kappa": 0.1}, {"kappa": 1.0},
    {"advantage": 0.01}, {"advantage": 0.2}, {"reuse": 3},
)  # fmt: skip
"""The settings of `estimators.adaptive` to choose among besides its defaults, one at a time."""


class Certified(eqx.Module):
    """Running means over updates of the slopes of candidates, less that of the first."""

    mean: Float[Array, " J"]
    square: Float[Array, " J"]
    weight: Float[Array, ""]
    """Sum of the weights of the updates so far, at most 1."""

    def seen(self, slopes: Float[Array, " J"]) -> "Certified":
        more = slopes - slopes[0]

        def moved(old, new):
            return MEMORY * old + (1 - MEMORY) * new

        return Certified(
            moved(self.mean, more), moved(self.square, more**2), moved(self.weight, 1.0)
        )

    def chosen(self) -> Int[Array, ""]:
        """The candidate with the greatest mean less `CLEARLY` standard errors; the first if no
        other is above it."""
        weight = jnp.where(self.weight > 0, self.weight, 1.0)
        mean, square = self.mean / weight, self.square / weight
        # The squares of weights (1 - mu) mu^k, whose sum is w, add up to this share of w^2.
        share = (1 - MEMORY) / (1 + MEMORY) * (2 / weight - 1)
        error = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) * jnp.minimum(share, 1.0))
        several = self.weight > 1.5 * (1 - MEMORY)
        return jnp.where(several, jnp.argmax(mean - CLEARLY * error), 0)


def nothing(candidates: int, dtype: Any) -> Certified:
    """Before the first update."""
    zeros = jnp.zeros(candidates, dtype)
    return Certified(zeros, zeros, jnp.zeros((), dtype))


class Choosing(Estimator):
    """The actor-critic with settings chosen among `candidates`; the first is the default."""

    candidates: tuple[BAC, ...]

    @property
    def needs(self) -> Needs:  # pyright: ignore[reportIncompatibleVariableOverride]
        each = [one.needs for one in self.candidates]
        traces = {one.smoothing for one in each}
        return each[0]._replace(
            smoothing=traces.pop() if len(traces) == 1 else None,
            older=max(one.older for one in each), recent=any(one.recent for one in each),
            candidates=len(each),
        )  # fmt: skip

    def __call__(self, batch: Batch) -> GradientPosterior:
        if batch.certified is None:  # no training, in which there is a choice
            return self.candidates[0](batch)
        found = [one(batch) for one in self.candidates]
        h = by_returns(self.candidates[0], batch)
        D: Any = found[0].fisher
        G, size = self._undamped(batch), jnp.sqrt(jnp.mean(jnp.sum(h * D.solve(h), -1)))
        slopes = jnp.stack([certified(one, h, G) for one in found])
        slopes = jnp.where(size > 0, slopes / jnp.where(size > 0, size, 1.0), 0.0)
        at = batch.certified.chosen()
        # One with trace 1 has no gradients beside it that judge its bias.
        alike = [
            eqx.tree_at(lambda p: p.unbiased, one, h, is_leaf=lambda x: x is None) for one in found
        ]
        posterior = jax.tree.map(lambda *each: jnp.stack(each)[at], *alike)
        info = posterior.info | {"certified": slopes}
        return eqx.tree_at(lambda p: p.info, posterior, info)

    def _undamped(self, batch: Batch) -> Fisher | None:
        """G without damping, by which the steps of all candidates are made equally long."""
        first = self.candidates[0]
        return None if first.metric is None else Metric(0.0)(batch, first.fisher(batch))


def refuse(estimator: Estimator, policy: Any, episodes: int) -> None:
    """ValueError where no episodes can be left out to judge candidates."""
    if estimator.needs.candidates and (by_products(policy) or episodes < 2):
        raise ValueError(
            "estimator: bac-chosen, and bac with reuse, judge steps by episodes left out one by "
            "one, which takes two episodes per update or more and at most 256 parameters; use bac "
            "without reuse, or estimators.adaptive(reuse=...), which always uses older batches"
        )


def certified(
    posterior: GradientPosterior, h: Float[Array, "M n"], G: Fisher | None = None
) -> Float[Array, ""]:
    """sum_i h_i'd(-i), d(-i) the direction that the others propose, of unit length in G, or in the
    metric D of the posterior itself."""
    D: Any = posterior.fisher
    g: Any = posterior.mean - posterior.influence  # pyright: ignore[reportOperatorIssue]
    d = D.solve(g)
    square, along = jnp.sum(d * (g if G is None else G.multiply(d)), -1), jnp.sum(h * d, -1)
    moves = square > 0
    length = jnp.sqrt(jnp.where(moves, square, 1.0))
    return jnp.sum(jnp.where(moves, along / length, 0.0))


def among(*changes: dict[str, Any]) -> Choosing:
    """The default actor-critic, and one with each of these settings changed, or of `CHANGES`."""
    return Choosing((adaptive(), *(adaptive(**change) for change in changes or CHANGES)))


def reusing(estimator: Any, reuse: int) -> Choosing:
    """This estimator, with older batches where that is certified to help."""
    return Choosing((estimator, dataclasses.replace(estimator, reuse=reuse)))
