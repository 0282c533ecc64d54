"""How training shows where it stands, and Ctrl-C that waits for the current update.

A terminal shows a bar. A notebook shows one line that changes, without further packages. A file or
a pipe gets a line every few seconds, so that the log of a job says how far it is.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Console
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


EVERY = 5.0
"""Seconds between two lines in a file."""
WIDTH = 20
"""Characters of a bar."""


class Goal(NamedTuple):
    """How much training is asked for, in steps or in episodes, and where the count began."""

    amount: int
    begun: int = 0
    counted: Column = Column.STEPS
    of: str = ""
    """Said in front, where there are several runs."""

    def done(self, row: dict[str, float]) -> float:
        """How many of them the run with this newest row has made."""
        return row[self.counted] - self.begun

    def share(self, row: dict[str, float]) -> float:
        return min(self.done(row) / self.amount, 1.0)

    def reached(self, row: dict[str, float]) -> str:
        return f"{self.of}{row[self.counted]:,.0f} {self.counted}"


class Display:
    """What training calls with the row of each update and with sentences. It shows no rows."""

    console: Console | None = None
    """Where sentences appear, if not on the standard output."""

    def __call__(self, row: dict[str, float]) -> None:
        return

    def say(self, sentence: str) -> None:
        console = self.console or Console()
        console.print(printable(sentence), soft_wrap=True, markup=False, highlight=False)


def _summary(row: dict[str, float]) -> str:
    return "  ".join(f"{c} {c.show(row[c])}" for c in ON_BAR if not math.isnan(row[c]))


class Bar(Display):
    """Shows the newest row of a run as a bar on a terminal."""

    def __init__(self, progress: Progress, goal: Goal):
        self._progress, self._goal, self.console = progress, goal, progress.console
        self._task = progress.add_task("", total=goal.amount, what="compiling")

    def __call__(self, row: dict[str, float]) -> None:
        self._progress.update(
            self._task, completed=self._goal.done(row), description=self._goal.reached(row),
            what=_summary(row),
        )  # fmt: skip


class Lines(Display):
    """Shows rows as lines of text: the first, one every few seconds, and the last. With `overwrite`
    each line replaces the previous one by a carriage return, as notebooks show it."""

    def __init__(self, goal: Goal, *, overwrite: bool = False, every: float = EVERY):
        self._goal, self._overwrite = goal, overwrite
        self._every, self._last, self._row = every, -every, None
        self._since, self._begun_line = time.monotonic(), False

    def __call__(self, row: dict[str, float]) -> None:
        self._row = row
        if time.monotonic() - self._last >= self._every:
            self._print(row)

    def _print(self, row: dict[str, float]) -> None:
        self._last, self._row = time.monotonic(), None
        share = self._goal.share(row)
        text = f"{self._goal.reached(row)}  {share:4.0%}  {_summary(row)}"
        self._begun_line = True
        if self._overwrite:
            bar = "#" * round(WIDTH * share)
            print(f"\r[{bar:<{WIDTH}}] {text:<60}", end="", flush=True)
        else:
            print(f"{text}  {self._last - self._since:,.0f} s", flush=True)

    def end(self) -> None:
        """Print the last row, if it is not there yet."""
        if self._row is not None:
            self._print(self._row)
        if self._overwrite and self._begun_line:
            print(flush=True)
            self._begun_line = False

    def say(self, sentence: str) -> None:
        self.end()
        super().say(sentence)


@contextlib.contextmanager
def bar(goal: Goal, wanted: bool) -> Iterator[Display]:
    """What shows the way to the goal where this process writes to; nothing unless `wanted`."""
    if not wanted:
        yield Display()
        return
    console = Console()
    notebook = console.is_jupyter
    if notebook or not console.is_terminal:
        lines = Lines(goal, overwrite=notebook, every=0.5 if notebook else EVERY)
        try:
            yield lines
        finally:
            lines.end()
        return
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(WIDTH), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[what]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, goal)
