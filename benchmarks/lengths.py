"""A remark of Section 8.1: quadrature loses its advantage where paths differ in length.

There are two versions of LQR at the policy of Figure 1. In the first every path has 20 steps; in
the second a path ends after each step with probability 1/20, which gives 20 steps on average. An
ending that is independent of states and actions acts as a discount of the return, so the exact
gradient is known for both.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments import LQR
from bayespg.learning.estimators import Model1, Model2, Reinforce
from bayespg.reproduce.claims import Claim, Effect, ratios_of_ratios
from bayespg.reproduce.gradients import errors, lqr_setting, two_panels
from bayespg.reproduce.lqr_gradient import sizes
from bayespg.reproduce.parts import between
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
    tasks = {SAME: fixed, RANDOM: Ending(horizon=LONGEST)}
    found = {
        name: errors(
            task, policy, ESTIMATORS, Ms, settings,
            between(progress, k / 2, (k + 1) / 2), task=f"{name},",
        )
        for k, (name, task) in enumerate(tasks.items())
    }  # fmt: skip
    same, random = found.values()
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
        samples=Samples(same.cells(SAME) | random.cells(RANDOM)),
        figure=lambda: two_panels(curves, "M", ticks=False),
        notes=[
            "± is one standard error over runs. All estimators have the actions integrated out "
            "of G."
        ],
    )


def judge(samples: Samples) -> list[Claim]:
    def squares(task: str, model: str, rival: str, M: int) -> tuple[np.ndarray, np.ndarray]:
        of = f"{task}: square"
        return samples[of, model, M], samples[of, rival, M]

    def lost(model: str, rival: str) -> tuple[Effect, ...]:
        return ratios_of_ratios(
            {
                f"M = {M}": (squares(SAME, model, rival, M), squares(RANDOM, model, rival, M))
                for M in samples.sizes()[1:]
            }
        )

    effect = "factor by which the advantage of {} over {} is larger with paths of equal length"
    return [
        Claim(
            "lengths-shrink", "lengths",
            "the advantage of quadrature over Monte Carlo shrinks when paths differ in length",
            effect.format("Model 1", "MC"), lost("Model 1", "MC"), above=1,
            reading=ENDING,
        ),
        Claim(
            "lengths-baseline", "",
            "the advantage of Model 2 with a baseline over Monte Carlo with the best baseline "
            "shrinks as well",
            effect.format(BASELINE, "MC with the best baseline"),
            lost(BASELINE, "MC, best baseline"), above=1,
        ),
    ]  # fmt: skip


EXPERIMENT = Experiment(
    "lengths", "Section 8.1", "Quadrature where paths differ in length",
    2_000, 200, 10_000, run, judge, minutes=2,
)  # fmt: skip
