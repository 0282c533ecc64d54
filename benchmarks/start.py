"""How long a user waits: from `import bayespg` to the first update, and for `bayespg --version`.

Each in processes of its own.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Table, Timing

SOURCE = Path(__file__).parents[1] / "src"
REPETITIONS = 3
TASKS = ("CartPole-v1", "Pendulum-v1")
"""Choices and continuous actions, whose default policies differ."""
CHILD = """
import json, sys, time
begun, times = time.perf_counter(), []

def passed():
    times.append(time.perf_counter() - begun)

import bayespg
bayespg.BAC
import jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
passed()
agent = bayespg.BAC(sys.argv[2], seed=0)
passed()
agent.update()
passed()
print(json.dumps([*times, time.process_time()]))
"""


def run(quick: bool) -> list[Table]:
    return [_first(1 if quick else REPETITIONS), _version(1 if quick else REPETITIONS)]


def _first(repetitions: int) -> Table:
    rows = []
    kinds = (("nothing cached", False), ("compiled programs cached", True))
    for task, (name, cached) in itertools.product(TASKS, kinds):
        found = []
        with tempfile.TemporaryDirectory() as folder:
            if cached:
                _python("-c", CHILD, folder, task)
            for k in range(repetitions):
                cache = folder if cached else os.path.join(folder, str(k))
                found.append(json.loads(_python("-c", CHILD, cache, task)[1].splitlines()[-1]))
        imported, made, updated, cpu = min(found, key=lambda times: times[2])
        rows.append([task, name, imported, made - imported, updated - made, updated, cpu])
    return Table(
        "Time to the first update, default policies",
        ["task", "", "import s", "agent s", "first update s", "together s", "CPU s"],
        rows,
        [f"Seconds of each part, in a separate process, the fastest of {repetitions}; CPU: of all "
         "threads, the start of Python included. Agents and the command line keep compiled "
         "programs under ~/.cache/bayespg."],
    )  # fmt: skip


def _version(repetitions: int) -> Table:
    timings = [_python("-m", "bayespg", "--version")[0] for _ in range(repetitions)]
    best = min(timings)
    return Table("bayespg --version", ["", "s", "CPU s"], [["a new process", *best]], [])


def _python(*arguments: str) -> tuple[Timing, str]:
    """What a new process of Python took, and what it said. Modules are compiled to bytecode, as an
    installed package's are."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, timeout=600, check=True, env=environment,
    )  # fmt: skip
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall, cpu), done.stdout
