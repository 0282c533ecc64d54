"""One score for a method: twelve tasks, how soon and how well it learns.

    python benchmarks/suite.py run --method bayespg --tasks CartPole-v1,Hopper-v5 --seeds 0-9
        [--set episodes=16 limit=0.02 hidden=64,64] [--jobs 16] [--out results/suite.jsonl]
        [--budget-fraction 0.2] [--evaluations 10] [--label NAME]
    python benchmarks/suite.py random [--tasks ...]
    python benchmarks/suite.py table FILE...
    python benchmarks/suite.py plot FILE... [--picture results/suite.png]
    python benchmarks/suite.py start-end FILE...
    python benchmarks/suite.py goals FILE...

`run` trains a method on every task from every seed and appends a line of JSON per finished run to
the file; runs that the file holds are skipped. The policy is evaluated before training and at every
2 % of the budget, on 10 episodes in environments of its own: as it explores, with actions drawn as
`agent.evaluate` draws them, and with its most probable actions. What counts at a step is the policy
with which that step was taken, so an update that ends after the budget does not count. Evaluations
draw from random streams of their own and change nothing in training; neither their steps nor their
seconds count. The seconds are those of one core, and compile time is among them where a process
had not yet compiled a program or found it in JAX's cache.

The score of a run is the mean over the evaluations of (return - random) / (threshold - random),
clipped to [0, 1], the average of the two forms of the policy. That of a method is the interquartile
mean over seeds on each task, then the mean over tasks (`table`, see benchmarks/suite_report.py).
Seeds 0 to 99 are for choosing settings, seeds from 100 on for reporting.

Methods besides `bayespg` are those of benchmarks/rivals/sb3.py, with the tuned settings of RL
Baselines3 Zoo; they need its requirements. Tasks are those of `TASKS`, any other of Gymnasium, and
`navigation` and `random/N` of benchmarks/random_tasks.py; the others are not part of the score.
`start-end` judges whether any run ended below the return of its untrained policy.
"""

import argparse
import contextlib
import functools
import hashlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import suite_goals
import suite_report
from rivals import sb3
from suite_tasks import FORMS, TASKS, maker, steps_of

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

EPISODES = 10
ALONE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
"""Environment variables by which the processes of the pool have one thread each."""


def main() -> None:
    options = _options()
    if options.do == "run":
        run(options)
    elif options.do == "random":
        show_random(options)
    elif options.do == "goals":
        suite_goals.show(options.files)
    else:
        suite_report.show(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    modes = parser.add_subparsers(dest="do", required=True)
    runs = modes.add_parser("run", help="train and evaluate")
    runs.add_argument("--method", default="bayespg", choices=METHODS)
    runs.add_argument("--tasks", type=_names, default=list(TASKS), help="with commas between")
    runs.add_argument("--seeds", type=_seeds, default=list(range(5)), help="such as 0-9 or 3,5")
    runs.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    runs.add_argument(
        "--set", nargs="+", action="extend", default=[], type=setting, metavar="NAME=VALUE"
    )
    runs.add_argument("--label", help="the name in tables; unless given, of method and settings")
    runs.add_argument("--budget-fraction", type=float, default=1.0)
    runs.add_argument("--evaluations", type=int, default=50)
    runs.add_argument("--out", type=Path, default=Path("results/suite.jsonl"))
    chance = modes.add_parser("random", help="returns of uniformly random actions")
    chance.add_argument("--tasks", type=_names, default=list(TASKS))
    chance.add_argument("--episodes", type=int, default=100)
    for name, words in (
        ("table", "scores"),
        ("plot", "a picture per task and performance profiles"),
        ("start-end", "runs that end below the return of their untrained policies"),
        ("goals", "what was asked of the default, and what it does"),
    ):
        mode = modes.add_parser(name, help=words)
        mode.add_argument("files", type=Path, nargs="+", metavar="FILE")
        mode.add_argument("--tasks", type=_names, help="of the files, all unless given")
        if name == "plot":
            mode.add_argument("--picture", type=Path, default=Path("results/suite.png"))
    return parser.parse_args()


def _names(text: str) -> list[str]:
    """Tasks with commas between."""
    names = [name for name in text.split(",") if name]
    for name in names:
        try:
            maker(name)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(str(problem)) from None
    return names


def _seeds(text: str) -> list[int]:
    """ "0-2,7" means 0, 1, 2 and 7."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def setting(text: str) -> tuple[str, Any]:
    """The name and value of `NAME=VALUE`: JSON, numbers with commas between, or plain text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    for form in (value, f"[{value}]"):
        with contextlib.suppress(json.JSONDecodeError):
            return name, json.loads(form)
    return name, value


# The parent: hands out runs and stores what comes back.


class Order(NamedTuple):
    """One run."""

    method: str
    task: str
    seed: int
    settings: dict[str, Any]
    label: str
    fraction: float
    evaluations: int
    version: dict[str, str]

    @property
    def budget(self) -> int:
        return round(self.fraction * steps_of(self.task))

    @property
    def points(self) -> np.ndarray:
        """Steps at which the policy is evaluated; the first is 0."""
        return np.linspace(0, self.budget, self.evaluations + 1).round().astype(int)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.label, self.task, self.seed, self.budget, self.evaluations


def key_of(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["label"], line["task"], line["seed"], line["budget"], len(line["steps"]) - 1


def run(options: argparse.Namespace) -> None:
    """All runs that are not in the file yet."""
    settings = dict(options.set)
    label = options.label or ", ".join(
        [options.method, *(f"{name} {value}" for name, value in settings.items())]
    )
    version = version_of(options.method)
    stored = sb3.read(options.out)
    for line in stored:
        if line["label"] == label and _numbers(line["version"]) != _numbers(version):
            sys.exit(
                f"{options.out}: holds runs called {label!r} of another version "
                f"({line['version']}, now {version}); give another --label or --out"
            )
    done = {key_of(line) for line in stored}
    orders = [
        Order(options.method, task, seed, settings, label, options.budget_fraction,
              options.evaluations, version)
        for task in sorted(options.tasks, key=_cost)
        for seed in options.seeds
    ]  # fmt: skip
    for task in options.tasks:
        if not METHODS[options.method].plays(task):
            print(f"{options.method} has no settings for {task}, which is left out", flush=True)
    missing = [o for o in orders if o.key not in done and METHODS[o.method].plays(o.task)]
    print(f"{len(missing)} runs, {len(done & {o.key for o in orders})} done before", flush=True)
    begun, failed = time.perf_counter(), 0
    for count, (order, line) in enumerate(_finished(missing, options.jobs), 1):
        name = f"{label}, {order.task}, seed {order.seed}"
        where = f"{time.perf_counter() - begun:6.0f} s  {count}/{len(missing)}  {name}"
        if isinstance(line, BaseException):
            failed += 1
            print(f"{where}: not run: {type(line).__name__}: {line}", flush=True)
            continue
        sb3.append(options.out, line)
        failed += line["error"] is not None
        ends = " / ".join(f"{line[form][-1]:.1f}" for form in FORMS)
        print(
            f"{where}: {line[FORMS[0]][0]:.1f} to {ends}, "
            f"{line['train_seconds']:.0f} s of training, {line['evaluation_seconds']:.0f} s of "
            f"evaluation{', ended by ' + line['error'] if line['error'] else ''}",
            flush=True,
        )
    if failed:
        sys.exit(f"{failed} runs failed; one that had begun keeps its last policy to the end")


def _cost(task: str) -> float:
    """Rank by seconds, the longest first, so that no core waits for the last runs."""
    return -steps_of(task) - 1000 * list(TASKS).index(task) if task in TASKS else 0


def _finished(orders: list[Order], jobs: int) -> Iterator[tuple[Order, Any]]:
    """Runs as they end, with their lines or what went wrong. A process does many of them, so that
    it imports and compiles once."""
    if not orders:
        return
    os.environ |= dict.fromkeys(ALONE, "1") | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    spawn = multiprocessing.get_context("spawn")
    numbers = spawn.SimpleQueue()
    for number in range(jobs):
        numbers.put(number)
    with ProcessPoolExecutor(min(jobs, len(orders)), spawn, _begin, (numbers,)) as pool:
        try:
            started = {pool.submit(one, order): order for order in orders}
            for done in as_completed(started):
                problem = done.exception()
                if isinstance(problem, BrokenExecutor):
                    raise problem
                yield started[done], problem or done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def version_of(method: str) -> dict[str, str]:
    """What the numbers depend on. A machine without git tells versions apart by the sources."""
    if method != "bayespg":
        try:
            return sb3.versions()["versions"]
        except metadata.PackageNotFoundError as problem:
            sys.exit(f"{method}: {problem.name} is not installed; see benchmarks/rivals/sb3.py")
    digest = hashlib.sha256()
    for file in sorted((ROOT / "src").rglob("*.py")):
        digest.update(file.read_bytes())
    return {"source": digest.hexdigest()[:12]} | _commit()


def _numbers(version: dict[str, str]) -> dict[str, str]:
    """Without the commit, which may change where the sources do not."""
    return {name: value for name, value in version.items() if name != "commit"}


def _commit() -> dict[str, str]:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        said = subprocess.run(command, check=True, capture_output=True, text=True)
        return {"commit": said.stdout.strip()}
    return {}


def show_random(options: argparse.Namespace) -> None:
    """Mean returns of uniformly random actions, with their standard errors."""
    for task in options.tasks:
        found = random_returns(task, options.episodes)
        error = found.std(ddof=1) / np.sqrt(found.size)
        print(f"{task}: {found.mean():.1f} ± {error:.1f}", flush=True)


def random_returns(task: str, episodes: int) -> np.ndarray:
    import gymnasium

    make = maker(task)
    env = gymnasium.make(make, disable_env_checker=True) if isinstance(make, str) else make()
    env.action_space.seed(0)
    returns = np.zeros(episodes)
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            returns[seed] += float(reward)
            over = terminated or truncated
    return returns


# A process of the pool.


def _begin(numbers: Any) -> None:
    """A core and a thread each: thread pools that share cores slow one another down."""
    number = numbers.get()
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


class Curve:
    """The evaluations of a run, filled as it goes."""

    def __init__(self, points: np.ndarray, evaluate: Callable[[int, bool], list[float]]):
        self.points, self._evaluate = points, evaluate
        self.steps: list[int] = []
        self.returns: dict[str, list[float]] = {form: [] for form in FORMS}
        self.errors: dict[str, list[float]] = {form: [] for form in FORMS}
        self.training: list[float] = []
        self.evaluation_seconds = 0.0

    @property
    def waits_for(self) -> float:
        """The steps of the next evaluation, infinity after the last."""
        left = self.points[len(self.steps) :]
        return float(left[0]) if len(left) else np.inf

    def record(self, before: float, seconds: float) -> None:
        """Evaluate the current policy, once, for all points below `before` steps; `seconds` of
        training led to it."""
        due = [int(at) for at in self.points[len(self.steps) :] if at < before]
        if not due:
            return
        begun = time.perf_counter()
        for form in FORMS:
            found = np.array(self._evaluate(len(self.steps), form == "deterministic"))
            error = found.std(ddof=1) / np.sqrt(found.size)
            self.returns[form] += [round(float(found.mean()), 3)] * len(due)
            self.errors[form] += [round(float(error), 3)] * len(due)
        self.steps += due
        self.training += [round(seconds, 2)] * len(due)
        self.evaluation_seconds += time.perf_counter() - begun

    def line(self) -> dict[str, Any]:
        return {
            "steps": self.steps, **self.returns,
            **{f"{form}_errors": of for form, of in self.errors.items()},
            "seconds": self.training, "evaluation_seconds": round(self.evaluation_seconds, 1),
        }  # fmt: skip


def one(order: Order) -> dict[str, Any]:
    """One run in a process of the pool. One that fails has the curve of its last policy, and says
    what went wrong."""
    found = METHODS[order.method].train(order)
    line = {
        "task": order.task, "method": order.method, "label": order.label, "seed": order.seed,
        "settings": order.settings, "version": order.version, "budget": order.budget,
        "episodes_per_evaluation": EPISODES, **found,
        "machine": f"{os.cpu_count()} x {platform.machine()}",
    }  # fmt: skip
    return line | ({"to_threshold": _met(line)} if order.task in TASKS else {})


def _met(line: dict[str, Any]) -> dict[str, Any]:
    """Steps and seconds of training on one core to the threshold, for each form of the policy; None
    for one that did not meet it."""
    met = {form: suite_report.first_met(line, form) for form in FORMS}
    return {
        form: {"steps": steps, "seconds": seconds} if np.isfinite(steps) else None
        for form, (steps, seconds) in met.items()
    }


def evaluation_seeds(seed: int, number: int) -> list[int]:
    """Seeds of the episodes of an evaluation, which training does not use."""
    sequence = np.random.SeedSequence([2**32 - 1, seed, number])
    return [int(word) for word in sequence.generate_state(EPISODES)]


def train_bayespg(order: Order) -> dict[str, Any]:
    import bayespg  # first, for the thread pool  # noqa: F401
    from bayespg._support.random import child, host_key
    from bayespg.agents.agent import Agent
    from bayespg.agents.metrics import evaluation
    from bayespg.environments.host import Host
    from bayespg.paths.worlds import OnHost

    agent = Agent(maker(order.task), seed=order.seed, **order.settings)
    horizon = agent.settings.horizon
    stage = OnHost(Host(maker(order.task), lanes=EPISODES, horizon=horizon))
    state = agent.state

    def evaluate(number: int, deterministic: bool) -> list[float]:
        key = child(host_key(order.seed), 2**16 + 2 * number + deterministic)
        with agent.precision():
            paths = stage.play(
                state.acting, key, evaluation_seeds(order.seed, number), deterministic
            )
        return evaluation(paths).returns.tolist()

    curve, seconds, last, error = Curve(order.points, evaluate), 0.0, np.nan, None
    while curve.waits_for < np.inf:
        begun = time.perf_counter()
        try:
            last = agent.update()["return"]
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
            traceback.print_exc()
            curve.record(np.inf, seconds)
            break
        spent, steps = time.perf_counter() - begun, int(agent.state.steps)
        curve.record(steps, seconds)
        seconds, state = seconds + spent, agent.state
        if steps >= order.budget:
            curve.record(np.inf, seconds)
    return curve.line() | {
        "train_seconds": round(seconds, 2),
        "training_return": round(float(last), 3) if np.isfinite(last) else None,
        "trained_steps": int(agent.state.steps), "updates": int(agent.state.updates),
        "parameters": agent.parameter_count, "error": error,
    }  # fmt: skip


def train_rival(order: Order) -> dict[str, Any]:
    """A rival with the settings of RL Baselines3 Zoo, and others where --set says so. Schedules
    fall over the whole budget also where only a part of it is trained."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Recorder(BaseCallback):
        def _on_training_start(self) -> None:
            of = sb3.Evaluation(self.model, order.task, order.seed, EPISODES, make)
            self.curve = Curve(order.points, lambda _, deterministic: of.returns(deterministic))
            self.begun = time.perf_counter()
            self.curve.record(1, 0.0)

        def _on_step(self) -> bool:
            if self.num_timesteps >= self.curve.waits_for:
                self.curve.record(self.num_timesteps + 1, self.seconds())
            if self.curve.waits_for == np.inf:
                raise sb3.Ended  # ARS does not listen to what a callback returns
            return True

        def seconds(self) -> float:
            return time.perf_counter() - self.begun - self.curve.evaluation_seconds

    algorithm, steps = order.method.upper(), steps_of(order.task)
    make = None if order.task in TASKS else maker(order.task)
    changed = sb3.exploring(order.task, algorithm, steps) | order.settings
    model = sb3.build(order.task, algorithm, order.seed, make=make, **changed)
    recorder, error = Recorder(), None
    try:
        model.learn(steps, callback=recorder)
    except sb3.Ended:
        pass
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        traceback.print_exc()
    seconds = recorder.seconds()
    recorder.curve.record(np.inf, seconds)
    last = [float(each["r"]) for each in model.ep_info_buffer or ()][-EPISODES:]
    return recorder.curve.line() | {
        "settings": sb3.settings_of(order.task, algorithm) | changed,
        "train_seconds": round(seconds, 2),
        "training_return": round(float(np.mean(last)), 3) if last else None,
        "trained_steps": int(model.num_timesteps), "updates": None,
        "parameters": sum(each.numel() for each in model.policy.parameters()), "error": error,
    }  # fmt: skip


class Method(NamedTuple):
    train: Callable[[Order], dict[str, Any]]
    plays: Callable[[str], bool]
    """Whether there are settings for a task."""


def _plays(algorithm: str, task: str) -> bool:
    """DQN is for choices only, SAC and TD3 for continuous actions only."""
    if task in TASKS:
        return task in sb3.ZOO[algorithm]
    import gymnasium

    choices = isinstance(maker(task)().action_space, gymnasium.spaces.Discrete)
    return algorithm not in (("SAC", "TD3") if choices else ("DQN",))


METHODS = {"bayespg": Method(train_bayespg, lambda task: True)} | {
    name.lower(): Method(train_rival, functools.partial(_plays, name)) for name in sb3.ALGORITHMS
}


if __name__ == "__main__":
    main()
