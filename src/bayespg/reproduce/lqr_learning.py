"""Figures 3 to 5 and Table 3: learning LQR.

The settings are Table 3's learning rates in kappa space, kappa ~ N(0, I) at the start of each run,
100 updates, Sigma = 1e-3 I and Model 1. Costs are shown as in the paper: lower is better, and
0.3067 is optimal. Figure 3 has exact G; Figure 4 estimates it; Figure 5 scales steps by the
posterior covariance (BPG-var).

- The paper prints neither Sigma nor the distribution of initial policies, so `lqr-variance` also
  starts from kappa uniform on (-1, 1), and `lqr-readings` and `lqr-fisher-readings` have Sigma =
  0.1 I, 0.3 I and I, and for Figure 4 G from other paths; `lqr-fisher-form` has G from a model of
  the wrong form.
- Table 3 gives BPG larger rates than MCPG, so Figure 3 compares methods and rates at once.
  `lqr-rates` runs every method with BPG's rates times each factor of a grid. Methods are compared
  at equal rates, and each at its own best; half of the runs choose it, the other half are compared.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize

from bayespg import fisher as fishers
from bayespg._support.random import fast_key
from bayespg.environments import LQR
from bayespg.learning import estimators as given
from bayespg.learning import updates
from bayespg.learning.batch import Batch
from bayespg.learning.estimators import Model1, Model2, MonteCarlo, Reinforce
from bayespg.learning.training import Result
from bayespg.policies import BoundedLinearGaussian, LinearGaussian
from bayespg.reproduce import claims, learning, sentences
from bayespg.reproduce.claims import ALIKE, Claim, Effect, Row, differences, pair, ratios, under
from bayespg.reproduce.learning import Learned, Method, Task
from bayespg.reproduce.report import Curve, Progress, Report, Settings, cell
from bayespg.reproduce.samples import Samples

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


def rated(rates: str, factor: Any = 1.0) -> Callable[[int], optax.GradientTransformationExtraArgs]:
    """A function from M to the update of a method with its learning rates from Table 3, times a
    factor."""

    @functools.cache  # the same object, so that it is compiled once
    def update(M: int) -> optax.GradientTransformationExtraArgs:
        rate = factor * np.array(RATES[rates][M])
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
Cases = Mapping[str, Sequence[str]]
"""Methods, and the settings under which each is run."""
FIGURE3: Cases = dict.fromkeys(("MCPG", PER_STEP, BASELINE, EQUAL, "BPG", "BPNG", OURS), ("",))
FIGURE4: Cases = dict.fromkeys(
    ("MCPG", "BPG-MC", "BPG-ML", "BPNG-MC", "BPNG-ML", "BPG, actions integrated out", OURS), ("",)
)
FIGURE5: Cases = dict.fromkeys(("MCPG", "BPG", "BPNG", "BPG-var"), ("", UNIFORM))
READINGS: Cases = {
    "MCPG": sentences.LQR[:2],
    **dict.fromkeys(("BPG", "BPNG", "BPG-var"), sentences.LQR[2:]),
}
FISHER_READINGS: Cases = {
    "MCPG": sentences.LQR[:2],
    **dict.fromkeys(("BPG-ML", "BPG-MC", "BPNG-ML", "BPNG-MC"), sentences.LQR),
    **dict.fromkeys((name for name in METHODS if name.endswith(OTHER)), (*sentences.OTHERS,)),
}
FORM: Cases = dict.fromkeys(("BPG-ML", WRONG), ("",))
"""What each experiment runs. A setting ends the name of a method in the results, and says what
differs from Sigma = 1e-3 I and kappa ~ N(0, I). `READINGS` and `FISHER_READINGS` have the settings
that Figures 3 and 5, and Figure 4, lack; Monte Carlo has no Sigma."""
TUNED = ("MCPG", BASELINE, "BPG", OURS)
Costs = Mapping[learning.Cell, Learned]


def method(name: str, setting: str) -> Method:
    """A method of the table, under a setting."""
    method = METHODS[name]
    if isinstance(method.estimator, Model1):
        sigma = next((s for s in sentences.SIGMAS[1:] if f"Σ = {s} I" in setting), "1e-3")
        # As an array, so that other values use the same compiled program.
        estimator = dataclasses.replace(method.estimator, noise=np.asarray(float(sigma)))
        method = dataclasses.replace(method, estimator=estimator)
    start = uniform if setting.endswith(UNIFORM) else normal
    return dataclasses.replace(method, start=start)


def learn(
    methods: Mapping[str, Method], sizes: Sequence[int], settings: Settings, progress: Progress
) -> Costs:
    """Exact expected cost before each update and after the last, (runs, N + 1)."""
    environment, results = LQR(), {}

    def last(result: Result) -> Any:
        with jax.enable_x64(True):
            return jax.vmap(environment.expected_return)(result.policy)

    task = Task(environment, normal, dict.fromkeys(sizes, UPDATES), drawn=True, ended=last)
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


def run(cases: Cases, settings: Settings, progress: Progress, whole: bool = True) -> Report:
    """All methods under all of their settings, each M from the same initial policies. The report
    shows `whole` learning curves, or only where they end."""
    methods = {
        f"{name}, {setting}" if setting else name: method(name, setting)
        for name, of in cases.items()
        for setting in of
    }
    sizes = SIZES if whole or not settings.quick else SIZES[:1]
    return (_curves if whole else _ends)(learn(methods, sizes, settings, progress), methods)


def _curves(results: Costs, methods: Mapping[str, Method]) -> Report:
    """A table of final costs and averages over the whole curve, and one panel for each M."""
    curves = learning.curves(results, methods)
    excess = [dataclasses.replace(c, mean=[v - OPTIMUM for v in c.mean]) for c in curves]
    rows = learning.final_and_average({cell: of.values for cell, of in results.items()})
    return Report(
        columns=["expected cost", "", *(f"M = {M}" for M in SIZES)],
        rows=[row for of in rows.values() for row in of],
        curves=curves,
        samples=_samples(results),
        figure=lambda: learning.panels(excess, "expected cost above the optimum", yscale="log"),
        notes=[
            f"± is one standard error; {OPTIMUM} is optimal; 'average' is over all updates.",
            *_diverged(results),
        ],
    )


def _ends(results: Costs, methods: Mapping[str, Method]) -> Report:
    """A table of final costs, and one panel for each reading."""
    samples = _samples(results)
    sizes = samples.sizes()
    ends = {name: [OPTIMUM + samples["final", name, M] for M in sizes] for name in methods}
    curves = [
        Curve.through(reading, shown, methods[name].look, sizes, ends[name])
        for reading in sentences.LQR[2:]
        for shown, name in names(reading).items()
        if name in methods
    ]
    return Report(
        columns=["final expected cost", *(f"M = {M}" for M in sizes)],
        rows=[[name, *map(cell, of)] for name, of in ends.items()],
        curves=curves,
        samples=samples,
        figure=lambda: learning.panels(
            curves, "final expected cost", xlabel="paths M", yscale="log"
        ),
        notes=[f"± is one standard error over runs; {OPTIMUM} is optimal."],
    )


def _samples(results: Costs) -> Samples:
    return Samples(learning.cells(results, lambda costs: costs - OPTIMUM))


def names(setting: str) -> dict[str, str]:
    """What the methods are called under a setting. Monte Carlo has no Sigma."""
    of_any = re.sub(r"Σ = \S+ I", "Σ = 10⁻³ I", setting)
    return {name: f"{name}, {setting}" for name in METHODS} | {"MCPG": f"MCPG, {of_any}"}


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
    sizes = (5, 20) if settings.quick else SIZES
    start = functools.partial(normal, key=fast_key(settings.seed))
    tuned = learning.tune(
        Task(LQR(), start, dict.fromkeys(sizes, UPDATES + 1)),
        {name: METHODS[name] for name in TUNED}, FACTORS,
        lambda history: history.expected_return[-1], settings, progress,
        lambda factor, M: rated("BPG", factor)(M),
        score="minus the final cost", rate="BPG's rates ×",
    )  # fmt: skip
    curves = [dataclasses.replace(c, mean=[-value for value in c.mean]) for c in tuned.curves]
    return dataclasses.replace(
        tuned, curves=curves,
        figure=lambda: learning.panels(
            curves, "final expected cost", xlabel="multiple of BPG's rates", xscale="log"
        ),
        notes=[f"± is one standard error over {settings.runs} runs of {UPDATES} updates."],
    )  # fmt: skip


COSTS = "difference of final costs"
ends = functools.partial(
    differences, words="{a:.3f} against {b:.3f}, lower in {share:.0f} % of runs"
)
"""Says in how many runs the first is lower, which shows whether a few outliers decide the mean."""
ABOVE = "ratio of final costs above the optimum"


def ahead(id: str, sentence: str, says: str, better: str, worse: str, sizes: Any = None) -> Row:
    """`better` ends at a lower expected cost than `worse` at each of `sizes`."""
    return Row(id, sentence, says, COSTS, ends, pair("cost", better, worse), sizes)


def value(samples: Samples, what: str, name: str, M: int) -> np.ndarray | None:
    """Also the final cost, minus what was measured at a rate, and by how much BPG ends above
    BPG-var at M and at the next M, as a number that is positive in the mean."""
    if what == "cost":
        return OPTIMUM + samples["final", name, M]
    if what.startswith("minus "):
        return -samples[what.removeprefix("minus "), name, M]
    if what not in ("gap", "next gap"):
        return samples[what, name, M]
    if what == "next gap":
        M = min((size for size in samples.sizes() if size > M), default=0)
    if not M:
        return None
    gap = samples["final", name, M] - samples["final", name.replace("BPG", "BPG-var"), M]
    return gap if gap.mean() >= 0 else -gap


OF_FIGURE3 = (
    *(
        ahead(f"{{}}-mcpg-{name.lower()}-5", "figure-3",
              f"Monte Carlo is ahead of {name} at M = 5", "MCPG", name, (5,))
        for name in ("BPG", "BPNG")
    ),
    *(
        ahead(f"{{}}-{name.lower()}", "figure-3",
              f"{name} is ahead of Monte Carlo from M = 10 on", name, "MCPG", LARGER)
        for name in ("BPG", "BPNG")
    ),
)  # fmt: skip
OF_ESTIMATED = ("BPG-ML", "BPG-MC", "BPNG-ML", "BPNG-MC")
FEW_PATHS = (
    *(
        ahead(f"{{}}-{name.lower()}-ml-mc", "figure-4-few",
              f"with few paths, {name}-ML is ahead of {name}-MC", f"{name}-ML", f"{name}-MC",
              (5, 10))
        for name in ("BPG", "BPNG")
    ),
    Row("{}-vanishes", "figure-4-few", "the difference between the two vanishes for many paths",
        f"{ABOVE}, MC to ML, M = 40", ratios,
        {name: (("final", f"{name}-ML"), ("final", f"{name}-MC")) for name in ("BPG", "BPNG")},
        (40,), **ALIKE),
)  # fmt: skip
OF_FIGURE4 = (
    *(
        ahead(f"{{}}-{name.lower()}", "figure-4",
              f"with an estimated G, {name} is ahead of Monte Carlo from M = 10 on", name, "MCPG",
              LARGER)
        for name in OF_ESTIMATED
    ),
    *FEW_PATHS,
)  # fmt: skip
OF_FIGURE5 = (
    ahead("{}-bpg", "figure-5", "BPG-var is ahead of BPG at every M", "BPG-var", "BPG"),
    ahead("{}-mcpg", "figure-5", "BPG-var is ahead of Monte Carlo at every M", "BPG-var", "MCPG"),
    Row("{}-trend", "figure-5-alike", "the gap between the average returns of BPG-var and BPG "
        "shrinks from each M to the next", "by how much the gap of final costs shrinks",
        functools.partial(differences, words="gap {b:.3f}, then {a:.3f}"),
        {"M = {M} to the next": (("next gap", "BPG"), ("gap", "BPG"))},
        reading=f"{sentences.TREND}, {{}}"),
    *(
        row
        for mark, of, what, effect in (
            ("", sentences.RETURNS, "cost", "ratio of final costs"),
            ("-excess", sentences.EXCESS, "final", ABOVE),
        )
        for row in (
            Row(f"{{}}-bpng{mark}", "figure-5-bpng", "BPG-var learns faster than BPNG",
                "difference of costs, mean over all updates", differences,
                pair("average", "BPG-var", "BPNG"), reading=f"{of}, {{}}"),
            Row(f"{{}}-bpng-end{mark}", "figure-5-bpng", "BPG-var ends like BPNG",
                f"{effect}, BPNG to BPG-var", ratios, pair(what, "BPG-var", "BPNG"), **ALIKE,
                reading=f"{of}, {{}}"),
            Row(f"{{}}-many{mark}", "figure-5-alike", "BPG-var is like BPG at M = 40",
                f"{effect}, BPG to BPG-var", ratios, pair(what, "BPG-var", "BPG"), (40,), **ALIKE,
                reading=f"{of}, {{}}"),
        )
    ),
)  # fmt: skip
"""What the paper says about Figures 3 to 5, under each reading."""


@functools.cache
def optimum() -> tuple[float, float, float]:
    """The gain of the best policy of the least scale, what it costs, and the gain at the printed
    kappa_1 = -0.16."""
    with jax.enable_x64(True):
        policy = BoundedLinearGaussian(jnp.array([-0.16, 60.0]))

        @jax.jit
        def cost(gain):
            return -LQR().expected_return(LinearGaussian(gain, policy.scale))

        best = scipy.optimize.minimize_scalar(lambda gain: float(cost(gain)), (-1.0, -0.8))
        return float(best.x), float(best.fun), float(policy.gain)


def _exactly(id: str, says: str, effect: str, number: float, at: float, reach: float) -> Claim:
    """A computed number is near a printed one."""
    effects, bounds = (Effect("", number, number, number),), (at - reach, at + reach)
    return Claim(f"lqr-optimum-{id}", "lqr-optimum", says, effect, effects, *bounds)


FIRST, SECOND = sentences.LQR[:2]
CLAIMS = (
    *under(OF_FIGURE3, "lqr", FIRST),
    ahead("lqr-ours-bpg", "", "Model 2 with a baseline is ahead of BPG at every M, at the same "
          "rates", OURS, "BPG"),
    ahead("lqr-ours-mcpg", "", "Model 2 with a baseline is ahead of Monte Carlo with the best "
          "baseline at every M, at the same rates (BPG's)", OURS, EQUAL),
)  # fmt: skip


def judge(samples: Samples) -> list[Claim]:
    """The claims about the optimum need no samples."""
    gain, least, printed = optimum()
    return [
        _exactly("gain", "the best gain is within 1 % of -0.92", "λ at σ = 0.001", gain, -0.92,
                 0.0092),
        _exactly("cost", "it costs 0.3067", "expected cost", least, OPTIMUM, 5e-5),
        _exactly("kappa", "κ₁ = -0.16 is the gain -0.92", "λ", printed, -0.92, 5e-3),
        *claims.judge(CLAIMS, samples, value),
    ]  # fmt: skip


judge_fisher = functools.partial(claims.judge, under(OF_FIGURE4, "fisher", FIRST), value=value)
OF_FORM = ahead("fisher-form", "figure-4-form", "BPG-ML ends at a lower cost than with a model of "
                "the wrong form at every M", "BPG-ML", WRONG)  # fmt: skip
judge_form = functools.partial(claims.judge, (OF_FORM,), value=value)
VARIANCE = (
    *under(OF_FIGURE5, "var", FIRST),
    *under(OF_FIGURE5, "var-uniform", SECOND, names(UNIFORM)),
    *under(OF_FIGURE3, "uniform", SECOND, names(UNIFORM)),
)
judge_variance = functools.partial(claims.judge, VARIANCE, value=value)


def judge_readings(samples: Samples) -> list[Claim]:
    rows = []
    for reading in sentences.LQR[2:]:
        rows += under(OF_FIGURE3, f"lqr-{_id(reading)}", reading, names(reading))
        rows += under(OF_FIGURE5, f"var-{_id(reading)}", reading, names(reading))
    return claims.judge(rows, samples, value)


def judge_fisher_readings(samples: Samples) -> list[Claim]:
    rows: list[Row] = []
    for reading in sentences.LQR:
        called, id = names(reading), _id(reading)
        if reading != FIRST:
            rows += under(OF_FIGURE4, f"fisher-{id}", reading, called)
        if reading in sentences.OTHERS:
            others = {name: called[f"{name}, {OTHER}"] for name in OF_ESTIMATED}
            rows += under(FEW_PATHS, f"others-{id}", sentences.OTHERS[reading], others)
    return claims.judge(rows, samples, value)


def _id(reading: str) -> str:
    """A reading as part of the name of a claim."""
    sigma, start = reading.removeprefix("Σ = ").split(" I, ")
    return f"{sigma.replace('10⁻³', '0.001')}-{'normal' if start == NORMAL else 'uniform'}"


RATES_CLAIMS = tuple(
    Row(f"lqr-rates-{id}-{how}", sentence, f"{says}, {rates}", COSTS, ends, pairs, sizes,
        kind="ours")
    for id, sentence, says, names, sizes in (
        ("ours", "", "Model 2 with a baseline is ahead of Monte Carlo with the best baseline "
         "at every M", (OURS, BASELINE), SIZES),
        ("bpg", "figure-3", "BPG is ahead of Monte Carlo from M = 10 on", ("BPG", "MCPG"), LARGER),
    )
    for how, rates, pairs in (
        ("equal", "at equal rates (BPG's of Table 3)", pair("minus rate 1", *names)),
        ("best", "each at its best rate",
         functools.partial(learning.at_best, *names, sizes, "M = {M} (× {a} and × {b})")),
    )
)  # fmt: skip
judge_rates = functools.partial(claims.judge, RATES_CLAIMS, value=value)
