"""How well a model predicts transitions that it has not learned from."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from bayespg.models.data import Transitions
from bayespg.models.model import Model, Prediction

TESTED = 128
"""New transitions on which a model is tested before it learns from them."""
FARTHEST, NARROWEST = 5.0, 1e-4
"""Errors are clipped at this many standard deviations, and these are at least this share of those
of the observed numbers, so that neither an outlier nor rounding decides."""


def shares(model: Model, fresh: Transitions) -> tuple[float, float]:
    """The shares of the variance of changes of the state and of rewards that the model predicts;
    NaN where nothing varies."""
    x, a, y, r, going = _tested(fresh)
    predicted = model.predict_encoded(x, a)
    return (
        explained(y - x, np.asarray(predicted.following) - x),
        explained(r[going, None], np.asarray(predicted.rewards)[going, None]),
    )


def likelihood(fresh: Transitions, predict: Callable[..., Prediction]) -> float:
    """The log-likelihood of new transitions under normal distributions, in the mean over rows that
    did not end the episode and over the numbers that vary, up to a constant; zero if none does."""
    x, a, y, r, going = _tested(fresh)
    predicted = predict(x, a)
    true = np.column_stack([y, r])[going]
    mean = np.column_stack([predicted.following, predicted.rewards])[going]
    deviation = np.column_stack([predicted.following_deviation, predicted.rewards_deviation])[going]
    if not len(true):
        return 0.0
    spread = true.std(0)
    varies = spread > 1e-6 * np.abs(true).max(0)
    s = np.maximum(deviation, NARROWEST * spread)[:, varies]
    apart = np.minimum(np.abs(true - mean)[:, varies] / s, FARTHEST)
    return float(np.mean(-np.log(s) - apart**2 / 2)) if s.size else 0.0


def explained(true: Float[np.ndarray, "N o"], predicted: Float[np.ndarray, "N o"]) -> float:
    """The share of the variance that is predicted, in the mean over the numbers that vary, each at
    least zero; NaN if none does."""
    if not len(true):
        return np.nan
    total = np.mean((true - true.mean(0)) ** 2, 0)
    varies = total > 1e-12 * np.mean(true**2, 0)
    left = np.mean((true - predicted) ** 2, 0)[varies] / total[varies]
    return float(np.mean(np.maximum(1 - left, 0))) if left.size else np.nan


def _tested(fresh: Transitions) -> tuple[np.ndarray, ...]:
    """States, encoded actions, following states and rewards of `TESTED` transitions, and whether
    the episode continued."""
    rows = np.arange(TESTED) * fresh.count // TESTED
    numbers = (
        z[rows].astype(float) for z in (fresh.states, fresh.actions, fresh.following, fresh.rewards)
    )
    return *numbers, ~fresh.terminated[rows]
