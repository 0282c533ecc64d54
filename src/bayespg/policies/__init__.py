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
from bayespg.policies.distributions import Distribution, Normal
from bayespg.policies.gaussian import BoundedLinearGaussian, Gaussian, LinearGaussian

__all__ = [
    "BoundedLinearGaussian",
    "Distribution",
    "Gaussian",
    "LinearGaussian",
    "Normal",
    "Policy",
    "SparsePolicy",
    "as_dtype",
    "flatten",
    "information_root",
    "score",
    "sparse_information_root",
    "sparse_score",
]
