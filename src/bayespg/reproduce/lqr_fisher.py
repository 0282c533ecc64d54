"""Figure 4: learning LQR with a Fisher matrix estimated by Monte Carlo, by a maximum-likelihood
model, or with the actions integrated out."""

from bayespg.learning.estimators import (
    Model1,
    actions_integrated_out,
    maximum_likelihood,
    monte_carlo_fisher,
)
from bayespg.reproduce.claims import Claim, at, ratios
from bayespg.reproduce.learning import Method
from bayespg.reproduce.lqr_optimisation import (
    METHODS,
    OURS,
    SIZES,
    above_optimum,
    learn,
    ordering,
    rated,
    report,
)
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

FIGURE = "Section 6.2.2, Figure 4"
SHOWN = {
    "MCPG": METHODS["MCPG"],
    "BPG-MC": Method(Model1(fisher=monte_carlo_fisher), rated("BPG"), "GPOMDP"),
    "BPG-ML": Method(Model1(fisher=maximum_likelihood), rated("BPG"), "BQ"),
    "BPNG-MC": Method(Model1(fisher=monte_carlo_fisher), rated("BPNG"), "MC, best baseline"),
    "BPNG-ML": Method(Model1(fisher=maximum_likelihood), rated("BPNG"), "BQ natural"),
    "BPG, actions integrated out": Method(
        Model1(fisher=actions_integrated_out), rated("BPG"), "BQ variant"
    ),
    OURS: METHODS[OURS],
}


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(SHOWN, settings, progress)
    larger = SIZES[1:]
    claims = [
        ordering(
            costs, f"fisher-{name.lower()}", FIGURE,
            f"with an estimated G, {name} is ahead of Monte Carlo from M = 10 on",
            name, "MCPG", larger,
        )
        for name in ("BPG-ML", "BPG-MC", "BPNG-ML", "BPNG-MC")
    ]  # fmt: skip
    claims.append(
        ordering(
            costs, "fisher-ml-mc", FIGURE,
            "with few paths, the maximum-likelihood G is better than the Monte Carlo G",
            "BPG-ML", "BPG-MC", (5, 10),
        )
    )  # fmt: skip
    claims.append(
        Claim(
            "fisher-vanishes", FIGURE, "the difference between the two vanishes for many paths",
            "ratio of final costs above the optimum, BPG-MC to BPG-ML",
            ratios(at((40,), above_optimum(costs), "BPG-ML", "BPG-MC")),
            above=0.9, below=1.1,
        )
    )  # fmt: skip
    return report(SHOWN, costs, claims)


EXPERIMENT = Experiment(
    name="lqr-fisher",
    item="Figure 4",
    title="Learning LQR with an estimated Fisher matrix",
    runs=500,
    quick_runs=50,
    paper_runs=10_000,
    run=run,
)
