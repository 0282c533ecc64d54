"""Settings by seeds in one program: thousands of runs of `training.train`, side by side.

    def learner(limit, advantage):
        return estimators.BAC(advantage=advantage), updates.trust_region(limit)

    outcome = bayespg.sweep(
        environment, policy, learner, {"limit": [0.01, 0.03], "advantage": [0.05, 0.2]},
        seeds=256, updates=50, paths=2,
    )
    outcome.returns.shape                  # limits, advantages, seeds, updates
    outcome.interval()                     # of the mean over seeds
    outcome.plot("sweep.png")

Numbers become arguments of the compiled program, so that one program serves all settings. Runs are
computed in chunks that fit into memory, each with an equal share on every device.
"""

import functools
import inspect
import itertools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support import checks, compilation, device
from bayespg._support.precision import to_numpy, traced
from bayespg.environments import Environment
from bayespg.learning import training
from bayespg.learning.estimators import Estimator
from bayespg.learning.training import Evaluations, Progress
from bayespg.policies import AnyPolicy
from bayespg.runs.numbers import shown

__all__ = ["Learner", "Sweep", "sweep"]


def __dir__() -> list[str]:
    return sorted(__all__)


Learner = Callable[..., tuple[Estimator, optax.GradientTransformation]]
"""From settings, as keyword arguments, to an estimator and an update."""

LAST = 10
"""The summary of a run is its mean return over the last tenth of the updates."""
MOST = 4096
"""Runs on a device at a time, however small they are."""
SHARE = 0.5
"""Share of the free memory that a chunk may use."""
LINES = 12
"""Settings that a picture shows: beyond these, those with the highest returns."""


class Sweep(NamedTuple):
    """The runs of a sweep. Arrays have an axis for each setting, in the order in which these were
    given, and then one for the seeds."""

    settings: dict[str, list[Any]]
    seeds: list[int]
    returns: Float[np.ndarray, "*settings seeds N"]
    """Mean undiscounted return of the paths of each update, before it was made."""
    steps: Int[np.ndarray, "*settings seeds N"]
    """Environment steps before each update."""
    policy: Any
    """The last policy of every run, for raw observations."""
    evaluations: Evaluations | None = None
    programs: int = 1
    """Programs that were compiled."""

    def mean(self) -> Float[np.ndarray, "*settings N"]:
        """The mean return over seeds."""
        return self.returns.mean(-2)

    def interval(
        self, level: float = 0.95
    ) -> tuple[Float[np.ndarray, "*settings N"], Float[np.ndarray, "*settings N"]]:
        """Bootstrap intervals of the mean over seeds; ValueError for a single seed."""
        return _interval(self.returns, level)

    def final(self, level: float = 0.95) -> tuple[Float[np.ndarray, " *settings"], tuple[Any, Any]]:
        """The mean return over the last tenth of the updates and over seeds, and its bootstrap
        interval. The seeds of a sweep choose its winner: train that on other seeds before you
        report its return."""
        last = self.returns[..., -max(1, self.returns.shape[-1] // LAST) :].mean(-1, keepdims=True)
        low, high = _interval(last, level)
        return last.mean((-2, -1)), (low[..., 0], high[..., 0])

    def plot(self, path: str | Path) -> None:
        """Mean returns against environment steps, with 95 % bootstrap intervals over seeds."""
        from bayespg.runs import curves, plots

        cells = itertools.product(*self.settings.values())
        names = [
            ", ".join(
                f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in zip(self.settings, cell, strict=True)
            )
            for cell in cells
        ]
        rows = self.returns.reshape(len(names), *self.returns.shape[-2:])
        steps = self.steps.reshape(rows.shape).mean(1)
        best = np.argsort(-rows[..., -max(1, rows.shape[-1] // LAST) :].mean((1, 2)))[:LINES]
        with plots.styled():
            figure, ((axes,),) = plots.sheet(1, 1, width=6.4, height=4.0)
            for k, look in zip(sorted(best), curves.LOOKS * LINES, strict=False):
                name = names[k] or "all runs"
                plots.mean_over_seeds(axes, steps[k], rows[k], name, look)
            left = len(names) - len(best)
            axes.set_title(f"the best {LINES} of {len(names)} settings" if left else "")
            axes.set_ylabel("return of an episode")
            plots.environment_steps(axes)
            plots.legend_below(figure, axes)
            plots.save(figure, Path(path))

    def __repr__(self) -> str:
        sizes = " x ".join(f"{len(v)} {k}" for k, v in self.settings.items())
        first, last = (shown(float(self.returns[..., i].mean()))[0] for i in (0, -1))
        return (
            f"Sweep({sizes + ' x ' if sizes else ''}{len(self.seeds)} seeds, "
            f"{self.returns.shape[-1]} updates, mean return {first} to {last})"
        )


def _interval(samples: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    from bayespg.runs import plots

    level = checks.probability("level", level)
    if samples.shape[-2] < 2:
        raise ValueError("seeds: an interval needs at least 2 seeds, found 1; give more seeds")
    rows = samples.reshape(-1, *samples.shape[-2:])
    shape = (*samples.shape[:-2], samples.shape[-1])
    low, high = zip(*(plots.bootstrap(row, level=level) for row in rows), strict=True)
    return np.reshape(low, shape), np.reshape(high, shape)


def sweep(
    environment: Environment,
    policy: AnyPolicy | Callable[[PRNGKeyArray], AnyPolicy],
    learner: Learner,
    settings: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int],
    updates: int,
    paths: int,
    stop: float = 0.0,
    normalise: bool = False,
    persistence: float = 0.0,
    evaluate: Callable[[Any, PRNGKeyArray], Any] | None = None,
    every: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Train every combination of `settings` on every seed.

    `learner(**settings)` gives the estimator and the update of a run. Settings that are numbers may
    be any that JAX can trace, such as a rate, a limit, `noise` or `advantage`; they do not lengthen
    compilation. All others (names, booleans, fields that decide the shape of the program, such as
    `lambda_`) are compiled once for each value. `seeds` is their number or a list.

    `policy` is that from which all runs start, or a function of a key. The run of a seed is

        key, key_policy = jax.random.split(jax.random.key(seed))
        training.train(environment, policy(key_policy), *learner(**settings), key=key, ...)

    in the precision of the policy, so that settings are compared on common random numbers. The
    other arguments are those of `train`. `progress` is called after each chunk, with runs done and
    runs in all.
    """
    settings = {name: _values(name, given) for name, given in (settings or {}).items()}
    numbers = [checks.whole("seeds", s, 0, 2**31 - 1) for s in _listed(seeds)]
    fixed = [name for name in settings if not _may_be_traced(learner, settings, name)]
    # Policies may be called too, with an observation.
    make: Any = (lambda _: policy) if isinstance(policy, AnyPolicy) else policy
    start = policy if isinstance(policy, AnyPolicy) else jax.eval_shape(make, jax.random.key(0))
    kinds = {getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(start)}
    single = np.dtype(np.float64) not in kinds
    free = [name for name in settings if name not in fixed]
    cells = list(itertools.product(*(settings[name] for name in free), numbers))
    columns = [np.array(column) for column in zip(*cells, strict=True)]
    kind = np.float32 if single else np.float64
    columns = [c.astype(kind) if c.dtype.kind == "f" else c.astype(np.int32) for c in columns]
    chosen = list(itertools.product(*(settings[name] for name in fixed)))
    outcomes, programs, total = [], 0, len(chosen) * len(cells)
    static: list[Any] = []
    # GPUs would multiply matrices of float32 with ten bits, too few to solve with.
    with jax.enable_x64(not single), jax.default_matmul_precision("highest"):
        for values in chosen:
            given = dict(zip(fixed, values, strict=True))
            one = functools.partial(
                _trained, environment, make, learner, given, free, static, updates=updates,
                paths=paths, stop=stop, normalise=normalise, persistence=persistence,
                evaluate=evaluate, every=every,
            )  # fmt: skip
            before = len(outcomes) * len(cells)
            outcome, count = _in_chunks(
                one, columns, lambda n, b=before: progress and progress(b + n, total), single
            )
            outcomes.append(outcome)
            programs += count
    whole = jax.tree.map(lambda *parts: np.stack(parts), *outcomes)
    order = [*fixed, *free]
    whole = jax.tree.map(
        lambda x: _in_order(x, [len(settings[n]) for n in order], order, list(settings)), whole
    )
    asked = None
    if evaluate is not None:
        asked = Evaluations(np.arange(0, updates + 1, every), whole["asked"])
    last = eqx.combine(whole["policy"], static[0])
    return Sweep(settings, numbers, whole["returns"], whole["steps"], last, asked, programs)


def _trained(
    environment: Environment,
    make: Callable[[PRNGKeyArray], AnyPolicy],
    learner: Learner,
    given: dict[str, Any],
    free: list[str],
    static: list[Any],
    inputs: Sequence[Any],
    **arguments: Any,
) -> dict[str, Any]:
    """The arrays of one run: `inputs` are the values of the `free` settings and the seed. What the
    last policy holds besides arrays goes into `static`."""
    *values, seed = inputs
    parts = _parts(learner, given | dict(zip(free, values, strict=True)))
    key, key_policy = jax.random.split(jax.random.key(seed))
    done = training.train(environment, make(key_policy), *parts, key=key, **arguments)
    last = done.policy if done.state.normaliser is None else done.state.acting
    arrays, rest = eqx.partition(last, eqx.is_array)
    static[:] = [rest]
    return {
        "returns": done.history.total_reward, "steps": done.history.steps, "policy": arrays,
        "asked": None if done.evaluations is None else done.evaluations.values,
    }  # fmt: skip


def _in_order(x: np.ndarray, sizes: list[int], order: list[str], wanted: list[str]) -> np.ndarray:
    """An array whose first two axes are those of fixed and of free settings with seeds, with an
    axis for each setting in the order `wanted`, and then one for the seeds."""
    x = x.reshape(*sizes, -1, *x.shape[2:])
    places = [order.index(name) for name in wanted]
    return x.transpose(*places, *range(len(order), x.ndim))


def _listed(seeds: Any) -> Sequence[Any]:
    if isinstance(seeds, Sequence | np.ndarray):
        if not len(seeds):
            raise ValueError("seeds: expected a number or a list of seeds, found an empty list")
        return list(seeds)
    return range(checks.whole("seeds", seeds, 1))


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray | jax.Array):
        raise ValueError(
            f"settings: expected a list of values of {name}, found {checks.shown(given)}"
        )
    values = [v.item() if isinstance(v, np.generic | np.ndarray | jax.Array) else v for v in given]
    if not values:
        raise ValueError(f"settings: {name} has no values; give at least one")
    if any(isinstance(v, float) and math.isnan(v) for v in values):
        raise ValueError(f"settings: {name} has a value that is NaN")
    return values


def _parts(learner: Learner, given: dict[str, Any]) -> tuple[Any, Any]:
    try:
        inspect.signature(learner).bind(**given)
    except TypeError as problem:
        raise ValueError(f"settings: they are not the arguments of learner: {problem}") from None
    made = learner(**given)
    if not (
        isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], Estimator)
        and isinstance(made[1], optax.GradientTransformation)
    ):  # fmt: skip
        raise ValueError(
            "learner: expected a function of the settings that gives an estimator and an update, "
            f"found {checks.shown(made)}"
        )
    return made[0], optax.with_extra_args_support(made[1])


def _may_be_traced(learner: Learner, settings: dict[str, list[Any]], name: str) -> bool:
    """Whether a setting is a number that reaches the estimator or the update as an array: not as a
    field that decides the shape of the program, nor by way of an `if`."""
    values = settings[name]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return False
    others, answer = {n: v[0] for n, v in settings.items() if n != name}, []

    def attempt(value: Any) -> Any:
        parts = _parts(learner, others | {name: value})
        answer.append(traced(parts) or training.closes_over_tracers(parts[1]))
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equinox warns of arrays in static fields
        try:
            jax.eval_shape(attempt, jax.ShapeDtypeStruct((), np.asarray(values[0]).dtype))
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
            return False
    return answer[0]


def _in_chunks(
    one: Callable[[Sequence[Any]], Any],
    columns: list[np.ndarray],
    report: Callable[[int], Any],
    single: bool,
) -> tuple[Any, int]:
    """`one` for every row of the columns, and the number of programs that were compiled: one, or
    two if the first would not have fitted into memory."""
    runs, devices = len(columns[0]), device.all_devices()
    options: dict[str, Any] = {"compiler_options": compilation.fast(double=not single)}

    def compiled(size: int) -> Any:
        many = jax.jit(lambda c: training.everywhere(jax.vmap(one), c), **options)
        like = [jax.ShapeDtypeStruct((size,), c.dtype) for c in columns]
        return many.lower(like).compile()

    size, programs = _even(runs, MOST * len(devices), len(devices)), 1
    program = compiled(size)
    smaller = _even(runs, _fitting(program, size, devices), len(devices))
    if smaller < size:
        size, programs = smaller, 2
        program = compiled(size)
    parts = []
    for first in range(0, runs, size):
        rows = np.minimum(np.arange(first, first + size), runs - 1)
        part = to_numpy(program([c[rows] for c in columns]))
        left = min(size, runs - first)
        parts.append(jax.tree.map(lambda x, n=left: x[:n], part))
        report(first + left)
    return jax.tree.map(lambda *each: np.concatenate(each), *parts), programs


def _even(runs: int, most: int, devices: int) -> int:
    """The size of equal chunks of at most `most` runs, a multiple of the devices if there are as
    many runs."""
    chunks = -(-runs // max(1, most))
    size = -(-runs // chunks)
    return size if runs < devices else -(-size // devices) * devices


def _fitting(program: Any, size: int, devices: list[Any]) -> int:
    """The number of runs whose program fits into memory, as far as this one of `size` runs says."""
    memory = program.memory_analysis()
    if memory is None:
        return size
    used = memory.temp_size_in_bytes + memory.output_size_in_bytes
    room = free_memory(devices[0]) * (1 if devices[0].platform != "cpu" else 1 / len(devices))
    fits = SHARE * room / max(used, 1)
    return size if fits >= 1 else max(1, int(size * fits))


def free_memory(of: Any) -> float:
    """Free bytes of a device."""
    stats = of.memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats["bytes_in_use"])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return 2e9
