"""The bandit of Section 6.1 with n actions at once: gradients in the space of parameters.

theta ~ N(0, I) is the action, and the return is the sum of the paper's two bandits in n dimensions,
linear and quadratic, with noise: R = sum_i theta_i / sqrt(n) + |theta|^2 / n + e. The gradient of
its expectation at zero is 1 / sqrt(n) in every component. Every estimator sees M = 4 n returns. The
draws are antithetic pairs, except that Monte Carlo draws independently and finite differences try
both directions of every axis twice.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support.random import normal
from bayespg._support.statistics import f_quantile
from bayespg.posterior import region_statistics
from bayespg.reproduce.claims import Claim, Effect, ratios, shares
from bayespg.reproduce.report import (
    Curve,
    Experiment,
    Progress,
    Report,
    Settings,
    draw_panels,
    summarise,
)
from bayespg.reproduce.samples import Key, Samples
from bayespg.runs import plots
from bayespg.search import gradient_posterior

SIZES, QUICK = (1, 4, 16, 64), (1, 4)
NOISE = 0.3
"""Standard deviation of e."""
PER_PARAMETER = 4
OURS, MC, PGPE, FD = "Bayes-Hermite", "MC", "PGPE", "finite differences"
LOOKS = {OURS: "ours", MC: "MC", PGPE: "MC, best baseline", FD: "compatible"}


def _return(theta, key):
    n = theta.shape[-1]
    noise = NOISE * normal(key, theta.shape[:-1], theta.dtype)
    return theta.sum(-1) / n**0.5 + (theta**2).sum(-1) / n + noise


def _run(key, n: int):
    """Relative squared errors of the estimators, and the statistics that say whether our region
    contains the exact gradient."""
    M, truth = PER_PARAMETER * n, jnp.full(n, n**-0.5)
    keys = jax.random.split(key, 5)
    e = normal(keys[0], (M // 2, n), truth.dtype)
    pairs = jnp.concatenate([e, -e])
    y = _return(pairs, keys[1])
    ours = gradient_posterior(pairs, y, mean=jnp.zeros(n), scale=1.0)
    free = normal(keys[2], (M, n), truth.dtype)
    axes = jnp.concatenate([jnp.eye(n), -jnp.eye(n)])
    twice = _return(jnp.concatenate([axes, axes]), keys[3]).reshape(2, 2, n).mean(0)
    found = {
        OURS: ours.mean,
        MC: (_return(free, keys[4])[:, None] * free).mean(0),
        PGPE: (y[:, None] * pairs).mean(0),
        FD: (twice[0] - twice[1]) / 2,
    }
    errors = {name: jnp.sum((g - truth) ** 2) for name, g in found.items()}
    return errors, region_statistics(ours, truth, False)


def run(settings: Settings, progress: Progress) -> Report:
    sizes = QUICK if settings.quick else SIZES
    errors, held = {}, {}
    for k, n in enumerate(sizes):
        progress(k / len(sizes), f"n = {n}")
        keys = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), n), settings.runs)
        of, (distance, spread, rank, freedom) = jax.jit(
            lambda keys, n=n: jax.lax.map(lambda key: _run(key, n), keys)
        )(keys)
        for name, samples in of.items():
            errors[name, n] = np.asarray(samples)
        limit = spread * f_quantile(0.95, np.asarray(rank), np.asarray(freedom))
        held[f"n = {n}"] = (int(np.sum(np.asarray(distance) <= limit)), settings.runs)
    progress(1.0, "done")
    curves = [
        Curve("squared error over squared gradient", name, look, list(sizes),
              *(list(v) for v in zip(*(summarise(errors[name, n]) for n in sizes), strict=True)))
        for name, look in LOOKS.items()
    ]  # fmt: skip
    rows = [
        [name, *("{:.3f} ± {:.3f}".format(*summarise(errors[name, n])) for n in sizes)]
        for name in LOOKS
    ]
    rows.append(
        ["95 % regions that contain the gradient", *(f"{k / m:.3f}" for k, m in held.values())]
    )

    kept: dict[Key, np.ndarray] = {("square", *cell): of for cell, of in errors.items()}
    kept |= {("held", OURS, n): np.array(held[f"n = {n}"]) for n in sizes}
    return Report(
        columns=["relative squared error", *(f"n = {n}" for n in sizes)],
        rows=rows,
        curves=curves,
        samples=Samples(kept),
        figure=lambda: _figure(curves),
        notes=[
            f"M = {PER_PARAMETER} n returns, noise of standard deviation {NOISE}; ± is one "
            "standard error over runs. Length scale, amplitude and noise are chosen by evidence."
        ],
    )  # fmt: skip


def judge(samples: Samples) -> list[Claim]:
    square, sizes = samples.of("square"), samples.sizes()
    counts = {f"n = {n}": samples["held", OURS, n] for n in sizes}
    held = {where: (int(k), int(runs)) for where, (k, runs) in counts.items()}

    def against(rival: str) -> tuple[Effect, ...]:
        return ratios({f"n = {n}": (square(OURS, n), square(rival, n)) for n in sizes})

    return [
        Claim(
            "search-monte-carlo", "",
            "quadrature in the space of parameters is more accurate than Monte Carlo",
            "ratio of mean squared errors, MC to quadrature", against(MC), above=1,
        ),
        Claim(
            "search-pgpe", "",
            "quadrature in the space of parameters is more accurate than PGPE with antithetic "
            "pairs",
            "ratio of mean squared errors, PGPE to quadrature", against(PGPE), above=1,
        ),
        Claim(
            "search-coverage", "",
            "with the kernel chosen by evidence, the model's 95 % regions contain the gradient "
            "in at least 80 % of runs",
            "share of runs whose region contains it", shares(held), above=0.8,
        ),

    ]  # fmt: skip


def _figure(curves: list[Curve]):
    figure, axes = plots.sheet(1, 1, width=6, height=4.4)
    draw_panels(axes[0], curves, xscale="log", yscale="log", xlabel="parameters n")
    plots.legend_below(figure, axes[0, 0], 2)
    return figure


EXPERIMENT = Experiment(
    name="search",
    item="beyond the paper",
    title="Gradients in the space of parameters",
    runs=200,
    quick_runs=40,
    paper_runs=1_000,
    run=run,
    judge=judge,
    minutes=5,
)
