"""A remark of Section 8.1: quadrature loses its advantage where paths differ in length.

There are two versions of LQR at the policy of Figure 1. In the first every path has 20 steps; in
the second a path ends after each step with probability 1/20, which gives 20 steps on average. An
ending that is independent of states and actions acts as a discount of the return, so the exact
gradient is known for both.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments import LQR
from bayespg.learning.estimators import Model1, Model2, Reinforce
from bayespg.reproduce import claims
from bayespg.reproduce.claims import Row, ratios_of_ratios
from bayespg.reproduce.gradients import lqr_setting, on_tasks, two_panels
from bayespg.reproduce.lqr_gradient import sizes
from bayespg.reproduce.report import Experiment, Progress, Report, Settings
from bayespg.reproduce.samples import Samples
from bayespg.reproduce.sentences import ENDING

STAY, LONGEST = 0.95, 100
SAME, RANDOM = "20 steps", "20 steps on average"
BASELINE = "Model 2 + baseline"
ESTIMATORS = {
    "MC": Reinforce(),
    "MC, best baseline": Reinforce("best"),
    "Model 1": Model1(),
    BASELINE: Model2(baseline=float("inf")),
}
LOOKS = {"MC": "MC", "MC, best baseline": "MC, best baseline", "Model 1": "BQ", BASELINE: "ours"}


class Ending(LQR):
    """LQR whose paths continue with probability `stay` after each step."""

    stay: float = STAY

    def step(
        self, key: PRNGKeyArray, states: Float[Array, " M"], actions: Float[Array, " M"]
    ) -> tuple[Float[Array, " M"], Float[Array, " M"], Bool[Array, " M"]]:
        key_end, key_step = jax.random.split(key)
        following, rewards, _ = super().step(key_step, states, actions)
        return following, rewards, jax.random.uniform(key_end, states.shape) > self.stay

    def expected_return(self, policy) -> Float[Array, ""]:
        """sum_t stay^t E[r_t]."""
        s = self.second_moments(policy)
        costs = s + self.action_cost * (policy.gain**2 * s + policy.scale**2)
        return -jnp.sum(costs * self.stay ** jnp.arange(self.horizon))

    def fisher(self, policy) -> Float[Array, "n n"]:
        raise NotImplementedError("no closed form; use estimators.actions_integrated_out")


def run(settings: Settings, progress: Progress) -> Report:
    Ms = sizes(settings)
    fixed, policy = lqr_setting()
    tasks = {
        SAME: (fixed, policy, ESTIMATORS),
        RANDOM: (Ending(horizon=LONGEST), policy, ESTIMATORS),
    }
    found = on_tasks(tasks, Ms, settings, progress)
    curves = [
        curve
        for name, of in found.items()
        for curve in of.curves(LOOKS, Ms, name)
        if curve.panel.endswith("squared error")
    ]
    rows = [
        [f"{name}, {cells[0]}", *cells[1:]]
        for name, of in found.items()
        for cells in of.rows(ESTIMATORS, Ms, "{:,.0f} ± {:,.0f}")
    ]
    return Report(
        columns=["mean squared error", *(f"M = {M}" for M in Ms)],
        rows=rows,
        curves=curves,
        samples=Samples(found[SAME].cells(SAME) | found[RANDOM].cells(RANDOM)),
        figure=lambda: two_panels(curves, "M", ticks=False),
        notes=[
            "± is one standard error over runs. All estimators have the actions integrated out "
            "of G."
        ],
    )


def _lost(model: str, rival: str, samples: Samples):
    """The pairs of both tasks at every M but the smallest."""
    return {
        f"M = {M}": tuple(
            tuple(samples[f"{task}: square", name, M] for name in (model, rival))
            for task in (SAME, RANDOM)
        )
        for M in samples.sizes()[1:]
    }


EFFECT = "factor by which the advantage of {} over {} is larger with paths of equal length"
CLAIMS = (
    Row("lengths-shrink", "lengths",
        "the advantage of quadrature over Monte Carlo shrinks when paths differ in length",
        EFFECT.format("Model 1", "MC"), ratios_of_ratios,
        functools.partial(_lost, "Model 1", "MC"), above=1, reading=ENDING),
    Row("lengths-baseline", "", "the advantage of Model 2 with a baseline over Monte Carlo with "
        "the best baseline shrinks as well", EFFECT.format(BASELINE, "MC with the best baseline"),
        ratios_of_ratios, functools.partial(_lost, BASELINE, "MC, best baseline"), above=1),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS)


EXPERIMENT = Experiment(
    "lengths", "Section 8.1", "Quadrature where paths differ in length",
    2_000, 200, 10_000, run, judge, minutes=2,
)  # fmt: skip
