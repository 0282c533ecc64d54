"""Are the steps worth taking? How many updates make the policy worse, and what a rule that stays
where the gradient is doubtful changes.

    python benchmarks/steps.py --out docs/results/steps.jsonl
    python benchmarks/steps.py --table docs/results/steps.jsonl

The policy fourier on CartPole, Acrobot and Pendulum in JAX, with independent exploration noise
(`persistence=0`) and `updates.only_if_sure` around its update. All runs with the same number of
episodes per update are one compiled program; then every policy on the way plays `--episodes` fresh
episodes, all policies of a run with the same random numbers. An update counts as worse where the
mean return falls by more than the standard error of 1,000 episodes. `chance` is the probability
that a step without any effect counts, were the episodes of two policies independent: 7.9 % with
4,000 of them. One line of JSON for each task, number of episodes per update and rule, appended to
the file.
"""

import argparse
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lines
import numpy as np
from scipy import special

import bayespg
from bayespg.learning import updates
from bayespg.learning.advance import advance, recent
from bayespg.learning.batch import draw
from bayespg.learning.training import start
from bayespg.paths.rollout import walk
from bayespg.policies import as_dtype, flatten

TASKS = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "Pendulum-v1": -250.0}
"""Mean returns at which a task counts as learned."""
LIMIT = 0.05


class Rule(NamedTuple):
    """`updates.only_if_sure`; level 0 always moves."""

    level: float = 0.0
    memory: float = 0.0
    gradual: bool = False


RULES = {
    2: (Rule(), Rule(0.5), Rule(0.5, 0.9), Rule(0.5, 0.9, True), Rule(0.8, 0.9),
        Rule(0.8, 0.9, True), Rule(0.9, 0.9), Rule(0.95, 0.9)),
    4: (Rule(), Rule(0.8, 0.9), Rule(0.95, 0.9)),
    8: (Rule(), Rule(0.95, 0.9)),
}  # fmt: skip
"""Episodes of an update, and the rules that are tried with them. Two episodes alone say 0.75 at
most, so a higher level needs a memory."""
STANDARD = 1_000
"""Episodes whose standard error a step must fall by to count as worse."""


class Seen(NamedTuple):
    """What happened at an update."""

    parameters: Any
    """Before it."""
    steps: Any
    """Taken until its end."""
    sure: Any
    moved: Any
    """Whether it changed the policy."""


@eqx.filter_jit
def learn(environment, estimator, policy, persistence, keys, rules, episodes, count):
    """`count` updates of one run for each rule and key; all rules see the same first batch."""

    def one(rule, key):
        update = updates.only_if_sure(updates.trust_region(LIMIT), *rule)
        state = start(environment, policy, estimator, update, key, persistence=persistence)

        def body(state, _):
            key, key_paths = jax.random.split(state.key)
            state = eqx.tree_at(lambda s: s.key, state, key)
            batch = draw(
                environment, state.policy, key_paths, episodes, jnp.float32, False,
                state.persistence,
            )  # fmt: skip
            known = (state.critic, recent(state, batch.paths))
            batch = eqx.tree_at(
                lambda b: (b.critic, b.recent), batch, known, is_leaf=lambda x: x is None
            )
            following, record, _ = advance(estimator, update, state, batch)
            before = flatten(state.policy)[0]
            return following, Seen(before, following.steps, record.sure, record.step_norm > 0)

        state, seen = jax.lax.scan(body, state, None, count)
        return seen, flatten(state.policy)[0]

    return jax.vmap(lambda rule: jax.vmap(lambda key: one(rule, key))(keys))(rules)


@eqx.filter_jit
def returns(environment, policy, thetas, keys, episodes, at_once):
    """Mean and variance of the undiscounted return of each policy, in float32."""
    rebuild = flatten(as_dtype(policy, jnp.float32))[1]

    def one(given):
        theta, key = given

        def add(R, t, states, actions, rewards, running):
            return R + jnp.where(running, rewards, 0)

        begin = jnp.zeros(episodes, jnp.float32)
        R = walk(environment, rebuild(theta.astype(jnp.float32)), key, episodes, begin, add)[1]
        return R.mean(), R.var()

    return jax.lax.map(one, (thetas, keys), batch_size=at_once)


def measure(task: str, episodes: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line for each rule."""
    begun, rules = time.perf_counter(), RULES[episodes]
    agent = bayespg.BAC(f"jax/{task}", policy="fourier", persistence=0.0)
    environment, policy = agent.world.environment, agent.policy
    count = max(options.updates * 2 // episodes, 1)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(options.seed), options.runs)
        seen, last = jax.tree.map(
            np.asarray,
            learn(
                environment,
                agent._estimator,
                policy,
                agent.settings.persistence,
                keys,
                Rule(*map(np.array, zip(*rules, strict=True))),
                episodes,
                count,
            ),
        )
        thetas = np.concatenate([seen.parameters, last[:, :, None]], 2)
        of_run = jax.random.split(jax.random.key(options.seed + 1), options.runs)
        same = jnp.broadcast_to(of_run[None, :, None], thetas.shape[:-1]).reshape(-1)
        found = returns(
            environment, policy, thetas.reshape(-1, thetas.shape[-1]), same, options.episodes,
            options.at_once,
        )  # fmt: skip
    mean, variance = (np.asarray(x, float).reshape(thetas.shape[:-1]) for x in found)
    for i, rule in enumerate(rules):
        of = jax.tree.map(lambda x, i=i: x[i], seen)
        yield summary(task, mean[i], variance[i], of, options.episodes) | {
            "task": task, "episodes": episodes, **rule._asdict(), "runs": options.runs,
            "updates": count, "evaluated": options.episodes, "seed": options.seed,
            "device": jax.devices()[0].device_kind,
            "seconds": round(time.perf_counter() - begun, 1),
        }  # fmt: skip


def summary(task: str, mean, variance, seen: Seen, episodes: int) -> dict[str, Any]:
    """Shares over updates, and steps until the return of the policy reaches the threshold."""
    threshold, steps = TASKS[task], np.asarray(seen.steps)
    fall = mean[:, :-1] - mean[:, 1:]
    worse = fall > np.sqrt(np.maximum(variance[:, :-1], variance[:, 1:]) / STANDARD)
    moved = np.asarray(seen.moved)
    reached = mean >= threshold
    first = np.where(reached.any(1), reached.argmax(1), -1)
    needed = [int(steps[i, f - 1]) if f > 0 else 0 for i, f in enumerate(first) if f >= 0]
    after = np.array([np.arange(mean.shape[1]) > f if f >= 0 else np.zeros(mean.shape[1], bool)
                      for f in first])  # fmt: skip
    share = np.mean(worse & moved, 1)
    return {
        "worse": float(share.mean()),
        "worse_error": float(share.std(ddof=1) / math.sqrt(len(share))) if len(share) > 1 else None,
        "worse_of_moved": float(np.sum(worse & moved) / max(np.sum(moved), 1)),
        "chance": float(special.ndtr(-math.sqrt(episodes / (2 * STANDARD)))),
        "moved": float(moved.mean()),
        "sure": float(np.nanmean(seen.sure)),
        "reached": int(reached.any(1).sum()),
        "steps_to_threshold": float(np.median(needed)) if needed else None,
        "steps_quartiles": np.percentile(needed, [25, 75]).tolist() if needed else None,
        "steps_in_all": float(steps[:, -1].mean()),
        "kept_after": float(np.mean(mean[after] >= threshold)) if after.any() else None,
        "last_return": float(mean[:, -1].mean()),
        "mean_return": float(mean.mean()),
    }  # fmt: skip


def table(found: list[lines.Line]) -> str:
    head = ["task", "episodes", "rule", "worse", "of those that moved", "moved", "reached",
            "steps to the threshold", "times the default", "kept it"]  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    default = {x["task"]: x["steps_to_threshold"] for x in found
               if (x["episodes"], x["level"]) == (2, 0)}  # fmt: skip
    for x in found:
        steps, base = x["steps_to_threshold"], default.get(x["task"])
        error = f" ± {100 * x['worse_error']:.1f}" if x["worse_error"] is not None else ""
        rows.append("| " + " | ".join([
            x["task"], str(x["episodes"]), _words(Rule(*(x.get(name, 0) for name in Rule._fields))),
            f"{100 * x['worse']:.1f}{error} %",
            f"{100 * x['worse_of_moved']:.1f} %", f"{100 * x['moved']:.0f} %",
            f"{x['reached']} of {x['runs']}", "never" if steps is None else f"{steps:,.0f}",
            "" if steps is None or not base else f"{steps / base:.2f}",
            "" if x["kept_after"] is None else f"{100 * x['kept_after']:.0f} %",
        ]) + " |")  # fmt: skip
    return "\n".join(rows)


def _words(rule: Rule) -> str:
    if not rule.level:
        return "always moves"
    found = f"stays below {rule.level:g}"
    return found + f", memory {rule.memory:g}" * (rule.memory > 0) + ", gradual" * rule.gradual


def every(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for task in options.tasks:
        for episodes in options.batches:
            yield from measure(task, episodes, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--batches", type=int, nargs="*", default=list(RULES), choices=list(RULES))
    parser.add_argument("--updates", type=int, default=120, help="of 2 episodes")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--episodes", type=int, default=4_000, help="that judge each policy")
    parser.add_argument("--at-once", type=int, default=256, help="policies judged at once")
    parser.add_argument("--seed", type=int, default=0)
    lines.run(parser, every, table)


if __name__ == "__main__":
    main()
