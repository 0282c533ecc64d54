"""Figure 2: the comparison of Figure 1 with Gaussian noise of standard deviation 1 on every reward.

The variance of the measurement noise is then known: T sigma_r^2 u_j^2 for component j of Model 1,
T sigma_r^2 for Model 2. The paper's kernel of scale 1 implies a prior standard deviation of sqrt(3)
for a gradient of length 206, and with that much noise it shrinks the estimates almost to zero. A
kernel scaled to the returns (10^4 here) gives what the paper reports, and so does leaving Sigma =
1e-3 I in place. Choosing scale and noise by evidence needs neither number.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bayespg.learning.estimators import Estimator, Model1, Model2, Reinforce, exact
from bayespg.reproduce import claims, sentences
from bayespg.reproduce.claims import Effect, Pairs, Row, ratios
from bayespg.reproduce.gradients import lqr_setting, on_tasks, two_panels
from bayespg.reproduce.lqr_gradient import SPARSE, sizes
from bayespg.reproduce.report import Curve, Progress, Report, Settings
from bayespg.reproduce.samples import Samples

NOISES = (0.0, 0.1, 1.0)
"""The paper's standard deviations, and none. Figure 2 shows 1."""
FLAT = float("inf")


def estimators(reward_noise: float) -> dict[str, Estimator]:
    known = {"fisher": exact, "reward_noise": reward_noise, "sparsify": SPARSE}
    same = {"fisher": exact, "sparsify": SPARSE}
    shown: dict[str, Estimator] = {
        "MC": Reinforce(),
        "Model 1, Σ = 10⁻³ I": Model1(**same),
        "Model 2, Σ = 10⁻³ I": Model2(**same),
        "Model 1, scale 1": Model1(**known),
        "Model 2, scale 1": Model2(**known),
    }
    if reward_noise == 0.1:
        return shown
    return shown | {
        "MC, best baseline": Reinforce("best"),
        "Model 1, scale 10⁴": Model1(scale=1e4, **known),
        "Model 2, scale 10⁴": Model2(scale=1e4, **known),
        "Model 2 + baseline, evidence": Model2(noise=None, baseline=FLAT),
    }


LOOKS = {
    "MC": "MC",
    "MC, best baseline": "MC, best baseline",
    "Model 1, Σ = 10⁻³ I": "BAC as printed",
    "Model 2, Σ = 10⁻³ I": "eNAC",
    "Model 1, scale 1": "BQ variant",
    "Model 2, scale 1": "GPOMDP",
    "Model 1, scale 10⁴": "BQ",
    "Model 2, scale 10⁴": "BQ natural",
    "Model 2 + baseline, evidence": "ours",
}
SCALED = ("Model 1, scale 10⁴", "Model 2, scale 10⁴")
PRINTED = ("Model 1, scale 1", "Model 2, scale 1")
UNCHANGED = ("Model 1, Σ = 10⁻³ I", "Model 2, Σ = 10⁻³ I")


def run(settings: Settings, progress: Progress) -> Report:
    Ms = sizes(settings)
    tasks = {f"σ_r = {noise:g}": (*lqr_setting(noise), estimators(noise)) for noise in NOISES}
    measured = on_tasks(tasks, Ms, settings, progress)
    quiet, _, noisy = measured.values()
    curves = quiet.curves(LOOKS, Ms) + [
        dataclasses.replace(c, label=f"{c.label}, noisy rewards") for c in noisy.curves(LOOKS, Ms)
    ]
    rows = [
        [name, task.removeprefix("σ_r = "), *cells]
        for name in LOOKS
        for task, at in measured.items()
        if (name, Ms[0]) in at.estimates
        for _, *cells in at.rows([name], Ms, "{:,.0f} ± {:,.0f}")
    ]
    kept = [at.cells(task) for task, at in measured.items()]
    return Report(
        columns=["mean squared error", "σ_r", *(f"M = {M}" for M in Ms)],
        rows=rows,
        curves=curves,
        samples=Samples({key: values for cells in kept for key, values in cells.items()}),
        figure=lambda: _figure(curves),
        notes=["± is one standard error over runs."],
    )


def _rises(names: Sequence[str], noise: str = "1", of: str = "square"):
    return {
        f"{name}, M = {{M}}": ((f"σ_r = 0: {of}", name), (f"σ_r = {noise}: {of}", name))
        for name in names
    }


def _smaller(names: Sequence[str]):
    noisy = "σ_r = 1: square"
    return {f"{name}, M = {{M}}": ((noisy, name), (noisy, "MC")) for name in names}


@functools.cache
def _of_noise() -> float:
    """T tr G: noise of variance sigma_r^2 on every reward adds T sigma_r^2 tr G / M to the mean
    squared error of Monte Carlo, because it is independent of the scores."""
    environment, policy = lqr_setting()
    with jax.enable_x64(True):
        return environment.horizon * float(jnp.trace(environment.fisher(policy)))


def value(samples: Samples, what: str, name: str, M: int) -> np.ndarray:
    """Also the squared error of Monte Carlo with the error that noise adds, which is known."""
    if not what.startswith("exact: "):
        return samples[what, name, M]
    quiet = samples["σ_r = 0: square", name, M].astype(float)
    return quiet + float(what.removeprefix("exact: ")) ** 2 * _of_noise() / M


def _per_cent(pairs: Pairs) -> tuple[Effect, ...]:
    """By how much the second is larger, in %."""
    return tuple(
        dataclasses.replace(e, **{k: 100 * (getattr(e, k) - 1) for k in ("value", "low", "high")})
        for e in ratios(pairs)
    )


SLIGHT, LATER = "noise-slight", range(20, 1_000)
RISE = "ratio of mean squared errors, noisy rewards to exact ones"
ORDER = "ratio of mean squared errors, MC to the model"
AS_PRINTED, SAME = sentences.NOISE
CLAIMS = (
    *(
        Row(f"noise{id}-as-printed", SLIGHT, f"reward noise of σ_r = {noise} raises the error of "
            "both models only slightly (M from 20)", RISE, ratios, _rises(PRINTED, noise), LATER,
            below=1.5, reading=AS_PRINTED)
        for id, noise in (("", "1"), ("-tenth", "0.1"))
    ),
    *(
        Row(f"noise{id}-unchanged{mark}", SLIGHT, f"reward noise of σ_r = {noise} raises the "
            f"{error} error of both models only slightly (every M)",
            f"ratio of mean {error} errors, noisy rewards to exact ones", ratios,
            _rises(UNCHANGED, noise, of), below=1.5, reading=SAME)
        for id, noise in (("", "1"), ("-tenth", "0.1"))
        for mark, error, of in (("", "squared", "square"), ("-angle", "angular", "angle"))
    ),
    Row("noise-monte-carlo", SLIGHT, "reward noise raises the error of Monte Carlo slightly (every "
        "M; the rise is T σ_r² tr G / M, and only the error without noise is sampled)",
        "rise of the mean squared error in %", _per_cent,
        {f"σ_r = {noise}, M = {{M}}": (("σ_r = 0: square", "MC"), (f"exact: {noise}", "MC"))
         for noise in ("0.1", "1")}, above=0, below=50),
    *(
        Row(f"noise-order-{id}", "noise-similar",
            "with noise both models have smaller squared errors than Monte Carlo at every M",
            ORDER, ratios, _smaller(names), above=1, reading=reading)
        for id, names, reading in (("as-printed", PRINTED, AS_PRINTED),
                                   ("unchanged", UNCHANGED, SAME))
    ),
    Row("noise-scaled", "", "with a kernel scaled to the returns, reward noise raises the error by "
        "less than half, if at all (M from 20)",
        RISE, ratios, _rises(SCALED), LATER, below=1.5),
    Row("noise-order", "", "with noise both models (scaled kernel) have smaller errors than Monte "
        "Carlo (M from 20)",
        ORDER, ratios, _smaller(SCALED), LATER, above=1),
    Row("noise-evidence", "", "with scale and noise chosen by evidence, without prior knowledge, "
        "the error rises only slightly (M from 20)",
        RISE, ratios, _rises(["Model 2 + baseline, evidence"]), LATER, below=1.5),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS, value=value)


def _figure(curves: list[Curve]):
    """Dotted lines for noisy rewards. Matplotlib omits labels that start with _ from the legend."""
    hidden = [
        dataclasses.replace(c, label=f"_{c.label}") if "noisy" in c.label else c for c in curves
    ]
    figure = two_panels(hidden, "M")
    for axes in figure.axes:
        axes.set_title(f"{axes.get_title(loc='left')}; dotted: noisy rewards", loc="left")
        for line in axes.get_lines():
            if str(line.get_label()).startswith("_"):
                line.set(alpha=0.6, linestyle=":")
    return figure
