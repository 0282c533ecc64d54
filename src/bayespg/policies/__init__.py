"""Policies: a module that holds parameters and maps a state to a distribution of actions.

Those with memory map memory and observation to a distribution of choices.
"""

from bayespg.policies.base import (
    AnyPolicy,
    Policy,
    SparsePolicy,
    as_arrays,
    as_dtype,
    count,
    flatten,
    information_root,
    remembers,
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
    Pair,
    UnitNormal,
)
from bayespg.policies.expansion import Expansion, expanded, expansion
from bayespg.policies.gaussian import (
    BoundedLinearGaussian,
    Gaussian,
    LinearGaussian,
    VectorGaussian,
)
from bayespg.policies.memory import FiniteStateController, MemoryPolicy, Recurrent
from bayespg.policies.network import Network, convolutional, network
from bayespg.policies.softmax import Softmax, mountain_car_softmax
from bayespg.policies.tabular import Tabular

__all__ = [
    "CMAC",
    "AnyPolicy",
    "Bernoulli",
    "BoundedLinearGaussian",
    "Categorical",
    "Distribution",
    "Expansion",
    "FiniteStateController",
    "Gaussian",
    "LinearGaussian",
    "MemoryPolicy",
    "Network",
    "Normal",
    "Pair",
    "Policy",
    "Recurrent",
    "Softmax",
    "SparsePolicy",
    "Tabular",
    "UnitNormal",
    "VectorGaussian",
    "as_arrays",
    "as_dtype",
    "convolutional",
    "count",
    "expanded",
    "expansion",
    "flatten",
    "information_root",
    "mountain_car_softmax",
    "network",
    "remembers",
    "score",
    "ship_steering_cmac",
    "sparse_information_root",
    "sparse_score",
]


def __dir__() -> list[str]:
    return sorted(__all__)
