"""Tasks: the protocol, and those of the paper with their exact answers."""

from bayespg.environments.bandit import Bandit
from bayespg.environments.base import Environment, Solved, exact_gradient
from bayespg.environments.lqr import LQR

__all__ = ["LQR", "Bandit", "Environment", "Solved", "exact_gradient"]
