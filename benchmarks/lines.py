"""Benchmarks that measure one line of JSON after the other: what their commands share."""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rivals import sb3

Line = dict[str, Any]


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Iterable[Line]],
    table: Callable[[list[Line]], str],
) -> None:
    """Print each line that is measured, and append it to the file `--out` as it comes; `--table`
    prints the table of such files instead."""
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of finished files")
    options = parser.parse_args()
    if options.table:
        print(table([line for path in options.table for line in sb3.read(path)]))
        return
    for line in measure(options):
        print(json.dumps(line), flush=True)
        if options.out:
            sb3.append(options.out, line)
