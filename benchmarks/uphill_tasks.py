"""Beyond the paper: error bars on tasks without a closed form.

CartPole, Acrobot and Pendulum in JAX at three stages of training, against gradients of very many
episodes: the stated probability of going uphill beside how often it happens, and how often
`interval` and `contains` hold the gradient, with the width relative to that of Monte Carlo at the
same coverage.

    linear    the gradient of the discounted return: Algorithm 4 with scales by evidence, Model 2
    fourier   the default agent's gradient, the mean over steps; scores written out
    mlp       the same by products with a network's Jacobian, in single precision as in training

The default's estimator, whose lambda depends on the number of episodes, is judged against the
gradient of its own objective, in which an episode that reaches its time limit has ended. `doubt` is
the squared standard error of the brute-force gradient over its squared length.

A batch is judged by itself and as an update of a run whose policy stays as it is: runs of `UPDATES`
batches, the first `BEFORE` of which only teach the run how far episodes agree.
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
from bayespg.learning import estimators, training, updates
from bayespg.learning.batch import draw
from bayespg.learning.estimators import MonteCarlo
from bayespg.policies import AnyPolicy, as_dtype, flatten
from bayespg.posterior import (
    believed,
    component_statistics,
    no_weights,
    region_statistics,
    uphill,
)
from bayespg.reproduce import parts
from bayespg.reproduce.claims import Claim
from bayespg.reproduce.report import Curve, Experiment, Progress, Report, Settings
from bayespg.reproduce.samples import Samples

TASKS = {"CartPole": classic.CartPole, "Acrobot": classic.Acrobot, "Pendulum": classic.Pendulum}
BATCH = 2_000
"""Episodes of the brute-force gradient that are drawn at once."""
UPDATES, BEFORE = 40, 20
"""Batches of a run, and those before the first that is judged."""
LEVELS = (0.5, 0.95)
FEW = 30
"""Batches that say something, below which a cell is not judged."""
DOUBT = 0.1
"""Beyond which a brute-force gradient is too uncertain to say which way is uphill."""
WAYS = ("mean", "natural")
Cell = dict[str, Any]
"""What was measured of one estimator at one task, policy, stage and number of episodes."""


STEPS: dict[str, Any] = {
    "weights": "uniform", "fisher": estimators.stationary_integrated_out, "limit_ends": True,
}  # fmt: skip
MC, OURS = "Monte Carlo", "the default"
PAPER = {
    MC: MonteCarlo("states", fisher=estimators.steps_integrated_out, limit_ends=True),
    "BAC": estimators.BACPaper(noise=None, limit_ends=True),
    "Model 2": estimators.Model2(noise=None, baseline=float("inf")),
}
DEFAULT = {
    MC: MonteCarlo("states", **STEPS),
    OURS: estimators.BAC(),
}
JUDGED = {"linear": PAPER, "fourier": DEFAULT, "mlp": DEFAULT}
LOOKS = {MC: "MC", "BAC": "BAC variant", "Model 2": "BQ", OURS: "ours"}
KINDS = {
    "default": ("the default agent's gradient", ("fourier",), OURS),
    "networks": ("the default gradient of networks", ("mlp",), OURS),
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
        paths = {"fourier": (4, 16), "mlp": (2, 4, 16, 64)}
        return Size(tuple(TASKS), paths, (10, 50), 100_000)
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
def _agent(kind: str, task: str) -> Any:
    """The default agent."""
    return BAC(TASKS[task](), policy=kind)


def trained(settings: Settings, of: Size, kind: str, task: str) -> parts.Part:
    """The policies of all stages."""
    found = _stages(_agent(kind, task), of.updates, jax.random.key(settings.seed))
    return {"policies": np.stack([flatten(policy)[0] for _, policy in found])}


def gradient(settings: Settings, of: Size, stage: Stage, found: parts.Part) -> parts.Part:
    """The policy of a stage, the gradient of very many episodes, and its standard errors."""
    agent, theta = _agent(*stage[:2]), found["policies"][stage.nth]
    exact = MonteCarlo("mean") if stage.kind == "linear" else MonteCarlo("states", **STEPS)
    truth, error = brute_force(
        agent.world.environment, _policy(agent, theta), exact,
        batches=max(of.episodes // BATCH, 2), paths=min(of.episodes // 2, BATCH),
        key=jax.random.key(settings.seed + 1),
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
            jax.random.split(key, (UPDATES, max(settings.runs // (UPDATES - BEFORE), 1))),
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


def _statistics(environment, policy, judged, truth, paths, keys):
    """What each posterior says of its two directions, their true slopes, and the statistics of its
    intervals and of its region."""
    given = environment, policy, judged, truth, paths, keys
    return _compiled(truth.dtype == jnp.float64)(*given)


@functools.cache
def _compiled(double: bool):
    options: dict[str, Any] = {"compiler_options": compilation.fast(double=double)}
    return eqx.filter_jit(_over_batches, **options)


def _over_batches(environment, policy, judged, truth, paths, keys):
    """What is stated of every batch but the first `BEFORE` of each run, whose keys are a column."""

    def one(beliefs, key):
        batch, after, found = draw(environment, policy, key, paths), [], []
        for estimator, pair in zip(judged, beliefs, strict=True):
            p, followed, learned = estimator(batch), [], []
            for natural, belief in zip((False, True), pair, strict=True):
                said, belief = believed(p, natural, belief)
                slope = truth @ (p.fisher.solve(p.mean) if natural else p.mean)
                followed.append((uphill(p, natural), said, slope))
                learned.append(belief)
            after.append(learned)
            found.append((followed, component_statistics(p), region_statistics(p, truth)))
        return after, found

    none = no_weights(truth.dtype)
    none = jnp.broadcast_to(none, (keys.shape[1], *none.shape))
    found = jax.lax.scan(jax.vmap(one), [[none, none] for _ in judged], keys)[1]
    return jax.tree.map(lambda x: x[BEFORE:].reshape(-1, *x.shape[2:]), found)


def _summaries(judged, found, truth) -> Iterator[Cell]:
    """One cell for each estimator; Monte Carlo, whose widths are the unit, is the first."""
    truth, reference = np.asarray(truth, float), None
    for name, (followed, components, region) in zip(judged, found, strict=True):
        cell: Cell = {"estimator": name}
        for way, numbers in zip(WAYS, followed, strict=True):
            told = numbers[0] != 0.5
            if told.sum() < FEW:
                continue
            said, run_said, slope = (x[told] for x in numbers)
            went = 0.5 * (1 + np.sign(slope))
            cell[f"told_{way}"] = int(told.sum())
            cell[f"counted_{way}"] = float(went.mean())
            cell |= _stated(way, said, went)
            cell |= _stated(f"{way}_run", run_said, went)
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


def _stated(name: str, said, went) -> Cell:
    return {
        f"said_{name}": float(said.mean()), f"brier_{name}": brier(said, went),
        f"error_{name}": float(np.std(said - went) / np.sqrt(said.size)),
        f"parts_{name}": [_part(said, went, *ends) for ends in ENDS],
    }  # fmt: skip


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
                (_where(cell, way), f"{cell['policy']}: {cell['estimator']}{end}", cell["paths"]):
                    np.array([
                        cell[what] for what in
                        (f"said_{way}{suffix}", f"counted_{way}", f"error_{way}{suffix}")
                    ])
                for cell in cells if known(cell)
                for way in WAYS
                for end, suffix in (("", ""), (", run", "_run"))
            }
        ),
        figure=lambda: diagram(curves, titles, width=10),
        notes=[
            "Stated by one batch, by a run / observed for each M; the percentage of components "
            "whose interval and of batches whose region holds the gradient; the interval's width "
            "relative to Monte Carlo's if that held as often. Batches whose returns say nothing, "
            "about which one half is stated, do not count. A dash is a cell that was not measured, "
            f"or that has fewer than {FEW} batches that count. Where the "
            f"squared standard error of the brute-force gradient is more than {DOUBT:g} of its "
            "squared length, the truth is unknown and the claims leave the stage out."
        ],
        extra={"cells": cells},
    )  # fmt: skip


def known(cell: Cell) -> bool:
    """Whether the probability was measured, and the brute-force gradient says what is uphill."""
    return all(f"said_{way}" in cell for way in WAYS) and cell["doubt"] < DOUBT


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
    "{paths}",
    *(f"{{said_{way}:.2f}}, {{said_{way}_run:.2f}} / {{counted_{way}:.2f}}" for way in WAYS),
    "{interval_95:.0%}", "{region_95:.0%}", "{width_95:.1f}",
)  # fmt: skip


def _shown(cell: Cell, form: str) -> str:
    try:
        return form.format(**cell).replace("%", "")
    except KeyError:
        return "-"


ENDINGS = ("", "of one batch", "right or cautious"), (", run", "of a run", "right")


def judge(samples: Samples) -> list[Claim]:
    """One batch cannot know how strong gradients are, and may be cautious; a run learns it."""
    claims = []
    for (id, (words, policies, estimator)), (end, by, right) in itertools.product(
        KINDS.items(), ENDINGS
    ):
        names = [f"{policy}: {estimator}{end}" for policy in policies]
        effects = apart({where: of for (where, name, _), of in samples.items() if name in names})
        if effects:
            claims.append(Claim(
                f"tasks-uphill-{id}{end.replace(', ', '-')}", "",
                f"{words}: the probability of going uphill {by} is {right} on CartPole, Acrobot "
                "and Pendulum",
                "stated probability minus observed frequency", effects,
                above=-MARGIN if end else -1.01, below=MARGIN,
            ))  # fmt: skip
    return claims


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
            cell
            for cell in cells
            if known(cell) and cell["policy"] in policies and cell["estimator"] == estimator
        ]
        for suffix, by in (("", "one batch"), ("_run", "a run")):
            each = [(cell, way) for cell in of for way in WAYS if f"said_{way}{suffix}" in cell]
            if each:
                text.append(f"| {words}, {by} | {' | '.join(_judged(each, suffix))} |")
    return "\n".join(text)


def _judged(each: list[tuple[Cell, str]], suffix: str) -> tuple[str, ...]:
    """The cells of a row of `overview`."""

    def of(what: str) -> np.ndarray:
        return np.array([cell[f"{what}_{way}{suffix}"] for cell, way in each])

    went = np.array([cell[f"counted_{way}"] for cell, way in each])
    apart = of("said") - went
    count, said, seen = np.moveaxis(of("parts"), 2, 0)
    total = np.maximum(count.sum(0), 1)
    shown = zip((count * said).sum(0) / total, (count * seen).sum(0) / total, total, strict=True)
    return (
        str(len(each)), f"{np.sum(apart > MARGIN)} ({apart.max():+.2f})",
        f"{np.sum(apart < -MARGIN)} ({apart.min():+.2f})",
        *(f"{s:.2f} / {c:.2f} ({k:.0f})" for s, c, k in shown),
        f"{of('brier').sum() / max(np.sum(went * (1 - went)), 1e-9):.2f}",
    )  # fmt: skip


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
