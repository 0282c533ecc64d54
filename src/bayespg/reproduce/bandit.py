"""Table 2: Monte Carlo and Bayesian quadrature on the bandit.

Model 1, no sparsification, Sigma = 1e-3 I, exact G. Policy a ~ N(0, 1), theta = (mean, standard
deviation).
"""

import jax
import jax.numpy as jnp
import numpy as np

from bayespg import plots
from bayespg.environments import Bandit, exact_gradient
from bayespg.estimators import Model1, Model2, Reinforce, exact
from bayespg.policies import Gaussian
from bayespg.random import fast_key
from bayespg.reproduce.gradients import estimates
from bayespg.reproduce.report import Claim, Experiment, Progress, Report, Settings, summarise

REWARDS = {"r(a) = a": lambda a: a, "r(a) = a^2": lambda a: a**2}
SIZES = (10, 100)
ESTIMATORS = {
    "MC": Reinforce(),
    "BQ": Model1(fisher=exact),
    "MC, best baseline": Reinforce("best"),
    "Model 2 + baseline": Model2(baseline=float("inf"), fisher=exact),
}
PRINTED = {
    ("r(a) = a", "MC", 10): ((0.995, -0.001), (0.438, 0.977)),
    ("r(a) = a", "BQ", 10): ((0.986, 0.001), (0.050, 0.060)),
    ("r(a) = a", "MC", 100): ((1.000, 0.004), (0.140, 0.317)),
    ("r(a) = a", "BQ", 100): ((1.000, 0.000), (0.000001, 0.000004)),
    ("r(a) = a^2", "MC", 10): ((0.014, 2.034), (1.246, 2.831)),
    ("r(a) = a^2", "BQ", 10): ((0.001, 1.925), (0.082, 0.226)),
    ("r(a) = a^2", "MC", 100): ((0.005, 1.987), (0.390, 0.857)),
    ("r(a) = a^2", "BQ", 100): ((0.000, 2.000), (0.000003, 0.000011)),
}
"""The paper's means and standard deviations over 10^4 runs."""
PAPER_RUNS = 10_000


def run(settings: Settings, progress: Progress) -> Report:
    policy = Gaussian(jnp.asarray(0.0), jnp.asarray(1.0))
    samples, truths = {}, {}
    cells = [(reward, M) for reward in REWARDS for M in SIZES]
    for done, (reward, M) in enumerate(cells):
        progress(done / len(cells), f"{reward}, M = {M}")
        bandit = Bandit(reward=REWARDS[reward])
        truths[reward] = np.asarray(exact_gradient(bandit, policy))
        key = jax.random.fold_in(fast_key(settings.seed), done)
        for name, values in estimates(bandit, policy, ESTIMATORS, M, settings.runs, key).items():
            samples[reward, name, M] = values
    return _report(settings, samples, truths)


def _report(settings: Settings, samples: dict, truths: dict) -> Report:
    rows, claims = [], []
    worst_mean, worst_spread = 0.0, 0.0
    for reward in REWARDS:
        for M in SIZES:
            for name in ESTIMATORS:
                values = samples[reward, name, M]
                mean, error = summarise(values)
                spread = values.std(0, ddof=1)
                printed = PRINTED.get((reward, name, M))
                rows.append(
                    [reward, str(M), name, _cell(mean, spread), _cell(*printed) if printed else ""]
                )
                if printed:
                    # Both tables are averages over runs; three printed decimals add their rounding.
                    paper_error = np.array(printed[1]) / np.sqrt(PAPER_RUNS)
                    allowance = np.hypot(error, paper_error) + 0.0005 / 4
                    worst_mean = max(worst_mean, np.max(np.abs(mean - printed[0]) / allowance))
                    rounding = 0.5 * 10.0 ** -np.array([_decimals(p) for p in printed[1]])
                    gap = np.maximum(np.abs(spread - printed[1]) - rounding, 0) / printed[1]
                    worst_spread = max(worst_spread, float(np.max(gap)))
    claims.append(
        Claim(
            "every printed mean",
            f"largest gap {worst_mean:.1f} standard errors",
            bool(worst_mean < 4),
        )
    )
    claims.append(
        Claim(
            "every printed standard deviation, the 1e-6 ones included",
            f"largest gap {100 * worst_spread:.0f} %",
            bool(worst_spread < 0.2),
        )
    )
    for M, least in ((10, 2.0), (100, 1e4)):
        ratio = min(
            float(np.min(samples[r, "MC", M].std(0) / samples[r, "BQ", M].std(0))) for r in REWARDS
        )
        orders = "an order of magnitude" if M == 10 else "orders of magnitude"
        claims.append(
            Claim(
                f"M = {M}: BQ spreads less than MC by {orders}",
                f"smallest ratio of standard deviations {ratio:.3g}",
                ratio > least,
            )
        )
    extra = {
        "cells": [
            {
                "reward": reward, "paths": M, "estimator": name,
                "exact": truths[reward].tolist(),
                "mean": values.mean(0).tolist(),
                "standard_error": summarise(values)[1].tolist(),
                "standard_deviation": values.std(0, ddof=1).tolist(),
                "paper": PRINTED.get((reward, name, M)),
            }
            for (reward, name, M), values in samples.items()
        ]
    }  # fmt: skip
    return Report(
        columns=["reward", "M", "estimator", "here: mean ± sd", "paper: mean ± sd"],
        rows=rows,
        curves=[],
        claims=claims,
        figure=lambda: _figure(samples, truths),
        extra=extra,
    )


def _decimals(value: float) -> int:
    """Decimals the paper prints: three, or six for the tiny ones."""
    return 3 if value >= 0.001 else 6


def _cell(mean, spread) -> str:
    return "\n".join(
        f"{m:+.3f} ± {s:.3f}" if s >= 0.001 else f"{m:+.6f} ± {s:.6f}"
        for m, s in zip(mean, spread, strict=True)
    )


def _figure(samples: dict, truths: dict):
    figure, axes = plots.sheet(1, 2, width=8, height=3.2, sharey=True)
    looks = {
        "MC": "MC",
        "MC, best baseline": "MC, best baseline",
        "BQ": "BQ",
        "Model 2 + baseline": "ours exact",
    }
    for panel, reward in zip(axes[0], REWARDS, strict=True):
        for name in ESTIMATORS:
            rms = [
                np.sqrt(np.mean((samples[reward, name, M] - truths[reward]) ** 2)) for M in SIZES
            ]
            label = {"BQ": "Model 1 (the paper's BQ)"}.get(name, name)
            plots.curve(panel, SIZES, rms, label=label, look=looks[name])
        panel.set(xscale="log", yscale="log", title=reward.replace("^2", "²"), xlabel="paths M")
        panel.set_xticks(SIZES, [str(M) for M in SIZES])
        panel.minorticks_off()
    axes[0, 0].set_ylabel("root mean squared error of a component")
    axes[0, 1].legend(loc="lower left")
    return figure


EXPERIMENT = Experiment(
    name="bandit",
    item="Table 2",
    title="The gradient of a bandit, Monte Carlo and Bayesian quadrature",
    runs=10_000,
    quick_runs=500,
    paper_runs=PAPER_RUNS,
    run=run,
)
