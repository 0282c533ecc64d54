"""Figure 4: learning LQR with a Fisher matrix estimated by Monte Carlo, by a maximum-likelihood
model, or with the actions integrated out."""

import functools

from bayespg.learning.estimators import (
    Model1,
    actions_integrated_out,
    maximum_likelihood,
    monte_carlo_fisher,
)
from bayespg.reproduce import claims
from bayespg.reproduce.claims import ALIKE, Row, ratios
from bayespg.reproduce.learning import Method
from bayespg.reproduce.lqr_optimisation import (
    LARGER,
    METHODS,
    OURS,
    ahead,
    cost,
    learn,
    rated,
    report,
)
from bayespg.reproduce.report import Progress, Report, Settings

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
    return report(SHOWN, learn(SHOWN, settings, progress))


CLAIMS = (
    *(
        ahead(f"fisher-{name.lower()}", FIGURE,
              f"with an estimated G, {name} is ahead of Monte Carlo from M = 10 on",
              name, "MCPG", LARGER)
        for name in ("BPG-ML", "BPG-MC", "BPNG-ML", "BPNG-MC")
    ),
    *(
        ahead(f"fisher-{name.lower()}-ml-mc", FIGURE,
              f"with few paths, {name}-ML is ahead of {name}-MC", f"{name}-ML", f"{name}-MC",
              (5, 10))
        for name in ("BPG", "BPNG")
    ),
    Row("fisher-vanishes", FIGURE, "the difference between the two vanishes for many paths",
        "ratio of final costs above the optimum, MC to ML, M = 40", ratios,
        {name: (("final", f"{name}-ML"), ("final", f"{name}-MC")) for name in ("BPG", "BPNG")},
        (40,), **ALIKE),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS, value=cost)
