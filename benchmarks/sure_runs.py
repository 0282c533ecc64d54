"""The column `sure` of runs that learn, beside the gradient of very many episodes at every update.

    python benchmarks/sure_runs.py --first 200 --out docs/results/sure-runs.jsonl
    python benchmarks/sure_runs.py --table docs/results/sure-runs.jsonl --picture sure-runs.svg

CartPole, Acrobot and Pendulum in JAX with the default agent. At each update `EPISODES` further
episodes of the same policy tell the slope along the direction that is followed, the natural
gradient, and its standard error; the objective is the agent's own, the mean over steps, with the
time limit as an end. Stated are what the batch says by itself and the column `sure`. An update goes
uphill with the probability that its measured slope leaves. Rows with the column "coherent" are of
commit 5173c3d: a run then learned how coherent the gradients of its updates are, too.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lines
import numpy as np
from scipy import stats

import bayespg
from bayespg._support import compilation
from bayespg._support.precision import to_float64
from bayespg.calibration import ENDS
from bayespg.environments.trajectories import returns
from bayespg.learning.advance import advance, batch_of
from bayespg.learning.estimators import MonteCarlo
from bayespg.posterior import uphill
from bayespg.runs import plots

TASKS = {"Pendulum": 60_000, "Acrobot": 20_000, "CartPole": 25_000}
EPISODES, SEEDS = 4_000, 2
EXACT = MonteCarlo("states", weights="uniform", limit_ends=True)
STATED, LOOKS = ("one batch", "sure"), ("MC", "ours")
BINS, FEW = (-1.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), 5
"""Ends of the parts of a reliability diagram, and the fewest updates that are drawn."""


def _updated(estimator, update, state, raw, discount, horizon, environment):
    batch = batch_of(state, raw, discount, horizon, environment)
    state, record, posterior = advance(estimator, update, state, batch, raw)
    said = jnp.stack([uphill(posterior, True), record.sure])
    d = posterior.fisher.solve(posterior.mean)  # pyright: ignore[reportOptionalMemberAccess]
    about = said, d, batch.discount, jnp.mean(returns(raw)), jnp.any(posterior.mean != 0)
    return state, about


def _slope(state, raw, discount, horizon, d):
    """The slope along d, and its standard error."""
    along = EXACT.samples(batch_of(state, raw, discount, horizon)) @ d
    return jnp.mean(along), jnp.std(along) / jnp.sqrt(along.size)


@functools.cache
def _compiled(double: bool):
    options: dict[str, Any] = {"compiler_options": compilation.fast(double=double)}
    exact: dict[str, Any] = {"compiler_options": compilation.fast(double=True)}
    return eqx.filter_jit(_updated, **options), eqx.filter_jit(_slope, **exact)


def measured(task: str, steps: int, seed: int, episodes: Any, seconds: float) -> lines.Line:
    begun = time.monotonic()
    agent = bayespg.BAC(f"jax/{task}-v1", seed=seed, episodes=episodes)
    learn, slope_along = _compiled(agent._double)
    rows, key = [], jax.random.key(seed)
    with agent.precision():
        while int(agent.state.steps) < steps and time.monotonic() - begun < seconds:
            before, raw = agent.state, agent.draw()
            agent.state, about = learn(*agent._arguments(raw))
            said, d, discount, mean, moves = about
            if not moves:
                continue
            more = agent.world.play(
                before.acting, jax.random.fold_in(key, len(rows)), np.arange(EPISODES),
                persistence=before.exploration.persistence,
            )  # fmt: skip
            with jax.enable_x64(True):  # sums over a million steps
                given = to_float64((before, more, discount, d))
                slope, error = slope_along(*given[:3], agent.world.horizon, given[3])
            z = float(slope) / max(float(error), 1e-300)
            rows.append([
                int(agent.state.steps), raw.mask.shape[1], round(float(mean), 1),
                *(round(float(x), 4) for x in said), round(float(stats.norm.cdf(z)), 4),
            ])  # fmt: skip
    columns = ["steps", "episodes", "return", *STATED, "uphill"]
    line = {"task": task, "seed": seed, "judges": EPISODES, "columns": columns, "rows": rows}
    return line | lines.machine()


def scores(said: np.ndarray, up: np.ndarray) -> float:
    """Brier score where `up` is a probability."""
    return float(np.mean(up * (1 - said) ** 2 + (1 - up) * said**2))


def _of(found: list[lines.Line], column: str) -> np.ndarray:
    """A column of all runs."""
    return np.concatenate([np.array(x["rows"])[:, x["columns"].index(column)] for x in found])


def table(found: list[lines.Line]) -> str:
    """For each task and all, stated / observed by the size of the statement, and the Brier score,
    beside that of an oracle that states the observed frequency of each third of a task's runs."""
    names = list(dict.fromkeys(x["task"] for x in found))
    head = (
        "task", "stated by", "mean", "up to 0.7", "0.7 to 0.9", "above 0.9", "Brier", "oracle",
    )  # fmt: skip
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in (*names, "all"):
        of = [x for x in found if x["task"] == name or name == "all"]
        up, ideal = _of(of, "uphill"), _oracle(found, name)
        for what in of[0]["columns"][3:-1]:
            if not all(what in x["columns"] for x in of):
                continue
            said = _of(of, what)
            cells = []
            for low, high in ENDS:
                inside = (said > low) & (said <= high)
                k = int(inside.sum())
                means = f"{said[inside].mean():.2f} / {up[inside].mean():.2f} " if k else ""
                cells.append(f"{means}({k})")
            text.append(
                f"| {name} | {what} | {said.mean():.2f} / {up.mean():.2f} | {' | '.join(cells)} | "
                f"{scores(said, up):.3f} | {ideal:.3f} |"
            )
    return "\n".join(text)


def _oracle(found: list[lines.Line], name: str) -> float:
    said, up = [], []
    for task in dict.fromkeys(x["task"] for x in found if name in (x["task"], "all")):
        runs = [np.array(x["rows"]) for x in found if x["task"] == task]
        for third in range(3):
            part = np.concatenate([np.array_split(run, 3)[third][:, -1] for run in runs])
            said.append(np.full(part.size, part.mean()))
            up.append(part)
    return scores(np.concatenate(said), np.concatenate(up))


def draw(found: list[lines.Line]) -> Any:
    """A reliability diagram over all tasks, with two standard errors of what was observed."""
    up = _of(found, "uphill")
    with plots.styled():
        figure, axes = plots.sheet(1, 1, width=5.2, height=4.4)
        axis = axes[0, 0]
        axis.plot([0, 1], [0, 1], color="black", lw=0.8, ls=(0, (4, 3)), label="right")
        for name, look in zip(STATED, LOOKS, strict=True):
            points, said = [], _of(found, name)
            for low, high in itertools.pairwise(BINS):
                inside = (said > low) & (said <= high)
                if inside.sum() >= FEW:
                    p, k = up[inside].mean(), inside.sum()
                    points.append((said[inside].mean(), p, np.sqrt(p * (1 - p) / k)))
            x, y, error = np.array(points).T
            plots.curve(axis, x, y, error, label=name, look=look)
        axis.set(xlabel="stated probability of going uphill", ylabel="observed frequency")
        axis.set(xlim=(0, 1.02), ylim=(0, 1.02))
        axis.legend(loc="upper left")
        return figure


def every(options: argparse.Namespace) -> Iterator[lines.Line]:
    for seed in range(options.first, options.first + options.seeds):
        for task in options.tasks:
            yield measured(task, TASKS[task], seed, options.episodes or "auto", options.seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--episodes", type=int, help="per update; auto if not given")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="for one run")
    lines.run(parser, every, table, draw)
