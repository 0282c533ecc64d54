"""What surrounds training: a progress bar, and Ctrl-C that waits for the current update."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bayespg._support.files import printable
from bayespg.runs.store import Run


class Stop:
    """Whether somebody asked to stop."""

    asked = False


@contextlib.contextmanager
def after_this_update() -> Iterator[Stop]:
    """Ctrl-C sets `asked` the first time and interrupts the second."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def record(run: Run | None) -> Iterator[Run | None]:
    """The run, locked while it is written."""
    if run is None:
        yield None
    else:
        with run:
            yield run


class Bar:
    """Shows rows as they come."""

    def __init__(self, progress: Progress | None, begun: int, steps: int):
        self._progress, self._begun = progress, begun
        if progress is not None:
            self._task = progress.add_task("", total=steps, what="compiling")

    def __call__(self, row: dict[str, float]) -> None:
        if self._progress is None:
            return
        what = f"return {row['return']:.1f}  KL {row['divergence']:.3f}"
        self._progress.update(
            self._task, completed=row["steps"] - self._begun,
            description=f"{row['steps']:,.0f} steps", what=what,
        )  # fmt: skip

    def say(self, sentence: str) -> None:
        console = self._progress.console if self._progress is not None else Console()
        console.print(printable(sentence), soft_wrap=True, markup=False, highlight=False)


@contextlib.contextmanager
def bar(begun: int, steps: int, wanted: bool) -> Iterator[Bar]:
    if not wanted:
        yield Bar(None, begun, steps)
        return
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(20), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[what]}"),
    )  # fmt: skip
    with Progress(*columns) as progress:
        yield Bar(progress, begun, steps)
