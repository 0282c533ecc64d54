"""10^4 repetitions of BPG on LQR: `training.train` against NumPy, and where the time goes.

M = 40 paths, 100 updates, Model 1 with the exact Fisher matrix, noise 1e-3, kappa ~ N(0, I) at the
start, the learning rates of Table 3.
"""

import jax
import jax.numpy as jnp
import lqr_numpy
import numpy as np
from measure import Table, Timing, best_of, compilations, fastest, on_cpu, once, peak_memory

from bayespg import updates
from bayespg._support.random import fast_key, normal
from bayespg.environments import LQR
from bayespg.learning.estimators import Model1, draw, exact
from bayespg.learning.training import train
from bayespg.policies import BoundedLinearGaussian

RUNS, QUICK_RUNS, CHUNK = 10_000, 500, 500
PATHS, UPDATES = 40, 100
ENVIRONMENT = LQR()
ESTIMATORS = {
    "training.train, exact G": Model1(noise=1e-3, fisher=exact),
    "training.train, G from the paths": Model1(noise=1e-3),
}
"""The second integrates the actions out of G, for which it keeps all states of all paths."""


def conventional():
    return updates.conventional(updates.hyperbolic(np.array([0.10, 0.30])))


def run(quick: bool) -> list[Table]:
    runs = QUICK_RUNS if quick else RUNS
    key_start, key = jax.random.split(fast_key(0))
    with jax.enable_x64(True):
        start = BoundedLinearGaussian(jax.random.normal(key_start, (runs, 2)))

    def learn(estimator, update):
        return train(
            ENVIRONMENT, start, estimator, update, key=key, updates=UPDATES, paths=PATHS, runs=runs
        )

    clock: dict[str, float] = {}
    rival, rival_cost = _rival(runs, clock)
    where = "" if on_cpu() else " of the host"
    rows = [[f"NumPy, one core{where}", *rival, 1.0, 1.0, None, None]]
    found, notes = [], []
    update = conventional()
    for name, estimator in ESTIMATORS.items():
        before = peak_memory()
        first, _ = once(lambda e=estimator: learn(e, update))
        with compilations() as again:
            second, result = once(lambda e=estimator: learn(e, update))
        best = fastest([second, *(once(lambda e=estimator: learn(e, update))[0] for _ in range(2))])
        found.append((best, result))
        ratios = rival.wall / best.wall, rival.cpu / best.cpu
        compiling, memory = first.wall - best.wall, peak_memory() - before
        rows.append([name, *best, *ratios, compiling, memory])
        notes.append(f"{name}: a second call compiles {len(again)} programs.")
    with compilations() as anew:
        learn(ESTIMATORS["training.train, exact G"], conventional())
    (best, result), _ = found
    speed = Table(
        f"LQR optimisation, {runs:,} runs x {UPDATES} updates x {PATHS} paths",
        ["", "s", "CPU s", "times NumPy", "times NumPy, CPU", "compile s", "memory MB"],
        rows,
        [
            f"NumPy: the best of its chunks of {CHUNK} runs, times their number.",
            "Memory: growth of the peak of the process, or of the GPU, since the call before.",
            *notes,
            f"With a new update object, which is a new function to JAX: {len(anew)}.",
        ],
    )
    with jax.enable_x64(True):
        cost = -np.asarray(jax.vmap(ENVIRONMENT.expected_return)(result.policy))
    return [speed, _stages(runs, key, best, clock, rival), _agreement(cost, rival_cost)]


def _rival(runs: int, clock: dict[str, float]) -> tuple[Timing, np.ndarray]:
    rng, chunks = np.random.default_rng(0), runs // CHUNK
    timed = [
        once(lambda: lqr_numpy.learn(rng, CHUNK, UPDATES, PATHS, clock)) for _ in range(chunks)
    ]
    best = fastest(timing for timing, _ in timed)
    return Timing(best.wall * chunks, best.cpu * chunks), np.concatenate([c for _, c in timed])


def _stages(runs: int, key, total: Timing, clock: dict[str, float], rival: Timing) -> Table:
    """Each stage does all that the one before does; its share is what it adds."""
    keys = jax.random.split(key, runs)
    policy = BoundedLinearGaussian(jnp.zeros(2, jnp.float32))

    def loop(step, zero):
        def one(key):
            return jax.lax.scan(
                lambda carry, key: (step(carry, key), None), zero, jax.random.split(key, UPDATES)
            )[0]

        return jax.jit(jax.vmap(one))

    def numbers(drawn):
        """One draw at the start and two a step, as paths take them."""

        def advance(carry, key):
            first, second = jax.random.split(key)
            return carry + drawn(first) + drawn(second), None

        def step(carry, key):
            steps = jax.random.split(key, ENVIRONMENT.horizon)
            return jax.lax.scan(advance, carry + drawn(key), steps)[0]

        return step

    def paths(carry, key):
        sample = draw(ENVIRONMENT, policy, key, PATHS, jnp.float32)
        return carry[0] + sample.scores, carry[1] + sample.returns

    words, floats = jnp.zeros(PATHS, jnp.uint32), jnp.zeros(PATHS, jnp.float32)
    parts = {
        "random bits": loop(numbers(lambda k: jax.random.bits(k, (PATHS,), jnp.uint32)), words),
        "normals": loop(numbers(lambda k: normal(k, (PATHS,))), floats),
        "steps, scores, returns": loop(paths, (jnp.zeros((PATHS, 2), jnp.float32), floats)),
    }
    upto = {name: best_of(2, lambda f=f: f(keys)) for name, f in parts.items()}
    upto["Fisher matrix, posterior, update, record"] = total
    rows, before = [], Timing(0.0, 0.0)
    for name, now in upto.items():
        adds = now.work - before.work
        rows.append(
            [name, now.wall, now.wall - before.wall, now.cpu - before.cpu, adds / total.work]
        )
        before = now
    for name, what in {"paths": "normals, steps, scores", "posterior": "posterior, update"}.items():
        share = clock[name] / sum(clock.values())
        rows.append([f"NumPy: {what}", None, rival.wall * share, rival.cpu * share, share])
    draws = runs * UPDATES * PATHS * (2 * ENVIRONMENT.horizon + 1)
    return Table(
        "Where the time goes",
        ["stage", "up to here s", "adds s", "adds CPU s", "share"],
        rows,
        [f"{draws:.3g} normals. Stages are compiled apart, so what each adds is approximate."],
    )


def _agreement(ours: np.ndarray, rival: np.ndarray) -> Table:
    def summary(x: np.ndarray) -> tuple[float, float, float, float]:
        """Mean and median, each with its standard error."""
        half = 0.5 / x.size**0.5  # one standard error of the rank of the median
        low, median, high = np.quantile(x, (0.5 - half, 0.5, 0.5 + half))
        return x.mean(), x.std(ddof=1) / x.size**0.5, median, (high - low) / 2

    a, b = summary(rival), summary(ours)
    z = [(a[i] - b[i]) / np.hypot(a[i + 1], b[i + 1]) for i in (0, 2)]
    return Table(
        "Expected cost after the last update",
        ["", "mean", "standard error", "median", "standard error", "worst run"],
        [
            [name, *(f"{v:.5f}" for v in (*of, x.max()))]
            for name, of, x in (("NumPy", a, rival), ("training.train", b, ours))
        ],
        [f"Difference in standard errors: mean {z[0]:.1f}, median {z[1]:.1f}."],
    )
