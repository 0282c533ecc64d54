"""Bayesian quadrature: the gradient from whole paths (Models 1 and 2), and integrals in general."""

from bayespg.quadrature.models import SINGULAR, model1, model2

__all__ = ["SINGULAR", "model1", "model2"]
