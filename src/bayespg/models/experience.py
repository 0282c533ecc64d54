"""All that a model of a task follows from: the transitions so far, and what was learned from them
step by step; and which of the two families, regression or networks, is the model."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support.precision import to_numpy
from bayespg.models import model as models
from bayespg.models import networks as ensembles
from bayespg.models.data import Inputs, Transitions, empty
from bayespg.models.held_out import likelihood
from bayespg.models.model import Basis, Model
from bayespg.models.networks import Learner

AGAIN = 1.3
"""When there are this many times the transitions, the length scale is chosen again."""
MEMORY = 0.7
"""Decay of the running mean of the likelihoods by which the family that leads is chosen."""


class Experience(eqx.Module):
    """What a task has shown so far."""

    data: Transitions
    length: Int[np.ndarray, ""]
    """Which length scale the regression has."""
    judged: Int[np.ndarray, ""]
    """Transitions by which it was chosen."""
    learner: Learner
    lead: Float[np.ndarray, ""]
    """What networks gain over the regression in the log-likelihood of new transitions, per number,
    as a running mean; they are the model where it is positive."""

    @property
    def grown(self) -> bool:
        """Whether the length scale was chosen by all transitions so far."""
        return int(self.judged) == int(self.data.seen)

    def model(self, basis: Basis) -> Model:
        """The model of the task, given all transitions."""
        return self._led(models.posterior(self.data, basis, self.length))

    def _led(self, regression: Model) -> Model:
        return self._by_networks(regression) if self.lead > 0 else regression

    def _by_networks(self, model: Model) -> Model:
        return dataclasses.replace(model, networks=self.learner.networks)

    def _gain(self, model: Model, fresh: Transitions) -> float:
        """What networks gain on new transitions; zero as long as they have not learned."""
        if not int(self.learner.seen):
            return 0.0
        families = self._by_networks(model), dataclasses.replace(model, networks=None)
        there, here = (likelihood(fresh, one.predict_encoded) for one in families)
        return there - here

    def after(
        self,
        data: Transitions,
        fresh: Transitions,
        model: Model | None,
        basis: Basis,
        key: PRNGKeyArray,
        both: bool,
    ) -> tuple["Experience", Model]:
        """With `fresh` transitions, after which all are `data`, and the model given these; `model`
        is that before, None in the beginning. Networks learn as well if `both`."""
        again = int(data.seen) > AGAIN * int(self.judged)
        regression = models.posterior(data, basis, None if again else self.length)
        gain = 0.0 if model is None else self._gain(model, fresh)
        learner = self.learner
        if both:
            learner = ensembles.learned(learner, data, regression.units, key)
        after = Experience(
            data=data, length=np.asarray(regression.length, np.int64),
            judged=np.asarray(data.seen if again else self.judged, np.int64),
            learner=to_numpy(learner), lead=np.asarray(MEMORY * self.lead + (1 - MEMORY) * gain),
        )  # fmt: skip
        return after, after._led(regression)


def nothing(key: PRNGKeyArray, states: int, inputs: Inputs) -> Experience:
    """As long as nothing was observed of a task with states of this many numbers."""
    zero = np.asarray(0, np.int64)
    with jax.enable_x64(False):
        learner = ensembles.begin(key, states + inputs.size, states + 1)
    return Experience(empty(states, inputs), zero, zero, to_numpy(learner), np.asarray(0.0))  # pyright: ignore[reportCallIssue]
