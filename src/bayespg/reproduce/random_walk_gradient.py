"""Figure 6: error of the gradient estimates on the random walk at theta = log(41/9).

Every estimator has its Fisher matrix from the same episodes. BAC is shown as in the paper (G-EST
with the last pair counted once), with G-EST as printed, with the actions integrated out of G, and
ours, which also puts the noise on the rewards and chooses all variances by evidence.
"""

import jax.numpy as jnp

from bayespg.estimators import ENAC, GPOMDP, Model1, Model2, Reinforce
from bayespg.policies import Tabular
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.gradients import errors, two_panels
from bayespg.reproduce.report import Claim, Experiment, Progress, Report, Settings

BAC, OURS = "BAC, actions integrated out", "BAC, noise on rewards, evidence"
PRINTED, FIXED = "BAC, G-EST as printed", "BAC, noise on rewards"
ESTIMATORS = {
    "MC": Reinforce(),
    "GPOMDP": GPOMDP(),
    "MC, best baseline": Reinforce("best"),
    "MC, fitted values": rw.FITTED,
    "eNAC": ENAC(),
    "compatible least squares": rw.COMPATIBLE,
    "BQ, Model 1": Model1(),
    "BQ, Model 2 + baseline": Model2(baseline=float("inf")),
    "BAC": rw.PAPER,
    PRINTED: rw.PRINTED,
    BAC: rw.INTEGRATED,
    FIXED: rw.FIXED,
    OURS: rw.OURS,
}
LOOKS = {
    "MC": "MC",
    "GPOMDP": "GPOMDP",
    "MC, best baseline": "MC, mean baseline",
    "MC, fitted values": "MC, fitted values",
    "eNAC": "eNAC",
    "compatible least squares": "compatible",
    "BQ, Model 1": "BQ natural",
    "BQ, Model 2 + baseline": "ours exact",
    "BAC": "BAC",
    PRINTED: "BAC as printed",
    BAC: "BAC variant",
    FIXED: "ours fixed",
    OURS: "ours",
}
RIVALS = [name for name in ESTIMATORS if not name.startswith("BAC")]
HORIZON = 120
"""At this policy no episode in 10^9 is longer."""


def sizes(settings: Settings) -> tuple[int, ...]:
    """The paper's M = 5, 10, ..., 100, or enough of them to see the curve."""
    if settings.paper:
        return tuple(range(5, 101, 5))
    return (5, 20, 100) if settings.quick else (5, 10, 20, 50, 100)


def run(settings: Settings, progress: Progress) -> Report:
    policy = Tabular(jnp.full(9, rw.START))
    Ms = sizes(settings)
    found = errors(rw.walk(HORIZON), policy, ESTIMATORS, Ms, settings, progress, batch=50)
    curves, square = found.curves(LOOKS, Ms), found.square
    return Report(
        columns=["mean squared error", *(f"M = {M}" for M in Ms)],
        rows=[[name, *(f"{m:.4f} ± {e:.4f}" for m, e in square[name])] for name in ESTIMATORS],
        curves=curves,
        claims=_claims(Ms, square),
        figure=lambda: two_panels(curves, "M"),
        notes=["± is one standard error over runs. All estimators of a run see the same paths."],
    )


def _claims(Ms: tuple[int, ...], square: dict[str, list]) -> list[Claim]:
    def error(name: str) -> list[float]:
        return [mean for mean, _ in square[name]]

    def worst(a: str, rivals: list[str]) -> tuple[float, str, int]:
        """The rival closest to `a`, and where."""
        return min(
            (r / own, name, M)
            for name in rivals
            for own, r, M in zip(error(a), error(name), Ms, strict=True)
        )

    printed = [a / b for a, b in zip(error(PRINTED), error("BAC"), strict=True)]
    claims = []
    for says, name, rivals in (
        (
            "BAC errs less than MC and BQ at every M",
            "BAC",
            ["MC", "GPOMDP", "BQ, Model 1"],
        ),
        (
            "(ours) with the actions integrated out of G, less than the fitted rivals too",
            BAC,
            [r for r in RIVALS if r != "BQ, Model 2 + baseline"],
        ),
        ("(ours) with noise on the rewards, less than every rival at every M", OURS, RIVALS),
    ):
        factor, rival, M = worst(name, rivals)
        measured = f"closest rival: {rival}, {factor:.2f} times its error, at M = {M}"
        claims.append(Claim(says, measured, bool(factor > 1)))
    claims.append(
        Claim(
            "(ours) G-EST as printed damages the gradient",
            f"its error is {printed[0]:.2f} times that of the corrected one at M = {Ms[0]}, "
            f"{printed[-1]:.1f} times at M = {Ms[-1]}",
            bool(printed[-1] > 2),
        )
    )
    return claims


EXPERIMENT = Experiment(
    name="random-walk-gradient",
    item="Figure 6",
    title="Error of the gradient on the random walk against the number of episodes",
    runs=400,
    quick_runs=40,
    paper_runs=1_000,
    run=run,
)
