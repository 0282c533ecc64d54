"""Odd input to every array function: it returns finite numbers or a clear error.

    python benchmarks/fuzz.py [--cases 30000] [--seed 0] [--first 0]

A case is a function with sound arguments of which none, one or two are spoiled: NaN, masks, sets,
text, structures, ragged lists and other types, other shapes, units from 1e-323 to 1e308, integers
of 400 digits, settings out of range. Its outcome is

    answered    all numbers are finite, also those of the posterior's methods
    refused     ValueError or TypeError, and the message begins with the name of an argument
    silent      a NaN or an infinity that nobody asked for
    crashed     any other exception, a message that names no argument, or a warning
    accepted    an answer to an argument that has no meaning, such as text, a set or a masked array

The exit status is 0 if all were answered or refused. `--first` begins at a later case, so that
the cases can be run in parts. tests/test_fuzz.py runs some of the cases, of one size, because most
of the time goes into compiling for each size.
"""

import argparse
import collections
import dataclasses
import functools
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespg import (
    GradientPosterior,
    Sparsify,
    actor_critic,
    evidence,
    fisher,
    gptd,
    kernels,
    quadrature,
    search,
)
from bayespg import monte_carlo as rivals
from bayespg._support import checks

Arguments = dict[str, Any]
Maker = Callable[[np.random.Generator, int, int], Arguments]
SIZES = ((6, 2), (1, 1), (1, 2), (2, 1), (2, 3), (7, 3), (12, 2))
"""Paths and parameters."""
KERNEL = kernels.Gaussian(1.0)
WRONG = ("silent", "crashed", "accepted")
"""The outcomes of which there must be none."""


# Sound arguments.


def paths(rng: np.random.Generator, M: int, n: int) -> Arguments:
    root = np.tril(0.4 * rng.normal(size=(n, n)), -1) + np.diag(rng.uniform(0.5, 2, n))
    if rng.random() < 0.2 and n > 1:  # a singular Fisher matrix, as that of a softmax
        root = root - root.mean(0)
    U = rng.normal(size=(M, n)) @ root.T
    return {"scores": U, "returns": rng.normal(size=M), "fisher": root @ root.T}


def model1(rng: np.random.Generator, M: int, n: int) -> Arguments:
    options = {"noise": rng.choice([1e-3, 1.0]), "scale": 1.0, "form": "auto", "sparsify": None}
    if rng.random() < 0.1:
        options |= {"form": str(rng.choice(["dual", "weight"]))}
    if rng.random() < 0.1:
        options |= {"sparsify": Sparsify(0.1, 4)}
    return paths(rng, M, n) | options


def model2(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return model1(rng, M, n) | {"baseline": rng.choice([0.0, 1.0, np.inf])}


def choose_model2(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return paths(rng, M, n) | {"baseline": [None, 0.0, np.inf][rng.integers(3) if M > 1 else 1]}


def reinforce(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return paths(rng, M, n) | {"baseline": str(rng.choice(["none", "mean", "best"]))}


def gpomdp(rng: np.random.Generator, M: int, n: int) -> Arguments:
    U = rng.normal(size=(M, 3, n))
    rewards = rng.normal(size=(M, 3))
    return {"step_scores": U, "rewards": rewards, "fisher": np.eye(n), "discount": 0.9}


def enac(rng: np.random.Generator, M: int, n: int) -> Arguments:
    found = paths(rng, M, n)
    return {"scores": found["scores"], "returns": found["returns"], "ridge": 1e-6}


def outer_products(rng: np.random.Generator, M: int, n: int) -> Arguments:
    U = rng.normal(size=(M, n))
    return {"scores": U, "damping": rng.choice([0.0, 0.01, 100.0])}


def recursive(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {
        "scores": rng.normal(size=(M, n)),
        "step_sizes": rng.uniform(0.1, 0.9, M),
        "initial": np.eye(n),
    }


def g_est(rng: np.random.Generator, M: int, n: int) -> Arguments:
    last = rng.random(M) < 0.3
    found = {"scores": rng.normal(size=(M, n)), "last": last, "discount": 0.9}
    return found | {"key": Key(), "as_printed": False}


def low_rank(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"V": rng.normal(size=(M, n)), "damping": 1e-6}


def integral(rng: np.random.Generator, M: int, n: int) -> Arguments:
    X = rng.normal(size=(M, n))
    b = X @ rng.normal(size=n)
    options = {"noise": 0.1, "prior_mean": 0.0, "prior_integral": 0.0}
    return {"K": X @ X.T, "y": rng.normal(size=M), "b": b, "b0": 10.0 * n} | options


def vector_integral(rng: np.random.Generator, M: int, n: int) -> Arguments:
    X = rng.normal(size=(M, n))
    K = np.eye(n)[:, :, None, None] * (X @ X.T)
    b = np.eye(n)[:, :, None] * (X @ rng.normal(size=n))
    return {"K": K, "y": rng.normal(size=(M, n)), "b": b, "b0": 10 * n * np.eye(n), "noise": 0.1}


def bayes_hermite(rng: np.random.Generator, M: int, n: int) -> Arguments:
    X = rng.normal(size=(M, n))
    moments = {"mean": np.zeros(n), "covariance": np.eye(n)}
    options = {"length_scale": 1.0, "scale": 1.0, "noise": 0.1}
    return {"function": np.sum(X, 1), "points": X} | moments | options


def steps(rng: np.random.Generator, M: int, n: int) -> Arguments:
    last = rng.random(M) < 0.3
    terminated = last & (rng.random(M) < 0.5)
    rewards = rng.normal(size=M)
    return {"rewards": rewards, "last": last, "terminated": terminated, "discount": 0.9}


def critic(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"points": rng.normal(size=(M, n)), "noise": 1.0} | steps(rng, M, n)


def bac(rng: np.random.Generator, M: int, n: int) -> Arguments:
    found = paths(rng, M, n)
    options = {"noise": 1.0, "fisher_scale": 0.1, "lambda_": 1.0, "form": "auto"}
    del found["returns"]
    arrays = {"states": rng.normal(size=(M, 1))} | found
    return arrays | steps(rng, M, n) | {"state_kernel": KERNEL} | options


def chosen(rng: np.random.Generator, M: int, n: int) -> Arguments:
    found = bac(rng, M, n) | {"lambda_": 0.5}
    return {name: value for name, value in found.items() if name not in ("noise", "fisher_scale")}


def softmax(rng: np.random.Generator, M: int, n: int) -> Arguments:
    ends = {"last": rng.random(M) < 0.3, "discount": 0.9}
    return {"logits": rng.normal(size=(M, 3)), "jacobian": rng.normal(size=(M, 3, n))} | ends


def gaussian(rng: np.random.Generator, M: int, n: int) -> Arguments:
    ends = {"last": rng.random(M) < 0.3, "discount": 0.9}
    return {"deviations": rng.uniform(0.5, 2, (M, 1)), "features": rng.normal(size=(M, n))} | ends


def query(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"points": rng.normal(size=(M, n))}


def ask(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"gradient": rng.normal(size=2), "level": 0.9, "robust": bool(rng.integers(2))}


def uphill(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"direction": rng.normal(size=2), "natural": False, "robust": bool(rng.integers(2))}


def decide(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"level": 0.9, "natural": bool(rng.integers(2))}


def draw(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"key": Key(), "k": 3}


def transition(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"reward": rng.normal(), "point": rng.normal(size=2), "discount": 0.9, "noise": 1.0}


def one_path(rng: np.random.Generator, M: int, n: int) -> Arguments:
    found = paths(rng, M, n)
    arrays = {"fisher": found["fisher"], "score": found["scores"][0], "path_return": rng.normal()}
    return arrays | {"model": Count(rng.integers(1, 3)), "noise": 0.1, "scale": 1.0}


def with_prior(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return paths(rng, M, n) | {"prior_gradient": np.zeros(n), "noise": 0.1}


def expected(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return paths(rng, M, n) | {"noise": 0.1, "scale": 1.0}


def coupled(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return paths(rng, M, n) | {"components": np.eye(n), "noise": 0.1}


def hessian(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return paths(rng, M, n) | {"score_derivatives": rng.normal(size=(M, n, n)), "noise": 0.1}


def newton(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"gradient": rng.normal(size=n), "hessian": -np.eye(n), "least": 0.1}


def isotropic(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"parameters": Count(n), "scale": 0.5}


def places(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"parameters": rng.normal(size=(M, n)), "mean": rng.normal(size=n), "scale": 0.5}


def smoothed(rng: np.random.Generator, M: int, n: int) -> Arguments:
    kernel = KERNEL if M == 1 or rng.random() < 0.5 else None
    noise = 0.1 if M == 1 or rng.random() < 0.5 else None
    return places(rng, M, n) | {"returns": rng.normal(size=M), "kernel": kernel, "noise": noise}


def begin_search(rng: np.random.Generator, M: int, n: int) -> Arguments:
    start = Count(n) if rng.random() < 0.5 else rng.normal(size=n)
    whole = {"memory": Count(96), "seed": Count(0)}
    return {"start": start, "scale": 0.1, "sphere": bool(rng.integers(2))} | whole


def tell_search(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"parameters": rng.normal(size=(M, 2)), "returns": rng.normal(size=M)}


def rescale_search(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"factors": rng.uniform(0.5, 2, 2)}


# Functions, where necessary with what they need to be asked.


def solve_low_rank(V: Any, damping: Any) -> Any:
    found = fisher.LowRank(V, damping)
    return found, found.solve(np.ones(found.size))


def posterior_of_q(points: Any, **options: Any) -> Any:
    found = gptd.posterior(KERNEL, points, **options)
    return found, found.mean(points), found.variance(points)


def ask_critic(points: Any) -> Any:
    rows = isinstance(points, np.ndarray) and points.ndim == 2
    found = _critic(points.shape[1] if rows else 2)
    return found.mean(points), found.covariance(points)


@functools.cache
def _critic(n: int) -> gptd.Critic:
    ends = np.array([False, True])
    return gptd.posterior(
        KERNEL, np.eye(2, n), np.ones(2), last=ends, terminated=ends, discount=0.9
    )


def observe(reward: Any, point: Any, discount: Any, noise: Any) -> Any:
    known = gptd.online(
        KERNEL, np.zeros(2), discount=discount, noise=noise, sparsify=Sparsify(0.1, 4)
    )
    return known.begin(np.ones(2)).observe(reward, point).terminate(reward)


def observe_path(fisher: Any, score: Any, path_return: Any, **options: Any) -> Any:
    found = quadrature.Online(fisher, **options)
    for _ in range(2):
        found.observe(score, path_return)
    return found.mean, found.covariance, found.standard_deviation


def use_isotropic(parameters: Any, scale: Any) -> Any:
    found = fisher.Isotropic(parameters, scale)
    return found, found.matrix(), found.solve(np.ones(found.size))


def state_of(searching: search.Search) -> Any:
    return [searching.ask(), searching.mean, searching.best, searching.scale]


def begin(**options: Any) -> Any:
    return state_of(search.Search(**options))


def tell(parameters: Any, returns: Any) -> Any:
    searching = search.Search(2)
    for theta in searching.ask(5):
        searching.tell(theta, theta.sum())
    searching.tell(parameters, returns)
    return state_of(searching)


def rescale(factors: Any) -> Any:
    searching = search.Search(np.array([1.0, 2.0]))
    searching.rescale(factors)
    return state_of(searching)


@functools.cache
def _posterior() -> GradientPosterior:
    rng = np.random.default_rng(0)
    return quadrature.model2(rng.normal(size=(6, 2)), rng.normal(size=6), np.eye(2))


def contains(gradient: Any, level: Any, robust: Any) -> Any:
    known = _posterior()
    return known.contains(gradient, level, robust=robust), known.interval(level, robust=robust)


def probability_uphill(direction: Any, natural: Any, robust: Any) -> Any:
    return _posterior().probability_uphill(direction, natural=natural, robust=robust)


def decisions(level: Any, natural: Any) -> Any:
    """`episodes_needed` has an infinity where no number is enough."""
    return _posterior().certain(level), np.isnan(
        _posterior().episodes_needed(level, natural=natural)
    )


def sample(key: Any, k: Any) -> Any:
    return _posterior().sample(key, k)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Maker]] = {
    "quadrature.model1": (quadrature.model1, model1),
    "quadrature.model2": (quadrature.model2, model2),
    "quadrature.model2_with_prior": (quadrature.model2_with_prior, with_prior),
    "quadrature.Online": (observe_path, one_path),
    "quadrature.expected_return": (quadrature.expected_return, expected),
    "quadrature.coupled": (quadrature.coupled, coupled),
    "quadrature.hessian": (quadrature.hessian, hessian),
    "quadrature.newton": (quadrature.newton, newton),
    "quadrature.integral": (quadrature.integral, integral),
    "quadrature.vector_integral": (quadrature.vector_integral, vector_integral),
    "quadrature.bayes_hermite": (quadrature.bayes_hermite, bayes_hermite),
    "evidence.choose_model1": (evidence.choose_model1, paths),
    "evidence.choose_model2": (evidence.choose_model2, choose_model2),
    "evidence.model2": (evidence.model2, choose_model2),
    "monte_carlo.reinforce": (rivals.reinforce, reinforce),
    "monte_carlo.gpomdp": (rivals.gpomdp, gpomdp),
    "monte_carlo.enac": (rivals.enac, enac),
    "fisher.monte_carlo": (fisher.monte_carlo, outer_products),
    "fisher.recursive": (fisher.recursive, recursive),
    "fisher.recursive_inverse": (fisher.recursive_inverse, recursive),
    "fisher.g_est": (fisher.g_est, g_est),
    "fisher.of_softmax": (fisher.of_softmax, softmax),
    "fisher.of_gaussian": (fisher.of_gaussian, gaussian),
    "fisher.LowRank": (solve_low_rank, low_rank),
    "fisher.Isotropic": (use_isotropic, isotropic),
    "search.scores": (search.scores, places),
    "search.gradient_posterior": (search.gradient_posterior, smoothed),
    "search.Search": (begin, begin_search),
    "Search.tell": (tell, tell_search),
    "Search.rescale": (rescale, rescale_search),
    "gptd.targets": (gptd.targets, steps),
    "gptd.posterior": (posterior_of_q, critic),
    "gptd.Critic": (ask_critic, query),
    "gptd.Online": (observe, transition),
    "actor_critic.gradient_posterior": (actor_critic.gradient_posterior, bac),
    "actor_critic, by evidence": (
        functools.partial(actor_critic.gradient_posterior, noise=None),
        chosen,
    ),
    "GradientPosterior.contains": (contains, ask),
    "GradientPosterior.probability_uphill": (probability_uphill, uphill),
    "GradientPosterior.certain": (decisions, decide),
    "GradientPosterior.sample": (sample, draw),
}


# What can be wrong with an argument.


class Key(int):
    """A seed where a key of JAX may stand as well."""


class Count(int):
    """A whole number."""


class Foreign:
    """An array of another framework, or a column of a table."""

    def __init__(self, array: np.ndarray):
        self.values, self.columns, self.index = array, list(range(array.shape[-1])), None

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.values, dtype)

    def __len__(self) -> int:
        return len(self.values)


def entry(value: Any) -> Callable[[np.random.Generator, np.ndarray], Any]:
    def spoil(rng: np.random.Generator, array: np.ndarray) -> Any:
        array = array.astype(np.result_type(array, type(value)))
        if array.size:
            array.flat[rng.integers(array.size)] = value
        return array

    return spoil


def masked(rng: np.random.Generator, array: np.ndarray) -> Any:
    found = np.ma.array(array, mask=rng.random(array.shape) < 0.3)
    found.mask.flat[rng.integers(array.size)] = True
    return found


def structured(rng: np.random.Generator, array: np.ndarray) -> Any:
    found = np.zeros(array.shape, [("value", float)])
    found["value"] = array
    return found


def with_a_zero_column(rng: np.random.Generator, array: np.ndarray) -> Any:
    array = array.copy()
    array[..., rng.integers(array.shape[-1])] = 0
    return array


EXPONENTS = (-323, -320, -300, -168, -160, -80, -20, -4, 4, 20, 80, 160, 290, 300, 308)
ARRAYS: dict[str, Callable[[np.random.Generator, np.ndarray], Any]] = {
    "NaN": entry(np.nan),
    "infinity": entry(np.inf),
    "one large entry": entry(1e150),
    "masked": masked,
    "masked rows in a list": lambda rng, a: [masked(rng, row) for row in np.atleast_2d(a)],
    "one huge entry": entry(1.7e308),
    "scaled": lambda rng, a: a * 10.0 ** rng.choice(EXPONENTS),
    "zero": lambda rng, a: np.zeros_like(a),
    "one zero column": with_a_zero_column,
    "rows the same": lambda rng, a: np.broadcast_to(a[:1], a.shape),
    "negative": lambda rng, a: -a if a.dtype != bool else ~a,
    "empty": lambda rng, a: a[:0],
    "no columns": lambda rng, a: a[..., :0],
    "too short": lambda rng, a: a[:-1],
    "another axis": lambda rng, a: a[None],
    "an axis less": lambda rng, a: a[..., 0],
    "transposed": lambda rng, a: a.T,
    "one number": lambda rng, a: 1.0,
    "a list": lambda rng, a: a.tolist(),
    "a tuple": lambda rng, a: tuple(a.tolist()),
    "ragged": lambda rng, a: [*a.tolist()[:-1], [1.0, [2.0]]],
    "float32": lambda rng, a: a.astype(np.float32),
    "float16": lambda rng, a: a.astype(np.float16),
    "integers": lambda rng, a: np.rint(a).astype(int),
    "booleans": lambda rng, a: a > 0,
    "complex": lambda rng, a: a + 1j,
    "objects": lambda rng, a: a.astype(object),
    "huge integers": lambda rng, a: np.full(a.shape, 10**400, object).tolist(),
    "text": lambda rng, a: a.astype(str),
    "dates": lambda rng, a: np.zeros(a.shape, "M8[D]"),
    "structured": structured,
    "bytes": lambda rng, a: a.astype(bytes),
    "None": lambda rng, a: None,
    "a dictionary": lambda rng, a: {"values": a},
    "a set": lambda rng, a: set(a.reshape(-1).tolist()),
    "a string": lambda rng, a: str(a.tolist()),
    "a generator": lambda rng, a: (row for row in a),
    "JAX": lambda rng, a: jnp.asarray(a),
    "another framework": lambda rng, a: Foreign(a),
    "backwards": lambda rng, a: a[::-1],
}
NO_ARRAYS = {
    "NaN", "infinity", "masked", "masked rows in a list", "ragged", "complex", "objects",
    "huge integers", "text", "dates", "structured", "bytes", "None", "a dictionary", "a set",
    "a string", "a generator",
}  # fmt: skip
"""What must not be accepted where numbers are expected."""
NUMBERS = (
    -1.0, 0.0, 0, 1, 2.0, 5e-324, 1e-320, 1e-300, 1e-168, 1e-160, 1e-80, 1e-30, 1e-17, 1e30, 1e80,
    1e160, 1e290, 1e300, 1.7e308, True, [1.0, 2.0], np.ones(2), np.ones((1, 1)), np.array(0.5),
    np.float32(0.5), jnp.float32(0.5),
)  # fmt: skip
NO_NUMBERS = (
    np.nan, np.inf, -np.inf, 10**400, -(10**400), 10**5000, 1j, "x", "0.1", "nan", b"1", None, (),
    np.ma.masked, np.ma.array(0.5, mask=True), {}, {0.5}, {"value": 0.5}, object(),
    np.array((0.5,), [("value", float)]), np.array("0.5"), np.array(None),
)  # fmt: skip
COUNTS = (1, 2, 3, 2.0, np.int64(2), np.float32(2))
NO_COUNTS = (*NO_NUMBERS, 0.5, -1, 1e300, 10.0**30, True, [1], np.ones(2))
FLAGS = (True, False, np.True_)
NO_FLAGS = (*NO_NUMBERS, 0, 1, 0.0, 1.0, "True", [], [True], np.ones(2), np.array([True]))
KEYS = (0, 2**64 - 1, np.int32(3), jax.random.key(1), jax.random.PRNGKey(1))
NO_KEYS = (
    *NO_NUMBERS, -1, 2**64, 0.0, True, [0, 1], np.ones(2), jax.random.split(jax.random.key(1)),
)  # fmt: skip
NO_WORDS = ("x", "", *NO_NUMBERS, 0, 0.1, True, [], np.ones(2), Sparsify(0.1), KERNEL)
"""Neither words that are choices, nor kernels, nor dictionaries (without the last ones)."""
OPTIONAL = {
    "monte_carlo.reinforce": ("fisher",), "monte_carlo.gpomdp": ("fisher",),
    "fisher.monte_carlo": ("damping",),
    "fisher.g_est": ("key",), "fisher.of_softmax": (), "search.Search": ("scale",),
    "quadrature.coupled": ("components",), "evidence.choose_model2": ("baseline",),
    "evidence.model2": ("baseline",), "actor_critic.gradient_posterior": ("fisher_scale", "noise"),
    "search.gradient_posterior": ("kernel", "noise"),
    "GradientPosterior.probability_uphill": ("direction",),
}  # fmt: skip
"""Arguments that may be None."""
MEANT = {
    ("Search.tell", "returns"): ("NaN", "objects", "None"),
    ("search.Search", "start"): ("[1]", "array([1., 1.])"),
    ("quadrature.model2", "baseline"): ("inf",), ("evidence.choose_model2", "baseline"): ("inf",),
    ("evidence.model2", "baseline"): ("inf",),
}  # fmt: skip
"""What has a meaning for one argument alone."""


def spoil(rng: np.random.Generator, function: str, name: str, value: Any) -> tuple[str, Any, bool]:
    """Another value for an argument, what was done to it, and whether it must be refused."""
    if isinstance(value, np.ndarray) and value.ndim:
        if name == "fisher" and rng.random() < 0.3:
            kinds = {
                "Dense": lambda: fisher.Dense(value),
                "Dense in float32": lambda: fisher.Dense(jnp.asarray(value)),
                "LowRank": lambda: fisher.LowRank(value, 10.0 ** rng.integers(-12, 3)),
                "of another size": lambda: fisher.Dense(np.eye(len(value) + 1)),
                "singular": lambda: np.outer(value[0], value[0]),
            }
            kind = str(rng.choice(list(kinds)))
            return kind, kinds[kind](), False
        kind = str(rng.choice(list(ARRAYS)))
        found, wrong = ARRAYS[kind](rng, value), kind in NO_ARRAYS
        if value.dtype == bool and kind in ("NaN", "infinity", "complex"):
            wrong = True
    else:
        sound, unsound = _choices(name, value)
        wrong = bool(rng.integers(2)) or not sound
        choices = unsound if wrong else sound
        found = choices[rng.integers(len(choices))]
        kind = checks.shown(found)
    if found is None and name in OPTIONAL.get(function, ()):
        wrong = False
    return kind, found, wrong and kind not in MEANT.get((function, name), ())


def _choices(name: str, value: Any) -> tuple[tuple, tuple]:
    """Other values with and without a meaning for an argument of this type."""
    if value is None:
        value = {"kernel": KERNEL, "sparsify": Sparsify(0.1)}.get(name, 1.0)
    match value:
        case Key():
            return KEYS, NO_KEYS
        case Count():
            return COUNTS, NO_COUNTS
        case bool():
            return FLAGS, NO_FLAGS
        case int() | float():
            return NUMBERS, NO_NUMBERS
        case str():
            return (value,), NO_WORDS
        case kernels.Kernel():
            return (kernels.Gaussian(2.0),), NO_WORDS[:-1]
    return (None, Sparsify(0.1)), tuple(v for v in NO_WORDS[:-2] if v is not None)


# Cases and their outcomes.


@dataclasses.dataclass(frozen=True)
class Case:
    function: str
    spoiled: dict[str, str]
    outcome: str
    detail: str

    def __str__(self) -> str:
        what = ", ".join(f"{name}: {how}" for name, how in self.spoiled.items())
        return f"{self.outcome}: {self.function} ({what or 'all in order'}) {self.detail}"


def cases(
    count: int, seed: int = 0, sizes: Sequence[tuple[int, int]] = SIZES, first: int = 0
) -> Iterator[Case]:
    """Each case depends on the seed and its number alone, and functions take turns."""
    names = list(FUNCTIONS)
    for i in range(first, first + count):
        rng = np.random.default_rng([seed, i])
        name = names[i % len(names)]
        function, make = FUNCTIONS[name]
        arguments = make(rng, *sizes[rng.integers(len(sizes))])
        many = min(rng.choice(3, p=[0.1, 0.7, 0.2]), len(arguments))
        which = rng.choice(list(arguments), many, replace=False)
        spoiled, wrong = {}, False
        for argument in map(str, which):
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    how, arguments[argument], bad = spoil(rng, name, argument, arguments[argument])
            except (ValueError, IndexError, TypeError):  # cannot be done to this one
                continue
            spoiled[argument], wrong = how, wrong or bad
        yield Case(name, spoiled, *outcome(function, arguments, wrong))


def outcome(
    function: Callable[..., Any], arguments: Arguments, wrong: bool = False
) -> tuple[str, str]:
    """What came of asking, and where it went wrong; `wrong` if an argument has no meaning."""
    named = set(arguments) | set(inspect.signature(function).parameters)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            found = everything(function(**arguments))
    except (ValueError, TypeError) as problem:
        begins = re.match(r"((\w+)(, \w+)*)[:\[]", str(problem))
        if begins and set(begins[1].split(", ")) <= named | {"y"}:
            return "refused", ""
        return "crashed", "".join(traceback.format_exception(problem)[-3:])
    except Exception as problem:
        return "crashed", "".join(traceback.format_exception(problem)[-3:])
    if wrong:
        return "accepted", ""
    bad = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(found)
        if eqx.is_inexact_array_like(leaf) and not np.all(np.isfinite(leaf))
    ]
    return ("silent", ", ".join(bad)) if bad else ("answered", "")


def everything(found: Any) -> Any:
    """All numbers of an answer, also those of a posterior's methods, less the infinities that it is
    meant to have: a flat baseline, what a single path says of its own spread, and the bounds of
    components that no path says anything about."""
    if isinstance(found, evidence.Choice):
        return found._replace(baseline=np.nan_to_num(found.baseline, posinf=0.0))
    if not isinstance(found, GradientPosterior):
        return found
    direction = np.ones(found.mean.size)
    answers = [found.mean, found.influence, found.explained, found.freedom, found.info]
    answers.append(found.probability_uphill(direction))
    if found.fisher is not None:
        answers.append(found.natural)
    if found.paths > 1:
        bounds, spread = np.array(found.interval(0.9)), found.robust_covariance
        answers += [found.standard_deviation, spread]
        silent = (found.mean == 0) | (np.diagonal(spread) == 0)
        answers.append(np.where(np.isinf(bounds) & silent, 0.0, bounds))
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for case in cases(options.cases, options.seed, first=options.first):
        counts[case.outcome] += 1
        if case.outcome in WRONG:
            print(case, flush=True)
    print(", ".join(f"{counts[kind]} {kind}" for kind in ("answered", "refused", *WRONG)))
    sys.exit(any(counts[kind] for kind in WRONG))


if __name__ == "__main__":
    main()
