"""The bandit of Section 6.1 with n actions at once: gradients in the space of parameters.

theta ~ N(0, I) is the action, and the return is the sum of the paper's two bandits in n dimensions,
linear and quadratic, with noise: R = sum_i theta_i / sqrt(n) + |theta|^2 / n + e. The gradient of
its expectation at zero is 1 / sqrt(n) in every component. Every estimator sees M = 4 n returns. The
draws are antithetic pairs, except that Monte Carlo draws independently and finite differences try
both directions of every axis twice.

Then the linear part is multiplied by strengths from zero to one, and the stated probability of
going uphill is compared with how often it happens: along the mean, and along the mean of other
pairs, which is a direction chosen without the data. Last, searches climb bowls of these strengths,
and after each round of five episodes what `search.smoothed.certainty` states at the mean before is
compared with the slope along the gradient found.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from uphill import MARGIN, apart

from bayespg._support.random import normal
from bayespg._support.statistics import f_quantile, student_probability
from bayespg.posterior import direction_statistics, region_statistics, uphill
from bayespg.reproduce import claims, parts
from bayespg.reproduce.claims import Row, ratios, shares
from bayespg.reproduce.report import (
    Curve,
    Experiment,
    Progress,
    Report,
    Settings,
    cell,
    draw_panels,
)
from bayespg.reproduce.samples import Key, Samples
from bayespg.runs import plots
from bayespg.search import MEMORY, Search, gradient_posterior
from bayespg.search.smoothed import certainty

SIZES, QUICK = (1, 4, 16, 64), (1, 4)
NOISE = 0.3
"""Standard deviation of e."""
PER_PARAMETER = 4
STRENGTHS, RETURNS = (0.0, 0.1, 0.3, 1.0), (4, 16, 64)
"""Of the linear part, and the numbers of returns from which the probability is stated."""
WAYS, SEARCH = ("along the mean", "along the mean of others"), "after rounds of a search"
ROUNDS, AT_A_TIME, PER_SEARCH = 12, 5, 25
"""Rounds of a search, episodes of a round, and runs for which there is one."""
OURS, MC, PGPE, FD = "Bayes-Hermite", "MC", "PGPE", "finite differences"
LOOKS = {OURS: "ours", MC: "MC", PGPE: "MC, best baseline", FD: "compatible"}


def _return(theta, key, strength=1.0):
    n = theta.shape[-1]
    noise = NOISE * normal(key, theta.shape[:-1], theta.dtype)
    return strength * theta.sum(-1) / n**0.5 + (theta**2).sum(-1) / n + noise


def _posterior(key, n: int, M: int, strength=1.0):
    """Of M returns of antithetic pairs, with the pairs and the returns."""
    key_pairs, key_noise = key
    e = normal(key_pairs, (M // 2, n), jnp.zeros(()).dtype)
    pairs = jnp.concatenate([e, -e])
    y = _return(pairs, key_noise, strength)
    return gradient_posterior(pairs, y, mean=jnp.zeros(n), scale=1.0), pairs, y


def _run(key, n: int):
    """Relative squared errors of the estimators, and the statistics that say whether our region
    contains the exact gradient."""
    M, truth = PER_PARAMETER * n, jnp.full(n, n**-0.5)
    keys = jax.random.split(key, 5)
    ours, pairs, y = _posterior(keys[:2], n, M)
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


def _measured(settings: Settings, n: int) -> parts.Part:
    """Squared errors by the estimator's name, and how many regions contain the gradient."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), n), settings.runs)
    errors, (distance, spread, rank, freedom) = jax.tree.map(
        np.asarray, jax.jit(lambda keys: jax.lax.map(lambda key: _run(key, n), keys))(keys)
    )
    held = distance <= spread * f_quantile(0.95, rank, freedom)
    return errors | {"held": np.array([held.sum(), held.size])}


def _followed(key, n: int, M: int, strength):
    """The probability that is stated along the mean and the statistics of the slope along the mean
    of others, each with the exact slope."""
    keys = jax.random.split(key, 4)
    ours, others = (_posterior(of, n, M, strength)[0] for of in (keys[:2], keys[2:]))
    truth = jnp.full(n, strength * n**-0.5)
    return (
        (uphill(ours), truth @ ours.mean),
        (direction_statistics(ours, others.mean), truth @ others.mean),
    )


def _stated(settings: Settings, n: int, M: int) -> parts.Part:
    """For each strength and way what is stated, what is observed, and the standard error of their
    difference."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), 1000 + n), M)
    run = jax.jit(lambda keys, k: jax.lax.map(lambda key: _followed(key, n, M, k), keys))
    rows = []
    for i, k in enumerate(STRENGTHS):
        keys = jax.random.split(jax.random.fold_in(key, i), 2 * settings.runs)
        (said, slope), (along, other) = jax.tree.map(np.asarray, run(keys, k))
        centre, spread, freedom = along
        known = student_probability(centre / np.where(spread > 0, spread, 1.0), freedom)
        for stated, went in ((said, slope), (known, other)):
            counted = 0.5 * (1 + np.sign(went))
            error = np.std(stated - counted) / np.sqrt(counted.size)
            rows.append([stated.mean(), counted.mean(), error])
    return {"rows": np.array(rows).reshape(len(STRENGTHS), len(WAYS), 3)}


def _searched(settings: Settings, n: int) -> parts.Part:
    """The same for searches on -strength |theta - c|^2 + e with |c| = 1.5, for each strength. The
    rounds of a search share episodes, so the standard error is that of means over rounds."""
    centre, rows = np.full(n, 1.5 * n**-0.5), []
    for k in STRENGTHS:
        found = []
        for seed in range(max(settings.runs // PER_SEARCH, 2)):
            rng, search = np.random.default_rng([settings.seed, n, seed]), Search(n, seed=seed)
            for _ in range(ROUNDS):
                mean, scale, asked = search.mean.copy(), search.scale, search.ask(AT_A_TIME)
                away = np.sum((asked - centre) ** 2, -1)
                search.tell(asked, -k * away + NOISE * rng.normal(size=len(asked)))
                X, y = search.parameters[-MEMORY:], search.returns[-MEMORY:]
                along = gradient_posterior(X, y, mean=mean, scale=scale).mean
                slope = k * (centre - mean) @ along
                _, stated = certainty(X, y, mean=mean, scale=scale)
                found.append([stated, 0.5 * (1 + np.sign(slope))])
        said, counted = np.array(found).reshape(-1, ROUNDS, 2).mean(1).T
        error = np.std(said - counted) / np.sqrt(said.size)
        rows.append([said.mean(), counted.mean(), error])
    return {"rows": np.array(rows)}


def run(settings: Settings, progress: Progress) -> Report:
    sizes, Ms = (QUICK, RETURNS[:1]) if settings.quick else (SIZES, RETURNS)
    each: dict[str, parts.Work] = {
        f"n = {n}": functools.partial(_measured, settings, n) for n in sizes
    }
    said = {f"n = {n}, M = {M}": (n, M) for n in sizes for M in Ms}
    each |= {where: functools.partial(_stated, settings, *at) for where, at in said.items()}
    each |= {f"n = {n}, {SEARCH}": functools.partial(_searched, settings, n) for n in sizes}
    found = {}
    for done, (where, part) in enumerate(parts.done(each, settings.parts), 1):
        progress(done / len(each), where)
        found[where] = part
    errors = {(name, n): found[f"n = {n}"][name] for n in sizes for name in LOOKS}
    held = {n: found[f"n = {n}"]["held"] for n in sizes}
    curves = [
        Curve.through(
            "squared error over squared gradient",
            name,
            look,
            sizes,
            [errors[name, n] for n in sizes],
        )
        for name, look in LOOKS.items()
    ]
    rows = [[name, *(cell(errors[name, n], "{:.3f} ± {:.3f}") for n in sizes)] for name in LOOKS]
    rows.append(
        ["95 % regions that contain the gradient", *(f"{k / m:.3f}" for k, m in held.values())]
    )
    kept: dict[Key, np.ndarray] = {("square", *cell): of for cell, of in errors.items()}
    kept |= {("held", OURS, n): of for n, of in held.items()}
    for i, k in enumerate(STRENGTHS):
        for n in sizes:
            for j, way in enumerate(WAYS):
                for M in Ms:
                    numbers = found[f"n = {n}, M = {M}"]["rows"][i, j]
                    kept[f"strength {k:g}, M = {M}", way, n] = numbers
            kept[f"strength {k:g}", SEARCH, n] = found[f"n = {n}, {SEARCH}"]["rows"][i]
    for way in (*WAYS, SEARCH):
        for where in dict.fromkeys(where for where, name, _ in kept if name == way):
            cells = (kept[where, way, n] for n in sizes)
            shown = ("{:.2f} / {:.2f}".format(*cell) for cell in cells)
            rows.append([f"stated / observed {way}, {where}", *shown])
    return Report(
        columns=["relative squared error", *(f"n = {n}" for n in sizes)],
        rows=rows,
        curves=curves,
        samples=Samples(kept),
        figure=lambda: _figure(curves),
        notes=[
            f"M = {PER_PARAMETER} n returns, noise of standard deviation {NOISE}; ± is one "
            "standard error over runs. Length scale, amplitude and noise are chosen by evidence.",
            "Probabilities are means of twice as many runs with M returns, where the linear part "
            "of the return is multiplied by the strength; at zero a step counts as half uphill. "
            f"Searches: {ROUNDS} rounds on a bowl of that strength, one for {PER_SEARCH} runs.",
        ],
    )  # fmt: skip


def _held(samples: Samples):
    of = {f"n = {n}": samples["held", OURS, n] for n in samples.sizes("held")}
    return {where: (int(k), int(runs)) for where, (k, runs) in of.items()}


def _stated_of(way: str, samples: Samples):
    return {f"n = {n}, {at}": of for (at, name, n), of in samples.items() if name == way}


SQUARES = {rival: {"n = {M}": (("square", OURS), ("square", rival))} for rival in (MC, PGPE)}
CLAIMS = (
    Row("search-monte-carlo", "",
        "quadrature in the space of parameters is more accurate than Monte Carlo",
        "ratio of mean squared errors, MC to quadrature", ratios, SQUARES[MC], above=1),
    Row("search-pgpe", "", "quadrature in the space of parameters is more accurate than PGPE with "
        "antithetic pairs", "ratio of mean squared errors, PGPE to quadrature", ratios,
        SQUARES[PGPE], above=1),
    Row("search-coverage", "", "with the kernel chosen by evidence, the model's 95 % regions "
        "contain the gradient in at least 80 % of runs",
        "share of runs whose region contains it", shares, _held, above=0.8),
    *(
        Row(id, "", f"in the space of parameters, the probability of going uphill {way} is right "
            "or cautious", "stated probability minus observed frequency", apart,
            functools.partial(_stated_of, way),
            above=-1.01, below=MARGIN)
        for id, way in (
            ("search-uphill", WAYS[0]), ("search-direction", WAYS[1]), ("search-sure", SEARCH)
        )
    ),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS)


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
