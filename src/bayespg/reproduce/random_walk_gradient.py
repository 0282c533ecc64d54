"""Figure 6: error of the gradient estimates on the random walk at theta = log(41/9).

Every estimator computes its Fisher matrix from the same episodes. Quadrature has the paper's, outer
products of path scores (Section 4.3), and with them a Model 2 that is nearly Monte Carlo; two more
rows have the actions integrated out of G. There are four versions of BAC:
the paper's (G-EST with weight 1 for the last pair), the same with G-EST as printed, one with the
actions integrated out of G, and ours, which also puts the noise on the rewards and chooses all
variances by evidence.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp

from bayespg.learning.estimators import ENAC, GPOMDP, Model1, Model2, Reinforce, monte_carlo_fisher
from bayespg.policies import Tabular
from bayespg.reproduce import gradients
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.claims import Claim, Effect, at, ratios
from bayespg.reproduce.gradients import errors
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Samples

BAC, OURS = "BAC, actions integrated out", "BAC, noise on rewards, evidence"
PRINTED, FIXED = "BAC, G-EST as printed", "BAC, noise on rewards"
ESTIMATORS = {
    "MC": Reinforce(),
    "GPOMDP": GPOMDP(),
    "MC, best baseline": Reinforce("best"),
    "MC, fitted values": rw.FITTED,
    "eNAC": ENAC(),
    "compatible least squares": rw.COMPATIBLE,
    "BQ, Model 1": Model1(fisher=monte_carlo_fisher),
    "BQ, Model 2": Model2(fisher=monte_carlo_fisher),
    "BQ, Model 1, actions integrated out": Model1(),
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
    "BQ, Model 2": "BQ variant",
    "BQ, Model 1, actions integrated out": "BQ",
    "BQ, Model 2 + baseline": "ours exact",
    "BAC": "BAC",
    PRINTED: "BAC as printed",
    BAC: "BAC variant",
    FIXED: "ours fixed",
    OURS: "ours",
}
RIVALS = [name for name in ESTIMATORS if not name.startswith("BAC")]
KINDS = ("squared", "angular")
HORIZON = 120
"""At this policy fewer than one episode in 10^9 is longer."""


sizes = functools.partial(gradients.sizes, default=(5, 10, 20, 50, 100))


def run(settings: Settings, progress: Progress) -> Report:
    policy = Tabular(jnp.full(9, rw.START))
    Ms = sizes(settings)
    found = errors(rw.walk(HORIZON), policy, ESTIMATORS, Ms, settings, progress, batch=50)
    return gradients.report(found, LOOKS, Ms, "{:.4f} ± {:.4f}")


PAPER = ("MC", "GPOMDP", "BQ, Model 1", "BQ, Model 2")
"""What Figure 6 compares BAC with; the paper does not say which Monte Carlo and which model."""


def judge(samples: Samples) -> list[Claim]:
    figure, Ms = "Section 8.1, Figure 6", samples.sizes()

    def over(name: str, rivals: Sequence[str], kind: str = "square") -> tuple[Effect, ...]:
        of = samples.of(kind)
        return ratios(
            {f"{rival}, M = {M}": (of(name, M), of(rival, M)) for rival in rivals for M in Ms}
        )

    squares, angles = (f"ratio of mean {kind} errors, rival to BAC" for kind in KINDS)
    judged = []
    for id, name, how in (
        ("", "BAC", "G-EST corrected"),
        ("-as-printed", PRINTED, "G-EST as printed"),
    ):
        judged += [
            Claim(
                f"walk-gradient-error{id}", figure,
                f"BAC is more accurate than Monte Carlo and quadrature at every M ({how})",
                squares, over(name, PAPER), above=1,
            ),
            Claim(
                f"walk-gradient-angle{id}", figure,
                f"BAC's angular error is smaller than theirs at every M ({how})",
                angles, over(name, PAPER, "angle"), above=1,
            ),
            Claim(
                f"walk-gradient-spread{id}", figure,
                f"BAC's estimates vary less than those of Monte Carlo and quadrature ({how})",
                "ratio of total variances, rival to BAC", over(name, PAPER, "scatter"), above=1,
            ),
        ]  # fmt: skip
    return [
        *judged,
        Claim(
            "walk-gradient-integrated", "",
            "with the actions integrated out of G, BAC is also more accurate than the methods that "
            "fit values",
            squares, over(BAC, [r for r in RIVALS if r != "BQ, Model 2 + baseline"]), above=1,
        ),
        Claim(
            "walk-gradient-rewards", "",
            "with noise on the rewards, BAC is more accurate than every other method at every M",
            squares, over(OURS, RIVALS), above=1,
        ),
        Claim(
            "walk-gradient-printed", "",
            "the printed line of G-EST, which gives the last pair the weight 1/(1 - γ), makes the "
            "gradient worse with many episodes",
            "ratio of mean squared errors, as printed to corrected",
            ratios(at(Ms[-1:], samples.of("square"), "BAC", PRINTED)), above=2,
        ),
    ]  # fmt: skip
