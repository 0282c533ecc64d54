"""Benchmarks that measure one line of JSON after the other: what their commands share."""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rivals import sb3

read = sb3.read
Line = dict[str, Any]


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Iterable[Line]],
    table: Callable[[Path], str],
) -> None:
    """Print each line that is measured, and append it to the file `--out` as it comes; `--table`
    prints the table of such a file instead."""
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    parser.add_argument("--table", type=Path, help="print the table of a finished file and exit")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    for line in measure(options):
        print(json.dumps(line), flush=True)
        if options.out:
            sb3.append(options.out, line)
