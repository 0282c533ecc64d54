"""Checks of arguments.

Every function here raises ValueError with the name of the argument and what was found in it.
"""

import difflib
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.random import host_key

Array = np.ndarray
F = TypeVar("F", bound=Callable[..., Any])
LARGEST = 2**63 - 1
ROWS = "for one row per episode: np.stack([episode.sum(0) for episode in scores])"
"""How to make scores of paths from those of steps."""
SMALLEST = 1e-70
"""The smallest standard deviation; its fourth power is far from underflow."""


def array(name: str, value: Any) -> Float[Array, "..."]:
    """`value` as a finite float64 array. Accepts lists, NumPy, JAX, PyTorch and DLPack arrays. One
    that is being traced has no values to check, and is returned as it is."""
    if isinstance(value, Tracer):
        return value  # pyright: ignore[reportReturnType]
    values = numbers(name, value)
    bad = ~np.isfinite(values)
    if bad.any():
        if not values.ndim:
            raise ValueError(f"{name}: expected a finite number, found {values}")
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name}: {int(bad.sum())} of {values.size} entries are NaN or infinite, "
            f"the first at index {where if len(where) != 1 else where[0]} ({values[where]})"
        )
    return values


def dtype(value: Any) -> np.dtype:
    """The precision in which a caller holds an array."""
    return _to_numpy(value).dtype


def rounding(size: int, dtype: Any) -> float:
    """The size of an eigenvalue of a correlation matrix that rounding errors can explain."""
    eps = float(jnp.finfo(dtype if jnp.issubdtype(dtype, jnp.inexact) else np.float64).eps)
    return max(10 * size * eps, eps ** (2 / 3))  # thousands of paths may have been summed


def numbers(name: str, value: Any) -> Float[Array, "..."]:
    """`value` in float64, NaN and infinity allowed; ValueError if its entries are not numbers."""
    values = unmasked(name, value)
    # Types such as bfloat16 have the kind of a structure, but are numbers to JAX.
    scalar = values.dtype.kind == "V" and jnp.issubdtype(values.dtype, jnp.number)
    if values.dtype.kind not in "biuf" and not scalar:
        raise ValueError(f"{name}: not an array of numbers (entries of type {values.dtype})")
    with np.errstate(over="ignore"):  # a longer type may hold what float64 cannot
        return np.asarray(values, dtype=np.float64)


def unmasked(name: str, value: Any) -> np.ndarray:
    """`value` as a NumPy array of any type, none of whose entries is masked."""
    refuse_masked(name, value)
    try:
        return _to_numpy(value)
    except (TypeError, ValueError, RuntimeError, AttributeError, BufferError) as problem:
        if lengths := _ragged(value):
            raise ValueError(
                f"{name}: a list of {len(lengths)} arrays of {min(lengths)} to {max(lengths)} "
                f"rows; join them: np.concatenate({name}), with last=, which is True at the last "
                f"step of each episode; {ROWS}"
            ) from None
        raise ValueError(f"{name}: not an array of numbers ({problem})") from None


def _ragged(value: Any) -> list[int]:
    """The lengths of the arrays in a list, if they differ."""
    if not isinstance(value, list | tuple):
        return []
    shapes = [np.shape(one) if hasattr(one, "shape") else () for one in value]
    lengths = [shape[0] for shape in shapes if shape]
    return lengths if len(lengths) == len(value) and len(set(lengths)) > 1 else []


def refuse_masked(name: str, value: Any) -> None:
    """ValueError if an entry of an array, or of arrays in lists and dictionaries, is masked."""
    masked = _masked(value)
    if masked:
        raise ValueError(
            f"{name}: {masked} entries are masked; fill them in, or leave out the paths they "
            "belong to"
        )


def _masked(value: Any) -> int:
    """The number of masked entries; NumPy drops the masks of arrays inside lists."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(_masked, value))
    return int(np.ma.getmaskarray(value).sum()) if np.ma.isMaskedArray(value) else 0


def shown(value: Any) -> str:
    """`value` for an error message, on one line and at most 80 characters long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the digits of a huge integer, or somebody else's __repr__
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _to_numpy(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a PyTorch tensor that may carry a graph
        value = value.detach()
    if hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    return np.from_dlpack(value)


def number(name: str, value: Any) -> float:
    """One number, which may be infinite or NaN."""
    try:
        values = numbers(name, value)
    except ValueError:
        values = None
    if values is None or values.ndim:
        raise ValueError(f"{name}: expected one number, found {shown(value)}")
    return float(values)


def sound(names: str, result: Any) -> Any:
    """`result`, or a ValueError if it is not finite: the arguments, finite themselves, were too
    large or too small for float64."""
    leaves = [leaf for leaf in jax.tree.leaves(result) if eqx.is_inexact_array_like(leaf)]
    if not all(np.all(np.isfinite(leaf)) for leaf in leaves):
        raise ValueError(
            f"{names}: numbers so large or small that the answer is beyond float64; give them in "
            "other units, for instance divided by their largest"
        )
    return result


def scores(value: Any) -> Float[Array, "M n"]:
    """Scores: one row per path, at least one path and one parameter."""
    values = array("scores", value)
    if values.ndim != 2:
        how = f"; {ROWS}" if values.ndim == 3 else ""
        raise ValueError(
            f"scores: expected shape (M, n), one row per path, found {values.shape}{how}"
        )
    if values.shape[0] == 0:
        raise ValueError("scores: the batch is empty (0 paths)")
    if values.shape[1] == 0:
        raise ValueError("scores: the policy has no parameters (shape (M, 0))")
    return values


def vector(name: str, value: Any, size: int, meaning: str) -> Float[Array, " M"]:
    """A vector whose length is set by another argument."""
    values = array(name, value)
    if values.shape != (size,):
        flat = values.shape in ((size, 1), (1, size))
        how = f"; give np.ravel({name})" if flat else ""
        raise ValueError(f"{name}: expected shape ({size},), {meaning}, found {values.shape}{how}")
    return values


def shaped(name: str, value: Any, shapes: tuple[tuple[int, ...], ...]) -> Float[Array, "..."]:
    """An array of one of several shapes."""
    values = array(name, value)
    if values.shape not in shapes:
        allowed = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ValueError(f"{name}: expected shape {allowed}, found {values.shape}")
    return values


def symmetric(name: str, value: Any, size: int) -> Float[Array, "n n"]:
    """A symmetric matrix whose diagonal is not negative."""
    matrix = shaped(name, value, ((size, size),))
    with np.errstate(over="ignore"):
        gap = np.abs(matrix - matrix.T)
    scale = np.abs(matrix).max(initial=0.0)
    if gap.max(initial=0.0) > 1e-6 * scale:
        i, j = (int(k) for k in np.unravel_index(gap.argmax(), gap.shape))
        raise ValueError(
            f"{name}: not symmetric, entry ({i}, {j}) is {matrix[i, j]:.6g} "
            f"but ({j}, {i}) is {matrix[j, i]:.6g}"
        )
    matrix = matrix / 2 + matrix.T / 2
    diagonal = np.diag(matrix)
    if (diagonal < 0).any():
        j = int(diagonal.argmin())
        raise ValueError(
            f"{name}: not positive semi-definite, diagonal entry {j} is {diagonal[j]:.6g}"
        )
    return matrix


def psd(name: str, value: Any, size: int) -> Float[Array, "n n"]:
    """A symmetric positive semi-definite matrix."""
    matrix = symmetric(name, value, size)
    # Judged on the correlation matrix, so that units of the parameters do not matter.
    diagonal = np.diag(matrix)
    d = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    correlation = matrix / d[:, None] / d
    try:
        slack = max(1e-8 * size, rounding(size, dtype(value)))
        np.linalg.cholesky(correlation + slack * np.eye(size))
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(correlation)[0]
        raise ValueError(
            f"{name}: not positive semi-definite, its correlation matrix has "
            f"eigenvalue {smallest:.3g}"
        ) from None
    return matrix


def nonnegative(name: str, value: Any, shapes: tuple[tuple[int, ...], ...]) -> Float[Array, "..."]:
    """Variances: a scalar or one of `shapes`, none negative."""
    values = shaped(name, value, ((), *shapes))
    square = values.ndim == 2 and values.shape[0] == values.shape[1]
    variances = np.diag(values) if square else values
    if (variances < 0).any():
        raise ValueError(f"{name}: cannot be negative, found {variances.min():.6g}")
    return values


def covariance(name: str, value: Any, size: int) -> Float[Array, "..."]:
    """A variance, (size,) variances, or a (size, size) covariance."""
    values = nonnegative(name, value, ((size,), (size, size)))
    return psd(name, values, size) if values.ndim == 2 else values


def positive(name: str, value: Any, shapes: tuple[tuple[int, ...], ...]) -> Float[Array, "..."]:
    """Prior variances: a scalar or one of `shapes`, all above zero."""
    values = nonnegative(name, value, shapes)
    if (values == 0).any():
        raise ValueError(f"{name}: must be positive, found 0")
    return values


def variance_or_infinity(name: str, value: Any) -> float:
    """A prior variance; infinity is a flat prior."""
    variance = number(name, value)
    if np.isnan(variance) or variance < 0:
        raise ValueError(f"{name}: expected a variance from 0 to infinity, found {variance}")
    return variance


def probability(name: str, value: Any) -> float:
    """A number strictly between 0 and 1, or one that is being traced."""
    if isinstance(value, Tracer):
        return value  # pyright: ignore[reportReturnType]
    p = number(name, value)
    if not 0 < p < 1:
        raise ValueError(f"{name}: expected a number between 0 and 1, found {p}")
    return p


def flags(name: str, value: Any, size: int | None = None) -> np.ndarray:
    """Booleans, one per step; without `size`, for any number of steps."""
    values = unmasked(name, value)
    if values.dtype != bool or values.shape != (values.size if size is None else size,):
        raise ValueError(
            f"{name}: expected booleans of shape ({'N' if size is None else size},), one per step, "
            f"found {values.dtype} of shape {values.shape}"
        )
    return values


def discount(value: Any) -> float:
    """A discount factor."""
    return fraction("discount", value)


def fraction(name: str, value: Any) -> float:
    """A number from 0 to 1, both included."""
    p = number(name, value)
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: expected a number from 0 to 1, found {p}")
    return p


def suggestion(name: str, names: Iterable[str], cutoff: float = 0.5) -> str:
    """A hint for an unknown name: the closest known one, or all of them."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean '{close[0]}'?" if close else f"choose from {', '.join(names)}"


def whole(name: str, value: Any, least: int, most: int = LARGEST) -> int:
    """A whole number; 4.0 is accepted, True is not."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    is_whole |= isinstance(value, float | np.floating) and float(value).is_integer()
    if not is_whole or not least <= value <= most:
        to = "" if most == LARGEST else f" to {most}"
        raise ValueError(f"{name}: expected a whole number from {least}{to}, found {shown(value)}")
    return int(value)


def real(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
) -> float:
    """A finite number within bounds, or one that is being traced; True is not accepted."""
    if isinstance(value, Tracer) and value.shape == ():
        return value  # pyright: ignore[reportReturnType]
    is_real = isinstance(value, int | float | np.integer | np.floating)
    inside = is_real and not isinstance(value, bool) and _finite(value)
    inside = inside and (least is None or value >= least) and (most is None or value <= most)
    if not inside or (above is not None and value <= above):
        where = f" above {above}" if above is not None else f" from {least}" * (least is not None)
        where += "" if most is None else f" to {most}"
        raise ValueError(f"{name}: expected a number{where}, found {shown(value)}")
    return float(value)


def _finite(value: Any) -> bool:
    """Whether float64 can hold a number; an integer may be longer than any float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def deviation(name: str, value: Any) -> float:
    """A standard deviation, whose square and the inverse of that float64 can hold."""
    sigma = float(positive(name, value, ()))
    if not SMALLEST < sigma < 1 / SMALLEST:
        raise ValueError(
            f"{name}: expected a number from {SMALLEST:g} to {1 / SMALLEST:g}, found {sigma:g}; "
            "give it in other units"
        )
    return sigma


def key(name: str, value: Any) -> PRNGKeyArray:
    """A key of JAX, typed or a pair of words, or the key of a seed from 0 to 2^64 - 1."""
    if isinstance(value, jax.Array):
        typed = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        if value.shape == () if typed else (value.shape, value.dtype) == ((2,), np.uint32):
            return value
    elif isinstance(value, int | np.integer):
        return host_key(whole(name, value, 0, 2**64 - 1))
    raise ValueError(f"{name}: expected a key of jax.random or a seed, found {shown(value)}")


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: expected True or False, found {shown(value)}")
    return bool(value)


def one_of(name: str, value: Any, names: Iterable[str]) -> str:
    """One of several words."""
    names = list(names)
    if not isinstance(value, str) or value not in names:
        expected = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
        raise ValueError(f"{name}: expected {expected}, found {shown(value)}")
    return value


def renamed(**names: str) -> Callable[[F], F]:
    """A decorator: ValueError if an argument is given by its former name, a key of `names`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    raise ValueError(f"`{old}` was renamed; use {new}=...")
            return function(*args, **kwargs)

        return checked  # pyright: ignore[reportReturnType]

    return decorate
