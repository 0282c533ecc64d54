"""Speed and memory, as ratios against a rival in the same run.

    python benchmarks/run.py [name ...] [--quick] [--markdown] [--out results/benchmarks.json]

Names are lqr, line-search, start, training, normals, scaling and actor-critic; none means all.
Runs on whatever device JAX finds.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # see the end of README.md
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import actor_critic
import jax
import line_search
import lqr_optimisation
import normals
import scaling
import start
import training
from measure import show

from bayespg._support import threads

BENCHMARKS = {
    "lqr": lqr_optimisation.run,
    "line-search": line_search.run,
    "start": start.run,
    "training": training.run,
    "normals": normals.run,
    "scaling": scaling.run,
    "actor-critic": actor_critic.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="smaller sizes, some minutes")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks.json"))
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")

    report = machine() | {"quick": options.quick, "tables": {}}
    print(", ".join(f"{k} {v}" for k, v in report.items() if isinstance(v, str | int)), flush=True)
    for name in options.names or BENCHMARKS:
        begun = time.perf_counter()
        tables = BENCHMARKS[name](options.quick)
        for table in tables:
            show(table, options.markdown)
        print(f"({name}: {time.perf_counter() - begun:.0f} s)\n", flush=True)
        report["tables"][name] = [table._asdict() for table in tables]
        write(options.out, report)
    print(f"written to {options.out}")


def machine() -> dict:
    packages = ("jax", "jaxlib", "equinox", "optax", "lineax", "numpy", "scipy")
    return {
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "host": platform.machine(),
        "cores": threads.cores(),
        "NPROC": os.environ.get("NPROC", "unset"),
        "OPENBLAS_NUM_THREADS": os.environ["OPENBLAS_NUM_THREADS"],
    }


def write(path: Path, report: dict) -> None:
    """All or nothing: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report, indent=1))
    os.replace(part, path)


if __name__ == "__main__":
    main()
