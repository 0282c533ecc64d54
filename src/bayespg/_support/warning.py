"""Warnings that point to the line of the caller's program."""

import sys
import warnings

BETWEEN = (
    "bayespg", "beartype", "click", "contextlib", "equinox", "importlib", "jax", "jaxtyping",
    "typer",
)  # fmt: skip
"""Packages whose frames may lie between a warning and the line that the user wrote."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, with the file and line of the innermost frame outside of this package.

    How many frames lie between depends on how the package was called, so that no fixed `stacklevel`
    is right; and `skip_file_prefixes` of `warnings.warn` needs Python 3.12.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in BETWEEN:
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
