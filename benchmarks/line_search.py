"""Cost reached on LQR against episodes used: steps at a rate, and line searches.

M = 20 paths a gradient, kappa ~ N(0, I) at the start, the same starts for all. The rate, 0.15, is
that of Table 3; the paper's schedule lets it decay. A search begins with the same number;
with natural gradients, which are of another scale, with 1.
"""

from typing import Any

import jax
import numpy as np
from measure import Table

from bayespg import line_search, training, updates
from bayespg._support.random import fast_key
from bayespg.environments import LQR
from bayespg.learning.estimators import Estimator, Model1, Model2, Reinforce, exact
from bayespg.policies import BoundedLinearGaussian

SEEDS, QUICK_SEEDS = 50, 10
PATHS, BUDGETS = 20, (200, 500, 1000, 2000)
RATE, NATURAL_RATE = 0.15, 1.0
ENVIRONMENT = LQR()
OURS = Model2(baseline=float("inf"))
SCHEDULES: dict[str, tuple[Estimator, Any]] = {
    "schedule of the paper, Model 1 (BPG)": (Model1(fisher=exact), updates.hyperbolic(RATE)),
    "schedule of the paper, Model 2 + baseline": (OURS, updates.hyperbolic(RATE)),
    "constant rate, Model 2 + baseline": (OURS, RATE),
    "a tenth of that rate": (OURS, RATE / 10),
    "twice that rate": (OURS, 2 * RATE),
    "four times": (OURS, 4 * RATE),
    "schedule of the paper, REINFORCE, best baseline": (
        Reinforce("best"),
        updates.hyperbolic(RATE),
    ),
}
SEARCHES: dict[str, tuple[Estimator, dict[str, Any]]] = {
    "search by sign, Model 2 + baseline": (OURS, {}),
    "search by sign, stopping at ‖g‖² ≤ 0.05": (OURS, {"epsilon": 0.05}),
    "search by level 0.75": (OURS, {"level": 0.75}),
    "search by level 0.9": (OURS, {"level": 0.9}),
    "search by level 0.97": (OURS, {"level": 0.97}),
    "search by level 0.97, from a tenth of the step": (
        OURS,
        {"level": 0.97, "first_step": RATE / 10},
    ),
    "search by level 0.97, natural": (
        OURS,
        {"level": 0.97, "natural": True, "first_step": NATURAL_RATE},
    ),
    "search by sign, REINFORCE, best baseline": (Reinforce("best"), {}),
    "search by level 0.97, REINFORCE, best baseline": (Reinforce("best"), {"level": 0.97}),
}


def run(quick: bool) -> list[Table]:
    seeds = QUICK_SEEDS if quick else SEEDS
    starts = np.random.default_rng(0).normal(size=(seeds, 2))
    rows = [[name, *_cells(_scheduled(e, rate, starts))] for name, (e, rate) in SCHEDULES.items()]
    rows += [[name, *_cells(_searched(e, kw, starts))] for name, (e, kw) in SEARCHES.items()]
    cost = -_returns(starts)
    return [
        Table(
            f"LQR, expected cost against episodes, {seeds} seeds",
            ["", *(f"{b:,} episodes" for b in BUDGETS), "median at the end", "above 1"],
            rows,
            [
                f"Means ± one standard error; 0.3067 is optimal, {np.median(cost):.2f} the median"
                f" start, {cost.mean():.1f} the mean one.",
                "A search that has not ended where its episodes are counted stands at its last"
                " point; one that ended early stays there.",
                "Above 1: runs that end at a cost above 1.",
            ],
        )
    ]


def _returns(parameters: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        policies = BoundedLinearGaussian(parameters)
        return np.asarray(jax.vmap(ENVIRONMENT.expected_return)(policies))


def _scheduled(estimator: Estimator, rate: Any, starts: np.ndarray) -> np.ndarray:
    """(seeds, budgets)"""
    found = training.train(
        ENVIRONMENT, BoundedLinearGaussian(starts), estimator,
        updates.conventional(rate), key=fast_key(0), updates=BUDGETS[-1] // PATHS, paths=PATHS,
        runs=len(starts),
    )  # fmt: skip
    eta = np.column_stack([found.history.expected_return, _returns(found.policy.kappa)])
    return -eta[:, [b // PATHS for b in BUDGETS]]


def _searched(estimator: Estimator, options: dict[str, Any], starts: np.ndarray) -> np.ndarray:
    """(seeds, budgets): the cost where the last search that ended within each budget did."""
    update = line_search.conjugate_gradients(
        **{"first_step": RATE, "level": None, "natural": False, "doublings": 10} | options
    )

    def cost(budget: int) -> np.ndarray:
        result = training.train(
            ENVIRONMENT, BoundedLinearGaussian(starts), estimator, update, key=fast_key(0),
            updates=budget // PATHS, paths=PATHS, runs=len(starts), stop=1e-12,
        )  # fmt: skip
        state = result.state.optimiser
        ended = state.search.ended[:, None]
        return -_returns(np.where(ended, result.policy.kappa, state.base))

    return np.column_stack([cost(budget) for budget in BUDGETS])


def _cells(cost: np.ndarray) -> list[Any]:
    mean, error = cost.mean(0), cost.std(0, ddof=1) / len(cost) ** 0.5
    cells = [f"{m:.3f} ± {e:.3f}" for m, e in zip(mean, error, strict=True)]
    return [*cells, f"{np.median(cost[:, -1]):.3f}", int(np.sum(cost[:, -1] > 1))]
