"""Learned models of a task: a posterior over its dynamics, rewards and termination, whose mean and
draws are environments in JAX."""

from bayespg.models.data import Inputs, Transitions, choices, numbers, transitions
from bayespg.models.environment import Knowledge, Learned
from bayespg.models.forecasts import Forecast, forecast, inside
from bayespg.models.model import Model, Prediction, fit

__all__ = [
    "Forecast",
    "Inputs",
    "Knowledge",
    "Learned",
    "Model",
    "Prediction",
    "Transitions",
    "choices",
    "fit",
    "forecast",
    "inside",
    "numbers",
    "transitions",
]


def __dir__() -> list[str]:
    return sorted(__all__)
