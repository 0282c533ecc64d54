"""Table 2: Monte Carlo and Bayesian quadrature on the bandit.

Model 1, no sparsification, Sigma = 1e-3 I, exact G. Policy a ~ N(0, 1), theta = (mean, standard
deviation).
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support.random import fast_key
from bayespg._support.statistics import normal_quantile
from bayespg.environments import Bandit
from bayespg.learning.estimators import Model1, Model2, Reinforce, exact
from bayespg.policies import Gaussian
from bayespg.reproduce.claims import ALIKE, Claim, Effect, jointly, ratios
from bayespg.reproduce.gradients import estimates
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Key, Samples, grouped
from bayespg.runs import plots

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
"""The paper's means and standard deviations."""
PAPER_RUNS = 10_000
"""Its runs. Ten times as many are needed here to decide on standard deviations at 10 %, because the
printed ones have a sampling error too."""


TRUTHS = {"r(a) = a": (1.0, 0.0), "r(a) = a^2": (0.0, 2.0)}
"""The exact gradients, as printed."""


def run(settings: Settings, progress: Progress) -> Report:
    policy = Gaussian(jnp.asarray(0.0), jnp.asarray(1.0))
    values: dict[Key, np.ndarray] = {}
    cells = [(reward, M) for reward in REWARDS for M in SIZES]
    for done, (reward, M) in enumerate(cells):
        progress(done / len(cells), f"{reward}, M = {M}")
        bandit, key = (
            Bandit(reward=REWARDS[reward]),
            jax.random.fold_in(fast_key(settings.seed), done),
        )
        each = estimates(bandit, policy, ESTIMATORS, M, settings.runs, key)
        values |= {(reward, name, M): of for name, of in each.items()}
    moments = {key: (of.mean(0), of.std(0, ddof=1)) for key, of in values.items()}
    return Report(
        columns=["reward", "M", "estimator", "here: mean ± sd", "paper: mean ± sd"],
        rows=[
            [reward, str(M), name, _cell(*of),
             _cell(*PRINTED[reward, name, M]) if (reward, name, M) in PRINTED else ""]
            for (reward, name, M), of in moments.items()
        ],
        curves=[],
        samples=Samples(cells_of(values)),
        figure=lambda: _figure(values),
        extra={
            "cells": [
                {
                    "reward": reward, "paths": M, "estimator": name, "exact": TRUTHS[reward],
                    "mean": mean.tolist(), "standard_deviation": spread.tolist(),
                    "standard_error": (spread / math.sqrt(settings.runs)).tolist(),
                    "paper": PRINTED.get((reward, name, M)),
                }
                for (reward, name, M), (mean, spread) in moments.items()
            ]
        },
    )  # fmt: skip


def cells_of(values: Mapping[Key, np.ndarray]) -> dict[Key, np.ndarray]:
    """Errors of each component and squared distances from their mean, as means over groups of runs,
    and the number of runs."""
    kept: dict[Key, np.ndarray] = {}
    for (reward, name, M), of in values.items():
        error = of - np.array(TRUTHS[reward])
        kept[f"{reward}: error", name, M] = grouped(error)
        kept[f"{reward}: scatter", name, M] = grouped((error - error.mean(0)) ** 2)
        kept["runs", name, M] = np.array([len(of)])
    return kept


class Moments(NamedTuple):
    """The mean and the variance of one component of an estimate."""

    mean: float
    variance: float
    error: float
    """Standard error of the variance, relative to it."""
    runs: float


def moments(samples: Samples, reward: str, name: str, M: int, i: int) -> Moments:
    error = float(samples[f"{reward}: error", name, M][:, i].mean(dtype=float))
    scatter = samples[f"{reward}: scatter", name, M][:, i].astype(float)
    variance, spread = scatter.mean(), scatter.std(ddof=1) / math.sqrt(len(scatter))
    runs = float(samples["runs", name, M][0])
    return Moments(TRUTHS[reward][i] + error, float(variance), float(spread / variance), runs)


def judge(samples: Samples) -> list[Claim]:
    def variances(M: int) -> tuple[Effect, ...]:
        return _variances(
            {
                f"{reward}, component {i + 1}":
                    tuple(moments(samples, reward, name, M, i) for name in ("BQ", "MC"))
                for reward in REWARDS for i in range(2)
            }
        )  # fmt: skip

    def from_printed(gap: Callable[..., tuple[float, float]]) -> tuple[Effect, ...]:
        return _apart(
            {
                f"{reward}, {name}, M = {M}, component {i + 1}":
                    gap(moments(samples, reward, name, M, i), mean, spread)
                for (reward, name, M), printed in PRINTED.items()
                for i, (mean, spread) in enumerate(zip(*printed, strict=True))
            }
        )  # fmt: skip

    def square(reward: str, name: str) -> np.ndarray:
        bias = samples[f"{reward}: error", name, 100].mean(0, dtype=float)
        return (samples[f"{reward}: scatter", name, 100] + bias**2).sum(1)

    def mean(name: str, reward: str, i: int) -> np.ndarray:
        return TRUTHS[reward][i] + samples[f"{reward}: error", name, 10][:, i]

    squares = {reward: (square(reward, "BQ"), square(reward, "MC")) for reward in REWARDS}
    means = {
        reward: (mean("MC", reward, i), mean("BQ", reward, i)) for i, reward in enumerate(REWARDS)
    }
    table = "bandit-accuracy"
    return [
        Claim(
            "bandit-means", table,
            "every mean is within a tenth of a standard deviation of the printed one",
            "distance from the printed mean, less its rounding, in printed standard deviations",
            from_printed(_mean_gap), below=0.1, above=-math.inf, kind="check",
        ),
        Claim(
            "bandit-spreads", table,
            "every standard deviation is within 10 % of the printed one, including those of 1e-6",
            "relative distance from the printed standard deviation, less its rounding",
            from_printed(_spread_gap), below=0.1, above=-math.inf, kind="check",
        ),
        *(
            Claim(
                f"bandit-variance-{M}", "bandit-variance",
                f"at M = {M} the variance of quadrature is lower by {words} of magnitude",
                "ratio of variances, MC to BQ", variances(M), above=factor,
            )
            for M, factor, words in ((10, 10, "one order"), (100, 1e6, "six orders"))
        ),
        Claim(
            "bandit-accuracy-100", table,
            "at M = 100 quadrature is more accurate than Monte Carlo",
            "ratio of mean squared errors, MC to BQ", ratios(squares), above=1,
        ),
        Claim(
            "bandit-accuracy-10", table,
            "at M = 10 the accuracy is roughly the same (the paper's table shows means: the "
            "component of the gradient that is not zero)",
            "ratio of mean estimates, BQ to MC", ratios(means, "{b:.3f} to {a:.3f}"), **ALIKE,
        ),
    ]  # fmt: skip


@jointly
def _variances(few: Moments, many: Moments, level: float):
    """Ratios of variances by the delta method; runs of the two estimators are treated as
    independent."""
    ratio, error = many.variance / few.variance, math.hypot(few.error, many.error)
    factor = math.exp(normal_quantile(0.5 + level / 2) * error)
    return ratio, ratio / factor, ratio * factor


@jointly
def _apart(value: float, error: float, level: float):
    """A distance from a printed number, with a standard error that accounts for the sampling error
    of both."""
    reach = normal_quantile(0.5 + level / 2) * error
    return value, max(value - reach, 0.0), value + reach, "", (0.0, reach)


def _mean_gap(here: Moments, mean: float, spread: float) -> tuple[float, float]:
    gap = max(abs(here.mean - mean) - 0.0005, 0.0)
    return gap / spread, math.sqrt(1 / here.runs + 1 / PAPER_RUNS)


def _spread_gap(here: Moments, mean: float, spread: float) -> tuple[float, float]:
    """The paper prints three decimals, or six for the smallest numbers."""
    rounding = 0.0005 if spread >= 0.001 else 0.0000005
    gap = abs(math.sqrt(here.variance) - spread) - rounding
    return max(gap, 0.0) / spread, here.error / 2 * math.sqrt(1 + here.runs / PAPER_RUNS)


def _cell(mean, spread) -> str:
    return "\n".join(
        f"{m:+.3f} ± {s:.3f}" if s >= 0.001 else f"{m:+.6f} ± {s:.6f}"
        for m, s in zip(mean, spread, strict=True)
    )


def _figure(values: Mapping[Key, np.ndarray]):
    figure, axes = plots.sheet(1, 2, width=8, height=3.2, sharey=True)
    for panel, reward in zip(axes[0], REWARDS, strict=True):
        for name in ESTIMATORS:
            label = {"BQ": "Model 1 (the paper's BQ)"}.get(name, name)
            look = {"Model 2 + baseline": "ours exact"}.get(name, name)
            errors = [values[reward, name, M] - np.array(TRUTHS[reward]) for M in SIZES]
            rms = [np.sqrt(np.mean(of**2)) for of in errors]
            plots.curve(panel, SIZES, rms, label=label, look=look)
        panel.set(xscale="log", yscale="log", title=reward.replace("^2", "²"), xlabel="paths M")
        panel.set_xticks(SIZES, [str(M) for M in SIZES])
        panel.minorticks_off()
    axes[0, 0].set_ylabel("root mean squared error of a component")
    axes[0, 1].legend(loc="lower left")
    return figure
