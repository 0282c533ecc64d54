"""Policies: a module that holds parameters and maps a state to a distribution of actions."""

from bayespg.policies.base import (
    Policy,
    SparsePolicy,
    as_dtype,
    flatten,
    information_root,
    score,
    sparse_information_root,
    sparse_score,
)
from bayespg.policies.cmac import CMAC, ship_steering_cmac
from bayespg.policies.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Normal,
    UnitNormal,
)
from bayespg.policies.gaussian import BoundedLinearGaussian, Gaussian, LinearGaussian
from bayespg.policies.softmax import Softmax, mountain_car_softmax
from bayespg.policies.tabular import Tabular

__all__ = [
    "CMAC",
    "Bernoulli",
    "BoundedLinearGaussian",
    "Categorical",
    "Distribution",
    "Gaussian",
    "LinearGaussian",
    "Normal",
    "Policy",
    "Softmax",
    "SparsePolicy",
    "Tabular",
    "UnitNormal",
    "as_dtype",
    "flatten",
    "information_root",
    "mountain_car_softmax",
    "score",
    "ship_steering_cmac",
    "sparse_information_root",
    "sparse_score",
]
