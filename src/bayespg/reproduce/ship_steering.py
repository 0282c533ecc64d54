"""Figure 9: ship steering with M = 5, 10, 20 episodes per update.

The measure is the share of 100 episodes that reach the goal, after every 100 updates. The paper
states neither the reward nor the size of the goal nor the scale of the states. Here the reward is 1
on success, the goal has a radius of 10 m, and states are scaled to the unit cube. The paper's rates
(0.01 for MCPG, 0.4 and 0.5 for BAC) are then small, as `ship-steering-printed` shows, and
`ship-steering-rates` tunes those of all methods in the same way. An episode that reaches the limit
of 500 steps ends as a failure. BAC works without matrices, by conjugate gradients with the nine
active tiles of each step; G has the actions integrated out and 10^-6 added to its diagonal.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bayespg import kernels
from bayespg._support.random import fast_key
from bayespg.environments import ShipSteering, ship_steering
from bayespg.learning import updates
from bayespg.learning.estimators import BAC, GPOMDP, BACPaper, FittedValues, MonteCarlo
from bayespg.paths.rollout import rollout
from bayespg.policies import as_dtype, ship_steering_cmac
from bayespg.reproduce import claims, learning, sentences
from bayespg.reproduce.claims import Row, differences, pair, spreads, under
from bayespg.reproduce.learning import Learned, Method, Task
from bayespg.reproduce.parts import between
from bayespg.reproduce.report import Progress, Report, Settings, cell, draw_panels
from bayespg.reproduce.samples import Samples
from bayespg.runs import plots

UPDATES = {5: 3_000, 10: 3_000, 20: 1_000}
EVERY = 100
RADIUS = 10.0
ITERATIONS = 30
"""The number of iterations of conjugate gradients, which stops them before convergence."""
STATE_KERNEL = kernels.Nystrom(
    kernels.Gaussian(1.0),
    np.stack(np.meshgrid(*[np.array([0.0, 0.5, 1.0])] * 4), -1).reshape(-1, 4),
    tolerance=1e-4,
)
"""exp(-|x - x'|^2 / 2) on the unit cube, represented on a grid of three points per dimension."""


ENVIRONMENT = ShipSteering(goal_radius=RADIUS)


def _bac(noise: float, scale: float) -> BAC:
    return BACPaper(
        STATE_KERNEL, noise, scale, state_map=ENVIRONMENT.unit, limit_ends=True,
        iterations=ITERATIONS,
    )  # fmt: skip


EPISODES = "MCPG, sum over episodes"
OURS = "BAC, small Fisher scale"
"""c = 0.001 and sigma^2 = 0.1. At c = 1 the prior standard deviation of a step's advantage is
sqrt(M) |u|, while returns are at most 1: with such a weak prior the estimate fits each advantage
and divides it by the length of its score, where an average would multiply by the score."""
RATES = {
    "MCPG": {5: 500.0, 10: 1000.0, 20: 1000.0},
    EPISODES: {5: 2.0, 10: 10.0, 20: 10.0},
    "MC, fitted values": {5: 20.0, 10: 20.0, 20: 50.0},
    "BAC": {5: 10.0, 10: 10.0, 20: 20.0},
    OURS: {5: 200.0, 10: 200.0, 20: 500.0},
}
"""Chosen by `ship-steering-rates --paper`: the best mean of eight runs after 1,000 updates."""


def _at(rates: Mapping[int, float]):
    return lambda M: updates.conventional(rates[M])


METHODS = {
    "MCPG": Method(MonteCarlo(weights="uniform"), _at(RATES["MCPG"]), "MC"),
    EPISODES: Method(GPOMDP(), _at(RATES[EPISODES]), "GPOMDP"),
    "MC, fitted values": Method(
        FittedValues(STATE_KERNEL, 0.1, state_map=ENVIRONMENT.unit, limit_ends=True),
        _at(RATES["MC, fitted values"]), "MC, fitted values",
    ),
    "BAC": Method(_bac(1.0, 1.0), _at(RATES["BAC"]), "BAC"),
    OURS: Method(_bac(0.1, 0.001), _at(RATES[OURS]), "ours"),
}  # fmt: skip
TABLE6 = {
    "MCPG": {5: 0.01, 10: 0.01, 20: 0.01},
    "BAC": {5: 0.5, 10: 0.4, 20: 0.5},
}
PRINTED = {"MCPG": 0.01, EPISODES: 0.01, "BAC": 0.5}
"""Table 6, at M = 5."""
AS_PRINTED = {
    "MCPG": dataclasses.replace(METHODS["MCPG"], update=_at(TABLE6["MCPG"])),
    "BAC": dataclasses.replace(METHODS["BAC"], update=_at(TABLE6["BAC"])),
}
"""What `ship-steering-printed` compares. Both estimates are linear in the rewards, so that a reward
of R is the same as R times the rate; `ship-steering-rates` shows what that would change."""
SHOWN = ("MCPG", OURS)
"""The methods that are also run with other sizes of the goal."""
GRID = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
"""Rates tried, for every method and M."""
PER_CENT = "{:.1f} ± {:.1f}"


def _task(
    lengths: dict[int, int], environment: ShipSteering = ENVIRONMENT, label: str = ""
) -> Task:
    """Policies are evaluated by the share of 100 episodes that reach the goal."""

    def success(policy, key):
        paths = rollout(environment, as_dtype(policy, jnp.float32), key, 100)
        return ship_steering.succeeded(paths).mean()

    every = min(EVERY, min(lengths.values()))
    return Task(environment, ship_steering_cmac, lengths, success, every, label=label)


def run(settings: Settings, progress: Progress) -> Report:
    lengths = _lengths(settings)
    results = learning.learn(_task(lengths), METHODS, settings, between(progress, 0, 0.8))
    curves = learning.curves(results, METHODS)
    rows = _rows(results, METHODS, "tuned rates")
    assumptions = _assumptions(lengths, settings, between(progress, 0.8, 1))
    rows += [[name, what, cell, *[""] * (len(lengths) - 1)] for name, what, cell in assumptions]
    return Report(
        columns=["success in %", "", *(f"M = {M}" for M in lengths)],
        rows=rows,
        curves=curves,
        samples=Samples(learning.cells(results, lambda share: 100 * share)),
        figure=lambda: _figure(curves, results, max(lengths)),
        notes=[
            _spread(settings, lengths),
            f"Rates tuned in the same way for all methods (ship-steering-rates): {RATES}; the "
            "printed rates and the other goals are for M = 5.",
        ],
    )


def run_printed(settings: Settings, progress: Progress) -> Report:
    """With Table 6's rates, at the paper's size only for the largest M: with 3,000 updates, the
    others take three times as long."""
    lengths = dict([max(_lengths(settings).items())])
    results = learning.learn(_task(lengths), AS_PRINTED, settings, progress)
    curves = learning.curves(results, AS_PRINTED)
    shown = [curve.per_cent() for curve in curves]
    return Report(
        columns=["success in %", "", *(f"M = {M}" for M in lengths)],
        rows=_rows(results, AS_PRINTED, "Table 6's rates"),
        curves=curves,
        samples=Samples(learning.cells(results, lambda share: 100 * share)),
        figure=lambda: learning.panels(shown, "success in %", columns=len(lengths)),
        notes=[_spread(settings, lengths)],
    )


def _lengths(settings: Settings) -> dict[int, int]:
    """The number of updates for each M."""
    return UPDATES if settings.paper else {5: 20} if settings.quick else {5: 200, 20: 50}


def _rows(results: Mapping[learning.Cell, Learned], methods: Iterable[str], rates: str):
    """Table rows of the success at the end."""
    rows = []
    for name in methods:
        ends = [100 * of.values[:, -1] for (method, _), of in results.items() if method == name]
        cells = [f"{cell(of, PER_CENT)} (s.d. {of.std(ddof=1):.1f})" for of in ends]
        rows.append([name, rates, *cells])
    return rows


def _spread(settings: Settings, lengths: Mapping[int, int]) -> str:
    ends = ", ".join(f"{N} at M = {M}" for M, N in lengths.items())
    return (
        f"± is one standard error over {settings.runs} runs, s.d. the standard deviation over "
        f"runs; updates: {ends}."
    )


def _assumptions(lengths, settings: Settings, progress: Progress) -> list[tuple[str, str, str]]:
    """Table rows for the paper's own rates and for other sizes of the goal."""
    N = 500 if settings.paper else lengths[5] // 2
    few = dataclasses.replace(settings, runs=min(settings.runs, 10))
    shown = {name: RATES[name][5] for name in SHOWN}
    cases = {"printed rates": (RADIUS, PRINTED)}
    cases |= {f"goal of radius {radius:g} m": (radius, shown) for radius in (5.0, 20.0)}
    rows = []
    for i, (what, (radius, rates)) in enumerate(cases.items()):
        methods = {
            name: dataclasses.replace(
                METHODS[name], update=lambda M, r=rate: updates.conventional(r)
            )
            for name, rate in rates.items()
        }
        task = _task({5: N}, ShipSteering(goal_radius=radius), f"{what},")
        stage = between(progress, i / len(cases), (i + 1) / len(cases))
        for (name, _), of in learning.learn(task, methods, few, stage).items():
            first, last = 100 * of.values[:, 0].mean(), cell(100 * of.values[:, -1], PER_CENT)
            rows.append((name, f"{what}, {N} updates", f"{last} (from {first:.1f})"))
    return rows


GAP = "difference of success in %"
FIRST = f"{GAP}, mean over the first tenth of the updates"
points = functools.partial(differences, words="{b:.1f} against {a:.1f} %")
MORE = range(6, 1_000)
OF_PAPER = (
    Row("ship-more", "ship-more", "more episodes per update improve both methods",
        f"{GAP} after equally many updates, more episodes against M = 5", points,
        {f"{name}, M = {{M}}": (("few", name), ("many", name)) for name in ("MCPG", "BAC")}, MORE),
    Row("ship-bigger", "ship-bigger", "BAC gains more from more episodes than MCPG",
        f"{GAP}, gain of BAC against gain of MCPG over M = 5 after equally many updates", points,
        pair("gain", "MCPG", "BAC"), MORE),
    Row("ship-early", "ship-five", "at M = 5 MCPG is ahead at first", FIRST, points,
        pair("early", "BAC", "MCPG"), (5,)),
    Row("ship-soon", "ship-five", "at M = 5 BAC is ahead from the second tenth of the updates on",
        f"{GAP}, mean over the rest of the updates", points, pair("late", "MCPG", "BAC"), (5,)),
    Row("ship-early-many", "ship-early", "at M = 10 and 20 BAC is ahead from the beginning",
        FIRST, points, pair("early", "MCPG", "BAC"), MORE),
    Row("ship-early-most", "ship-early", "BAC's lead at the beginning is larger at M = 20 than "
        "at M = 10", f"{FIRST}, lead at M = 20 against lead at M = 10", points,
        {"": (("lead", "BAC", 10), ("lead", "BAC"))}, (20,)),
    Row("ship-bac", "ship-end", "BAC ends with more success than MCPG at every M", GAP, points,
        pair("final", "MCPG", "BAC")),
    Row("ship-spread", "ship-spread", "BAC varies less between runs than MCPG",
        "ratio of standard deviations, MCPG to BAC", spreads, pair("final", "BAC", "MCPG"),
        above=1),
)  # fmt: skip
CLAIMS = (
    *under(OF_PAPER, "", sentences.SHIP_TUNED),
    Row("ship-bac-episodes", "ship-end", "BAC ends with more success than MCPG at every M (MCPG as "
        "a sum over episodes)", GAP, points, pair("final", EPISODES, "BAC"), kind="ours",
        reading=sentences.SHIP_TUNED),
    Row("ship-scale", "", "with a small Fisher scale BAC ends with more success than MCPG", GAP,
        points, pair("final", "MCPG", OURS)),
    Row("ship-fitted", "", "with a small Fisher scale BAC ends with more success than Monte Carlo "
        "with fitted values", GAP, points, pair("final", "MC, fitted values", OURS)),
)  # fmt: skip


def _value(samples: Samples, what: str, name: str, M: int) -> np.ndarray:
    """Also the start of a curve, means over its first tenth and over the rest, what a method leads
    MCPG by at first, and the success after as many updates as there are at M = 5 and at M, with few
    episodes (5) and with many (M), and what is gained by them."""
    if what == "final":
        return samples[what, name, M]
    if what == "lead":
        return _value(samples, "early", name, M) - _value(samples, "early", "MCPG", M)
    many = samples["curve", name, M]
    if what == "start":
        return many[:, 0]
    if what in ("early", "late"):
        end = 1 + max(many.shape[1] // 10, 1)
        rest = many[:, min(end, many.shape[1] - 1) :]
        return (many[:, 1:end] if what == "early" else rest).mean(1)
    few = samples["curve", name, 5]
    last = min(few.shape[1], many.shape[1]) - 1
    before, after = few[:, last], many[:, last]
    return {"few": before, "many": after, "gain": after - before}[what]


judge = functools.partial(claims.judge, CLAIMS, value=_value)
AT_TABLE6 = "at Table 6's rates, with reward 1 on success (M = {M}),"
OF_PRINTED = (
    Row("ship-printed-bac", "ship-end", f"{AT_TABLE6} BAC ends with more success than MCPG", GAP,
        points, pair("final", "MCPG", "BAC"), kind="ours"),
    Row("ship-printed-early", "ship-early", f"{AT_TABLE6} BAC is ahead from the beginning", FIRST,
        points, pair("early", "MCPG", "BAC"), kind="ours"),
    Row("ship-printed-spread", "ship-spread", f"{AT_TABLE6} BAC varies less between runs than MCPG",
        "ratio of standard deviations, MCPG to BAC", spreads, pair("final", "BAC", "MCPG"),
        above=1, kind="ours"),
    Row("ship-printed-mcpg", "", f"{AT_TABLE6} MCPG does not learn: its success changes by less "
        "than a percentage point", f"{GAP}, the end against the start", points,
        {"M = {M}": (("start", "MCPG"), ("final", "MCPG"))}, above=-1, below=1),
)  # fmt: skip
"""They do not decide sentences about every M."""
judge_printed = functools.partial(claims.judge, OF_PRINTED, value=_value)


def _figure(curves, results, M: int):
    """Learning curves in the upper row; in the lower row the ship's tracks before learning and
    after learning with two methods."""
    figure, axes = plots.sheet(2, 3, width=12, height=7.6)
    per_cent = [c.per_cent() for c in curves]
    draw_panels(axes[0], per_cent, xlabel="updates", ylabel="success in %", ylim=(0, None))
    plots.legend_below(figure, axes[0, 0], 3)
    fresh = jax.tree.map(lambda leaf: leaf[0], ship_steering_cmac(1))
    shown = {
        "before": fresh,
        **{f"{name}, M = {M}": results[name, M].policy for name in ("MCPG", OURS)},
    }
    for axis, (title, policy) in zip(axes[1], shown.items(), strict=True):
        _tracks(axis, title, policy)
    return figure


def _tracks(axis, title: str, policy) -> None:
    """Draw the tracks of sixty episodes."""
    paths = rollout(ENVIRONMENT, as_dtype(policy, jnp.float32), fast_key(1), 60)
    reached, lengths = np.asarray(ship_steering.succeeded(paths)), np.asarray(paths.lengths)
    states, final = np.asarray(paths.states), np.asarray(paths.final)
    axis.set_facecolor("#eaf3f8")
    for i in np.argsort(reached):
        track = np.concatenate([states[: lengths[i], i, :2], final[i : i + 1, :2]])
        style = ("#c2410c", 1.0) if reached[i] else ("#8fb3c7", 0.7)
        axis.plot(*track.T, color=style[0], lw=style[1])
    angle = np.linspace(0, 2 * np.pi, 60)
    axis.fill(
        100 + RADIUS * np.cos(angle), 100 + RADIUS * np.sin(angle), color="#2166ac", alpha=0.25
    )
    axis.plot(40, 40, "o", color="black", ms=4)
    axis.set(
        title=f"{title}: {100 * reached.mean():.0f} % arrive", xlim=(0, 150), ylim=(0, 150),
        aspect="equal", xlabel="x in m", ylabel="y in m",
    )  # fmt: skip
    axis.grid(False)


def tune(settings: Settings, progress: Progress) -> Report:
    """Tune the learning rates by the success, in %, over the last tenth of the updates."""
    N = 1_000 if settings.paper else 20
    task = _task(dict.fromkeys((5, 10, 20) if settings.paper else (5,), N))
    return learning.tune(
        task, METHODS, GRID, lambda h: 100 * h.sample_return[-(N // 10) :].mean(), settings,
        progress,
    )  # fmt: skip
