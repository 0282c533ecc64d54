"""The version of this package."""

__version__ = "0.3.0"


def with_jax() -> str:
    """The versions of this package and of JAX, which is not imported for it."""
    import importlib.metadata

    return f"bayespg {__version__}, JAX {importlib.metadata.version('jax')}"
