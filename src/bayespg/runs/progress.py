"""A progress bar, and Ctrl-C that waits for the current update."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bayespg._support.files import printable
from bayespg.runs.columns import ON_BAR, Column


class Stop:
    """Whether Ctrl-C was pressed."""

    asked = False


@contextlib.contextmanager
def after_this_update() -> Iterator[Stop]:
    """The first Ctrl-C sets `asked`; the second interrupts."""
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


class Bar:
    """Shows the newest row of a run."""

    def __init__(self, progress: Progress, begun: int, steps: int):
        self._progress, self._begun = progress, begun
        self._task = progress.add_task("", total=steps, what="compiling")

    def __call__(self, row: dict[str, float]) -> None:
        steps, what = row[Column.STEPS], "  ".join(f"{c} {c.show(row[c])}" for c in ON_BAR)
        self._progress.update(
            self._task, completed=steps - self._begun, description=f"{steps:,.0f} steps", what=what
        )

    def say(self, sentence: str) -> None:
        self._progress.console.print(
            printable(sentence), soft_wrap=True, markup=False, highlight=False
        )


@contextlib.contextmanager
def bar(begun: int, steps: int, wanted: bool) -> Iterator[Bar]:
    """A progress bar for `steps` steps, drawn only if `wanted`."""
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(20), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[what]}"),
    )  # fmt: skip
    progress = Progress(*columns, disable=not wanted)
    with progress if wanted else contextlib.nullcontext():
        yield Bar(progress, begun, steps)
