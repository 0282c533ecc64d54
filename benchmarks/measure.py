"""Stopwatch, memory and tables: what the benchmarks share."""

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np


class Timing(NamedTuple):
    """Seconds of the best repetition."""

    wall: float
    cpu: float
    """Summed over the threads of this process: less disturbed by other jobs than the wall clock."""

    @property
    def work(self) -> float:
        """What to compare stages by: CPU time, or on an accelerator the wall clock."""
        return self.cpu if on_cpu() else self.wall


def once(function: Callable[[], Any]) -> tuple[Timing, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    answer = jax.block_until_ready(function())
    return Timing(time.perf_counter() - wall, time.process_time() - cpu), answer


def fastest(timings: Iterable[Timing]) -> Timing:
    """The least wall time and the least CPU time."""
    return Timing(*(min(column) for column in zip(*timings, strict=True)))


def best_of(repetitions: int, function: Callable[[], Any]) -> Timing:
    """Warm up (and compile) once, then repeat; once only what takes longer than five seconds."""
    warm, _ = once(function)
    return fastest(once(function)[0] for _ in range(1 if warm.wall > 5 else repetitions))


_compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: (
        _compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """A list that holds one entry for each program XLA compiled inside."""
    before, found = len(_compiled), []
    yield found
    found.extend(_compiled[before:])


def on_cpu() -> bool:
    return jax.default_backend() == "cpu"


def peak_memory() -> float:
    """MB the process, or where there is one the accelerator, has held at most; it never falls."""
    if on_cpu():
        unit = 1e6 if sys.platform == "darwin" else 1e3
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use", float("nan")) / 1e6


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent a of y = c x^a, by least squares on logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


class Table(NamedTuple):
    """Cells are numbers or text; `notes` are sentences under the table."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    notes: list[str]

    def text(self) -> list[list[str]]:
        return [[_cell(cell) for cell in row] for row in self.rows]


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(table: Table, markdown: bool = False) -> None:
    """A rich table, or Markdown where that is asked for or rich is missing."""
    if not markdown:
        try:
            from rich import box
            from rich.console import Console
            from rich.table import Table as Rich
        except ImportError:
            markdown = True
    if markdown:
        print(f"\n### {table.title}\n")
        for row in (table.columns, ["---"] * len(table.columns), *table.text()):
            print("| " + " | ".join(row) + " |")
        print("\n" + "\n".join(table.notes), flush=True)
        return
    rich = Rich(title=table.title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for k, name in enumerate(table.columns):
        rich.add_column(name, justify="left" if k == 0 else "right")
    for row in table.text():
        rich.add_row(*row)
    console = Console()
    console.width = max(console.width, 120)
    console.print(rich)
    for note in table.notes:
        console.print(note, style="dim", highlight=False)
