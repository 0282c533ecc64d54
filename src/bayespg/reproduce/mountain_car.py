"""Figure 8: the mountain car with M = 5, 10, 20, 40 episodes per update.

The measure is the number of steps to the goal, at most 200, averaged over 1,000 episodes after
every 50 updates. Learning rates are those of Table 5; methods that are not in the paper use BAC's.
Training episodes are also cut off at 200 steps, and the critic treats what would have followed as
unknown. There are three versions of BAC: the paper's (unit kernels, sigma^2 = 1, G-EST), one with
the actions integrated out of G, and ours, which also puts the noise on the rewards and gives the
values a prior of the right magnitude.
"""

import functools
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bayespg import actor_critic, kernels
from bayespg._support.random import fast_key
from bayespg.algebra import conditioning
from bayespg.environments import MountainCar
from bayespg.environments.mountain_car import HIGH, LOW
from bayespg.learning import estimators, updates
from bayespg.learning.estimators import (
    BAC,
    GPOMDP,
    BACPaper,
    CompatibleLeastSquares,
    FittedValues,
    MonteCarlo,
)
from bayespg.paths.rollout import rollout
from bayespg.policies import as_dtype, mountain_car_softmax
from bayespg.reproduce import claims, learning, sentences
from bayespg.reproduce.claims import ALIKE, Row, differences, means, pair, ratios, spreads, under
from bayespg.reproduce.learning import Learned, Method, Task
from bayespg.reproduce.report import Progress, Report, Settings, cell, draw_panels
from bayespg.reproduce.samples import Samples
from bayespg.runs import plots

UPDATES, EVERY = 500, 50
ENVIRONMENT = MountainCar()
GRID = np.stack(np.meshgrid(*[np.linspace(0, 1, 8)] * 2), -1).reshape(-1, 2)
STATE_KERNEL = kernels.Nystrom(kernels.Gaussian(1.3 * 0.25), GRID, tolerance=1e-6)
"""The paper's Gaussian kernel on the unit square, represented on a grid that is dense enough."""
WIDE = kernels.Scaled(STATE_KERNEL, 100.0)
"""The same with a prior standard deviation of 10: the discounted cost of a path is up to 87."""
RATES = {
    "MCPG": {5: (0.025, math.inf), 10: (0.1, 100), 20: (0.2, 100), 40: (0.25, math.inf)},
    "BAC": {5: (0.025, math.inf), 10: (0.05, math.inf), 20: (0.1, math.inf), 40: (0.1, 250)},
}
"""Table 5: (beta_0, beta_c)."""


def _at(rates: str):
    return lambda M: updates.conventional(updates.hyperbolic(*RATES[rates][M]))


def _bac(kernel, noise=1.0, **choices) -> BAC:
    return BACPaper(kernel, noise, state_map=ENVIRONMENT.unit, **choices)


OURS = "BAC, ours"
EPISODES, PAPER, PRINTED = "MCPG, sum over episodes", "BAC, G-EST", "BAC, G-EST as printed"
METHODS = {
    "MCPG": Method(MonteCarlo(weights="uniform"), _at("MCPG"), "MC"),
    EPISODES: Method(GPOMDP(), _at("MCPG"), "GPOMDP"),
    "MC, fitted values": Method(
        FittedValues(WIDE, 1.0, state_map=ENVIRONMENT.unit), _at("BAC"), "MC, fitted values"
    ),
    "compatible least squares": Method(
        CompatibleLeastSquares(WIDE, 1.0, state_map=ENVIRONMENT.unit), _at("BAC"), "compatible"
    ),
    PAPER: Method(_bac(STATE_KERNEL, fisher=estimators.g_est), _at("BAC"), "BAC"),
    PRINTED: Method(
        _bac(STATE_KERNEL, fisher=estimators.g_est_as_printed), _at("BAC"), "BAC as printed"
    ),
    "BAC, actions integrated out": Method(_bac(STATE_KERNEL), _at("BAC"), "BAC variant"),
    OURS: Method(_bac(WIDE, 0.1, lambda_=0.0), _at("BAC"), "ours"),
}


def steps_to_goal(policy, key, episodes: int = 1_000):
    """The mean number of steps over episodes with random starts; 200 if the goal is not reached."""
    return rollout(ENVIRONMENT, as_dtype(policy, jnp.float32), key, episodes).lengths.mean()


def run(
    settings: Settings,
    progress: Progress,
    methods: Mapping[str, Method] = METHODS,
    environment: MountainCar = ENVIRONMENT,
    sizes: Sequence[int] | None = None,
) -> Report:
    if sizes is None:
        sizes = (5, 10, 20, 40) if settings.paper else (5,) if settings.quick else (5, 20)
    N = UPDATES if settings.paper else 100
    task = Task(environment, mountain_car_softmax, dict.fromkeys(sizes, N), steps_to_goal, EVERY)
    results = learning.learn(task, methods, settings, progress)
    curves = learning.curves(results, methods)
    rows = []
    at = results["MCPG", sizes[0]].updates
    for name in methods:
        for j in sorted({int(np.argmax(at >= 100)), len(at) - 1}):
            cells = [cell(results[name, M].values[:, j], "{:.1f} ± {:.1f}") for M in sizes]
            rows.append([name, f"after {at[j]}", *cells])
    return Report(
        columns=["steps to goal", "updates", *(f"M = {M}" for M in sizes)],
        rows=rows,
        curves=curves,
        samples=Samples(learning.cells(results)),
        figure=lambda: _figure(curves, results[[*methods][-1], sizes[0]], sizes[0]),
        notes=[
            f"± is one standard error over {settings.runs} runs; {N} updates; each evaluation is "
            "the mean of 1,000 episodes."
        ],
    )


def run_long(settings: Settings, progress: Progress) -> Report:
    """The limit of 200 steps is printed for evaluation only: here training episodes have 1,000."""
    methods = {name: METHODS[name] for name in ("MCPG", PAPER)}
    return run(settings, progress, methods, MountainCar(horizon=1_000), (40,))


GAP = "difference of steps to the goal"
SPREAD, RATIO = "ratio of standard deviations", "ratio of steps to the goal"


def _against_five(name: str) -> dict[str, tuple[claims.Cell, ...]]:
    return {"M = {M} against 5": (("final", name), ("final", name, 5))}


ENDS = (
    Row("car-bac{}", "figure-8", "BAC ends with fewer steps than MCPG at every M", GAP,
        differences, pair("final", PAPER, "MCPG")),
    Row("car-spread{}", "figure-8", "BAC varies less between runs than MCPG at every M",
        f"{SPREAD}, MCPG to BAC", spreads, pair("final", PAPER, "MCPG"), above=1),
)  # fmt: skip
FORTY = (
    Row("car-forty{}", "car-forty", "MCPG is close to BAC at M = 40", f"{RATIO}, MCPG to BAC",
        ratios, pair("final", PAPER, "MCPG"), (40,), **ALIKE),
    Row("car-slower{}", "car-forty", "MCPG needs more steps than BAC while it learns",
        f"{GAP}, mean over the evaluations", differences, pair("average", PAPER, "MCPG"), (40,)),
)  # fmt: skip
FIVE = (
    Row("car-five{}", "car-five", "BAC learns a good policy even with M = 5",
        "steps to the goal at the end", means, {"M = 5": (("final", PAPER),)}, (5,), below=70),
    Row("car-insensitive{}", "car-five", "BAC's performance does not change much with M",
        f"{RATIO} at the end", ratios, _against_five(PAPER), (40,), **ALIKE),
)  # fmt: skip
MONTE_CARLO = (
    Row("car-mcpg-better{}", "car-mcpg", "MCPG improves with M", GAP, differences,
        _against_five("MCPG"), (40,)),
    Row("car-mcpg-steadier{}", "car-mcpg", "MCPG varies less between runs with more episodes",
        f"{SPREAD}, M = 5 to 40", spreads, _against_five("MCPG"), (40,), above=1),
)  # fmt: skip
CLAIMS = (
    *under((*ENDS, *FORTY), "-printed", sentences.G_PRINTED, {PAPER: PRINTED}),
    *under((*ENDS, *FORTY), "", sentences.G_CORRECTED),
    *under((*ENDS, *FORTY), "-episodes", sentences.G_EPISODES, {"MCPG": EPISODES}),
    *under(FIVE, "-printed", sentences.G_PRINTED, {PAPER: PRINTED}),
    *under(FIVE, "", sentences.G_CORRECTED),
    *under(MONTE_CARLO, "", sentences.MEAN),
    *under(MONTE_CARLO, "-episodes", sentences.SUM, {"MCPG": EPISODES}),
    Row("car-integrated", "",
        "with the actions integrated out of G, BAC is ahead of the paper's BAC after 100 updates",
        GAP, differences, pair("after 100", "BAC, actions integrated out", PAPER)),
    Row("car-fitted", "", "with noise on the rewards, BAC is ahead of Monte Carlo with fitted "
        "values after 100 updates", GAP, differences, pair("after 100", OURS, "MC, fitted values")),
    Row("car-hundred", "", "with noise on the rewards, BAC needs fewer than 70 steps after 100 "
        "updates of 5 episodes",
        "steps to the goal", means, {"M = 5": (("after 100", OURS),)}, (5,), below=70),
)  # fmt: skip


def _value(samples: Samples, what: str, name: str, M: int) -> np.ndarray:
    if what != "after 100":
        return samples[what, name, M]
    return samples["curve", name, M][:, int(np.argmax(samples["updates", name, M] >= 100))]


judge = functools.partial(claims.judge, CLAIMS, value=_value)
judge_long = functools.partial(claims.judge, under(FORTY, "-long", sentences.LONG))


def _figure(curves, learned: Learned, M: int):
    """Learning curves, and the policy and values that one method learned with M episodes."""
    figure, axes = plots.sheet(2, 3, width=12, height=7)
    draw_panels(axes[:, :2].flat, curves, xlabel="updates", ylabel="steps to goal", ylim=(40, 175))
    plots.legend_below(figure, axes[0, 0], 3)
    _maps(figure, axes[0, 2], axes[1, 2], learned.policy, M)
    return figure


def _maps(figure, top, bottom, policy, M: int) -> None:
    """Draw the most probable action and the critic's value over position and velocity."""
    x, v = (np.linspace(low, high, 101) for low, high in zip(LOW, HIGH, strict=True))
    states = jnp.stack(jnp.meshgrid(x, v), -1)
    with jax.enable_x64(True):
        logits = jax.vmap(jax.vmap(lambda s: policy(s).logits))(states)
        values = value_map(policy, states)
    action = np.array([1, -1, 0])[np.argmax(np.asarray(logits), -1)]
    shown = top.pcolormesh(x, v, action, cmap="RdBu", vmin=-1.4, vmax=1.4, rasterized=True)
    bar = figure.colorbar(shown, ax=top, ticks=[-1, 0, 1])
    bar.ax.set_yticklabels(["reverse", "zero", "forward"])
    top.set(title=f"most probable action, M = {M}", xlabel="position", ylabel="velocity")
    shown = bottom.pcolormesh(x, v, np.asarray(values), cmap="viridis", rasterized=True)
    figure.colorbar(shown, ax=bottom)
    bottom.set(title="value (critic's mean)", xlabel="position", ylabel="velocity")
    for axis in (top, bottom):
        axis.grid(False)


def value_map(policy, states):
    """Posterior mean of V over states, from 40 episodes of the policy."""
    sample = estimators.draw(ENVIRONMENT, policy, fast_key(0), 40, jnp.float32, scores=False)
    steps = estimators.steps(sample, ENVIRONMENT.unit)
    Psi, _ = actor_critic.state_features(steps, WIDE, 0)
    at = conditioning.regress(Psi, steps.y[:, None], 10.0, steps.tails)
    flat = ENVIRONMENT.unit(states.reshape(-1, 2)).astype(Psi.dtype)
    features = kernels.features(WIDE, flat)
    assert features is not None
    return (features @ at.weights[:, 0]).reshape(states.shape[:-1])
