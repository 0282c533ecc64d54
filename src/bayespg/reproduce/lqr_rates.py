"""The learning rates of Figure 3, tuned for all methods alike.

Table 3 gives BPG larger rates than MCPG, so Figure 3 compares methods and rates at once. Here every
method is run with BPG's rates of Table 3 times each factor of a grid. Methods are compared at equal
rates, and each at its own best; half of the runs choose it, the other half are compared.
"""

import dataclasses

import numpy as np

from bayespg._support.random import fast_key
from bayespg.environments import LQR
from bayespg.learning.updates import conventional, hyperbolic
from bayespg.reproduce import learning
from bayespg.reproduce.claims import Claim, Pairs, differences
from bayespg.reproduce.learning import Task
from bayespg.reproduce.lqr_optimisation import LARGER, METHODS, OURS, RATES, SIZES, UPDATES, normal
from bayespg.reproduce.report import Curve, Progress, Report, Settings
from bayespg.reproduce.samples import Samples

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
BASELINE = "MCPG, best baseline"
TUNED = ("MCPG", BASELINE, "BPG", OURS)


def run(settings: Settings, progress: Progress) -> Report:
    sizes = (5, 20) if settings.quick else SIZES
    reports = [
        _tune(M, settings, lambda f, what, i=i: progress((i + f) / len(sizes), what))
        for i, M in enumerate(sizes)
    ]
    curves = [_costs(curve) for report in reports for curve in report.curves]
    return dataclasses.replace(
        reports[0],
        columns=["minus the final cost", "M", *(f"BPG's rates × {f:g}" for f in FACTORS)],
        rows=[row for report in reports for row in report.rows],
        curves=curves,
        samples=Samples({k: v for report in reports for k, v in report.samples.items()}),
        figure=lambda: learning.panels(
            curves, "final expected cost", xlabel="multiple of BPG's rates", xscale="log"
        ),
        notes=[f"± is one standard error over {settings.runs} runs of {UPDATES} updates."],
        extra={"best": {k: v for report in reports for k, v in report.extra["best"].items()}},
    )


def _costs(curve: Curve) -> Curve:
    return dataclasses.replace(curve, mean=[-value for value in curve.mean])


def _tune(M: int, settings: Settings, progress: Progress) -> Report:
    """The return after the last update is that before one more."""
    base = np.array(RATES["BPG"][M])
    task = Task(LQR(), lambda runs: normal(runs, fast_key(settings.seed)), {M: UPDATES + 1})
    return learning.tune(
        task, {name: METHODS[name].estimator for name in TUNED},
        {name: METHODS[name].look for name in TUNED}, FACTORS,
        lambda history: history.expected_return[-1], settings, progress,
        lambda factor: conventional(hyperbolic(factor * base)),
    )  # fmt: skip


def judge(samples: Samples) -> list[Claim]:
    sizes = samples.sizes()

    def equal(better: str, worse: str, Ms=sizes) -> Pairs:
        """At BPG's own rates."""
        costs = {name: {M: -samples["rate 1", name, M] for M in Ms} for name in (better, worse)}
        return {f"M = {M}": (costs[better][M], costs[worse][M]) for M in Ms}

    def best(better: str, worse: str, Ms=sizes) -> Pairs:
        found = {}
        for M in Ms:
            (a, first), (b, second) = (learning.best(samples, name, M) for name in (better, worse))
            found[f"M = {M} (× {a} and × {b})"] = -first, -second
        return found

    words = "{a:.3f} against {b:.3f}, lower in {share:.0f} % of runs"
    larger = [M for M in sizes if M in LARGER]
    return [
        Claim(
            f"lqr-rates-{id}-{how}", place, f"{says}, {rates}", "difference of final costs",
            differences(pairs(*names, Ms), words), kind="ours",
        )
        for id, place, says, names, Ms in (
            ("ours", "", "Model 2 with a baseline is ahead of Monte Carlo with the best baseline "
             "at every M", (OURS, BASELINE), sizes),
            ("bpg", "", "BPG is ahead of Monte Carlo from M = 10 on", ("BPG", "MCPG"), larger),
        )
        for how, rates, pairs in (
            ("equal", "at equal rates (BPG's of Table 3)", equal),
            ("best", "each at its best rate", best),
        )
    ]  # fmt: skip
