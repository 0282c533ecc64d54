"""Beyond the paper: error bars on tasks without a closed form.

CartPole, Acrobot and Pendulum in JAX at three stages of training, against gradients of very many
episodes: the stated probability of going uphill beside how often it happens, and how often
`interval` and `contains` hold the gradient, with the width relative to that of Monte Carlo at the
same coverage.

    linear    the gradient of the discounted return: Algorithm 4 with scales by evidence, Model 2
    fourier   the default agent's gradient, the mean over steps; scores written out
    mlp       the same by products with a network's Jacobian, in single precision as in training

The default's estimator (lambda 0.9, no reward known after a time limit) is judged against the
gradient of the task that goes on after the limit. `doubt` is the squared standard error of the
brute-force gradient over its squared length.
"""

import functools
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from uphill import MARGIN, apart, diagram

from bayespg._support import compilation
from bayespg._support.statistics import f_quantile, student_quantile
from bayespg.agents.agent import BAC
from bayespg.calibration import ENDS, _part, brier, brute_force
from bayespg.environments import classic
from bayespg.environments.trajectories import returns_to_go
from bayespg.learning import estimators, training, updates, values
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator, MonteCarlo
from bayespg.monte_carlo import average
from bayespg.paths import scores
from bayespg.policies import AnyPolicy, as_dtype, flatten
from bayespg.posterior import component_statistics, region_statistics, uphill
from bayespg.reproduce import parts
from bayespg.reproduce.claims import Claim
from bayespg.reproduce.report import Curve, Experiment, Progress, Report, Settings
from bayespg.reproduce.samples import Samples

TASKS = {"CartPole": classic.CartPole, "Acrobot": classic.Acrobot, "Pendulum": classic.Pendulum}
BEYOND = 300
"""Steps after the time limit, for the gradient of the task that goes on; 0.99^300 = 0.05."""
BATCH, AT_ONCE = 5_000, 1_600
"""Episodes that are drawn at once, of the brute-force gradient and of the batches that are judged:
what fits into 40 GB of memory."""
LEVELS = (0.5, 0.95)
DOUBT = 0.1
"""Beyond which a brute-force gradient is too uncertain to say which way is uphill."""
WAYS = ("mean", "natural")
Cell = dict[str, Any]
"""What was measured of one estimator at one task, policy, stage and number of episodes."""


class Continued(Estimator):
    """The mean over the first steps of u times the return-to-go of a task that goes on."""

    first: int = eqx.field(static=True)

    def __call__(self, batch):
        paths = batch.steps
        T, M = paths.mask.shape
        counted = paths.mask & (jnp.arange(T) < self.first)[:, None]
        credit, _ = values.centred(returns_to_go(paths, batch.discount), counted)
        weights = counted * (M / jnp.sum(counted)).astype(batch.dtype)
        return average(scores.of_paths(batch.policy, batch.paths, credit * weights))


STEPS: dict[str, Any] = {"weights": "uniform", "fisher": estimators.stationary_integrated_out}
MC, OURS, RETURNS = "Monte Carlo", "BAC, lambda 0.9", "BAC, lambda 1"
PAPER = {
    MC: MonteCarlo("states", fisher=estimators.steps_integrated_out, limit_ends=True),
    "BAC": estimators.BACPaper(noise=None, limit_ends=True),
    "Model 2": estimators.Model2(noise=None, baseline=float("inf")),
}
DEFAULT = {
    MC: MonteCarlo("states", **STEPS),
    OURS: estimators.BAC(),
    RETURNS: estimators.BAC(lambda_=1.0),
}
JUDGED = {"linear": PAPER, "fourier": DEFAULT, "mlp": DEFAULT}
LOOKS = {MC: "MC", "BAC": "BAC variant", "Model 2": "BQ", OURS: "ours", RETURNS: "BAC"}
KINDS = {
    "default": ("the default agent's gradient", ("fourier",), OURS),
    "networks": ("the default gradient of networks", ("mlp",), OURS),
    "returns": ("BAC with λ = 1", ("fourier", "mlp"), RETURNS),
    "bac": ("Algorithm 4, linear policies", ("linear",), "BAC"),
    "model-2": ("Model 2, linear policies", ("linear",), "Model 2"),
    "monte-carlo": ("Monte Carlo", tuple(JUDGED), MC),
}
"""What a claim is about: its words, policies, and estimator."""


class Size(NamedTuple):
    tasks: tuple[str, ...]
    paths: dict[str, tuple[int, ...]]
    """Numbers of episodes, by the policy."""
    updates: tuple[int, int]
    """Of the second and the third stage; the first is the policy before training."""
    episodes: int
    """Of the brute-force gradient."""


def size(settings: Settings) -> Size:
    if settings.quick:
        return Size(("CartPole",), {"linear": (4,), "fourier": (4,)}, (1, 2), 1_000)
    if settings.paper:
        return Size(tuple(TASKS), {"fourier": (4, 16), "mlp": (4,)}, (10, 50), 100_000)
    return Size(tuple(TASKS), {"linear": (4,), "fourier": (4,)}, (10, 50), 10_000)


def run(settings: Settings, progress: Progress) -> Report:
    """Policies, their gradients, and cells are parts: what is interrupted resumes, and several
    processes share the work."""
    of, folder = size(settings), settings.parts
    places = list(itertools.product(of.paths, of.tasks))
    stages = [Stage(*place, i) for place in places for i in range(1 + len(of.updates))]
    with jax.enable_x64(False):  # as in training; what is judged chooses its own precision
        policies = parts.compute(
            {f"policies of {task}, {kind}": (kind, task) for kind, task in places},
            lambda place, _: trained(settings, of, *place),
            folder, parts.between(progress, 0.0, 0.2),
        )  # fmt: skip
        gradients = parts.compute(
            {f"gradient of {stage.label(of)}": stage for stage in stages},
            lambda stage, _: gradient(settings, of, stage, policies[stage[:2]]),
            folder, parts.between(progress, 0.2, 0.5),
        )  # fmt: skip
        cells = parts.compute(
            {f"{stage.label(of)}, M = {M}": (stage, M)
             for stage in stages for M in of.paths[stage.kind]},
            lambda cell, _: judged(settings, of, *cell, gradients[cell[0]]),
            folder, parts.between(progress, 0.5, 1.0),
        )  # fmt: skip
    return report([cell for part in cells.values() for cell in json.loads(str(part["cells"]))])


class Stage(NamedTuple):
    """A policy whose gradient is estimated."""

    kind: str
    task: str
    nth: int
    """0 is the policy before training."""

    def updates(self, of: Size) -> int:
        return (0, *of.updates)[self.nth]

    def label(self, of: Size) -> str:
        return f"{self.task}, {self.kind}, {self.updates(of)} updates"


@functools.cache
def _agent(kind: str, task: str, beyond: int = 0) -> Any:
    """The default agent, on a task that lasts `beyond` steps longer."""
    return BAC(TASKS[task](horizon=TASKS[task]().horizon + beyond), policy=kind)


def trained(settings: Settings, of: Size, kind: str, task: str) -> parts.Part:
    """The policies of all stages."""
    found = _stages(_agent(kind, task), of.updates, jax.random.key(settings.seed))
    return {"policies": np.stack([flatten(policy)[0] for _, policy in found])}


def gradient(settings: Settings, of: Size, stage: Stage, found: parts.Part) -> parts.Part:
    """The policy of a stage, the gradient of very many episodes, and its standard errors."""
    agent, theta = _agent(*stage[:2]), found["policies"][stage.nth]
    horizon = agent.world.environment.horizon
    where, exact = _agent(*stage[:2], BEYOND).world.environment, Continued(horizon)
    if stage.kind == "linear":
        where, exact = agent.world.environment, MonteCarlo("mean")
    truth, error = brute_force(
        where, _policy(agent, theta), exact, batches=max(of.episodes // BATCH, 2),
        paths=min(of.episodes // 2, BATCH), key=jax.random.key(settings.seed + 1),
    )  # fmt: skip
    return {"policy": theta, "truth": np.asarray(truth), "error": np.asarray(error)}


def _policy(agent: Any, theta: np.ndarray) -> Any:
    """The agent's policy with these parameters, in their precision."""
    like = as_dtype(agent.policy, theta.dtype)
    return flatten(like)[1](jnp.asarray(theta))


def judged(settings: Settings, of: Size, stage: Stage, M: int, found: parts.Part) -> parts.Part:
    """What the estimators say of batches of M episodes."""
    agent, names = _agent(*stage[:2]), JUDGED[stage.kind]
    truth, updates = found["truth"], stage.updates(of)
    doubt = float(np.sum(found["error"] ** 2) / max(np.sum(truth**2), 1e-300))
    key = jax.random.fold_in(jax.random.key(settings.seed), 2 + updates)
    single = stage.kind == "mlp"
    with jax.enable_x64(not single):
        dtype = np.float32 if single else np.float64
        said = _statistics(
            agent.world.environment, _policy(agent, found["policy"].astype(dtype)),
            list(names.values()), jnp.asarray(truth, dtype), M,
            jax.random.split(key, settings.runs), max(1, AT_ONCE // M),
        )  # fmt: skip
        said = jax.tree.map(lambda x: np.asarray(x, float), said)
    where = {"task": stage.task, "policy": stage.kind, "updates": updates, "paths": M}
    device = jax.devices()[0].device_kind
    more = {"runs": settings.runs, "doubt": doubt, "device": device}
    cells = [where | cell | more for cell in _summaries(names, said, truth)]
    return {"cells": np.array(json.dumps(cells))}


def _stages(agent, counts, key) -> list[tuple[int, AnyPolicy]]:
    """The policy after each number of updates of 8 episodes."""
    _, rebuild = flatten(agent.policy)
    found = training.train(
        agent.world.environment, agent.policy, estimators.BAC(), updates.trust_region(0.05),
        paths=8, updates=max(counts), key=key, every=int(np.gcd.reduce(counts)),
        evaluate=lambda policy, key: flatten(policy)[0],
    ).evaluations  # fmt: skip
    assert found is not None
    return [
        (int(done), rebuild(jnp.asarray(theta)))
        for done, theta in zip(found.updates, found.values, strict=True)
        if done in (0, *counts)
    ]


def _statistics(environment, policy, judged, truth, paths, keys, at_once):
    """What each posterior says of its two directions, their true slopes, and the statistics of its
    intervals and of its region."""
    given = environment, policy, judged, truth, paths, keys, at_once
    return _compiled(truth.dtype == jnp.float64)(*given)


@functools.cache
def _compiled(double: bool):
    options: dict[str, Any] = {"compiler_options": compilation.fast(double=double)}
    return eqx.filter_jit(_over_batches, **options)


def _over_batches(environment, policy, judged, truth, paths, keys, at_once):
    def one(p):
        followed = [
            (uphill(p, natural), truth @ (p.fisher.solve(p.mean) if natural else p.mean))
            for natural in (False, True)
        ]
        return followed, component_statistics(p), region_statistics(p, truth)

    def run(key):
        batch = draw(environment, policy, key, paths)
        return [one(estimator(batch)) for estimator in judged]

    return jax.lax.map(run, keys, batch_size=at_once)


def _summaries(judged, found, truth) -> Iterator[Cell]:
    """One cell for each estimator; Monte Carlo, whose widths are the unit, is the first."""
    truth, reference = np.asarray(truth, float), None
    for name, (followed, components, region) in zip(judged, found, strict=True):
        cell: Cell = {"estimator": name}
        for way, (said, slope) in zip(WAYS, followed, strict=True):
            went = 0.5 * (1 + np.sign(slope))
            cell |= {
                f"said_{way}": float(said.mean()), f"counted_{way}": float(went.mean()),
                f"error_{way}": float(np.std(said - went) / np.sqrt(said.size)),
                f"brier_{way}": brier(said, went),
                f"parts_{way}": [_part(said, went, *ends) for ends in ENDS],
            }  # fmt: skip
        (centre, spread, freedom), (distance, scale, rank, nu) = components, region
        away = np.abs(centre - truth)
        reference = (away, spread) if reference is None else reference
        for level in LEVELS:
            reach = spread * student_quantile(level, freedom)
            held = float(np.mean(away <= reach))
            cell[f"interval_{100 * level:.0f}"] = held
            cell[f"region_{100 * level:.0f}"] = float(
                np.mean(distance <= scale * f_quantile(level, rank, nu))
            )
            cell[f"width_{100 * level:.0f}"] = float(
                _mean_width(reach) / _widened(*reference, held)
            )
        yield cell


def _mean_width(reach):
    return np.mean(np.median(reach, 0))


def _widened(away, spread, held):
    """Monte Carlo's half-width if its errors are multiplied until intervals hold that often."""
    sized = away / np.where(spread > 0, spread, 1.0)
    return np.quantile(sized, held) * _mean_width(spread)


def report(cells: list[Cell]) -> Report:
    curves = _curves(cells)
    titles = {kind: kind for kind in dict.fromkeys(cell["policy"] for cell in cells)}
    return Report(
        columns=["policy", "task", "updates", "estimator", "M", *(f"along the {w}" for w in WAYS),
                 "95 % intervals", "95 % regions", "width"],
        rows=_table(cells),
        curves=curves,
        samples=Samples(
            {
                (_where(cell, way), f"{cell['policy']}: {cell['estimator']}", cell["paths"]):
                    np.array([cell[f"{what}_{way}"] for what in ("said", "counted", "error")])
                for cell in cells if known(cell)
                for way in WAYS
            }
        ),
        figure=lambda: diagram(curves, titles, width=10),
        notes=[
            "Stated / observed for each M; the percentage of components whose interval and of "
            "batches whose region holds the gradient; the interval's width relative to Monte "
            "Carlo's if that held as often. A dash is a cell that was not measured. Where the "
            f"squared standard error of the brute-force gradient is more than {DOUBT:g} of its "
            "squared length, the truth is unknown and the claims leave the stage out."
        ],
        extra={"cells": cells},
    )  # fmt: skip


def known(cell: Cell) -> bool:
    """Whether the probability was measured, and the brute-force gradient says what is uphill."""
    return "said_mean" in cell and cell["doubt"] < DOUBT


def _where(cell: Cell, way: str) -> str:
    return "{policy}, {task}, {updates} updates, M = {paths}, ".format(**cell) + way


def _table(cells: list[Cell]) -> list[list[str]]:
    """One row for each policy, task, stage and estimator, with every number of episodes."""
    rows = defaultdict(list)
    for cell in cells:
        stage = f"{cell['updates']}{' (truth unknown)' * (cell['doubt'] >= DOUBT)}"
        rows[cell["policy"], cell["task"], stage, cell["estimator"]].append(cell)
    return [
        [*names, *(", ".join(_shown(cell, form) for cell in each) for form in _FORMS)]
        for names, each in rows.items()
    ]


_FORMS = (
    "{paths}", *(f"{{said_{way}:.2f}} / {{counted_{way}:.2f}}" for way in WAYS),
    "{interval_95:.0%}", "{region_95:.0%}", "{width_95:.1f}",
)  # fmt: skip


def _shown(cell: Cell, form: str) -> str:
    try:
        return form.format(**cell).replace("%", "")
    except KeyError:
        return "-"


def judge(samples: Samples) -> list[Claim]:
    return [
        Claim(
            f"tasks-uphill-{id}", "",
            f"{words}: the probability of going uphill is right or cautious on CartPole, Acrobot "
            "and Pendulum",
            "stated probability minus observed frequency", effects, above=-1.01, below=MARGIN,
        )
        for id, (words, policies, estimator) in KINDS.items()
        if (effects := apart({
            where: of for (where, name, _), of in samples.items()
            if name in [f"{policy}: {estimator}" for policy in policies]
        }))
    ]  # fmt: skip


def overview(cells: list[Cell]) -> str:
    """For each kind of gradient how many cells state too much or too little, statements of each
    size beside what was observed, and the Brier score relative to that of an oracle that states the
    observed frequency of a cell."""
    head = (
        "gradient",
        "cells",
        "too high",
        "too low",
        "up to 0.7",
        "0.7 to 0.9",
        "above 0.9",
        "Brier",
    )
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for words, policies, estimator in KINDS.values():
        of = [
            (cell, way)
            for cell in cells
            if known(cell) and cell["policy"] in policies and cell["estimator"] == estimator
            for way in WAYS
        ]
        if not of:
            continue
        went = np.array([cell[f"counted_{way}"] for cell, way in of])
        apart = np.array([cell[f"said_{way}"] for cell, way in of]) - went
        score = np.array([cell[f"brier_{way}"] for cell, way in of])
        parts = np.array([cell[f"parts_{way}"] for cell, way in of])
        count, said, seen = np.moveaxis(parts, 2, 0)
        total = np.maximum(count.sum(0), 1)
        shown = zip(
            (count * said).sum(0) / total, (count * seen).sum(0) / total, total, strict=True
        )
        texts = (
            words, str(len(of)), f"{np.sum(apart > MARGIN)} ({apart.max():+.2f})",
            f"{np.sum(apart < -MARGIN)} ({apart.min():+.2f})",
            *(f"{s:.2f} / {c:.2f} ({k:.0f})" for s, c, k in shown),
            f"{score.sum() / max(np.sum(went * (1 - went)), 1e-9):.2f}",
        )  # fmt: skip
        text.append(f"| {' | '.join(texts)} |")
    return "\n".join(text)


def _curves(cells: list[Cell]) -> list[Curve]:
    """Stated probability against observed frequency, one panel per policy."""
    curves = []
    for kind, judged in JUDGED.items():
        for name in judged:
            of = sorted(
                (cell[f"counted_{way}"], cell[f"said_{way}"], cell[f"error_{way}"])
                for cell in cells
                if known(cell) and (cell["policy"], cell["estimator"]) == (kind, name)
                for way in WAYS
            )
            if of:
                x, y, half = (list(column) for column in zip(*of, strict=True))
                curves.append(Curve(kind, name, LOOKS[name], x, y, half))
    return curves


EXPERIMENT = Experiment(
    name="uphill-tasks",
    item="beyond the paper",
    title="Error bars on CartPole, Acrobot and Pendulum, against gradients of 10⁵ episodes",
    runs=100,
    quick_runs=50,
    paper_runs=300,
    run=run,
    judge=judge,
    minutes=6,
)
