"""The stated probability of going uphill on a Gymnasium task, beside how often it happens: the
column `sure` of the default agent and what one batch says by itself.

    python benchmarks/uphill_gymnasium.py --task Hopper-v5 [--policy mlp] --out results/uphill.jsonl
    python benchmarks/uphill_gymnasium.py --table results/uphill.jsonl

At each stage of a run the policy stays as it is and plays many batches of `M` episodes. The
gradient that judges a batch is that of all other batches: returns-to-go less values fitted to
`FITTED` batches before them. The first `BEFORE` batches only teach the run. The objective is the
agent's own, the mean over steps, and the time
limit is an end. `doubt` is the squared standard error of that gradient over its squared length.
`sure` is what the run states that plays these batches one after the other.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lines
import numpy as np
from uphill_tasks import BEFORE

import bayespg
from bayespg.calibration import ENDS, _part, brier
from bayespg.environments.trajectories import returns_to_go
from bayespg.learning import values
from bayespg.learning.advance import batch_of
from bayespg.learning.batch import flat
from bayespg.learning.regression import steps
from bayespg.paths import scores
from bayespg.policies.features import Timed
from bayespg.posterior import believed, no_weights, uphill

FITTED = 10
WAYS = {"mean": False, "natural": True}


def drawn(agent: Any, number: int) -> Any:
    """The paths of a batch of this policy; `number` takes the place of the number of updates."""
    state = agent.state
    at = jnp.asarray(1_000_000 + number, state.counts.updates.dtype)
    agent.state = eqx.tree_at(lambda s: s.counts.updates, state, at)
    paths = agent.draw()
    agent.state = state
    return paths


def seen(batch: Any) -> tuple[Any, Any]:
    """States with the time that is left, and returns-to-go, of every step."""
    togo = flat(returns_to_go(batch.steps, batch.discount))
    return steps(batch, limit_ends=True, score=False, timed=True).states, togo


@eqx.filter_jit
def fitted(agent_state: Any, of: Any, discount: Any, horizon: int) -> Any:
    """States and returns-to-go of a batch, to which values are fitted."""
    batch = batch_of(agent_state, of, discount, horizon)
    return *seen(batch), flat(batch.paths.mask)


@eqx.filter_jit
def asked(
    estimator: Any, state: Any, of: Any, discount: Any, horizon: int, V: Any, beliefs: Any
) -> Any:
    """What the run knows afterwards; directions and what is stated of them, and the sums over the
    steps that stand for the truth."""
    batch = batch_of(state, of, discount, horizon)
    posterior = estimator(batch)
    ways, after = [], []
    for natural, belief in zip(WAYS.values(), beliefs, strict=True):
        run, belief = believed(posterior, natural, belief)
        after.append(belief)
        d = posterior.fisher.solve(posterior.mean) if natural else posterior.mean
        ways.append((d, uphill(posterior, natural), run))
    inputs, togo = seen(batch)
    T, M = batch.paths.mask.shape
    left = jnp.where(batch.paths.mask, (togo - V(inputs)).reshape(M, T).T, 0.0)
    each = scores.of_paths(batch.policy, batch.paths, left)
    return after, (ways, jnp.sum(each, 0), jnp.sum(batch.paths.mask))


def measured(agent: Any, batches: int, seconds: float) -> dict[str, Any]:
    begun, settings = time.monotonic(), agent._arguments(None)
    estimator, _, state, _, discount, horizon, _ = settings
    rows, returned = [], []
    with agent.precision():
        X, y, taken = (
            jnp.concatenate(x) for x in zip(
                *(fitted(state, drawn(agent, i), discount, horizon) for i in range(FITTED)),
                strict=True,
            )
        )  # fmt: skip
        V = values.fit(values.start(Timed(X.shape[1])), X, y, taken)
        none = no_weights(state.trust.rho.dtype)
        beliefs = [none for _ in WAYS]
        for number in itertools.count(FITTED):
            paths = drawn(agent, number)
            beliefs, row = asked(estimator, state, paths, discount, horizon, V, beliefs)
            rows.append(jax.device_get(row))
            returned.append(
                float(np.sum(np.asarray(paths.rewards) * np.asarray(paths.mask), 0).mean())
            )
            late = time.monotonic() - begun > seconds and len(rows) > 2 * BEFORE
            if len(rows) == batches or late:
                break
    return judged(rows) | {"return": float(np.mean(returned))}


def judged(rows: list[Any]) -> dict[str, Any]:
    sums, counts = (np.stack([row[i] for row in rows]).astype(float) for i in (1, 2))
    others = (sums.sum(0) - sums) / (counts.sum() - counts)[:, None]
    g = sums.sum(0) / counts.sum()
    error = np.sum((sums - counts[:, None] * g) ** 2) / counts.sum() ** 2
    line: dict[str, Any] = {
        "batches": len(rows),
        "doubt": float(error / max(g @ g - error, 1e-300)),
    }
    line["steps_per_batch"] = float(counts.mean())
    for i, way in enumerate(WAYS):
        d, alone, run = (np.stack(x) for x in zip(*(row[0][i] for row in rows), strict=True))
        up = 0.5 + 0.5 * np.sign(np.sum(d * others, 1))
        d, alone, run, up = (x[BEFORE:] for x in (d, alone, run, up))
        line[way] = {
            "observed": float(up.mean()), "alone": float(alone.mean()), "run": float(run.mean()),
            "brier_alone": brier(alone, up), "brier_run": brier(run, up),
            "parts_alone": [_part(alone, up, *ends) for ends in ENDS],
            "parts_run": [_part(run, up, *ends) for ends in ENDS],
        }  # fmt: skip
    return line


def table(found: list[lines.Line]) -> str:
    """Stated by one batch, by a run / observed, and the Brier score of the run relative to that of
    an oracle that states the observed frequency."""
    head = (
        "task", "parameters", "steps", "return", "M", "batches", "doubt", "along the mean", "Brier",
        "along the natural gradient", "Brier",
    )  # fmt: skip
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for x in found:
        cells = []
        for way in WAYS:
            of = x[way]
            p = of["observed"]
            score = f"{of['brier_run'] / (p * (1 - p)):.2f}" if 0 < p < 1 else ""
            cells += [f"{of['alone']:.2f}, {of['run']:.2f} / {p:.2f}", score]
        text.append(
            f"| {x['task']} | {x['parameters']:,} | {x['steps']:,} | {x['return']:.0f} | "
            f"{x['M']} | {x['batches']} | {x['doubt']:.2f} | {' | '.join(cells)} |"
        )
    return "\n".join(text)


def every(options: argparse.Namespace) -> Iterator[lines.Line]:
    agent = bayespg.BAC(options.task, options.policy, seed=options.seed, episodes=16)
    for steps_ in options.stages:
        while int(agent.state.steps) < steps_:
            agent.update()
        for M in options.episodes:
            agent.settings = type(agent.settings)(**{**vars(agent.settings), "episodes": M})
            yield {
                "task": options.task, "policy": options.policy or "default", "seed": options.seed,
                "steps": int(agent.state.steps),
                "M": M, "parameters": agent.parameter_count,
            } | measured(agent, options.batches, options.seconds)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="Hopper-v5")
    parser.add_argument("--policy", help="the task's default unless given")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--stages", type=int, nargs="*", default=[0, 5_000, 30_000])
    parser.add_argument("--episodes", type=int, nargs="*", default=[16, 4])
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=90.0, help="for one stage and size")
    lines.run(parser, every, table)
