"""Environment steps to a threshold, compared with Stable-Baselines3.

    python benchmarks/learning.py learn [--tasks ...] [--seeds 10] [--tuned | --set limit=0.02 ...]
    python benchmarks/learning.py estimators [--tasks CartPole-v1] [--episodes 2 4 8 16]
    python benchmarks/learning.py table
    python benchmarks/learning.py kept
    python benchmarks/learning.py compare

`learn` trains every task with the defaults of the library, the same for all, with others where
`--set` says so, or (`--tuned`) those that have them with the settings of `bayespg.tuned`. It
appends a line of JSON per finished run to results/ours.jsonl; `table` reads these and
results/rivals.jsonl (benchmarks/rivals/sb3.py). Tasks, evaluations and thresholds are the
rivals': 20 episodes in environments of their own, with the most probable actions and as the policy
explores, after the first update that passes each multiple of the task's interval. Seconds are those
of training, until both have met every threshold or to the end. With `--whole` runs go on where they
meet their thresholds, and `kept` shows whether they keep what they learned.

`estimators` trains the same linear policy with every estimator, at several batch sizes and at each
of the same Kullback-Leibler limits, and keeps the returns of its batches in
results/estimators.jsonl; `compare` shows each with the limit that suited it best, and draws the
curves beside the file.
"""

import argparse
import functools
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  (first, for the thread pool)

from rivals import sb3

from bayespg._support import together
from bayespg.agents.agent import Agent
from bayespg.agents.tuned import TUNED
from bayespg.runs import plots

POLICIES = sb3.POLICIES
ESTIMATORS = ("bac", "bac-returns", "rebase", "gae", "fitted", "gpomdp", "mc-baseline", "enac",
              "model1", "model2")  # fmt: skip
LIMITS = (0.01, 0.03)
LOOKS = ("ours", "BAC", "BQ variant", "compatible", "MC, fitted values", "GPOMDP", "MC", "eNAC",
         "BQ natural", "ours exact")  # fmt: skip
COMPARED, KEPT = 30_000, 500
"""Steps of a run that compares estimators, and from one point of its curve to the next."""


POINTS = 15
"""Evaluations of a run that is trained for all its steps."""
DO = ("learn", "table", "kept", "estimators", "compare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("do", choices=DO)
    parser.add_argument("--tasks", nargs="+", help="all; for estimators CartPole-v1")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--episodes", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--set", nargs="+", metavar="NAME=VALUE", help="instead of defaults")
    parser.add_argument("--tuned", action="store_true", help="learn with bayespg.tuned's settings")
    parser.add_argument("--steps", type=int, help="train for fewer steps than the task's")
    parser.add_argument("--whole", action="store_true", help="go on where thresholds are met")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--out", type=Path, help="results/ours.jsonl or results/estimators.jsonl")
    parser.add_argument("--rivals", type=Path, default=Path("results/rivals.jsonl"))
    options = parser.parse_args()
    learns = options.do in ("learn", "table", "kept")
    options.out = options.out or Path("results") / f"{'ours' if learns else 'estimators'}.jsonl"
    options.tasks = options.tasks or (list(sb3.TASKS) if learns else ["CartPole-v1"])
    match options.do:
        case "table":
            print(table(options.out, options.rivals))
        case "kept":
            kept(options)
        case "compare":
            compare(options)
        case _:
            work(options)


def work(options: argparse.Namespace) -> None:
    """All runs that are not in the file yet."""
    run, cases = train, _estimators
    if options.do == "learn":
        run, cases = functools.partial(learn, whole=options.whole), _defaults
    done = {_key(line) for line in sb3.read(options.out)}
    missing = [
        (task, name, settings, seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for task in options.tasks
        for name, settings in cases(options, task)
        if (task, name, seed) not in done
    ]
    runs = {
        f"{task} {name} seed {seed}": (run, task, name, settings, seed, options.steps)
        for task, name, settings, seed in missing
    }
    # A core and a thread each: JAX's thread pools that share cores slow one another down.
    finished = together.run(runs, _one, options.jobs, lambda *said: None)
    for count, (name, line) in enumerate(finished, 1):
        sb3.append(options.out, line)
        print(f"{count}/{len(missing)}  {name}: {line['news']}", flush=True)


def _one(
    label: str, run: Any, task: str, name: str, settings: dict[str, Any], seed: int,
    steps: int | None, advance: Any,
) -> dict[str, Any]:  # fmt: skip
    """In a process of its own."""
    return run(task, settings, seed, steps) | {"task": task, "settings_name": name, "seed": seed}


def _defaults(options: argparse.Namespace, task: str) -> list[tuple[str, dict[str, Any]]]:
    if options.tuned:
        return [("tuned", TUNED[task].settings)] if task in TUNED else []
    if options.set:
        given = {k: json.loads(v) for k, v in (pair.split("=") for pair in options.set)}
        return [(", ".join(f"{k} {v}" for k, v in given.items()), given)]
    return [("defaults", {})]


def _estimators(options: argparse.Namespace, task: str) -> list[tuple[str, dict[str, Any]]]:
    shared = {"policy": "linear"}
    return [
        (
            f"{estimator}, M = {M}, {limit}",
            shared | {"estimator": estimator, "episodes": M, "limit": limit},
        )
        for M in options.episodes
        for estimator in ESTIMATORS
        for limit in LIMITS
    ]


def train(task: str, settings: dict[str, Any], seed: int, budget: int | None) -> dict[str, Any]:
    """One run of a linear policy: the mean return of every batch."""
    agent, budget = Agent(task, "linear", seed=seed, **settings), budget or COMPARED
    steps, returns, begun = [], [], time.perf_counter()
    while not steps or steps[-1] < budget:
        row = agent.update()
        steps.append(int(row["steps"]))
        returns.append(round(row["return"], 2))
    mean = float(np.interp(np.arange(0, budget, 100), steps, returns).mean())
    curve = np.interp(np.arange(0, budget + 1, KEPT), steps, returns)
    return {
        "settings": settings, "budget": budget, "mean": round(mean, 3),
        "curve": curve.round(1).tolist(),
        "news": f"{mean:.1f}, {time.perf_counter() - begun:.0f} s",
    }  # fmt: skip


def learn(
    task: str, settings: dict[str, Any], seed: int, budget: int | None, whole: bool = False,
    every: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One run, evaluated along the way; unless it is to be the `whole` run, it ends where both
    policies have met every threshold."""
    steps, interval, thresholds = sb3.ALL[task]
    steps = budget or steps
    every = every or (steps // POINTS if whole else interval)
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
            done = all(step is not None for each in met().values() for step in each.values())
            if done and not whole:
                break
    return {
        "budget": steps, "steps_to_threshold": met(), "news": str(met()["stochastic"]),
        "steps": int(agent.state.steps), "updates": int(agent.state.updates),
        "parameters": agent.parameter_count, "train_seconds": round(seconds, 2), "evaluated_at": at,
        **found, "settings": settings, "versions": {"bayespg": bayespg.__version__},
        "machine": f"{platform.machine()}",
    }  # fmt: skip


def table(ours: Path, rivals: Path) -> str:
    """Median steps to the threshold over seeds, a run that never met it counted as infinity, with
    a 95 % bootstrap interval; median seconds; how many met it. One table for each threshold."""
    found, rows = _stored(ours, rivals), []
    for task, threshold in ((t, f"{x:g}") for t in sb3.ALL for x in sb3.ALL[t].thresholds):
        if not any(of == task for of, _ in found):
            continue
        rows += ["", f"**{task}, return {threshold}**", ""]
        rows += ["| | stochastic | deterministic | seconds | seeds | met | within |"]
        rows += ["|" + "---|" * 7]
        for name, lines in ((name, lines) for (of, name), lines in found.items() if of == task):
            cells = [name]
            for policy in reversed(POLICIES):
                steps = [line["steps_to_threshold"][policy][threshold] for line in lines]
                cells.append(_median([np.inf if s is None else s for s in steps]))
            met = [line["steps_to_threshold"]["stochastic"][threshold] for line in lines]
            cells += [
                f"{np.median([line['train_seconds'] for line in lines]):,.0f}", str(len(lines)),
                str(len(met) - met.count(None)), f"{max(line['budget'] for line in lines):,}",
            ]  # fmt: skip
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows[1:])


def kept(options: argparse.Namespace) -> None:
    """Returns at the end of whole runs, and how many runs keep what they learned: the mean of their
    last three evaluations is near the best such mean (`sb3.kept`)."""
    print("| | median return at the end | worst | kept | seeds | steps |\n|" + "---|" * 6)
    for (task, name), lines in _ours(options.out).items():
        last, held = [], 0
        for line in lines:
            last.append(np.mean(line["stochastic"][-3:]))
            held += sb3.kept(line["stochastic"])
        print(
            f"| {task}, {name} | {np.median(last):.0f} | {min(last):.0f} | {held} | {len(lines)} "
            f"| {lines[0]['budget']:,} |"
        )


def _ours(file: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Our runs, by task and name."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in sb3.read(file):
        found.setdefault((line["task"], line["settings_name"]), []).append(line)
    return found


def _stored(ours: Path, rivals: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Our runs and the rivals', by task and name."""
    found = _ours(ours)
    for line in sb3.read(rivals):
        found.setdefault((line["task"], line["algorithm"]), []).append(line)
    return found


def compare(options: argparse.Namespace) -> None:
    """Mean return over the steps of a run, mean and standard error over seeds, for each estimator
    with its better limit."""
    found: dict[tuple[str, str, int], dict[float, list[dict[str, Any]]]] = {}
    for line in sb3.read(options.out):
        s = line["settings"]
        key = (line["task"], s["estimator"], s["episodes"])
        found.setdefault(key, {}).setdefault(s["limit"], []).append(line)
    for task in dict.fromkeys(key[0] for key in found):
        sizes = sorted({M for of, _, M in found if of == task})
        print(f"\n{task}\n\n| | " + " | ".join(f"M = {M}" for M in sizes) + " |")
        print("|" + "---|" * (len(sizes) + 1))
        for name in ESTIMATORS:
            cells = []
            for M in sizes:
                limit, lines = _better(found.get((task, name, M), {}))
                best = np.array([line["mean"] for line in lines])
                error = best.std(ddof=1) / np.sqrt(best.size) if best.size > 1 else np.nan
                cells.append(f"{best.mean():.0f} ± {error:.0f} ({limit:g})" if best.size else "")
            print(f"| {name} | " + " | ".join(cells) + " |")
        _draw(task, sizes, found, options.out.with_name(f"{options.out.stem}-{task}.png"))


def _better(by_limit: dict[float, list[dict[str, Any]]]) -> tuple[float, list[dict[str, Any]]]:
    """The limit whose runs return most, and the runs."""
    rank = {limit: np.mean([line["mean"] for line in of]) for limit, of in by_limit.items()}
    limit = max(rank, key=rank.__getitem__, default=np.nan)
    return limit, by_limit.get(limit, [])


def _draw(task: str, sizes: list[int], found: dict, path: Path) -> None:
    with plots.styled():
        rows = -(-len(sizes) // 2)
        figure, axes = plots.sheet(rows, 2, width=9, height=3.1 * rows + 0.4, sharey=True)
        for axis, M in zip(axes.flat, sizes, strict=False):
            for name, look in zip(ESTIMATORS, LOOKS, strict=True):
                _, lines = _better(found.get((task, name, M), {}))
                if lines:
                    curves = np.array([line["curve"] for line in lines])
                    x = KEPT / 1000 * np.arange(curves.shape[1])
                    plots.curve(
                        axis, x, curves.mean(0), label=name, look=look, markers=False,
                        band=plots.bootstrap(curves),
                    )  # fmt: skip
            axis.set(title=f"{M} episodes per update", xlabel="thousand steps")
        for axis in axes[:, 0]:
            axis.set_ylabel("return of the batch")
        plots.legend_below(figure, axes[0, 0], 5)
        plots.save(figure, path)
    print(f"\nCurves: {path}")


def _median(found: list[float]) -> str:
    """The median, the mean of the middle two where their number is even, with a 95 % bootstrap
    interval; infinity, a run that never met the threshold, reads "never"."""
    steps, rng = np.array(found, float), np.random.default_rng(0)
    medians = np.median(steps[rng.integers(0, steps.size, (2000, steps.size))], 1)
    low, high = np.percentile(medians, (2.5, 97.5), method="nearest")

    def word(x: float) -> str:
        return f"{x:,.0f}" if np.isfinite(x) else "never"

    if np.isinf(low):
        return "never"
    return f"{word(float(np.median(steps)))} ({word(low)} to {word(high)})"


def _key(line: dict[str, Any]) -> tuple[str, str, int]:
    return line["task"], line["settings_name"], line["seed"]


if __name__ == "__main__":
    import learning  # by its name, under which other processes find its functions

    learning.main()
