"""Odd input to every array function: it returns finite numbers or a clear error.

    python benchmarks/fuzz.py [--cases 10000] [--seed 0]

A case is a function with sound arguments of which none, one or two are spoiled: NaN, masks, other
types and shapes, units from 1e-300 to 1e300, settings out of range. Its outcome is

    answered    all numbers are finite, also those of the posterior's methods
    refused     ValueError or TypeError, and the message begins with the name of an argument
    silent      a NaN or an infinity that nobody asked for
    crashed     any other exception, a message that names no argument, or a warning

The exit status is 0 if nothing was silent or crashed. tests/test_fuzz.py runs some of the cases, of
one size, because most of the time goes into compiling for each size.
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
)
from bayespg import monte_carlo as rivals

Arguments = dict[str, Any]
Maker = Callable[[np.random.Generator, int, int], Arguments]
SIZES = ((6, 2), (1, 1), (1, 2), (2, 1), (2, 3), (7, 3), (12, 2))
"""Paths and parameters."""
KERNEL = kernels.Gaussian(1.0)


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
    return {"scores": rng.normal(size=(M, n)), "damping": rng.choice([0.0, 0.1])}


def recursive(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {
        "scores": rng.normal(size=(M, n)),
        "step_sizes": rng.uniform(0.1, 0.9, M),
        "initial": np.eye(n),
    }


def g_est(rng: np.random.Generator, M: int, n: int) -> Arguments:
    last = rng.random(M) < 0.3
    return {"scores": rng.normal(size=(M, n)), "last": last, "discount": 0.9}


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
    options = {"noise": 1.0, "fisher_scale": 0.1, "trace": 1.0, "form": "auto"}
    del found["returns"]
    arrays = {"states": rng.normal(size=(M, 1))} | found
    return arrays | steps(rng, M, n) | {"state_kernel": KERNEL} | options


def chosen(rng: np.random.Generator, M: int, n: int) -> Arguments:
    found = bac(rng, M, n) | {"trace": 0.5}
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
    return {"gradient": rng.normal(size=2), "level": 0.9}


def uphill(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"direction": rng.normal(size=2)}


def transition(rng: np.random.Generator, M: int, n: int) -> Arguments:
    return {"reward": rng.normal(), "point": rng.normal(size=2)}


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


def observe(reward: Any, point: Any) -> Any:
    known = gptd.online(KERNEL, np.zeros(2), discount=0.9, sparsify=Sparsify(0.1, 4))
    return known.begin(np.ones(2)).observe(reward, point).terminate(reward)


@functools.cache
def _posterior() -> GradientPosterior:
    rng = np.random.default_rng(0)
    return quadrature.model2(rng.normal(size=(6, 2)), rng.normal(size=6), np.eye(2))


def contains(gradient: Any, level: Any) -> Any:
    return _posterior().contains(gradient, level), _posterior().interval(level)


def probability_uphill(direction: Any) -> Any:
    return _posterior().probability_uphill(direction)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Maker]] = {
    "quadrature.model1": (quadrature.model1, model1),
    "quadrature.model2": (quadrature.model2, model2),
    "quadrature.integral": (quadrature.integral, integral),
    "quadrature.vector_integral": (quadrature.vector_integral, vector_integral),
    "quadrature.bayes_hermite": (quadrature.bayes_hermite, bayes_hermite),
    "evidence.choose_model1": (evidence.choose_model1, paths),
    "evidence.choose_model2": (evidence.choose_model2, choose_model2),
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
}


# What can be wrong with an argument.


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
    return np.ma.array(array, mask=rng.random(array.shape) < 0.3)


def with_a_zero_column(rng: np.random.Generator, array: np.ndarray) -> Any:
    array = array.copy()
    array[..., rng.integers(array.shape[-1])] = 0
    return array


ARRAYS: dict[str, Callable[[np.random.Generator, np.ndarray], Any]] = {
    "NaN": entry(np.nan),
    "infinity": entry(np.inf),
    "one large entry": entry(1e150),
    "masked": masked,
    "masked rows in a list": lambda rng, a: [masked(rng, row) for row in np.atleast_2d(a)],
    "scaled": lambda rng, a: a * 10.0 ** rng.choice([-320, -160, -20, -4, 4, 20, 80, 160, 300]),
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
    "None": lambda rng, a: None,
    "a dictionary": lambda rng, a: {"values": a},
    "a generator": lambda rng, a: (row for row in a),
    "JAX": lambda rng, a: jnp.asarray(a),
    "another framework": lambda rng, a: Foreign(a),
    "backwards": lambda rng, a: a[::-1],
}
NUMBERS = (
    np.nan, np.inf, -np.inf, -1.0, 0.0, 0, 1, 2.0, 1e-300, 1e-30, 1e30, 1e300, 10**400, 1j, True,
    "x", "0.1", "nan", None, (), [1.0, 2.0], np.ones(2), np.ones((1, 1)), np.array(0.5),
    np.float32(0.5), np.ma.masked, {}, object(),
)  # fmt: skip
OTHERS = ("x", "", None, 0, 0.1, True, np.nan, [], {}, np.ones(2), Sparsify(0.1), object())


def spoil(rng: np.random.Generator, name: str, value: Any) -> tuple[str, Any]:
    """Another value for an argument, and what was done to it."""
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
            return kind, kinds[kind]()
        kind = str(rng.choice(list(ARRAYS)))
        return kind, ARRAYS[kind](rng, value)
    choices = NUMBERS if isinstance(value, (int, float)) else OTHERS
    found = choices[rng.integers(len(choices))]
    return repr(found), found


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


def cases(count: int, seed: int = 0, sizes: Sequence[tuple[int, int]] = SIZES) -> Iterator[Case]:
    """Each case depends on the seed and its number alone, and functions take turns."""
    names = list(FUNCTIONS)
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        name = names[i % len(names)]
        function, make = FUNCTIONS[name]
        arguments = make(rng, *sizes[rng.integers(len(sizes))])
        many = min(rng.choice(3, p=[0.1, 0.7, 0.2]), len(arguments))
        which = rng.choice(list(arguments), many, replace=False)
        spoiled = {}
        for argument in map(str, which):
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    how, arguments[argument] = spoil(rng, argument, arguments[argument])
            except (ValueError, IndexError, TypeError):  # cannot be done to this one
                continue
            spoiled[argument] = how
        yield Case(name, spoiled, *outcome(function, arguments))


def outcome(function: Callable[..., Any], arguments: Arguments) -> tuple[str, str]:
    """What came of asking, and where it went wrong."""
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
    bad = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(found)
        if eqx.is_inexact_array_like(leaf) and not np.all(np.isfinite(leaf))
    ]
    return ("silent", ", ".join(bad)) if bad else ("answered", "")


def everything(found: Any) -> Any:
    """All numbers of an answer, also those of a posterior's methods, less the infinities that it is
    meant to have: a flat baseline, and what a single path says of its own spread."""
    if isinstance(found, evidence.Choice):
        return found._replace(baseline=np.nan_to_num(found.baseline, posinf=0.0))
    if not isinstance(found, GradientPosterior):
        return found
    direction = np.ones(found.mean.size)
    answers = [found.mean, found.influence, found.explained, found.freedom, found.info]
    answers.append(found.probability_uphill(direction))
    if found.fisher is not None:
        answers.append(found.natural)
    if found.influence.shape[0] > 1:  # pyright: ignore
        answers += [found.standard_deviation, found.robust_covariance, found.interval(0.9)]
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for case in cases(options.cases, options.seed):
        counts[case.outcome] += 1
        if case.outcome in ("silent", "crashed"):
            print(case, flush=True)
    outcomes = ("answered", "refused", "silent", "crashed")
    print(", ".join(f"{counts[kind]} {kind}" for kind in outcomes))
    sys.exit(bool(counts["silent"] or counts["crashed"]))


if __name__ == "__main__":
    main()
