"""What a caller may pass for a Fisher matrix."""

from typing import Any

import equinox as eqx
import jax
import lineax as lx
import numpy as np
from jaxtyping import Float

from bayespg import checks
from bayespg.fisher.matrices import Fisher, as_fisher
from bayespg.precision import to_float64


def checked(fisher: Any, scores: Float[np.ndarray, "M n"]) -> Any:
    """The caller's `fisher`, or a ValueError that says what is wrong with it."""
    n = scores.shape[1]
    if isinstance(fisher, (Fisher, lx.AbstractLinearOperator)):
        size = as_fisher(fisher).size
        if size != n:
            raise ValueError(f"fisher: acts on R^{size} but scores have {n} columns")
        for leaf in jax.tree.leaves(fisher):
            if eqx.is_inexact_array(leaf):
                checks.array("fisher", leaf)
        return fisher
    G = checks.psd("fisher", fisher, n)
    if not _in_range(G, scores):
        raise ValueError(
            "fisher: singular, and the scores have components it gives no information on; estimate "
            "it from these samples or add a small multiple of the identity"
        )
    return G


def checked_problem(scores: Any, returns: Any, fisher: Any) -> tuple[Any, Any, Any]:
    """Scores, returns and Fisher matrix as a caller gave them, in float64 and sound."""
    U = checks.scores(scores)
    R = checks.vector("returns", returns, U.shape[0], "one return a row of scores")
    return U, R, None if fisher is None else to_float64(checked(fisher, U))


def _in_range(G: Float[np.ndarray, "n n"], scores: Float[np.ndarray, "M n"]) -> bool:
    """Whether all scores lie in the range of G; outside it their kernel values would be
    infinite."""
    D = np.sqrt(np.diag(G))
    units = np.where(D > 0, D, 1.0)
    correlation, standardised = G / np.outer(units, units), scores / units
    try:
        np.linalg.cholesky(correlation - 1e-10 * np.eye(D.size))
    except np.linalg.LinAlgError:
        eigenvalues, Q = np.linalg.eigh(correlation)
        outside = standardised @ Q[:, eigenvalues < 1e-10]
        return bool(
            np.abs(outside).max(initial=0.0) <= 1e-5 * np.abs(standardised).max(initial=0.0)
        )
    return True
