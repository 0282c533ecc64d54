"""Swimmer-v5 in C, for linear policies: the equations that MuJoCo integrates, 20 times as fast.

    python benchmarks/swimmer.py

compares returns with Gymnasium's of the same seeds. They agree until policies that
turn joints to their limits have multiplied differences of rounding. It needs a C compiler, `cc`.
"""

import ctypes
import functools
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("swimmer.c")
ROD = np.array([35.604716740684324, 3.9175660390264717, 0.17383479349863523])
"""Mass and moments of inertia, as MuJoCo computes them from the model."""
STEPS = 1000
NUMBERS = np.ctypeslib.ndpointer(np.float64, flags="C")


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled program."""
    with tempfile.TemporaryDirectory() as folder:
        to = f"{folder}/swimmer.so"
        subprocess.run(
            ["cc", "-O3", "-ffp-contract=off", "-shared", "-fPIC", SOURCE, "-o", to, "-lm"],
            check=True,
        )
        found = ctypes.CDLL(to)
    found.play.argtypes = [NUMBERS] * 4 + [ctypes.c_int, NUMBERS]
    found.play.restype = ctypes.c_double
    return found


def play(W: np.ndarray, seed: int) -> tuple[float, np.ndarray]:
    """Return and sums of squared observations of an episode from Gymnasium's first state."""
    rng, squares = np.random.default_rng(seed), np.zeros(8)
    q, v = rng.uniform(-0.1, 0.1, 5), rng.uniform(-0.1, 0.1, 5)
    return library().play(ROD, np.ascontiguousarray(W, float), q, v, STEPS, squares), squares


def main() -> None:
    import gymnasium

    environment = gymnasium.make("Swimmer-v5", disable_env_checker=True)
    for seed in range(5):
        W = np.random.default_rng(seed).normal(size=(2, 9)) * 0.3 * 2.0**seed
        begun, total = time.process_time(), 0.0
        x, _ = environment.reset(seed=seed)
        for _ in range(STEPS):
            x, reward, *_ = environment.step(np.clip(W[:, :-1] @ x + W[:, -1], -1, 1))
            total += float(reward)
        between = time.process_time()
        ours, _ = play(W, seed)
        print(
            f"Gymnasium {total:.6f} in {1e3 * (between - begun):.0f} ms, "
            f"here {ours:.6f} in {1e3 * (time.process_time() - between):.0f} ms"
        )


if __name__ == "__main__":
    main()
