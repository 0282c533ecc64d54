"""Bayesian quadrature: the gradient from whole paths (Models 1 and 2), and integrals in general."""

from bayespg.quadrature.integrals import Integral, bayes_hermite, integral, vector_integral
from bayespg.quadrature.models import SINGULAR, model1, model2

__all__ = [
    "SINGULAR",
    "Integral",
    "bayes_hermite",
    "integral",
    "model1",
    "model2",
    "vector_integral",
]
