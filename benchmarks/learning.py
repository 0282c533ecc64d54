"""Environment steps to a threshold, beside Stable-Baselines3.

    python benchmarks/learning.py learn [--tasks ...] [--settings defaults tuned] [--seeds 10]
    python benchmarks/learning.py estimators [--task CartPole-v1] [--episodes 2 4 8 16]
    python benchmarks/learning.py table

`learn` trains every task with one set of defaults for all, and with settings tuned for each (chosen
on other seeds, from 100 on), and appends a line of JSON per finished run to results/ours.jsonl;
`estimators` does the same for every estimator at several batch sizes, all else equal; `table` reads
these and results/rivals.jsonl (benchmarks/rivals/sb3.py). Tasks, evaluations and thresholds are the
rivals': 20 episodes in environments of their own, with the most probable actions and as the policy
explores, after the first update that passes each multiple of the task's interval.
"""

import argparse
import multiprocessing
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  (first, for the thread pool)

from rivals import sb3

from bayespg import compilation
from bayespg.agents import Agent

POLICIES = sb3.POLICIES
DEFAULTS: dict[str, Any] = {"policy": "mlp"}
"""One set for all tasks: the library's own defaults, with a policy that can do them all."""
TUNED: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"policy": "mlp", "limit": 0.02},
    "Acrobot-v1": {"policy": "linear", "episodes": 2, "limit": 0.05},
    "Pendulum-v1": {
        "policy": "mlp", "episodes": 8, "limit": 0.05, "smoothing": 0.9, "discount": 0.95
    },
    "MountainCar-v0": {"policy": "linear", "limit": 0.05},
    "Swimmer-v5": {
        "policy": "linear", "estimator": "bac-returns", "limit": 0.05, "discount": 0.999
    },
}  # fmt: skip
"""Chosen among a dozen settings a task on seeds from 100 on, two to six of them."""
ESTIMATORS = ("bac", "rebase", "gae", "bac-returns", "fitted", "gpomdp", "mc-baseline", "model2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("do", choices=("learn", "estimators", "table"))
    parser.add_argument("--tasks", nargs="+", default=list(TUNED))
    parser.add_argument("--settings", nargs="+", default=["defaults", "tuned"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--episodes", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--steps", type=int, help="train for fewer steps than the task's")
    parser.add_argument("--out", type=Path, default=Path("results/ours.jsonl"))
    parser.add_argument("--rivals", type=Path, default=Path("results/rivals.jsonl"))
    options = parser.parse_args()
    compilation.remember()
    if options.do == "table":
        table(options)
        return
    done = {_key(line) for line in sb3.read(options.out)}
    missing = [
        (task, name, settings, seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for task in options.tasks
        for name, settings in _cases(options, task)
        if (task, name, seed) not in done
    ]
    with alone(options.jobs) as pool:
        started = {
            pool.submit(learn, task, settings, seed, options.steps): name
            for task, name, settings, seed in missing
        }
        for count, finished in enumerate(as_completed(started), 1):
            line = finished.result() | {"settings_name": started[finished]}
            sb3.append(options.out, line)
            met = line["steps_to_threshold"]["stochastic"]
            print(
                f"{count}/{len(missing)}  {line['task']} {line['settings_name']} seed "
                f"{line['seed']}: {met}, {line['train_seconds']:.0f} s", flush=True,
            )  # fmt: skip


def alone(jobs: int) -> ProcessPoolExecutor:
    """Processes with a core and a thread each: sharing cores, JAX's pools slow one another down
    twentyfold."""
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    mine = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    for job in range(jobs):
        cores.put(mine[job % len(mine)] if mine else None)
    return ProcessPoolExecutor(jobs, context, _settle, (cores,))


def _settle(cores: Any) -> None:
    core = cores.get()
    if core is not None:
        os.sched_setaffinity(0, {core})
    os.environ["NPROC"] = "1"
    compilation.remember()


def _cases(options: argparse.Namespace, task: str) -> list[tuple[str, dict[str, Any]]]:
    if options.do == "learn":
        sets = {"defaults": DEFAULTS, "tuned": TUNED.get(task, DEFAULTS)}
        return [(name, sets[name]) for name in options.settings]
    return [
        (f"{estimator}, M = {M}", DEFAULTS | {"estimator": estimator, "episodes": M})
        for M in options.episodes
        for estimator in ESTIMATORS
    ]


def learn(
    task: str, settings: dict[str, Any], seed: int, budget: int | None, every: int | None = None
) -> dict[str, Any]:
    """One run, evaluated along the way; ends where both policies have met every threshold."""
    steps, interval, thresholds = sb3.TASKS[task]
    steps, every = budget or steps, every or interval
    agent = Agent(task, seed=seed, **settings)
    judge = Agent(task, seed=10_000 + seed, **settings | {"episodes": sb3.EPISODES})
    at, seconds = [], 0.0
    found: dict[str, list[float]] = {name: [] for name in POLICIES}

    def evaluate() -> None:
        judge.state = agent.state
        at.append(int(agent.state.steps))
        for name in POLICIES:
            seen = judge.evaluate(sb3.EPISODES, deterministic=name == "deterministic")
            found[name].append(seen.mean)

    def met() -> dict[str, dict[str, int | None]]:
        return {
            name: {f"{t:g}": sb3.steps_to(t, at, found[name]) for t in thresholds}
            for name in POLICIES
        }

    evaluate()
    while int(agent.state.steps) < steps:
        begun = time.perf_counter()
        before = int(agent.state.steps)
        agent.update()
        seconds += time.perf_counter() - begun
        if int(agent.state.steps) // every > before // every:
            evaluate()
            if all(step is not None for each in met().values() for step in each.values()):
                break
    return {
        "task": task, "seed": seed, "budget": steps, "steps_to_threshold": met(),
        "steps": int(agent.state.steps), "updates": int(agent.state.updates),
        "parameters": agent.parameters, "train_seconds": round(seconds, 2), "evaluated_at": at,
        **found, "settings": settings, "versions": {"bayespg": bayespg.__version__},
        "machine": f"{platform.machine()}",
    }  # fmt: skip


def table(options: argparse.Namespace) -> None:
    """Median steps to the threshold over seeds, a run that never met it counted as infinity, with
    a 95 % bootstrap interval; how many met it."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in sb3.read(options.out):
        found.setdefault((line["task"], line["settings_name"]), []).append(line)
    for line in sb3.read(options.rivals):
        found.setdefault((line["task"], line["algorithm"]), []).append(line)
    for task in dict.fromkeys(task for task, _ in found):
        for threshold in (f"{t:g}" for t in sb3.TASKS[task].thresholds):
            print(f"\n{task}, return {threshold}\n")
            print("| | stochastic | deterministic | seeds | met | within |\n|" + "---|" * 6)
            for (of, name), lines in found.items():
                if of != task:
                    continue
                cells = []
                for policy in reversed(POLICIES):
                    steps = [line["steps_to_threshold"][policy][threshold] for line in lines]
                    cells.append(_median(np.array([s or np.inf for s in steps], float)))
                met = sum(
                    line["steps_to_threshold"]["stochastic"][threshold] is not None
                    for line in lines
                )
                print(
                    f"| {name} | {cells[0]} | {cells[1]} | {len(lines)} | {met} "
                    f"| {max(line['budget'] for line in lines):,} |"
                )


def _median(steps: np.ndarray) -> str:
    rng = np.random.default_rng(0)
    draws = np.sort(steps[rng.integers(0, steps.size, (2000, steps.size))], 1)
    medians = draws[:, (steps.size - 1) // 2]
    low, high = np.percentile(medians, (2.5, 97.5), method="nearest")

    def word(x: float) -> str:
        return f"{x:,.0f}" if np.isfinite(x) else "never"

    return f"{word(np.sort(steps)[(steps.size - 1) // 2])} ({word(low)} to {word(high)})"


def _key(line: dict[str, Any]) -> tuple[str, str, int]:
    return line["task"], line["settings_name"], line["seed"]


if __name__ == "__main__":
    main()
