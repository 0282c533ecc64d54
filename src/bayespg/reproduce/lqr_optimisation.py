"""Figure 3: BPG, BPNG and MCPG on LQR with exact G, and the code shared with Figures 4 and 5.

The settings are Table 3's learning rates in kappa space, kappa ~ N(0, I) at the start of each run,
100 updates, Sigma = 1e-3 I and Model 1. Costs are shown as in the paper: lower is better, and
0.3067 is optimal.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import optax

from bayespg.environments import LQR
from bayespg.learning import updates
from bayespg.learning.estimators import Model1, Model2, Reinforce, exact
from bayespg.policies import BoundedLinearGaussian
from bayespg.reproduce import learning
from bayespg.reproduce.claims import Claim, at, differences
from bayespg.reproduce.learning import Learned, Method, Task
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

SIZES = (5, 10, 20, 40)
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


OURS = "Model 2 + baseline"
METHODS = {
    "MCPG": Method(Reinforce(), rated("MCPG"), "MC"),
    "MCPG, best baseline": Method(Reinforce("best"), rated("MCPG"), "MC, best baseline"),
    "BPG": Method(Model1(fisher=exact), rated("BPG"), "BQ"),
    "BPNG": Method(Model1(fisher=exact), rated("BPNG"), "BQ natural"),
    "BPG-var": Method(Model1(fisher=exact), rated("BPG-var"), "BQ variant"),
    OURS: Method(Model2(baseline=float("inf")), rated("BPG"), "ours"),
}
"""The last method has a flat baseline, the actions integrated out of G, and the rates of BPG."""
Costs = Mapping[tuple[str, int], Learned]
"""Learning curves by method and M."""


def learn(
    methods: Mapping[str, Method], settings: Settings, progress: Progress, sizes=SIZES
) -> Costs:
    """Exact expected cost before each update and after the last, (runs, N + 1)."""
    environment, found = LQR(), {}
    task = Task(environment, _start, dict.fromkeys(sizes, UPDATES), drawn=True)
    for cell, learned in learning.learn(task, methods, settings, progress).items():
        with jax.enable_x64(True):
            last = jax.vmap(environment.expected_return)(learned.result.policy)
        costs = -np.concatenate([learned.values, np.asarray(last)[:, None]], 1)
        found[cell] = learned._replace(updates=np.arange(costs.shape[1]), values=costs)
    return found


def _start(runs: int, key) -> BoundedLinearGaussian:
    with jax.enable_x64(True):
        return BoundedLinearGaussian(jax.random.normal(key, (runs, 2)))


def above_optimum(found: Costs) -> Callable[[str, int], np.ndarray]:
    """A function that gives each run's final cost above the optimum, by method and M."""
    return lambda name, M: found[name, M].values[:, -1] - OPTIMUM


def ordering(
    found: Costs,
    id: str,
    place: str,
    says: str,
    better: str,
    worse: str,
    sizes: Sequence[int] = SIZES,
) -> Claim:
    """The claim that `better` ends at a lower expected cost than `worse` at each of `sizes`.

    Each effect also states in how many runs that is so, which shows whether a few outliers decide
    the mean.
    """
    pairs = at(sizes, lambda name, M: found[name, M].values[:, -1], better, worse)
    effects = differences(pairs, "{a:.3f} against {b:.3f}, lower in {share:.0f} % of runs")
    return Claim(id, place, says, "difference of final costs", effects)


def report(methods: Mapping[str, Method], found: Costs, claims: list[Claim]) -> Report:
    """A table of final costs and averages over the whole curve, and one panel for each M."""
    curves = learning.curves(found, methods)
    excess = [dataclasses.replace(c, mean=[v - OPTIMUM for v in c.mean]) for c in curves]
    rows = learning.final_and_average({cell: of.values for cell, of in found.items()})
    return Report(
        columns=["expected cost", "", *(f"M = {M}" for M in sorted({M for _, M in found}))],
        rows=[row for name in methods for row in rows[name]],
        curves=curves,
        claims=claims,
        figure=lambda: learning.panels(excess, "expected cost above the optimum", yscale="log"),
        notes=[
            f"± is one standard error; {OPTIMUM} is optimal; 'average' is over all updates.",
            *_diverged(found),
        ],
    )


def _diverged(found: Costs, factor: float = 2.0) -> list[str]:
    """Notes on runs that end above `factor` times the median initial cost."""
    notes = []
    for (name, M), (_, cost, _) in found.items():
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
    return report(SHOWN, costs, claims)


EXPERIMENT = Experiment(
    name="lqr-optimisation",
    item="Figure 3",
    title="Learning LQR: BPG and BPNG against MCPG",
    runs=1_000,
    quick_runs=50,
    paper_runs=10_000,
    run=run,
)
