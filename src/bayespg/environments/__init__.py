"""Tasks: the protocol, those of the paper with their exact answers, and classic control."""

from bayespg.environments import classic
from bayespg.environments.adapted import Adapted, adapt
from bayespg.environments.bandit import Bandit
from bayespg.environments.base import (
    Environment,
    PartiallyObserved,
    Solved,
    check_solved,
    exact_gradient,
    expected_return,
    observation,
    observe,
)
from bayespg.environments.lqr import LQR
from bayespg.environments.mountain_car import MountainCar
from bayespg.environments.partial import History, Noisy
from bayespg.environments.random_walk import RandomWalk
from bayespg.environments.ship_steering import ShipSteering
from bayespg.environments.t_maze import TMaze

__all__ = [
    "LQR",
    "Adapted",
    "Bandit",
    "Environment",
    "History",
    "MountainCar",
    "Noisy",
    "PartiallyObserved",
    "RandomWalk",
    "ShipSteering",
    "Solved",
    "TMaze",
    "adapt",
    "check_solved",
    "classic",
    "exact_gradient",
    "expected_return",
    "observation",
    "observe",
]


def __dir__() -> list[str]:
    return sorted(__all__)
