"""Tasks: the protocol, and those of the paper with their exact answers."""

from bayespg.environments.bandit import Bandit
from bayespg.environments.base import Environment, Solved, exact_gradient
from bayespg.environments.lqr import LQR
from bayespg.environments.mountain_car import MountainCar
from bayespg.environments.random_walk import RandomWalk
from bayespg.environments.ship_steering import ShipSteering

__all__ = [
    "LQR",
    "Bandit",
    "Environment",
    "MountainCar",
    "RandomWalk",
    "ShipSteering",
    "Solved",
    "exact_gradient",
]
