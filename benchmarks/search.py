"""Episodes to a threshold by search in the space of parameters, beside ARS, CMA-ES, GIBO and MPD.

    python benchmarks/search.py run [--tasks lqr3 ...] [--methods ours ...] [--jobs 2]
    python benchmarks/search.py table
    python benchmarks/search.py overhead

`run` appends a line of JSON per finished run to results/search.jsonl, `table` shows them,
`overhead` times a round of ours. All methods search for the gains of the same linear policy, from
zero, with one setting for all tasks. Ours is `bayespg.PGPE`, on lqr3 `bayespg.search.Search`, as
they come; its constants were chosen on seeds from 100 and from 1000. `active`, `orthogonal` and
`antithetic` are ours with other draws. The rivals see observations in units that they get for free:
the root mean square over 20 episodes of small random gains, which are not counted; `given` is
`Search` with these units, where `ours` learns its own, and `ars-raw` and `gibo-raw` are the rivals
without them. The settings of ARS (`ars`, version 1) are the best of 15 on the tasks without MuJoCo,
with seeds from 100; `sb3` is ARS of sb3-contrib with its default settings, CMA-ES that of the
package `cma`; GIBO and MPD are in `rivals/local_bo.py`.

After each iteration the method's own recommendation is evaluated on episodes that no method learns
from. A threshold is met at the first of three evaluations in a row that reach it; the episodes and
steps of evaluations are not counted. On lqr3 (Dean et al.: three states and three inputs, horizon
300, as in GIBO's paper) an evaluation asks whether the closed loop is stable. `mountain-car` is the
paper's. Swimmer-v5 needs `pip install 'bayespg[mujoco]'`, CMA-ES `pip install cma`, `sb3` what
rivals/requirements.txt names.
"""

import argparse
import concurrent.futures
import functools
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).parent))

import bayespg  # isort: skip  (first, for the thread pool)

import gymnasium
from rivals.local_bo import local_bo

from bayespg import search
from bayespg.environments import mountain_car

TASKS = {
    "Swimmer-v5": (300.0, 2, 150), "CartPole-v1": (475.0, 20, 100), "lqr3": (0.5, 1, 60),
    "MountainCarContinuous-v0": (90.0, 5, 60), "mountain-car": (-80.0, 50, 100),
    "Pendulum-v1": (-300.0, 10, 150),
}  # fmt: skip
"""Threshold, episodes per evaluation, and budget in episodes."""
A = np.array([[1.01, 0.01, 0.0], [0.01, 1.01, 0.01], [0.0, 0.01, 1.01]])
IN_A_ROW = 3
Recommendation = tuple[int, int, Any]
"""Episodes and steps so far, and what would be used now."""


class Gains:
    """Episodes of a linear policy in NumPy, of observations in units of their size."""

    def __init__(self, name: str, in_units: bool):
        self.name, self.choices = name, 0
        if name == "lqr3":
            self.n = 9
            return
        self.environment = made(name)
        self.observations = math.prod(self.environment.observation_space.shape)
        space = self.environment.action_space
        self.choices = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self.high = None if self.choices else space.high
        outputs = {0: np.prod(space.shape), 2: 1}.get(self.choices, self.choices)
        self.n, self.units = self.observations * int(outputs), np.ones(self.observations)
        if in_units:
            rng = np.random.default_rng(10**7)
            seen = [self._episode(0.2 * rng.normal(size=self.n), 10**7 + k)[2] for k in range(20)]
            self.units = np.sqrt(np.mean(np.concatenate(seen) ** 2, 0))

    def in_units(self) -> gymnasium.Env:
        """The environment with observations in units and actions between -1 and 1."""
        found, space = made(self.name), gymnasium.spaces.Box(-np.inf, np.inf, self.units.shape)
        if not self.choices:
            found = gymnasium.wrappers.RescaleAction(found, np.float32(-1), np.float32(1))
        return gymnasium.wrappers.TransformObservation(
            found, lambda x: (x.reshape(-1) / self.units).astype(np.float32), space
        )

    def play(self, theta: np.ndarray, seed: int) -> tuple[float, int]:
        """Return and length of an episode."""
        if self.name == "lqr3":
            return self._lqr(theta.reshape(3, 3), seed)
        total, steps, _ = self._episode(theta, seed)
        return total, steps

    def _episode(self, theta: np.ndarray, seed: int) -> tuple[float, int, list[np.ndarray]]:
        W = theta.reshape(-1, self.observations) / self.units
        x, _ = self.environment.reset(seed=seed)
        total, seen, ended = 0.0, [], False
        while not ended:
            seen.append(x)
            a = W @ x
            if self.choices:
                action = int(a[0] > 0) if self.choices == 2 else int(np.argmax(a))
            else:
                action = np.clip(a, -1, 1) * self.high
            x, reward, terminated, truncated, _ = self.environment.step(action)
            total, ended = total + float(reward), terminated or truncated
        return total, len(seen), seen

    def _lqr(self, K: np.ndarray, seed: int) -> tuple[float, int]:
        """x' = A x + u + w, u = K x, cost x'x / 1000 + u'u, its mean over 300 steps."""
        noise = np.random.default_rng(seed).normal(size=(300, 3))
        x, cost = np.zeros(3), 0.0
        for w in noise:
            u = K @ x
            cost += 1e-3 * x @ x + u @ u
            x = A @ x + u + w
            if not cost < 1e12:  # no robot would go on
                cost = 1e12
                break
        return -cost / 300, 300

    def evaluate(self, theta: np.ndarray) -> float:
        if self.name == "lqr3":
            return float(np.abs(np.linalg.eigvals(A + theta.reshape(3, 3))).max() < 1)
        episodes = TASKS[self.name][1]
        return float(np.mean([self.play(theta, 10**6 + k)[0] for k in range(episodes)]))


class PaperCar(gymnasium.Env):
    """The paper's mountain car."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(mountain_car.LOW, mountain_car.HIGH)
        return self.state, {}

    def step(self, action: int):
        (left, slowest), (right, fastest) = mountain_car.LOW, mountain_car.HIGH
        x, v = self.state
        v = min(max(v + 1e-3 * (1, -1, 0)[action] - 2.5e-3 * math.cos(3 * x), slowest), fastest)
        x = min(max(x + v, left), right)
        self.state = np.array([x, 0.0 if x <= left else v])
        return self.state, -1.0, x >= right, False, {}


def made(name: str) -> gymnasium.Env:
    if name == "mountain-car":
        return gymnasium.wrappers.TimeLimit(PaperCar(), 200)
    return gymnasium.make(name, disable_env_checker=True)


def ours(
    task: Gains, seed: int, budget: int, draws: str = search.DRAWS[0], given: bool = False
) -> Iterator[Recommendation]:
    if task.name != "lqr3" and not given:
        agent = bayespg.PGPE(functools.partial(made, task.name), seed=seed)
        agent.search.draws = draws
        while int(agent.state.episodes) < budget:
            agent.update()
            gains = agent.state.policy.gains.ravel()
            yield int(agent.state.episodes), int(agent.state.steps), gains
        return
    found = search.Search(task.n, seed=seed, draws=draws, sphere=bool(task.choices))
    steps = 0
    while found.episodes < budget:
        asked = found.ask()
        played = [task.play(x, 1000 * seed + found.episodes + k) for k, x in enumerate(asked)]
        steps += sum(length for _, length in played)
        found.tell(asked, [value for value, _ in played])
        yield found.episodes, steps, found.best


ARS = {"directions": 2, "kept": 1, "noise": 0.2, "rate": 0.1}


def ars(task: Gains, seed: int, budget: int) -> Iterator[Recommendation]:
    """Mania et al. 2018: the step is the mean of (r+ - r-) e over the better directions, divided by
    the standard deviation of their returns."""
    rng, theta, episodes, steps = np.random.default_rng(seed), np.zeros(task.n), 0, 0
    while episodes < budget:
        found = []
        for e in rng.normal(size=(ARS["directions"], task.n)):
            pair = []
            for sign in (1, -1):
                value, length = task.play(theta + sign * ARS["noise"] * e, 1000 * seed + episodes)
                episodes, steps = episodes + 1, steps + length
                pair.append(value)
            found.append((*pair, e))
        found = sorted(found, key=lambda f: -max(f[:2]))[: ARS["kept"]]
        spread = np.std([value for plus, minus, _ in found for value in (plus, minus)]) or 1.0
        step = sum((plus - minus) * e for plus, minus, e in found)
        theta = theta + ARS["rate"] / (ARS["kept"] * spread) * step
        yield episodes, steps, theta


def sb3(task: Gains, seed: int, budget: int) -> Iterator[Recommendation]:
    """ARS of sb3-contrib, version 1, with its default settings; actions are clipped as ours are."""
    from sb3_contrib import ARS as Package

    model = Package("LinearPolicy", task.in_units(), seed=seed, device="cpu")
    episodes = 0
    while episodes < budget:
        model.learn(1, log_interval=None, reset_num_timesteps=False)  # one update
        episodes += 2 * model.n_delta
        W = model.weights.numpy().reshape(-1, task.observations)
        yield episodes, model.num_timesteps, (W[1] - W[0] if task.choices == 2 else W).ravel()


def cma(task: Gains, seed: int, budget: int) -> Iterator[Recommendation]:
    import cma as package

    options = {"seed": seed + 1, "verbose": -9}
    strategy = package.CMAEvolutionStrategy(np.zeros(task.n), 0.5, options)
    episodes = steps = 0
    while episodes < budget:
        asked = strategy.ask()
        played = [task.play(x, 1000 * seed + episodes + k) for k, x in enumerate(asked)]
        episodes, steps = episodes + len(asked), steps + sum(length for _, length in played)
        strategy.tell(asked, [-value for value, _ in played])
        yield episodes, steps, np.array(strategy.result.xfavorite)


METHODS: dict[str, Callable[..., Iterator[Recommendation]]] = {
    "ours": ours, "ars": ars, "sb3": sb3, "cma": cma,
    "gibo": functools.partial(local_bo, probable=False),
    "mpd": functools.partial(local_bo, probable=True),
    "given": functools.partial(ours, given=True),
    **{draws: functools.partial(ours, draws=draws) for draws in search.DRAWS[1:]},
}  # fmt: skip
METHODS |= {f"{rival}-raw": METHODS[rival] for rival in ("ars", "gibo")}
RIVALRY = ("ours", "ars", "sb3", "cma", "gibo", "mpd")
"""The methods of `run`, if it is not told others."""
NAMES = {
    "ours": "ours", "ars": "ARS", "sb3": "ARS, sb3-contrib", "cma": "CMA-ES",
    "gibo": "GIBO, rebuilt", "mpd": "MPD, rebuilt", "given": "ours, units given",
    "ars-raw": "ARS, raw units", "gibo-raw": "GIBO, raw units",
    **{draws: f"ours, {draws} draws" for draws in search.DRAWS[1:]},
}  # fmt: skip


def met(name: str, method: str, seed: int) -> dict[str, Any]:
    """A run until the threshold is met, or the budget spent."""
    threshold, _, budget = TASKS[name]
    own = method in ("ours", *search.DRAWS)
    task = Gains(name, in_units=not (own or method.endswith("-raw")))
    kept, begun = [], time.perf_counter()
    for episodes, steps, theta in METHODS[method](task, seed, budget):
        kept.append((episodes, steps, task.evaluate(theta)))
        passed = [value >= threshold for _, _, value in kept[-IN_A_ROW:]]
        if len(passed) == IN_A_ROW and all(passed):
            break
    else:
        passed = [False]
    first = kept[-IN_A_ROW] if all(passed) else (None, None, None)
    return {
        "task": name, "method": method, "seed": seed, "episodes": first[0], "steps": first[1],
        "last": kept[-1][2], "budget": budget, "seconds": time.perf_counter() - begun,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "evaluations": kept,
    }  # fmt: skip


def table(path: Path) -> str:
    """A table in Markdown of the runs in a file: the median and the range of episodes to the
    threshold, the median of steps, and how many runs met it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    methods = [m for m in METHODS if any(x["method"] == m for x in lines)]
    rows = [["", *(NAMES[m] for m in methods)], ["---"] * (1 + len(methods))]
    for name, (threshold, _, budget) in TASKS.items():
        found = {m: [x for x in lines if (x["task"], x["method"]) == (name, m)] for m in methods}
        if any(found.values()):
            goal = "stable" if name == "lqr3" else f"{threshold:g}"
            rows.append([f"{name}, {goal}, within {budget}", *map(cell, found.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def cell(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return "not run"
    episodes, steps = (
        [math.inf if x[what] is None else x[what] for x in runs] for what in ("episodes", "steps")
    )
    middle, least, most, work = (
        f"{x:,.0f}" if math.isfinite(x) else "never"
        for x in (np.median(episodes), min(episodes), max(episodes), np.median(steps))
    )
    met = f"{sum(map(math.isfinite, episodes))} of {len(runs)}"
    shown = "never" if least == "never" else f"{middle} ({least} to {most})"
    return f"{shown}, {met}" + (f"; {work} steps" if work != "never" else "")


def overhead(n: int = 16, episodes: int = 100) -> None:
    """Milliseconds per episode of asking and telling, the memory full."""
    rng, found = np.random.default_rng(0), search.Search(n)
    X = rng.normal(size=(episodes, n))
    found.tell(X, -np.sum((X - 1) ** 2, 1))
    times = []
    for _ in range(12):
        begun, asked = (time.perf_counter(), time.process_time()), found.ask()
        found.tell(asked, -np.sum((asked - 1) ** 2, 1) + rng.normal(size=len(asked)))
        ended = (time.perf_counter(), time.process_time())
        times.append(1e3 * np.subtract(ended, begun) / len(asked))
    wall, cpu = np.median(times[2:], axis=0)
    print(f"M = {search.MEMORY}, n = {n}: {wall:.1f} ms per episode, {cpu:.1f} ms of CPU time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("run", "table", "overhead"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--methods", nargs="+", default=RIVALRY, choices=METHODS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("results/search.jsonl"))
    given = parser.parse_args()
    if given.what == "overhead":
        overhead()
        return
    if given.what == "run":
        seeds = range(given.first, given.first + given.seeds)
        runs = [(t, m, s) for t in given.tasks for m in given.methods for s in seeds]
        every(met, runs, given.jobs, given.out)
    print(table(given.out))


def every(function: Callable[..., Any], jobs: list[tuple], processes: int, out: Path) -> None:
    """Call the function in other processes, and append a line of JSON for each answer; a failure
    is reported and does not stop the others."""
    out.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the workers, whose matrices are small
    with concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn")
    ) as pool:
        runs = {pool.submit(function, *job): job for job in jobs}
        for run in concurrent.futures.as_completed(runs):
            problem = run.exception()
            if problem is None:
                with out.open("a") as file:
                    file.write(json.dumps(run.result()) + "\n")
            print(*runs[run], "" if problem is None else f"failed: {problem}", flush=True)


if __name__ == "__main__":
    main()
