"""What decisions from the error bars cost and save, on classic tasks in JAX with the default agent.

    python benchmarks/decisions.py --out docs/results/decisions.jsonl
    python benchmarks/decisions.py --tasks Pendulum --set episodes=16 --out ...
    python benchmarks/decisions.py --table docs/results/decisions.jsonl

Steps: at three stages of a run the policies before and after each step play the same 500
episodes. A step is worse if its change of the mean return is more than a standard error below zero
(where a step changes nothing, chance alone makes that 16 %), clearly worse if it is two. `sure` is
what the run stated about the step. With `--set` other settings are judged beside the defaults: what
fewer of these steps cost is told by the environment steps after which the mean return of the last
20 training episodes first reaches the task's `SOLVED`. Rows with a `rule` are of commit 5173c3d:
steps that were shorter, or not made, where `sure` is low.

Stopping: with `--budget` runs of that many steps in which no step is judged; `StopWhenSure` is
asked about every row, and the return where it would have ended a run is compared with that at the
end.

Episodes needed: how often the 90 % interval of `episodes_needed`, from eight episodes, holds the
number with which a step goes uphill with probability 95 %. With h_i the unbiased gradients of very
many episodes and g their mean, that number is (z sd(h'g) / g'g)^2 with z = 1.645.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lines
import numpy as np
import uphill_tasks

import bayespg
from bayespg._support.precision import to_float64
from bayespg.agents.callbacks import StopWhenSure
from bayespg.calibration import ENDS, _part, brier
from bayespg.learning import estimators
from bayespg.learning.batch import draw
from bayespg.runs.columns import Column

TASKS = {"CartPole": 40_000, "Acrobot": 40_000, "Pendulum": 60_000}
STAGES = (0.0, 0.2, 0.8)
"""Shares of the steps of a run at which a stage begins."""
UPDATES, EPISODES, CLEAR = 15, 500, 2.0
SOLVED, LAST = {"CartPole": 475.0, "Acrobot": -100.0, "Pendulum": -200.0}, 20
TRAINED = (0, 10, 50)
"""Updates before `episodes_needed` is asked."""
BATCHES, PATHS, AT_ONCE, Z, DOUBT = 400, 8, 20, 1.645, 0.5


def judged(task: str, steps: int, seed: int, settings: dict[str, Any]) -> lines.Line:
    agent = bayespg.BAC(f"jax/{task}-v1", seed=seed, **settings)
    stop, stopped, each, recent, solved = StopWhenSure(say=None), None, [], [], None

    def played() -> np.ndarray:
        return agent.evaluate(EPISODES, seed=1_000_000 + seed).returns

    for stage, share in enumerate((*STAGES, 1.0)):
        judging = 0
        while int(agent.state.steps) < share * steps or judging < UPDATES * (share < 1):
            judging += int(agent.state.steps) >= share * steps
            before = played() if judging else None
            played_before = int(agent.state.episodes)
            row = agent.update()
            fresh = int(row[Column.EPISODES]) - played_before
            recent = [*recent, *[row[Column.RETURN]] * fresh][-LAST:]
            if solved is None and len(recent) == LAST and np.mean(recent) >= SOLVED[task]:
                solved = int(row[Column.STEPS])
            if before is not None:
                moved = row[Column.STEP_NORM] > 0
                change = (played() - before) if moved else 0 * before
                error = float(change.std(ddof=1) / np.sqrt(EPISODES))
                each.append([stage, round(row[Column.SURE], 4), float(change.mean()), error])
            if stopped is None and not stop(agent, row):
                stopped = {"steps": int(row[Column.STEPS]), "return": float(played().mean())}
    end = {"steps": int(agent.state.steps), "return": float(played().mean())}
    return {
        "task": task, "seed": seed, "settings": settings, "solved": solved, "each": each,
        "stopped": stopped, "end": end,
    }  # fmt: skip


def stopping(task: str, budget: int, seed: int) -> lines.Line:
    agent, stop = bayespg.BAC(f"jax/{task}-v1", seed=seed), StopWhenSure(say=None)

    def at() -> dict[str, float]:
        played = agent.evaluate(EPISODES, seed=1_000_000 + seed).returns
        return {
            "steps": int(agent.state.steps), "episodes": int(agent.state.episodes),
            "return": float(played.mean()), "error": float(played.std() / np.sqrt(EPISODES)),
        }  # fmt: skip

    stopped = None
    while int(agent.state.steps) < budget:
        row = agent.update()
        if stopped is None and not stop(agent, row):
            stopped = at()
    return {"task": task, "seed": seed, "budget": budget, "stopped": stopped, "end": at()}


@eqx.filter_jit
def _asked(environment, policy, keys):
    """Unbiased gradients of paths, and the answers, of every batch."""

    def one(key):
        posterior = estimators.BAC()(draw(environment, policy, key, PATHS))
        return posterior.unbiased, jnp.stack(posterior.episodes_needed(0.95))

    return jax.lax.map(one, keys, batch_size=AT_ONCE)


def needed(task: str, seed: int) -> Iterator[lines.Line]:
    agent, key = bayespg.BAC(uphill_tasks.TASKS[task](), seed=seed), jax.random.key(seed)
    for done, policy in uphill_tasks._stages(agent, TRAINED[1:], key):
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.fold_in(key, 9 + done), BATCHES)
            H, said = _asked(agent.world.environment, to_float64(policy), keys)
        H, said = np.asarray(H).reshape(-1, H.shape[-1]), np.asarray(said)
        N, total = len(H), H.sum(0)
        square = (total @ total - np.sum(H**2)) / (N * (N - 1))
        along = H @ total / N
        doubt = 2 * float(along.std()) / np.sqrt(N) / max(square, 1e-300)
        more = max(np.ceil(Z**2 * along.var() / square**2) - PATHS, 0) if square > 0 else np.inf
        _, low, high = said.T
        yield {
            "task": task, "updates": done, "more": float(more), "doubt": doubt,
            "held": float(np.mean((low <= more) & (more <= high))), "batches": BATCHES,
            "median": np.median(said, 0).tolist(), "finite": float(np.mean(np.isfinite(high))),
        }  # fmt: skip


def _tradeoff(runs: list[lines.Line]) -> list[str]:
    """For each task and setting how often steps make the policy worse, what the clear ones among
    those of a run lose and gain, and what it costs."""
    head = (
        "task",
        "settings",
        "runs",
        "worse",
        "clearly worse",
        "clearly better",
        "lost / gained",
        "steps to solve",
        "return",
    )
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for task, named in dict.fromkeys((run["task"], _named(run)) for run in runs):
        of = [run for run in runs if (run["task"], _named(run)) == (task, named)]
        each = np.array([step for run in of for step in run["each"]])
        (worse, _), (clearly, better) = _clear(each, 1.0), _clear(each)
        change = each[np.abs(each[:, 2]) > CLEAR * each[:, 3], 2]
        lost, gained = -change[change < 0].sum() / len(of), change[change > 0].sum() / len(of)
        solved = [run["solved"] or np.inf for run in of]
        took = f"{np.median(solved):,.0f}" if np.isfinite(np.median(solved)) else "never"
        left = f" ({sum(map(np.isinf, solved))} never)" if np.isinf(solved).any() else ""
        end = np.median([run["end"]["return"] for run in of])
        text.append(
            f"| {task} | {named} | {len(of)} | {worse:.0%} | {clearly:.0%} | {better:.0%} | "
            f"{lost:,.0f} / {gained:,.0f} | {took}{left} | {end:.0f} |"
        )
    return text


def _named(run: lines.Line) -> str:
    words = {"LEAST_SURE": "no step below", "FULL_SURE": "shorter steps below"}
    rule = [f"{words[k]} {v:g}" for k, v in run.get("rule", {}).items()]
    return ", ".join([f"{k} {v:g}" for k, v in run["settings"].items()] + rule) or "defaults"


def _clear(each: Any, errors: float = CLEAR) -> tuple[float, float]:
    """The shares of steps that made the policy worse and better by more than these standard
    errors."""
    _, _, change, error = np.array(each).T
    z = np.divide(change, error, out=np.zeros_like(change), where=error > 0)
    return float(np.mean(z < -errors)), float(np.mean(z > errors))


def _stated(runs: list[lines.Line]) -> list[str]:
    """What was stated about the steps that are clear, and how often they made the policy better."""
    if not runs:
        return []
    of = np.array([step for run in runs for step in run["each"]])
    clear = np.abs(of[:, 2]) > CLEAR * of[:, 3]
    sure, up = of[clear, 1], (of[clear, 2] > 0).astype(float)
    parts = [f"{s:.2f} / {c:.2f} ({k})" for k, s, c in (_part(sure, up, *ends) for ends in ENDS)]
    said = f"Clear steps of the defaults, stated / better: {', '.join(parts)}"
    return [f"{said}; Brier score {brier(sure, up):.3f}."]


def _stopping(runs: list[lines.Line]) -> list[str]:
    """Where `StopWhenSure` would have ended runs, beside a fixed budget."""
    text = [
        "| task | seed | stopped after | return | steps of the budget | return |", "|---" * 6 + "|",
    ]  # fmt: skip
    for run in runs:
        stopped, end = run["stopped"], run["end"]
        at = f"{stopped['steps']:,} | {stopped['return']:.0f}" if stopped else "never | "
        text.append(
            f"| {run['task']} | {run['seed']} | {at} | {end['steps']:,} | {end['return']:.0f} |"
        )
    return text


def _needed(rows: list[lines.Line]) -> list[str]:
    """Where the number that is right is known."""
    head = "task", "updates", "needed", "stated (median)", "90 % interval (median)", "holds"
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in rows:
        if r["doubt"] >= DOUBT:
            continue
        middle, low, high = r["median"]
        error = f" ± {r['doubt'] * (r['more'] + PATHS):.0f}" if r["more"] > 0 else ""
        text.append(
            f"| {r['task']} | {r['updates']} | {r['more']:.0f}{error} | {middle:.0f} | "
            f"{low:.0f} to {high:.0f} | {r['held']:.0%} |"
        )
    return text


def table(found: list[lines.Line]) -> str:
    runs = [line for line in found if "each" in line]
    rows = [line for line in found if "held" in line]
    usual = [run for run in runs if not run["settings"] and not run.get("rule")]
    timed = [run for run in runs if "solved" in run]
    budgets = [line for line in found if "budget" in line]
    parts = _tradeoff(timed), _stated(usual), _stopping(budgets), _needed(rows)
    return "\n\n".join("\n".join(part) for part in parts if len(part) not in (0, 2))


def every(options: argparse.Namespace) -> Iterator[lines.Line]:
    settings = {k: json.loads(v) for k, v in (pair.split("=") for pair in options.set)}
    for seed in range(options.first, options.first + options.seeds):
        if options.budget:
            yield from (stopping(task, options.budget, seed) for task in options.tasks)
            continue
        yield from (judged(task, TASKS[task], seed, settings) for task in options.tasks)
    if options.needed:
        for task in options.tasks:
            yield from needed(task, options.first)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--budget", type=int, default=0, help="steps of runs that may be stopped")
    parser.add_argument("--needed", action="store_true", help="judge `episodes_needed`, too")
    lines.run(parser, every, table)
