"""Sections 4.4 and 6.2: what sparsification gains and costs, and what the natural gradient costs.

The experiment measures the accuracy on LQR at the policy of Figure 1 for thresholds tau from 1e-4
to 1; the time of Algorithm 1 as printed (an M x M system), in its sparse form, and in the exact
weight-space form that this library uses, on the same scores; and the time of whole updates of BPG
and BPNG. Times are measured on a CPU, as in the paper: a dictionary grows path by path, which does
not suit a GPU.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bayespg import quadrature
from bayespg._support.random import fast_key
from bayespg.algebra.sparsification import Sparsify
from bayespg.environments import LQR
from bayespg.fisher import exact as exact_fisher
from bayespg.learning.estimators import Estimator, Model1, Model2, draw, exact
from bayespg.learning.training import start, step
from bayespg.policies import BoundedLinearGaussian
from bayespg.reproduce import claims
from bayespg.reproduce.claims import Claim, Row, ratios, times
from bayespg.reproduce.gradients import errors, lqr_setting
from bayespg.reproduce.learning import Method
from bayespg.reproduce.lqr_learning import METHODS
from bayespg.reproduce.parts import between
from bayespg.reproduce.report import Curve, Progress, Report, Settings, cell
from bayespg.reproduce.samples import Samples
from bayespg.runs import plots

TAUS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
CAPACITY = 8
"""Enough for the two kernels, which have rank 2 and 6."""
MODELS = {"Model 1": (Model1, quadrature.model1), "Model 2": (Model2, quadrature.model2)}
REPEATS, RUNS, PATHS = 40, 2000, 20
"""The number of timings of each program; the runs side by side and the paths of a timed update."""


def run(settings: Settings, progress: Progress) -> Report:
    M = 20 if settings.quick else 100
    many = 300 if settings.quick else 2000
    sparse = {f", τ = {tau:g}": Sparsify(tau, CAPACITY) for tau in TAUS}
    estimators: dict[str, Estimator] = {
        f"{name}{form}": estimator(fisher=exact, sparsify=sparsify)
        for name, (estimator, _) in MODELS.items()
        for form, sparsify in {"": None, **sparse}.items()
    }
    measured = errors(*lqr_setting(), estimators, (M,), settings, between(progress, 0, 0.5))
    progress(0.5, "times")
    forms = {", M x M system": {"form": "dual"}, "": {"form": "weight"}}
    forms |= {form: {"sparsify": sparsify} for form, sparsify in sparse.items()}
    with jax.default_device(jax.devices("cpu")[0]):
        programs = {
            label: functools.partial(jax.jit(program), *arrays)
            for label, (program, arrays) in gradients(many, settings.seed, forms).items()
        }
        taken = seconds(programs | updates(("BPG", "BPNG"), settings.seed))
    rows = [
        [name, cell(measured.square(name, M), "{:,.0f} ± {:,.0f}") if name in estimators else "",
         f"{1e3 * np.median(taken[name]):.3g}"]
        for name in dict.fromkeys((*estimators, *taken))
    ]  # fmt: skip
    curves = [
        Curve.through(
            "error", name, look, TAUS,
            [measured.square(name + form, M) / measured.square(name, M).mean() for form in sparse],
        )
        for name, look in (("Model 1", "BQ"), ("Model 2", "BQ natural"))
    ]  # fmt: skip
    return Report(
        columns=["", f"mean squared error, M = {M}", f"milliseconds, M = {many:,}"],
        rows=rows,
        curves=curves,
        samples=Samples(
            measured.cells() | {("seconds", name, many): times for name, times in taken.items()}
        ),
        figure=lambda: _figure(curves, taken, M, many),
        notes=[
            f"± is one standard error; times are medians of {REPEATS} timings on the CPU. The M x "
            "M system is Algorithm 1 as printed; rows without a threshold use the weight-space "
            "form, which is also exact.",
            f"The time of an update is that of {RUNS} runs side by side with {PATHS} paths each.",
        ],
    )


def gradients(
    paths: int,
    seed: int,
    forms: Mapping[str, Mapping[str, Any]],
    asked: Callable[[Any], Any] = lambda posterior: posterior.mean,
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Algorithm 1 in each form, by the name of the model and of the form, as functions of the same
    scores, returns and Fisher matrix, which come with them."""
    environment, policy = lqr_setting()
    sample = draw(environment, policy, fast_key(seed), paths)
    arrays = sample.scores, sample.returns, exact_fisher(environment, policy)
    return {
        f"{name}{form}": (lambda U, R, G, m=model, o=options: asked(m(U, R, G, **o)), arrays)
        for name, (_, model) in MODELS.items()
        for form, options in forms.items()
    }


def seconds(
    programs: Mapping[str, Callable[[], Any]], repeats: int | None = None
) -> dict[str, np.ndarray]:
    """Compile each program, then time all of them in turn, so that a disturbance affects all alike.
    A timing is the best of three calls, because the first call finds cold caches."""
    for program in programs.values():
        jax.block_until_ready(program())
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats or REPEATS):
        for name, program in programs.items():
            taken[name].append(min(_seconds(program) for _ in range(3)))
    return {name: np.array(times) for name, times in taken.items()}


def _seconds(program: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    jax.block_until_ready(program())
    return time.perf_counter() - begun


def updates(names: Sequence[str], seed: int) -> dict[str, Callable[[], Any]]:
    """An update of each of these methods, for `RUNS` runs side by side."""
    policies = BoundedLinearGaussian(jax.random.normal(fast_key(seed), (RUNS, 2)))
    keys = jax.random.split(fast_key(seed), RUNS)

    def program(method: Method) -> Callable[[], Any]:
        estimator, update = method.estimator, method.update(PATHS)
        states = jax.vmap(lambda p, k: start(LQR(), p, estimator, update, k))(policies, keys)
        one = jax.jit(jax.vmap(lambda s: step(LQR(), estimator, update, s, PATHS, 0.0)[0]))
        return functools.partial(one, states)

    return {f"update of {name}": program(METHODS[name]) for name in names}


def judge(samples: Samples) -> list[Claim]:
    sparse = {f"{name}, τ = {tau:g}": (name, tau) for name in MODELS for tau in TAUS}
    rows = (
        Row("sparse-faster", "sparse-faster",
            "sparsification makes Algorithm 1 significantly faster for many paths (M = {M})",
            "ratio of times, M x M system to sparse", times,
            {label: (("seconds", label), ("seconds", f"{name}, M x M system"))
             for label, (name, _) in sparse.items()}, above=2),
        Row("sparse-accurate", "",
            "up to τ = 0.01 sparsification costs almost no accuracy (M = {M})",
            "ratio of mean squared errors, sparse to full", ratios,
            {label: (("square", name), ("square", label))
             for label, (name, tau) in sparse.items() if tau <= 0.01}, below=1.1),
        Row("natural-cost", "natural-cost", "the natural gradient comes at little extra cost",
            "ratio of times per update, BPNG to BPG", times,
            {"": (("seconds", "update of BPG"), ("seconds", "update of BPNG"))}, below=1.1),
        Row("weight-faster", "",
            "in weight space Algorithm 1 is exact and at least as fast as with sparsification",
            "ratio of times, sparse (τ = 0.0001) to weight space", times,
            {name: (("seconds", name), ("seconds", f"{name}, τ = 0.0001")) for name in MODELS},
            above=1),
    )  # fmt: skip
    return claims.judge(rows, samples)


def _figure(curves: list[Curve], taken: dict[str, np.ndarray], M: int, many: int):
    figure, axes = plots.sheet(1, 2, width=9, height=3.8)
    for c in curves:
        plots.curve(axes[0, 0], c.x, c.mean, c.standard_error, label=c.label, look=c.look)
    axes[0, 0].set(
        xscale="log", yscale="log", xlabel="threshold τ", title=f"error, sparse to full, M = {M}"
    )
    for c in curves:
        sparse = [1e3 * np.median(taken[f"{c.label}, τ = {tau:g}"]) for tau in TAUS]
        plots.curve(axes[0, 1], c.x, sparse, label=c.label, look=c.look)
        whole = 1e3 * float(np.median(taken[f"{c.label}, M x M system"]))
        line = axes[0, 1].get_lines()[-1]
        axes[0, 1].axhline(whole, color=line.get_color(), lw=1, ls=":")
    axes[0, 1].set(
        xscale="log", yscale="log", xlabel="threshold τ",
        title=f"milliseconds, M = {many:,}; dotted: M x M system",
    )  # fmt: skip
    plots.legend_below(figure, axes[0, 0], 2)
    return figure
