"""What workers, Ray and a GPU are worth.

    python benchmarks/scale.py workers [--workers 2] [--out results/scale.jsonl]
    python benchmarks/scale.py killed
    python benchmarks/scale.py ray
    python benchmarks/scale.py seeds [--runs 1000]
    python benchmarks/scale.py batch [--steps 1000000]
    python benchmarks/scale.py dbqpg [--steps 15000]
    python benchmarks/scale.py table

`workers`: an environment that sleeps 10 ms or 1 ms per step, 4 episodes per worker; efficiency is
the time of one process over the time of the workers, divided by their number. Workers have started
and compiled before the clock does. `killed`: 50 updates of 8 such episodes with 2 workers, one of
which is killed in every update, beside the same undisturbed. `ray`: the time of the messages of 8
episodes of 500 steps on Ray, the median of 100 updates without the episodes themselves. `seeds`:
runs of JAX CartPole side by side in one program, with an evaluation of 20 episodes after every
fifth update. `batch`: the estimator on one batch of a 256 x 256 network beside a plain policy
gradient. `dbqpg`: the estimator on 15,000 steps of a 64 x 64 network beside its deep rival
(rivals/dbqpg.py, which needs torch and gpytorch), with the cosine between each estimate and the
exact gradient.

Each appends a line of JSON; `table` prints the lines beside the goals. A sleeping environment needs
no core, so that `workers` says what the machinery costs, on any number of cores.
"""

import argparse
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import bayespg  # isort: skip  # noqa: F401  (first, for the thread pool)

from rivals import sb3

UPDATES, LENGTH, MESSAGES = 50, 500, 100
RUNS = ("workers", "killed", "ray", "seeds", "batch", "dbqpg")


class Sleeping(gymnasium.Env):
    """Sleeps in every step; episodes of `length` steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float, length: int):
        self.seconds, self.length = seconds, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def _see(self):
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)

    def step(self, action):
        if self.seconds:
            time.sleep(self.seconds)
        self.time += 1
        seen = self._see()
        return seen, float(seen[0] * action), False, self.time == self.length, {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("do", choices=(*RUNS, "table"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=UPDATES)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/scale.jsonl"))
    options = parser.parse_args()
    if options.do == "table":
        table(options)
        return
    machine = {"cores": os.cpu_count(), "machine": platform.machine()}
    for line in globals()[options.do](options):
        sb3.append(options.out, line | machine)
        print(line, flush=True)


def _worlds(make: Any, lanes: int, *counts: int | str | None) -> list[Any]:
    from bayespg.paths.worlds import world

    return [world(make, lanes=lanes, workers=count) for count in counts]


def _policy(where: Any) -> Any:
    import jax

    from bayespg.policies import named

    return named.make("linear", 4, where.actions, jax.random.key(0), ())


def _seconds(where: Any, policy: Any, seeds: list[int]) -> tuple[float, Any]:
    """A batch after one that started and compiled everything."""
    import jax

    where.play(policy, jax.random.key(1), seeds)
    begun = time.perf_counter()
    paths = where.play(policy, jax.random.key(1), seeds)
    return time.perf_counter() - begun, paths


def _same(one: Any, other: Any) -> bool:
    import jax

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def workers(options: argparse.Namespace):
    """Efficiency with `--workers` processes."""
    count = options.workers
    seeds = list(range(4 * count))
    for seconds, length in ((0.01, 50), (0.001, 200)):
        alone, many = _worlds(lambda s=seconds, n=length: Sleeping(s, n), len(seeds), None, count)
        policy = _policy(alone)
        one, expected = _seconds(alone, policy, seeds)
        taken, found = _seconds(many, policy, seeds)
        many.players.close()
        yield {
            "what": f"workers, {1000 * seconds:g} ms", "workers": count, "one_process_s": one,
            "workers_s": taken, "figure": one / taken / count, "same_bits": _same(expected, found),
        }  # fmt: skip


def killed(options: argparse.Namespace):
    """One worker is killed in every update, a while after it has begun."""
    import jax

    (where,) = _worlds(lambda: Sleeping(0.002, 100), 8, 2)
    policy, seeds, times = _policy(where), list(range(8)), []
    where.play(policy, jax.random.key(1), seeds)
    paths: list[list[Any]] = []
    for disturbed in (False, True):
        begun, found = time.perf_counter(), []
        for update in range(options.updates):
            if disturbed:
                victim = where.players.pool.workers[update % 2].pid
                threading.Timer(0.1, os.kill, (victim, signal.SIGKILL)).start()
            found.append(where.play(policy, jax.random.key(update), seeds))
        times.append(time.perf_counter() - begun)
        paths.append(found)
    where.players.close()
    yield {
        "what": "killed", "updates": options.updates, "undisturbed_s": times[0],
        "killed_s": times[1], "figure": times[1] / times[0],
        "same_bits": all(_same(a, b) for a, b in zip(*paths, strict=True)),
    }  # fmt: skip


def ray(options: argparse.Namespace):
    """The messages of 8 episodes of 500 steps, without playing them: the policy goes out, and each
    worker answers with the steps of an episode that was played before."""
    import cloudpickle
    import jax

    from bayespg._support import cluster, processes
    from bayespg._support.precision import to_numpy

    (alone,) = _worlds(lambda: Sleeping(0.0, LENGTH), 1, None)
    policy = _policy(alone)
    played = to_numpy(alone.play(policy, jax.random.key(1), [0]))
    make = cloudpickle.dumps(lambda: lambda shared, request: played)
    crews = {
        "processes": processes.Processes(make, options.workers, None),
        "ray": cluster.on("ray", make, None),
    }
    times: dict[str, list[float]] = {name: [] for name in crews}
    for name, crew in crews.items():
        crew.count = options.workers
        for _ in range(MESSAGES + 1):
            begun = time.perf_counter()
            crew.answers(to_numpy(policy), range(8))
            times[name].append(time.perf_counter() - begun)
        crew.close()
    found = {f"{name}_ms": 1000 * float(np.median(of[1:])) for name, of in times.items()}
    yield {"what": "ray", "workers": options.workers, "figure": found["ray_ms"]} | found


def seeds(options: argparse.Namespace):
    """Compiled and run; the time of the second call is without compiling."""
    import jax
    import jax.numpy as jnp

    from bayespg.agents import names
    from bayespg.agents.settings import DEFAULTS
    from bayespg.learning import estimators, training
    from bayespg.paths.rollout import rollout
    from bayespg.paths.worlds import world
    from bayespg.policies import named

    found = names.built_in("jax/CartPole-v1")
    assert found is not None
    where = world(found.environment)
    environment: Any = where.environment
    assert where.actions is not None
    policy = named.make("fourier", 4, where.actions, jax.random.key(0))
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (options.runs, *jnp.shape(x))), policy)

    def evaluate(policy, key):
        paths = rollout(environment, policy, key, 20)
        return jnp.sum(jnp.where(paths.mask, paths.rewards, 0.0)) / 20

    times = []
    for seed in (0, 1):
        begun = time.perf_counter()
        result = training.train(
            environment, many, estimators.BAC(lambda_=DEFAULTS["lambda_"]),
            names.update("natural", DEFAULTS["limit"], 0.0), key=jax.random.key(seed),
            updates=options.updates, paths=2, runs=options.runs, normalise=True,
            persistence=DEFAULTS["persistence"], evaluate=evaluate, every=5,
        )  # fmt: skip
        jax.block_until_ready(result)
        times.append(time.perf_counter() - begun)
    values = np.asarray(result.evaluations.values)
    yield {
        "what": "seeds", "runs": options.runs, "updates": options.updates,
        "device": jax.devices()[0].device_kind, "with_compiling_s": times[0],
        "figure": times[1], "best_500": float((values.max(1) >= 500).mean()),
        "best_475": float((values.max(1) >= 475).mean()), "last": float(values[:, -1].mean()),
        "steps_mean": float(np.asarray(result.state.steps).mean()),
    }  # fmt: skip


INPUTS, ACTIONS, STEPS = 17, 6, 1000
"""Observations and actions of HalfCheetah, and steps per episode."""


def _network(hidden: int) -> Any:
    import equinox as eqx
    import jax

    from bayespg.policies.features import MLP
    from bayespg.policies.heads import Composed, Normals

    features, last = jax.random.split(jax.random.key(2))
    policy = Composed(MLP(INPUTS, (hidden, hidden), key=features), Normals(hidden + 1, ACTIONS))
    weights = 0.1 * jax.random.normal(last, policy.head.weights.shape)
    return eqx.tree_at(lambda policy: policy.head.weights, policy, weights)


def _batch(policy: Any, steps: int, discount: float) -> tuple[Any, Any]:
    """Rewards V(x) + q(x)'z + noise, with z the deviation of the action from its mean, and the
    exact gradient of their mean, that of q(x)'mean(x), for those states."""
    import jax
    import jax.numpy as jnp

    from bayespg.environments.trajectories import Trajectories
    from bayespg.learning.batch import Batch
    from bayespg.policies import flatten

    T = min(STEPS, steps // 2)
    M = steps // T
    keys = jax.random.split(jax.random.key(3), 6)
    states = jax.random.normal(keys[0], (T, M, INPUTS), jnp.float32)
    z = jax.random.normal(keys[1], (T, M, ACTIONS), jnp.float32)
    q = 0.1 * jnp.tanh(states @ jax.random.normal(keys[2], (INPUTS, ACTIONS), jnp.float32))
    value = jnp.sum(jnp.sin(states @ jax.random.normal(keys[3], (INPUTS, 3), jnp.float32) / 4), -1)
    rewards = value + jnp.sum(q * z, -1) + jax.random.normal(keys[4], (T, M), jnp.float32)
    theta, rebuild = flatten(policy)

    def means(theta):
        return jax.vmap(jax.vmap(lambda x: rebuild(theta)(x).mean))(states)

    truth = jax.jit(jax.grad(lambda theta: jnp.mean(jnp.sum(q * means(theta), -1))))(theta)
    paths = Trajectories(
        states, means(theta) + z, rewards, jnp.ones((T, M), bool), jnp.zeros(M, bool), states[-1]
    )
    return Batch(policy, paths, discount, T), truth


def _estimates(one: Any, truth: Any):
    """Time, memory and direction of a plain policy gradient and of the actor-critic."""
    import equinox as eqx
    import jax

    from bayespg.learning.estimators import BAC, MonteCarlo

    for name, estimator in {
        "plain policy gradient": MonteCarlo("mean", weights="uniform"),
        "actor-critic": BAC(lambda_=0.9),
    }.items():
        gradient = eqx.filter_jit(lambda batch, e=estimator: e(batch).mean)
        times, found = _times(lambda g=gradient: jax.block_until_ready(g(one)))
        memory = jax.devices()[0].memory_stats() or {}
        yield {
            "estimator": name, "steps": int(one.paths.mask.size), "parameters": int(truth.size),
            "device": jax.devices()[0].device_kind, "first_s": times[0], "figure": min(times[1:]),
            "peak_gb": memory.get("peak_bytes_in_use", 0) / 1e9, "cosine": _cosine(found, truth),
        }  # fmt: skip


def _times(compute: Any) -> tuple[list[float], Any]:
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        found = compute()
        times.append(time.perf_counter() - begun)
    return times, found


def _cosine(one: Any, other: Any) -> float:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def batch(options: argparse.Namespace):
    """A network of 256 x 256, episodes of 1,000 steps, discount 0.99: the cosine is not that of the
    gradient of the returns and is left out. Memory is the highest so far."""
    for line in _estimates(*_batch(_network(256), options.steps or 1_000_000, 0.99)):
        del line["cosine"]
        yield {"what": "batch"} | line


def dbqpg(options: argparse.Namespace):
    """A network of 64 x 64; discount 0, so that the exact gradient is known."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # two libraries, one device
    import torch
    from rivals import dbqpg as rival

    policy = _network(64)
    one, truth = _batch(policy, options.steps or 15_000, 0.0)
    for line in _estimates(one, truth):
        yield {"what": "dbqpg"} | line
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for kind in (torch.float32, torch.float64):  # its repository computes in float64

        def tensor(x, kind=kind):
            return torch.tensor(np.asarray(x), dtype=kind, device=device)

        body, head = policy.features, policy.head
        network = rival.Policy(
            [tensor(x) for x in body.weights], [tensor(x) for x in body.biases],
            tensor(head.weights), tensor(head.log_scale),
        )  # fmt: skip
        data = [
            tensor(x).flatten(0, 1)
            for x in (one.paths.states, one.paths.actions, one.paths.rewards)
        ]
        torch.manual_seed(0)
        estimate = rival.Estimator(network, INPUTS)
        times, found = _times(lambda e=estimate, d=data: e(*d).cpu())
        exact = _in_order(policy, truth)
        gpu = device == "cuda"
        yield {
            "what": "dbqpg", "estimator": f"DBQPG in GPyTorch, {str(kind)[6:]}",
            "steps": len(data[0]), "parameters": len(found), "rank": estimate.rank,
            "device": torch.cuda.get_device_name() if gpu else "cpu", "first_s": times[0],
            "figure": min(times[1:]),
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if gpu else 0.0,
            "cosine": _cosine(found, exact),
        }  # fmt: skip


def _in_order(policy: Any, vector: Any) -> Any:
    from bayespg.policies import flatten

    tree = flatten(policy)[1](vector)
    body, head = tree.features, tree.head
    leaves = (head.weights, head.log_scale, *body.weights, *body.biases)  # as torch lists them
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def table(options: argparse.Namespace) -> None:
    """The lines beside the goals, as the document shows them."""
    print("| | measured | goal |\n|---|---|---|")
    for line in sorted(
        sb3.read(options.out), key=lambda line: RUNS.index(line["what"].split(",")[0])
    ):
        what, found, goal = SHOWN[line["what"].split(",")[0]](line)
        print(f"| {what} | {found} | {goal} |")


def _workers_shown(line: dict[str, Any]) -> tuple[str, str, str]:
    count, pause = line["workers"], line["what"].split(", ")[1]
    goals = {(2, "10 ms"): "0.95", (2, "1 ms"): "0.85", (16, "10 ms"): "0.9"}
    goal = goals.get((count, pause))
    return (
        f"{count} workers, {pause} per step: time of one process / time of the workers / {count}",
        f"{line['figure']:.2f}, {_bits(line)}", f"at least {goal}" if goal else "none",
    )  # fmt: skip


def _killed_shown(line: dict[str, Any]) -> tuple[str, str, str]:
    return (
        f"one of 2 workers killed per update, {line['updates']} updates",
        f"{line['figure']:.2f} times the time, {_bits(line)}",
        "at most 1.5 times, same bits",
    )


def _ray_shown(line: dict[str, Any]) -> tuple[str, str, str]:
    return (
        "overhead of Ray per update of 8 episodes of 500 steps",
        f"{line['figure']:.0f} ms ({line['workers']} actors; processes {line['processes_ms']:.0f})",
        "under 20 ms",
    )


def _seeds_shown(line: dict[str, Any]) -> tuple[str, str, str]:
    return (
        f"{line['runs']:,} seeds of JAX CartPole, {line['updates']} updates each, in one program",
        f"{line['figure']:.1f} s, {line['with_compiling_s']:.0f} s with compiling "
        f"({line['device']}); {100 * line['best_500']:.1f} % reach a mean return of 500",
        "seconds",
    )


def _estimate_shown(line: dict[str, Any]) -> tuple[str, str, str]:
    cosine = f", cosine {line['cosine']:.2f}" if "cosine" in line else ""
    return (
        f"{line['estimator']}, {line['steps']:,} steps, {line['parameters']:,} parameters",
        f"{1000 * line['figure']:.0f} ms, {line['peak_gb']:.1f} GB{cosine} ({line['device']})",
        "none: stated",
    )


def _bits(line: dict[str, Any]) -> str:
    return "same bits" if line["same_bits"] else "OTHER BITS"


SHOWN = {
    "workers": _workers_shown, "killed": _killed_shown, "ray": _ray_shown, "seeds": _seeds_shown,
    "batch": _estimate_shown, "dbqpg": _estimate_shown,
}  # fmt: skip


if __name__ == "__main__":
    main()
