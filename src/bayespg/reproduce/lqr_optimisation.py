"""Figure 3: BPG, BPNG and MCPG on LQR, exact G."""

from bayespg.reproduce.optimisation import METHODS, SIZES, diverged, learn, ordering, report
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

FIGURE, OURS = "Section 6.2.2, Figure 3", "Model 2 + baseline"
SHOWN = {
    name: METHODS[name]
    for name in ("MCPG", "MCPG, best baseline", "BPG", "BPNG", "Model 2 + baseline")
}


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(SHOWN, settings, progress)
    larger = SIZES[1:]

    def ahead(id: str, says: str, better: str, worse: str, sizes=SIZES, place: str = FIGURE):
        return ordering(costs, f"lqr-{id}", place, says, better, worse, sizes)

    baseline = "Model 2 with a baseline is ahead of"
    claims = [
        ahead("mcpg-bpg-5", "Monte Carlo is ahead of BPG at M = 5", "MCPG", "BPG", (5,)),
        ahead("mcpg-bpng-5", "Monte Carlo is ahead of BPNG at M = 5", "MCPG", "BPNG", (5,)),
        ahead("bpg", "BPG is ahead of Monte Carlo from M = 10 on", "BPG", "MCPG", larger),
        ahead("bpng", "BPNG is ahead of Monte Carlo from M = 10 on", "BPNG", "MCPG", larger),
        ahead("ours-bpg", f"{baseline} BPG at every M", OURS, "BPG", place=""),
        ahead(
            "ours-mcpg", f"{baseline} Monte Carlo with the best baseline at every M",
            OURS, "MCPG, best baseline", place="",
        ),
    ]  # fmt: skip
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
