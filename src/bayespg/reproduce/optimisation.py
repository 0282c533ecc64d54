"""Policy optimisation on LQR: what Figures 3, 4 and 5 share.

Table 3's learning rates in kappa space, kappa ~ N(0, I) at the start of each run, 100 updates,
Sigma = 1e-3 I, Model 1. Costs are shown as the paper does: lower is better, 0.3067 is optimal.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import optax

from bayespg._support.random import fast_key
from bayespg.environments import LQR
from bayespg.learning import updates
from bayespg.learning.estimators import Estimator, Model1, Model2, Reinforce, exact
from bayespg.learning.training import train
from bayespg.policies import BoundedLinearGaussian
from bayespg.reproduce.claims import Claim, at, differences
from bayespg.reproduce.report import (
    Curve,
    Progress,
    Report,
    Settings,
    draw_panels,
    summarise,
)
from bayespg.runs import plots

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


@dataclasses.dataclass(frozen=True)
class Method:
    """A curve: an estimator, an update, and whose rates of Table 3 it uses."""

    estimator: Estimator
    rates: str
    look: str

    def update(self, M: int) -> optax.GradientTransformationExtraArgs:
        rate = np.array(RATES[self.rates][M])
        if self.rates == "BPNG":
            return updates.natural(rate, times_determinant=True)
        if self.rates == "BPG-var":
            return updates.variance_scaled(rate)
        return updates.conventional(updates.hyperbolic(rate))


METHODS = {
    "MCPG": Method(Reinforce(), "MCPG", "MC"),
    "MCPG, best baseline": Method(Reinforce("best"), "MCPG", "MC, best baseline"),
    "BPG": Method(Model1(fisher=exact), "BPG", "BQ"),
    "BPNG": Method(Model1(fisher=exact), "BPNG", "BQ natural"),
    "BPG-var": Method(Model1(fisher=exact), "BPG-var", "BQ variant"),
    "Model 2 + baseline": Method(Model2(baseline=float("inf")), "BPG", "ours"),
}
"""The last, ours, has a flat baseline, the actions integrated out of G, and the rates of
BPG."""


def learn(
    methods: Mapping[str, Method], settings: Settings, progress: Progress, sizes=SIZES
) -> dict[tuple[str, int], np.ndarray]:
    """Exact expected cost before each update and after the last, (runs, N + 1), for each method and
    M."""
    environment = LQR()
    found = {}
    cells = [(name, M) for M in sizes for name in methods]
    total = sum(M for _, M in cells)
    for name, M in cells:
        done = sum(m for _, m in list(found))
        progress(done / total, f"{name}, M = {M}")
        method = methods[name]
        key_start, key_run = jax.random.split(jax.random.fold_in(fast_key(settings.seed), M))
        with jax.enable_x64(True):
            kappa = jax.random.normal(key_start, (settings.runs, 2))
        result = train(
            environment,
            BoundedLinearGaussian(kappa),
            method.estimator,
            method.update(M),
            key=key_run,
            updates=UPDATES,
            paths=M,
            runs=settings.runs,
            progress=lambda j, N, d=done, m=M: progress((d + m * j / N) / total, ""),
        )
        with jax.enable_x64(True):
            last = jax.vmap(environment.expected_return)(result.policy)
        found[name, M] = -np.concatenate(
            [result.history.expected_return, np.asarray(last)[:, None]], 1
        )
    return found


def report(
    methods: Mapping[str, Method],
    costs: dict[tuple[str, int], np.ndarray],
    claims: list[Claim],
    notes: list[str],
) -> Report:
    """Final costs and averages over the whole curve; a panel for each M."""
    sizes = sorted({M for _, M in costs})
    curves = []
    for (name, M), cost in costs.items():
        mean, error = summarise(cost)
        curves.append(
            Curve(
                f"M = {M}", name, methods[name].look, list(range(mean.size)),
                mean.tolist(), error.tolist(),
            )
        )  # fmt: skip
    rows = []
    for name in methods:
        for what, of in (("final", lambda c: c[:, -1]), ("average", lambda c: c.mean(1))):
            cells = []
            for M in sizes:
                mean, error = summarise(of(costs[name, M]))
                cells.append(f"{mean:.4f} ± {error:.4f}")
            rows.append([name, what, *cells])
    return Report(
        columns=["expected cost", "", *(f"M = {M}" for M in sizes)],
        rows=rows,
        curves=curves,
        claims=claims,
        figure=lambda: _figure(curves),
        notes=[
            f"± is one standard error; {OPTIMUM} is optimal; 'average' is over all updates.",
            *notes,
        ],
    )


def ordering(
    costs: dict,
    id: str,
    place: str,
    says: str,
    better: str,
    worse: str,
    sizes: Sequence[int] = SIZES,
) -> Claim:
    """Does `better` end at the lower expected cost at every one of `sizes`?

    The share of runs says whether a few wild ones decide.
    """
    pairs = at(sizes, lambda name, M: costs[name, M][:, -1], better, worse)
    words = "{a:.3f} against {b:.3f}, lower in {share:.0f} % of runs"
    return Claim(id, place, says, "difference of final costs", differences(pairs, words))


def diverged(costs: dict, factor: float = 2.0) -> list[str]:
    """Runs that end above `factor` times the median cost of a start."""
    notes = []
    for (name, M), cost in costs.items():
        bad = int(np.sum(cost[:, -1] > factor * np.median(cost[:, 0])))
        if bad:
            notes.append(
                f"{name}, M = {M}: {bad} of {len(cost)} runs end above {factor:g} times "
                "the median start."
            )
    return notes


def _figure(curves: list[Curve]):
    excess = [dataclasses.replace(c, mean=[v - OPTIMUM for v in c.mean]) for c in curves]
    figure, axes = plots.sheet(2, 2, width=9, height=6.4, sharex=True, sharey=True)
    draw_panels(axes.flat, excess, yscale="log")
    for axis in axes[-1]:
        axis.set_xlabel("updates")
    for axis in axes[:, 0]:
        axis.set_ylabel("expected cost above the optimum")
    plots.legend_below(figure, axes[0, 0], 6)
    return figure
