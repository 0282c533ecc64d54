"""Normals per second by generator and precision, and a statistical check of `fast_key`."""

import jax
import jax.numpy as jnp
import numpy as np
from measure import Table, best_of
from scipy import stats

from bayespg._support import random as ours

SIZE, QUICK_SIZE = 4_000_000, 1_000_000
SEED = 7


def run(quick: bool) -> list[Table]:
    size = QUICK_SIZE if quick else SIZE
    return [_speed(size), *_quality(size)]


def _speed(size: int) -> Table:
    keys = {"fast_key": ours.fast_key(SEED)} | {
        name: jax.random.key(SEED, impl=impl)
        for name, impl in (("threefry", "threefry2x32"), ("rbg", "rbg"))
    }
    rng = np.random.default_rng(SEED)
    found = {
        ("PCG64", "numpy standard_normal", dtype): best_of(
            3, lambda dtype=dtype: rng.standard_normal(size, dtype)
        )
        for dtype in ("float64", "float32")
    }
    with jax.enable_x64(True):
        for generator in ("threefry", "rbg", "fast_key"):
            for dtype in ("float64", "float32"):
                rows = {"jax.random.normal": jax.random.normal}
                if dtype == "float32":
                    rows["bayespg.random.normal"] = ours.normal
                for name, function in rows.items():
                    draw = jax.jit(lambda k, f=function, d=dtype: f(k, (size,), d))
                    found[generator, name, dtype] = best_of(
                        3, lambda d=draw, g=generator: d(keys[g])
                    )
    rival = found["PCG64", "numpy standard_normal", "float64"]
    return Table(
        f"Normal numbers per second, {size:,} at a time",
        ["generator", "function", "precision", "million / s", "million / CPU s", "times NumPy"],
        [
            [*name, size / t.wall / 1e6, size / t.cpu / 1e6, rival.wall / t.wall]
            for name, t in found.items()
        ],
        ["NumPy runs on the host. In float64 bayespg.random.normal is jax.random.normal."],
    )


def _quality(size: int) -> list[Table]:
    key = ours.fast_key(SEED)
    control = jax.random.key(SEED)
    index = jnp.arange(size, dtype=jnp.uint32)
    sequences = {
        "one key": jax.jit(lambda k: ours.normal(k, (size,)))(key),
        "one draw a split key": jax.jit(lambda k: jax.vmap(ours.normal)(jax.random.split(k, size)))(
            key
        ),
        "one draw a fold_in": jax.jit(
            lambda k: jax.vmap(lambda i: ours.normal(jax.random.fold_in(k, i)))(index)
        )(key),
        "one draw a seed": jax.jit(jax.vmap(lambda i: ours.normal(ours.fast_key(i))))(index),
        "threefry, jax.random.normal (control)": jax.random.normal(control, (size,)),
    }
    rows = [[name, *_sequence(np.asarray(z, np.float64))] for name, z in sequences.items()]
    worst = max(abs(v) for row in rows for v in row[1:-2] + row[-1:])
    return [
        Table(
            f"fast_key as a sequence: z-scores over {size:,} normals",
            ["", "mean", "variance", "3rd", "4th", "serial", "serial, squares", "KS p", "beyond 4"],
            rows,
            [
                f"The largest of {11 * len(rows)} z-scores is {worst:.1f}; about 2.6 is expected.",
                "serial: the worst of lags 1, 2, 3, 20, 40. beyond 4: the count of |z| > 4.",
            ],
        ),
        _streams(size),
        _bytes(key, control, size),
    ]  # fmt: skip


def _sequence(z: np.ndarray) -> list[float]:
    n = z.size
    moments = [(z**p).mean() for p in (1, 2, 3, 4)]
    spread = (1, 2, 15, 96)
    scores = [
        (m - e) * (n / v) ** 0.5 for m, e, v in zip(moments, (0, 1, 0, 3), spread, strict=True)
    ]
    serial = max(((z[:-lag] * z[lag:]).mean() * n**0.5 for lag in (1, 2, 3, 20, 40)), key=abs)
    squares = ((z[:-1] ** 2 - 1) * (z[1:] ** 2 - 1)).mean() * n**0.5 / 2
    expected = n * 2 * stats.norm.sf(4)
    beyond = ((np.abs(z) > 4).sum() - expected) / expected**0.5
    p = stats.kstest(z, "norm").pvalue
    return [float(v) for v in (*scores, serial, squares, p, beyond)]


def _streams(size: int) -> Table:
    """Squared correlations between the streams of related keys, 1 for independent ones."""
    keys = int((size / 4) ** 0.5)
    length = size // keys
    key, control = ours.fast_key(SEED), jax.random.key(SEED)
    index = jnp.arange(keys, dtype=jnp.uint32)
    families = {
        "split": jax.random.split(key, keys),
        "fold_in": jax.vmap(lambda i: jax.random.fold_in(key, i))(index),
        "seeds 0, 1, 2, ...": jax.vmap(ours.fast_key)(index),
        "threefry split (control)": jax.random.split(control, keys),
    }
    rows = []
    for name, family in families.items():
        draws = jax.jit(jax.vmap(lambda k: ours.normal(k, (length,))))(family)
        Z = np.asarray(draws, np.float64)
        pairs = (Z @ Z.T / length**0.5)[np.triu_indices(keys, 1)]
        lagged = (Z[:-1, :-1] * Z[1:, 1:]).sum(1) / (length - 1) ** 0.5
        columns = Z.sum(0) / keys**0.5
        rows.append(
            [name, *(float(np.mean(c**2)) for c in (pairs, lagged, columns)),
             float(np.abs(pairs).max())]
        )  # fmt: skip
    largest = stats.norm.isf(0.5 / (keys * (keys - 1) / 2))
    return Table(
        f"fast_key as streams: {keys:,} keys x {length:,} normals, mean squared z-scores",
        ["", "all pairs", "neighbours, lagged by 1", "across keys", "largest pair"],
        rows,
        [
            f"Expected 1 ± {2 / keys:.4f}, {(2 / keys) ** 0.5:.3f}, {(2 / length) ** 0.5:.3f}; "
            f"largest about {largest:.1f}."
        ],
    )


def _bytes(key, control, size: int) -> Table:
    words = {
        "one key": jax.random.bits(key, (size,), jnp.uint32),
        "one word a split key": jax.jit(
            lambda k: jax.vmap(lambda q: jax.random.bits(q, (), jnp.uint32))(
                jax.random.split(k, size)
            )
        )(key),
        "the split keys themselves": jax.random.key_data(jax.random.split(key, size // 2)),
        "threefry (control)": jax.random.bits(control, (size,), jnp.uint32),
    }

    def p(values, bins):
        return float(stats.chisquare(np.bincount(values, minlength=bins)).pvalue)

    rows = []
    for name, x in words.items():
        x = np.asarray(x).ravel()
        high = ((x[:-1] >> 24) << 8) | (x[1:] >> 24)
        low = ((x[:-1] & 255) << 8) | (x[1:] & 255)
        rows.append(
            [name, *(p((x >> s) & 255, 256) for s in (0, 8, 16, 24)), p(high, 65536), p(low, 65536)]
        )
    return Table(
        "fast_key as bytes: p-values of chi-square tests",
        ["", "byte 0", "byte 1", "byte 2", "byte 3", "pairs of byte 3", "pairs of byte 0"],
        rows,
        ["Uniform on (0, 1) if the bits are good."],
    )
