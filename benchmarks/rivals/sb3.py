"""The rivals: A2C, PPO, DQN, SAC, TD3 of Stable-Baselines3, TRPO and ARS of sb3-contrib, with the
settings of RL Baselines3 Zoo.

    python -m venv rivals-venv
    rivals-venv/bin/pip install torch==2.13.0
    rivals-venv/bin/pip install -r benchmarks/rivals/requirements.txt
    rivals-venv/bin/python benchmarks/rivals/sb3.py learn [--seeds 10] [--jobs 16]
    rivals-venv/bin/python benchmarks/rivals/sb3.py throughput

`learn` trains every task by every algorithm from every seed, each in a process of its own with one
thread, and appends a line of JSON per finished run to results/rivals.jsonl. Started again, it skips
the runs it finds there. `throughput` times whole trainings with eight environments, nothing else.

Steps are those of the training environments, summed over the parallel ones. At regular intervals
the current policy plays 20 episodes in environments of its own, once with its most probable
actions (`deterministic`, as SB3 evaluates by habit) and once as it explores (`stochastic`); returns
are undiscounted and not normalised. Neither the steps nor the seconds of evaluations count, and
they draw from a random stream of their own: training is the same with and without them. PPO and
TRPO play up to 4,096 steps between two updates, so neighbouring evaluations may see one policy.
"""

import argparse
import contextlib
import copy
import json
import math
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class Task(NamedTuple):
    steps: int
    """Training stops here, or where every threshold has been met."""
    every: int
    """Steps from one evaluation to the next."""
    thresholds: tuple[float, ...]
    """Met where two evaluations in a row return at least that much."""


TASKS = {  # the cheapest first
    "CartPole-v1": Task(100_000, 2000, (475,)),
    "MountainCar-v0": Task(200_000, 2000, (-110,)),
    "Pendulum-v1": Task(200_000, 2000, (-200,)),
    "Acrobot-v1": Task(200_000, 2000, (-100,)),
    "MountainCarContinuous-v0": Task(100_000, 2000, (90,)),
    "Swimmer-v5": Task(200_000, 10_000, (100, 300)),
}
OTHERS = {
    "InvertedPendulum-v5": Task(80_000, 5000, (950,)),
    "InvertedDoublePendulum-v5": Task(80_000, 5000, (1000, 9000)),
    "Hopper-v5": Task(80_000, 5000, (500, 1000)),
    "Reacher-v5": Task(80_000, 5000, (-10, -7)),
}
"""Tasks on which nothing of ours was chosen, run only where `--tasks` names them."""
ALL = TASKS | OTHERS
MUJOCO = ("Swimmer-v5", *OTHERS)
ALGORITHMS = ("A2C", "PPO", "TRPO", "DQN", "SAC", "TD3", "ARS")
"""DQN is for choices only, SAC and TD3 for continuous actions only."""
EPISODES = 20
POLICIES = ("deterministic", "stochastic")

# From RL Baselines3 Zoo (DLR-RM/rl-baselines3-zoo, MIT licence), hyperparams/a2c.yml and so on of
# commit 22e3ff2450fd92033f7f032915e1f64894a09584 (April 2026), with its names.
# `normalize` is VecNormalize of observations and rewards, or of observations alone; "lin_x" falls
# linearly from x to zero.
# What the zoo leaves out keeps SB3's default. Three things differ from the zoo:
# - it has no v5 of MuJoCo's tasks: the numbers of Swimmer, Hopper and HalfCheetah are those of its
#   v4, and PPO's of InvertedPendulum, InvertedDoublePendulum and Reacher those of its v2. The other
#   algorithms have none for these three: the numbers are those which the zoo gives to several of
#   its MuJoCo tasks (its mujoco-defaults), and ARS, which has no such numbers, keeps DEFAULT;
# - it trains for n_timesteps of its own, we for the steps of TASKS, over which schedules fall. That
#   matters to A2C on Pendulum alone, whose rate falls over 1e6 steps there and over 2e5 here.
ARS_MLP: dict[str, Any] = {
    "policy": "MlpPolicy",
    "normalize": "observations",
    "learning_rate": 0.018,
    "n_delta": 4,
    "n_top": 1,
    "delta_std": 0.1,
    "policy_kwargs": {"net_arch": [16]},
    "zero_policy": False,
}
RELU_256: dict[str, Any] = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": "relu",
    "net_arch": [256, 256],
}
TRPO_MUJOCO: dict[str, Any] = {
    "normalize": True,
    "n_envs": 2,
    "batch_size": 128,
    "n_steps": 1024,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "sub_sampling_factor": 1,
    "cg_max_steps": 25,
    "cg_damping": 0.1,
    "n_critic_updates": 20,
    "learning_rate": 1e-3,
}
SAC_MUJOCO: dict[str, Any] = {"learning_starts": 10_000}
TD3_MUJOCO: dict[str, Any] = {
    "learning_starts": 10_000,
    "noise": ("normal", 0.1),
    "train_freq": 1,
    "gradient_steps": 1,
    "learning_rate": 1e-3,
    "batch_size": 256,
    "policy_kwargs": {"net_arch": [400, 300]},
}
UNLISTED = ("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5")
DEFAULT: dict[str, dict[str, Any]] = {
    "TD3": {"train_freq": 1, "gradient_steps": 1, "noise": ("normal", 0.1)},
    "ARS": {"policy": "LinearPolicy", "n_delta": 2, "n_top": 2, "delta_std": 0.02},
}
"""The zoo's settings for tasks that it does not list; SB3's where it gives none."""
ZOO: dict[str, dict[str, dict[str, Any]]] = {
    "A2C": {
        "CartPole-v1": {"n_envs": 8, "ent_coef": 0.0},
        "Acrobot-v1": {"normalize": True, "n_envs": 16, "ent_coef": 0.0},
        "MountainCar-v0": {"normalize": True, "n_envs": 16, "ent_coef": 0.0},
        "MountainCarContinuous-v0": {
            "normalize": True,
            "n_envs": 4,
            "n_steps": 100,
            "ent_coef": 0.0,
            "use_sde": True,
            "sde_sample_freq": 16,
            "policy_kwargs": {"log_std_init": 0.0, "ortho_init": False},
        },
        "Pendulum-v1": {
            "normalize": True,
            "n_envs": 8,
            "ent_coef": 0.0,
            "max_grad_norm": 0.5,
            "n_steps": 8,
            "gae_lambda": 0.9,
            "vf_coef": 0.4,
            "gamma": 0.9,
            "use_rms_prop": True,
            "normalize_advantage": False,
            "learning_rate": "lin_7e-4",
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -2, "ortho_init": False},
        },
        "Swimmer-v5": {"normalize": True, "gamma": 0.9999},
        "LunarLander-v3": {
            "n_envs": 8,
            "gamma": 0.995,
            "n_steps": 5,
            "learning_rate": "lin_0.00083",
            "ent_coef": 0.00001,
        },
        **{task: {"normalize": True} for task in ("HalfCheetah-v5", "Hopper-v5", *UNLISTED)},
    },
    "PPO": {
        "CartPole-v1": {
            "n_envs": 8,
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
        "Acrobot-v1": {
            "normalize": True,
            "n_envs": 16,
            "n_steps": 256,
            "gae_lambda": 0.94,
            "gamma": 0.99,
            "n_epochs": 4,
            "ent_coef": 0.0,
        },
        "MountainCar-v0": {
            "normalize": True,
            "n_envs": 16,
            "n_steps": 16,
            "gae_lambda": 0.98,
            "gamma": 0.99,
            "n_epochs": 4,
            "ent_coef": 0.0,
        },
        "MountainCarContinuous-v0": {
            "normalize": True,
            "n_envs": 1,
            "batch_size": 256,
            "n_steps": 8,
            "gamma": 0.9999,
            "learning_rate": 7.77e-05,
            "ent_coef": 0.00429,
            "clip_range": 0.1,
            "n_epochs": 10,
            "gae_lambda": 0.9,
            "max_grad_norm": 5,
            "vf_coef": 0.19,
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
        },
        "Pendulum-v1": {
            "n_envs": 4,
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        "Swimmer-v5": {
            "normalize": True,
            "gamma": 0.9999,
            "n_envs": 4,
            "n_steps": 1024,
            "batch_size": 256,
            "learning_rate": 6e-4,
            "gae_lambda": 0.98,
        },
        "InvertedPendulum-v5": {
            "normalize": True,
            "n_envs": 1,
            "batch_size": 64,
            "n_steps": 32,
            "gamma": 0.999,
            "learning_rate": 0.000222425,
            "ent_coef": 1.37976e-07,
            "clip_range": 0.4,
            "n_epochs": 5,
            "gae_lambda": 0.9,
            "max_grad_norm": 0.3,
            "vf_coef": 0.19816,
        },
        "InvertedDoublePendulum-v5": {
            "normalize": True,
            "n_envs": 1,
            "batch_size": 512,
            "n_steps": 128,
            "gamma": 0.98,
            "learning_rate": 0.000155454,
            "ent_coef": 1.05057e-06,
            "clip_range": 0.4,
            "n_epochs": 10,
            "gae_lambda": 0.8,
            "max_grad_norm": 0.5,
            "vf_coef": 0.695929,
        },
        "Hopper-v5": {
            "normalize": True,
            "n_envs": 1,
            "batch_size": 32,
            "n_steps": 512,
            "gamma": 0.999,
            "learning_rate": 9.80828e-05,
            "ent_coef": 0.00229519,
            "clip_range": 0.2,
            "n_epochs": 5,
            "gae_lambda": 0.99,
            "max_grad_norm": 0.7,
            "vf_coef": 0.835671,
            "policy_kwargs": RELU_256,
        },
        "HalfCheetah-v5": {
            "normalize": True,
            "n_envs": 1,
            "batch_size": 64,
            "n_steps": 512,
            "gamma": 0.98,
            "learning_rate": 2.0633e-05,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.92,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
            "policy_kwargs": RELU_256,
        },
        "LunarLander-v3": {
            "n_envs": 16,
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
        "Reacher-v5": {
            "normalize": True,
            "n_envs": 1,
            "batch_size": 32,
            "n_steps": 512,
            "gamma": 0.9,
            "learning_rate": 0.000104019,
            "ent_coef": 7.52585e-08,
            "clip_range": 0.3,
            "n_epochs": 5,
            "gae_lambda": 1.0,
            "max_grad_norm": 0.9,
            "vf_coef": 0.950368,
        },
    },
    "TRPO": {
        "CartPole-v1": {
            "n_envs": 2,
            "n_steps": 512,
            "batch_size": 512,
            "cg_damping": 1e-3,
            "gae_lambda": 0.98,
            "gamma": 0.99,
            "learning_rate": 1e-3,
            "n_critic_updates": 20,
        },
        "Acrobot-v1": {"normalize": True, "n_envs": 2, "n_steps": 1024},
        "MountainCar-v0": {"normalize": True, "n_envs": 2, "n_steps": 1024, "n_critic_updates": 20},
        "MountainCarContinuous-v0": {
            "normalize": True,
            "n_envs": 2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        "Pendulum-v1": {
            "n_envs": 2,
            "n_steps": 1024,
            "gamma": 0.9,
            "n_critic_updates": 15,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
        "Swimmer-v5": TRPO_MUJOCO | {"gamma": 0.9999},
        "HalfCheetah-v5": TRPO_MUJOCO | {"target_kl": 0.04},
        **dict.fromkeys(("Hopper-v5", *UNLISTED), TRPO_MUJOCO),
        "LunarLander-v3": {
            "n_envs": 2,
            "n_steps": 512,
            "cg_damping": 0.01,
            "gae_lambda": 0.98,
            "gamma": 0.99,
            "learning_rate": 1e-3,
            "n_critic_updates": 15,
        },
    },
    "DQN": {
        "CartPole-v1": {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
        "MountainCar-v0": {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
        "Acrobot-v1": {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
        "LunarLander-v3": {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    },
    "SAC": {
        "MountainCarContinuous-v0": {
            "learning_rate": 3e-4,
            "buffer_size": 50_000,
            "batch_size": 512,
            "ent_coef": 0.1,
            "train_freq": 32,
            "gradient_steps": 32,
            "gamma": 0.9999,
            "tau": 0.01,
            "learning_starts": 0,
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
        },
        "Pendulum-v1": {"learning_rate": 1e-3},
        "Swimmer-v5": SAC_MUJOCO | {"gamma": 0.999},
        **dict.fromkeys(("HalfCheetah-v5", "Hopper-v5", *UNLISTED), SAC_MUJOCO),
    },
    "TD3": {
        "MountainCarContinuous-v0": {
            "noise": ("ornstein-uhlenbeck", 0.5),
            "gradient_steps": 1,
            "train_freq": 1,
            "learning_rate": 1e-3,
            "batch_size": 256,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
        "Pendulum-v1": {
            "gamma": 0.98,
            "buffer_size": 200_000,
            "learning_starts": 10_000,
            "noise": ("normal", 0.1),
            "gradient_steps": 1,
            "train_freq": 1,
            "learning_rate": 1e-3,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
        "Swimmer-v5": TD3_MUJOCO | {"gamma": 0.9999},
        **dict.fromkeys(("HalfCheetah-v5", "Hopper-v5", *UNLISTED), TD3_MUJOCO),
    },
    "ARS": {
        "CartPole-v1": {"policy": "LinearPolicy", "n_delta": 2},
        "MountainCar-v0": ARS_MLP | {"n_delta": 8},
        "Pendulum-v1": ARS_MLP,
        "Acrobot-v1": ARS_MLP,
        "MountainCarContinuous-v0": ARS_MLP | {"delta_std": 0.2},
        "Swimmer-v5": {
            "policy": "LinearPolicy",
            "learning_rate": 0.02,
            "delta_std": 0.01,
            "n_delta": 1,
            "n_top": 1,
            "alive_bonus_offset": 0,
        },
        "Hopper-v5": {
            "policy": "LinearPolicy",
            "normalize": "observations",
            "learning_rate": 0.01,
            "delta_std": 0.025,
            "n_delta": 8,
            "n_top": 4,
            "alive_bonus_offset": -1,
        },
        "HalfCheetah-v5": {
            "policy": "LinearPolicy",
            "normalize": "observations",
            "learning_rate": 0.02,
            "delta_std": 0.03,
            "n_delta": 32,
            "n_top": 4,
            "alive_bonus_offset": 0,
        },
        "LunarLander-v3": ARS_MLP | {"n_delta": 6},
        **dict.fromkeys(UNLISTED, DEFAULT["ARS"]),
    },
}
EXPLORING = {
    "CartPole-v1": 50_000, "MountainCar-v0": 120_000, "Acrobot-v1": 100_000,
    "LunarLander-v3": 100_000,
}  # fmt: skip
"""The zoo's n_timesteps for DQN: `exploration_fraction` is a share of these, also where we train
for more or fewer steps."""

TIMED = [
    (task, algorithm) for task in ("CartPole-v1", "Pendulum-v1") for algorithm in ("PPO", "A2C")
]
TIMED_STEPS, TIMED_ENVS, TIMED_THREADS, REPEATS = 20_000, 8, (1,), 3
WARM_UP = 1000
"""Steps learned before the clock starts: the first updates load parts of torch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)

    learn = modes.add_parser("learn", help="returns against steps")
    learn.add_argument("--tasks", nargs="+", choices=ALL, default=list(TASKS), metavar="TASK")
    learn.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    learn.add_argument("--seeds", type=int, default=10, help="how many, from --first-seed on")
    learn.add_argument("--first-seed", type=int, default=0)
    learn.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    learn.add_argument(
        "--steps", type=int, help="train for fewer steps than the task's, to try out"
    )
    learn.add_argument("--out", type=Path, default=Path("results/rivals.jsonl"))

    throughput = modes.add_parser("throughput", help="steps per second of training")
    throughput.add_argument("--out", type=Path, default=Path("results/rivals-throughput.jsonl"))

    child = modes.add_parser("child", help="one measurement, printed: what the two others start")
    child.add_argument("request", type=json.loads)

    options = parser.parse_args()
    if options.mode == "child":
        print(json.dumps(CHILDREN[options.request.pop("do")](**options.request)))
    elif options.mode == "learn":
        learn_all(options)
    else:
        throughput_all(options)


# The parent: starts processes, never imports torch.


def learn_all(options: argparse.Namespace) -> None:
    tasks = [task for task in ALL if task in options.tasks]
    absent = [name for name in ("mujoco", "imageio") if find_spec(name) is None]
    skipped = [task for task in tasks if task in MUJOCO and absent]
    for task in skipped:
        print(f"{task} skipped, not installed: {', '.join(absent)}", flush=True)
        tasks.remove(task)
    done = {_key(line) for line in read(options.out)}
    requests = [
        {
            "do": "learn",
            "task": task,
            "algorithm": algorithm,
            "seed": seed,
            "budget": min(options.steps or math.inf, ALL[task].steps),
        }
        for task in tasks
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for algorithm in options.algorithms
        if task in ZOO[algorithm]
    ]
    missing = [request for request in requests if _key(request) not in done]
    print(f"{len(requests)} runs, {len(requests) - len(missing)} of them done before", flush=True)

    begun, failed = time.perf_counter(), 0
    pool = ThreadPoolExecutor(options.jobs)
    started = {pool.submit(_measure, request): request for request in missing}
    try:
        for count, finished in enumerate(as_completed(started), 1):
            request = started[finished]
            name = "{task} {algorithm} seed {seed}".format(**request)
            try:
                line = finished.result()
            except RuntimeError as error:
                failed += 1
                print(f"{name} failed: {error}", file=sys.stderr, flush=True)
                continue
            append(options.out, line)
            print(
                f"{time.perf_counter() - begun:6.0f} s  {count}/{len(missing)}  {name}: "
                f"threshold met at {line['steps_to_threshold']['deterministic']}, "
                f"last return {line['deterministic'][-1]:.1f} after {line['steps']} steps, "
                f"{line['steps_per_second']:.0f} steps/s",
                flush=True,
            )
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted, start no more
    if failed:
        sys.exit(f"{failed} runs failed")


def throughput_all(options: argparse.Namespace) -> None:
    for task, algorithm in TIMED:
        for threads in TIMED_THREADS:
            request = {"task": task, "algorithm": algorithm, "threads": threads}
            runs = [_measure(request | {"do": "throughput"}) for _ in range(REPEATS)]
            runs.sort(key=lambda run: run["steps_per_second"])
            rates = [run["steps_per_second"] for run in runs]
            line = runs[REPEATS // 2] | {"all_steps_per_second": rates}
            append(options.out, line)
            print(
                f"{task} {algorithm}, {threads} threads: median of {REPEATS} "
                f"{line['steps_per_second']:.0f} steps/s ({rates[0]:.0f} to {rates[-1]:.0f})",
                flush=True,
            )


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own answers to a request."""
    threads = str(request.get("threads", 1))
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    child = subprocess.run(
        [sys.executable, __file__, "child", json.dumps(request)],
        env=os.environ | limits | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    if child.returncode:
        raise RuntimeError(f"exit status {child.returncode}\n{child.stderr[-2000:]}")
    return json.loads(child.stdout.splitlines()[-1])


def _key(line: dict[str, Any]) -> tuple[str, str, int, int]:
    return line["task"], line["algorithm"], line["seed"], line["budget"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, line: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


# The child: one run.


class Clock(NamedTuple):
    """Seconds; those of the CPU are less disturbed by other jobs."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Clock":
        return cls(time.perf_counter(), time.process_time())

    def __add__(self, other: "Clock") -> "Clock":  # type: ignore[override]
        return Clock(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: "Clock") -> "Clock":
        return Clock(self.wall - other.wall, self.cpu - other.cpu)


class Ended(Exception):
    """Training is over: every threshold is met, or all steps are taken."""


def learn(task: str, algorithm: str, seed: int, budget: int) -> dict[str, Any]:
    from stable_baselines3.common.callbacks import BaseCallback

    class Recorder(BaseCallback):
        """Evaluates at step 0 and at regular intervals after it; ends training where it should
        end."""

        def _on_training_start(self) -> None:
            self.evaluation = Evaluation(self.model, task, seed)
            self.spent = Clock(0, 0)
            self.steps: list[int] = []
            self.returns: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            self.evaluate()
            self.begun, self.spent = Clock.now(), Clock(0, 0)

        def _on_step(self) -> bool:
            if self.num_timesteps >= self.steps[-1] + ALL[task].every:
                self.evaluate()
            if self.num_timesteps >= budget or self.solved():
                raise Ended  # ARS does not listen to what a callback returns
            return True

        def evaluate(self) -> None:
            begun = Clock.now()
            for policy, returns in self.returns.items():
                returns.append(self.evaluation.mean_return(policy == "deterministic"))
            self.steps.append(self.num_timesteps)
            self.spent = self.spent + (Clock.now() - begun)

        def met(self, policy: str) -> dict[str, int | None]:
            """Thresholds and the steps to them."""
            return {
                str(threshold): steps_to(threshold, self.steps, self.returns[policy])
                for threshold in ALL[task].thresholds
            }

        def solved(self) -> bool:
            return all(None not in self.met(policy).values() for policy in POLICIES)

    instead = exploring(task, algorithm, budget)
    model = build(task, algorithm, seed, **instead)
    recorder = Recorder()
    with contextlib.suppress(Ended):
        model.learn(budget, callback=recorder)
    seconds = Clock.now() - recorder.begun - recorder.spent
    return {
        "task": task,
        "algorithm": algorithm,
        "seed": seed,
        "budget": budget,
        "steps_to_threshold": {policy: recorder.met(policy) for policy in POLICIES},
        "steps": model.num_timesteps,
        "train_seconds": round(seconds.wall, 3),
        "train_cpu_seconds": round(seconds.cpu, 3),
        "steps_per_second": round(model.num_timesteps / seconds.wall, 1),
        "evaluation_seconds": round(recorder.spent.wall, 3),
        "evaluation_cpu_seconds": round(recorder.spent.cpu, 3),
        "evaluated_at": recorder.steps,
        **recorder.returns,
        "settings": ZOO[algorithm][task] | instead,
        **versions(),
    }


def throughput(task: str, algorithm: str, threads: int) -> dict[str, Any]:
    build(task, algorithm, seed=1, threads=threads, n_envs=TIMED_ENVS).learn(WARM_UP)
    model = build(task, algorithm, seed=0, threads=threads, n_envs=TIMED_ENVS)
    begun = Clock.now()
    model.learn(TIMED_STEPS)
    seconds = Clock.now() - begun
    return {
        "task": task,
        "algorithm": algorithm,
        "environments": TIMED_ENVS,
        "threads": threads,
        "steps": model.num_timesteps,  # whole batches: up to 24,576 for PPO on Pendulum
        "steps_per_second": round(model.num_timesteps / seconds.wall, 1),
        "steps_per_cpu_second": round(model.num_timesteps / seconds.cpu, 1),
        **versions(),
    }


def exploring(task: str, algorithm: str, budget: int) -> dict[str, Any]:
    """The part of a budget in which DQN explores, so that it is as long as in the zoo."""
    if algorithm != "DQN" or task not in EXPLORING:
        return {}
    share = ZOO[algorithm][task]["exploration_fraction"] * EXPLORING[task] / budget
    return {"exploration_fraction": min(share, 1.0)}


CHILDREN = {"learn": learn, "throughput": throughput}


def settings_of(task: str, algorithm: str) -> dict[str, Any]:
    """The zoo's settings for the task, or those for tasks that it does not list; a copy, because
    SB3 writes into policy_kwargs."""
    return copy.deepcopy(ZOO[algorithm].get(task, DEFAULT.get(algorithm, {})))


def build(
    task: str, algorithm: str, seed: int, threads: int = 1, make: Any = None, **instead: Any
) -> Any:
    """An untrained model with the zoo's settings; `make` makes an environment that has no id."""
    import torch
    from sb3_contrib import ARS, TRPO
    from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(threads)
    settings = settings_of(task, algorithm) | instead
    settings = {name: _scheduled(value) for name, value in settings.items()}
    if settings.get("policy_kwargs", {}).get("activation_fn") == "relu":
        settings["policy_kwargs"]["activation_fn"] = torch.nn.ReLU
    envs = make_vec_env(make or task, settings.pop("n_envs", 1), seed=seed)
    if normalize := settings.pop("normalize", False):
        rewards = normalize != "observations"
        envs = VecNormalize(envs, gamma=settings.get("gamma", 0.99), norm_reward=rewards)
    if noise := settings.pop("noise", None):
        settings["action_noise"] = _noise(*noise, *envs.action_space.shape)
    known = (A2C, PPO, TRPO, DQN, SAC, TD3, ARS)
    algorithms = {each.__name__: each for each in known}
    policy = settings.pop("policy", "MlpPolicy")
    return algorithms[algorithm](policy, envs, seed=seed, device="cpu", **settings)


def _noise(kind: str, deviation: float, actions: int) -> Any:
    import numpy as np
    from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

    of = {"normal": NormalActionNoise, "ornstein-uhlenbeck": OrnsteinUhlenbeckActionNoise}
    return of[kind](np.zeros(actions), deviation * np.ones(actions))


def _scheduled(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("lin_"):
        initial = float(value.removeprefix("lin_"))
        return lambda remaining: initial * remaining
    return value


class Evaluation:
    """Episodes of a model's policy, one in each of as many environments side by side; `make` makes
    an environment that has no id."""

    def __init__(
        self, model: Any, task: str, seed: int, episodes: int = EPISODES, make: Any = None
    ) -> None:
        import gymnasium
        import numpy as np
        import torch

        self.model = model
        make = make or (lambda: gymnasium.make(task, disable_env_checker=True))
        self.envs = [make() for _ in range(episodes)]
        for index, env in enumerate(self.envs):
            env.reset(seed=1_000_000 + episodes * seed + index)  # training's seeds are small
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1_000_000 + seed)
            # A copy: its exploration noise (gSDE) is a state that training keeps for itself.
            if model.use_sde:
                self.policy = type(model.policy)(**model.policy._get_constructor_parameters())
            else:
                self.policy = copy.deepcopy(model.policy)
            self.random = torch.random.get_rng_state()
        noise = getattr(model, "action_noise", None)
        self.noises = [copy.deepcopy(noise) for _ in self.envs] if noise is not None else []
        self.numpy = np.random.RandomState(1_000_000 + seed).get_state()
        self.noise = np.random.default_rng(1_000_000 + seed)

    def mean_return(self, deterministic: bool) -> float:
        returns = self.returns(deterministic)
        return round(sum(returns) / len(returns), 3)

    def returns(self, deterministic: bool) -> list[float]:
        """Of one episode in each environment. The random streams of training are left alone: those
        of torch, and of NumPy, from which SB3's action noise draws."""
        import numpy as np
        import torch

        self.policy.load_state_dict(self.model.policy.state_dict())
        training = np.random.get_state()  # noqa: NPY002
        try:
            np.random.set_state(self.numpy)  # noqa: NPY002
            with torch.random.fork_rng(devices=[]):
                torch.random.set_rng_state(self.random)
                found = self._play(deterministic)
                self.random = torch.random.get_rng_state()
            self.numpy = np.random.get_state()  # noqa: NPY002
        finally:
            np.random.set_state(training)  # noqa: NPY002
        return found

    def _play(self, deterministic: bool) -> list[float]:
        import numpy as np

        normalised = self.model.get_vec_normalize_env()
        states = np.stack([env.reset()[0] for env in self.envs])
        playing, totals, step = list(range(len(self.envs))), [0.0] * len(self.envs), 0
        # As in training: noise is redrawn every sde_sample_freq steps, and with each batch.
        redraw, use_sde = 0, self.model.use_sde
        if use_sde:
            of_batch = self.model.train_freq.frequency if hasattr(self.model, "train_freq") else 0
            redraw = (
                self.model.sde_sample_freq
                if self.model.sde_sample_freq > 0
                else of_batch or self.model.n_steps
            )
        at_random = 0.0 if deterministic else getattr(self.model, "exploration_rate", 0.0)
        noises = [] if deterministic else self.noises
        for noise in noises:
            noise.reset()
        while playing:
            if use_sde and not deterministic and step % redraw == 0:
                self.policy.reset_noise(len(self.envs))
            seen = normalised.normalize_obs(states) if normalised else states
            actions, _ = self.policy.predict(seen, deterministic=deterministic)
            if at_random:  # DQN
                chance = self.noise.random(len(self.envs)) < at_random
                others = self.noise.integers(self.envs[0].action_space.n, size=len(self.envs))
                actions = np.where(chance, others, actions)
            if noises:  # TD3
                scaled = self.policy.scale_action(actions) + np.stack([draw() for draw in noises])
                actions = self.policy.unscale_action(np.clip(scaled, -1, 1))
            for index in tuple(playing):
                state, reward, terminated, truncated, _ = self.envs[index].step(actions[index])
                states[index] = state
                totals[index] += float(reward)
                if terminated or truncated:
                    playing.remove(index)
            step += 1
        return totals


def kept(returns: Any) -> bool:
    """Whether the mean of the last three evaluations is within 5 % of the best such mean, as a
    share of the way from the first evaluation."""
    three = [sum(each) / 3 for each in zip(returns, returns[1:], returns[2:], strict=False)]
    return bool(max(three) - three[-1] <= 0.05 * max(max(three) - returns[0], 1e-9))


def steps_to(threshold: float, steps: list[int], returns: list[float]) -> int | None:
    """The first of two evaluations in a row at or above a threshold; none if there are none."""
    met = [value >= threshold for value in returns]
    pairs = zip(steps, met, met[1:], strict=False)
    return next((step for step, now, then in pairs if now and then), None)


def versions() -> dict[str, Any]:
    packages = ("stable-baselines3", "sb3-contrib", "torch", "gymnasium", "numpy")
    return {
        "versions": {name: metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} x {platform.machine()}",
    }


if __name__ == "__main__":
    main()
