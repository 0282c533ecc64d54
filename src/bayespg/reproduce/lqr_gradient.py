"""Figure 1: error of the gradient estimates on LQR at lambda = -0.2, sigma = 1.

The paper's estimators (exact G, Sigma = 1e-3 I, sparsified) are compared with Monte Carlo, with
stronger Monte Carlo estimators that the paper leaves out, and with two extensions of the paper: G
with the actions integrated out, and Model 2 with a flat baseline. The paper does not print Sigma:
`lqr-gradient-readings` has the other values of Figures 3 to 5.
"""

import functools

import numpy as np

from bayespg.algebra.sparsification import Sparsify
from bayespg.learning.estimators import GPOMDP, Model1, Model2, Reinforce, exact
from bayespg.reproduce import claims, gradients, sentences
from bayespg.reproduce.claims import Row, pair, ratios, under
from bayespg.reproduce.gradients import errors, lqr_setting
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Samples

FLAT = float("inf")
SPARSE = Sparsify(threshold=1e-6, capacity=8)
"""The two kernels have rank 2 and 6, so a dictionary of eight paths represents them exactly."""
SHOWN = {
    "MC": (Reinforce(), "MC"),
    "MC, best baseline": (Reinforce("best"), "MC, best baseline"),
    "GPOMDP": (GPOMDP(), "GPOMDP"),
    "Model 1": (Model1(fisher=exact, sparsify=SPARSE), "BQ"),
    "Model 2": (Model2(fisher=exact, sparsify=SPARSE), "BQ natural"),
    "Model 1, actions integrated out": (Model1(), "BQ variant"),
    "Model 2 + baseline": (Model2(baseline=FLAT, fisher=exact), "ours exact"),
    "Model 2 + baseline, actions integrated out": (Model2(baseline=FLAT), "ours"),
}
"""The estimators, and how their curves look."""
READINGS = {
    "MC": SHOWN["MC"],
    **{
        f"{name}, {reading}": (model(float(sigma), fisher=exact, sparsify=SPARSE), look)
        for sigma, reading in zip(sentences.SIGMAS[1:], sentences.FIGURE1[1:], strict=True)
        for name, model, look in (("Model 1", Model1, "BQ"), ("Model 2", Model2, "BQ natural"))
    },
}
"""The same with other values of Sigma."""
ESTIMATORS = {name: estimator for name, (estimator, _) in SHOWN.items()}
LOOKS = {name: look for name, (_, look) in SHOWN.items()}
OURS = "Model 2 + baseline, actions integrated out"


sizes = functools.partial(gradients.sizes, default=(5, 10, 20, 40, 60, 80, 100))


def run(settings: Settings, progress: Progress) -> Report:
    Ms = sizes(settings)
    measured = errors(*lqr_setting(), ESTIMATORS, Ms, settings, progress)
    return gradients.report(measured, LOOKS, Ms, "{:,.0f} ± {:,.0f}")


def run_readings(settings: Settings, progress: Progress) -> Report:
    """With other values of Sigma."""
    Ms, estimators = sizes(settings), {name: estimator for name, (estimator, _) in READINGS.items()}
    measured = errors(*lqr_setting(), estimators, Ms, settings, progress)
    looks = {name: look for name, (_, look) in READINGS.items()}
    return gradients.report(measured, looks, Ms, "{:,.0f} ± {:,.0f}")


SQUARES = "ratio of mean squared errors"


def value(samples: Samples, what: str, name: str, M: int) -> np.ndarray | None:
    """Also the squared error with half as many paths, and with the fewest where there are more."""
    if what == "half":
        return samples.get(("square", name, M // 2)) if M % 2 == 0 else None
    fewest = samples.sizes()[0]
    if what == "fewest":
        return samples["square", name, fewest] if fewest < M else None
    return samples[what, name, M]


OF_FIGURE1 = tuple(
    Row(f"lqr-{model[-1]}-{what}{{}}", f"figure-1-model-{model[-1]}",
        f"{model} has a smaller {what} error than Monte Carlo at every M",
        f"ratio of mean {what} errors, MC to {model}", ratios, pair(of, model, "MC"), above=1)
    for model in ("Model 1", "Model 2")
    for what, of in (("squared", "square"), ("angular", "angle"))
)  # fmt: skip
CLAIMS = (
    *under(OF_FIGURE1, "", sentences.FITTED),
    Row("lqr-lengths", "lengths",
        "on LQR, where all paths have 20 steps, Model 1 is well ahead of Monte Carlo at every M",
        f"{SQUARES}, MC to Model 1", ratios, pair("square", "Model 1", "MC"), above=2,
        reading=sentences.TASKS),
    Row("lqr-reliable", "figure-5-reliable", "Model 1's squared error falls as M grows",
        f"{SQUARES}, M = 5 to M", ratios,
        {"M = {M}": (("square", "Model 1"), ("fewest", "Model 1"))}, above=1),
    Row("lqr-fisher-integrated", "", "G with the actions integrated out, which needs no model, "
        "costs Model 1 less than a factor of 2 in squared error",
        f"{SQUARES}, actions integrated out to exact G", ratios,
        pair("square", "Model 1", "Model 1, actions integrated out"), below=2),
    Row("lqr-baseline", "", "Model 2 with a baseline in its kernel, G estimated, has a smaller "
        "squared error than Monte Carlo with the best baseline at every M",
        f"{SQUARES}, MC with the best baseline to ours", ratios,
        pair("square", OURS, "MC, best baseline"), above=1),
    Row("lqr-half", "fewer-samples", "Model 1 has a smaller squared error than Monte Carlo with "
        "twice as many paths", f"{SQUARES}, MC with M paths to Model 1 with M / 2", ratios,
        {"M = {M}": (("half", "Model 1"), ("square", "MC"))}, above=1),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS, value=value)
OF_READINGS = tuple(
    row
    for sigma, reading in zip(sentences.SIGMAS[1:], sentences.FIGURE1[1:], strict=True)
    for row in under(
        OF_FIGURE1, f"-{sigma}", reading,
        {model: f"{model}, {reading}" for model in ("Model 1", "Model 2")},
    )
)  # fmt: skip
judge_readings = functools.partial(claims.judge, OF_READINGS, value=value)
