"""What each part of `bayespg.MBAC` is worth, whether its intervals are right, and what it costs.

    python benchmarks/model_parts.py parts [--tasks ...] [--seeds 5] [--first-seed 700]
    python benchmarks/model_parts.py calibration [--tasks ...] [--seeds 3] [--first-seed 800]
    python benchmarks/model_parts.py cold [--tasks ...] [--first-seed 800]
    python benchmarks/model_parts.py memory
    python benchmarks/model_parts.py table    # or calibrated, costs
    python benchmarks/model_parts.py units --out docs/results/model-units.jsonl

`parts` runs `benchmarks/model_based.py` with one part left out or replaced at a time, a process for
each part; `calibration` counts on episodes that are never learned from how many numbers of the
state lie in the 95 % intervals, several steps ahead, after each update; `cold` trains in a new
process of two cores whose cache of compiled programs is empty; `memory` measures the largest memory
of a long run. Each appends lines of JSON to results/model-parts.jsonl; `table`, `calibrated` and
`costs` show them.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import model_based as whole  # isort: skip
import bayespg  # isort: skip
from bayespg._support.random import child, host_key  # isort: skip
from bayespg.agents import judging, mbac, simulated  # isort: skip
from bayespg.models import Model, inside  # isort: skip
from bayespg.models.data import empty  # isort: skip
from bayespg.models.experience import Experience  # isort: skip
from suite import version_of  # isort: skip

OUT = Path("results/model-parts.jsonl")
TASKS = ("Pendulum-v1", "MountainCarContinuous-v0", "Acrobot-v1", "CartPole-v1")
AHEAD = (1, 10, 50)
"""Steps ahead that are predicted."""
UPDATES, EPISODES = 12, 3
"""Updates of `calibration`, and episodes after each."""
UNITS = "the units of all observations so far"
"""How rows of policies in such units are marked."""
LONG = 20_000
"""Steps of `memory`."""


def one_draw() -> None:
    """Each update simulates one draw of the model in place of its mean."""
    mean = Model.environment

    def drawn(self: Model, key: Any = None, **options: Any) -> Any:
        key = jax.random.key(int(self.observed.first_count)) if key is None else key
        return mean(self, key, **options)

    Model.environment = drawn  # pyright: ignore[reportAttributeAccessIssue]


def no_values() -> None:
    """What follows after a simulated episode is cut off counts nothing."""
    whole_episodes = simulated.simulate

    def ended(*given: Any) -> Any:
        paths, phi = whole_episodes(*given)
        return eqx.tree_at(lambda p: p.terminated, paths, jnp.ones_like(paths.terminated)), phi

    simulated.simulate = ended


def one_family(networks: bool) -> Callable[[], None]:
    def patch() -> None:
        Experience._gain = lambda *_: 1.0 if networks else -1.0  # pyright: ignore
        if networks:
            judging.Record.poor = property(lambda _: True)  # pyright: ignore

    return patch


def no_curiosity() -> None:
    """As long as rewards say nothing about states the policy stays as it is."""
    mbac.CURIOSITY = 0.0


def more_than_came() -> None:
    """An update is made only if it promises more than the last real episodes returned."""
    chosen, discounted = mbac.MBAC._chosen, mbac.MBAC._discounted

    def remembered(self: Any, played: Any) -> float:
        self.came = discounted(self, played)
        return self.came

    def strict(self: Any, model: Any, silent: bool, key: Any, again: bool, missed: bool) -> Any:
        best, promises, begun = chosen(self, model, silent, key, again, missed)
        new = promises[: len(promises) // 2]
        enough = new.mean() > self.came + new.std(ddof=1) / np.sqrt(len(new))
        if silent or missed or enough or int(self.state.updates) == 0:
            return best, promises, begun
        return eqx.tree_at(lambda x: x.actor, best, self.state.actor), promises, False

    mbac.MBAC._discounted, mbac.MBAC._chosen = remembered, strict  # pyright: ignore


PARTS: dict[str, Callable[[], None]] = {
    "everything": lambda: None,
    "no persistence": lambda: None,
    "no curiosity": no_curiosity,
    "neither": no_curiosity,
    "one draw of the model": one_draw,
    "no values after the horizon": no_values,
    "regression alone": one_family(False),
    "networks alone": one_family(True),
    "only what promises more than came": more_than_came,
}
NOT_PERSISTENT = "no persistence", "neither"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("do", choices=(*RUNS, *TABLES))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=700)
    parser.add_argument("--seconds", type=float, default=120.0, help="stop a run after these")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.do in TABLES:
        return TABLES[options.do](options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    RUNS[options.do](options)
    return None


def keep(line: dict[str, Any], path: Path) -> None:
    line = line | {"version": bayespg.__version__} | version_of("bayespg")
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    short = {k: v for k, v in line.items() if not isinstance(v, list)}
    print(short, flush=True)


def seeds_of(options: argparse.Namespace) -> range:
    return range(options.first_seed, options.first_seed + options.seeds)


def parts(options: argparse.Namespace) -> None:
    """A process for each part, because compiled programs hold what was left out."""
    for name in options.part:
        if not options.inner:
            given = ["--tasks", *options.tasks, "--seeds", str(options.seeds)]
            given += ["--first-seed", str(options.first_seed), "--seconds", str(options.seconds)]
            words = [sys.executable, __file__, "parts", "--inner", "--part", name, *given]
            subprocess.run([*words, "--out", str(options.out)], check=False)
            continue
        PARTS[name]()
        for task, seed in itertools.product(options.tasks, seeds_of(options)):
            given = {"persistence": 0.0} if name in NOT_PERSISTENT else {}
            budget = whole.budget_of(task, "MBAC")
            line = whole.run(task, seed, budget, limit=options.seconds, given=given)
            keep({"part": name} | line, options.out)


def calibration(options: argparse.Namespace) -> None:
    """The share of numbers of the state inside the intervals, in the mean over episodes after an
    update, for each update."""
    for task, seed in itertools.product(options.tasks, seeds_of(options)):
        agent = bayespg.MBAC(whole.MADE.get(task, task), seed=seed)
        rows, start = [], time.perf_counter()
        while len(rows) < UPDATES and time.perf_counter() - start < options.seconds:
            agent.update()
            rows.append([int(agent.state.steps), *_covered(agent, len(rows))])
        keep({"part": "calibration", "task": task, "seed": seed, "rows": rows}, options.out)


def _covered(agent: bayespg.MBAC, update: int) -> list[float | None]:
    """Episodes with drawn actions and persistence zero."""
    key = child(host_key(update), 5)
    with agent.precision():
        seeds = [1_000_000 + EPISODES * update + k for k in range(EPISODES)]
        paths = agent.world.play(agent.state.acting, key, seeds)
    old = agent.state.data
    real = empty(old.states.shape[1], old.inputs, paths.mask.size).with_paths(paths)
    shares = (inside(agent.model, real, steps) for steps in AHEAD)
    return [None if np.isnan(x) else round(x, 4) for x in shares]


def cold(options: argparse.Namespace) -> None:
    """Wall time of the whole process, imports and compiling included, until the task is solved."""
    if options.inner:
        task, seed = options.tasks[0], options.first_seed
        line = whole.run(task, seed, whole.budget_of(task, "MBAC"), limit=options.seconds)
        print(json.dumps(line | {"megabytes": _megabytes()}))
        return
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    for task in options.tasks:
        words = [sys.executable, __file__, "cold", "--inner", "--tasks", task]
        words += ["--first-seed", str(options.first_seed), "--seconds", str(options.seconds)]
        with tempfile.TemporaryDirectory() as cache:
            start = time.perf_counter()
            environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
            done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE)
            wall = time.perf_counter() - start
        line = json.loads(done.stdout.splitlines()[-1])
        keep({"part": "cold", "wall": round(wall, 1), "cores": len(cores)} | line, options.out)


def memory(options: argparse.Namespace) -> None:
    agent = bayespg.MBAC("Pendulum-v1", seed=options.first_seed)
    rows, start = [], time.perf_counter()
    while int(agent.state.steps) < LONG and time.perf_counter() - start < options.seconds:
        agent.update()
        rows.append([int(agent.state.steps), _megabytes()])
    keep({"part": "memory", "task": "Pendulum-v1", "rows": rows[::10] + rows[-1:]}, options.out)


def _megabytes() -> int:
    """The largest memory that this process has used."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20


RUNS = {"parts": parts, "calibration": calibration, "cold": cold, "memory": memory}


def table(path: Path) -> None:
    """Median steps until a task is solved; never where more than half of the runs were not."""
    lines = [x for x in whole.stored(path) if x["part"] in PARTS]
    tasks = list(dict.fromkeys(x["task"] for x in lines))
    print("| | " + " | ".join(tasks) + " |\n|" + "---|" * (len(tasks) + 1))
    for name in dict.fromkeys(x["part"] for x in lines):
        cells = []
        for task in tasks:
            those = [x for x in lines if (x["part"], x["task"]) == (name, task)]
            solved = whole._solved(those)
            many = f" ({np.isfinite(solved).sum()} of {len(those)})"
            cells.append(whole._steps(np.median(solved)) + many if those else "")
        print(f"| {name} | {' | '.join(cells)} |")


def calibrated(path: Path) -> None:
    """Mean shares inside the intervals: after the first updates, and after later ones."""
    lines = [x for x in whole.stored(path) if x["part"] == "calibration"]
    print("| task | " + " | ".join(f"{n} ahead, first / later" for n in AHEAD) + " |")
    print("|" + "---|" * (len(AHEAD) + 1))
    for task in dict.fromkeys(x["task"] for x in lines):
        rows = [np.array(x["rows"], float)[:, 1:] for x in lines if x["task"] == task]
        first, later = [x[:4] for x in rows], [x[4:] for x in rows]
        early, late = (np.concatenate(x) for x in (first, later))
        cells = (
            " / ".join(f"{np.nanmean(x[:, k]):.2f}" for x in (early, late))
            for k in range(len(AHEAD))
        )
        print(f"| {task} | {' | '.join(cells)} |")


def costs(path: Path) -> None:
    """Seconds of wall time on two cores with no compiled program at hand."""
    print("| task | steps | whole process, s | first update, s | later updates, s | memory, MB |")
    print("|" + "---|" * 6)
    for x in whole.stored(path):
        if x["part"] == "cold":
            later = [row[-1] for row in x["real_promised_came_ahead_seconds"][1:]]
            print(
                f"| {x['task']} | {x['steps'][-1]:,} | {x['wall']:.0f} | {x['first_seconds']:.1f} "
                f"| {np.median(later):.2f} | {x['megabytes']:,} |"
            )


def units(path: Path) -> None:
    """Median steps of policies that saw observations in units of all of them so far, and of those
    that kept their own, from the same seeds."""
    old = [x for x in whole.stored(path) if x["variant"] == UNITS]
    new = whole.stored(path.with_name("model-based.jsonl"))
    print("| task | seeds | units of all observations | solved | its own units | solved |")
    print("|" + "---|" * 6)
    for task in dict.fromkeys(x["task"] for x in old):
        sides = [
            {x["seed"]: x for x in lines if (x["task"], x["algorithm"]) == (task, "MBAC")}
            for lines in (old, new)
        ]
        seeds = sorted(set.intersection(*map(set, sides)))
        if seeds:
            solved = [whole._solved([side[k] for k in seeds]) for side in sides]
            cells = (f"{whole._steps(np.median(x))} | {np.isfinite(x).sum()}" for x in solved)
            print(f"| {task} | {len(seeds)} | {' | '.join(cells)} |")


TABLES = {"table": table, "calibrated": calibrated, "costs": costs, "units": units}

if __name__ == "__main__":
    main()
