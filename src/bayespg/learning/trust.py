"""How far the episodes of an update agree, and what follows from that.

Episode i adds h_i to the gradient. K holds the inner products h_i'D^-1 h_j in the metric D of the
step. Noise of mean zero does not change the expectation of K_ij for two different episodes, so

    rho = mean of K_ij over pairs i != j / mean of K_ii

estimates the share of one episode's contribution that other episodes find too, whatever their
number. One update says little about it, but it changes slowly: `Trust` keeps its running mean over
updates, in which every pair of episodes counts once. Before the first update rho is small: a long
step that is mostly noise can lead to states from which a policy does not learn its way back. All
decisions about how far a gradient may be trusted are functions of rho:

- of the squared length of the sum of M contributions, share(M) = M rho / (1 + (M - 1) rho) is
  signal. If that is less than a half, the limit of the step shrinks in proportion, so that many
  short steps from few episodes are worth one long step from all of them; rho is taken to be at
  least `LEAST` here;
- with ``episodes="auto"`` the next update plays the smallest number M of `SIZES` for which
  M share(M) is at least `ENOUGH`, or the largest that needs no more than about `STEPS` steps.
  While there is much to learn, two episodes agree on it and more
  would only cost steps; near an optimum they no longer agree, and a policy that follows two of
  them loses what it has learned (docs/calibration.md shows both).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from bayespg._support.types import Array
from bayespg.posterior import GradientPosterior, Weights, believed, no_weights

MEMORY = 0.95
"""Decay of the running mean per update."""
LEAST = 0.006
"""rho that is assumed for the length of a step if less is measured. Sixteen episodes may then use
a sixth of the limit and two a fortieth: on tasks with many parameters such steps still improve a
policy, though their episodes do not tell this agreement from none."""
AUTO = "auto"
SIZES = (2, 4, 8, 16)
"""Numbers of episodes to choose from. There are few, because each is a compiled program."""
ENOUGH = 0.29
"""Two episodes are enough while a seventh of their squared sum is signal, as is assumed before the
first update."""


STEPS = 4_000
"""Steps that more episodes than the least may need. Where episodes are long, a few of them say as
much as many short ones, and a budget has room for few updates."""
START, WEIGHT = 0.08, 10.0
"""rho before the first update, and how many pairs of episodes that counts for."""


class Trust(eqx.Module):
    """What the updates so far say about the agreement of episodes."""

    signal: Float[Array, ""]
    """Sum over pairs of episodes of what they agree on, later ones with more weight."""
    pairs: Float[Array, ""]
    """Their number, weighted in the same way."""
    belief: Weights
    """How probable each ratio of signal to noise is (`bayespg.posterior.agreement`), for what is
    said about a step; no decision of the learner depends on it."""

    @property
    def rho(self) -> Float[Array, ""]:
        return self.signal / self.pairs

    def observe(
        self, K: Float[Array, "M M"] | None, informed: Bool[Array, ""] | bool = True
    ) -> "Trust":
        """The running mean after another update. It stays as it is if there is one episode only, if
        contributions are zero, or if rewards say nothing about the actions (not `informed`)."""
        if K is None or len(K) < 2:
            return self
        own, M = jnp.trace(K), len(K)
        fresh = (jnp.sum(K) - own) / (M - 1) / jnp.where(own > 0, own, 1.0)
        counts = (own > 0) & jnp.isfinite(fresh) & informed
        pairs = M * (M - 1) / 2
        new = MEMORY * self.signal + pairs * fresh, MEMORY * self.pairs + pairs, self.belief
        return jax.tree.map(
            lambda after, before: jnp.where(counts, after, before).astype(before.dtype),
            Trust(*new), self,
        )  # fmt: skip

    def share(self, episodes: int) -> Float[Array, ""]:
        """The share of the squared length of the sum of this many contributions that is signal."""
        return _share(jnp.clip(self.rho, 0.0, 1.0), episodes)

    def allowed(self, episodes: int) -> Float[Array, ""]:
        """The share of its limit that a step from this many episodes may use."""
        return jnp.minimum(2 * _share(jnp.clip(self.rho, LEAST, 1.0), episodes), 1.0)

    def sure(self, posterior: GradientPosterior) -> tuple[Float[Array, ""], "Trust"]:
        """The probability that the step goes uphill, given this update and those before it, and the
        belief after it."""
        said, belief = believed(posterior, posterior.fisher is not None, self.belief)
        return said, Trust(self.signal, self.pairs, belief)

    def episodes(self, length: float = 0.0) -> int:
        """The number of episodes of the next update, where the last ones were of this mean
        length."""
        rho = min(max(float(self.rho), 0.0), 1.0)
        sizes = [M for M in SIZES if M * length <= STEPS] or SIZES[:1]
        return next((M for M in sizes if M * _share(rho, M) >= ENOUGH), sizes[-1])


def _share(rho: Any, M: int) -> Any:
    return M * rho / (1 + (M - 1) * rho)


def begin(dtype: Any) -> Trust:
    """Before the first update."""
    return Trust(jnp.asarray(START * WEIGHT, dtype), jnp.asarray(WEIGHT, dtype), no_weights(dtype))
