"""Every claim on planted results: in favour of it, against it, and at its bound.

Levels are by method; those that are not named are 1. A method's numbers have that level exactly in
the mean, so that what is planted as equal is not decided.
"""

import functools
import math
import zlib

import calibration
import experiments
import lengths
import numpy as np
import partial_observation
import pytest
import search_gradients as search
import uphill
import uphill_tasks

from bayespg.reproduce import (
    EXPERIMENTS,
    bandit,
    costs,
    lqr_gradient,
    lqr_learning,
    lqr_noise,
    mountain_car,
    random_walk_gradient,
    random_walk_learning,
    sentences,
    ship_steering,
    sparsification,
)
from bayespg.reproduce.gradients import Errors
from bayespg.reproduce.samples import Samples

RUNS = 4_000
ROOT2 = math.sqrt(2.0)


@functools.cache
def noise(*key, columns=1):
    """Mean 0 and mean square 1 a column, exactly."""
    z = np.random.default_rng(zlib.crc32(repr(key).encode())).normal(size=(RUNS, columns))
    z -= z.mean(0)
    return z / np.sqrt(np.mean(z**2, 0))


def samples(levels, *key, scale=1.0):
    """`~name` is the level of a method's spread."""
    name = key[0]
    return scale * (levels.get(name, 1.0) + 0.05 * levels.get(f"~{name}", 1.0) * noise(*key)[:, 0])


def learned(levels, names, sizes, scale=1.0, points=4):
    """Flat learning curves."""
    found = {}
    for name in names:
        for M in sizes:
            values = samples(levels, name, M, scale=scale)
            found["final", name, M] = found["average", name, M] = values
            found["curve", name, M] = np.tile(values[:, None], points)
            found["updates", name, M] = 50 * np.arange(points)
    return found


def errors(levels, names, sizes, mark=""):
    """The level of a method multiplies its errors; `mark` is before its name in `levels`."""
    truth = np.array([30.0, 0.0])
    return Errors(
        {
            (name, M): truth + levels.get(f"{mark}{name}", 1.0) * noise(mark, name, M, columns=2)
            for name in names
            for M in sizes
        },
        truth,
    ).cells(mark.strip())


def lower(better, *worse):
    """A claim that `better` has smaller numbers than each of `worse`."""
    return (
        [{better: 0.5}, dict.fromkeys(worse, 2.0)],
        [{better: 2.0}, *({name: 0.5} for name in worse)],
        [{}, {"of no consequence": 0.5}],
    )


def higher(better, *worse):
    return (
        [{better: 2.0}, dict.fromkeys(worse, 0.5)],
        [{better: 0.5}, *({name: 2.0} for name in worse)],
        [{}],
    )


def significantly(better, worse, root=lambda factor: factor):
    """A claim that `better` has numbers less than half of those of `worse`."""
    return [{better: 0.25}, {worse: 4.0}], [{}, {better: 4.0}], [{worse: root(2.0)}]


def within(name, inside, outside, edge):
    """A claim about the level of one method."""
    return [{name: inside}], [{name: level} for level in outside], [{name: edge}]


def cautious(name):
    """A claim that what is stated of a method is at most 0.05 above what is observed."""
    return [{name: 0.0}, {name: -0.5}], [{name: 0.1}, {name: 0.3}], [{name: uphill.MARGIN}]


def sized(levels, found):
    """A level at one M, as `25 BPG`, multiplies that of the method."""
    return {
        (what, name, M): values * levels.get(f"{M} {name}", 1.0)
        for (what, name, M), values in found.items()
    }


def lqr(names, judge):
    def claims(levels):
        found = sized(levels, learned(levels, names, lqr_learning.SIZES))
        if judge is lqr_learning.judge_variance:
            marked = {k.removeprefix("uniform "): v for k, v in levels.items() if "uniform " in k}
            other = sized(marked, learned(marked, names, lqr_learning.SIZES))
            found |= {(w, f"{k}, {lqr_learning.UNIFORM}", M): v for (w, k, M), v in other.items()}
        return judge(Samples(found))

    return claims


def lqr_readings(methods, judge):
    """The level of a method is that in every reading."""

    def claims(levels):
        found = {}
        for name, readings in methods.items():
            cells = sized(levels, learned(levels, (name,), lqr_learning.SIZES))
            for (what, _, M), values in cells.items():
                found |= {(what, f"{name}, {reading}", M): values for reading in readings}
        return judge(Samples(found))

    return claims


def tuned(module, sizes, scale=-1.0):
    """The level of a method divides its cost at every rate."""

    def claims(levels):
        names = ("MCPG", "MCPG, best baseline", "BPG", "BAC", lqr_learning.OURS)
        cells = {
            ("rate 1", name, M): samples(levels, name, M, scale=scale)
            for name in names
            for M in sizes
        }
        return module(Samples(cells))

    return claims


def random_walk(names, judge):
    def claims(levels):
        sizes = (1, 25, 50, 75)
        found = sized(levels, learned(levels, names, sizes))
        for name in names:
            for M in sizes:
                ended = np.zeros(10_000)
                ended[: levels.get(f"endless {name}", 0)] = 1
                found["endless", name, M] = ended
        return judge(Samples(found))

    return claims


def car(names, judge, sizes=(5, 10, 20, 40)):
    """`few` and `many` multiply the level of a method at M = 5 and at M = 40."""

    def claims(levels):
        found = learned(levels, names, sizes, 50.0)
        for name in names:
            for mark, M in (("few", 5), ("many", 40)):
                for what in ("final", "average", "curve"):
                    if M in sizes:
                        level = levels.get(f"{mark} {name}", 1.0)
                        found[what, name, M] = found[what, name, M] * level
        return judge(Samples(found))

    return claims


def ship(names, judge):
    def claims(levels):
        found = learned(levels, names, (5, 10, 20))
        for name in names:
            for mark, M in (("few", 5), ("most", 20)):
                level = levels.get(f"{mark} {name}", 1.0)
                found["curve", name, M] = found["curve", name, M] * level
            found["curve", name, 5][:, :2] *= levels.get(f"first {name}", 1.0)
        return judge(Samples(found))

    return claims


def partial(levels):
    po, found = partial_observation, {}
    for name in (*po.MAZES, *po.REGULATORS):
        for method in (po.BPG, po.MC, po.TO_GO):
            level = levels.get(f"{name}: {method}", levels.get(name, 1.0))
            values = samples({name: level}, name, method)
            found[f"{name}: end", method, 0] = found[f"{name}: average", method, 0] = values
    for name in (po.MEMORYLESS, po.SEVERAL, po.LAST):
        found["exact", name, 0] = np.array([levels.get("half", 0.5)])
    return po.judge(Samples(found))


def lqr_errors(names, judge):
    return lambda levels: judge(Samples(sized(levels, errors(levels, names, (5, 10, 20)))))


def walk_errors(levels):
    return random_walk_gradient.judge(
        Samples(errors(levels, random_walk_gradient.ESTIMATORS, (5, 20)))
    )


def noisy_errors(levels):
    found = {}
    for noise_, mark in (("0", ""), ("0.1", "tenth "), ("1", "noisy ")):
        cells = errors(levels, lqr_noise.LOOKS, (20, 100), mark)
        for (what, name, M), values in cells.items():
            found[f"σ_r = {noise_}: {what.split(': ')[-1]}", name, M] = values
    return lqr_noise.judge(Samples(found))


def lengths_errors(levels):
    found = {}
    for task, mark in ((lengths.SAME, ""), (lengths.RANDOM, "random ")):
        for (what, name, M), values in errors(
            levels, lengths.ESTIMATORS, (5, 20, 100), mark
        ).items():
            found[f"{task}: {what.split(': ')[-1]}", name, M] = values
    return lengths.judge(Samples(found))


def bandit_samples(levels):
    """As printed, with the mean or the spread of one estimator at other levels."""
    found = {}
    for reward, name, M in bandit.PRINTED:
        mean, spread = (np.array(column) for column in bandit.PRINTED[reward, name, M])
        z = noise(reward, name, M, columns=2)
        wide = levels.get(f"{name} {M}", 1.0)
        shift = levels.get(f"mean {name} {M}", 0.0)
        found[reward, name, M] = levels.get(f"times {name} {M}", 1.0) * mean + spread * (
            wide * z + shift
        )
    return bandit.judge(Samples(bandit.cells_of(found)))


def sparse(levels):
    taus = [f"{name}, τ = {tau:g}" for name in sparsification.MODELS for tau in sparsification.TAUS]
    names = [*sparsification.MODELS, *taus]
    timed = [*names, *(f"{name}, M x M system" for name in sparsification.MODELS)]
    timed += ["update of BPG", "update of BPNG"]
    taken = {("seconds", name, 300): samples(levels, name)[:100] for name in timed}
    slow = {f"error {name}": levels[f"error {name}"] for name in names if f"error {name}" in levels}
    found = {
        (what.split(": ")[-1], name, M): values
        for (what, name, M), values in errors(slow, names, (20,), "error ").items()
    }
    return sparsification.judge(Samples(found | taken))


def priced(levels):
    names = [f"{name}, {what}" for name in (*sparsification.MODELS, "BAC") for what in costs.ASKED]
    names += ["update of BPG", "update of BPG-var"]
    found = {("seconds", name, 300): samples(levels, name)[:100] for name in names}
    found |= {("bytes", name, 300): np.array([levels.get(f"size {name}", 1.0)]) for name in names}
    return costs.judge(Samples(found))


def walk_lengths(levels):
    """A level per place, as `0 BAC`, multiplies the variance there."""
    found = {
        (f"scatter {i}", name, random_walk_gradient.EPISODES):
            levels.get(f"{i} {name}", 1.0) * samples(levels, name, i)
        for i in range(len(random_walk_gradient.STEPS))
        for name in random_walk_gradient.COMPARED
    }  # fmt: skip
    return random_walk_gradient.judge_lengths(Samples(found))


def regions(levels):
    share = levels.get("LQR", 0.95)
    held = {("held", "LQR, planted", M): np.array([round(2_000 * share), 2_000]) for M in (5, 20)}
    return calibration.judge(Samples(held))


def searched(levels):
    found = {("square", name, n): samples(levels, name, n) for name in search.LOOKS for n in (1, 4)}
    held = np.array([round(2_000 * levels.get("held", 0.95)), 2_000])
    found |= {("held", search.OURS, n): held for n in (1, 4)}
    for way in (*search.WAYS, search.SEARCH):
        for where, extra in (("one", levels.get(way, 0.0)), ("other", 0.0)):
            found[where, way, 4] = np.array([0.7 + extra, 0.7, 0.002])
    return search.judge(Samples(found))


def right(name):
    """A claim that what is stated of a method is within 0.05 of what is observed."""
    return within(name, 0.0, (-0.1, 0.1), uphill.MARGIN)


def stated(levels):
    """The level of an estimator is added to the probability that it states at one place, or among
    its high statements. Gradients that are not drawn from the hyperprior are not judged."""
    found = {}
    for name in uphill.OF_ARRAYS:
        extra = levels.get(f"{name}, parts", 0.0)
        parts = [1e5, 0.6, 0.6, 1e5, 0.8, 0.8, 1e5, 0.9 + extra, 0.9]
        for place, extra in (("one, signal drawn", levels.get(name, 0.0)), ("other, drawn", 0.0)):
            found[place, name, 4] = np.array([0.7 + extra, 0.7, 0.002, *parts])
        found["one, signal 0", name, 4] = np.array([0.7, 0.5, 0.002, *parts])
    return uphill.judge(Samples(found))


def on_tasks(levels):
    """The level of a kind is added to the probability that it states at one place."""
    found = {
        (f"{place}, {policies[0]}", f"{policies[0]}: {estimator}{end}", 4):
            np.array([0.7 + extra, 0.7, 0.002])
        for kind, (_, policies, estimator) in uphill_tasks.KINDS.items()
        for end in ("", ", run")
        for place, extra in (("one", levels.get(kind + end, 0.0)), ("other", 0.0))
    }  # fmt: skip
    return uphill_tasks.judge(Samples(found))


FIRST, SECOND = sparsification.MODELS
SYSTEM = [f"{name}, M x M system" for name in sparsification.MODELS]
OURS, WALK, CAR = lqr_learning.OURS, random_walk_learning.OURS, mountain_car.OURS
RIVALS = random_walk_gradient.RIVALS
SAME = lqr_noise.UNCHANGED[0]
UNCHANGED = [f"noisy {name}" for name in lqr_noise.UNCHANGED]
NOISY = [f"noisy {name}" for name in lqr_noise.SCALED]
PO = partial_observation
ENDLESS = (0, (1_000,), 10)
FISHER = {
    "-bpg-ml": lower("BPG-ML", "MCPG"),
    "-bpg-mc": lower("BPG-MC", "MCPG"),
    "-bpng-ml": lower("BPNG-ML", "MCPG"),
    "-bpng-mc": lower("BPNG-MC", "MCPG"),
    "-bpg-ml-mc": lower("BPG-ML", "BPG-MC"),
    "-bpng-ml-mc": lower("BPNG-ML", "BPNG-MC"),
    "-vanishes": within("BPG-MC", 1.0, (0.5, 2.0), 1.25),
}
EDGE = 1.25 * (1 + lqr_learning.OPTIMUM) - lqr_learning.OPTIMUM
ALIKE = {
    f"{suffix}{mark}": planted
    for mark, edge in (("", EDGE), ("-excess", 1.25))
    for suffix, planted in (
        ("-bpng", lower("BPG-var", "BPNG")),
        ("-bpng-end", within("BPNG", 1.0, (0.5, 2.0), edge)),
        ("-many", within("BPG", 1.0, (0.5, 2.0), edge)),
    )
}
SHRINKS = (
    [{"5 BPG": 8.0, "10 BPG": 4.0, "20 BPG": 2.0}], [{"40 BPG": 3.0}], [{}, {"5 BPG": 3.0}]
)  # fmt: skip
PLANTED = {
    "lqr-optimisation": (lqr(lqr_learning.FIGURE3, lqr_learning.judge), {
        **{f"lqr-optimum-{id}": ([{}], [], []) for id in ("gain", "cost", "kappa")},
        "lqr-mcpg-bpg-5": lower("MCPG", "BPG"),
        "lqr-mcpg-bpng-5": lower("MCPG", "BPNG"),
        "lqr-bpg": lower("BPG", "MCPG"),
        "lqr-bpng": lower("BPNG", "MCPG"),
        "lqr-ours-bpg": lower(OURS, "BPG"),
        "lqr-ours-mcpg": lower(OURS, lqr_learning.EQUAL),
    }),
    "lqr-fisher": (lqr(lqr_learning.FIGURE4, lqr_learning.judge_fisher), {
        f"fisher{suffix}": planted for suffix, planted in FISHER.items()
    }),
    "lqr-variance": (lqr(lqr_learning.FIGURE5, lqr_learning.judge_variance), {
        **{
            id + suffix: [[{f"{mark}{k}": v for k, v in levels.items()} for levels in of]
                          for of in planted]
            for id, mark in (("var", ""), ("var-uniform", "uniform "))
            for suffix, planted in {
                "-bpg": lower("BPG-var", "BPG"),
                "-mcpg": lower("BPG-var", "MCPG"),
                **ALIKE,
                "-trend": SHRINKS,
            }.items()
        },
        "uniform-mcpg-bpg-5": lower("uniform MCPG", "uniform BPG"),
        "uniform-mcpg-bpng-5": lower("uniform MCPG", "uniform BPNG"),
        "uniform-bpg": lower("uniform BPG", "uniform MCPG"),
        "uniform-bpng": lower("uniform BPNG", "uniform MCPG"),
    }),
    "lqr-rates": (tuned(lqr_learning.judge_rates, (5, 10)), {
        "lqr-rates-ours-equal": lower(OURS, "MCPG, best baseline"),
        "lqr-rates-ours-best": lower(OURS, "MCPG, best baseline"),
        "lqr-rates-bpg-equal": lower("BPG", "MCPG"),
        "lqr-rates-bpg-best": lower("BPG", "MCPG"),
    }),
    "lqr-readings": (lqr_readings(lqr_learning.READINGS, lqr_learning.judge_readings), {
        **{
            f"{family}-{sigma}-{start}{suffix}": planted
            for sigma in ("0.1", "0.3", "1")
            for start in ("normal", "uniform")
            for family, suffix, planted in (
                ("lqr", "-mcpg-bpg-5", lower("MCPG", "BPG")),
                ("lqr", "-mcpg-bpng-5", lower("MCPG", "BPNG")),
                ("lqr", "-bpg", lower("BPG", "MCPG")),
                ("lqr", "-bpng", lower("BPNG", "MCPG")),
                ("var", "-bpg", lower("BPG-var", "BPG")),
                ("var", "-mcpg", lower("BPG-var", "MCPG")),
                ("var", "-trend", SHRINKS),
                *(("var", suffix, planted) for suffix, planted in ALIKE.items()),
            )
        },
    }),
    "lqr-fisher-form": (lqr(lqr_learning.FORM, lqr_learning.judge_form), {
        "fisher-form": lower("BPG-ML", lqr_learning.WRONG),
    }),
    "lqr-fisher-readings": (
        lqr_readings(lqr_learning.FISHER_READINGS, lqr_learning.judge_fisher_readings), {
        **{
            f"fisher-{sigma}-{start}{suffix}": planted
            for sigma, start in (
                ("0.001", "uniform"),
                *((sigma, "normal") for sigma in ("0.1", "0.3", "1")),
                *((sigma, "uniform") for sigma in ("0.1", "0.3", "1")),
            )
            for suffix, planted in FISHER.items()
        },
        **{
            f"others-{sigma}-{start}{suffix}": planted
            for sigma, start in (("0.001", "normal"), ("0.1", "uniform"))
            for suffix, planted in {
                "-bpg-ml-mc": lower("BPG-ML, other paths", "BPG-MC, other paths"),
                "-bpng-ml-mc": lower("BPNG-ML, other paths", "BPNG-MC, other paths"),
                "-vanishes": within("BPG-MC, other paths", 1.0, (0.5, 2.0), 1.25),
            }.items()
        },
    }),
    "random-walk-rates": (tuned(random_walk_learning.judge_rates, (100,)), {
        "walk-rates-many": within("BPG", 1.0, (0.5, 2.0), 1.25),
        "walk-rates-many-episodes": within("BPG", 1.0, (0.5, 2.0), 1.25),
        "walk-rates-mcpg": lower("BAC", "MCPG"),
    }),
    "random-walk-learning": (
        random_walk(random_walk_learning.METHODS, random_walk_learning.judge), {
        **{
            f"walk-{id}": significantly("BAC", rival)
            for id, rival in (
                ("bac-mcpg", "MCPG"), ("bac-bpg", "BPG"), ("bac-episodes-bpg", "BPG"),
                ("bac-episodes-mcpg", random_walk_learning.EPISODES),
            )
        },
        "walk-bpg-improves": (
            [{"1 BPG": 8.0, "25 BPG": 4.0, "50 BPG": 2.0}], [{"75 BPG": 2.0}], [{}, {"1 BPG": 2.0}]
        ),
        "walk-bpg-not-behind": within("BPG", 1.0, (2.0,), 1.25),
        "walk-bpg-not-behind-episodes": within("BPG", 1.0, (2.0,), 1.25),
        "walk-bpg-mcpg": lower("MCPG", "BPG"),
        "walk-bpg-mcpg-episodes": lower(random_walk_learning.EPISODES, "BPG"),
        "walk-bpg-mcpg-integrated": lower("MCPG", random_walk_learning.INTEGRATED),
        "walk-rewards-bac": lower(WALK, "BAC"),
        "walk-rewards-fitted": lower(WALK, "MC, fitted values"),
        "walk-bpg-many": within("BPG", 1.0, (0.5, 2.0), 1.25),
        "walk-bpg-many-integrated": within(
            random_walk_learning.INTEGRATED, 1.0, (0.5, 2.0), 1.25
        ),
        "walk-endless": within("endless BAC", *ENDLESS),
        "walk-endless-rate": within("endless BAC, tuned rate", *ENDLESS),
        "walk-rewards-endless": within(f"endless {WALK}", *ENDLESS),
    }),
    "random-walk-printed": (
        random_walk(random_walk_learning.AS_PRINTED, random_walk_learning.judge_printed), {
        "walk-bac-printed-mcpg": significantly(random_walk_learning.PRINTED, "MCPG"),
        "walk-bac-printed-bpg": significantly(random_walk_learning.PRINTED, "BPG"),
        "walk-endless-printed": within(f"endless {random_walk_learning.PRINTED}", *ENDLESS),
        "walk-endless-rate-printed": within(
            f"endless {random_walk_learning.PRINTED_FASTER}", *ENDLESS
        ),
    }),
    "random-walk-lengths": (walk_lengths, {
        "lengths-vary": lower("BAC", "BQ, Model 1", "BQ, Model 2"),
        "lengths-grow": (
            [{"0 BAC": 8.0, "1 BAC": 4.0, "2 BAC": 2.0}], [{"3 BAC": 2.0}], [{}, {"0 BAC": 2.0}]
        ),
        "lengths-grow-difference": (
            [{"0 BAC": 8.0, "1 BAC": 4.0, "2 BAC": 2.0}], [{"3 BAC": 2.0}], [{}, {"0 BAC": 2.0}]
        ),
    }),
    "costs": (priced, {
        "covariance-cost": (
            [{}], [{f"{FIRST}, {costs.MOMENTS}": 2.0}, {"update of BPG-var": 2.0}],
            [{"update of BPG-var": 1.1}],
        ),
        "bac-natural-cost": (
            [{}], [{f"BAC, {costs.NATURAL}": 2.0}], [{f"BAC, {costs.NATURAL}": 1.1}]
        ),
        "sparse-time": (
            [{f"{name}, {costs.SPARSE}": 0.25 for name in (FIRST, SECOND, "BAC")}], [{}], []
        ),
        "sparse-memory": (
            [{f"size {name}, {costs.SPARSE}": 0.25 for name in (FIRST, SECOND, "BAC")}], [{}], []
        ),
    }),
    "mountain-car": (car(mountain_car.METHODS, mountain_car.judge), {
        **{
            f"car-{what}{id}": planted
            for id, bac, mcpg in (
                ("-printed", mountain_car.PRINTED, "MCPG"), ("", "BAC, G-EST", "MCPG"),
                ("-episodes", "BAC, G-EST", mountain_car.EPISODES),
            )
            for what, planted in (
                ("bac", lower(bac, mcpg)),
                ("spread", lower(f"~{bac}", f"~{mcpg}")),
                ("forty", within(mcpg, 1.0, (0.5, 2.0), 1.25)),
                ("slower", lower(f"many {bac}", f"many {mcpg}")),
            )
        },
        **{
            f"car-{what}{id}": planted
            for id, bac in (("-printed", mountain_car.PRINTED), ("", "BAC, G-EST"))
            for what, planted in (
                ("five", within(bac, 1.0, (2.0,), 1.4)),
                ("insensitive", within(f"few {bac}", 1.0, (0.5, 2.0), 1.25)),
            )
        },
        **{
            f"car-mcpg-{what}{id}": lower(f"many {mcpg}", f"few {mcpg}")
            for id, mcpg in (("", "MCPG"), ("-episodes", mountain_car.EPISODES))
            for what in ("better", "steadier")
        },
        "car-integrated": lower("BAC, actions integrated out", "BAC, G-EST"),
        "car-fitted": lower(CAR, "MC, fitted values"),
        "car-hundred": within(CAR, 1.0, (2.0,), 1.4),
    }),
    "mountain-car-long": (car(("MCPG", mountain_car.PAPER), mountain_car.judge_long, (40,)), {
        "car-forty-long": within("MCPG", 1.0, (0.5, 2.0), 1.25),
        "car-slower-long": lower(mountain_car.PAPER, "MCPG"),
    }),
    "ship-steering": (ship(ship_steering.METHODS, ship_steering.judge), {
        "ship-bac": higher("BAC", "MCPG"),
        "ship-bac-episodes": higher("BAC", ship_steering.EPISODES),
        "ship-early": higher("MCPG", "BAC"),
        "ship-soon": (
            [{"BAC": 2.0}, {"BAC": 2.0, "first BAC": 0.1}], [{"BAC": 0.5}], [{}]
        ),
        "ship-bigger": (
            [{"few BAC": 0.5}, {"few MCPG": 2.0}], [{"few BAC": 2.0}, {"few MCPG": 0.5}], [{}]
        ),
        "ship-early-most": ([{"most BAC": 2.0}], [{"most BAC": 0.5}, {"most MCPG": 2.0}], [{}]),
        "ship-early-many": higher("BAC", "MCPG"),
        "ship-more": (
            [{"few BAC": 0.5, "few MCPG": 0.5}], [{"few BAC": 2.0}, {"few MCPG": 2.0}], [{}]
        ),
        "ship-spread": lower("~BAC", "~MCPG"),
        "ship-scale": higher(ship_steering.OURS, "MCPG"),
        "ship-fitted": higher(ship_steering.OURS, "MC, fitted values"),
    }),
    "ship-steering-printed": (ship(ship_steering.AS_PRINTED, ship_steering.judge_printed), {
        "ship-printed-bac": higher("BAC", "MCPG"),
        "ship-printed-early": higher("BAC", "MCPG"),
        "ship-printed-spread": lower("~BAC", "~MCPG"),
        "ship-printed-mcpg": ([{}], [{"first MCPG": 3.5}], []),
    }),
    "partial-observation": (partial, {
        "maze-half": ([{"half": 0.5}], [{"half": 0.6}], []),
        "maze-memoryless": within(PO.MEMORYLESS, 0.5, (0.3, 0.9), 0.53),
        "maze-memory": ([{}], [{PO.CONTROLLER: 0.5}, {PO.RECURRENT: 0.5}], [{PO.RECURRENT: 0.9}]),
        "maze-window": within(PO.WINDOWED, 1.0, (0.5,), 0.9),
        "lqr-window": lower(PO.SEVERAL, PO.LAST),
        **{
            f"maze-{id}": higher(f"{name}: {PO.BPG}", f"{name}: {PO.MC}", f"{name}: {PO.TO_GO}")
            for id, name in (("controller", PO.CONTROLLER), ("recurrent", PO.RECURRENT))
        },
    }),
    "lqr-gradient-readings": (lqr_errors(lqr_gradient.READINGS, lqr_gradient.judge_readings), {
        f"lqr-{model[-1]}-{what}-{sigma}": lower(f"{model}, Σ = {sigma} I", "MC")
        for sigma in sentences.SIGMAS[1:]
        for model in ("Model 1", "Model 2")
        for what in ("squared", "angular")
    }),
    "lqr-gradient": (lqr_errors(lqr_gradient.ESTIMATORS, lqr_gradient.judge), {
        **{
            f"lqr-{model[-1]}-{what}": lower(model, "MC")
            for model in ("Model 1", "Model 2")
            for what in ("squared", "angular")
        },
        "lqr-lengths": significantly("Model 1", "MC", math.sqrt),
        "lqr-reliable": (
            [{"5 Model 1": 2.0}], [{"20 Model 1": 2.0}], [{}, {"5 MC": 2.0}]
        ),
        "lqr-half": lower("Model 1", "MC"),
        "lqr-fisher-integrated": within("Model 1, actions integrated out", 1.0, (2.0,), ROOT2),
        "lqr-baseline": lower(lqr_gradient.OURS, "MC, best baseline"),
    }),
    "random-walk-gradient": (walk_errors, {
        **{
            f"walk-gradient-{what}{id}": lower(name, *random_walk_gradient.PAPER)
            for what in ("error", "angle", "spread")
            for id, name in (("", "BAC"), ("-as-printed", random_walk_gradient.PRINTED))
        },
        **{
            f"walk-gradient-models{id}": lower(name, *random_walk_gradient.PAPER[2:])
            for id, name in (("", "BAC"), ("-as-printed", random_walk_gradient.PRINTED))
        },
        "walk-gradient-lengths": ([{}], [{"MC": 2.0}], [{"MC": ROOT2}]),
        "walk-gradient-integrated": lower(
            random_walk_gradient.BAC, *(r for r in RIVALS if r != "BQ, Model 2 + baseline")
        ),
        "walk-gradient-rewards": lower(random_walk_gradient.OURS, *RIVALS),
        "walk-gradient-printed": within(random_walk_gradient.PRINTED, 2.0, (1.0,), ROOT2),
    }),
    "lqr-noise": (noisy_errors, {
        "noise-as-printed": within("noisy Model 2, scale 1", 1.0, (2.0,), math.sqrt(1.5)),
        "noise-tenth-as-printed": within("tenth Model 1, scale 1", 1.0, (2.0,), math.sqrt(1.5)),
        "noise-unchanged": within(f"noisy {SAME}", 1.0, (2.0,), math.sqrt(1.5)),
        "noise-unchanged-angle": within(f"noisy {SAME}", 1.0, (2.0,), 1.5),
        "noise-tenth-unchanged": within(f"tenth {SAME}", 1.0, (2.0,), math.sqrt(1.5)),
        "noise-tenth-unchanged-angle": within(f"tenth {SAME}", 1.0, (2.0,), 1.5),
        **{
            f"noise-order-{id}": (
                [dict.fromkeys(names, 0.5), {"noisy MC": 2.0}],
                [{names[1]: 2.0}, {"noisy MC": 0.5}], [{}],
            )
            for id, names in (
                ("unchanged", UNCHANGED),
                ("as-printed", [f"noisy {name}" for name in lqr_noise.PRINTED]),
            )
        },
        "noise-monte-carlo": ([{"MC": 100.0}], [{"MC": 1.0}], []),
        "noise-scaled": within(NOISY[0], 1.0, (2.0,), math.sqrt(1.5)),
        "noise-order": (
            [dict.fromkeys(NOISY, 0.5), {"noisy MC": 2.0}], [{NOISY[1]: 2.0}, {"noisy MC": 0.5}],
            [{}, {"MC": 2.0}],
        ),
        "noise-evidence": within("noisy Model 2 + baseline, evidence", 1.0, (2.0,), math.sqrt(1.5)),
    }),
    "lengths": (lengths_errors, {
        "lengths-shrink": (
            [{"Model 1": 0.5}, {"random Model 1": 2.0}, {"MC": 2.0}, {"random MC": 0.5}],
            [{"Model 1": 2.0}, {"random Model 1": 0.5}, {"MC": 0.5}, {"random MC": 2.0}], [{}],
        ),
        "lengths-baseline": (
            [{lengths.BASELINE: 0.5}, {"random MC, best baseline": 0.5}],
            [{lengths.BASELINE: 2.0}, {"random MC, best baseline": 2.0}], [{}],
        ),
    }),
    "bandit": (bandit_samples, {
        "bandit-means": within("mean MC 10", 0.0, (-1.0, 1.0), 0.1),
        "bandit-spreads": within("MC 10", 1.0, (0.5, 2.0), 1.1),
        "bandit-accuracy-100": ([{}], [{"BQ 100": 1e6}], []),
        "bandit-accuracy-10": within("times BQ 10", 1.0, (0.5, 2.0), 1.25),
        "bandit-variance-10": ([{}], [{"BQ 10": 20.0}, {"MC 10": 0.05}], []),
        "bandit-variance-100": ([{}], [{"BQ 100": 1e6}, {"MC 100": 1e-6}], []),
    }),
    "sparsification": (sparse, {
        "sparse-faster": (
            [dict.fromkeys(SYSTEM, 5.0)], [{}, {SYSTEM[0]: 5.0}], [dict.fromkeys(SYSTEM, 2.0)]
        ),
        "sparse-accurate": within(
            f"error {SECOND}, τ = 0.001", 1.0, (2.0,), math.sqrt(1.1)
        ),
        "natural-cost": (
            [{}, {"update of BPNG": 0.5}], [{"update of BPNG": 2.0}, {"update of BPG": 0.5}],
            [{"update of BPNG": 1.1}],
        ),
        "weight-faster": (
            [{FIRST: 0.5, SECOND: 0.5}], [{FIRST: 2.0}, {f"{SECOND}, τ = 0.0001": 0.5}], [{}]
        ),
    }),
    "calibration": (regions, {"calibration": within("LQR", 0.95, (0.5, 1.0), 0.99)}),
    "search": (searched, {
        "search-monte-carlo": lower(search.OURS, search.MC),
        "search-pgpe": lower(search.OURS, search.PGPE),
        "search-coverage": within("held", 0.95, (0.5, 0.7), 0.8),
        "search-uphill": cautious(search.WAYS[0]),
        "search-direction": cautious(search.WAYS[1]),
        "search-sure": cautious(search.SEARCH),
    }),
    "uphill": (stated, {
        f"uphill-{name.lower().replace(' ', '-')}{end.replace(', ', '-')}": right(name + end)
        for name in uphill.OF_ARRAYS
        for end in ("", ", parts")
    }),
    "uphill-tasks": (on_tasks, {
        f"tasks-uphill-{kind}{end.replace(', ', '-')}": judged(kind + end)
        for kind in uphill_tasks.KINDS
        for end, judged in (("", cautious), (", run", right))
    }),
}  # fmt: skip


@pytest.mark.slow(
    "sparsification", "lqr-noise", "lqr-readings", "lqr-fisher-readings", "mountain-car"
)
@pytest.mark.parametrize("experiment", PLANTED)
def test_claims_follow_planted_winners_and_losers(experiment):
    make, cases = PLANTED[experiment]

    @functools.cache
    def judged(*levels):
        return {claim.id: claim.verdict for claim in make(dict(levels))}

    def verdicts(levels):
        return judged(*sorted(levels.items()))

    assert verdicts({}).keys() == cases.keys()
    wrong = [
        (id, levels, expected, found)
        for id, planted in cases.items()
        for expected, plants in zip(("holds", "does not hold", "not decided"), planted, strict=True)
        for levels in plants
        if (found := verdicts(levels)[id]) != expected
    ]
    assert not wrong


def test_every_experiment_with_claims_is_planted():
    without = {"ship-steering-rates", "partial-observation-rates"}
    assert PLANTED.keys() | without == EXPERIMENTS.keys() | experiments.EXPERIMENTS.keys()
