"""Beyond the paper: the stated probability that a step along the mean goes uphill, compared with
how often it does.

The inputs are synthetic scores and returns with a known gradient, from zero to strong, and the
tasks whose gradient has a closed form. In every cell the mean stated probability should be at most
0.05 above the observed frequency. It may be below it: the probability is cautious by construction.
"""

import jax
import jax.numpy as jnp

from bayespg import evidence, monte_carlo, quadrature
from bayespg._support.random import fast_key
from bayespg.calibration import Reliability, reliability, reliability_of_arrays
from bayespg.environments import Environment
from bayespg.learning.estimators import Estimator, Model1, Model2, Reinforce
from bayespg.policies import Policy, Tabular
from bayespg.reproduce import calibration
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.claims import Claim, Effect
from bayespg.reproduce.report import Curve, Experiment, Progress, Report, Settings, draw_panels
from bayespg.runs import plots

SIGNALS = (0.0, 1.0, 4.0, 16.0, 64.0)
MARGIN = 0.05
OF_ARRAYS = {
    "Monte Carlo": lambda U, R, G: monte_carlo.reinforce(U, R, G, baseline="mean"),
    "Model 1": lambda U, R, G: quadrature.model1(U, R, G, noise=R.var()),
    "Model 2": lambda U, R, G: evidence.model2(U, R, G),
}
OF_PATHS = {
    "Monte Carlo": Reinforce("mean"),
    "Model 1": Model1(noise=1.0),
    "Model 2": Model2(noise=None, baseline=float("inf")),
}
OF_WALKS = {
    "Monte Carlo": Reinforce("mean"),
    "BAC": rw.INTEGRATED,
    "BAC, noise on rewards": rw.OURS,
}
TASKS: dict[str, tuple[Environment, Policy, dict[str, Estimator]]] = {
    **{name: (*of, OF_PATHS) for name, of in calibration.TASKS.items()},
    "random walk": (rw.walk(100), Tabular(jnp.full(9, rw.START)), OF_WALKS),
}


def sizes(settings: Settings) -> list[tuple[int, int]]:
    """Pairs of a number of parameters and a number of paths."""
    if settings.quick:
        return [(2, 4), (2, 20), (50, 10)]
    if settings.paper:
        return [(n, M) for n in (2, 10, 100, 1000) for M in (4, 10, 30, 100)]
    return [(n, M) for n in (2, 10, 100) for M in (4, 20)] + [(1000, 10)]


def run(settings: Settings, progress: Progress) -> Report:
    found: dict[tuple[str, str], list[Reliability]] = {}
    cells = [(n, M, curved) for n, M in sizes(settings) for curved in (False, True)]
    Ms = (4, 20) if settings.quick else (4, 8, 16, 64)
    total = len(cells) + len(TASKS) * len(Ms)
    key, done = fast_key(settings.seed), 0
    for n, M, curved in cells:
        progress(done / total, f"{n} parameters, M = {M}")
        for signal in SIGNALS:
            kind = "noise grows with the score" if curved else "arrays"
            place = f"{kind}, n = {n}, M = {M}, signal {signal:g}"
            found["arrays", place] = reliability_of_arrays(
                OF_ARRAYS, parameters=n, paths=M, signal=signal, runs=settings.runs, curved=curved,
                key=jax.random.fold_in(key, 1000 * done + int(signal)),
            )  # fmt: skip
        done += 1
    for task, (environment, policy, estimators) in TASKS.items():
        for M in Ms:
            progress(done / total, f"{task}, M = {M}")
            found["tasks", f"{task}, M = {M}"] = reliability(
                environment, policy, estimators, paths=M, runs=settings.runs,
                key=jax.random.fold_in(key, done),
            )  # fmt: skip
            done += 1
    rows = [
        [place, r.estimator, "natural" if r.natural else "mean", f"{r.said:.2f}",
         f"{r.counted:.2f}", f"{r.said - r.counted:+.2f} ± {2 * r.error:.2f}", f"{r.certain:.2f}"]
        for (_, place), each in found.items() for r in each
    ]  # fmt: skip
    claims = [_claim(kind, found) for kind in ("arrays", "tasks")]
    curves = _curves(found)
    return Report(
        columns=[
            "where",
            "estimator",
            "direction",
            "stated",
            "observed",
            "stated - observed",
            "> 0.95",
        ],
        rows=rows,
        curves=curves,
        claims=claims,
        figure=lambda: _figure(curves),
        notes=["Means over batches. Where the gradient is zero, a step counts as half uphill."],
        extra={
            "reliability": [
                {"where": k[1], **r._asdict()} for k, each in found.items() for r in each
            ]
        },
    )


def _claim(kind: str, found: dict[tuple[str, str], list[Reliability]]) -> Claim:
    effects = tuple(
        Effect(
            f"{place}, {r.estimator}, {'natural' if r.natural else 'mean'}",
            r.said - r.counted,
            r.said - r.counted - 4 * r.error,
            r.said - r.counted + 4 * r.error,
            f"stated {r.said:.2f}, observed {r.counted:.2f}",
        )
        for (of, place), each in found.items()
        if of == kind
        for r in each
    )
    where = (
        "on arrays with a known gradient" if kind == "arrays" else "on bandit, LQR and random walk"
    )
    return Claim(
        f"uphill-{kind}", "",
        f"the probability of going uphill along the mean is right or cautious {where}",
        "stated probability minus observed frequency", effects, above=-1.01, below=MARGIN,
    )  # fmt: skip


def _curves(found: dict[tuple[str, str], list[Reliability]]) -> list[Curve]:
    """Stated probability against observed frequency, one panel per kind of input."""
    looks = {"Monte Carlo": "MC", "Model 1": "BQ", "Model 2": "ours", "BAC": "BAC"}
    curves = []
    for kind in ("arrays", "tasks"):
        for name, look in looks.items():
            of = sorted(
                (r.counted, r.said, r.error)
                for (k, _), each in found.items() if k == kind
                for r in each if r.estimator == name and not r.natural
            )  # fmt: skip
            if not of:
                continue
            x, y, half = (list(column) for column in zip(*of, strict=True))
            curves.append(Curve(kind, name, look, x, y, half))
    return curves


def _figure(curves: list[Curve]):
    figure, axes = plots.sheet(1, 2, width=8, height=3.6, sharex=True, sharey=True)
    for axis in axes.flat:
        axis.plot([0.5, 1], [0.5, 1], color="black", lw=0.8, ls=(0, (4, 3)))
        axis.set_xlabel("observed frequency")
    draw_panels(axes.flat, curves, ylim=(0, 1.02))
    axes.flat[0].set_ylabel("stated probability")
    plots.legend_below(figure, axes.flat[0], 3)
    return figure


EXPERIMENT = Experiment(
    name="uphill",
    item="beyond the paper",
    title="How often a step along the mean goes uphill, and the stated probability",
    runs=1_000,
    quick_runs=200,
    paper_runs=4_000,
    run=run,
    minutes=6,
)
