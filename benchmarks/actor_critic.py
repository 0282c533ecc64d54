"""Bayesian actor-critic: the gradient posterior against the number of steps, and a whole update of
ship steering, 40,500 parameters, without and with a critic.

Updates of ship steering run in processes of their own, whose peak memory is then theirs alone:

    python benchmarks/actor_critic.py <policy.npz> [method M]
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

import jax
import jax.numpy as jnp
import numpy as np
from measure import Table, Timing, fastest, on_cpu, once, peak_memory, slope

import bayespg.reproduce.ship_steering as ship
from bayespg import kernels, training, updates
from bayespg._support.random import fast_key
from bayespg.actor_critic import gradient_posterior
from bayespg.algebra.sparsification import Sparsify
from bayespg.policies import CMAC, ship_steering_cmac
from bayespg.posterior import GradientPosterior

PARAMETERS, LENGTH, TRUNCATED = 48, 100, 0.05
"""Steps of an episode, and the share of episodes that are cut off."""
STATES = kernels.Gaussian(0.325)
SPARSIFY = Sparsify(1e-3, 150)
MANY, QUICK_MANY = (1000, 3000, 10_000, 30_000, 100_000), (1000, 3000, 10_000)
DENSE, QUICK_DENSE = 3000, 1000
"""Steps up to which the N x N matrix is factorised."""
DICTIONARY, WEIGHT = "dictionary", "weight"
DUAL, BARE = "dual", "dual, mean and covariance"
PATHS, QUICK_PATHS = (5, 10, 20), (5,)
METHODS = ("MCPG", "MC, fitted values", ship.OURS)
UPDATES, LEARNED, QUICK_LEARNED = 10, 100, 20
"""Updates timed at once, and those before them, by BAC with M = 20: at the start nearly all returns
are zero, and conjugate gradients have nothing to do."""


def run(quick: bool) -> list[Table]:
    if quick:
        steps = _against_steps(QUICK_MANY, QUICK_DENSE)
        return [*steps, _ship_steering(QUICK_PATHS, QUICK_LEARNED)]
    return [*_against_steps(MANY, DENSE), _ship_steering(PATHS, LEARNED)]


class Data(NamedTuple):
    states: np.ndarray
    scores: np.ndarray
    rewards: np.ndarray
    fisher: np.ndarray
    last: np.ndarray
    terminated: np.ndarray

    def posterior(self, **options: Any) -> GradientPosterior:
        return gradient_posterior(
            *self[:4], last=self.last, terminated=self.terminated, discount=0.95,
            state_kernel=STATES, **options,
        )  # fmt: skip


def _data(rng: np.random.Generator, N: int) -> Data:
    """Random walks in the unit square, reflected at its sides."""
    E = N // LENGTH
    walks = np.cumsum(rng.normal(scale=0.04, size=(E, LENGTH, 2)), 1) + rng.uniform(size=(E, 1, 2))
    states = (1 - np.abs(1 - walks % 2)).reshape(N, 2)
    scores = rng.standard_normal((N, PARAMETERS))
    smooth = np.sin(2 * np.pi * states[:, 0]) * np.cos(np.pi * states[:, 1])
    last = np.arange(N) % LENGTH == LENGTH - 1
    terminated = last & (rng.uniform(size=N) > TRUNCATED)
    rewards = smooth + rng.normal(scale=0.3, size=N)
    return Data(states, scores, rewards, scores.T @ scores / N, last, terminated)


def _bare(data: Data) -> Callable[[], Any]:
    """The dense answer alone: XLA leaves out what is not asked for."""

    @jax.jit
    def function(data):
        found = data.posterior(form="dual", episodes=len(data.rewards) // LENGTH)
        return found.mean, found.covariance

    def call():
        with jax.enable_x64(True):
            return function(data)

    return call


def _timed(function: Callable[[], Any]) -> tuple[Timing, float, Any]:
    """The best of three calls, or of one that takes long; what the first took beyond that."""
    first, answer = once(function)
    best = fastest(once(function)[0] for _ in range(1 if first.wall > 20 else 3))
    return best, first.wall - best.wall, answer


def _against_steps(many: tuple[int, ...], dense: int) -> list[Table]:
    rng = np.random.default_rng(0)
    times: dict[tuple[str, int], Timing] = {}
    rows, sizes = {}, []
    for N in many:
        data = _data(rng, N)
        forms: dict[str, Callable[[], Any]] = {
            DICTIONARY: lambda data=data: data.posterior(sparsify=SPARSIFY),
            WEIGHT: lambda data=data: data.posterior(form="weight"),
        }
        if dense >= N:
            forms |= {DUAL: lambda data=data: data.posterior(form="dual"), BARE: _bare(data)}
        found = {}
        for form, function in forms.items():
            best, compiling, found[form] = _timed(function)
            times[form, N] = best
            times_dictionary = best.work / times[DICTIONARY, N].work
            rows[form, N] = [form, N, *best, compiling, times_dictionary]
        reference = DUAL if DUAL in found else WEIGHT
        sizes.append([N, *_agreement(found[DICTIONARY], found[WEIGHT], found[reference])])
    ordered = [row for form in (DICTIONARY, WEIGHT, DUAL, BARE) for (f, _), row in rows.items()
               if f == form]  # fmt: skip
    title = f"Gradient posterior against the number of steps, n = {PARAMETERS}"
    return [
        Table(title, ["form", "N", "s", "CPU s", "compile s", "times dictionary"], ordered, [
            "The public function on NumPy arrays, checks and copies included. Times dictionary: "
            + ("CPU seconds." if on_cpu() else "seconds."),
            f"Dictionary: threshold {SPARSIFY.threshold:g}, room for {SPARSIFY.capacity} pairs, "
            "which is what it costs however many it holds.",
            f"{DUAL}: with every episode left out exactly, a solve of N x N an episode; {BARE}: "
            "compiled without, which the other forms are not.",
        ]),
        Table(
            "Members of the dictionary, and errors of the mean",
            ["N", "members", "refused", "residual", "state features", "error, dictionary",
             "error, weight", "against"],
            sizes,
            ["Errors: of the mean, in the norm and relative. Residual: the largest prior "
             "variance of a pair, of about 49, that was dropped."],
        ),
        _exponents(times),
    ]  # fmt: skip


def _agreement(dictionary, weight, reference) -> list[Any]:
    def error(found) -> float:
        off = np.linalg.norm(found.mean - reference.mean)
        return float(off / np.linalg.norm(reference.mean))

    held = dictionary.info
    return [
        int(held["dictionary_size"]), int(held["dictionary_refused"]),
        float(held["dictionary_residual"]), int(weight.info["state_rank"]), error(dictionary),
        *((None, "weight") if reference is weight else (error(weight), "dual")),
    ]  # fmt: skip


def _exponents(times: dict[tuple[str, int], Timing]) -> Table:
    rows = []
    for form in dict.fromkeys(form for form, _ in times):
        tail = sorted(N for f, N in times if f == form)[-3:]
        if len(tail) < 2:
            continue
        found = slope(tail, [times[form, N].work for N in tail])
        rows.append([form, f"{tail[0]:,} to {tail[-1]:,}", f"{found:.2f}"])
    return Table("Exponents of N", ["form", "N", "time"], rows, [])


# Ship steering, each case in a process of its own.


def _ship_steering(paths: tuple[int, ...], learned: int) -> Table:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        policy = str(Path(folder) / "policy.npz")
        share = _learn(policy, learned)
        nothing = _process(policy)["peak"] if on_cpu() else 0.0
        for M in paths:
            for method in METHODS:
                found = _process(policy, method, str(M))
                N, n = M * ship.ENVIRONMENT.horizon, found["parameters"]
                rows.append(
                    [method, M, N, *found["best"], found["compiling"], found["peak"] - nothing,
                     found["compiled"] - nothing, found["temporary"], 8e-6 * N * n, 8e-6 * n**2,
                     found["with_gradient"]]
                )  # fmt: skip
    where = (
        f"the process, less the {nothing:,.0f} MB of one that imports the same and compiles a sum"
        if on_cpu()
        else "the GPU's allocator, XLA trying its kernels out included"
    )
    return Table(
        "One update of ship steering, n = 40,500",
        ["", "M", "N", "s", "CPU s", "compile s", "peak MB", "of which compiling", "temp MB",
         "8 N n MB", "8 n^2 MB", "with a gradient"],
        rows,
        [
            f"s and CPU s: an update of {UPDATES} in one compiled loop, the best of three: paths "
            "drawn, gradient estimated, parameters changed. Compile s: the loop.",
            f"Peak: of {where}. Temp: XLA's buffers of the loop besides arguments and answer.",
            f"The policy at the start comes from {learned} updates by BAC, M = 20, the last ten "
            f"with {100 * share:.0f} % success. With a gradient: of the {UPDATES}, those where "
            f"some return is not zero; in the others {ship.ITERATIONS} conjugate gradients are "
            "not needed.",
        ],
    )  # fmt: skip


def _learn(path: str, learned: int) -> float:
    result = training.train(
        ship.environment(), ship_steering_cmac(), ship.estimators()[ship.OURS],
        updates.conventional(ship.RATES[ship.OURS][20]), key=fast_key(0), updates=learned, paths=20,
    )  # fmt: skip
    np.savez(path, weights=result.policy.weights)
    return float(result.history.sample_return[-10:].mean())


def _process(*arguments: str) -> dict[str, Any]:
    environ = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environ, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{arguments}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _peak() -> float:
    """As `peak_memory`, but on Linux without what the parent held, which ru_maxrss inherits."""
    status = Path("/proc/self/status")
    if not (on_cpu() and status.exists()):
        return peak_memory()
    lines = (line.split() for line in status.read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == "VmHWM:") * 1.024e-3


def _update(weights: np.ndarray, method: str, M: int) -> dict[str, Any]:
    update = updates.conventional(ship.RATES[method][M])
    environment, estimator = ship.ENVIRONMENT, ship.METHODS[method].estimator
    state = training.begin(CMAC(jnp.asarray(weights)), update, fast_key(1))

    def loop(state):
        def one(state, _):
            return training.step(environment, estimator, update, state, M, 0.0)

        return jax.lax.scan(one, state, None, UPDATES)

    compiling, compiled = once(lambda: jax.jit(loop).lower(state).compile())
    before = _peak()
    _, (_, history) = once(lambda: compiled(state))
    best = fastest(once(lambda: compiled(state))[0] for _ in range(3))
    return {
        "best": [best.wall / UPDATES, best.cpu / UPDATES],
        "compiling": compiling.wall,
        "compiled": before,
        "temporary": compiled.memory_analysis().temp_size_in_bytes / 1e6,
        "parameters": weights.size,
        "with_gradient": int(np.sum(np.asarray(history.gradient_norm) > 0)),
    }


def main(path: str, method: str | None = None, M: str = "0") -> None:
    with jax.enable_x64(True):
        jax.block_until_ready(jax.jit(jnp.sum)(jnp.ones((100, 100))))
        weights = np.load(path)["weights"]
        found = {} if method is None else _update(weights, method, int(M))
    print(json.dumps(found | {"peak": _peak()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
