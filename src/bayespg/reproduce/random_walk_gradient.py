"""Figure 6: error of the gradient estimates on the random walk at theta = log(41/9).

Every estimator computes its Fisher matrix from the same episodes. Quadrature has the paper's, outer
products of path scores (Section 4.3), and with them a Model 2 that is nearly Monte Carlo; two more
rows have the actions integrated out of G. There are four versions of BAC:
the paper's (G-EST with weight 1 for the last pair), the same with G-EST as printed, one with the
actions integrated out of G, and ours, which also puts the noise on the rewards and chooses all
variances by evidence.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from bayespg._support.random import fast_key
from bayespg.environments import RandomWalk
from bayespg.learning.estimators import ENAC, GPOMDP, Model1, Model2, Reinforce, monte_carlo_fisher
from bayespg.paths.rollout import rollout
from bayespg.policies import Tabular
from bayespg.reproduce import claims, gradients, learning, sentences
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.claims import (
    Claim,
    Effect,
    Pairs,
    Row,
    differences,
    pair,
    ratios,
    ratios_of_ratios,
    under,
)
from bayespg.reproduce.gradients import errors, on_tasks
from bayespg.reproduce.report import Curve, Progress, Report, Settings, cell
from bayespg.reproduce.samples import Samples, grouped

BAC, OURS = "BAC, actions integrated out", "BAC, noise on rewards, evidence"
PRINTED, FIXED = "BAC, G-EST as printed", "BAC, noise on rewards"
SHOWN = {
    "MC": (Reinforce(), "MC"),
    "GPOMDP": (GPOMDP(), "GPOMDP"),
    "MC, best baseline": (Reinforce("best"), "MC, mean baseline"),
    "MC, fitted values": (rw.FITTED, "MC, fitted values"),
    "eNAC": (ENAC(), "eNAC"),
    "compatible least squares": (rw.COMPATIBLE, "compatible"),
    "BQ, Model 1": (Model1(fisher=monte_carlo_fisher), "BQ natural"),
    "BQ, Model 2": (Model2(fisher=monte_carlo_fisher), "BQ variant"),
    "BQ, Model 1, actions integrated out": (Model1(), "BQ"),
    "BQ, Model 2 + baseline": (Model2(baseline=float("inf")), "ours exact"),
    "BAC": (rw.PAPER, "BAC"),
    PRINTED: (rw.PRINTED, "BAC as printed"),
    BAC: (rw.INTEGRATED, "BAC variant"),
    FIXED: (rw.FIXED, "ours fixed"),
    OURS: (rw.OURS, "ours"),
}
"""The estimators, and how their curves look."""
ESTIMATORS = {name: estimator for name, (estimator, _) in SHOWN.items()}
LOOKS = {name: look for name, (_, look) in SHOWN.items()}
RIVALS = [name for name in ESTIMATORS if not name.startswith("BAC")]
HORIZON = 120
"""At this policy fewer than one episode in 10^9 is longer."""


sizes = functools.partial(gradients.sizes, default=(5, 10, 20, 50, 100))


def run(settings: Settings, progress: Progress) -> Report:
    policy = Tabular(jnp.full(9, rw.START))
    Ms = sizes(settings)
    measured = errors(
        RandomWalk(horizon=HORIZON), policy, ESTIMATORS, Ms, settings, progress, batch=50
    )
    return gradients.report(measured, LOOKS, Ms, "{:.4f} ± {:.4f}")


PAPER = ("MC", "GPOMDP", "BQ, Model 1", "BQ, Model 2")
"""What Figure 6 compares BAC with; the paper does not say which Monte Carlo and which model."""


def _rivals(name: str, rivals: Sequence[str], of: str = "square"):
    return {f"{rival}, M = {{M}}": ((of, name), (of, rival)) for rival in rivals}


def _least(pairs: Pairs) -> tuple[Effect, ...]:
    """The smallest of the ratios."""
    return (min(ratios(pairs), key=lambda effect: effect.value),)


SQUARES = "ratio of mean squared errors, rival to BAC"
OF_BAC = tuple(
    Row(f"walk-gradient-{what}{{}}", sentence, says, effect, ratios, _rivals("BAC", rivals, of),
        above=1)
    for what, sentence, rivals, of, effect, says in (
        ("error", "figure-6", PAPER, "square", SQUARES,
         "BAC is more accurate than Monte Carlo and quadrature at every M"),
        ("angle", "figure-6", PAPER, "angle", "ratio of mean angular errors, rival to BAC",
         "BAC's angular error is smaller than theirs at every M"),
        ("spread", "figure-6", PAPER, "scatter", "ratio of total variances, rival to BAC",
         "BAC's estimates vary less than those of Monte Carlo and quadrature"),
        ("models", "bac-accurate", PAPER[2:], "square", SQUARES,
         "BAC is more accurate than quadrature with either model at every M"),
    )
)  # fmt: skip
CLAIMS = (
    *under(OF_BAC, "-as-printed", sentences.G_PRINTED, {"BAC": PRINTED}),
    *under(OF_BAC, "", sentences.G_CORRECTED),
    Row("walk-gradient-lengths", "lengths", "on the random walk, where paths differ in length, "
        "it is not: at some M its lead is less than twofold",
        "ratio of mean squared errors, MC to Model 1", _least,
        pair("square", "BQ, Model 1", "MC"), below=2, reading=sentences.TASKS),
    Row("walk-gradient-integrated", "", "with the actions integrated out of G, BAC is also more "
        "accurate than the methods that fit values", SQUARES, ratios,
        _rivals(BAC, [r for r in RIVALS if r != "BQ, Model 2 + baseline"]), above=1),
    Row("walk-gradient-rewards", "",
        "with noise on the rewards, BAC is more accurate than every other method at every M",
        SQUARES, ratios, _rivals(OURS, RIVALS), above=1),
)  # fmt: skip


def judge(samples: Samples) -> list[Claim]:
    last = Row(
        "walk-gradient-printed", "", "the printed line of G-EST, which gives the last pair the "
        "weight 1/(1 - γ), makes the gradient worse with many episodes",
        "ratio of mean squared errors, as printed to corrected", ratios,
        pair("square", "BAC", PRINTED), samples.sizes()[-1:], above=2,
    )  # fmt: skip
    return claims.judge((*CLAIMS, last), samples)


STEPS = (0.9, 0.82, 0.7, 0.6)
"""Probabilities of a step to the right; episodes have 11, 14, 20 and 34 steps in the mean."""
LONGEST, EPISODES = 600, 20
COMPARED = ("BQ, Model 1", "BQ, Model 2", "BAC")


def run_lengths(settings: Settings, progress: Progress) -> Report:
    """Total variances at policies whose episodes differ in length."""
    estimators = {name: ESTIMATORS[name] for name in COMPARED}
    environment = RandomWalk(horizon=LONGEST)
    policies = [Tabular(jnp.full(9, float(np.log(right / (1 - right))))) for right in STEPS]
    lengths = [
        float(rollout(environment, policy, fast_key(settings.seed), 2_000).lengths.mean())
        for policy in policies
    ]
    tasks = {
        str(right): (environment, policy, estimators)
        for right, policy in zip(STEPS, policies, strict=True)
    }
    measured = on_tasks(tasks, (EPISODES,), settings, progress, 20)
    kept = Samples({
        (f"scatter {i}", name, EPISODES): grouped(of.scatter(name, EPISODES))
        for i, of in enumerate(measured.values())
        for name in COMPARED
    })  # fmt: skip
    ends = {
        name: [kept[f"scatter {i}", name, EPISODES] for i in range(len(STEPS))] for name in COMPARED
    }
    curves = [
        Curve.through("total variance", name, LOOKS[name], lengths, of) for name, of in ends.items()
    ]
    return Report(
        columns=["total variance", *(f"{length:.0f} steps" for length in lengths)],
        rows=[[name, *(cell(x, "{:.3g} ± {:.1g}") for x in of)] for name, of in ends.items()],
        curves=curves,
        samples=kept,
        figure=lambda: learning.panels(
            curves, "total variance", columns=1, xlabel="mean length of episodes", yscale="log"
        ),
        notes=[f"{EPISODES} episodes; the mean length is that of 2,000. ± is one standard error."],
    )


def judge_lengths(samples: Samples) -> list[Claim]:
    scatter = {(name, i): samples[f"scatter {i}", name, EPISODES]
               for i in range(len(STEPS)) for name in COMPARED}  # fmt: skip
    pairs = {(name, i): (scatter["BAC", i], of) for (name, i), of in scatter.items()
             if name != "BAC"}  # fmt: skip
    grows = {
        f"{name}, right {STEPS[i]}, then {STEPS[i + 1]}": (pairs[name, i + 1], of)
        for (name, i), of in pairs.items()
        if i + 1 < len(STEPS)
    }
    differ = {k: (few[1] - few[0], many[1] - many[0]) for k, (many, few) in grows.items()}
    return [
        Claim(
            "lengths-vary", "steps-vary-less", "BAC's estimates vary less than those of either "
            "model of quadrature at every length", "ratio of total variances, model to BAC",
            ratios({f"{name}, right {STEPS[i]}": of for (name, i), of in pairs.items()}), above=1,
        ),
        Claim(
            "lengths-grow", "steps-vary-less", "the advantage grows with the length of episodes",
            "factor by which the ratio of total variances grows from each length to the next",
            ratios_of_ratios(grows), above=1, reading=sentences.RATIO,
        ),
        Claim(
            "lengths-grow-difference", "steps-vary-less",
            "the advantage grows with the length of episodes",
            "by how much the difference of total variances grows from each length to the next",
            differences(differ, "{b:.3g} after {a:.3g}"), reading=sentences.DIFFERENCE,
        ),
    ]  # fmt: skip
