"""Figure 5: steps scaled by the posterior covariance (BPG-var)."""

from bayespg.reproduce.claims import Claim, at, differences, ratios
from bayespg.reproduce.optimisation import (
    METHODS,
    OPTIMUM,
    SIZES,
    diverged,
    learn,
    ordering,
    report,
)
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

FIGURE = "Section 6.2.2, Figure 5"
SHOWN = {
    name: METHODS[name]
    for name in ("MCPG", "MCPG, best baseline", "BPG", "BPNG", "BPG-var", "Model 2 + baseline")
}


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(SHOWN, settings, progress)
    claims = [
        ordering(costs, "var-bpg", FIGURE, "BPG-var is ahead of BPG at every M", "BPG-var", "BPG"),
        ordering(
            costs, "var-mcpg", FIGURE, "BPG-var is ahead of Monte Carlo at every M",
            "BPG-var", "MCPG",
        ),
        Claim(
            "var-bpng", FIGURE, "BPG-var learns faster than BPNG",
            "difference of costs, mean over all updates",
            differences(at(SIZES, lambda name, M: costs[name, M].mean(1), "BPG-var", "BPNG")),
        ),
        Claim(
            "var-many", FIGURE, "BPG-var is like BPG when M is large",
            "ratio of final costs above the optimum, BPG to BPG-var",
            ratios(at((40,), lambda name, M: costs[name, M][:, -1] - OPTIMUM, "BPG-var", "BPG")),
            above=0.8, below=1.25,
        ),
    ]  # fmt: skip
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
