"""Figures 3 to 5 and Table 3: learning LQR.

The settings are Table 3's learning rates in kappa space, kappa ~ N(0, I) at the start of each run,
100 updates, Sigma = 1e-3 I and Model 1. Costs are shown as in the paper: lower is better, and
0.3067 is optimal.

- Figure 3 compares BPG, BPNG and MCPG with exact G; Figure 4 estimates G by Monte Carlo, by a
  maximum-likelihood model, or with the actions integrated out.
- Figure 5 scales steps by the posterior covariance (BPG-var). The paper says only that the initial
  policies are random, so its methods are also run from kappa uniform on (-1, 1), and what the paper
  says about Figures 3 and 5 is judged for both.
- The paper does not print Sigma either: `lqr-readings` and `lqr-fisher-readings` run Figures 3 to 5
  with 0.1 I, 0.3 I and I, and Figure 4 with G from other paths and from a model of the wrong form.
- Table 3 gives BPG larger rates than MCPG, so Figure 3 compares methods and rates at once.
  `lqr-rates` runs every method with BPG's rates of Table 3 times each factor of a grid. Methods are
  compared at equal rates, and each at its own best; half of the runs choose it, the other half are
  compared.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bayespg import fisher as fishers
from bayespg._support.random import fast_key
from bayespg.environments import LQR
from bayespg.learning import estimators as given
from bayespg.learning import updates
from bayespg.learning.batch import Batch
from bayespg.learning.estimators import Model1, Model2, MonteCarlo, Reinforce
from bayespg.learning.training import Result
from bayespg.policies import BoundedLinearGaussian
from bayespg.reproduce import claims, learning, parts, sentences
from bayespg.reproduce.claims import ALIKE, Cells, Claim, Pairs, Row, differences, pair, ratios
from bayespg.reproduce.learning import Learned, Method, Task
from bayespg.reproduce.parts import between
from bayespg.reproduce.report import Curve, Progress, Report, Settings, cell, summarise
from bayespg.reproduce.samples import Key, Samples

SIZES = (5, 10, 20, 40)
LARGER = SIZES[1:]
UPDATES = 100
OPTIMUM = 0.3067
RATES = {
    "MCPG": {5: (0.01, 0.05), 10: (0.05, 0.05), 20: (0.05, 0.10), 40: (0.05, 0.10)},
    "BPG": {5: (0.01, 0.05), 10: (0.07, 0.10), 20: (0.15, 0.15), 40: (0.10, 0.30)},
    "BPNG": {5: (0.010, 0.005), 10: (0.010, 0.005), 20: (0.015, 0.005), 40: (0.015, 0.005)},
    "BPG-var": {5: (0.05, 0.05), 10: (0.10, 0.10), 20: (0.10, 0.15), 40: (0.15, 0.30)},
}
"""Table 3."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Multiples of BPG's rates that `lqr-rates` tries."""


def rated(rates: str) -> Callable[[int], optax.GradientTransformationExtraArgs]:
    """A function from M to the update of a method with its learning rates from Table 3."""

    @functools.cache  # the same object, so that it is compiled once
    def update(M: int) -> optax.GradientTransformationExtraArgs:
        rate = np.array(RATES[rates][M])
        if rates == "BPNG":
            return updates.natural(rate, times_determinant=True)
        if rates == "BPG-var":
            return updates.variance_scaled(rate)
        return updates.conventional(updates.hyperbolic(rate))

    return update


OURS, PER_STEP = "Model 2 + baseline", "MCPG, mean over steps"
BASELINE, EQUAL = "MCPG, best baseline", "MCPG, best baseline, rates of BPG"
NORMAL, UNIFORM = sentences.STARTS
OTHER, WRONG = "other paths", "BPG-ML, wrong form"


def _from_others(fisher: given.FisherChoice) -> given.FisherChoice:
    """G from as many other paths, drawn with a key that is made from the scores of these."""

    def choice(batch: Batch):
        bits = jnp.sum(batch.scores).astype(jnp.float32).view(jnp.uint32)
        key, M = jax.random.fold_in(fast_key(1), bits), batch.returns.size
        return fisher(given.draw(LQR(), batch.policy, key, M, jnp.float32))

    return choice


def _wrong_form(batch: Batch):
    """G under the model x' = x + N(c_3, c_4^2), which ignores the action and the state's return to
    zero."""
    paths = batch.paths
    moves = jnp.concatenate([paths.states[1:], paths.final[None]]) - paths.states
    model = LQR(action_gain=0.0, offset=moves.mean(), state_noise=moves.std())
    return fishers.exact(model, batch.policy)  # type: ignore[arg-type]


EXACT, BY_PATHS, BY_MODEL, BY_OTHERS, BY_OTHER_MODEL, BY_WRONG = (
    Model1(fisher=fisher)
    for fisher in (
        given.exact, given.monte_carlo_fisher, given.maximum_likelihood,
        _from_others(given.monte_carlo_fisher), _from_others(given.maximum_likelihood), _wrong_form,
    )
)  # fmt: skip
METHODS = {
    "MCPG": Method(Reinforce(), rated("MCPG"), "MC"),
    PER_STEP: Method(MonteCarlo(weights="uniform"), rated("MCPG"), "GPOMDP"),
    BASELINE: Method(Reinforce("best"), rated("MCPG"), "MC, best baseline"),
    EQUAL: Method(Reinforce("best"), rated("BPG"), "MC, mean baseline"),
    "BPG": Method(EXACT, rated("BPG"), "BQ"),
    "BPNG": Method(EXACT, rated("BPNG"), "BQ natural"),
    "BPG-var": Method(EXACT, rated("BPG-var"), "BQ variant"),
    "BPG-MC": Method(BY_PATHS, rated("BPG"), "GPOMDP"),
    "BPG-ML": Method(BY_MODEL, rated("BPG"), "BQ"),
    "BPNG-MC": Method(BY_PATHS, rated("BPNG"), "MC, best baseline"),
    "BPNG-ML": Method(BY_MODEL, rated("BPNG"), "BQ natural"),
    **{
        f"{name}-{fisher}, {OTHER}": Method(estimator, rated(name), look)
        for name, look in (("BPG", "BQ"), ("BPNG", "BQ natural"))
        for fisher, estimator in (("MC", BY_OTHERS), ("ML", BY_OTHER_MODEL))
    },
    WRONG: Method(BY_WRONG, rated("BPG"), "eNAC"),
    "BPG, actions integrated out": Method(Model1(), rated("BPG"), "BQ variant"),
    OURS: Method(Model2(baseline=float("inf")), rated("BPG"), "ours"),
}
"""MCPG is Eq. 6. The second method is Algorithm 1 of Baxter and Bartlett, a mean over steps, which
the paper uses in Section 8. The last has a flat baseline, the actions integrated out of G, and the
rates of BPG."""
FIGURE3 = ("MCPG", PER_STEP, BASELINE, EQUAL, "BPG", "BPNG", OURS)
FIGURE4 = (
    "MCPG", "BPG-MC", "BPG-ML", "BPNG-MC", "BPNG-ML", "BPG, actions integrated out", OURS,
)  # fmt: skip
FIGURE5 = ("MCPG", "BPG", "BPNG", "BPG-var")
READINGS = {
    "MCPG": sentences.LQR[:2],
    **dict.fromkeys(("BPG", "BPNG", "BPG-var"), sentences.LQR[2:]),
}
FISHER_READINGS = {
    "MCPG": sentences.LQR[:2],
    **dict.fromkeys(("BPG-ML", "BPG-MC", "BPNG-ML", "BPNG-MC"), sentences.LQR),
    **dict.fromkeys((name for name in METHODS if name.endswith(OTHER)), (*sentences.OTHERS,)),
    WRONG: sentences.LQR[:1],
}
"""What `lqr-readings` and `lqr-fisher-readings` run: the cells of Sigma and start that Figures 3
and 5, and Figure 4, do not have. Monte Carlo has no Sigma."""
TUNED = ("MCPG", BASELINE, "BPG", OURS)
Costs = Mapping[learning.Cell, Learned]


def learn(
    names: Sequence[str],
    settings: Settings,
    progress: Progress,
    start: Callable[..., BoundedLinearGaussian] | None = None,
    label: str = "",
    sizes: Sequence[int] = SIZES,
    noise: float | None = None,
) -> Costs:
    """Exact expected cost before each update and after the last, (runs, N + 1). `noise` replaces
    that of the estimators; as an array, so that other values use the same compiled program."""
    environment, results = LQR(), {}

    def last(result: Result) -> Any:
        with jax.enable_x64(True):
            return jax.vmap(environment.expected_return)(result.policy)

    updates = dict.fromkeys(sizes, UPDATES)
    task = Task(environment, start or normal, updates, drawn=True, ended=last, label=label)
    methods = {name: METHODS[name] for name in names}
    for name, method in methods.items():
        if noise is not None and isinstance(method.estimator, Model1):
            estimator = dataclasses.replace(method.estimator, noise=np.asarray(noise))
            methods[name] = dataclasses.replace(method, estimator=estimator)
    for key, learned in learning.learn(task, methods, settings, progress).items():
        assert learned.ended is not None
        costs = -np.concatenate([learned.values, learned.ended[:, None]], 1)
        results[key] = learned._replace(updates=np.arange(costs.shape[1]), values=costs)
    return results


def normal(runs: int, key) -> BoundedLinearGaussian:
    """kappa ~ N(0, I)."""
    with jax.enable_x64(True):
        return BoundedLinearGaussian(jax.random.normal(key, (runs, 2)))


def uniform(runs: int, key) -> BoundedLinearGaussian:
    """kappa ~ U(-1, 1), both components."""
    with jax.enable_x64(True):
        return BoundedLinearGaussian(jax.random.uniform(key, (runs, 2), minval=-1.0, maxval=1.0))


def run(names: Sequence[str], settings: Settings, progress: Progress) -> Report:
    return report(learn(names, settings, progress))


def run_twice(settings: Settings, progress: Progress) -> Report:
    """The methods of Figure 5 from both distributions of initial policies."""
    costs = learn(FIGURE5, settings, between(progress, 0, 0.5))
    narrow = learn(FIGURE5, settings, between(progress, 0.5, 1), uniform, UNIFORM)
    return report({**costs, **{(f"{name}, {UNIFORM}", M): of for (name, M), of in narrow.items()}})


def run_readings(
    methods: Mapping[str, Sequence[str]], settings: Settings, progress: Progress
) -> Report:
    """Figures 3 to 5 with other Sigma and initial policies: the readings of each method. All
    readings of a method at one M are one part, and one compiled program."""
    sizes = SIZES[:1] if settings.quick else SIZES
    alone = dataclasses.replace(settings, parts=None)
    starts = {NORMAL: normal, UNIFORM: uniform}

    def part(cell: learning.Cell, progress: Progress) -> parts.Part:
        name, M = cell
        kept = {}
        for reading in methods[name]:
            sigma, start = reading.removeprefix("Σ = ").split(" I, ", 1)
            noise = 1e-3 if sigma == "10⁻³" else float(sigma)
            learned = learn((name,), alone, progress, starts[start], "", (M,), noise)
            costs = learned[name, M].values - OPTIMUM
            kept |= {f"final: {reading}": costs[:, -1], f"average: {reading}": costs.mean(1)}
        return kept

    cells = {f"{name}, M = {M}": (name, M) for name in methods for M in sizes}
    computed = parts.compute(cells, part, settings.parts, progress)
    kept: dict[Key, np.ndarray] = {}
    for (name, M), arrays in computed.items():
        for label, values in arrays.items():
            what, reading = label.split(": ", 1)
            kept[what, f"{name}, {reading}", M] = values
    samples = Samples(kept)
    curves, names = [], samples.names("final")
    for reading in sentences.LQR[2:]:
        for method, of in methods.items():
            if reading in of or method == "MCPG":
                start = NORMAL if reading.endswith(NORMAL) else UNIFORM
                name = f"{method}, {reading if reading in of else f'Σ = 10⁻³ I, {start}'}"
                ends = [summarise(OPTIMUM + samples["final", name, M]) for M in sizes]
                mean, error = (list(map(float, column)) for column in zip(*ends, strict=True))
                look = METHODS[method].look
                curves.append(Curve(reading, method, look, list(sizes), mean, error))
    return Report(
        columns=["final expected cost", *(f"M = {M}" for M in sizes)],
        rows=[
            [name, *(cell(OPTIMUM + samples["final", name, M]) for M in sizes)] for name in names
        ],
        curves=curves,
        samples=samples,
        figure=lambda: learning.panels(
            curves, "final expected cost", xlabel="paths M", yscale="log"
        ),
        notes=[f"± is one standard error over {settings.runs} runs; {OPTIMUM} is optimal."],
    )


def report(results: Costs) -> Report:
    """A table of final costs and averages over the whole curve, and one panel for each M."""
    curves = learning.curves(
        results, METHODS | {f"{name}, {UNIFORM}": METHODS[name] for name in FIGURE5}
    )
    excess = [dataclasses.replace(c, mean=[v - OPTIMUM for v in c.mean]) for c in curves]
    rows = learning.final_and_average({cell: of.values for cell, of in results.items()})
    return Report(
        columns=["expected cost", "", *(f"M = {M}" for M in sorted({M for _, M in results}))],
        rows=[row for of in rows.values() for row in of],
        curves=curves,
        samples=Samples(learning.cells(results, lambda costs: costs - OPTIMUM)),
        figure=lambda: learning.panels(excess, "expected cost above the optimum", yscale="log"),
        notes=[
            f"± is one standard error; {OPTIMUM} is optimal; 'average' is over all updates.",
            *_diverged(results),
        ],
    )


def _diverged(results: Costs, factor: float = 2.0) -> list[str]:
    """Notes on runs that end above `factor` times the median initial cost."""
    notes = []
    for (name, M), learned in results.items():
        cost = learned.values
        bad = int(np.sum(cost[:, -1] > factor * np.median(cost[:, 0])))
        if bad:
            notes.append(
                f"{name}, M = {M}: {bad} of {len(cost)} runs end above {factor:g} times "
                "the median initial cost."
            )
    return notes


def tune(settings: Settings, progress: Progress) -> Report:
    """Every method with multiples of BPG's rates. The return after the last update is that before
    one more."""
    sizes, reports = (5, 20) if settings.quick else SIZES, []
    for i, M in enumerate(sizes):
        base = np.array(RATES["BPG"][M])
        task = Task(LQR(), lambda runs: normal(runs, fast_key(settings.seed)), {M: UPDATES + 1})
        reports.append(
            learning.tune(
                task, {name: METHODS[name] for name in TUNED}, FACTORS,
                lambda history: history.expected_return[-1], settings,
                between(progress, i / len(sizes), (i + 1) / len(sizes)),
                lambda factor, base=base: updates.conventional(updates.hyperbolic(factor * base)),
            )
        )  # fmt: skip
    curves = [
        dataclasses.replace(curve, mean=[-value for value in curve.mean])
        for report in reports
        for curve in report.curves
    ]
    return Report(
        columns=["minus the final cost", "M", *(f"BPG's rates × {f:g}" for f in FACTORS)],
        rows=[row for report in reports for row in report.rows],
        curves=curves,
        samples=Samples({k: v for report in reports for k, v in report.samples.items()}),
        figure=lambda: learning.panels(
            curves, "final expected cost", xlabel="multiple of BPG's rates", xscale="log"
        ),
        notes=[f"± is one standard error over {settings.runs} runs of {UPDATES} updates."],
        extra={"best": {k: v for report in reports for k, v in report.extra["best"].items()}},
    )


COSTS = "difference of final costs"
ends = functools.partial(
    differences, words="{a:.3f} against {b:.3f}, lower in {share:.0f} % of runs"
)
"""Says in how many runs the first is lower, which shows whether a few outliers decide the mean."""
ABOVE = "ratio of final costs above the optimum"


def ahead(
    id: str, sentence: str, says: str, better: str, worse: str, sizes: Any = None, reading: str = ""
) -> Row:
    """`better` ends at a lower expected cost than `worse` at each of `sizes`."""
    pairs = pair("cost", better, worse)
    return Row(id, sentence, says, COSTS, ends, pairs, sizes, reading=reading)


def value(samples: Cells, what: str, name: str, M: int) -> np.ndarray:
    """Also the final cost, and by how much a method ends above BPG-var at M and at the next M, as a
    number that is positive in the mean."""
    if what == "cost":
        return OPTIMUM + samples["final", name, M]
    if what not in ("gap", "next gap"):
        return samples[what, name, M]
    M = SIZES[SIZES.index(M) + 1] if what == "next gap" else M
    gap = samples["final", name, M] - samples["final", "BPG-var", M]
    return gap if gap.mean() >= 0 else -gap


def _figure3(id: str, reading: str) -> tuple[Row, ...]:
    """What the paper says about Figure 3."""
    return (
        *(
            ahead(f"{id}-mcpg-{name.lower()}-5", "figure-3",
                  f"Monte Carlo is ahead of {name} at M = 5", "MCPG", name, (5,), reading)
            for name in ("BPG", "BPNG")
        ),
        *(
            ahead(f"{id}-{name.lower()}", "figure-3",
                  f"{name} is ahead of Monte Carlo from M = 10 on", name, "MCPG", LARGER, reading)
            for name in ("BPG", "BPNG")
        ),
    )  # fmt: skip


def _figure4(id: str, reading: str) -> tuple[Row, ...]:
    return (
        *(
            ahead(f"{id}-{name.lower()}", "figure-4",
                  f"with an estimated G, {name} is ahead of Monte Carlo from M = 10 on",
                  name, "MCPG", LARGER, reading)
            for name in ("BPG-ML", "BPG-MC", "BPNG-ML", "BPNG-MC")
        ),
        *_few(id, reading),
    )  # fmt: skip


def _few(id: str, reading: str, source: str = "") -> tuple[Row, ...]:
    """ML against MC; `source` ends the names of methods whose G comes from elsewhere."""
    sentence = "figure-4-few"
    names = {name: (f"{name}-ML{source}", f"{name}-MC{source}") for name in ("BPG", "BPNG")}
    return (
        *(
            ahead(f"{id}-{name.lower()}-ml-mc", sentence,
                  f"with few paths, {name}-ML is ahead of {name}-MC", *both, (5, 10), reading)
            for name, both in names.items()
        ),
        Row(f"{id}-vanishes", sentence, "the difference between the two vanishes for many paths",
            f"{ABOVE}, MC to ML, M = 40", ratios,
            {name: (("final", ml), ("final", mc)) for name, (ml, mc) in names.items()},
            (40,), **ALIKE, reading=reading),
    )  # fmt: skip


def _figure5(id: str, reading: str, sizes: Sequence[int] = SIZES) -> tuple[Row, ...]:
    alike = "figure-5-alike"
    return (
        ahead(f"{id}-bpg", "figure-5", "BPG-var is ahead of BPG at every M", "BPG-var", "BPG",
              reading=reading),
        ahead(f"{id}-mcpg", "figure-5", "BPG-var is ahead of Monte Carlo at every M",
              "BPG-var", "MCPG", reading=reading),
        Row(f"{id}-trend", alike, "the gap between the average returns of BPG-var and BPG shrinks "
            "from each M to the next", "by how much the gap of final costs shrinks",
            functools.partial(differences, words="gap {b:.3f}, then {a:.3f}"),
            {"M = {M} to the next": (("next gap", "BPG"), ("gap", "BPG"))}, sizes[:-1],
            reading=f"{sentences.TREND}, {reading}"),
        *(
            row
            for mark, of, what, effect in (
                ("", sentences.RETURNS, "cost", "ratio of final costs"),
                ("-excess", sentences.EXCESS, "final", ABOVE),
            )
            for row in (
                Row(f"{id}-bpng{mark}", "figure-5-bpng", "BPG-var learns faster than BPNG",
                    "difference of costs, mean over all updates", differences,
                    pair("average", "BPG-var", "BPNG"), reading=f"{of}, {reading}"),
                Row(f"{id}-bpng-end{mark}", "figure-5-bpng", "BPG-var ends like BPNG",
                    f"{effect}, BPNG to BPG-var", ratios, pair(what, "BPG-var", "BPNG"), **ALIKE,
                    reading=f"{of}, {reading}"),
                Row(f"{id}-many{mark}", alike, "BPG-var is like BPG at M = 40",
                    f"{effect}, BPG to BPG-var", ratios, pair(what, "BPG-var", "BPG"), (40,),
                    **ALIKE, reading=f"{of}, {reading}"),
            )
        ),
    )  # fmt: skip


FIRST, SECOND = sentences.LQR[:2]
CLAIMS = (
    *_figure3("lqr", FIRST),
    ahead("lqr-ours-bpg", "", "Model 2 with a baseline is ahead of BPG at every M, at the same "
          "rates", OURS, "BPG"),
    ahead("lqr-ours-mcpg", "", "Model 2 with a baseline is ahead of Monte Carlo with the best "
          "baseline at every M, at the same rates (BPG's)", OURS, EQUAL),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS, value=value)
judge_fisher = functools.partial(claims.judge, _figure4("fisher", FIRST), value=value)


def judge_variance(samples: Samples) -> list[Claim]:
    rows = (*_figure5("var-uniform", SECOND), *_figure3("uniform", SECOND))
    other = _ending(samples, UNIFORM)
    return claims.judge(_figure5("var", FIRST), samples, value) + claims.judge(rows, other, value)


def _cell(samples: Samples, reading: str) -> tuple[str, dict[Key, np.ndarray]]:
    """The samples of a reading, with those of Monte Carlo from the same start, and a name."""
    sigma, start = reading.removeprefix("Σ = ").split(" I, ", 1)
    cells = _ending(samples, reading)
    for (what, name, M), values in samples.items():
        if name.startswith("MCPG, ") and name.endswith(start):
            cells[what, "MCPG", M] = values
    return f"{sigma.replace('10⁻³', '0.001')}-{'normal' if start == NORMAL else 'uniform'}", cells


def judge_readings(samples: Samples) -> list[Claim]:
    judged = []
    for reading in sentences.LQR[2:]:
        id, cells = _cell(samples, reading)
        rows = (
            *_figure3(f"lqr-{id}", reading), *_figure5(f"var-{id}", reading, samples.sizes()),
        )  # fmt: skip
        judged += claims.judge(rows, cells, value)
    return judged


def judge_fisher_readings(samples: Samples) -> list[Claim]:
    judged = []
    for reading in sentences.LQR:
        id, cells = _cell(samples, reading)
        rows = _figure4(f"fisher-{id}", reading)
        if reading == FIRST:
            rows = (
                ahead("fisher-form", "figure-4-form", "BPG-ML ends at a lower cost than with a "
                      "model of the wrong form at every M", "BPG-ML", WRONG),
            )  # fmt: skip
        if reading in sentences.OTHERS:
            rows += _few(f"others-{id}", sentences.OTHERS[reading], f", {OTHER}")
        judged += claims.judge(rows, cells, value)
    return judged


def _ending(samples: Samples, suffix: str) -> dict[Key, np.ndarray]:
    """The samples of methods whose names end in a suffix, without it."""
    end = f", {suffix}"
    return {
        (what, name.removesuffix(end), M): values
        for (what, name, M), values in samples.items()
        if name.endswith(end)
    }


def judge_rates(samples: Samples) -> list[Claim]:
    sizes = samples.sizes()

    def equal(better: str, worse: str, Ms: Sequence[int]) -> Pairs:
        """At BPG's own rates."""
        first, second = ({M: -samples["rate 1", name, M] for M in Ms} for name in (better, worse))
        return {f"M = {M}": (first[M], second[M]) for M in Ms}

    def best(better: str, worse: str, Ms: Sequence[int]) -> Pairs:
        tuned = {}
        for M in Ms:
            (a, first), (b, second) = (learning.best(samples, name, M) for name in (better, worse))
            tuned[f"M = {M} (× {a} and × {b})"] = -first, -second
        return tuned

    larger = [M for M in sizes if M in LARGER]
    return [
        Claim(f"lqr-rates-{id}-{how}", sentence, f"{says}, {rates}", COSTS,
              ends(pairs(*names, Ms)), kind="ours")
        for id, sentence, says, names, Ms in (
            ("ours", "", "Model 2 with a baseline is ahead of Monte Carlo with the best baseline "
             "at every M", (OURS, BASELINE), sizes),
            ("bpg", "figure-3", "BPG is ahead of Monte Carlo from M = 10 on", ("BPG", "MCPG"),
             larger),
        )
        for how, rates, pairs in (
            ("equal", "at equal rates (BPG's of Table 3)", equal),
            ("best", "each at its best rate", best),
        )
    ]  # fmt: skip
