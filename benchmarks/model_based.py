"""Real steps to a threshold with a learned model of the task: `bayespg.MBAC`.

    python benchmarks/model_based.py run [--tasks ...] [--seeds 10] [--first-seed 100]
    python benchmarks/model_based.py run --tasks LQR MountainCar ShipSteering [--algorithm BAC]
    python benchmarks/model_based.py run --tasks CartPole-v1 --algorithm useless
    python benchmarks/model_based.py all --first-seed 810 --jobs 16 --limit 1800
    python benchmarks/model_based.py table    # or fallback, ends

LQR, MountainCar and ShipSteering are the tasks of the paper. Algorithms are MBAC, BAC, PGPE, the
PETS of `benchmarks/rivals`, and MBAC with a model that is made useless: with `useless` it learns
from transitions whose following states were shuffled, with `noise` from rewards that are random
numbers, and must fall back to BAC.

After every update the policy is evaluated on 20 episodes that it does not learn from, with the most
probable actions. A task is solved at the first of two evaluations in a row that reach its
threshold; the steps of evaluations are not counted. `run` appends a line of JSON per run to
results/model-based.jsonl, `table` shows the medians, a run that was never solved counted as
infinity and one that `--seconds` cut short left out; `fallback` compares useless models with BAC
from the same seeds; `ends` shows where runs ended on tasks that are hard for the model or hide
velocities. `all` makes the runs of the page in parallel, and starts none after `--limit` seconds.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  (first, for the thread pool)
from bayespg.learning.advance import NotFinite  # isort: skip
from bayespg.models import Transitions, experience  # isort: skip
from paper_tasks import LQR, MountainCar, ShipSteering  # isort: skip
from rivals import pets  # isort: skip
from suite import version_of  # isort: skip

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
    "Pendulum-v1, half gravity": Task(-200, 6_000),
    "Pendulum-v1, twice the time step": Task(-100, 6_000),
    "CartPole-v1, half the time step": Task(475, 8_000),
    "Pendulum-v1, reward every 10 steps": Task(-200, 12_000),
    "Reacher-v5": Task(-6, 15_000),
    "InvertedDoublePendulum-v5": Task(9_000, 15_000),
    "CartPole-v1 without velocities": Task(np.inf, 5_000),
    "Pendulum-v1 without velocity": Task(np.inf, 12_000),
    "Hopper-v5": Task(1_000, 20_000),
    "HalfCheetah-v5": Task(1_000, 20_000),
    "Swimmer-v5": Task(100, 20_000),
}
PAPER = ("LQR", "MountainCar", "ShipSteering")
MAIN = (*list(TASKS)[:9], "Reacher-v5", "InvertedDoublePendulum-v5")
"""Tasks of which `all` makes every seed; of the others it makes `FEW`."""
CHANGED = tuple(list(TASKS)[9:13])
OPEN = tuple(list(TASKS)[-5:])
"""Tasks on which runs may end unsolved, that hide velocities or are hard for a model."""
FEW = 5
USELESS = ("useless", "noise")
ALGORITHMS = ("MBAC", "BAC", "PGPE", *USELESS, "PETS")


class Seen(gymnasium.ObservationWrapper):
    """Some numbers of the observation."""

    def __init__(self, task: str, kept: list[int]):
        super().__init__(gymnasium.make(task))
        whole: Any = self.env.observation_space
        self.kept = kept
        self.observation_space = gymnasium.spaces.Box(whole.low[kept], whole.high[kept])

    def observation(self, observation):
        return observation[self.kept]


class Late(gymnasium.Wrapper):
    """Rewards are paid together, every `every` steps and where an episode ends."""

    def __init__(self, task: str, every: int):
        super().__init__(gymnasium.make(task))
        self.every = every

    def reset(self, **options):
        self.steps, self.owed = 0, 0.0
        return self.env.reset(**options)

    def step(self, action):
        observation, reward, ended, over, info = self.env.step(action)
        self.steps, self.owed = self.steps + 1, self.owed + float(reward)
        due = ended or over or self.steps % self.every == 0
        paid = self.owed if due else 0.0
        self.owed -= paid
        return observation, paid, ended, over, info


def changed(task: str, steps: int | None = None, **attributes: float) -> gymnasium.Env:
    """The task with other numbers of its simulator, and with this many steps at most."""
    env = gymnasium.make(task, max_episode_steps=steps)
    for name, value in attributes.items():
        setattr(env.unwrapped, name, value)
    return env


MADE = {
    "LQR": LQR,
    "MountainCar": MountainCar,
    "ShipSteering": ShipSteering,
    "Pendulum-v1, half gravity": functools.partial(changed, "Pendulum-v1", g=5.0),
    "Pendulum-v1, twice the time step": functools.partial(changed, "Pendulum-v1", 100, dt=0.1),
    "CartPole-v1, half the time step": functools.partial(changed, "CartPole-v1", tau=0.01),
    "Pendulum-v1, reward every 10 steps": functools.partial(Late, "Pendulum-v1", 10),
    "CartPole-v1 without velocities": functools.partial(Seen, "CartPole-v1", [0, 2]),
    "Pendulum-v1 without velocity": functools.partial(Seen, "Pendulum-v1", [0, 1]),
}
"""The other names are those of Gymnasium."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("do", choices=("run", "all", *TABLES))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="MBAC")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--budget", type=int, help="real steps; the task's own")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop a run after these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes of `all`")
    parser.add_argument("--limit", type=float, default=np.inf, help="seconds for `all`")
    parser.add_argument("--verbose", action="store_true", help="a line per update")
    parser.add_argument("--out", type=Path, default=Path("results/model-based.jsonl"))
    options = parser.parse_args()
    if options.do in TABLES:
        return TABLES[options.do](options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.do == "all":
        return run_all(options)
    for task in options.tasks:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            budget = options.budget or budget_of(task, options.algorithm)
            line = run(task, seed, budget, options.algorithm, options.verbose, options.seconds)
            keep(line, options.out)
    return None


def keep(line: dict, path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    names = "algorithm", "task", "seed", "solved", "stopped"
    print(*(line[name] for name in names), f"{line['seconds']:.0f} s", flush=True)


PLAIN = {
    "CartPole-v1": 15_000, "Pendulum-v1": 30_000, "MountainCarContinuous-v0": 15_000,
    "Acrobot-v1": 30_000, "InvertedPendulum-v5": 30_000, "MountainCar-v0": 50_000,
}  # fmt: skip
"""Budgets without a model, and with models that are useless."""


def budget_of(task: str, algorithm: str) -> int:
    budget = TASKS[task].budget
    return budget if algorithm in ("MBAC", "PETS") else PLAIN.get(task, budget)


Job = tuple[str, str, int]
"""Task, algorithm and seed."""


def jobs(first: int, seeds: int) -> list[Job]:
    """The runs of the page, those that take longest first."""
    every, few = (range(first, first + n) for n in (seeds, min(FEW, seeds)))
    found: list[Job] = [(task, "MBAC", k) for k in few for task in OPEN[-3:]]
    found += [(task, "MBAC", k) for k in every for task in MAIN]
    found += [(task, "BAC", k) for k in every for task in PAPER]
    both = itertools.product((*CHANGED, *OPEN[:2]), ("MBAC", "BAC"))
    plain = itertools.product(PLAIN, ("BAC", "PGPE"))
    useless = itertools.product(list(PLAIN)[:2], USELESS)
    planned = itertools.product(pets.REWARDS, ("PETS",))
    short = [*both, *plain, *useless, *planned]
    return found + [(task, name, k) for k in few for task, name in short]


def run_all(options: argparse.Namespace) -> None:
    """Processes of one core each."""
    spawn = multiprocessing.get_context("spawn")
    end, begun = time.time() + options.limit, spawn.Value("i", 0)
    each = jobs(options.first_seed, options.seeds)
    processes = []
    for _, core in zip(range(options.jobs), itertools.cycle(sorted(os.sched_getaffinity(0)))):
        processes.append(spawn.Process(target=work, args=(core, each, begun, end, options.out)))
        processes[-1].start()
    for process in processes:
        process.join()


def work(core: int, each: list[Job], begun: Any, end: float, out: Path) -> None:
    """Make runs that nobody has begun, until the end."""
    os.sched_setaffinity(0, {core})
    while True:
        with begun.get_lock():
            at = begun.value
            begun.value += 1
        left = end - time.time()
        if at >= len(each) or left <= 0:
            return
        task, algorithm, seed = each[at]
        try:
            keep(run(task, seed, budget_of(task, algorithm), algorithm, limit=left), out)
        except Exception:
            print(f"{algorithm} {task} {seed} failed\n{traceback.format_exc()}", flush=True)


def run(
    task: str,
    seed: int,
    budget: int,
    algorithm: str = "MBAC",
    verbose: bool = False,
    limit: float = np.inf,
    given: dict[str, Any] | None = None,
) -> dict:
    """Train until the task is solved, or the budget or the seconds of the limit are spent."""
    about = {"task": task, "algorithm": algorithm, "seed": seed}
    if algorithm == "PETS":
        return about | pets.run(task, seed, budget, TASKS[task].threshold, limit)
    with spoiled(algorithm) if algorithm in USELESS else contextlib.nullcontext():
        kind = getattr(bayespg, algorithm, bayespg.MBAC)
        agent = kind(MADE.get(task, task), seed=seed, **given or {})
        return about | _train(agent, TASKS[task].threshold, budget, verbose, limit)


def _train(agent: Any, threshold: float, budget: int, verbose: bool, limit: float) -> dict:
    kind = type(agent)
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
        led += int(kind is bayespg.MBAC and agent.state.experience.lead > 0)
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
        passed = passed + 1 if returns[-1] >= threshold else 0
        if verbose:
            print(
                agent.world.name, agent.settings.seed, steps[-1], returns[-1], rows[-1], flush=True
            )
    return {
        "solved": steps[-ROW] if passed == ROW else None, "updates": len(steps),
        "given_up": given_up, "led_by_networks": led,
        "seconds": round(seconds, 1),
        "first_seconds": rows[0][-1], "processor_seconds": processor, "stopped": stopped,
        "steps": steps, "evaluated": returns,
        "real_promised_came_ahead_seconds": rows, "version": bayespg.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
    } | version_of("bayespg")  # fmt: skip


@contextlib.contextmanager
def spoiled(how: str) -> Iterator[None]:
    """Models of this process are useless for a while."""
    modules = (experience.models, "posterior"), (experience.ensembles, "learned")
    places = [(module, name, getattr(module, name)) for module, name in modules]

    def worse(data):
        rng, n = np.random.default_rng(0), data.count
        following, rewards = data.following.copy(), data.rewards.copy()
        if how == "useless":
            following[:n] = following[rng.permutation(n)]
        else:
            rewards[:n] = rng.normal(size=n)
        return dataclasses.replace(data, following=following, rewards=rewards)

    def spoil(learn):
        def from_worse(*given):
            return learn(*(worse(x) if isinstance(x, Transitions) else x for x in given))

        return from_worse

    for module, name, learn in places:
        setattr(module, name, spoil(learn))
    try:
        yield
    finally:
        for module, name, learn in places:
            setattr(module, name, learn)


def stored(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(path: Path) -> None:
    """Medians over seeds: real steps, with their range; processor seconds of each update after the
    first, which compiles; seconds of training until the task is solved or the steps are spent."""
    lines = stored(path)
    print(
        "| task | threshold | algorithm | solved | median steps | range | best rival | "
        "update, processor s | run, s |"
    )
    print("|" + "---|" * 9)
    for (task, (threshold, _)), algorithm in itertools.product(TASKS.items(), ALGORITHMS):
        those = [
            line for line in lines
            if (line["task"], line["algorithm"]) == (task, algorithm) and not cut_short(line)
        ]  # fmt: skip
        if not those or task in OPEN or algorithm in USELESS:
            continue
        cells = " | ".join(summary(those))
        later = [x for line in those for x in line["processor_seconds"][1:]]
        print(
            f"| {task} | {threshold:g} | {algorithm} | {cells} | "
            f"{best_rival(task)} | {f'{np.median(later):.1f}' if later else ''} | "
            f"{np.median([line['seconds'] for line in those]):.0f} |"
        )


def summary(lines: list[dict]) -> tuple[str, str, str]:
    """How many runs are solved, the median of their steps, and the range."""
    solved = _solved(lines)
    least, most = (_steps(x) for x in (solved.min(), solved.max()))
    many = f"{np.isfinite(solved).sum()} of {len(lines)}"
    return many, _steps(np.median(solved)), f"{least} to {most}"


def fallback(path: Path) -> None:
    """Median steps with models that are useless, and of BAC from the same seeds."""
    lines = stored(path)
    print("| task | seeds | BAC | shuffled states | ratio | random rewards | ratio |")
    print("|" + "---|" * 7)
    for task in dict.fromkeys(x["task"] for x in lines if x["algorithm"] in USELESS):
        of = {
            name: {x["seed"]: x for x in lines if (x["task"], x["algorithm"]) == (task, name)}
            for name in ("BAC", *USELESS)
        }
        seeds = sorted(set.intersection(*map(set, of.values())))
        if not seeds:
            continue
        plain, *spoilt = (np.median(_solved([x[k] for k in seeds])) for x in of.values())
        cells = (f"{_steps(x)} | {x / plain:.2f}" for x in spoilt)
        print(f"| {task} | {len(seeds)} | {_steps(plain)} | {' | '.join(cells)} |")


def ends(path: Path) -> None:
    """Where each run ended on tasks that may stay unsolved: the mean of the last five evaluations,
    and the best one; SAC's median, of benchmarks/suite.py, at the evaluation nearest to that
    step."""
    print(
        "| task | algorithm | seed | real steps | solved after | last | best | given up after | "
        "SAC then |"
    )
    print("|" + "---|" * 9)
    lines = stored(path)
    for task, name in itertools.product(OPEN, ("MBAC", "BAC")):
        for x in lines:
            if (x["task"], x["algorithm"]) == (task, name):
                steps, returns = x["steps"][-1], x["evaluated"]
                solved = "" if x["solved"] is None else f"{x['solved']:,.0f}"
                print(
                    f"| {task} | {name} | {x['seed']} | {steps:,.0f} | {solved} | "
                    f"{np.mean(returns[-5:]):,.1f} | {max(returns):,.1f} | "
                    f"{x['given_up'] or ''} | {sac(task, steps)} |"
                )


def _solved(lines: list[dict]) -> np.ndarray:
    return np.array([line["solved"] or np.inf for line in lines])


def _steps(x: float) -> str:
    return f"{x:,.0f}" if np.isfinite(x) else "never"


def sac(task: str, steps: float) -> str:
    """The median return of SAC at the evaluation nearest to these steps; empty where it was not
    run."""
    returns = [
        x["deterministic"][np.argmin(np.abs(np.array(x["steps"]) - steps))]
        for x in map(json.loads, SAC.read_text().splitlines()) if x["task"] == task
    ]  # fmt: skip
    return f"{np.median(returns):,.1f}" if returns else ""


def cut_short(line: dict) -> bool:
    """Whether a run ended for want of time."""
    return (line["stopped"] or "").startswith("after")


def best_rival(task: str) -> str:
    """The least median of steps to the threshold among the algorithms of benchmarks/rivals/sb3.py,
    by the most probable actions, evaluated every 2,000 steps; otherwise where SAC is after 20,000,
    if it was run."""
    steps: dict[str, list[float]] = {}
    for line in map(json.loads, RIVALS.read_text().splitlines()):
        if line["task"] == task:
            (taken,) = line["steps_to_threshold"]["deterministic"].values()
            steps.setdefault(line["algorithm"], []).append(np.inf if taken is None else taken)
    best = min(steps, key=lambda name: np.median(steps[name]), default=None)
    if best is None:
        return f"SAC: {sac(task, 20_000)} after 20,000" if sac(task, 20_000) else ""
    return f"{best}, {np.median(steps[best]):,.0f}"


TABLES = {"table": table, "fallback": fallback, "ends": ends}


if __name__ == "__main__":
    main()
