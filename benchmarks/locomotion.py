"""Locomotion in brax on a GPU: BAC beside brax's own PPO, with the same network of 64 x 64 x 64.

    python -m venv brax-venv
    brax-venv/bin/pip install . brax 'mujoco<3.4' 'mujoco-mjx<3.4'
    brax-venv/bin/python benchmarks/locomotion.py run halfcheetah ppo [--steps 10000000]
    brax-venv/bin/python benchmarks/locomotion.py run halfcheetah ours --episodes 16
    brax-venv/bin/python benchmarks/locomotion.py table

`ppo` is `brax.training.agents.ppo` with the settings that brax publishes for the task and 2,048
environments. `ours` is `bayespg.BAC` on the adapted environment with that many whole episodes per
update and otherwise its defaults. Returns are sums of rewards over episodes of 1,000 steps: those
of brax's evaluation for PPO, and for ours those of 128 episodes that nothing learns from, both with
the most probable actions. Steps per second are the median over the updates of ours, and over the
stretches between two evaluations of PPO, so that neither evaluations nor compiling count. Each run
appends a line of JSON.
"""

import argparse
import functools
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import jax
import jax.numpy as jnp
import lines
import numpy as np
from rivals import sb3

HORIZON, EVALUATED, HIDDEN, BACKEND = 1000, 128, (64, 64, 64), "positional"
SETTINGS: dict[str, dict[str, Any]] = {
    "inverted_double_pendulum": {
        "reward_scaling": 10, "unroll_length": 5, "num_minibatches": 32,
        "num_updates_per_batch": 4, "discounting": 0.97, "learning_rate": 3e-4,
        "entropy_cost": 1e-2, "batch_size": 1024,
    },
    "halfcheetah": {
        "reward_scaling": 1, "unroll_length": 20, "num_minibatches": 32,
        "num_updates_per_batch": 8, "discounting": 0.95, "learning_rate": 3e-4,
        "entropy_cost": 1e-3, "batch_size": 512,
    },
}  # fmt: skip
"""Of the notebook "Training in Brax"."""
EVALUATIONS = 20


def ppo(task: str, options: argparse.Namespace) -> dict[str, Any]:
    from brax import envs  # pyright: ignore[reportMissingImports]
    from brax.training.agents.ppo import (  # pyright: ignore[reportMissingImports]
        networks,
        train,
    )

    if not hasattr(jax, "device_put_replicated"):  # JAX 0.10 and later, which brax 0.14 predates

        def replicated(tree, devices):
            return jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree)

        jax.device_put_replicated = replicated  # pyright: ignore[reportAttributeAccessIssue]
    settings = SETTINGS[task]
    network = functools.partial(
        networks.make_ppo_networks, policy_hidden_layer_sizes=HIDDEN,
        value_hidden_layer_sizes=HIDDEN,
    )  # fmt: skip
    rows, speeds, begun = [], [], time.perf_counter()

    def progress(steps: int, metrics: dict[str, Any]) -> None:
        rows.append([int(steps), float(metrics["eval/episode_reward"])])
        if "training/sps" in metrics:
            speeds.append(float(metrics["training/sps"]))
        print(rows[-1], speeds[-1:], f"{time.perf_counter() - begun:.0f} s", flush=True)

    train.train(
        environment=envs.get_environment(task, backend=BACKEND), num_timesteps=options.steps,
        num_evals=EVALUATIONS + 1, episode_length=HORIZON, normalize_observations=True,
        num_envs=2048, seed=options.seed, progress_fn=progress, network_factory=network,
        num_eval_envs=EVALUATED, **settings,
    )  # fmt: skip
    batch = settings["batch_size"] * settings["num_minibatches"] * settings["unroll_length"]
    # The first number includes compiling.
    speed = float(np.median(speeds[1:]))
    return {"batch": batch, "steps_per_s": speed, "speeds": speeds, "rows": rows}


def ours(task: str, options: argparse.Namespace) -> dict[str, Any]:
    from brax import envs  # pyright: ignore[reportMissingImports]

    import bayespg
    from bayespg.environments import adapt

    environment = adapt(envs.get_environment(task, backend=BACKEND), horizon=HORIZON)
    agent = bayespg.BAC(
        environment, "mlp", hidden=HIDDEN, episodes=options.episodes, seed=options.seed
    )
    rows, marks, due, begun = [], [], 0, time.perf_counter()

    def judge() -> None:
        evaluation = agent.evaluate(EVALUATED, deterministic=True)
        rows.append([int(agent.state.steps), float(np.mean(evaluation.returns))])
        print(rows[-1], f"{time.perf_counter() - begun:.0f} s", flush=True)

    while agent.state.steps < options.steps and time.perf_counter() - begun < options.most:
        if agent.state.steps >= due:
            judge()
            due += options.steps // EVALUATIONS
        before, start = int(agent.state.steps), time.perf_counter()
        agent.update()
        marks.append((int(agent.state.steps) - before, time.perf_counter() - start))
    judge()
    return {
        "episodes": options.episodes, "batch": HORIZON * options.episodes,
        "steps_per_s": float(np.median([steps / clock for steps, clock in marks[1:]])),
        "updates": len(marks), "first_s": marks[0][1], "rows": rows,
    }  # fmt: skip


MARKS = (1_000_000, 2_000_000, 10_000_000)


def table(path: Path) -> str:
    """The lines as the document shows them. A return is that of the first evaluation after so many
    steps, and where none was near, it says after how many."""
    head = "task", "learner", "steps per update", "steps per s", *(f"{m:,} steps" for m in MARKS)
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in sorted(sb3.read(path), key=lambda x: (x["task"], -x["batch"], x["learner"])):
        name = "brax PPO" if line["learner"] == "ppo" else f"BAC, {line['episodes']:,} episodes"
        cells = [line["task"], name, f"{line['batch']:,}", f"{line['steps_per_s']:,.0f}"]
        for mark in MARKS:
            found = [row for row in line["rows"] if row[0] >= mark] or [line["rows"][-1]]
            steps, value = found[0]
            near = abs(steps / mark - 1) < 0.1
            cells.append(f"{value:,.0f}" if near else f"{value:,.0f} (after {steps:,})")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("task", nargs="?", choices=tuple(SETTINGS))
    parser.add_argument("learner", nargs="?", choices=("ours", "ppo"))
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--most", type=float, default=600.0, help="seconds, for ours")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("results/locomotion.jsonl"))
    options = parser.parse_args()
    if options.do == "table":
        print(table(options.out))
        return
    line = (ours if options.learner == "ours" else ppo)(options.task, options)
    line = {"task": options.task, "learner": options.learner, "seed": options.seed} | line
    line |= lines.machine()
    sb3.append(options.out, line)
    print({key: value for key, value in line.items() if key != "rows"}, flush=True)


if __name__ == "__main__":
    main()
