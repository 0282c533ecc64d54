"""Random keys for experiments that draw billions of numbers (interim)."""

import math

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl


def _mix(x):
    u32 = jnp.uint32
    x = x ^ (x >> 17)
    x = x * u32(0xED5AD4BB)
    x = x ^ (x >> 11)
    x = x * u32(0xAC4C1B51)
    x = x ^ (x >> 15)
    x = x * u32(0x31848BAB)
    return x ^ (x >> 14)


def _seed(s):
    s = jnp.asarray(s)
    lo = s.astype(jnp.uint32)
    hi = (s >> 32).astype(jnp.uint32) if s.dtype.itemsize == 8 else jnp.zeros((), jnp.uint32)
    return jnp.stack([_mix(lo ^ jnp.uint32(0x243F6A88)), _mix(hi ^ jnp.uint32(0x85A308D3))])


def _split(k, shape):
    c = jax.lax.iota(jnp.uint32, 2 * math.prod(shape)).reshape(*shape, 2)
    return _mix(_mix(c * jnp.uint32(0x85EBCA6B) + k[1]) ^ k[0])


def _fold_in(k, d):
    d = jnp.asarray(d).astype(jnp.uint32)
    c = jnp.stack([d, ~d])
    return _mix(_mix(c * jnp.uint32(0x85EBCA6B) + k[1]) ^ k[0])


def _bits(k, w, shape):
    n = math.prod(shape)
    if w == 64:
        b = _mix(_mix(jax.lax.iota(jnp.uint32, 2 * n) * jnp.uint32(0x9E3779B9) + k[0]) + k[1])
        b = b.reshape(*shape, 2).astype(jnp.uint64)
        return b[..., 0] | (b[..., 1] << 32)
    b = _mix(_mix(jax.lax.iota(jnp.uint32, n) * jnp.uint32(0x9E3779B9) + k[0]) + k[1])
    return b.reshape(shape).astype(f"uint{w}")


IMPL = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="mix",
    tag="mx",
)


def fast_key(seed: int):
    return jax.random.key(seed, impl=IMPL)
