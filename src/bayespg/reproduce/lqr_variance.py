"""Figure 5: steps scaled by the posterior covariance (BPG-var)."""

from bayespg.reproduce.claims import Claim, at, differences, ratios
from bayespg.reproduce.lqr_optimisation import (
    METHODS,
    SIZES,
    above_optimum,
    learn,
    ordering,
    report,
)
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

FIGURE = "Section 6.2.2, Figure 5"


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(METHODS, settings, progress)

    def average(name: str, M: int):
        return costs[name, M].values.mean(1)

    claims = [
        ordering(costs, "var-bpg", FIGURE, "BPG-var is ahead of BPG at every M", "BPG-var", "BPG"),
        ordering(
            costs, "var-mcpg", FIGURE, "BPG-var is ahead of Monte Carlo at every M",
            "BPG-var", "MCPG",
        ),
        Claim(
            "var-bpng", FIGURE, "BPG-var learns faster than BPNG",
            "difference of costs, mean over all updates",
            differences(at(SIZES, average, "BPG-var", "BPNG")),
        ),
        Claim(
            "var-many", FIGURE, "BPG-var and BPG perform alike when M is large",
            "ratio of final costs above the optimum, BPG to BPG-var",
            ratios(at((40,), above_optimum(costs), "BPG-var", "BPG")),
            above=0.8, below=1.25,
        ),
    ]  # fmt: skip
    return report(METHODS, costs, claims)


EXPERIMENT = Experiment(
    name="lqr-variance",
    item="Figure 5",
    title="Learning LQR with steps scaled by the posterior covariance",
    runs=1_000,
    quick_runs=50,
    paper_runs=10_000,
    run=run,
)
