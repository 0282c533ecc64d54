"""Real steps to a threshold with a learned model of the task: `bayespg.MBAC`.

    python benchmarks/model_based.py run [--tasks ...] [--seeds 10] [--first-seed 100]
    python benchmarks/model_based.py run --tasks LQR MountainCar ShipSteering [--algorithm BAC]
    python benchmarks/model_based.py run --tasks CartPole-v1 --algorithm useless    # or noise
    python benchmarks/model_based.py table
    python benchmarks/model_based.py ends

LQR, MountainCar and ShipSteering are the tasks of the paper. With `--algorithm useless` MBAC's
model learns from transitions whose following states were shuffled, with `noise` from rewards that
are random numbers: it must fall back to BAC.

After every update the policy is evaluated on 20 episodes that it does not learn from, with the most
probable actions. A task is solved at the first of two evaluations in a row that reach its
threshold; the steps of evaluations are not counted. `run` appends a line of JSON per run to
results/model-based.jsonl, `table` shows the medians, a run that was never solved counted as
infinity and one that `--seconds` cut short left out; `ends` shows where runs ended on tasks that
are hard for the model or hide velocities.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  (first, for the thread pool)
from bayespg.agents import mbac  # isort: skip
from bayespg.learning.advance import NotFinite  # isort: skip
from paper_tasks import LQR, MountainCar, ShipSteering  # isort: skip

RIVALS = Path(__file__).parents[1] / "docs" / "results" / "rivals.jsonl"
SAC = RIVALS.with_name("suite-sac.jsonl")
EPISODES, ROW = 20, 2
"""Episodes per evaluation, and evaluations in a row that must pass."""


class Task(NamedTuple):
    threshold: float
    budget: int
    """Real steps."""


TASKS = {
    "Pendulum-v1": Task(-200, 6_000),
    "MountainCarContinuous-v0": Task(90, 6_000),
    "Acrobot-v1": Task(-100, 6_000),
    "MountainCar-v0": Task(-110, 10_000),
    "CartPole-v1": Task(475, 8_000),
    "InvertedPendulum-v5": Task(950, 10_000),
    "LQR": Task(-0.35, 10_000),
    "MountainCar": Task(-75, 30_000),
    "ShipSteering": Task(0.5, 60_000),
    "CartPole-v1 without velocities": Task(np.inf, 5_000),
    "Pendulum-v1 without velocity": Task(np.inf, 12_000),
    "Reacher-v5": Task(-6, 15_000),
    "InvertedDoublePendulum-v5": Task(9_000, 15_000),
    "Hopper-v5": Task(1_000, 20_000),
    "HalfCheetah-v5": Task(1_000, 20_000),
    "Swimmer-v5": Task(100, 20_000),
}
OPEN = tuple(list(TASKS)[-7:])
"""Tasks on which runs may end unsolved."""
EARLIER = (
    "MBAC, first runs", "MBAC, moving or anew", "MBAC, always moving", "MBAC, not exploring",
    "MBAC, cold start",
)  # fmt: skip
"""Runs of earlier commits. The first ones were of the same learner as the ten seeds of "MBAC";
before, the policy moved at every update, whether or not it returned more in simulated episodes; nor
did it begin again where promises were not kept; nor did the model explore where rewards are the
cost of actions. A "cold start" finds no compiled programs."""
USELESS = ("useless", "noise")
LATE = ("MBAC, given up late", "useless, given up late", "noise, given up late")
"""Runs of an earlier commit, when a model was given up after twenty updates without more reward."""
ALGORITHMS = ("MBAC", *EARLIER, *USELESS, *LATE, "BAC", "BAC, beside useless")


class Seen(gymnasium.ObservationWrapper):
    """Some numbers of the observation."""

    def __init__(self, task: str, kept: list[int]):
        super().__init__(gymnasium.make(task))
        whole: Any = self.env.observation_space
        self.kept = kept
        self.observation_space = gymnasium.spaces.Box(whole.low[kept], whole.high[kept])

    def observation(self, observation):
        return observation[self.kept]


MADE = {
    "LQR": LQR,
    "MountainCar": MountainCar,
    "ShipSteering": ShipSteering,
    "CartPole-v1 without velocities": functools.partial(Seen, "CartPole-v1", [0, 2]),
    "Pendulum-v1 without velocity": functools.partial(Seen, "Pendulum-v1", [0, 1]),
}
"""The other names are those of Gymnasium."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("do", choices=("run", "table", "ends"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--algorithm", choices=("MBAC", "BAC", *USELESS), default="MBAC")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, help="real steps; the task's own")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop a run after these")
    parser.add_argument("--verbose", action="store_true", help="a line per update")
    parser.add_argument("--out", type=Path, default=Path("results/model-based.jsonl"))
    options = parser.parse_args()
    if options.do != "run":
        return (table if options.do == "table" else ends)(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            budget = options.budget or TASKS[task].budget
            line = run(task, seed, budget, options.algorithm, options.verbose, options.seconds)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(task, seed, line["solved"], f"{line['seconds']:.0f} s", flush=True)
    return None


def run(
    task: str,
    seed: int,
    budget: int,
    algorithm: str = "MBAC",
    verbose: bool = False,
    limit: float = np.inf,
) -> dict:
    """Train until the task is solved, or the budget or the seconds of the limit are spent."""
    if algorithm in USELESS:
        spoil_what_models_learn_from(algorithm)
    kind = bayespg.BAC if algorithm == "BAC" else bayespg.MBAC
    agent = kind(MADE.get(task, task), seed=seed)
    steps, returns, rows, passed, seconds, processor = [], [], [], 0, 0.0, []
    stopped = given_up = None
    led = 0
    start = time.perf_counter()
    while passed < ROW and (not steps or steps[-1] < budget):
        if time.perf_counter() - start > limit:
            stopped = f"after {limit:g} s"
            break
        begun, busy = time.perf_counter(), time.process_time()
        try:
            row = agent.update()
        except NotFinite as problem:
            stopped = str(problem)
            break
        taken = time.perf_counter() - begun
        processor.append(round(time.process_time() - busy, 2))
        seconds += taken
        steps.append(int(row["steps"]))
        if given_up is None and kind is bayespg.MBAC and agent.state.record.useless:
            given_up = steps[-1]
        led += int(kind is bayespg.MBAC and agent.state.lead > 0)
        returns.append(round(agent.evaluate(EPISODES, deterministic=True).mean, 2))
        rows.append(
            [
                round(row["return"], 2),
                round(row.get("promised", np.nan), 2),
                round(row.get("came", np.nan), 2),
                round(np.nan_to_num(row.get("ahead", 0))),
                round(taken, 2),
            ]
        )
        passed = passed + 1 if returns[-1] >= TASKS[task].threshold else 0
        if verbose:
            print(task, seed, steps[-1], returns[-1], rows[-1], flush=True)
    return {
        "task": task, "algorithm": algorithm, "seed": seed,
        "solved": steps[-ROW] if passed == ROW else None, "updates": len(steps),
        "given_up": given_up, "led_by_networks": led,
        "seconds": round(seconds, 1),
        "first_seconds": rows[0][-1], "processor_seconds": processor, "stopped": stopped,
        "steps": steps, "evaluated": returns,
        "real_promised_came_ahead_seconds": rows, "version": bayespg.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
    }  # fmt: skip


def spoil_what_models_learn_from(how: str) -> None:
    """Make all models of this process useless."""
    fitted = mbac.models.posterior

    def posterior(data, *args):
        rng, n = np.random.default_rng(0), data.count
        following, rewards = data.following.copy(), data.rewards.copy()
        if how == "useless":
            following[:n] = following[rng.permutation(n)]
        else:
            rewards[:n] = rng.normal(size=n)
        return fitted(dataclasses.replace(data, following=following, rewards=rewards), *args)

    mbac.models.posterior = posterior


def table(path: Path) -> None:
    """Medians over seeds: real steps, with their range; seconds of the first update, which compiles
    unless a process before it has; processor seconds of each update after it; seconds of training
    until the task is solved or the steps are spent."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print(
        "| task | threshold | algorithm | solved | median steps | range | best rival | "
        "first update, s | later, processor s | whole run, s |"
    )
    print("|" + "---|" * 10)
    for (task, (threshold, _)), algorithm in itertools.product(TASKS.items(), ALGORITHMS):
        those = [
            line for line in lines
            if (line["task"], line["algorithm"]) == (task, algorithm) and not _cut_short(line)
        ]  # fmt: skip
        if not those or task in OPEN:
            continue
        solved = np.array([line["solved"] or np.inf for line in those])
        median, least, most = (
            f"{x:,.0f}" if np.isfinite(x) else "never"
            for x in (np.median(solved), solved.min(), solved.max())
        )
        first = np.median([line["first_seconds"] for line in those])
        whole = np.median([line["seconds"] for line in those])
        later = np.median([x for line in those for x in line["processor_seconds"][1:]])
        print(
            f"| {task} | {threshold:g} | {algorithm} | {np.isfinite(solved).sum()} of "
            f"{len(those)} | {median} | {least} to {most} | {best_rival(task)} | {first:.0f} | "
            f"{later:.1f} | {whole:.0f} |"
        )


def ends(path: Path) -> None:
    """Where each run ended on tasks that are not solved: the mean of the last five evaluations, and
    the best one; SAC's median, of benchmarks/suite.py, at the evaluation nearest to that step."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print("| task | algorithm | seed | real steps | last | best | given up after | SAC then |")
    print("|" + "---|" * 8)
    for task, algorithm in itertools.product(OPEN, ALGORITHMS):
        for x in lines:
            if (x["task"], x["algorithm"]) == (task, algorithm):
                steps, returns = x["steps"][-1], x["evaluated"]
                print(
                    f"| {task} | {algorithm} | {x['seed']} | {steps:,.0f} | "
                    f"{np.mean(returns[-5:]):,.1f} | {max(returns):,.1f} | "
                    f"{x['given_up'] or ''} | {sac(task, steps)} |"
                )


def sac(task: str, steps: float) -> str:
    """The median return of SAC at the evaluation nearest to these steps; empty where it was not
    run."""
    found = [
        x["deterministic"][np.argmin(np.abs(np.array(x["steps"]) - steps))]
        for x in map(json.loads, SAC.read_text().splitlines()) if x["task"] == task
    ]  # fmt: skip
    return f"{np.median(found):,.1f}" if found else ""


def _cut_short(line: dict) -> bool:
    """Whether a run ended for want of time."""
    return (line["stopped"] or "").startswith("after")


def best_rival(task: str) -> str:
    """The least median of steps to the threshold among the algorithms of benchmarks/rivals/sb3.py,
    by the most probable actions, evaluated every 2,000 steps; empty where they were not run."""
    steps: dict[str, list[float]] = {}
    for line in map(json.loads, RIVALS.read_text().splitlines()):
        if line["task"] == task:
            (taken,) = line["steps_to_threshold"]["deterministic"].values()
            steps.setdefault(line["algorithm"], []).append(np.inf if taken is None else taken)
    best = min(steps, key=lambda name: np.median(steps[name]), default=None)
    return "" if best is None else f"{best}, {np.median(steps[best]):,.0f}"


if __name__ == "__main__":
    main()
