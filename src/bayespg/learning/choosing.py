"""Settings chosen from the data: several estimators, of which the one is followed whose steps other
episodes certify.

Each candidate j proposes a direction from all episodes but the i-th, d_j = D^-1 g_j(-i), of unit
length in the metric D. Episode i, which had no part in it, says how steep it is: h_i'd_j, with h_i
the gradient that its returns show, less fitted values: noisy, without bias. Trace, prior and
older batches may thus trade bias for noise in any way: what counts is the slope of the step that
results. One update says little, so differences from the first candidate are averaged over updates,
and another one is followed while its mean difference is above zero by a standard error.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from bayespg._support.types import Array
from bayespg.learning.batch import Batch, by_products
from bayespg.learning.estimators import BAC, Estimator, Needs, adaptive, by_returns
from bayespg.posterior import GradientPosterior

MEMORY = 0.95
"""Decay of the running means per update."""
TRACES, KEPT = (0.9, 0.98), 3
"""The traces to choose among, and the number of older batches that may be used."""


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
        """The candidate with the greatest mean less one standard error; the first if no other is
        above it."""
        weight = jnp.where(self.weight > 0, self.weight, 1.0)
        mean, square = self.mean / weight, self.square / weight
        # The squares of weights (1 - mu) mu^k, whose sum is w, add up to this share of w^2.
        share = (1 - MEMORY) / (1 + MEMORY) * (2 / weight - 1)
        error = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) * jnp.minimum(share, 1.0))
        several = self.weight > 1.5 * (1 - MEMORY)
        return jnp.where(several, jnp.argmax(mean - error), 0)


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
        slopes = jnp.stack([certified(one, h) for one in found])
        at = batch.certified.chosen()
        # One with trace 1 has no gradients beside it that judge its bias.
        alike = [
            eqx.tree_at(lambda p: p.unbiased, one, h, is_leaf=lambda x: x is None) for one in found
        ]
        posterior = jax.tree.map(lambda *each: jnp.stack(each)[at], *alike)
        info = posterior.info | {"certified": slopes}
        return eqx.tree_at(lambda p: p.info, posterior, info)


def refuse(estimator: Estimator, policy: Any, episodes: int) -> None:
    """ValueError where no episodes can be left out to judge candidates."""
    if estimator.needs.candidates and (by_products(policy) or episodes < 2):
        raise ValueError(
            "estimator: bac-chosen, and bac with reuse, judge steps by episodes left out one by "
            "one, which takes two episodes per update or more and at most 256 parameters; use bac "
            "without reuse, or estimators.adaptive(reuse=...), which always uses older batches"
        )


def certified(posterior: GradientPosterior, h: Float[Array, "M n"]) -> Float[Array, ""]:
    """sum_i h_i'd(-i), d(-i) the unit direction that the others propose, in units of the root mean
    square length of h_i."""
    D: Any = posterior.fisher
    g: Any = posterior.mean - posterior.influence  # pyright: ignore[reportOperatorIssue]
    d = D.solve(g)
    length, along = jnp.sqrt(jnp.sum(g * d, -1)), jnp.sum(h * d, -1)
    slope = jnp.sum(jnp.where(length > 0, along / jnp.where(length > 0, length, 1.0), 0.0))
    size = jnp.sqrt(jnp.mean(jnp.sum(h * D.solve(h), -1)))
    return jnp.where(size > 0, slope / jnp.where(size > 0, size, 1.0), 0.0)


def among(traces: tuple[float, ...] = TRACES, reuse: int = KEPT) -> Choosing:
    """The actor-critic with each of these traces, without and with older batches."""
    return Choosing(tuple(adaptive(trace, reuse=count) for count in (0, reuse) for trace in traces))


def reusing(estimator: Any, reuse: int) -> Choosing:
    """This estimator, with older batches where that is certified to help."""
    return Choosing((estimator, dataclasses.replace(estimator, reuse=reuse)))
