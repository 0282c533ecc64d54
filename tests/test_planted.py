"""Every claim on planted results: in favour of it, against it, and at its bound.

Levels are by method; those that are not named are 1. A method's numbers have that level exactly in
the mean, so that what is planted as equal is not decided.
"""

import functools
import math
import zlib

import numpy as np
import pytest

from bayespg.calibration import LEVELS, Coverage
from bayespg.reproduce import (
    EXPERIMENTS,
    bandit,
    calibration,
    lengths,
    lqr_fisher,
    lqr_gradient,
    lqr_noise,
    lqr_optimisation,
    lqr_variance,
    mountain_car,
    partial_observation,
    random_walk_gradient,
    random_walk_learning,
    ship_steering,
    sparsification,
)
from bayespg.reproduce.gradients import Errors
from bayespg.reproduce.learning import Learned
from bayespg.reproduce.report import Settings

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


def learned(levels, names, sizes, scale=1.0, shift=0.0, points=4):
    """Curves that are flat; `shift` is added."""
    return {
        (name, M): Learned(
            50 * np.arange(points),
            np.tile(shift + samples(levels, name, M, scale=scale)[:, None], points),
            None,
        )
        for name in names
        for M in sizes
    }


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
    )


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


def within(name, inside, outside, edge):
    """A claim about the level of one method."""
    return [{name: inside}], [{name: level} for level in outside], [{name: edge}]


def lqr(module):
    def claims(levels, monkeypatch):
        def learn(methods, settings, progress):
            names = list(methods)
            return learned(levels, names, lqr_optimisation.SIZES, shift=lqr_optimisation.OPTIMUM)

        monkeypatch.setattr(module, "learn", learn)
        return module.run(Settings(RUNS), lambda *_: None).claims

    return claims


def random_walk(levels, monkeypatch):
    sizes, names = (1, 25, 50, 75), random_walk_learning.METHODS
    endless = {(name, M): levels.get(f"endless {name}", 0) for name in names for M in sizes}
    found = learned(levels, names, sizes)
    return random_walk_learning._claims(found, endless, sizes, lambda v: v, 10_000)


def car(levels, monkeypatch):
    sizes = (5, 10, 20, 40)
    return mountain_car._claims(learned(levels, mountain_car.METHODS, sizes, 50.0), sizes)


def ship(levels, monkeypatch):
    return ship_steering._claims(learned(levels, ship_steering.LOOKS, (5, 10, 20)), [5, 10, 20])


def partial(levels, monkeypatch):
    monkeypatch.setattr(partial_observation, "most_without_memory", lambda: levels.get("half", 0.5))
    po, found = partial_observation, {}
    for name in (*po.MAZES, *po.REGULATORS):
        for method in (po.BPG, po.MC, po.TO_GO):
            level = levels.get(f"{name}: {method}", levels.get(name, 1.0))
            curve = samples({name: level}, name, method)[:, None]
            found[name, method] = Learned(np.arange(3), np.tile(curve, 3), None)
    return po._claims(found, {po.SEVERAL: 1.0, po.LAST: 1.0})


def lqr_errors(levels, monkeypatch):
    return lqr_gradient._claims((5, 20), errors(levels, lqr_gradient.ESTIMATORS, (5, 20)))


def walk_errors(levels, monkeypatch):
    found = errors(levels, random_walk_gradient.ESTIMATORS, (5, 20))
    return random_walk_gradient._claims((5, 20), found)


def noisy_errors(levels, monkeypatch):
    found = (errors(levels, lqr_noise.LOOKS, (20, 100), mark) for mark in ("", "noisy "))
    return lqr_noise._claims([20, 100], *found)


def lengths_errors(levels, monkeypatch):
    found = (errors(levels, lengths.ESTIMATORS, (20, 100), mark) for mark in ("", "random "))
    return lengths._claims((20, 100), *found)


def bandit_samples(levels, monkeypatch):
    """As printed, with the mean or the spread of MC at M = 10 at other levels."""
    found = {}
    for reward, name, M in bandit.PRINTED:
        mean, spread = (np.array(column) for column in bandit.PRINTED[reward, name, M])
        z = noise(reward, name, M, columns=2)
        wide = levels.get(f"{name} {M}", 1.0)
        found[reward, name, M] = mean + spread * (wide * z + levels.get(f"mean {name} {M}", 0.0))
    return bandit._claims(found)


def sparse(levels, monkeypatch):
    taus = [f"{name}, τ = {tau:g}" for name in sparsification.MODELS for tau in sparsification.TAUS]
    names = [*sparsification.MODELS, *taus]
    timed = [*names, *(f"{name}, M x M system" for name in sparsification.MODELS)]
    timed += ["update of BPG", "update of BPNG"]
    taken = {name: samples(levels, name) for name in timed}
    slow = {f"error {name}": levels[f"error {name}"] for name in names if f"error {name}" in levels}
    found = errors(slow, names, (20,), "error ")
    return sparsification._claims(found, taken, 20, 300)


def regions(levels, monkeypatch):
    def coverage(environment, policy, estimators, *, paths, runs, key):
        share = levels.get("LQR" if hasattr(environment, "action_cost") else "bandit", 0.95)
        return [
            Coverage(name, robust, level, share, (share, share), (), (), runs)
            for name in estimators
            for robust in (False, True)
            for level in LEVELS
        ]

    monkeypatch.setattr(calibration, "coverage", coverage)
    return calibration.run(Settings(2_000, quick=True), lambda *_: None).claims


FIRST, SECOND = sparsification.MODELS
SYSTEM = [f"{name}, M x M system" for name in sparsification.MODELS]
OURS, WALK, CAR = lqr_optimisation.OURS, random_walk_learning.OURS, mountain_car.OURS
RIVALS = random_walk_gradient.RIVALS
NOISY = [f"noisy {name}" for name in lqr_noise.SCALED]
PO = partial_observation
ENDLESS = (0, (1_000,), 10)
PLANTED = {
    "lqr-optimisation": (lqr(lqr_optimisation), {
        "lqr-mcpg-bpg-5": lower("MCPG", "BPG"),
        "lqr-mcpg-bpng-5": lower("MCPG", "BPNG"),
        "lqr-bpg": lower("BPG", "MCPG"),
        "lqr-bpng": lower("BPNG", "MCPG"),
        "lqr-ours-bpg": lower(OURS, "BPG"),
        "lqr-ours-mcpg": lower(OURS, "MCPG, best baseline"),
    }),
    "lqr-fisher": (lqr(lqr_fisher), {
        "fisher-bpg-ml": lower("BPG-ML", "MCPG"),
        "fisher-bpg-mc": lower("BPG-MC", "MCPG"),
        "fisher-bpng-ml": lower("BPNG-ML", "MCPG"),
        "fisher-bpng-mc": lower("BPNG-MC", "MCPG"),
        "fisher-ml-mc": lower("BPG-ML", "BPG-MC"),
        "fisher-vanishes": within("BPG-MC", 1.0, (0.5, 2.0), 1.1),
    }),
    "lqr-variance": (lqr(lqr_variance), {
        "var-bpg": lower("BPG-var", "BPG"),
        "var-mcpg": lower("BPG-var", "MCPG"),
        "var-bpng": lower("BPG-var", "BPNG"),
        "var-many": within("BPG", 1.0, (0.5, 2.0), 1.25),
    }),
    "random-walk-learning": (random_walk, {
        "walk-bac-mcpg": lower("BAC", "MCPG"),
        "walk-bac-bpg": lower("BAC", "BPG"),
        "walk-bpg-mcpg": lower("MCPG", "BPG"),
        "walk-rewards-bac": lower(WALK, "BAC"),
        "walk-rewards-fitted": lower(WALK, "MC, fitted values"),
        "walk-bpg-many": within("BPG", 1.0, (0.5, 2.0), 1.25),
        "walk-endless": within("endless BAC", *ENDLESS),
        "walk-endless-rate": within("endless BAC, tuned rate", *ENDLESS),
        "walk-rewards-endless": within(f"endless {WALK}", *ENDLESS),
    }),
    "mountain-car": (car, {
        "car-bac": lower("BAC, G-EST", "MCPG"),
        "car-spread": lower("~BAC, G-EST", "~MCPG"),
        "car-five": within("BAC, G-EST", 1.0, (2.0,), 1.4),
        "car-integrated": lower("BAC, actions integrated out", "BAC, G-EST"),
        "car-fitted": lower(CAR, "MC, fitted values"),
        "car-hundred": within(CAR, 1.0, (2.0,), 1.4),
        "car-forty": within("MCPG", 1.0, (2.0,), 1.25),
    }),
    "ship-steering": (ship, {
        "ship-bac": higher("BAC", "MCPG"),
        "ship-early": higher("MCPG", "BAC"),
        "ship-spread": lower("~BAC", "~MCPG"),
        "ship-scale": higher(ship_steering.OURS, "MCPG"),
        "ship-fitted": higher(ship_steering.OURS, "MC, fitted values"),
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
    "lqr-gradient": (lqr_errors, {
        **{
            f"lqr-{model[-1]}-{what}": lower(model, "MC")
            for model in ("Model 1", "Model 2")
            for what in ("squared", "angular")
        },
        "lqr-fisher-integrated": within("Model 1, actions integrated out", 1.0, (2.0,), ROOT2),
        "lqr-baseline": lower(lqr_gradient.OURS, "MC, best baseline"),
    }),
    "random-walk-gradient": (walk_errors, {
        "walk-gradient-error": lower("BAC", "MC", "GPOMDP", "BQ, Model 1"),
        "walk-gradient-spread": lower("BAC", "MC", "GPOMDP", "BQ, Model 1"),
        "walk-gradient-integrated": lower(
            random_walk_gradient.BAC, *(r for r in RIVALS if r != "BQ, Model 2 + baseline")
        ),
        "walk-gradient-rewards": lower(random_walk_gradient.OURS, *RIVALS),
        "walk-gradient-printed": within(random_walk_gradient.PRINTED, 2.0, (1.0,), ROOT2),
    }),
    "lqr-noise": (noisy_errors, {
        "noise-as-printed": within("noisy Model 2, scale 1", 1.0, (2.0,), math.sqrt(1.5)),
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
        "bandit-spreads": within("MC 10", 1.0, (0.5, 2.0), 1.25),
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
}  # fmt: skip


@pytest.mark.parametrize("experiment", PLANTED)
def test_claims_follow_planted_winners_and_losers(experiment, monkeypatch):
    make, cases = PLANTED[experiment]

    def verdicts(levels):
        return {claim.id: claim.verdict for claim in make(levels, monkeypatch)}

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
    """Except the two whose claims are of this library, not of the paper."""
    rates = {name for name in EXPERIMENTS if name.endswith("rates")}
    assert PLANTED.keys() | rates | {"search", "uphill"} == EXPERIMENTS.keys()
