"""Figure 2: the comparison of Figure 1 with Gaussian noise of standard deviation 1 on every reward.

The variance of the measurement noise is then known: T sigma_r^2 u_j^2 for component j of Model 1,
T sigma_r^2 for Model 2. The paper's kernel of scale 1 implies a prior standard deviation of sqrt(3)
for a gradient of length 206, and with that much noise it shrinks the estimates almost to zero. A
kernel scaled to the returns (10^4 here) gives what the paper reports. Choosing scale and noise by
evidence needs neither number.
"""

import dataclasses
from collections.abc import Sequence

from bayespg.learning.estimators import Estimator, Model1, Model2, Reinforce, exact
from bayespg.reproduce.claims import Claim, Effect, ratios
from bayespg.reproduce.gradients import Errors, errors, lqr_setting, two_panels
from bayespg.reproduce.lqr_gradient import SPARSE, sizes
from bayespg.reproduce.report import Curve, Experiment, Progress, Report, Settings

NOISES = (0.0, 1.0)
FLAT = float("inf")


def estimators(reward_noise: float) -> dict[str, Estimator]:
    known = {"fisher": exact, "reward_noise": reward_noise, "sparsify": SPARSE}
    return {
        "MC": Reinforce(),
        "MC, best baseline": Reinforce("best"),
        "Model 1, scale 1": Model1(**known),
        "Model 2, scale 1": Model2(**known),
        "Model 1, scale 10⁴": Model1(scale=1e4, **known),
        "Model 2, scale 10⁴": Model2(scale=1e4, **known),
        "Model 2 + baseline, evidence": Model2(noise=None, baseline=FLAT),
    }


LOOKS = {
    "MC": "MC",
    "MC, best baseline": "MC, best baseline",
    "Model 1, scale 1": "BQ variant",
    "Model 2, scale 1": "GPOMDP",
    "Model 1, scale 10⁴": "BQ",
    "Model 2, scale 10⁴": "BQ natural",
    "Model 2 + baseline, evidence": "ours",
}
SCALED = ("Model 1, scale 10⁴", "Model 2, scale 10⁴")


def run(settings: Settings, progress: Progress) -> Report:
    Ms = sizes(settings)
    quiet, noisy = (
        errors(
            *lqr_setting(noise), estimators(noise), Ms, settings,
            lambda f, what, k=k, noise=noise: progress((k + f) / 2, f"noise {noise:g}, {what}"),
        )
        for k, noise in enumerate(NOISES)
    )  # fmt: skip
    curves = quiet.curves(LOOKS, Ms) + [
        dataclasses.replace(c, label=f"{c.label}, noisy rewards") for c in noisy.curves(LOOKS, Ms)
    ]
    rows = [
        [name, f"{noise:g}", *cells]
        for name in LOOKS
        for noise, found in zip(NOISES, (quiet, noisy), strict=True)
        for _, *cells in found.rows([name], Ms, "{:,.0f} ± {:,.0f}")
    ]
    return Report(
        columns=["mean squared error", "σ_r", *(f"M = {M}" for M in Ms)],
        rows=rows,
        curves=curves,
        claims=_claims([M for M in Ms if M >= 20], quiet, noisy),
        figure=lambda: _figure(curves),
        notes=["± is one standard error over runs."],
    )


def _claims(Ms: list[int], quiet: Errors, noisy: Errors) -> list[Claim]:
    figure = "Section 6.2.1, Figure 2"

    def rises(names: Sequence[str]) -> tuple[Effect, ...]:
        return ratios(
            {
                f"{name}, M = {M}": (quiet.square(name, M), noisy.square(name, M))
                for name in names
                for M in Ms
            }
        )

    rise = "ratio of mean squared errors, noisy rewards to exact ones"
    return [
        Claim(
            "noise-as-printed", figure,
            "reward noise raises the error only slightly, with the kernel of scale 1 as printed "
            "(M from 20)",
            rise, rises(("Model 1, scale 1", "Model 2, scale 1")), below=1.5,
        ),
        Claim(
            "noise-scaled", "",
            "with a kernel scaled to the returns, reward noise raises the error by less than 50 % "
            "(M from 20)",
            rise, rises(SCALED), below=1.5,
        ),
        Claim(
            "noise-order", "",
            "with reward noise, both models with a scaled kernel have smaller errors than Monte "
            "Carlo (M from 20)",
            "ratio of mean squared errors, MC to the model",
            ratios(
                {
                    f"{name}, M = {M}": (noisy.square(name, M), noisy.square("MC", M))
                    for name in SCALED
                    for M in Ms
                }
            ),
            above=1,
        ),
        Claim(
            "noise-evidence", "",
            "with scale and noise chosen by evidence, and neither given, reward noise raises the "
            "error only slightly (M from 20)",
            rise, rises(["Model 2 + baseline, evidence"]), below=1.5,
        ),
    ]  # fmt: skip


def _figure(curves: list[Curve]):
    """Dotted lines for noisy rewards. Matplotlib omits labels that start with _ from the legend."""
    hidden = [
        dataclasses.replace(c, label=f"_{c.label}") if "noisy" in c.label else c for c in curves
    ]
    figure = two_panels(hidden, "M")
    for axes in figure.axes:
        axes.set_title(f"{axes.get_title(loc='left')}; dotted: noisy rewards", loc="left")
        for line in axes.get_lines():
            if str(line.get_label()).startswith("_"):
                line.set(alpha=0.6, linestyle=":")
    return figure


EXPERIMENT = Experiment(
    name="lqr-noise",
    item="Figure 2",
    title="The effect of noise in the rewards on the LQR gradient",
    runs=4_000,
    quick_runs=200,
    paper_runs=10_000,
    run=run,
    minutes=3,
)
