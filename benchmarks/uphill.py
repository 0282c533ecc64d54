"""Beyond the paper: the stated probability that a step along the mean goes uphill, compared with
how often it does.

The inputs are synthetic scores and returns with a known gradient, from zero to strong, and the
tasks whose gradient has a closed form. One batch cannot know how strong gradients are, so the
statement is right on average over its hyperprior. Gradients drawn from it are judged: the mean
stated probability should be within 0.05 of the observed frequency, in every cell, and also among
the statements up to 0.7, up to 0.9 and above. Cells with a fixed gradient are shown beside them.

In a run the strength is learned. The stated probability of a run's later updates is compared with
that of an oracle that knows it.
"""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import calibration
import jax
import jax.numpy as jnp
import numpy as np

from bayespg import evidence, monte_carlo, quadrature
from bayespg._support.random import fast_key
from bayespg.calibration import Reliability, reliability, reliability_of_arrays
from bayespg.environments import Environment, RandomWalk
from bayespg.learning.estimators import Estimator, Model1, Model2, Reinforce
from bayespg.policies import Policy, Tabular
from bayespg.reproduce import parts
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.claims import Claim, Effect
from bayespg.reproduce.report import Curve, Experiment, Progress, Report, Settings
from bayespg.reproduce.samples import Samples
from bayespg.runs import plots
from bayespg.search import gradient_posterior

SIGNALS = (None, 0.0, 1.0, 4.0, 25.0)
"""None is drawn from the hyperprior for every batch."""
DRAWN = "drawn"
MARGIN = 0.05
FRESH = 1
"""Folded into the seed. What each path adds to Model 1's mean was defined after runs without it.
The correction r / (1 + r) of `bayespg.posterior.agreement` was made after a run with it, so for
that rule these cells are not fresh."""
OF_ARRAYS = {
    "Monte Carlo": lambda U, R, G: monte_carlo.reinforce(U, R, G, baseline="mean"),
    "Model 1": lambda U, R, G: quadrature.model1(U, R, G, noise=R.var()),
    "Model 2": lambda U, R, G: evidence.model2(U, R, G),
    "Search": lambda U, R, G: gradient_posterior(U, R, mean=jnp.zeros(G.size), scale=1.0),
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
    "random walk": (RandomWalk(horizon=100), Tabular(jnp.full(9, rw.START)), OF_WALKS),
}


TITLES = {"arrays": "Arrays with a known gradient", "tasks": "Bandit, LQR and random walk"}


def sizes(settings: Settings) -> list[tuple[int, int]]:
    """Pairs of a number of parameters and a number of paths."""
    if settings.quick:
        return [(2, 4), (50, 10)]
    if settings.paper:
        return [(n, M) for n in (2, 10, 100, 1000) for M in (4, 10, 30)] + [(10, 100)]
    return [(n, M) for n in (2, 10, 100) for M in (4, 20)] + [(1000, 10)]


class Place(NamedTuple):
    """Where batches were drawn."""

    kind: str
    name: str
    paths: int
    signal: float | None = None
    """Squared length of the gradient times M, in units of the noise."""

    def __str__(self) -> str:
        signal = f", signal {_words(self.signal)}" if self.kind == "arrays" else ""
        return f"{self.name}, M = {self.paths}{signal}"


def _words(signal: float | None) -> str:
    return DRAWN if signal is None else f"{signal:g}"


Found = dict[Place, list[Reliability]]


Work = dict[Place, Callable[[], list[Reliability]]]


def run(settings: Settings, progress: Progress) -> Report:
    each, found = work(settings), {}
    pieces = {label: _piece(of) for label, of in each.items()}
    for done, (label, part) in enumerate(parts.done(pieces, settings.parts), 1):
        progress(done / len(each), label)
        places = list(each[label])
        for at, name, numbers in zip(part["at"], part["names"], part["numbers"], strict=True):
            natural, said, counted, error, runs, brier, *by = numbers.tolist()
            by_part = tuple((int(k), s, c) for k, s, c in np.reshape(by, (-1, 3)).tolist())
            row = Reliability(
                str(name), bool(natural), said, counted, error, int(runs), brier, by_part
            )
            found.setdefault(places[at], []).append(row)
    return _report({place: found[place] for of in each.values() for place in of})


def work(settings: Settings) -> dict[str, Work]:
    """What to compute at each place, in parts whose places share a compiled program."""
    Ms = (4, 20) if settings.quick else (4, 8, 16, 64)
    key = jax.random.fold_in(fast_key(settings.seed), FRESH)
    cells = [(n, M, curved) for n, M in sizes(settings) for curved in (False, True)]
    each: dict[str, Work] = {}
    for done, (n, M, curved) in enumerate(cells):
        name = f"n = {n}{', noise grows with the score' if curved else ''}"
        each[f"{name}, M = {M}"] = {
            Place("arrays", name, M, signal): functools.partial(
                reliability_of_arrays, OF_ARRAYS, parameters=n, paths=M, signal=signal,
                runs=settings.runs, curved=curved,
                key=jax.random.fold_in(key, 1000 * done + (99 if signal is None else int(signal))),
            )
            for signal in SIGNALS
        }  # fmt: skip
    for done, (task, M) in enumerate(itertools.product(TASKS, Ms), len(cells)):
        one = functools.partial(
            reliability, *TASKS[task], paths=M, runs=settings.runs,
            key=jax.random.fold_in(key, done),
        )  # fmt: skip
        each[f"{task}, M = {M}"] = {Place("tasks", task, M): one}
    return each


def _piece(work: Work) -> parts.Work:
    def one() -> parts.Part:
        rows = [(at, r) for at, of in enumerate(work.values()) for r in of()]
        return {
            "at": np.array([at for at, _ in rows]),
            "names": np.array([r.estimator for _, r in rows]),
            "numbers": np.array([[*r[1:-1], *np.ravel(r.parts)] for _, r in rows], float),
        }

    return one


def _report(found: Found) -> Report:
    curves = _curves(found)
    return Report(
        columns=["where", "M", "estimator", "direction", "stated / observed"],
        rows=_table(found),
        curves=curves,
        samples=Samples(
            {
                (f"{place}, {'natural' if r.natural else 'mean'}", r.estimator, place.paths):
                    np.array([r.said, r.counted, r.error, *np.ravel(r.parts)])
                for place, each in found.items()
                for r in each
            }
        ),
        figure=lambda: diagram(curves, TITLES),
        notes=[
            f"Means over batches; on arrays with signals {', '.join(map(_words, SIGNALS))}. "
            "Where the gradient is zero, a step counts as half uphill."
        ],
        extra={
            "reliability": [
                p._asdict() | r._asdict() for p, each in found.items() for r in each
            ]
        },
    )  # fmt: skip


def _table(found: Found) -> list[list[str]]:
    """One row for each place, estimator and way to follow it, with all signals."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for place, each in found.items():
        for r in each:
            row = (place.name, str(place.paths), r.estimator, "natural" if r.natural else "mean")
            rows.setdefault(row, []).append(f"{r.said:.2f} / {r.counted:.2f}")
    return [[*row, ", ".join(cells)] for row, cells in rows.items()]


WITHIN = ("up to 0.7", "from 0.7 to 0.9", "above 0.9")
FEW = 100
"""Fewer statements than this are not judged by themselves."""


def judge(samples: Samples) -> list[Claim]:
    names = dict.fromkeys(name for where, name, _ in samples if DRAWN in where)
    return [claim for name in names for claim in _claims(name, samples)]


def _claims(estimator: str, samples: Samples) -> list[Claim]:
    """Over the hyperprior, in each cell and, over all cells, among statements of each size."""
    cells = {
        where: of
        for (where, name, _), of in samples.items()
        if name == estimator and DRAWN in where
    }
    id = f"uphill-{estimator.lower().replace(',', '').replace(' ', '-')}"
    effect = "stated probability minus observed frequency"
    parts = {}
    for at, words in enumerate(WITHIN):
        counts, said, counted = np.array([of[3 + 3 * at : 6 + 3 * at] for of in cells.values()]).T
        total = counts.sum()
        if total >= FEW:
            p = float(counts @ counted / total)
            error = np.sqrt(max(p * (1 - p), 0.01) / total)
            parts[words] = np.array([counts @ said / total, p, error])
    return [
        Claim(
            id, "", f"{estimator}: over its hyperprior the probability of going uphill is right",
            effect, apart({where: of[:3] for where, of in cells.items()}),
            above=-MARGIN, below=MARGIN,
        ),
        Claim(
            f"{id}-parts", "", f"{estimator}: so are its low, middle and high statements", effect,
            apart(parts), above=-MARGIN, below=MARGIN,
        ),
    ]  # fmt: skip


def apart(cells: Mapping[str, np.ndarray]) -> tuple[Effect, ...]:
    """Stated probability minus observed frequency; a cell is both and the standard error of their
    difference."""
    return tuple(
        Effect(
            where,
            said - counted,
            said - counted - 4 * error,
            said - counted + 4 * error,
            f"stated {said:.2f}, observed {counted:.2f}",
        )
        for where, numbers in cells.items()
        for said, counted, error in [map(float, numbers)]
    )


def _curves(found: Found) -> list[Curve]:
    """Stated probability against observed frequency, one panel per kind of input."""
    looks = {
        "Monte Carlo": "MC", "Model 1": "BQ", "Model 2": "ours", "BAC": "BAC variant",
        "Search": "compatible",
    }  # fmt: skip
    curves = []
    for kind in ("arrays", "tasks"):
        for name, look in looks.items():
            of = sorted(
                (r.counted, r.said, r.error)
                for place, each in found.items() if place.kind == kind
                for r in each if r.estimator == name and not r.natural
            )  # fmt: skip
            if not of:
                continue
            x, y, half = (list(column) for column in zip(*of, strict=True))
            curves.append(Curve(kind, name, look, x, y, half))
    return curves


def diagram(curves: list[Curve], titles: Mapping[str, str], width: float = 8):
    """Stated probability against observed frequency, one panel per title."""
    columns = len(titles)
    figure, axes = plots.sheet(1, columns, width=width, height=4.2, sharex=True, sharey=True)
    for axis, (kind, title) in zip(axes.flat, titles.items(), strict=True):
        axis.plot([0, 1], [0, 1], color="black", lw=0.8, ls=(0, (4, 3)))
        axis.fill_between([0, 1], [0, 1], color="#f2f2f2", lw=0)
        for curve in (c for c in curves if c.panel == kind):
            look = plots.LOOKS[curve.look] | {"linestyle": "", "alpha": 0.7, "mew": 0}
            axis.plot(curve.x, curve.mean, label=curve.label, **look)
        axis.set(title=title, xlabel="observed frequency", xlim=(0, 1.02), ylim=(0, 1.02))
        axis.legend(loc="upper left", fontsize="small")
    axes.flat[0].set_ylabel("stated probability (grey: right or cautious)")
    return figure


EXPERIMENT = Experiment(
    name="uphill",
    item="beyond the paper",
    title="How often a step along the mean goes uphill, and the stated probability",
    runs=500,
    quick_runs=200,
    paper_runs=2_000,
    run=run,
    judge=judge,
    minutes=2,
)
