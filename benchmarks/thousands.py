"""Thousands of seeds in one program, beside PPO of PureJaxRL and rejax.

    python benchmarks/thousands.py learn CartPole-v1 ours [--seeds 4096] [--out FILE]
    python benchmarks/thousands.py sweep [--seeds 4096]
    python benchmarks/thousands.py first
    python benchmarks/thousands.py table

`learn`: seeds side by side until nine in ten have reached the threshold, or the steps are spent.
Learners are `ours` (the default policy), `network` (ours with the rivals' network of 64 x 64),
`rejax` and `PureJaxRL` (rivals/ppo.py). Every few updates each policy plays 16 episodes as it
explores; a seed has reached the threshold where their mean return is at least that. Neither
evaluations nor compiling count as time. All compute in single precision, ours
with full products of matrices where a GPU would round their factors, and all are compiled for a GPU
with the options of agents.

`sweep`: `bayespg.sweep` over four limits of the step on CartPole, 30 updates, with `--seeds` runs
in all.

`first`: seconds from `import bayespg` to the end of the first update, and the programs that a
training of 1,000 runs compiles, in a new process.

With `--lock FILE` several of these may be started at once: they compile side by side, and are timed
one after the other.
"""

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip

import jax
import jax.numpy as jnp
import lines as measuring
import numpy as np
from rivals import ppo, sb3

EPISODES, SHARE = 16, 0.9


class Task(NamedTuple):
    threshold: float
    paths: int
    """Ours: episodes per update."""
    updates: int
    """Ours: the most updates."""
    blocks: dict[str, int]
    """Updates or iterations from one evaluation to the next."""


TASKS = {
    "CartPole-v1": Task(475, 2, 80, {"ours": 2, "network": 2, "rejax": 8, "PureJaxRL": 20}),
    "Acrobot-v1": Task(-100, 2, 80, {"ours": 2, "network": 2, "rejax": 8, "PureJaxRL": 20}),
    "Pendulum-v1": Task(-200, 4, 100, {"ours": 4, "network": 4, "rejax": 1}),
}
LEARNERS = ("ours", "network", "rejax", "PureJaxRL")
NAMES = {
    "ours": "BAC, default policy", "network": "BAC, 64 x 64", "rejax": "rejax PPO, 64 x 64",
    "PureJaxRL": "PureJaxRL PPO, 64 x 64",
}  # fmt: skip


class Learner(NamedTuple):
    init: Any
    update: Any
    act: Any
    """From a state, raw observations and a key to actions that the environment takes."""
    steps: Any
    most: int
    """Updates or iterations."""


def ours(task: str, environment: Any, network: bool) -> Learner:
    from bayespg.agents import names
    from bayespg.agents.settings import DEFAULTS
    from bayespg.learning import estimators, training
    from bayespg.paths.worlds import world
    from bayespg.policies import as_dtype, named

    where: Any = world(environment)
    inside: Any = where.environment
    kind = "fourier" if isinstance(environment.__class__.__dict__.get("choices"), int) else "mlp"
    hidden = DEFAULTS["hidden"]
    if network:
        kind, hidden = "mlp", ppo.HIDDEN
    estimator = estimators.BAC(lambda_=DEFAULTS["lambda_"])
    update = names.update("natural", DEFAULTS["limit"], 0.0)
    paths = TASKS[task].paths

    def init(key):
        key, key_policy = jax.random.split(key)
        policy = named.make(kind, where.observation.shape[0], where.actions, key_policy, hidden)
        policy = as_dtype(policy, jnp.float32)
        return training.start(inside, policy, estimator, update, key, True, DEFAULTS["persistence"])

    def advance(state):
        with jax.default_matmul_precision("highest"):
            return training.step(inside, estimator, update, state, paths, 0.0)[0]

    def act(state, seen, key):
        choices = jax.vmap(lambda x: state.acting.step((), x)[0])(seen).sample(key)
        within = getattr(inside, "within", None)
        return within(choices) if within else choices

    return Learner(init, advance, act, lambda state: state.steps, TASKS[task].updates)


def rival(name: str, task: str, environment: Any) -> Learner:
    settings = ppo.SETTINGS[name, task]
    choices = getattr(environment, "choices", None)
    made = ppo.PPO(environment, settings, choices, getattr(environment, "limit", 1.0))
    most = (
        2 * settings.total // settings.batch if settings.rejax else settings.total // settings.batch
    )
    return Learner(made.init, made.iterate, made.act, lambda state: state["steps"], most)


def episodes(environment: Any, act: Any, key: Any) -> Any:
    """The mean return of some episodes."""
    from bayespg.environments import observe

    key_reset, key_steps = jax.random.split(key)

    def going(carry):
        return (carry[0] < environment.horizon) & jnp.any(carry[2])

    def step(carry):
        t, states, running, total = carry
        key_act, key_step = jax.random.split(jax.random.fold_in(key_steps, t))
        actions = act(observe(environment, states), key_act)
        following, rewards, ends = environment.step(key_step, states, actions)
        return t + 1, following, running & ~ends, total + jnp.where(running, rewards, 0.0)

    first = environment.reset(key_reset, EPISODES)
    start = 0, first, jnp.ones(EPISODES, bool), jnp.zeros(EPISODES)
    return jax.lax.while_loop(going, step, start)[3].mean()


@contextlib.contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """While no other process with the same lock is inside."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def on_the_clock(function: Any, *arguments: Any) -> tuple[float, float, Any]:
    """Wall and CPU seconds, and the answer."""
    begun, cpu = time.perf_counter(), time.process_time()
    answer = jax.block_until_ready(function(*arguments))
    return time.perf_counter() - begun, time.process_time() - cpu, answer


def learn(options: argparse.Namespace) -> dict[str, Any]:
    from bayespg._support import compilation
    from bayespg.environments import classic

    name, task = options.who, options.task
    environment: Any = classic.NAMES[task]()
    own = name in ("ours", "network")
    of = ours(task, environment, name == "network") if own else rival(name, task, environment)
    per = TASKS[task].blocks[name]

    def block(state):
        arrays, static = _split(state)
        arrays = jax.lax.fori_loop(
            0, per, lambda _, a: _split(of.update(_joined(a, static)))[0], arrays
        )
        return _joined(arrays, static)

    def judge(state, key):
        return episodes(environment, lambda x, k: of.act(state, x, k), key)

    keys = jax.random.split(jax.random.key(options.seed), options.seeds)
    begun = time.perf_counter()
    quick = compilation.fast() if jax.default_backend() == "gpu" else {}
    make = jax.jit(jax.vmap(of.init))
    state = make(keys)
    program = jax.jit(jax.vmap(block), donate_argnums=0).lower(state).compile(quick)
    compiled = time.perf_counter() - begun
    judging = jax.jit(jax.vmap(judge)).lower(state, keys).compile()
    reached, rows = np.full(options.seeds, np.inf), []
    seconds = cpu = 0.0
    with alone(options.lock):
        jax.block_until_ready(program(jax.block_until_ready(make(keys[::-1]))))  # warm
        for j in range(per, of.most + 1, per):
            wall, work, state = on_the_clock(program, state)
            seconds, cpu = seconds + wall, cpu + work
            returns = np.asarray(judging(state, jax.random.split(jax.random.key(j), options.seeds)))
            steps = float(np.asarray(of.steps(state), np.float64).mean())
            reached = np.minimum(
                reached, np.where(returns >= TASKS[task].threshold, seconds, np.inf)
            )
            share = float(np.isfinite(reached).mean())
            rows.append([j, steps, seconds, cpu, share, float(returns.mean())])
            if share >= SHARE or seconds > options.most:
                break
    memory: Any = program.memory_analysis()
    return {
        "what": "learn", "task": task, "learner": name, "seeds": options.seeds,
        "compile_s": compiled, "seconds": seconds, "cpu_s": cpu, "updates": rows[-1][0],
        "steps": rows[-1][1], "steps_per_s": options.seeds * rows[-1][1] / seconds,
        "reached": rows[-1][4], "half_s": _at(rows, 0.5, 2), "most_s": _at(rows, SHARE, 2),
        "half_cpu_s": _at(rows, 0.5, 3), "half_steps": _at(rows, 0.5, 1),
        "most_steps": _at(rows, SHARE, 1), "rows": rows,
        "memory_gb": (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 1e9,
    }  # fmt: skip


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    from bayespg import estimators, policies, updates
    from bayespg.agents.settings import DEFAULTS
    from bayespg.environments.classic import CartPole
    from bayespg.paths.worlds import world
    from bayespg.policies import named

    where, limits = world(CartPole()), [0.01, 0.02, 0.05, 0.1]
    policy = named.make("fourier", 4, where.actions, jax.random.key(0))  # pyright: ignore
    begun = time.perf_counter()
    marks = []
    found = bayespg.sweep(
        where.environment, policies.as_dtype(policy, jnp.float32),  # pyright: ignore
        lambda limit: (estimators.BAC(), updates.trust_region(limit)), {"limit": limits},
        seeds=options.seeds // len(limits), updates=options.updates, paths=2, normalise=True,
        persistence=DEFAULTS["persistence"], progress=lambda *_: marks.append(time.perf_counter()),
    )  # fmt: skip
    mean, (low, high) = found.final()
    return {
        "what": "sweep", "task": "CartPole-v1", "runs": found.returns[..., 0].size,
        "updates": options.updates, "limits": limits, "mean": mean.tolist(), "low": low.tolist(),
        "high": high.tolist(), "total_s": time.perf_counter() - begun, "programs": found.programs,
        "chunks": len(marks), "steps": float(found.steps[..., -1].mean()),
    }  # fmt: skip


def _split(state: Any) -> tuple[Any, Any]:
    import equinox as eqx

    return eqx.partition(state, eqx.is_array)


def _joined(arrays: Any, static: Any) -> Any:
    import equinox as eqx

    return eqx.combine(arrays, static)


def _at(rows: list[list[float]], share: float, column: int) -> float | None:
    """A column where this share of the seeds has reached the threshold."""
    return next((row[column] for row in rows if row[4] >= share), None)


CHILD = """
import json, sys, time
begun = time.perf_counter()
import bayespg
bayespg.BAC
import jax
imported = time.perf_counter() - begun
jax.devices()
started = time.perf_counter() - begun
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **more: compiled.append([more.get("fun_name"), seconds])
    if event.endswith("backend_compile_duration") else None)
agent = bayespg.BAC(sys.argv[1], seed=0)
agent.update()
first, cpu = time.perf_counter() - begun, time.process_time()
compiled.clear()
from bayespg import estimators, policies, training, updates
from bayespg.environments import LQR
def run(seed):
    policy = policies.BoundedLinearGaussian(jax.numpy.zeros((1000, 2)))
    made = estimators.Model2(baseline=float("inf")), updates.natural(0.05)
    training.train(LQR(), policy, *made, key=jax.random.key(seed), updates=20, paths=5, runs=1000,
                   progress=lambda *_: None)
    return len([name for name, _ in compiled if name and "_advance" in name])
counts = [run(0), run(1)]
print(json.dumps({"import_s": imported, "device_s": started - imported, "first_s": first,
                  "first_cpu_s": cpu, "advance_programs": counts[0], "again": counts[1] - counts[0],
                  "programs": len(compiled)}))
"""


def first(options: argparse.Namespace) -> dict[str, Any]:
    source = str(Path(__file__).parents[1] / "src")
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "jax/CartPole-v1"], text=True, capture_output=True,
        check=True, env=os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(options.fresh)},
    )  # fmt: skip
    return {"what": "first", "task": "jax/CartPole-v1"} | json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("do", choices=("learn", "sweep", "first", "table"))
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--seeds", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--most", type=float, default=600.0, help="seconds on the clock")
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--fresh", type=Path, default=Path("/tmp/bayespg-no-cache"))
    parser.add_argument("--out", type=Path, default=Path("results/thousands.jsonl"))
    options = parser.parse_args()
    if options.do == "table":
        print(table(options.out))
        return
    options.task, options.who = (*options.rest, None)[:2] if options.do == "learn" else (
        None, (*options.rest, "ours")[0])  # fmt: skip
    line = globals()[options.do](options)
    sb3.append(options.out, line | measuring.machine())
    print({k: v for k, v in line.items() if k != "rows"}, line.get("rows", [])[-2:], flush=True)


def table(path: Path) -> str:
    """The lines as the document shows them: one table for each device."""
    lines, tables = sb3.read(path), []
    for device in dict.fromkeys(line["device"] for line in lines):
        of = [line for line in lines if line["device"] == device]
        if learnt := [line for line in of if line["what"] == "learn"]:
            tables.append(_learnt(learnt, device == "cpu"))
        if others := [line for line in of if line["what"] in ("first", "sweep")]:
            tables.append(_others(others))
    return "\n\n".join(tables)


def _learnt(lines: list[dict[str, Any]], cpu: bool) -> str:
    """Times are those on the clock, or on a CPU the seconds of all threads."""
    unit = "CPU ms" if cpu else "ms"
    rows = [
        f"| task | learner | seeds | steps, half | steps, 90 % | {unit} per seed, half | "
        f"{unit} per seed, 90 % | times BAC | steps per s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    order = [(task, name) for task in TASKS for name in LEARNERS]
    best = {
        line["task"]: _per_seed(line, SHARE, cpu) for line in lines if line["learner"] == "ours"
    }
    for line in sorted(lines, key=lambda line: order.index((line["task"], line["learner"]))):
        half, most = (_per_seed(line, share, cpu) for share in (0.5, SHARE))
        last = 1000 * line["rows"][-1][3 if cpu else 2] / line["seeds"]
        reference = best.get(line["task"])
        ratio = f"{(most or last) / reference:.1f}" if reference else ""
        clock = line["cpu_s"] if cpu else line["seconds"]
        cells = [
            line["task"], NAMES[line["learner"]], f"{line['seeds']:,}",
            *(f"{x:,.0f}" if x else f"not by {line['steps']:,.0f}"
              for x in (line["half_steps"], line["most_steps"])),
            *(f"{x:,.1f}" if x else f"over {last:,.1f}" for x in (half, most)),
            ratio if most or not ratio else f"over {ratio}",
            f"{line['seeds'] * line['steps'] / clock:,.0f}",
        ]  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _per_seed(line: dict[str, Any], share: float, cpu: bool) -> float | None:
    """Milliseconds for each seed until this share of them has reached the threshold."""
    seconds = _at(line["rows"], share, 3 if cpu else 2)
    return None if seconds is None else 1000 * seconds / line["seeds"]


def _others(lines: list[dict[str, Any]]) -> str:
    rows = ["| | measured |", "|---|---|"]
    for line in lines:
        if line["what"] == "first":
            rows += [
                f'| `import bayespg` to the end of the first update of `BAC("{line["task"]}")`, '
                f"nothing cached | {_waited(line)} |",
                "| programs for the updates of 1,000 runs of `train`; when trained again with "
                f"rebuilt parts | {line['advance_programs']}; {line['again']} |",
            ]
            continue
        means = ", ".join(
            f"{mean:.0f} ({low:.0f} to {high:.0f})"
            for mean, low, high in zip(line["mean"], line["low"], line["high"], strict=True)
        )
        rows += [
            f"| `sweep` of {len(line['limits'])} limits, {line['runs']:,} runs of "
            f"{line['updates']} updates on CartPole, compiling included | {line['total_s']:.0f} s, "
            f"{line['programs']} program, {line['chunks']} chunk{'s' * (line['chunks'] > 1)} |",
            f"| return with limit {', '.join(f'{x:g}' for x in line['limits'])} | {means} |",
        ]
    return "\n".join(rows)


def _waited(line: dict[str, Any]) -> str:
    """On a CPU the seconds of all threads, which do not depend on what else it does."""
    if line["device"] == "cpu":
        return f"{line['first_cpu_s']:.1f} CPU s"
    parts = f"import {line['import_s']:.1f}, start of the device {line['device_s']:.1f}"
    return f"{line['first_s']:.1f} s, of which {parts}"


if __name__ == "__main__":
    main()
