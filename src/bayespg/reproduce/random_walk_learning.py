"""Figure 7: learning the random walk with M = 1, 25, 50, 75 episodes per update.

The measure is the exact expected cost above the optimum before each of 500 updates. The paper does
not state the initial policy; here it is the policy of Figure 6. (From theta = 0, BAC's rate of 5
leads to endless policies at once.) The paper's methods use the rates of Table 4;
`random-walk-rates` tunes the rates of the other methods, and of BAC, in the same way. A policy is
called endless if more than one episode in a hundred would last longer than 10^6 steps. That
probability is computed, not sampled; sampled episodes stop at `HORIZON` steps.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support.precision import to_numpy
from bayespg.learning import updates
from bayespg.learning.estimators import GPOMDP, Model1
from bayespg.policies import Tabular
from bayespg.reproduce import learning
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.claims import Claim, at, differences, ratios, shares
from bayespg.reproduce.learning import Learned, Method, Task
from bayespg.reproduce.report import Experiment, Progress, Report, Settings

UPDATES = 500
HORIZON = 200
ENDLESS = 10**6
RATES = {
    "MCPG": {1: 0.005, 25: 0.075, 50: 0.1, 75: 0.75},
    "BPG": {1: 0.0035, 25: 0.015, 50: 0.09, 75: 0.5},
    "BAC": {1: 5.0, 25: 5.0, 50: 5.0, 75: 5.0},
}
"""Table 4."""
TUNED = {
    "MC, fitted values": {1: 2.0, 25: 10.0},
    "BAC": {1: 20.0, 25: 20.0},
    "BAC, noise on rewards": {1: 5.0, 25: 100.0},
}
"""Chosen by `random-walk-rates`; M = 50 and 75 use the rates of M = 25."""
GRID = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
OURS = "BAC, noise on rewards"
MANY = 75
"""The largest M whose rates are printed. The paper mentions M = 100 but does not show it."""


def _at(rates):
    return lambda M: updates.conventional(rates[M] if M in rates else rates[25])


METHODS = {
    "MCPG": Method(GPOMDP(), _at(RATES["MCPG"]), "MC"),
    "BPG": Method(Model1(), _at(RATES["BPG"]), "BPG"),
    "BAC": Method(rw.PAPER, _at(RATES["BAC"]), "BAC"),
    "MC, fitted values": Method(rw.FITTED, _at(TUNED["MC, fitted values"]), "MC, fitted values"),
    "BAC, tuned rate": Method(rw.PAPER, _at(TUNED["BAC"]), "BAC variant"),
    OURS: Method(rw.FIXED, _at(TUNED[OURS]), "ours"),
}


def _start(runs: int) -> Tabular:
    return Tabular(jnp.full((runs, 9), rw.START))


def run(settings: Settings, progress: Progress) -> Report:
    sizes = (1, 25) if settings.quick else (1, 25, 50, 75)
    length = UPDATES if settings.paper else 100 if settings.quick else 200
    environment = rw.walk(HORIZON)
    task = Task(environment, _start, dict.fromkeys(sizes, length))
    found = learning.learn(task, METHODS, settings, progress)
    endless = {cell: _endless(environment, learned) for cell, learned in found.items()}

    def above(values: np.ndarray) -> np.ndarray:
        return environment.optimum - values

    curves = learning.curves(found, METHODS, above)
    rows = []
    costs = learning.final_and_average({cell: above(of.values) for cell, of in found.items()})
    for name in METHODS:
        counts = [str(endless[name, M]) for M in sizes]
        rows += [*costs[name], [name, "runs with an endless policy", *counts]]
    return Report(
        columns=["cost above the optimum", "", *(f"M = {M}" for M in sizes)],
        rows=rows,
        curves=curves,
        claims=_claims(found, endless, sizes, above, settings.runs),
        figure=lambda: learning.panels(curves, "expected cost above the optimum", yscale="log"),
        notes=[
            f"± is one standard error over runs; {length} updates from theta = log(41/9); "
            f"'average' is over them; episodes are cut off at {HORIZON} steps.",
            "A policy is endless if more than 1 episode in 100 is longer than 10^6 steps; a run "
            "counts if any of its policies is.",
        ],
    )


def _endless(environment, learned: Learned) -> int:
    """The number of runs in which some policy is endless."""
    parameters = learned.result.history.parameters

    @jax.jit
    def tails(theta):
        return jax.vmap(jax.vmap(lambda t: environment.tail(Tabular(t), ENDLESS)))(theta)

    return int(np.sum(np.any(to_numpy(tails(parameters)) > 0.01, 1)))


def _claims(found, endless, sizes, above, runs: int) -> list[Claim]:
    figure = "Section 8.1, Figure 7"

    def average(name: str, M: int) -> np.ndarray:
        return above(found[name, M].values).mean(1)

    def ahead(id: str, place: str, says: str, first: str, second: str, Ms=sizes) -> Claim:
        effect = "difference of costs, mean over all updates"
        return Claim(f"walk-{id}", place, says, effect, differences(at(Ms, average, first, second)))

    def ends(id: str, place: str, says: str, name: str, Ms=sizes) -> Claim:
        count = sum(int(endless[name, M]) for M in Ms)
        effect = "share of runs with an endless policy"
        return Claim(
            f"walk-{id}", place, says, effect, shares({"": (count, runs * len(Ms))}),
            above=-math.inf, below=0.001,
        )  # fmt: skip

    few = [M for M in sizes if M <= 25]
    claims = [
        ahead("bac-mcpg", figure, "BAC learns faster than MCPG at every M", "BAC", "MCPG"),
        ahead("bac-bpg", figure, "BAC learns faster than BPG at every M", "BAC", "BPG"),
        ahead("bpg-mcpg", figure, "BPG is worse than MCPG at M = 1 and 25", "MCPG", "BPG", few),
        ends("endless", figure, "BAC never reaches a policy whose episodes do not end", "BAC"),
        ends(
            "endless-rate", figure,
            "BAC never reaches such a policy when its learning rate is changed either (20 instead "
            "of 5, at M = 1)",
            "BAC, tuned rate", [1],
        ),
        ahead(
            "rewards-bac", "", "with noise on the rewards BAC learns faster than the paper's BAC",
            OURS, "BAC",
        ),
        ahead(
            "rewards-fitted", "",
            "with noise on the rewards BAC learns faster than Monte Carlo with fitted values",
            OURS, "MC, fitted values",
        ),
        ends(
            "rewards-endless", "",
            "with noise on the rewards BAC never reaches an endless policy either", OURS,
        ),
    ]  # fmt: skip
    if MANY in sizes:
        claims.append(
            Claim(
                "walk-bpg-many", figure,
                "BPG and BAC perform alike with many episodes (the paper says 100; its printed "
                f"rates end at {MANY})",
                "ratio of costs above the optimum, mean over all updates, BPG to BAC",
                ratios(at((MANY,), average, "BAC", "BPG")), above=0.8, below=1.25,
            )
        )  # fmt: skip
    return claims


def tune(settings: Settings, progress: Progress) -> Report:
    """Tune the learning rates by the mean of the expected return over all updates."""
    sizes = {1: UPDATES, 25: UPDATES} if settings.paper else {1: 100}
    estimators = {"MC, fitted values": rw.FITTED, "BAC": rw.PAPER, OURS: rw.FIXED}
    looks = {name: METHODS[name].look for name in estimators}
    task = Task(rw.walk(HORIZON), _start, sizes)
    return learning.tune(
        task, estimators, looks, GRID, lambda h: h.expected_return.mean(), settings, progress
    )


EXPERIMENT = Experiment(
    name="random-walk-learning",
    item="Figure 7",
    title="Learning the random walk",
    runs=4,
    quick_runs=2,
    paper_runs=1_000,
    run=run,
    minutes=6,
)
TUNING = Experiment(
    name="random-walk-rates",
    item="Table 4",
    title="Learning rates for the random walk, tuned for all methods alike",
    runs=4,
    quick_runs=2,
    paper_runs=20,
    run=tune,
)
