"""bayespg demo."""

from pathlib import Path

import numpy as np

from bayespg._support.files import make_directory
from bayespg._support.statistics import student_interval
from bayespg.agents.agent import Agent
from bayespg.agents.metrics import Row
from bayespg.cli.common import app, progress, say, table
from bayespg.cli.options import option
from bayespg.runs import curves, plots
from bayespg.runs.columns import Column

SHOWN = {
    "bac": "Bayesian actor-critic",
    "gpomdp": "Monte Carlo",
    "fitted": "Monte Carlo less fitted values",
}


@app.command()
def demo(
    out: Path = option("Directory for the figure.", Path("results")),
    seeds: int = option("Independent runs.", 6, min=1),
    steps: int = option("Environment steps per run.", 15_000, min=1000),
) -> None:
    """Learn CartPole from a few dozen episodes, and show how sure each step was."""
    make_directory(out)  # fail before the work, not after it
    metrics: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in SHOWN}
    rows = []
    with progress("CartPole-v1") as advance:
        for i, name in enumerate(metrics):
            for seed in range(seeds):
                agent = Agent("CartPole-v1", estimator=name, seed=seed)
                done = (i * seeds + seed) / (len(SHOWN) * seeds)
                updates: list[Row] = []

                def show(agent, row, done=done, name=name, updates=updates):
                    updates.append(row)
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
    plots.save(curves.draw(pictured, "CartPole-v1", 475), path)
    say("\nPicture: ", (str(path), "bold"), ". Now one of yours: bayespg train Acrobot-v1")
