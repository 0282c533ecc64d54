"""Error bars on tasks without a closed form: CartPole, Acrobot and Pendulum in JAX at three stages
of training, against gradients of very many episodes.

    bash benchmarks/error_bars.sh docs/results                 (a GPU, about 8 minutes)
    python benchmarks/uphill.py --tasks CartPole --policies linear --out results/uphill.jsonl
    bash benchmarks/sure.sh docs/results                       (5 minutes, probabilities only)
    python benchmarks/uphill.py --table docs/results/uphill-tasks.jsonl \\
        docs/results/uphill-judged.jsonl

What is said of following the gradient beside how often it goes uphill, and how often `interval` and
`contains` hold the gradient, with the width relative to that of Monte Carlo at the same coverage.

    linear    the gradient of the discounted return: Algorithm 4 with scales by evidence, Model 2
    fourier   the default agent's gradient, the mean over steps; scores written out
    mlp       the same by products with a network's Jacobian, in single precision as in training

The default's estimator (lambda 0.9, no reward known after a time limit) is judged against the
gradient of the task that goes on after the limit. One line of JSON for each task, policy, stage,
number of episodes and estimator; `doubt` is the squared standard error of the brute-force gradient
over its squared length.
"""

import argparse
import time
from collections import defaultdict

import equinox as eqx
import jax
import jax.numpy as jnp
import lines
import numpy as np

import bayespg
from bayespg import estimators, training, updates
from bayespg._support.precision import to_float64
from bayespg._support.statistics import f_quantile, student_quantile
from bayespg.calibration import brute_force
from bayespg.environments import classic
from bayespg.environments.trajectories import returns_to_go
from bayespg.learning import values
from bayespg.learning.batch import draw
from bayespg.learning.estimators import Estimator, MonteCarlo
from bayespg.monte_carlo import average
from bayespg.paths import scores
from bayespg.policies import as_dtype, flatten
from bayespg.posterior import component_statistics, region_statistics, uphill
from bayespg.runs import plots

TASKS = {"CartPole": classic.CartPole, "Acrobot": classic.Acrobot, "Pendulum": classic.Pendulum}
BEYOND = 300
"""Steps after the time limit, for the gradient of the task that goes on; 0.99^300 = 0.05."""
LEVELS = (0.5, 0.95)
DOUBT = 0.1
"""Beyond which a brute-force gradient is too uncertain to say which way is uphill."""


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


STEPS = {"weights": "uniform", "fisher": estimators.stationary_integrated_out}
OURS = "BAC, lambda 0.9"
WAYS = ("mean", "natural")
PAPER = {
    "Monte Carlo": MonteCarlo("states", fisher=estimators.steps_integrated_out, limit_ends=True),
    "BAC": estimators.BAC(noise=None, limit_ends=True),
    "Model 2": estimators.Model2(noise=None, baseline=float("inf")),
}
DEFAULT = {
    "Monte Carlo": MonteCarlo("states", **STEPS),
    OURS: estimators.adaptive(),
    "BAC, lambda 1": estimators.adaptive(1.0),
}
JUDGED = {"linear": PAPER, "fourier": DEFAULT, "mlp": DEFAULT}


def stages(agent, counts, key):
    """The policy after each number of updates of 8 episodes."""
    theta, rebuild = flatten(to_float64(agent.policy))
    found = training.train(
        agent.world.environment, agent.policy, estimators.adaptive(), updates.trust_region(0.05),
        paths=8, updates=max(counts), key=key, every=int(np.gcd.reduce(counts)),
        evaluate=lambda policy, key: flatten(policy)[0],
    ).evaluations  # fmt: skip
    for done, theta in zip(found.updates, found.values, strict=True):
        if done in (0, *counts):
            yield int(done), rebuild(jnp.asarray(theta))


@eqx.filter_jit
def judge(environment, policy, judged, truth, paths, keys, at_once, intervals=True):
    """What each posterior says of its two directions, their true slopes, and the statistics of its
    intervals and of its region."""

    def run(key):
        batch = draw(environment, policy, key, paths)
        return [_judged(estimator(batch), truth, intervals) for estimator in judged]

    return jax.lax.map(run, keys, batch_size=at_once)


def _judged(p, truth, intervals):
    followed = [
        (uphill(p, natural), truth @ (p.fisher.solve(p.mean) if natural else p.mean))
        for natural in (False, True)
    ]
    if not intervals:
        return followed, None, None
    return followed, component_statistics(p), region_statistics(p, truth)


def summaries(judged, found, truth):
    """One dictionary for each estimator; Monte Carlo, whose widths are the unit, is the first."""
    truth, reference = np.asarray(truth, float), None
    for name, (followed, components, region) in zip(judged, found, strict=True):
        line = {"estimator": name}
        for way, (said, slope) in zip(WAYS, followed, strict=True):
            went = 0.5 * (1 + np.sign(slope))
            line |= {
                f"said_{way}": float(said.mean()), f"counted_{way}": float(went.mean()),
                f"error_{way}": float(np.std(said - went) / np.sqrt(said.size)),
            }  # fmt: skip
        if components is None:
            yield line
            continue
        (centre, spread, freedom), (distance, scale, rank, nu) = components, region
        away = np.abs(centre - truth)
        reference = (away, spread) if reference is None else reference
        for level in LEVELS:
            reach = spread * student_quantile(level, freedom)
            held = float(np.mean(away <= reach))
            line[f"interval_{100 * level:.0f}"] = held
            line[f"region_{100 * level:.0f}"] = float(
                np.mean(distance <= scale * f_quantile(level, rank, nu))
            )
            line[f"width_{100 * level:.0f}"] = float(
                _mean_width(reach) / _widened(*reference, held)
            )
        yield line


def _mean_width(reach):
    return np.mean(np.median(reach, 0))


def _widened(away, spread, held):
    """Monte Carlo's half-width if its errors are multiplied until intervals hold that often."""
    sized = away / np.where(spread > 0, spread, 1.0)
    return np.quantile(sized, held) * _mean_width(spread)


def measure(task: str, kind: str, options: argparse.Namespace):
    key, make = jax.random.key(options.seed), TASKS[task]
    agent = bayespg.BAC(make(), policy=kind)
    horizon = agent.world.environment.horizon
    longer = bayespg.BAC(make(horizon=horizon + BEYOND), policy=kind).world.environment
    for done, policy in stages(agent, (options.updates, 5 * options.updates), key):
        where, exact = agent.world.environment, MonteCarlo("mean")
        if kind != "linear":
            where, exact = longer, Continued(horizon)
        truth, error = brute_force(
            where, policy, exact, batches=max(options.episodes // options.batch, 2),
            paths=options.batch, key=jax.random.fold_in(key, 1),
        )  # fmt: skip
        doubt = float(np.sum(error**2) / max(np.sum(truth**2), 1e-300))
        for paths in options.paths:
            begun = time.perf_counter()
            judged = {k: v for k, v in JUDGED[kind].items() if k in (options.estimators or [k])}
            with jax.enable_x64(kind != "mlp"):
                acting = as_dtype(policy, jnp.float32 if kind == "mlp" else jnp.float64)
                found = judge(
                    agent.world.environment, acting, list(judged.values()),
                    jnp.asarray(truth, flatten(acting)[0].dtype), paths,
                    jax.random.split(jax.random.fold_in(key, 2 + done), options.runs),
                    max(1, options.at_once * 4 // paths), not options.uphill_only,
                )  # fmt: skip
                found = jax.tree.map(lambda x: np.asarray(x, float), found)
            for line in summaries(judged, found, truth):
                yield {"task": task, "policy": kind, "updates": done, "paths": paths} | line | {
                    "runs": options.runs, "doubt": doubt, "seed": options.seed,
                    "device": jax.devices()[0].device_kind,
                    "seconds": round(time.perf_counter() - begun, 1),
                }  # fmt: skip


def merged(found: list[lines.Line]) -> list[lines.Line]:
    """One line per cell: what was measured later replaces what was measured before."""
    cells: dict[tuple, lines.Line] = {}
    for line in found:
        cell = tuple(line[k] for k in ("policy", "task", "updates", "paths", "estimator"))
        cells[cell] = cells.get(cell, {}) | line
    return list(cells.values())


def table(found: list[lines.Line]) -> str:
    """What is said and counted for the default agent, stage by stage; then for every estimator the
    least and the greatest over the stages."""
    found = merged(found)
    return f"{stated(found)}\n\n{over_stages(found)}"


def stated(found: list[lines.Line]) -> str:
    """Stated / observed, for the default agent's gradient."""
    found = [x for x in found if x["estimator"] == OURS and "said_mean" in x]
    sizes = sorted({x["paths"] for x in found})
    head = ["policy", "task", "updates", *(f"{way}, M = {M}" for way in WAYS for M in sizes)]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for key in sorted({(x["policy"], x["task"], x["updates"]) for x in found}):
        of = {x["paths"]: x for x in found if (x["policy"], x["task"], x["updates"]) == key}
        cells = [
            f"{of[M][f'said_{way}']:.2f} / {of[M][f'counted_{way}']:.2f}" if M in of else ""
            for way in WAYS
            for M in sizes
        ]
        unknown = next(iter(of.values()))["doubt"] >= DOUBT
        stage = f"{key[2]}{' (truth unknown)' * unknown}"
        rows.append("| " + " | ".join([*key[:2], stage, *cells]) + " |")
    return "\n".join(rows)


def over_stages(found: list[lines.Line]) -> str:
    cells = defaultdict(list)
    for line in found:
        cells[line["policy"], line["task"], line["estimator"]].append(line)
    sizes = sorted({line["paths"] for line in found if "interval_95" in line})
    head = ["policy", "task", "estimator", *(f"interval, M = {M}" for M in sizes),
            *(f"region, M = {M}" for M in sizes), "width", "stated less observed"]  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for names, each in sorted(cells.items()):
        measured = [x for x in each if "interval_95" in x]
        shown = [
            _range(f"{100 * x[f'{what}_95']:.0f}" for x in measured if x["paths"] == M)
            for what in ("interval", "region")
            for M in sizes
        ]
        widths = [x["width_95"] for x in measured if 0.8 < x["interval_95"] < 0.999]
        shown.append(f"{np.median(widths):.1f}" if widths else "")
        apart = [x[f"said_{w}"] - x[f"counted_{w}"] for x in each for w in WAYS if known(x)]
        shown.append(_range(f"{x:+.2f}" for x in apart))
        rows.append("| " + " | ".join([*names, *shown]) + " |")
    return "\n".join(rows)


def diagram(found: list[lines.Line]):
    """Stated probability against observed frequency, one panel per policy."""
    found = [x for x in merged(found) if known(x)]
    looks = {
        "Monte Carlo": "MC", "BAC": "BAC variant", "Model 2": "BQ", OURS: "ours",
        "BAC, lambda 1": "BAC",
    }  # fmt: skip
    with plots.styled():
        figure, axes = plots.sheet(1, len(JUDGED), width=10, height=4.2, sharex=True, sharey=True)
        for axis, kind in zip(axes.flat, JUDGED, strict=True):
            axis.plot([0, 1], [0, 1], color="black", lw=0.8, ls=(0, (4, 3)))
            axis.fill_between([0, 1], [0, 1], color="#f2f2f2", lw=0)
            for name in JUDGED[kind]:
                of = [x for x in found if (x["policy"], x["estimator"]) == (kind, name)]
                at = [(x[f"counted_{way}"], x[f"said_{way}"]) for x in of for way in WAYS]
                look = plots.LOOKS[looks[name]] | {"linestyle": "", "alpha": 0.7, "mew": 0}
                axis.plot(*np.array(at or [(np.nan, np.nan)]).T, label=name, **look)
            axis.set(title=kind, xlabel="observed frequency", xlim=(0, 1.02), ylim=(0, 1.02))
            axis.legend(loc="upper left", fontsize="small")
        axes.flat[0].set_ylabel("stated probability (grey: right or cautious)")
    return figure


def known(line: lines.Line) -> bool:
    """Whether the probability was measured, and the brute-force gradient says what is uphill."""
    return "said_mean" in line and line["doubt"] < DOUBT


def _range(values) -> str:
    ordered = sorted(set(values), key=float)
    return " to ".join(dict.fromkeys([ordered[0], ordered[-1]])) if ordered else ""


def every(options: argparse.Namespace):
    for task in options.tasks:
        for kind in options.policies:
            yield from measure(task, kind, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--policies", nargs="*", default=list(JUDGED), choices=list(JUDGED))
    parser.add_argument("--episodes", type=int, default=100_000, help="of the brute-force gradient")
    parser.add_argument("--batch", type=int, default=2_000, help="episodes drawn at once")
    parser.add_argument("--runs", type=int, default=300, help="batches that are judged")
    parser.add_argument("--paths", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--updates", type=int, default=10, help="until the second stage")
    parser.add_argument("--at-once", type=int, default=100, help="batches of 4 judged at once")
    parser.add_argument("--estimators", nargs="*", help="these only, by the names in the tables")
    parser.add_argument("--uphill-only", action="store_true", help="no intervals: much faster")
    parser.add_argument("--seed", type=int, default=0)
    lines.run(parser, every, table, diagram)


if __name__ == "__main__":
    main()
