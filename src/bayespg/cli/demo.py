"""bayespg demo."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from bayespg._support.files import make_directory
from bayespg._support.statistics import student_interval
from bayespg.agents.agent import Agent
from bayespg.agents.metrics import Row
from bayespg.cli.common import app, progress, say, table
from bayespg.cli.options import option
from bayespg.runs import curves, plots
from bayespg.runs.columns import Column

OURS = "bac"
SHOWN = {
    OURS: "Bayesian actor-critic",
    "gpomdp": "Monte Carlo",
    "fitted": "Monte Carlo less fitted values",
}
SHORT, JUDGES = 0.2, 100
"""A direction is judged by the policies before an update and this share of its step further, which
both play this many further episodes: where the return falls at the end of a step, the direction may
still be right, and the step too long."""


@app.command()
def demo(
    out: Path = option("Directory for the figure.", Path("results")),
    seeds: int = option("Independent runs.", 6, min=1),
    steps: int = option("Environment steps per run.", 15_000, min=1000),
) -> None:
    """Learn CartPole from a few dozen episodes, and show how sure the learner was of its
    directions, and how often it was right."""
    make_directory(out)  # fail before the work, not after it
    judge = Agent("jax/CartPole-v1", estimator=OURS, seed=0)
    metrics: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in SHOWN}
    rows = []
    with progress("CartPole-v1") as advance:
        for i, name in enumerate(metrics):
            for seed in range(seeds):
                agent = Agent("CartPole-v1", estimator=name, seed=seed)
                done = (i * seeds + seed) / (len(SHOWN) * seeds)
                updates: list[Row] = []
                before = [agent.state]

                def show(agent, row, done=done, name=name, updates=updates, before=before):
                    up = uphill(judge, before[0], agent.state) if name == OURS else np.nan
                    updates.append(row | {curves.UPHILL: up})
                    before[0] = agent.state
                    part = min(row[Column.STEPS] / steps, 1.0) / (len(SHOWN) * seeds)
                    advance(done + part, f"{name}, return {row[Column.RETURN]:.0f}")

                agent.learn(steps, callbacks=show, progress=False)
                metrics[name].append({k: np.array([row[k] for row in updates]) for k in updates[0]})
    for name, label in SHOWN.items():
        last = np.array([m[Column.RETURN][-3:].mean() for m in metrics[name]])
        low, high = student_interval(last)
        rows.append([label, f"{last.mean():.0f}", f"{max(low, 0):.0f} to {min(high, 500):.0f}"])
    table(["", f"return after {steps:,} steps", "95 % over seeds"], rows)
    pictured = [(label, curves.of_metrics(metrics[name])) for name, label in SHOWN.items()]
    path = out / "demo.png"
    plots.save(curves.draw_judged(pictured, "CartPole-v1", 475, metrics[OURS]), path)
    say("\nPicture: ", (str(path), "bold"), ". Now one of yours: bayespg train Acrobot-v1")


def uphill(judge: Any, before: Any, after: Any) -> float:
    """Whether the return rises along the step between two states of an agent: 1, 0 for no, one half
    if no episode differs, and NaN where no step was made."""
    with jax.enable_x64(True):  # small policies are learned in double precision
        old, new = (
            ravel_pytree(eqx.filter(x.policy, eqx.is_inexact_array)) for x in (before, after)
        )
        step = new[0] - old[0]
        if not step.any():
            return np.nan
        ahead = eqx.apply_updates(before.policy, old[1](SHORT * step))
    change = 0.0
    for policy, sign in ((ahead, 1), (before.policy, -1)):
        judge.state = eqx.tree_at(lambda state: state.policy, before, policy)
        change += sign * judge.evaluate(JUDGES, seed=0).mean
    return 0.5 + 0.5 * float(np.sign(change))
