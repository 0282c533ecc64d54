"""Figure 1: error of the gradient estimates on LQR at lambda = -0.2, sigma = 1.

The paper's estimators (exact G, Sigma = 1e-3 I, sparsified) beside Monte Carlo, its honest rivals,
and what goes beyond the paper: G with the actions integrated out, and Model 2 with a flat baseline.
"""

from bayespg.estimators import GPOMDP, Model1, Model2, Reinforce, exact
from bayespg.reproduce.gradients import errors, lqr_setting, two_panels
from bayespg.reproduce.report import Claim, Experiment, Progress, Report, Settings
from bayespg.sparsification import Sparsify

FLAT = float("inf")
SPARSE = Sparsify(threshold=1e-6, capacity=8)
"""Kernels of rank 2 and 6: such a dictionary loses nothing."""
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


def sizes(settings: Settings) -> tuple[int, ...]:
    """The paper's M = 5, 10, ..., 100, or enough of them to see the curve."""
    if settings.paper:
        return tuple(range(5, 101, 5))
    return (5, 20, 100) if settings.quick else (5, 10, 20, 40, 60, 80, 100)


def run(settings: Settings, progress: Progress) -> Report:
    Ms = sizes(settings)
    found = errors(*lqr_setting(), ESTIMATORS, Ms, settings, progress)
    curves, square = found.curves(LOOKS, Ms), found.square
    return Report(
        columns=["mean squared error", *(f"M = {M}" for M in Ms)],
        rows=[[name, *(f"{m:,.0f} ± {e:,.0f}" for m, e in square[name])] for name in ESTIMATORS],
        curves=curves,
        claims=_claims(Ms, square),
        figure=lambda: two_panels(curves, "M"),
        notes=["± is one standard error over runs. All estimators of a run see the same paths."],
    )


def _claims(Ms: tuple[int, ...], square: dict[str, list]) -> list[Claim]:
    def ratio(a: str, b: str, M: int) -> float:
        i = Ms.index(M)
        return float(square[a][i][0] / square[b][i][0])

    gain = ratio("MC", "Model 1", 100)
    both = min(ratio("MC", name, M) for name in ("Model 1", "Model 2") for M in Ms)
    ours = min(ratio("MC, best baseline", OURS, M) for M in Ms)
    return [
        Claim(
            "both models estimate better than MC at every M",
            f"MC errs at least {both:.2f} times as much",
            both > 1,
        ),
        Claim(
            "Model 1 is far below MC for many paths",
            f"{gain:.0f} times below at M = 100",
            gain >= 25,
        ),
        Claim(
            "(ours) Model 2 + baseline, G estimated, is below MC with the best baseline at every M",
            f"at least {ours:.1f} times below",
            ours > 1,
        ),
    ]


EXPERIMENT = Experiment(
    name="lqr-gradient",
    item="Figure 1",
    title="Error of the gradient on LQR against the number of paths",
    runs=4_000,
    quick_runs=200,
    paper_runs=10_000,
    run=run,
)
