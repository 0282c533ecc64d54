"""Figure 2: the same with Gaussian noise of standard deviation 1 on every reward.

The measurement noise is then known: T sigma_r^2 u_j^2 for component j of Model 1, T sigma_r^2 for
Model 2.
"""

import jax
import numpy as np

from bayespg.environments import exact_gradient
from bayespg.estimators import Estimator, Model1, Model2, Reinforce, exact
from bayespg.random import fast_key
from bayespg.reproduce.gradients import angular_error, estimates, lqr_setting, squared_error
from bayespg.reproduce.lqr_gradient import SPARSE, sizes, two_panels
from bayespg.reproduce.report import Claim, Curve, Experiment, Progress, Report, Settings, summarise

FLAT = float("inf")


def estimators(reward_noise: float) -> dict[str, Estimator]:
    return {
        "MC": Reinforce(),
        "MC, best baseline": Reinforce("best"),
        "Model 1": Model1(fisher=exact, reward_noise=reward_noise, sparsify=SPARSE),
        "Model 2": Model2(fisher=exact, reward_noise=reward_noise, sparsify=SPARSE),
        "Model 2 + baseline, actions integrated out": Model2(
            baseline=FLAT, reward_noise=reward_noise
        ),
    }


LOOKS = {
    "MC": "MC",
    "MC, best baseline": "MC, best baseline",
    "Model 1": "BQ",
    "Model 2": "BQ natural",
    "Model 2 + baseline, actions integrated out": "ours",
}


def run(settings: Settings, progress: Progress) -> Report:
    Ms = sizes(settings)
    square, angle = {}, {}
    for k, noise in enumerate((0.0, 1.0)):
        environment, policy = lqr_setting(noise)
        truth = np.asarray(exact_gradient(environment, policy))
        for M in Ms:
            progress((k + sum(m for m in Ms if m < M) / sum(Ms)) / 2, f"noise {noise:g}, M = {M}")
            key = jax.random.fold_in(fast_key(settings.seed), M)
            found = estimates(environment, policy, estimators(noise), M, settings.runs, key)
            for name, values in found.items():
                square[name, noise, M] = summarise(squared_error(values, truth))
                angle[name, noise, M] = summarise(angular_error(values, truth))

    def curve(panel: str, of: dict, name: str, noise: float) -> Curve:
        mean, error = zip(*(of[name, noise, M] for M in Ms), strict=True)
        label = name if noise == 0 else f"{name}, noisy rewards"
        return Curve(panel, label, LOOKS[name], list(Ms), list(mean), list(error))

    panels = (("mean squared error", square), ("angular error (degrees)", angle))
    curves = [
        curve(panel, of, name, noise)
        for panel, of in panels
        for noise in (0.0, 1.0)
        for name in LOOKS
    ]
    rises = {
        name: [float(square[name, 1.0, M][0] / square[name, 0.0, M][0]) for M in Ms]
        for name in LOOKS
    }
    return Report(
        columns=["mean squared error", "σ_r", *(f"M = {M}" for M in Ms)],
        rows=[
            [name, f"{noise:g}", *("{:,.0f} ± {:,.0f}".format(*square[name, noise, M]) for M in Ms)]
            for name in LOOKS
            for noise in (0.0, 1.0)
        ],
        curves=curves,
        claims=_claims(Ms, square, rises),
        figure=lambda: _figure(curves),
        notes=[
            "± is one standard error over runs.",
        ],
    )


def _claims(Ms, square, rises) -> list[Claim]:
    def worst(name: str) -> str:
        return f"{name}: {min(rises[name]):.2f} to {max(rises[name]):.2f} times"

    ordered = min(
        float(square["MC", 1.0, M][0] / square[name, 1.0, M][0])
        for name in ("Model 1", "Model 2")
        for M in Ms
    )
    small = [max(rises[name]) for name in ("MC", "Model 2")]
    return [
        Claim(
            "noise raises the error slightly",
            "; ".join(worst(name) for name in LOOKS),
            max(small) < 2 and max(rises["Model 1"]) < 2,
        ),
        Claim(
            "the comparison with MC stays as it was",
            f"MC errs at least {ordered:.2f} times as much as either model",
            ordered > 1,
        ),
    ]


def _figure(curves: list[Curve]):
    figure = two_panels(curves, "M")
    for axes in figure.axes:
        for line in axes.get_lines():
            if "noisy" in str(line.get_label()):
                line.set(alpha=0.55, linestyle=":")
    return figure


EXPERIMENT = Experiment(
    name="lqr-noise",
    item="Figure 2",
    title="The effect of noise in the rewards on the LQR gradient",
    runs=4_000,
    quick_runs=200,
    paper_runs=10_000,
    run=run,
)
