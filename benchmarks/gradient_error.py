"""Errors of gradients against very many episodes: ours beside GAE with tuned lambda.

    python benchmarks/gradient_error.py --jobs 9 --out docs/results/gradient-error.jsonl
    python benchmarks/gradient_error.py --table docs/results/gradient-error.jsonl

CartPole, Acrobot and Pendulum in JAX with the policy fourier at three stages of training: after 4,
10 and 30 updates of 8 episodes. The gradient is that of the task without the time limit,
a mean over steps, from 10^5 episodes. Each of `--runs` trials draws a batch of the policy of that
stage, and batches of the same size of the three policies before it: GAE fits its values to
these. All estimators see the same episodes.

With inner products in the metric of the natural step, D^-1, an estimate h of the gradient g has

    error     1 - (E[h]'D^-1 g)^2 / (E[h'D^-1 h] g'D^-1 g): the squared error relative to g'D^-1 g,
              at the multiple of h at which it is smallest
    cosine    the mean over trials of the cosine of h and g: progress of a step of given length

GAE has the best lambda of five for each task, stage and size, in hindsight; ours has one for all.
`doubt` is the squared standard error of the brute-force gradient over its squared length. The table
leaves out stages where it is above 0.1: the gradient is then hardly told from zero.
"""

import argparse
import multiprocessing
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rivals import sb3
from uphill_tasks import DOUBT, TASKS

import bayespg
from bayespg import estimators, training, updates
from bayespg._support.precision import to_float64
from bayespg.calibration import brute_force
from bayespg.environments import observe
from bayespg.environments.base import Wrapper
from bayespg.environments.trajectories import returns_to_go
from bayespg.learning import values
from bayespg.learning.advance import _criticise
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator, MonteCarlo
from bayespg.learning.values import start
from bayespg.monte_carlo import average
from bayespg.paths import scores
from bayespg.policies import flatten
from bayespg.policies.features import Fourier

BEYOND = 300
"""Steps after the time limit, for the gradient of the task that continues; 0.99^300 = 0.05."""
STAGES = (4, 10, 30)
BEFORE = 3
"""Earlier policies whose batches are there too."""
LAMBDAS = (0.8, 0.9, 0.95, 0.98, 1.0)
STEPS = {"weights": "uniform", "fisher": estimators.stationary_integrated_out}
OURS = {
    **{
        f"BAC, λ = {lambda_:g}": estimators.BAC(lambda_=lambda_)
        for lambda_ in (0.8, 0.9, 0.98, 1.0)
    },
    "BAC, λ = 0.9, value scale 1": estimators.BAC(lambda_=0.9, value_scale=1.0),
    "Monte Carlo less values": MonteCarlo("states", **STEPS),
}
"""Of the actor-critic, with value scale 10 if no other is named."""
RIVALS = {f"GAE, λ = {lambda_:g}": MonteCarlo("mean", lambda_, **STEPS) for lambda_ in LAMBDAS}


class Continued(Estimator):
    """The mean over the first steps of u times the return-to-go of a task that continues."""

    first: int = eqx.field(static=True)

    def __call__(self, batch):
        paths = batch.steps
        T, M = paths.mask.shape
        counted = paths.mask & (jnp.arange(T) < self.first)[:, None]
        credit, _ = values.centred(returns_to_go(paths, batch.discount), counted)
        weights = counted * (M / jnp.sum(counted)).astype(batch.dtype)
        return average(scores.of_paths(batch.policy, batch.paths, credit * weights))


class Normalised(Wrapper):
    """A task whose observations are normalised with fixed statistics, as in training."""

    environment: Any
    normaliser: Any

    def observe(self, states):
        return self.normaliser(observe(self.environment, states))


def stage(agent, count: int, key):
    """The policy after `count` updates, the policies before it, and the statistics of observations
    at that time."""
    found = training.train(
        agent.world.environment, agent.policy, estimators.BAC(), updates.trust_region(0.05),
        paths=8, updates=count, key=key, normalise=True,
    )  # fmt: skip
    rebuild = flatten(to_float64(agent.policy))[1]
    before = [rebuild(jnp.asarray(t)) for t in found.history.parameters[: -BEFORE - 1 : -1]]
    return jax.tree.map(jnp.asarray, found.policy), before, found.state.normaliser


@eqx.filter_jit
def trials(environment, policy, before, judged, truth, metric, paths, keys, at_once):
    """h'D^-1 g and h'D^-1 h of every trial and estimator."""

    def run(key):
        keys = jax.random.split(key, BEFORE + 1)
        batch = draw(environment, policy, keys[0], paths)
        earlier = [
            draw(environment, one, k, paths) for one, k in zip(before, keys[1:], strict=True)
        ]
        seen = jax.eval_shape(lambda: batch.paths.states[0, 0])
        found = []
        for estimator in judged:
            critic = None
            if estimator.needs.critic:
                critic = start(Fourier(*seen.shape))
                for one in reversed(earlier):
                    critic = _criticise(_with(one, critic=critic), estimator.needs)[0]
            h = estimator(_with(batch, critic=critic))
            direction = metric.solve(h.mean)
            found.append((direction @ truth, direction @ h.mean))
        return found

    return jax.lax.map(run, keys, batch_size=at_once)


def _with(batch, **changes):
    for name, value in changes.items():
        batch = eqx.tree_at(
            lambda b, name=name: getattr(b, name), batch, value, is_leaf=lambda x: x is None
        )
    return batch


def measure(task: str, count: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The lines of one task at one stage."""
    key, make = jax.random.key(options.seed), TASKS[task]
    agent = bayespg.BAC(make(), policy="fourier")
    horizon = agent.world.environment.horizon
    longer = bayespg.BAC(make(horizon=horizon + BEYOND)).world.environment
    judged, lines = OURS | RIVALS, []
    policy, before, normaliser = stage(agent, count, key)
    truth, error = brute_force(
        Normalised(longer, normaliser), policy, Continued(horizon),
        batches=max(options.episodes // options.batch, 2), paths=options.batch,
        key=jax.random.fold_in(key, 1),
    )  # fmt: skip
    doubt = float(np.sum(error**2) / max(np.sum(truth**2), 1e-300))
    where = Normalised(agent.world.environment, normaliser)
    with jax.enable_x64(True):
        metric = eqx.filter_jit(_metric)(where, policy, jax.random.fold_in(key, 2))
        size = float(truth @ metric.solve(jnp.asarray(truth)))
        for paths in options.paths:
            begun = time.perf_counter()
            found = trials(
                where, policy, before, list(judged.values()), jnp.asarray(truth), metric, paths,
                jax.random.split(jax.random.fold_in(key, 3 + count), options.runs),
                options.at_once,
            )  # fmt: skip
            for name, (along, square) in zip(judged, found, strict=True):
                along, square = np.asarray(along), np.asarray(square)
                cosine = along / np.sqrt(np.maximum(square, 1e-300) * size)
                lines.append({
                    "task": task, "updates": count, "paths": paths, "estimator": name,
                    "error": 1 - float(along.mean() ** 2 / (square.mean() * size)),
                    "cosine": float(cosine.mean()),
                    "cosine_error": float(cosine.std() / np.sqrt(cosine.size)),
                    "runs": options.runs, "doubt": doubt, "seed": options.seed,
                    "device": jax.devices()[0].device_kind,
                    "seconds": round(time.perf_counter() - begun, 1),
                })  # fmt: skip
    return lines


def _metric(environment, policy, key):
    """D of the states of this policy."""
    batch = draw(environment, policy, key, 64)
    return estimators.Metric()(batch, estimators.stationary_integrated_out(batch))


def table(path: Path) -> str:
    """Errors of ours over those of GAE with its best lambda: each stage, and their geometric
    mean."""
    cells: dict[Any, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in sb3.read(path):
        if line["doubt"] <= DOUBT:
            cells[line["paths"], line["task"], line["updates"]][line["estimator"]] = line
    rows = []
    for paths in sorted({key[0] for key in cells}):
        here = {key[1:]: found for key, found in sorted(cells.items()) if key[0] == paths}
        head = [f"{task}, {count}" for task, count in here]
        rows += [f"\n{paths} episodes\n", "| | " + " | ".join([*head, "geometric mean"]) + " |"]
        rows.append("|---" * (len(head) + 2) + "|")
        best = {key: min(found[name]["error"] for name in RIVALS) for key, found in here.items()}
        rows.append(
            "| GAE, best λ: error | " + " | ".join(f"{x:.2f}" for x in best.values()) + " | |"
        )
        for name in dict.fromkeys(name for found in here.values() for name in found):
            ratios = [here[key][name]["error"] / best[key] for key in here]
            mean = float(np.exp(np.mean(np.log(ratios))))
            shown = " | ".join(f"{x:.2f}" for x in [*ratios, mean])
            rows.append(f"| {name} | {shown} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--stages", nargs="*", type=int, default=list(STAGES))
    parser.add_argument("--episodes", type=int, default=100_000, help="of the brute-force gradient")
    parser.add_argument("--batch", type=int, default=1_000, help="episodes drawn at once")
    parser.add_argument("--runs", type=int, default=100, help="trials")
    parser.add_argument("--paths", type=int, nargs="*", default=[8, 2])
    parser.add_argument("--at-once", type=int, default=1, help="trials at once; more for a GPU")
    parser.add_argument("--jobs", type=int, default=1, help="tasks and stages at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/gradient-error.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of a finished file and exit")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        started = [
            pool.submit(measure, task, count, options)
            for task in options.tasks
            for count in options.stages
        ]
        for finished in as_completed(started):
            for line in finished.result():
                sb3.append(options.out, line)
                print(*(line[name] for name in ("task", "updates", "paths", "estimator")))


if __name__ == "__main__":
    main()
