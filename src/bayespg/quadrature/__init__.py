"""Bayesian quadrature: the gradient from whole paths (Models 1 and 2), and integrals in general."""

from bayespg.quadrature.coupled import coupled, gradient_kernel
from bayespg.quadrature.hessian import hessian, newton
from bayespg.quadrature.integrals import Integral, bayes_hermite, integral, vector_integral
from bayespg.quadrature.models import SINGULAR, model1, model2, sound
from bayespg.quadrature.online import Online
from bayespg.quadrature.returns import expected_return
from bayespg.quadrature.transfer import model2_with_prior

__all__ = [
    "SINGULAR",
    "Integral",
    "Online",
    "bayes_hermite",
    "coupled",
    "expected_return",
    "gradient_kernel",
    "hessian",
    "integral",
    "model1",
    "model2",
    "model2_with_prior",
    "newton",
    "sound",
    "vector_integral",
]


def __dir__() -> list[str]:
    return sorted(__all__)
