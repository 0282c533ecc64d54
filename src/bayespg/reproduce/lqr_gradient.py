"""Figure 1: error of the gradient estimates on LQR at lambda = -0.2, sigma = 1.

The paper's estimators (exact G, Sigma = 1e-3 I, sparsified) are compared with Monte Carlo, with
stronger Monte Carlo estimators that the paper leaves out, and with two extensions of the paper: G
with the actions integrated out, and Model 2 with a flat baseline.
"""

import functools

from bayespg.algebra.sparsification import Sparsify
from bayespg.learning.estimators import GPOMDP, Model1, Model2, Reinforce, exact
from bayespg.reproduce import gradients
from bayespg.reproduce.claims import Claim, at, ratios
from bayespg.reproduce.gradients import errors, lqr_setting
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Samples

FLAT = float("inf")
SPARSE = Sparsify(threshold=1e-6, capacity=8)
"""The two kernels have rank 2 and 6, so a dictionary of eight paths represents them exactly."""
ESTIMATORS = {
    "MC": Reinforce(),
    "MC, best baseline": Reinforce("best"),
    "GPOMDP": GPOMDP(),
    "Model 1": Model1(fisher=exact, sparsify=SPARSE),
    "Model 2": Model2(fisher=exact, sparsify=SPARSE),
    "Model 1, actions integrated out": Model1(),
    "Model 2 + baseline": Model2(baseline=FLAT, fisher=exact),
    "Model 2 + baseline, actions integrated out": Model2(baseline=FLAT),
}
LOOKS = {
    "MC": "MC",
    "MC, best baseline": "MC, best baseline",
    "GPOMDP": "GPOMDP",
    "Model 1": "BQ",
    "Model 2": "BQ natural",
    "Model 1, actions integrated out": "BQ variant",
    "Model 2 + baseline": "ours exact",
    "Model 2 + baseline, actions integrated out": "ours",
}
OURS = "Model 2 + baseline, actions integrated out"


sizes = functools.partial(gradients.sizes, default=(5, 10, 20, 40, 60, 80, 100))


def run(settings: Settings, progress: Progress) -> Report:
    Ms = sizes(settings)
    found = errors(*lqr_setting(), ESTIMATORS, Ms, settings, progress)
    return gradients.report(found, LOOKS, Ms, "{:,.0f} ± {:,.0f}")


def judge(samples: Samples) -> list[Claim]:
    Ms, square, angle = samples.sizes(), samples.of("square"), samples.of("angle")
    squares, angles = "ratio of mean squared errors", "ratio of mean angular errors"
    figure = "Section 6.2.1, Figure 1"
    judged = []
    for model in ("Model 1", "Model 2"):
        for what, effect, of in (
            ("squared", squares, square),
            ("angular", angles, angle),
        ):
            judged.append(
                Claim(
                    f"lqr-{model[-1]}-{what}", figure,
                    f"{model} has a smaller {what} error than Monte Carlo at every M",
                    f"{effect}, MC to {model}", ratios(at(Ms, of, model, "MC")), above=1,
                )
            )  # fmt: skip
    return [
        *judged,
        Claim(
            "lqr-fisher-integrated", "",
            "G with the actions integrated out, which needs no model, costs Model 1 less than a "
            "factor of 2 in squared error",
            f"{squares}, actions integrated out to exact G",
            ratios(at(Ms, square, "Model 1", "Model 1, actions integrated out")), below=2,
        ),
        Claim(
            "lqr-baseline", "",
            "Model 2 with a baseline in its kernel, G estimated, has a smaller squared error than "
            "Monte Carlo with the best baseline at every M",
            f"{squares}, MC with the best baseline to ours",
            ratios(at(Ms, square, OURS, "MC, best baseline")), above=1,
        ),
    ]  # fmt: skip
