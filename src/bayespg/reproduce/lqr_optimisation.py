"""Figure 3: BPG, BPNG and MCPG on LQR, exact G."""

from bayespg.reproduce.optimisation import METHODS, SIZES, diverged, learn, ordering, report
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

SHOWN = {
    name: METHODS[name]
    for name in ("MCPG", "MCPG, best baseline", "BPG", "BPNG", "Model 2 + baseline")
}


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(SHOWN, settings, progress)
    larger = SIZES[1:]
    claims = [
        ordering(costs, "MCPG", "BPG", (5,), "MCPG is better than BPG at M = 5"),
        ordering(costs, "MCPG", "BPNG", (5,), "MCPG is better than BPNG at M = 5"),
        ordering(costs, "BPG", "MCPG", larger, "BPG is better than MCPG at M = 10, 20, 40"),
        ordering(costs, "BPNG", "MCPG", larger, "BPNG is better than MCPG at M = 10, 20, 40"),
        ordering(costs, "Model 2 + baseline", "BPG", SIZES, "(ours) better than BPG at every M"),
        ordering(
            costs,
            "Model 2 + baseline",
            "MCPG, best baseline",
            SIZES,
            "(ours) better than MCPG, best baseline, at every M",
        ),
    ]
    return report(SHOWN, costs, claims, diverged(costs))


EXPERIMENT = Experiment(
    name="lqr-optimisation",
    item="Figure 3",
    title="Learning LQR: BPG and BPNG against MCPG",
    runs=1_000,
    quick_runs=50,
    paper_runs=10_000,
    run=run,
)
