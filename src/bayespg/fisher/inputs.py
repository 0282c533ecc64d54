"""Checks of arguments that are Fisher matrices."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import Float

from bayespg._support import checks
from bayespg._support.precision import to_float64
from bayespg.fisher.matrices import Dense, Factorised, Fisher
from bayespg.fisher.structured import NEEDED, Isotropic, as_fisher, is_operator

LARGEST = 1e70
"""The largest whitened scores; their fourth powers, which Model 1 needs, are far from overflow."""

MANY = 2048
"""From this number of parameters on an array is factorised once, and not inverted."""


class Range(NamedTuple):
    """The scores that a Fisher matrix has information on: all whose standardised form has no
    component along `unknown`."""

    units: Float[np.ndarray, " n"]
    """The square roots of the diagonal of G, or 1 where it is zero."""
    unknown: Float[np.ndarray, "n k"]

    def check(self, name: str, scores: Float[np.ndarray, "M n"]) -> None:
        """Refuse scores outside, whose kernel values would be infinite."""
        with np.errstate(over="ignore"):
            standardised = scores / self.units
        largest = np.abs(standardised).max(initial=0.0)
        if not largest < LARGEST:
            raise ValueError(
                f"{name}: as large as {largest:.1e} times the square root of fisher's diagonal; "
                "one of the two is in the wrong units"
            )
        if np.abs(standardised @ self.unknown).max(initial=0.0) > 1e-5 * largest:
            raise ValueError(
                "fisher: singular, and the scores have components it gives no information on; "
                "estimate it from these samples or add a small multiple of the identity"
            )


def _range(G: Float[np.ndarray, "n n"], tolerance: float) -> Range:
    D = np.sqrt(np.diag(G))
    units = np.where(D > 0, D, 1.0)
    correlation = G / units[:, None] / units
    try:
        np.linalg.cholesky(correlation - tolerance * np.eye(D.size))
        return Range(units, np.zeros((D.size, 0)))
    except np.linalg.LinAlgError:
        eigenvalues, Q = np.linalg.eigh(correlation)
        return Range(units, Q[:, eigenvalues <= max(tolerance, -2 * eigenvalues[0])])


def _factorised(G: Float[np.ndarray, "n n"], tolerance: float) -> Factorised | None:
    """G with its Cholesky factor, or None if it may be singular: one over the norm of the inverse
    of the correlation matrix, which LAPACK estimates to a factor of three or so and which is at
    most its least eigenvalue, is not far above the tolerance."""
    D = np.sqrt(np.diag(G))
    if not D.all():
        return None
    correlation = G / D[:, None] / D
    norm = np.abs(correlation).sum(0).max()
    try:
        L = scipy.linalg.cholesky(correlation.T, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        return None
    (estimate,) = scipy.linalg.get_lapack_funcs(("pocon",), (L,))
    condition, _ = estimate(L, norm, uplo="L")
    return Factorised(G, L * D[:, None]) if condition * norm > 10 * tolerance else None


def checked_matrix(
    fisher: Any, n: int | None = None, name: str = "scores"
) -> tuple[Any, Range | None]:
    """The argument `fisher` as a `Fisher` or an array, and its range; an operator has none, because
    it is taken to be regular. Without `n` it may be of any size."""
    if fisher is None:
        raise ValueError(NEEDED)
    if isinstance(fisher, Fisher) or is_operator(fisher):
        size = as_fisher(fisher).size
        if size != (size if n is None else n):
            swapped = isinstance(fisher, Isotropic) and fisher.scale == n
            how = "; the order is Isotropic(parameters, scale)" if swapped else ""
            raise ValueError(f"fisher: acts on R^{size} but {name} have {n} columns{how}")
        for leaf in jax.tree.leaves(fisher):
            if eqx.is_inexact_array(leaf):
                checks.array("fisher", leaf)
        if not isinstance(fisher, Dense):
            return fisher, None
        G = np.asarray(fisher.G, np.float64)
        return fisher, _range(G, checks.rounding(size, fisher.G.dtype))
    size = (*checks.array("fisher", fisher).shape, 0)[0] if n is None else n
    if size == 0:
        raise ValueError("fisher: expected an (n, n) array with n at least 1")
    G = checks.symmetric("fisher", fisher, size)
    tolerance = checks.rounding(size, checks.dtype(fisher))
    if size > MANY and (factorised := _factorised(G, tolerance)) is not None:
        return factorised, Range(np.sqrt(np.diag(G)), np.zeros((size, 0)))
    within = _range(G, tolerance)
    if within.unknown.size:  # otherwise it has just been factorised
        checks.psd("fisher", fisher, size)
    same = tolerance == checks.rounding(size, G.dtype)
    return G if same else Dense(G, tolerance=tolerance), within


def checked(fisher: Any, scores: Float[np.ndarray, "M n"], name: str = "scores") -> Any:
    """The argument `fisher` as a `Fisher` or an array, or a ValueError that says what is wrong with
    it. `name` is the name of the argument with the scores."""
    matrix, within = checked_matrix(fisher, scores.shape[1], name)
    if within is not None:
        within.check(name, scores)
    return matrix


def checked_problem(
    scores: Any, returns: Any, fisher: Any, *, needed: bool = True
) -> tuple[Any, Any, Any]:
    """Scores, returns and Fisher matrix from the caller, checked and in float64. Without `needed`,
    `fisher` may be None."""
    U = checks.scores(scores)
    if U.shape[0] != U.shape[1] == np.size(checks.numbers("returns", returns)):
        raise ValueError(
            f"scores: {U.shape[0]} rows and {U.shape[1]} columns for {U.shape[1]} returns; rows "
            "are episodes: give scores.T"
        )
    R = checks.vector("returns", returns, U.shape[0], "one return per row of scores")
    return U, R, to_float64(checked(fisher, U)) if needed or fisher is not None else None
