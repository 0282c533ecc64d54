"""Steps to a threshold with the defaults and with other fixed settings, on tasks in JAX.

    python benchmarks/settings.py run [--tasks ...] [--seeds 32] [--jobs 4]
    python benchmarks/settings.py table [--mean]

Each cell trains `--seeds` runs of the default agent in one compiled program, with one setting
changed. After every fifth update each run plays 20 episodes with independent exploration noise. A
threshold is met where two such evaluations in a row return at least that much. `run` appends a line
of JSON per cell to results/settings.jsonl and skips cells that it finds there; on a GPU it takes
minutes, on two cores hours.

`table` shows the median steps over seeds and, in brackets, how many seeds met the threshold and how
many ended within 5 % of their best: the mean of the last three evaluations against the best mean of
three in a row, in units of the difference between the first evaluation and the best. With `--mean`
it shows the mean return over the steps of a run, with its standard error over seeds.
"""

import argparse
import dataclasses
import math
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  # noqa: F401  (first, for the thread pool)

from rivals import sb3


class Task(NamedTuple):
    threshold: float
    updates: int


CHOICES = "PendulumChoices"
"""Pendulum-v1 with a choice of three torques, to tell the kind of actions from the task. No default
was chosen on it, and it is run only where `--tasks` names it."""
TASKS = {
    "CartPole-v1": Task(475, 60),
    "Acrobot-v1": Task(-100, 60),
    "Pendulum-v1": Task(-250, 120),
    "MountainCarContinuous-v0": Task(90, 25),
    "MountainCar-v0": Task(-140, 60),
    CHOICES: Task(-250, 120),
}
"""Thresholds and budgets that the defaults meet on most seeds, so that medians exist."""
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "value scale 1": {"value_scale": 1.0},
    "λ = 0.75": {"lambda_": 0.75},
    "λ = 0.8": {"lambda_": 0.8},
    "λ = 0.85": {"lambda_": 0.85},
    "λ = 0.98": {"lambda_": 0.98},
    "λ = 1": {"lambda_": 1.0},
    "κ = 0.1": {"damping": 0.1},
    "κ = 0.5": {"damping": 0.5},
    "κ = 4": {"damping": 4.0},
    "4 episodes": {"episodes": 4},
    "limit 0.02": {"limit": 0.02},
    "independent noise": {"persistence": 0.0},
    "discount 0.97": {"discount": 0.97},
    "discount 0.999": {"discount": 0.999},
    "waves of one length": {"waves": (1.0, math.inf)},
    "waves of half that length": {"waves": (0.5, math.inf)},
    "waves of a quarter of it": {"waves": (0.25, math.inf)},
}
EVERY = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--policy", help="instead of the default; named in front of the setting")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--seed", type=int, default=2, help="of the whole cell")
    parser.add_argument("--updates", type=int, help="fewer than the task's")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--mean", action="store_true", help="mean returns instead of steps")
    parser.add_argument("--out", type=Path, default=Path("results/settings.jsonl"))
    options = parser.parse_args()
    (run if options.do == "run" else table)(options)


def run(options: argparse.Namespace) -> None:
    """All cells that are not in the file yet."""
    done = {(line["task"], line["name"]) for line in sb3.read(options.out)}
    missing = [
        (task, name, options.policy)
        for name in options.settings
        for task in options.tasks or [task for task in TASKS if task != CHOICES]
        if (task, _label(name, options.policy)) not in done
    ]
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # processes share a GPU
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, max_tasks_per_child=1) as pool:
        arguments = (options.seeds, options.seed, options.updates)
        started = [pool.submit(cell, *case, *arguments) for case in missing]
        for finished in as_completed(started):
            line = finished.result()
            sb3.append(options.out, line)
            print(f"{line['task']}, {line['name']}: {line['seconds']:.0f} s", flush=True)


def _label(name: str, policy: str | None) -> str:
    """The name of a cell."""
    if policy is None:
        return name
    return policy if name == "defaults" else f"{policy}, {name}"


def cell(
    task: str, name: str, policy: str | None, seeds: int, seed: int, updates: int | None
) -> dict[str, Any]:
    """The evaluations of every seed with one setting changed."""
    import jax
    import jax.numpy as jnp

    from bayespg._support.random import fast_key
    from bayespg.agents import build, names
    from bayespg.agents.settings import DEFAULTS
    from bayespg.environments.classic import Pendulum
    from bayespg.learning import estimators, training, trust
    from bayespg.paths.rollout import rollout
    from bayespg.paths.worlds import world
    from bayespg.policies import features, named

    class PendulumChoices(Pendulum):
        choices = 3

        def step(self, key, states, actions):
            torques = 2 * (actions - 1).astype(states.dtype)
            return super().step(key, states, torques[:, None])

    begun, changed, label = time.perf_counter(), SETTINGS[name], _label(name, policy)
    if "waves" in changed:  # the only setting that no agent has; the process ends with its cell
        features.LENGTH, features.FREEDOM = changed["waves"]
    if task == CHOICES:
        task_of = PendulumChoices()
    else:
        found = names.built_in(f"jax/{task}")
        assert found is not None
        task_of = found.environment
    where = world(dataclasses.replace(task_of, discount=changed.get("discount", task_of.discount)))
    assert where.environment is not None
    assert where.actions is not None
    asked = {key: changed[key] for key in ("lambda_", "value_scale") if key in changed}
    metric = estimators.Metric(changed.get("damping"))
    estimator: Any = estimators.BAC(metric=metric, **asked)
    environment: Any = where.environment
    policy = policy or build.default_policy(where.actions, estimator.needs)
    keys = jax.random.split(jax.random.key(seed), seeds)
    policies = [named.make(policy, *where.observation.shape, where.actions, key) for key in keys]

    def evaluate(policy, key):
        paths = rollout(environment, policy, key, sb3.EPISODES)
        return jnp.sum(jnp.where(paths.mask, paths.rewards, 0.0)) / sb3.EPISODES

    result = training.train(
        environment,
        jax.tree.map(lambda *each: jnp.stack(each), *policies),
        estimator,
        names.update("natural", changed.get("limit", DEFAULTS["limit"]), 0.0),
        key=fast_key(seed), updates=updates or TASKS[task].updates,
        paths=changed.get("episodes", trust.SIZES[0]), runs=seeds, normalise=True,
        persistence=changed.get("persistence", DEFAULTS["persistence"]),
        evaluate=evaluate, every=EVERY,
    )  # fmt: skip
    steps = np.c_[result.history.steps, result.state.steps][:, ::EVERY]
    assert result.evaluations is not None
    return {
        "task": task, "name": label, "seeds": seeds, "seed": seed, "steps": steps.tolist(),
        "returns": np.round(result.evaluations.values, 1).tolist(),
        "device": jax.devices()[0].device_kind, "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip


def table(options: argparse.Namespace) -> None:
    """For each task the median steps to the threshold; in brackets, of all seeds, those that met
    the threshold and those that kept what they learned."""
    lines = {(line["task"], line["name"]): line for line in sb3.read(options.out)}
    tasks = [task for task in options.tasks or TASKS if any(task == of for of, _ in lines)]
    heads = (task if options.mean else f"{task}, {TASKS[task].threshold:g}" for task in tasks)
    print("\n| | " + " | ".join(heads) + " |")
    print("|" + "---|" * (1 + len(tasks)))
    shown = _mean if options.mean else _cell
    for name in dict.fromkeys(name for _, name in lines):
        cells = [shown(lines[task, name]) if (task, name) in lines else "" for task in tasks]
        print(f"| {name} | {' | '.join(cells)} |")


def _cell(line: dict[str, Any]) -> str:
    threshold = TASKS[line["task"]].threshold
    met = [sb3.steps_to(threshold, *of) for of in zip(line["steps"], line["returns"], strict=True)]
    first = np.array([np.inf if at is None else at for at in met])
    median = np.quantile(first, 0.5, method="inverted_cdf")
    steps = f"{median:,.0f}" if np.isfinite(median) else "never"
    return f"{steps} ({np.isfinite(first).sum()}, {sum(map(sb3.kept, line['returns']))})"


def _mean(line: dict[str, Any]) -> str:
    steps, returns = np.array(line["steps"], float), np.array(line["returns"])
    means = np.trapezoid(returns, steps) / (steps[:, -1] - steps[:, 0])
    return f"{means.mean():.4g} ± {means.std(ddof=1) / np.sqrt(len(means)):.2g}"


if __name__ == "__main__":
    main()
