"""Benchmarks that measure one line of JSON after the other: what their commands share."""

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
from rivals import sb3

Line = dict[str, Any]


def machine() -> Line:
    """Where a line was measured."""
    return {
        "device": jax.devices()[0].device_kind, "cores": os.cpu_count(),
        "machine": platform.machine(), "jax": jax.__version__,
    }  # fmt: skip


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Iterable[Line]],
    table: Callable[[list[Line]], str],
    draw: Callable[[list[Line]], Any] | None = None,
) -> None:
    """Print each line that is measured, and append it to the file `--out` as it comes; `--table`
    prints the table of such files instead, and `--picture` writes what `draw` makes of them."""
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of finished files")
    if draw is not None:
        parser.add_argument("--picture", type=Path, help="with --table, write the figure here")
    options = parser.parse_args()
    if options.table:
        found = [line for path in options.table for line in sb3.read(path)]
        print(table(found))
        if draw is not None and options.picture:
            draw(found).savefig(options.picture)
        return
    for line in measure(options):
        print(json.dumps(line), flush=True)
        if options.out:
            sb3.append(options.out, line)
