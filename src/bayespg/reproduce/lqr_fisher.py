"""Figure 4: the Fisher matrix estimated by Monte Carlo and by a maximum-likelihood model, against
ours."""

from bayespg.estimators import (
    Model1,
    actions_integrated_out,
    maximum_likelihood,
    monte_carlo_fisher,
)
from bayespg.reproduce.optimisation import (
    METHODS,
    SIZES,
    Method,
    diverged,
    learn,
    ordering,
    report,
)
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

SHOWN = {
    "MCPG": METHODS["MCPG"],
    "BPG-MC": Method(Model1(fisher=monte_carlo_fisher), "BPG", "GPOMDP"),
    "BPG-ML": Method(Model1(fisher=maximum_likelihood), "BPG", "BQ"),
    "BPNG-MC": Method(Model1(fisher=monte_carlo_fisher), "BPNG", "MC, best baseline"),
    "BPNG-ML": Method(Model1(fisher=maximum_likelihood), "BPNG", "BQ natural"),
    "BPG, actions integrated out": Method(
        Model1(fisher=actions_integrated_out), "BPG", "BQ variant"
    ),
    "Model 2 + baseline": METHODS["Model 2 + baseline"],
}


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(SHOWN, settings, progress)
    larger = SIZES[1:]
    claims = [
        ordering(costs, "BPG-ML", "MCPG", larger, "BPG-ML is better than MCPG at M = 10, 20, 40"),
        ordering(costs, "BPG-MC", "MCPG", larger, "BPG-MC is better than MCPG at M = 10, 20, 40"),
        ordering(costs, "BPNG-ML", "MCPG", larger, "BPNG-ML is better than MCPG at M = 10, 20, 40"),
        ordering(costs, "BPNG-MC", "MCPG", larger, "BPNG-MC is better than MCPG at M = 10, 20, 40"),
        ordering(costs, "BPG-ML", "BPG-MC", (5, 10), "ML is better than MC for few paths"),
    ]  # fmt: skip
    return report(SHOWN, costs, claims, diverged(costs))


EXPERIMENT = Experiment(
    name="lqr-fisher",
    item="Figure 4",
    title="Learning LQR with an estimated Fisher matrix",
    runs=500,
    quick_runs=50,
    paper_runs=10_000,
    run=run,
)
