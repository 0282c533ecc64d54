"""Features of the observation, in which a policy is linear.

Observations are vectors, normalised; all features end in a constant. A class holds numbers only:
random features are drawn from its seed.
"""

import abc
import functools
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from bayespg._support.types import Array


class Features(eqx.Module):
    """phi(x)."""

    @property
    @abc.abstractmethod
    def size(self) -> int: ...

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]: ...


class Learned(eqx.Module):
    """What has features, or a network, whose weights are parameters of the policy."""


class Linear(Features):
    """(x, 1)."""

    inputs: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.inputs + 1

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        return jnp.concatenate([x, jnp.ones_like(x, shape=(1,))])


class Fourier(Features):
    """Random Fourier features of a kernel (Rahimi and Recht), beside (x, 1):

    s sqrt(2/k) cos(w_i'x + b_i),   w_i ~ N(0, I / length_scale^2),

    of the Gaussian kernel, or with `freedom` degrees of freedom w_i / sqrt(c_i / freedom), c_i
    chi-squared: frequencies have Student's distribution, the spectrum of the Matern kernel of
    smoothness freedom / 2. The smaller the `scale` s, the more nearly linear are policies learned
    with a damped gradient.
    """

    inputs: int = eqx.field(static=True)
    count: int = eqx.field(static=True, default=100)
    length_scale: float = eqx.field(static=True, default=1.0)
    """In units of sqrt(d), the typical distance of normalised observations."""
    seed: int = eqx.field(static=True, default=0)
    scale: float = eqx.field(static=True, default=1.0)
    freedom: float = eqx.field(static=True, default=math.inf)

    @property
    def size(self) -> int:
        return self.count + self.inputs + 1

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        W, b = _waves(self.inputs, self.count, self.length_scale, self.seed, self.freedom)
        angles = W.astype(x.dtype) @ x + b.astype(x.dtype)
        waves = self.scale * np.sqrt(2 / self.count) * jnp.cos(angles)
        return jnp.concatenate([waves.astype(x.dtype), x, jnp.ones_like(x, shape=(1,))])


LENGTH, FREEDOM, COUNT = 0.5, 3.0, 100
"""Length scale, degrees of freedom and number of the waves in values. Values change fast where an
episode is about to end, and slowly elsewhere: some of these waves are several times shorter than
others (docs/benchmarks.md)."""


def of_values(inputs: int, waves: int = COUNT) -> Fourier:
    """Features of the values of states."""
    return Fourier(inputs, waves, LENGTH, freedom=FREEDOM)


PRODUCTS, FARTHEST = 0.3, 5.0
"""Products of observations are features of values with this factor over sqrt(d), and grow no
further beyond this many standard deviations. They hold where a task is nearly quadratic; with a
factor of 1 they extrapolate too boldly from the first episodes (docs/benchmarks.md)."""
MOST_PRODUCTS = 210
"""No products are used where there would be more than these, those of 20 numbers."""


class Timed(Features):
    """Features of a value that falls to zero at a time limit: those `of_values` of all inputs but
    the last, products of these inputs, and s (x, 1) in front of their constant, where s, the last
    input, is the share of the time that is left."""

    inputs: int = eqx.field(static=True)
    waves: int = eqx.field(static=True, default=COUNT)

    @property
    def size(self) -> int:
        return of_values(self.inputs - 1, self.waves).size + self.products + self.inputs

    @property
    def products(self) -> int:
        """The number of products x_i x_j, i <= j."""
        count = (self.inputs - 1) * self.inputs // 2
        return count if count <= MOST_PRODUCTS else 0

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        x, left = x[:-1], x[-1:]
        phi, bounded = of_values(len(x), self.waves)(x), jnp.clip(x, -FARTHEST, FARTHEST)
        i, j = np.triu_indices(len(x) if self.products else 0)
        products = PRODUCTS / np.sqrt(len(x)) * bounded[i] * bounded[j]
        return jnp.concatenate([phi[:-1], products.astype(x.dtype), left * x, left, phi[-1:]])


@functools.cache
def _waves(inputs: int, count: int, length_scale: float, seed: int, freedom: float):
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((count, inputs)) / (length_scale * np.sqrt(inputs))
    b = rng.uniform(0, 2 * np.pi, count)
    if freedom < math.inf:
        W = W / np.sqrt(rng.chisquare(freedom, (count, 1)) / freedom)
    return W, b


class Gaussians(Features):
    """exp(-|x - c|^2 / (2 width^2)) for c on a grid of `count` points per dimension between `low`
    and `high`, and 1: for observations of few dimensions."""

    inputs: int = eqx.field(static=True)
    count: int = eqx.field(static=True, default=4)
    low: float = eqx.field(static=True, default=-2.0)
    high: float = eqx.field(static=True, default=2.0)

    @property
    def size(self) -> int:
        return self.count**self.inputs + 1

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        grid = np.linspace(self.low, self.high, self.count)
        centres = np.array(list(itertools.product(grid, repeat=self.inputs)), x.dtype)
        width = 1.3 * (self.high - self.low) / max(self.count - 1, 1)
        bumps = jnp.exp(-0.5 * jnp.sum((x - centres) ** 2, -1) / width**2)
        return jnp.concatenate([bumps, jnp.ones_like(x, shape=(1,))])


class MLP(Features, Learned):
    """The last hidden layer of a tanh network, and 1. Its weights are parameters of the policy."""

    weights: tuple[Float[Array, "i o"], ...]
    biases: tuple[Float[Array, " o"], ...]

    def __init__(self, inputs: int, hidden: tuple[int, ...], *, key: PRNGKeyArray):
        layers = zip(
            jax.random.split(key, len(hidden)), itertools.pairwise((inputs, *hidden)), strict=True
        )
        start = jax.nn.initializers.orthogonal(np.sqrt(2))
        self.weights = tuple(start(k, shape, jnp.float32) for k, shape in layers)
        self.biases = tuple(jnp.zeros(o, jnp.float32) for o in hidden)

    @property
    def size(self) -> int:
        return self.biases[-1].shape[-1] + 1

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        for W, b in zip(self.weights, self.biases, strict=True):
            x = jnp.tanh(x @ W + b)
        return jnp.concatenate([x, jnp.ones_like(x, shape=(1,))])


FILTERS, UNITS = (16, 32), 64
"""Filters of the convolutions, and units of the layer after them."""
SMALL = 36
"""Images with fewer pixels a side have one layer of 3 x 3 filters."""


class Convolutional(Features, Learned):
    """Convolutions of an image with rectified units, a tanh layer, and 1. Its weights are
    parameters of the policy. An image may come as a flat vector."""

    filters: tuple[Float[Array, "h w i o"], ...]
    biases: tuple[Float[Array, " o"], ...]
    weights: Float[Array, "i o"]
    bias: Float[Array, " o"]
    shape: tuple[int, ...] = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, shape: tuple[int, ...], *, key: PRNGKeyArray):
        image = jax.eval_shape(_as_image, jnp.zeros(shape)) if len(shape) in (2, 3) else None
        if image is None or min(image.shape[:2]) < 3:
            raise ValueError(
                "shape: expected an image of (height, width), with channels last or first, of at "
                f"least 3 x 3 pixels, found {shape}"
            )
        self.shape, small = tuple(shape), min(image.shape[:2]) < SMALL
        self.strides, sides = ((1,), (3,)) if small else ((4, 2), (8, 4))
        keys, start = jax.random.split(key, 3), jax.nn.initializers.orthogonal(np.sqrt(2))
        filters, channels = [], image.shape[-1]
        for k, side, count in zip(keys, sides, FILTERS, strict=False):
            filters.append(start(k, (side, side, channels, count), jnp.float32))
            channels = count
        self.filters = tuple(filters)
        self.biases = tuple(jnp.zeros(f.shape[-1], jnp.float32) for f in filters)
        empty, parts = jnp.zeros(self.shape), (self.filters, self.biases)
        inputs = jax.eval_shape(lambda p: _convolved(empty, p[0], p[1], self.strides), parts).size
        self.weights = start(keys[-1], (inputs, UNITS), jnp.float32)
        self.bias = jnp.zeros(UNITS, jnp.float32)

    @property
    def size(self) -> int:
        return UNITS + 1

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, " k"]:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(self.weights.dtype) / (255 if x.dtype == jnp.uint8 else 1)
        x = _convolved(x.reshape(self.shape), self.filters, self.biases, self.strides)
        x = jnp.tanh(x @ self.weights + self.bias)
        return jnp.concatenate([x, jnp.ones_like(x, shape=(1,))])


def _convolved(x: Any, filters: Any, biases: Any, strides: tuple[int, ...]) -> Float[Array, " k"]:
    """What the convolutions compute from an image."""
    x = _as_image(x)[None]
    for weights, bias, stride in zip(filters, biases, strides, strict=True):
        x = jax.lax.conv_general_dilated(
            x, weights.astype(x.dtype), (stride, stride), "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        x = jax.nn.relu(x + bias)
    return jnp.ravel(x)


def _as_image(x: Float[Array, "..."]) -> Float[Array, "h w c"]:
    """An image with its channels last; they are the shortest of the first and the last axis."""
    if x.ndim == 2:
        return x[..., None]
    return jnp.moveaxis(x, 0, -1) if x.shape[0] < x.shape[-1] else x


def learns_features(policy: eqx.Module) -> bool:
    """Whether a policy has a network among its parts."""

    def is_network(part: object) -> bool:
        return isinstance(part, Learned | eqx.nn.MLP)

    return any(map(is_network, jax.tree.leaves(policy, is_leaf=is_network)))
