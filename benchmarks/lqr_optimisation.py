"""10^4 repetitions of BPG on LQR: `training.train` against NumPy, and where the time goes.

M = 40 paths, 100 updates, Model 1 with the exact Fisher matrix, noise 1e-3, kappa ~ N(0, I), Table 3's rates.
"""

import jax
import jax.numpy as jnp
import lqr_numpy
import numpy as np
from measure import Table, best_of, compilations, on_cpu, once, peak_memory

from bayespg import updates
from bayespg.environments import LQR
from bayespg.estimators import Model1, draw, exact
from bayespg.policies import BoundedLinearGaussian
from bayespg.random import fast_key, normal
from bayespg.training import Result, train

RUNS, QUICK_RUNS, CHUNK = 10_000, 500, 500
PATHS, UPDATES = 40, 100
ENVIRONMENT = LQR()
EXACT = Model1(noise=1e-3, fisher=exact)
INTEGRATED = Model1(noise=1e-3)
"""G with the actions integrated out: needs the whole path arrays."""


def update():
    return updates.conventional(updates.hyperbolic(np.array([0.10, 0.30])))


UPDATE = update()
"""Made once: a new transformation is a new function to JAX, and compiles anew."""


def run(quick: bool) -> list[Table]:
    runs = QUICK_RUNS if quick else RUNS
    start, key = _start(runs)

    def ours(estimator=EXACT, transformation=UPDATE) -> Result:
        return train(
            ENVIRONMENT, BoundedLinearGaussian(start), estimator, transformation,
            key=key, updates=UPDATES, paths=PATHS, runs=runs,
        )  # fmt: skip

    before = peak_memory()
    first, _ = once(ours)
    with compilations() as again:
        second, result = once(ours)
    repeats = best_of(2, ours)
    best = type(second)(*map(min, second, repeats))
    memory = peak_memory() - before
    with compilations() as anew:
        ours(transformation=update())
    whole, whole_first = best_of(1 if on_cpu() else 3, lambda: ours(INTEGRATED)), peak_memory()

    clock: dict[str, float] = {}
    rival, rival_cost = _rival(runs, clock)
    cost = -np.asarray(_final(result))
    where = "" if on_cpu() else ", on the host"
    speed = Table(
        f"LQR optimisation, {runs:,} runs x {UPDATES} updates x {PATHS} paths",
        ["", "s", "CPU s", "NumPy / ours", "NumPy / ours, CPU", "compile s", "peak MB"],
        [
            [f"NumPy, one core{where}", rival.wall, rival.cpu, 1.0, 1.0, None, None],
            ["training.train", *best, rival.wall / best.wall, rival.cpu / best.cpu,
             first.wall - second.wall, memory],
            ["the same, G from the paths", *whole, rival.wall / whole.wall,
             rival.cpu / whole.cpu, None, whole_first - before],
        ],
        [
            f"NumPy: the best of its chunks of {CHUNK} runs, times their number.",
            f"Programs compiled by a second call: {len(again)}; with a new update object: {len(anew)}.",
            "Peak MB is the growth of the process (GPU: of the device) since before the first call.",
        ],
    )  # fmt: skip
    return [speed, _stages(runs, key, best, clock, rival), _agreement(cost, rival_cost)]


def _start(runs: int):
    key_start, key = jax.random.split(fast_key(0))
    with jax.enable_x64(True):
        return jax.random.normal(key_start, (runs, 2)), key


def _final(result: Result):
    with jax.enable_x64(True):
        return jax.vmap(ENVIRONMENT.expected_return)(result.policy)


def _rival(runs: int, clock: dict[str, float]):
    rng = np.random.default_rng(0)
    timed = [
        once(lambda: lqr_numpy.learn(rng, CHUNK, UPDATES, PATHS, clock))
        for _ in range(runs // CHUNK)
    ]
    best = type(timed[0][0])(*map(min, zip(*(t for t, _ in timed), strict=True)))
    chunks = len(timed)
    scaled = type(best)(best.wall * chunks, best.cpu * chunks)
    return scaled, np.concatenate([cost for _, cost in timed])


def _stages(runs: int, key, total, clock: dict[str, float], rival) -> Table:
    """Each stage does all that the one before does; the share is what it adds."""
    keys = jax.random.split(key, runs)

    def loop(step, zero):
        def one(key):
            def advance(carry, key):
                return step(carry, key), None

            return jax.lax.scan(advance, zero, jax.random.split(key, UPDATES))[0]

        return jax.jit(jax.vmap(one))

    def numbers(drawn, carry, key):
        """Two draws a step, as the action and the transition take."""

        def advance(carry, key):
            first, second = jax.random.split(key)
            return carry + drawn(first) + drawn(second), None

        keys = jax.random.split(key, ENVIRONMENT.horizon)
        return jax.lax.scan(advance, carry + drawn(key), keys)[0]

    def bits(carry, key):
        return numbers(lambda k: jax.random.bits(k, (PATHS,), jnp.uint32), carry, key)

    def normals(carry, key):
        return numbers(lambda k: normal(k, (PATHS,)), carry, key)

    policy = BoundedLinearGaussian(jnp.zeros(2, jnp.float32))

    def paths(carry, key):
        sample = draw(ENVIRONMENT, policy, key, PATHS, jnp.float32)
        return carry[0] + sample.scores, carry[1] + sample.returns

    vector = jnp.zeros(PATHS, jnp.float32)
    parts = {
        "random bits": loop(bits, jnp.zeros(PATHS, jnp.uint32)),
        "normals": loop(normals, vector),
        "steps, scores, returns": loop(paths, (jnp.zeros((PATHS, 2), jnp.float32), vector)),
    }
    upto = {name: best_of(2, lambda f=f: f(keys)) for name, f in parts.items()}
    upto["Fisher matrix, posterior, update, record"] = total
    rows, before = [], type(total)(0.0, 0.0)
    for name, timing in upto.items():
        rows.append([name, timing.wall, timing.wall - before.wall, timing.cpu - before.cpu,
                     (timing.cpu - before.cpu) / total.cpu])  # fmt: skip
        before = timing
    seconds = sum(clock.values())
    for name, what in (("paths", "NumPy: normals, steps, scores"), ("posterior", "NumPy: posterior, update")):  # fmt: skip
        share = clock[name] / seconds
        rows.append([what, None, rival.wall * share, rival.cpu * share, share])
    draws = runs * UPDATES * PATHS * (2 * ENVIRONMENT.horizon + 1)
    return Table(
        "Where the time goes",
        ["stage", "up to here s", "adds s", "adds CPU s", "share of CPU"],
        rows,
        [f"{draws:.3g} normals; stages are compiled apart, so what they add is approximate."],
    )


def _agreement(ours: np.ndarray, rival: np.ndarray) -> Table:
    def summary(name, x):
        mean, error = float(x.mean()), float(x.std(ddof=1) / x.size**0.5)
        half = 0.5 / x.size**0.5  # one standard error of the rank of the median
        low, median, high = np.quantile(x, (0.5 - half, 0.5, 0.5 + half)).tolist()
        row = [name, *(f"{v:.5f}" for v in (mean, error, median, (high - low) / 2, x.max()))]
        return row, (mean, error), (median, (high - low) / 2)

    (a, mean_a, median_a), (b, mean_b, median_b) = summary("NumPy", rival), summary("train", ours)

    def z(p, q):
        return (p[0] - q[0]) / (p[1] ** 2 + q[1] ** 2) ** 0.5

    return Table(
        "The same answer: expected cost after the last update",
        ["", "mean", "standard error", "median", "standard error", "worst run"],
        [a, b],
        [f"Difference in standard errors: mean {z(mean_a, mean_b):.2f}, median {z(median_a, median_b):.2f}."],
    )  # fmt: skip
