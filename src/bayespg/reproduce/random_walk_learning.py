"""Figure 7: learning the random walk with M = 1, 25, 50, 75 episodes per update.

The measure is the exact expected cost above the optimum before each of 500 updates. The paper does
not state the initial policy; here it is the policy of Figure 6. (From theta = 0, BAC's rate of 5
leads to endless policies at once.) The paper's methods use the rates of Table 4;
`random-walk-rates` tunes the rates of the other methods, and of BAC, in the same way. A policy is
called endless if more than one episode in a hundred would last longer than 10^6 steps. That
probability is computed, not sampled; sampled episodes stop at `HORIZON` steps.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support.precision import to_numpy
from bayespg.environments import RandomWalk
from bayespg.learning import updates
from bayespg.learning.estimators import GPOMDP, Model1, MonteCarlo, monte_carlo_fisher
from bayespg.learning.training import Result
from bayespg.policies import Tabular
from bayespg.reproduce import claims, learning, sentences
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.claims import ALIKE, Effect, Row, differences, pair, ratios, under
from bayespg.reproduce.learning import Method, Task
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Samples

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
GRID = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
OURS = "BAC, noise on rewards"
MANY = 75
"""The largest M whose rates are printed. The paper mentions M = 100 but does not show it."""


def _at(rates):
    return lambda M: updates.conventional(rates[M] if M in rates else rates[25])


EPISODES, INTEGRATED = "MCPG, sum over episodes", "BPG, actions integrated out"
METHODS = {
    "MCPG": Method(MonteCarlo(weights="uniform"), _at(RATES["MCPG"]), "MC"),
    EPISODES: Method(GPOMDP(), _at(RATES["MCPG"]), "GPOMDP"),
    "BPG": Method(Model1(fisher=monte_carlo_fisher), _at(RATES["BPG"]), "BPG"),
    INTEGRATED: Method(Model1(), _at(RATES["BPG"]), "eNAC"),
    "BAC": Method(rw.PAPER, _at(RATES["BAC"]), "BAC"),
    "MC, fitted values": Method(rw.FITTED, _at(TUNED["MC, fitted values"]), "MC, fitted values"),
    "BAC, tuned rate": Method(rw.PAPER, _at(TUNED["BAC"]), "BAC variant"),
    OURS: Method(rw.FIXED, _at(TUNED[OURS]), "ours"),
}
"""MCPG is Algorithm 1 of Baxter and Bartlett, a mean over steps; BPG is Model 1 with G from outer
products of path scores."""
PRINTED, PRINTED_FASTER = "BAC, G-EST as printed", "BAC, G-EST as printed, tuned rate"
AS_PRINTED = {
    "MCPG": METHODS["MCPG"],
    "BPG": METHODS["BPG"],
    PRINTED: Method(rw.PRINTED, _at(RATES["BAC"]), "BAC as printed"),
    PRINTED_FASTER: Method(rw.PRINTED, _at(TUNED["BAC"]), "BAC variant"),
}
"""What `random-walk-printed` compares."""


def _start(runs: int) -> Tabular:
    return Tabular(jnp.full((runs, 9), rw.START))


def run(settings: Settings, progress: Progress, methods: Mapping[str, Method] = METHODS) -> Report:
    sizes = (1, 25) if settings.quick else (1, 25, 50, 75)
    length = UPDATES if settings.paper else 100 if settings.quick else 200
    environment = RandomWalk(horizon=HORIZON)
    task = Task(environment, _start, dict.fromkeys(sizes, length), ended=_endless(environment))
    results = learning.learn(task, methods, settings, progress)

    def above(values: np.ndarray) -> np.ndarray:
        return environment.optimum - values

    curves = learning.curves(results, methods, above)
    endless = {("endless", *cell): np.asarray(of.ended) for cell, of in results.items()}
    rows = []
    costs = learning.final_and_average({cell: above(of.values) for cell, of in results.items()})
    for name in methods:
        counts = [str(int(endless["endless", name, M].sum())) for M in sizes]
        rows += [*costs[name], [name, "runs with an endless policy", *counts]]
    return Report(
        columns=["cost above the optimum", "", *(f"M = {M}" for M in sizes)],
        rows=rows,
        curves=curves,
        samples=Samples(learning.cells(results, above) | endless),
        figure=lambda: learning.panels(curves, "expected cost above the optimum", yscale="log"),
        notes=[
            f"± is one standard error over runs; {length} updates from theta = log(41/9); "
            f"'average' is over them; episodes are cut off at {HORIZON} steps.",
            "A policy is endless if more than 1 episode in 100 is longer than 10^6 steps; a run "
            "counts if any of its policies is.",
        ],
    )


def run_printed(settings: Settings, progress: Progress) -> Report:
    """With Algorithm 3 as printed."""
    return run(settings, progress, AS_PRINTED)


def _endless(environment) -> Callable[[Result], np.ndarray]:
    """A function that says of every run whether some policy of it was endless."""

    @jax.jit
    def tails(theta):
        return jax.vmap(jax.vmap(lambda t: environment.tail(Tabular(t), ENDLESS)))(theta)

    return lambda result: np.any(to_numpy(tails(result.history.parameters)) > 0.01, 1)


EFFECT = "difference of costs, mean over all updates"
RATIO = "ratio of costs above the optimum, mean over all updates"
FEW, LATER = range(26), range(26, 1_000)


def _behind(id: str, sentence: str, says: str, first: str, second: str, sizes: Any = None) -> Row:
    """`second` has the larger costs."""
    pairs = pair("average", first, second)
    return Row(f"walk-{id}", sentence, says, EFFECT, differences, pairs, sizes)


def _ends(id: str, sentence: str, says: str, name: str, sizes: Any = None) -> Row:
    effect, pairs = "share of runs with an endless policy", {"M = {M}": (("endless", name),)}
    return Row(f"walk-{id}", sentence, says, effect, _share, pairs, sizes, -math.inf, 0.001)


def _share(counted: Mapping[str, tuple[np.ndarray]]) -> tuple[Effect, ...]:
    """Of all sizes together."""
    endless = np.concatenate([of for (of,) in counted.values()])
    return claims.shares({"": (int(endless.sum()), endless.size)}, rare=True)


FASTER = tuple(
    Row(f"walk-bac{{}}-{name.lower()}", "figure-7",
        f"BAC learns significantly faster than {name} at every M", f"{RATIO}, {name} to BAC",
        ratios, pair("average", "BAC", name), above=2)
    for name in ("MCPG", "BPG")
)  # fmt: skip
"""Significantly faster is by a factor of more than 2."""
ROBUST = (
    _ends("endless{}", "walk-robust", "BAC never reaches a policy whose episodes do not end",
          "BAC"),
    _ends("endless-rate{}", "walk-robust", "BAC never reaches such a policy when its learning rate "
          "is 20 instead of 5 (M = 1)", "BAC, tuned rate", (1,)),
)  # fmt: skip
BEHIND = _behind("bpg-mcpg{}", "walk-bpg", "BPG is worse than MCPG at M = 1 and 25", "MCPG", "BPG",
                 FEW)  # fmt: skip
CLAIMS = (
    *under(FASTER, "", sentences.G_CORRECTED),
    *under(FASTER, "-episodes", sentences.G_EPISODES, {"MCPG": EPISODES}),
    *under([BEHIND], "", sentences.MEAN),
    *under([BEHIND], "-episodes", sentences.SUM, {"MCPG": EPISODES}),
    *under([BEHIND], "-integrated", sentences.INTEGRATED, {"BPG": INTEGRATED}),
    *(
        Row(f"walk-bpg-many{id}", "walk-bpg", f"BPG and BAC perform alike at M = {MANY}, the "
            "largest M with printed rates", f"{RATIO}, BPG to BAC", ratios,
            pair("average", "BAC", bpg), (MANY,), **ALIKE, kind="paper" if reading else "ours",
            reading=reading)
        for id, bpg, reading in (("", "BPG", ""), ("-integrated", INTEGRATED, sentences.INTEGRATED))
    ),
    Row("walk-bpg-improves", "walk-bpg-improves", "BPG has smaller costs with each larger M",
        f"{RATIO}, the M before to M", ratios, {"M = {M}": (("average", "BPG"), ("before", "BPG"))},
        above=1),
    *under(ROBUST, "", sentences.G_CORRECTED),
    _behind("rewards-bac", "", "with noise on the rewards BAC learns faster than the paper's BAC",
            OURS, "BAC"),
    _behind("rewards-fitted", "", "with noise on the rewards BAC learns faster than Monte Carlo "
            "with fitted values", OURS, "MC, fitted values"),
    _ends("rewards-endless", "",
          "with noise on the rewards BAC never reaches an endless policy either", OURS),
    *(
        Row(f"walk-bpg-not-behind{id}", "walk-bpg", f"BPG is not behind MCPG from M = 50 on{form}",
            f"{RATIO}, BPG to MCPG", ratios, pair("average", mcpg, "BPG"), LATER,
            below=ALIKE["below"], kind="ours")
        for id, form, mcpg in (("", "", "MCPG"), ("-episodes", f" ({sentences.SUM})", EPISODES))
    ),
)  # fmt: skip


def value(samples: Samples, what: str, name: str, M: int) -> np.ndarray | None:
    """Also the average at the M before."""
    if what != "before":
        return samples[what, name, M]
    before = [size for size in samples.sizes() if size < M]
    return samples["average", name, before[-1]] if before else None


judge = functools.partial(claims.judge, CLAIMS, value=value)
judge_printed = functools.partial(
    claims.judge,
    (
        *under(FASTER, "-printed", sentences.G_PRINTED, {"BAC": PRINTED}),
        *under(
            ROBUST,
            "-printed",
            sentences.G_PRINTED,
            {"BAC": PRINTED, "BAC, tuned rate": PRINTED_FASTER},
        ),
    ),
)


def tune(settings: Settings, progress: Progress) -> Report:
    """Tune the learning rates by the mean over all updates of the expected return, less the
    optimum."""
    sizes = {1: UPDATES, 25: UPDATES, 100: UPDATES} if settings.paper else {1: 100}
    methods = {name: METHODS[name] for name in ("MCPG", "BPG", "MC, fitted values", "BAC", OURS)}
    environment = RandomWalk(horizon=HORIZON)
    return learning.tune(
        Task(environment, _start, sizes), methods, GRID,
        lambda h: h.expected_return.mean() - environment.optimum, settings, progress,
    )  # fmt: skip


def _lost(first: str, second: str, samples: Samples):
    return learning.at_best(first, second, (100,), f"{first} at {{a}}, {second} at {{b}}", samples)


RATES_CLAIMS = (
    *(
        Row(f"walk-rates-many{id}", "walk-bpg",
            "BPG performs like BAC at M = 100, at the best rate of each", f"{RATIO}, BPG to BAC",
            ratios, functools.partial(_lost, "BAC", "BPG"), **ALIKE, reading=reading)
        for id, reading in (("", sentences.MEAN), ("-episodes", sentences.SUM))
    ),
    Row("walk-rates-mcpg", "", "BAC learns faster than MCPG at M = 100, at the best rate of each",
        EFFECT, differences, functools.partial(_lost, "BAC", "MCPG")),
)  # fmt: skip
"""Two are of the paper's sentence about M = 100, for which it prints no rates."""
judge_rates = functools.partial(claims.judge, RATES_CLAIMS)
