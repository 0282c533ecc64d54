"""Figure 5: steps scaled by the posterior covariance (BPG-var)."""

from bayespg.reproduce.optimisation import METHODS, SIZES, diverged, learn, ordering, report
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

SHOWN = {
    name: METHODS[name]
    for name in ("MCPG", "MCPG, best baseline", "BPG", "BPG-var", "Model 2 + baseline")
}


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(SHOWN, settings, progress)
    claims = [
        ordering(costs, "BPG-var", "BPG", SIZES, "BPG-var is better than BPG at every M"),
        ordering(costs, "BPG-var", "MCPG", SIZES, "BPG-var is better than MCPG at every M"),
    ]
    return report(SHOWN, costs, claims, diverged(costs))


EXPERIMENT = Experiment(
    name="lqr-variance",
    item="Figure 5",
    title="Learning LQR with steps scaled by the posterior covariance",
    runs=1_000,
    quick_runs=50,
    paper_runs=10_000,
    run=run,
)
