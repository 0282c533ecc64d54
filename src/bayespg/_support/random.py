"""Keys on the host without a compiled program, and keys and normals for experiments that draw
billions of numbers on a CPU.

`fast_key` is an ordinary typed JAX key: split, fold_in, bits, vmap and scan all work with it. Its
bits are a keyed 32-bit multiply-xorshift hash (the mixing constants are C. Wellons' triple32)
instead of threefry: some ten times cheaper to run and to compile. Keys have 64 bits, a key gives up
to 2^31 words, and it is not cryptographic. `benchmarks/normals.py` measures and checks it. Any
other JAX key works everywhere too.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.random import define_prng_impl
from jax.typing import DTypeLike
from jaxtyping import Float, PRNGKeyArray, UInt32

__all__ = [
    "LARGEST_SEED",
    "WORD",
    "child",
    "episode_seeds",
    "fast_key",
    "host_key",
    "host_uniform",
    "normal",
]


def __dir__() -> list[str]:
    return sorted(__all__)


WORD = 2**32 - 1
LARGEST_SEED = 2**63 - 1
"""The largest seed that JAX accepts."""


def host_key(seed: int) -> PRNGKeyArray:
    """`jax.random.key(seed)` with all 64 bits of the seed, whatever JAX's precision."""
    return _wrapped(seed >> 32, seed & WORD)


def child(key: PRNGKeyArray, number: int) -> PRNGKeyArray:
    """`jax.random.fold_in(key, number)` of a `host_key`, which is `jax.random.split(key)[number]`
    too."""
    k0, k1 = np.asarray(jax.random.key_data(key)).tolist()
    return _wrapped(*_threefry(k0, k1, 0, number))


def host_uniform(key: PRNGKeyArray, count: int) -> Float[np.ndarray, " count"]:
    """`jax.random.uniform(key, (count,))` of a `host_key`, in JAX's current precision."""
    k0, k1 = np.asarray(jax.random.key_data(key)).tolist()
    x, y = _threefry(k0, k1, np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64))
    if jax.config.read("jax_enable_x64"):
        return ((x << 32 | y) >> 12) * 2.0**-52
    return (((x ^ y) >> 9) * 2.0**-23).astype(np.float32)


def episode_seeds(seed: int, updates: int, count: int) -> list[int]:
    """Seeds of episodes, different for each update and for evaluation (`updates` -1)."""
    seeds = np.random.SeedSequence([seed, updates + 1]).generate_state(count)
    return [int(s) for s in seeds]


def _wrapped(*words: int) -> PRNGKeyArray:
    data: Any = np.array(words, np.uint32)
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _threefry(k0: int, k1: int, x: Any, y: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011), of numbers or of arrays of 64 bits."""
    keys = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x, y = (x + k0) & WORD, (y + k1) & WORD
    for i in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = (x + y) & WORD
            y = ((y << turn | y >> 32 - turn) & WORD) ^ x
        x, y = (x + keys[(i + 1) % 3]) & WORD, (y + keys[(i + 2) % 3] + i + 1) & WORD
    return x, y


def fast_key(seed: int) -> PRNGKeyArray:
    """A key of this module's kind."""
    return jax.random.key(seed, impl=_IMPLEMENTATION)


def normal(
    key: PRNGKeyArray, shape: tuple[int, ...] = (), dtype: DTypeLike = jnp.float32
) -> Float[Array, "..."]:
    """Standard normals; in float32 by a rational inverse of the distribution function, |z| <
    6.4."""
    if jnp.dtype(dtype) != jnp.float32:
        return jax.random.normal(key, shape, dtype)
    return _quantile(jax.random.bits(key, shape, jnp.uint32))


def _hash(k0: UInt32[Array, "..."], k1: UInt32[Array, "..."], counter: UInt32[Array, "..."]):
    """One hashed word; a bijection in each argument with the others fixed."""
    x = counter + k0
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB) + k1
    x = (x ^ (x >> 11)) * jnp.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
    return x ^ (x >> 14)


@jax.jit
def _child(key: UInt32[Array, "2"], counter: UInt32[Array, "..."]) -> UInt32[Array, "... 2"]:
    """The key number `counter` derived from `key`; its counters lie far from those of `_bits`."""
    first = _hash(key[0], key[1], counter + jnp.uint32(0x85EBCA6B))
    return jnp.stack([first, _hash(first, jnp.uint32(0x9E3779B9), key[1])], -1)


def _seed(seed: Array) -> UInt32[Array, "2"]:
    wide = seed.dtype.itemsize == 8
    high = (seed >> 32).astype(jnp.uint32) if wide else jnp.zeros((), jnp.uint32)
    return _child(jnp.stack([seed.astype(jnp.uint32), high]), jnp.uint32(0))


def _split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "... 2"]:
    return _child(key, lax.iota(jnp.uint32, math.prod(shape)).reshape(shape))


def _fold_in(key: UInt32[Array, "2"], data: int | Array) -> UInt32[Array, "2"]:
    """Counters that do not overlap with the first 2^29 splits."""
    return _child(key, jnp.uint32(0x40000000) - jnp.asarray(data).astype(jnp.uint32))


def _bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)

    def words(block: int) -> Array:
        counter = lax.iota(jnp.uint32, count) + jnp.uint32(block * count)
        return _hash(key[0], key[1], counter).reshape(shape)

    if width == 64:
        return words(0).astype(jnp.uint64) | words(1).astype(jnp.uint64) << 32
    return words(0).astype(f"uint{width}")


_IMPLEMENTATION = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="bayespg_hash",
    tag="bh",
)

# Minimax fits: log(1 + m) / m for 1 + m in [sqrt(1/2), sqrt 2], and z / x in w = -log(1 - x^2) for
# the quantile z whose two-sided probability is x.
_LOG = (
    0.999999814,
    -0.500006674,
    0.333361821,
    -0.249593449,
    0.198730451,
    -0.173334542,
    0.164199953,
    -0.101022731,
)
_ABOVE = (
    1.2533156829905021,
    0.605683082445185,
    0.1393873393598707,
    0.020742972751478496,
    0.0020595223118901962,
    1.4479378395733568e-05,
)
_BELOW = (
    1.0,
    0.22149587500594975,
    0.040083433786417384,
    0.005956080674977756,
    0.00019352534636798136,
)


def _quantile(words: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """A normal from each word: 31 bits of tail probability, one of sign; relative error 2e-6.

    It ends in a division on purpose: XLA on CPUs repeats a cheap elementwise producer in every
    kernel that uses it, but computes one it counts as expensive once.
    """
    tail = ((words >> 1).astype(jnp.int32).astype(jnp.float32) + 0.5) * 2.0**-31
    w = jnp.maximum(-_log(tail * (2 - tail)), 0)
    size = lax.bitcast_convert_type(1 - tail, jnp.uint32)
    x = lax.bitcast_convert_type(size | (words << 31), jnp.float32)
    return x * _polynomial(_ABOVE, w) / _polynomial(_BELOW, w)


def _log(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """log of positive normal float32, absolute error about 1e-7 max(1, |log y|)."""
    i = lax.bitcast_convert_type(y, jnp.int32)
    exponent = (i - 0x3F3504F3) >> 23
    m = lax.bitcast_convert_type(i - (exponent << 23), jnp.float32) - 1
    return m * _polynomial(_LOG, m) + exponent.astype(jnp.float32) * math.log(2)


def _polynomial(coefficients: tuple[float, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value
