"""Bayesian quadrature: the gradient from whole paths (Models 1 and 2), and integrals in general."""

from bayespg.quadrature.coupled import coupled, gradient_kernel
from bayespg.quadrature.hessian import hessian, newton
from bayespg.quadrature.integrals import Integral, bayes_hermite, integral, vector_integral
from bayespg.quadrature.models import (
    SINGULAR,
    expected_return,
    model1,
    model2,
    model2_with_prior,
    regular,
    sound,
)
from bayespg.quadrature.online import Online
from bayespg.quadrature.sampled import Design, design, sampled

__all__ = [
    "SINGULAR",
    "Design",
    "Integral",
    "Online",
    "bayes_hermite",
    "coupled",
    "design",
    "expected_return",
    "gradient_kernel",
    "hessian",
    "integral",
    "model1",
    "model2",
    "model2_with_prior",
    "newton",
    "regular",
    "sampled",
    "sound",
    "vector_integral",
]


def __dir__() -> list[str]:
    return sorted(__all__)
