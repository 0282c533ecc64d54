"""Figure 3: BPG, BPNG and MCPG on LQR with exact G, and the code shared with Figures 4 and 5.

The settings are Table 3's learning rates in kappa space, kappa ~ N(0, I) at the start of each run,
100 updates, Sigma = 1e-3 I and Model 1. Costs are shown as in the paper: lower is better, and
0.3067 is optimal.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax

from bayespg.environments import LQR
from bayespg.learning import updates
from bayespg.learning.estimators import Model1, Model2, MonteCarlo, Reinforce, exact
from bayespg.learning.training import Result
from bayespg.policies import BoundedLinearGaussian
from bayespg.reproduce import claims, learning
from bayespg.reproduce.claims import Cells, Row, differences, pair
from bayespg.reproduce.learning import Learned, Method, Task
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Samples

SIZES = (5, 10, 20, 40)
LARGER = SIZES[1:]
UPDATES = 100
OPTIMUM = 0.3067
RATES = {
    "MCPG": {5: (0.01, 0.05), 10: (0.05, 0.05), 20: (0.05, 0.10), 40: (0.05, 0.10)},
    "BPG": {5: (0.01, 0.05), 10: (0.07, 0.10), 20: (0.15, 0.15), 40: (0.10, 0.30)},
    "BPNG": {5: (0.010, 0.005), 10: (0.010, 0.005), 20: (0.015, 0.005), 40: (0.015, 0.005)},
    "BPG-var": {5: (0.05, 0.05), 10: (0.10, 0.10), 20: (0.10, 0.15), 40: (0.15, 0.30)},
}
"""Table 3."""


def rated(rates: str) -> Callable[[int], optax.GradientTransformationExtraArgs]:
    """A function from M to the update of a method with its learning rates from Table 3."""

    def update(M: int) -> optax.GradientTransformationExtraArgs:
        rate = np.array(RATES[rates][M])
        if rates == "BPNG":
            return updates.natural(rate, times_determinant=True)
        if rates == "BPG-var":
            return updates.variance_scaled(rate)
        return updates.conventional(updates.hyperbolic(rate))

    return update


OURS, PER_STEP = "Model 2 + baseline", "MCPG, mean over steps"
EQUAL = "MCPG, best baseline, rates of BPG"
METHODS = {
    "MCPG": Method(Reinforce(), rated("MCPG"), "MC"),
    PER_STEP: Method(MonteCarlo(weights="uniform"), rated("MCPG"), "GPOMDP"),
    "MCPG, best baseline": Method(Reinforce("best"), rated("MCPG"), "MC, best baseline"),
    EQUAL: Method(Reinforce("best"), rated("BPG"), "MC, mean baseline"),
    "BPG": Method(Model1(fisher=exact), rated("BPG"), "BQ"),
    "BPNG": Method(Model1(fisher=exact), rated("BPNG"), "BQ natural"),
    "BPG-var": Method(Model1(fisher=exact), rated("BPG-var"), "BQ variant"),
    OURS: Method(Model2(baseline=float("inf")), rated("BPG"), "ours"),
}
"""MCPG is Eq. 6. The second method is Algorithm 1 of Baxter and Bartlett, a mean over steps, which
the paper uses in Section 8. The last has a flat baseline, the actions integrated out of G, and the
rates of BPG."""
Costs = Mapping[tuple[str, int], Learned]
"""Learning curves by method and M."""


def learn(
    methods: Mapping[str, Method],
    settings: Settings,
    progress: Progress,
    start: Callable[..., BoundedLinearGaussian] | None = None,
    label: str = "",
    sizes: Sequence[int] = SIZES,
) -> Costs:
    """Exact expected cost before each update and after the last, (runs, N + 1)."""
    environment, found = LQR(), {}

    def last(result: Result) -> Any:
        with jax.enable_x64(True):
            return jax.vmap(environment.expected_return)(result.policy)

    updates = dict.fromkeys(sizes, UPDATES)
    task = Task(environment, start or normal, updates, drawn=True, ended=last, label=label)
    for cell, learned in learning.learn(task, methods, settings, progress).items():
        assert learned.ended is not None
        costs = -np.concatenate([learned.values, learned.ended[:, None]], 1)
        found[cell] = learned._replace(updates=np.arange(costs.shape[1]), values=costs)
    return found


def normal(runs: int, key) -> BoundedLinearGaussian:
    """kappa ~ N(0, I)."""
    with jax.enable_x64(True):
        return BoundedLinearGaussian(jax.random.normal(key, (runs, 2)))


def above_optimum(costs: np.ndarray) -> np.ndarray:
    return costs - OPTIMUM


COSTS = "difference of final costs"
ends = functools.partial(
    differences, words="{a:.3f} against {b:.3f}, lower in {share:.0f} % of runs"
)
"""Says in how many runs the first is lower, which shows whether a few outliers decide the mean."""


def ahead(id: str, place: str, says: str, better: str, worse: str, sizes: Any = None) -> Row:
    """`better` ends at a lower expected cost than `worse` at each of `sizes`."""
    return Row(id, place, says, COSTS, ends, pair("cost", better, worse), sizes)


def cost(samples: Cells, what: str, name: str, M: int) -> np.ndarray:
    return OPTIMUM + samples["final", name, M] if what == "cost" else samples[what, name, M]


def report(methods: Mapping[str, Method], found: Costs) -> Report:
    """A table of final costs and averages over the whole curve, and one panel for each M."""
    curves = learning.curves(found, methods)
    excess = [dataclasses.replace(c, mean=[v - OPTIMUM for v in c.mean]) for c in curves]
    rows = learning.final_and_average({cell: of.values for cell, of in found.items()})
    return Report(
        columns=["expected cost", "", *(f"M = {M}" for M in sorted({M for _, M in found}))],
        rows=[row for name in methods for row in rows[name]],
        curves=curves,
        samples=Samples(learning.cells(found, above_optimum)),
        figure=lambda: learning.panels(excess, "expected cost above the optimum", yscale="log"),
        notes=[
            f"± is one standard error; {OPTIMUM} is optimal; 'average' is over all updates.",
            *_diverged(found),
        ],
    )


def _diverged(found: Costs, factor: float = 2.0) -> list[str]:
    """Notes on runs that end above `factor` times the median initial cost."""
    notes = []
    for (name, M), learned in found.items():
        cost = learned.values
        bad = int(np.sum(cost[:, -1] > factor * np.median(cost[:, 0])))
        if bad:
            notes.append(
                f"{name}, M = {M}: {bad} of {len(cost)} runs end above {factor:g} times "
                "the median initial cost."
            )
    return notes


FIGURE = "Section 6.2.2, Figure 3"
SHOWN = {name: method for name, method in METHODS.items() if name != "BPG-var"}


def run(settings: Settings, progress: Progress) -> Report:
    return report(SHOWN, learn(SHOWN, settings, progress))


def paper_claims(place: str, id: str = "lqr", start: str = "") -> tuple[Row, ...]:
    """What the paper says about Figure 3; `start` says which initial policies were used."""
    return (
        ahead(f"{id}-mcpg-bpg-5", place, f"Monte Carlo is ahead of BPG at M = 5{start}",
              "MCPG", "BPG", (5,)),
        ahead(f"{id}-mcpg-bpng-5", place, f"Monte Carlo is ahead of BPNG at M = 5{start}",
              "MCPG", "BPNG", (5,)),
        ahead(f"{id}-bpg", place, f"BPG is ahead of Monte Carlo from M = 10 on{start}",
              "BPG", "MCPG", LARGER),
        ahead(f"{id}-bpng", place, f"BPNG is ahead of Monte Carlo from M = 10 on{start}",
              "BPNG", "MCPG", LARGER),
    )  # fmt: skip


CLAIMS = (
    *paper_claims(FIGURE),
    ahead("lqr-ours-bpg", "", "Model 2 with a baseline is ahead of BPG at every M, at the same "
          "rates", OURS, "BPG"),
    ahead("lqr-ours-mcpg", "", "Model 2 with a baseline is ahead of Monte Carlo with the best "
          "baseline at every M, at the same rates (BPG's)", OURS, EQUAL),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS, value=cost)
