"""A page that shows a run while it trains.

It is a file that is rewritten every few seconds and reloads itself: no server, no port and no
further package, and it can be looked at over a shared folder. TensorBoard has more to choose from,
and `--tensorboard` writes for it; it needs a package and a process of its own.
"""

import time
from pathlib import Path
from typing import Any

from bayespg.runs import overview

EVERY = 5.0
"""Seconds between two versions of the page, at the least."""
SHARE = 0.05
"""Share of the time that may be spent on drawing."""


class Live:
    """A callback of `learn` that keeps the page of a run up to date."""

    def __init__(self, folder: Path, page: Path):
        self.folder, self.page = folder, page
        self._next = 0.0

    def __call__(self, agent: Any, row: dict[str, float]) -> None:
        if time.monotonic() >= self._next:
            begun = time.monotonic()
            self._write(round(EVERY))
            took = time.monotonic() - begun
            self._next = time.monotonic() + max(EVERY, took / SHARE)

    def end(self, agent: Any) -> None:
        """The last version, which does not reload itself."""
        self._write(None)

    def _write(self, reload: int | None) -> None:
        overview.write([self.folder], self.page, reload=reload)
