"""Episodes to a threshold by search in the space of parameters, beside six rivals.

    python benchmarks/search.py run [--tasks lqr3 ...] [--methods ours ...] [--jobs 2]
    python benchmarks/search.py table
    python benchmarks/search.py overhead

`run` appends a line of JSON per finished run to results/search.jsonl, `table` shows them,
`overhead` times ours and appends to the file that is named. All methods search for the parameters
of the same linear policy with a constant, from zero, with one setting for all tasks; k discrete
actions are the corners of a simplex, as in `bayespg.PGPE`. Ours is `bayespg.search.Search` with the
units and the first scale of `bayespg.PGPE`; its settings were chosen on seeds below 1,000. The
rivals see observations in units that they get for free: the root mean square over 20 episodes of
small random gains, which are not counted. Their settings, too, are the best on seeds below 1,000 by
the score of `search_settings.py`. ARS is version 1; CMA-ES is that of the package `cma`; GIBO, MPD,
MinUCB and TuRBO are in `rivals/local_bo.py`. On Pendulum all are linear in `PRODUCTS` too.
`ours-8` keeps eight episodes under way, which end in random
order.

After each iteration the method's own recommendation is evaluated on episodes that no method learns
from. A threshold is met at the first of three evaluations in a row that reach it; the episodes and
steps of evaluations are not counted. On lqr3 (Dean et al.: three states and three inputs, horizon
300, as in GIBO's paper; no constant) an evaluation asks whether the closed loop is stable.
`mountain-car` is the paper's. Classic tasks are those of `bayespg.environments` in JAX; those whose
names end in -v5 are Gymnasium's and need `pip install 'bayespg[mujoco]'`, except Swimmer, which is
that of `swimmer.py` and needs a C compiler.
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

import bayespg  # noqa: F401  # isort: skip  (first, for the thread pool)

import gymnasium
import jax
import jax.numpy as jnp
import swimmer
from rivals.local_bo import local_bo, turbo

from bayespg import search
from bayespg.agents.pgpe import LONGEST
from bayespg.environments import MountainCar, classic
from bayespg.environments.base import observe
from bayespg.policies.deterministic import CONSTANT, corners, divisors

TASKS = {
    "CartPole-v1": (475.0, 20, 100), "mountain-car": (-80.0, 50, 100),
    "MountainCarContinuous-v0": (90.0, 20, 60), "MountainCar-v0": (-110.0, 50, 150),
    "lqr3": (1.0, 1, 60), "Acrobot-v1": (-100.0, 20, 100), "Pendulum-v1": (-300.0, 20, 200),
    "InvertedPendulum-v5": (950.0, 3, 100), "Swimmer-v5": (300.0, 2, 100),
    "Hopper-v5": (1000.0, 3, 300),
}  # fmt: skip
"""Threshold, episodes per evaluation, and budget in episodes."""
IN_JAX = {
    "CartPole-v1": classic.CartPole(), "mountain-car": MountainCar(),
    "MountainCarContinuous-v0": classic.MountainCarContinuous(),
    "MountainCar-v0": classic.MountainCar(), "Acrobot-v1": classic.Acrobot(),
    "Pendulum-v1": classic.Pendulum(),
}  # fmt: skip
CONTINUOUS = ("MountainCarContinuous-v0", "Pendulum-v1")
PRODUCTS = ("Pendulum-v1",)
"""Tasks on which policies are linear in products of two observations too: nothing that is linear in
the cosine, the sine and the velocity swings the pendulum up."""
FAR = 0.6
"""An evaluation in Gymnasium ends where its first episode returns less than this share of the
threshold, and there is none before an episode of the search returned that much."""
A = np.array([[1.01, 0.01, 0.0], [0.01, 1.01, 0.01], [0.0, 0.01, 1.01]])
IN_A_ROW = 3
Recommendation = tuple[int, int, Any]
"""Episodes and steps so far, and what would be used now."""


def observed(name: str, x: jax.Array) -> jax.Array:
    """What policies of a task in JAX are linear in, beside a constant."""
    o = observe(IN_JAX[name], x)
    if name not in PRODUCTS:
        return o
    i, j = np.triu_indices(o.shape[1])
    # The square of the sine is one less that of the cosine.
    kept = [k for k, pair in enumerate(zip(i, j, strict=True)) if pair != (1, 1)]
    return jnp.concatenate([o, (o[:, i] * o[:, j])[:, np.array(kept)]], 1)


@functools.cache
def compiled(name: str, paths: int) -> tuple[Callable[..., Any], int]:
    """Episodes of an affine policy on a task in JAX, all at once: returns, lengths, and sums of
    squared observations; and the size of an observation."""
    task = IN_JAX[name]
    limit = getattr(task, "limit", None)

    def play(W, key):
        def step(state):
            t, x, going, total, lengths, squares = state
            o = observed(name, x)
            a = o @ W[:, :-1].T + W[:, -1]
            action = jnp.argmax(a, 1) if limit is None else limit * jnp.clip(a, -1, 1)
            then, reward, ends = task.step(jax.random.fold_in(key, t), x, action)
            total = total + jnp.where(going, reward, 0.0)
            squares = squares + jnp.sum(jnp.where(going[:, None], o, 0.0) ** 2, 0)
            return t + 1, then, going & ~ends, total, lengths + going, squares

        x = task.reset(key, paths)
        going = jnp.ones(paths, bool)
        size = observed(name, x).shape[1]
        start = (0, x, going, jnp.zeros(paths), jnp.zeros(paths, int), jnp.zeros(size))
        left = jax.lax.while_loop(lambda s: (s[0] < task.horizon) & jnp.any(s[2]), step, start)
        return left[3:]

    return jax.jit(play), observed(name, task.reset(jax.random.key(0), 1)).shape[1]


class Gains:
    """Episodes of a linear policy. Observations are divided by units, which are those of 20 other
    episodes if `given`, or else follow all observations so far."""

    def __init__(self, name: str, given: bool):
        self.name, self.choices, self.in_jax, self.highest = name, 0, name in IN_JAX, -math.inf
        if name == "lqr3":
            self.n = 9
            return
        if self.in_jax:
            self.observations, self.outputs = compiled(name, 1)[1], 1
            self.choices = getattr(IN_JAX[name], "choices", 0 if name in CONTINUOUS else 3)
        else:
            self.environment = gymnasium.make(name, disable_env_checker=True)
            self.observations = math.prod(self.environment.observation_space.shape)
            self.high = self.environment.action_space.high
            self.outputs = len(self.high)
        self.outputs = self.choices - 1 if self.choices else self.outputs
        self.n, self.units = (self.observations + 1) * self.outputs, np.ones(self.observations)
        self.steps, self.squares = 0, np.zeros(self.observations)
        if given:
            rng = np.random.default_rng(10**7)
            for k in range(20):
                self.play(0.2 * rng.normal(size=self.n), 10**7 + k)
            self.units, self.highest = np.sqrt(self.squares / self.steps), -math.inf

    def follow(self) -> np.ndarray:
        """Take the units of all observations so far, and return the factors by which parameters of
        the same policy change."""
        if self.name == "lqr3":
            return np.ones(self.n)
        old, self.units = self.units, np.sqrt(self.squares / self.steps)
        factors = divisors(self.units) / divisors(old)
        return np.tile(np.append(factors, 1.0), self.outputs)

    def raw(self, theta: np.ndarray) -> np.ndarray:
        """Parameters for raw observations, of length one where only their direction matters: two
        that are equal are the same policy."""
        if self.name == "lqr3":
            return theta
        W = theta.reshape(self.outputs, -1) / np.append(divisors(self.units), 1 / CONSTANT)
        return W / (np.linalg.norm(W) or 1.0) if self.choices else W

    def play(self, theta: np.ndarray, seed: int) -> tuple[float, int]:
        """Return and length of an episode."""
        if self.name == "lqr3":
            return self._lqr(theta.reshape(3, 3), seed)
        returns, length, squares = self._episodes(theta, seed, 1)
        self.steps, self.squares = self.steps + length, self.squares + squares
        self.highest = max(self.highest, float(returns[0]))
        return float(returns[0]), length

    def _episodes(
        self, theta: np.ndarray, seed: int, paths: int
    ) -> tuple[np.ndarray, int, np.ndarray]:
        """Returns, the number of steps, and sums of squared observations."""
        W = theta.reshape(self.outputs, -1) / np.append(divisors(self.units), 1 / CONSTANT)
        W = corners(self.choices) @ W if self.choices else W
        if self.in_jax:
            found = compiled(self.name, paths)[0](W.astype(np.float32), jax.random.key(seed))
            returns, lengths, squares = map(np.asarray, found)
            return returns, int(lengths.sum()), squares
        returns, steps, squares = np.zeros(paths), 0, np.zeros(self.observations)
        for k in range(paths):
            if self.name == "Swimmer-v5":
                returns[k], seen = swimmer.play(W, seed + k)
                steps, squares = steps + swimmer.STEPS, squares + seen
                continue
            x, _ = self.environment.reset(seed=seed + k)
            ended = False
            while not ended:
                action = np.clip(W[:, :-1] @ x + W[:, -1], -1, 1) * self.high
                steps, squares = steps + 1, squares + x**2
                x, reward, terminated, truncated, _ = self.environment.step(action)
                returns[k] += float(reward)
                ended = terminated or truncated
        return returns, steps, squares

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

    def close(self) -> bool:
        """Whether an episode came close enough to the threshold for evaluations in Gymnasium."""
        unlimited = self.in_jax or self.name == "lqr3"
        return unlimited or self.highest >= FAR * TASKS[self.name][0]

    def passes(self, theta: np.ndarray) -> bool:
        """Whether the mean return of fresh episodes reaches the threshold. One episode in Gymnasium
        comes first, and those far below are not played on."""
        threshold, episodes, _ = TASKS[self.name]
        if self.name == "lqr3":
            return bool(np.abs(np.linalg.eigvals(A + theta.reshape(3, 3))).max() < 1)
        if self.in_jax:
            return bool(self._episodes(theta, 10**6, episodes)[0].mean() >= threshold)
        first = self._episodes(theta, 10**6, 1)[0][0]
        if first < FAR * threshold:
            return False
        others = self._episodes(theta, 10**6 + 1, episodes - 1)[0]
        return bool(first + others.sum() >= episodes * threshold)


def ours(task: Gains, seed: int, budget: int, under_way: int = 1) -> Iterator[Recommendation]:
    scale = radius = None
    if task.name != "lqr3" and not task.choices:
        scale, radius = 1 / math.sqrt(task.observations), LONGEST * math.sqrt(task.outputs)
    found = search.Search(task.n, scale=scale, sphere=bool(task.choices), radius=radius, seed=seed)
    rng, steps = np.random.default_rng(seed), 0
    while found.episodes < budget:
        if not found.episodes and scale is not None:
            theta = scale * rng.normal(size=task.n)  # while the units are not known
        else:
            asked = found.ask(under_way if found.episodes else 1)
            theta = asked[rng.integers(len(asked))]
        value, length = task.play(theta, 1000 * seed + found.episodes)
        steps += length
        found.tell(theta, value)
        found.rescale(task.follow())
        yield found.episodes, steps, found.best


ARS = {"directions": 2, "kept": 2, "noise": 0.2, "rate": 0.1}
DEVIATION = 0.35
"""The first deviation of CMA-ES."""


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


def cma(task: Gains, seed: int, budget: int) -> Iterator[Recommendation]:
    """pycma with its default settings."""
    import cma as package

    strategy = package.CMAEvolutionStrategy(
        np.zeros(task.n), DEVIATION, {"seed": seed + 1, "verbose": -9}
    )
    episodes = steps = 0
    while episodes < budget:
        asked = strategy.ask()
        played = [task.play(x, 1000 * seed + episodes + k) for k, x in enumerate(asked)]
        episodes, steps = episodes + len(asked), steps + sum(length for _, length in played)
        strategy.tell(asked, [-value for value, _ in played])
        yield episodes, steps, np.array(strategy.result.xfavorite)


METHODS: dict[str, Callable[..., Iterator[Recommendation]]] = {
    "ours": ours, "ars": ars, "cma": cma,
    "gibo": functools.partial(local_bo, rule="gibo"),
    "mpd": functools.partial(local_bo, rule="mpd"),
    "minucb": functools.partial(local_bo, rule="minucb"), "turbo": turbo,
    "ours-8": functools.partial(ours, under_way=8),
}  # fmt: skip
RIVALRY = ("ours", "ars", "cma", "gibo", "mpd", "minucb", "turbo")
"""The methods of `run`, if it is not told others."""
NAMES = {
    "ours": "ours", "ours-8": "ours, eight at a time", "ars": "ARS", "cma": "CMA-ES",
    "gibo": "GIBO", "mpd": "MPD", "minucb": "MinUCB", "turbo": "TuRBO",
}  # fmt: skip


def met(name: str, method: str, seed: int) -> dict[str, Any]:
    """A run until the threshold is met, or the budget spent."""
    budget = TASKS[name][-1]
    task = Gains(name, given=not method.startswith("ours"))
    row, first, passed, gains, begun = 0, (None, None), False, None, time.perf_counter()
    for episodes, steps, theta in METHODS[method](task, seed, budget):
        raw = task.raw(theta)
        new = gains is None or not np.allclose(raw, gains, rtol=1e-6, atol=0)
        if new and task.close():
            gains, passed = raw, task.passes(theta)
        row = row + 1 if passed else 0
        if row == 1:
            first = (episodes, steps)
        if row == IN_A_ROW:
            break
    else:
        first = (None, None)
    return {
        "task": name, "method": method, "seed": seed, "episodes": first[0], "steps": first[1],
        "budget": budget, "seconds": round(time.perf_counter() - begun, 2),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }  # fmt: skip


def table(path: Path) -> str:
    """A table in Markdown of the runs in a file: the median of episodes to the threshold, how many
    runs met it, and the median of steps."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    methods = [m for m in NAMES if any(x["method"] == m for x in lines)]
    rows = [["", *(NAMES[m] for m in methods)], ["---"] * (1 + len(methods))]
    for name, (threshold, _, budget) in TASKS.items():
        found = {m: [x for x in lines if (x["task"], x["method"]) == (name, m)] for m in methods}
        if any(found.values()):
            goal = "stable" if name == "lqr3" else f"{threshold:g}"
            rows.append([f"{name}, {goal} in {budget}", *map(cell, found.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def cell(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    episodes, steps = (
        np.median([math.inf if x[what] is None else x[what] for x in runs])
        for what in ("episodes", "steps")
    )
    met = f"{sum(x['episodes'] is not None for x in runs)}/{len(runs)}"
    return f"never, {met}" if math.isinf(episodes) else f"{episodes:.3g}, {met}; {steps:,.0f}"


def overhead(n: int, episodes: int, out: Path) -> None:
    """Milliseconds per episode of asking and telling, with that many parameters, and episodes in
    memory."""
    rng, found = np.random.default_rng(0), search.Search(n)
    X = rng.normal(size=(episodes, n))
    found.tell(X, -np.sum((X - 1) ** 2, 1))
    times = []
    for _ in range(50):
        begun, asked = (time.perf_counter(), time.process_time()), found.ask()
        found.tell(asked, -np.sum((asked - 1) ** 2, 1) + rng.normal(size=len(asked)))
        times.append(1e3 * np.subtract((time.perf_counter(), time.process_time()), begun))
    wall, cpu = np.median(times, axis=0)
    line = {
        "parameters": n, "episodes": episodes, "wall_ms": round(float(wall), 2),
        "cpu_ms": round(float(cpu), 2),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }  # fmt: skip
    print(line)
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")


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
        for size in ((16, 100), (100, 500)):
            overhead(*size, given.out)
        return
    if given.what == "run":
        seeds = range(given.first, given.first + given.seeds)
        runs = [(t, m, s) for s in seeds for t in given.tasks for m in given.methods]
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
