"""Beyond the paper: how often regions of 50, 90 and 95 % contain the exact gradient.

Four kinds of error bars are compared: "paper's choice" (Model 1, Sigma = 1e-3 I); "evidence" (Model
2 with a flat baseline, scale and noise chosen by marginal likelihood, with the model's own
covariance); "robust" (the same estimate with the error bars that `interval` gives); and Monte Carlo
with its Student intervals. G has the actions integrated out.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support.random import fast_key
from bayespg.calibration import LEVELS, coverage
from bayespg.environments import LQR, Bandit, Solved
from bayespg.learning.estimators import Model1, Model2, Reinforce
from bayespg.policies import Gaussian, LinearGaussian, Policy
from bayespg.reproduce.claims import Claim, shares
from bayespg.reproduce.report import (
    Curve,
    Experiment,
    Progress,
    Report,
    Settings,
    draw_panels,
)
from bayespg.reproduce.samples import Samples
from bayespg.runs import plots

TASKS: dict[str, tuple[Solved, Policy]] = {
    "bandit, r = a² + noise": (Bandit(reward=lambda a: a**2, reward_noise=1.0), Gaussian(0.0, 1.0)),
    "bandit, r = sin 3a": (Bandit(reward=lambda a: jnp.sin(3 * a)), Gaussian(0.0, 1.0)),
    "bandit, r = exp(a/2)": (Bandit(reward=lambda a: jnp.exp(a / 2)), Gaussian(0.0, 1.0)),
    "LQR, λ = -0.2, σ = 1": (LQR(), LinearGaussian(-0.2, 1.0)),
    "LQR, λ = -0.9, σ = 0.1": (LQR(), LinearGaussian(-0.9, 0.1)),
    "LQR, λ = -1.5, σ = 0.5": (LQR(), LinearGaussian(-1.5, 0.5)),
}
ESTIMATORS = {
    "paper's choice": Model1(),
    "evidence": Model2(noise=None, baseline=float("inf")),
    "Monte Carlo": Reinforce("mean"),
}
SHOWN = {
    "paper's choice": ("paper's choice", False, "BQ"),
    "evidence": ("evidence", False, "BQ natural"),
    "robust": ("evidence", True, "ours"),
    "Monte Carlo, t": ("Monte Carlo", True, "MC"),
}
"""What a row shows: the estimator, whether its error bars are the robust ones, and its look."""


def run(settings: Settings, progress: Progress) -> Report:
    Ms = (5, 10, 20, 50, 100) if settings.paper else (5, 20) if settings.quick else (5, 20, 100)
    rows, curves, found = [], [], {}
    cells = [(task, M) for task in TASKS for M in Ms]
    for done, (task, M) in enumerate(cells):
        progress(done / len(cells), f"{task}, M = {M}")
        environment, policy = TASKS[task]
        key = jax.random.fold_in(fast_key(settings.seed), done)
        for row in coverage(environment, policy, ESTIMATORS, paths=M, runs=settings.runs, key=key):
            found[task, M, row.estimator, row.robust, row.level] = row
    for task in TASKS:
        for label, (name, robust, look) in SHOWN.items():
            at = [found[task, M, name, robust, 0.95] for M in Ms]
            half = [(r.region_interval[1] - r.region_interval[0]) / 4 for r in at]
            curves.append(Curve(task, label, look, list(Ms), [r.region for r in at], half))
            for M in Ms:
                of = [found[task, M, name, robust, level] for level in LEVELS]
                low, high = of[-1].region_interval
                rows.append(
                    [
                        task,
                        str(M),
                        label,
                        *(f"{100 * r.region:.0f}" for r in of),
                        f"{100 * low:.1f} to {100 * high:.1f}",
                    ]
                )
    held = {
        (task, M): (round(row.region * settings.runs), settings.runs)
        for task in TASKS
        for M in Ms
        if task.startswith("LQR")
        for row in [found[task, M, "evidence", True, 0.95]]
    }
    columns = ["task", "M", "error bars", *(f"{100 * level:.0f} %" for level in LEVELS)]
    return Report(
        columns=[*columns, "binomial interval at 95 %"],
        rows=rows,
        curves=curves,
        samples=Samples({("held", task, M): np.array(of) for (task, M), of in held.items()}),
        figure=lambda: _figure(curves),
        notes=["Percentage of runs whose joint region contains the exact gradient."],
        extra={
            "coverage": [{"task": k[0], "paths": k[1], **r._asdict()} for k, r in found.items()]
        },
    )


def judge(samples: Samples) -> list[Claim]:
    held = {f"{task}, M = {M}": (int(k), int(n)) for (_, task, M), (k, n) in samples.items()}
    return [
        Claim(
            "calibration", "",
            "with scale and noise chosen by evidence, robust 95 % regions contain the LQR gradient "
            "about as often as stated",
            "share of runs whose region contains it", shares(held), above=0.92, below=0.99,
        )
    ]  # fmt: skip


def _figure(curves: list[Curve]):
    figure, axes = plots.sheet(2, 3, width=10, height=6, sharex=True, sharey=True)
    for axis in axes.flat:
        axis.axhline(95, color="black", lw=0.8, ls=(0, (4, 3)))
    draw_panels(axes.flat, [c.per_cent() for c in curves], xscale="log", ylim=(-3, 103))
    for axis in axes.flat:
        axis.set_xticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
        axis.minorticks_off()
    for axis in axes[-1]:
        axis.set_xlabel("paths M")
    for axis in axes[:, 0]:
        axis.set_ylabel("95 % regions that contain\nthe exact gradient (%)")
    plots.legend_below(figure, axes[0, 0], 4)
    return figure


EXPERIMENT = Experiment(
    name="calibration",
    item="beyond the paper",
    title="How often the error bars contain the exact gradient",
    runs=2_000,
    quick_runs=200,
    paper_runs=10_000,
    run=run,
    judge=judge,
    minutes=2,
)
