"""Ctrl-C while the command is still being imported.

JAX takes seconds to import, and Ctrl-C during an import prints a traceback. Nothing has been
written by then, so the command exits at once, with a short message and the exit code of an
interrupt. A program that imports the library keeps its own handler.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

INTERRUPTED = 130
"""The exit code of Ctrl-C: 128 and the number of SIGINT."""


def running() -> bool:
    """Whether this process is `bayespg` or `python -m bayespg`."""
    if sys.argv[:1] == ["-m"]:  # its value while Python imports the package of a module
        return ("-m", "bayespg") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return bool(sys.argv) and Path(sys.argv[0]).stem == "bayespg"


def begin() -> None:
    """From here on Ctrl-C exits at once, if this process is the command."""
    if (
        running()
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _leave)


def ready() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: Any) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)
