"""Checks of arguments that are Fisher matrices."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from bayespg._support import checks
from bayespg._support.precision import to_float64
from bayespg.fisher.matrices import Dense, Fisher
from bayespg.fisher.structured import NEEDED, as_fisher, is_operator

LARGEST = 1e70
"""The largest whitened scores; their fourth powers, which Model 1 needs, are far from overflow."""


def checked(fisher: Any, scores: Float[np.ndarray, "M n"], name: str = "scores") -> Any:
    """The argument `fisher` as a `Fisher`, or a ValueError that says what is wrong with it. `name`
    is the name of the argument with the scores."""
    n = scores.shape[1]
    if fisher is None:
        raise ValueError(NEEDED)
    if isinstance(fisher, Fisher) or is_operator(fisher):
        size = as_fisher(fisher).size
        if size != n:
            raise ValueError(f"fisher: acts on R^{size} but {name} have {n} columns")
        for leaf in jax.tree.leaves(fisher):
            if eqx.is_inexact_array(leaf):
                checks.array("fisher", leaf)
        if isinstance(fisher, Dense):
            G = np.asarray(fisher.G, np.float64)
            _check_range(name, G, scores, checks.rounding(n, fisher.G.dtype))
        return fisher
    G, tolerance = checks.psd("fisher", fisher, n), checks.rounding(n, checks.dtype(fisher))
    _check_range(name, G, scores, tolerance)
    return G if tolerance == checks.rounding(n, G.dtype) else Dense(G, tolerance=tolerance)


def checked_problem(
    scores: Any, returns: Any, fisher: Any, *, needed: bool = True
) -> tuple[Any, Any, Any]:
    """Scores, returns and Fisher matrix from the caller, checked and in float64. Without `needed`,
    `fisher` may be None."""
    U = checks.scores(scores)
    R = checks.vector("returns", returns, U.shape[0], "one return per row of scores")
    return U, R, to_float64(checked(fisher, U)) if needed or fisher is not None else None


def _check_range(
    name: str, G: Float[np.ndarray, "n n"], scores: Float[np.ndarray, "M n"], tolerance: float
) -> None:
    """Check that all scores lie in the range of G, outside which their kernel values would be
    infinite."""
    D = np.sqrt(np.diag(G))
    units = np.where(D > 0, D, 1.0)
    correlation, standardised = G / units[:, None] / units, scores / units
    largest = np.abs(standardised).max(initial=0.0)
    if not largest < LARGEST:
        raise ValueError(
            f"{name}: as large as {largest:.1e} times the square root of fisher's diagonal; one of "
            "the two is in the wrong units"
        )
    try:
        np.linalg.cholesky(correlation - tolerance * np.eye(D.size))
    except np.linalg.LinAlgError:
        eigenvalues, Q = np.linalg.eigh(correlation)
        outside = standardised @ Q[:, eigenvalues <= max(tolerance, -2 * eigenvalues[0])]
        if np.abs(outside).max(initial=0.0) > 1e-5 * largest:
            raise ValueError(
                "fisher: singular, and the scores have components it gives no information on; "
                "estimate it from these samples or add a small multiple of the identity"
            ) from None
