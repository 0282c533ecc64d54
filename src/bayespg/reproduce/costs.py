"""Section 10: what the covariance and the natural gradient cost, and what dictionaries save.

Programs are timed in turn on a CPU, as in `sparsification`. Memory is what the compiled program
reserves for what it computes on the way, which is the same in every run. Algorithm 1 has its M x M
system on the LQR's paths, the actor-critic the system of all its steps on the random walk's.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support.random import fast_key
from bayespg.algebra.sparsification import Sparsify
from bayespg.environments import RandomWalk
from bayespg.learning.estimators import BACPaper, draw, g_est
from bayespg.policies import Tabular
from bayespg.reproduce import claims
from bayespg.reproduce import random_walk as rw
from bayespg.reproduce.claims import Row, jointly, times
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Samples
from bayespg.reproduce.sparsification import MODELS, gradients, seconds, updates
from bayespg.runs import plots

TAU = 1e-4
MEAN, MOMENTS, NATURAL, SPARSE = "mean", "mean and covariance", "mean and natural", "dictionary"
ASKED: dict[str, Callable[[Any], Any]] = {
    MEAN: lambda posterior: posterior.mean,
    MOMENTS: lambda posterior: (posterior.mean, posterior.covariance),
    NATURAL: lambda posterior: (posterior.mean, posterior.natural),
    SPARSE: lambda posterior: posterior.mean,
}
"""What is asked of a posterior; the first three of the full system."""


def run(settings: Settings, progress: Progress) -> Report:
    paths = 200 if settings.quick else 1_000
    with jax.default_device(jax.devices("cpu")[0]):
        programs, reserved = {}, {}
        for name, (program, arguments) in _programs(paths, settings.seed).items():
            progress(len(programs) / 16, name)
            compiled = jax.jit(program).lower(*arguments).compile()
            reserved[name] = np.array([compiled.memory_analysis().temp_size_in_bytes])  # type: ignore[union-attr]
            programs[name] = lambda f=compiled, a=arguments: f(*a)
        progress(0.75, "times")
        taken = seconds(programs | updates(("BPG", "BPG-var"), settings.seed), settings.runs)
    kept = {("seconds", name, paths): of for name, of in taken.items()}
    kept |= {("bytes", name, paths): of for name, of in reserved.items()}
    rows = [
        [name, f"{1e3 * np.median(of):.3g}", f"{reserved[name][0] / 2**20:,.1f}"
         if name in reserved else ""]
        for name, of in taken.items()
    ]  # fmt: skip
    return Report(
        columns=["", "milliseconds", "MiB"],
        rows=rows,
        curves=[],
        samples=Samples(kept),
        figure=lambda: _figure(taken),
        notes=[f"Medians of {settings.runs} timings on the CPU; {paths:,} paths or steps."],
    )


def _form(what: str, capacity: int) -> dict[str, Any]:
    return {"sparsify": Sparsify(TAU, capacity)} if what == SPARSE else {"form": "dual"}


def _programs(paths: int, seed: int) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """By name, functions of arrays and their arguments."""
    walk = RandomWalk(horizon=100)
    steps = draw(walk, Tabular(jnp.full(9, rw.START)), fast_key(seed), paths // 100)
    given, static = eqx.partition(steps, eqx.is_array)
    programs = {}
    for what, asked in ASKED.items():
        few, more = (_form(what, capacity) for capacity in (8, 24))
        programs |= gradients(paths, seed, {f", {what}": few}, asked)
        bac = BACPaper(rw.STATE_KERNEL, rw.NOISE, rw.SCALE, fisher=g_est, **more)
        programs[f"BAC, {what}"] = (
            lambda arrays, e=bac, ask=asked: ask(e(eqx.combine(arrays, static))), (given,),
        )  # fmt: skip
    return programs


def _compared(first: str, second: str, *names: str, of: str = "seconds"):
    return {name: ((of, f"{name}, {first}"), (of, f"{name}, {second}")) for name in names}


@jointly
def _memory(few: np.ndarray, full: np.ndarray, level: float):
    """The ratio of numbers of bytes, which are the same in every run."""
    ratio = float(full[0]) / float(few[0])
    return ratio, ratio, ratio, f"{full[0] / 2**20:.3g} MiB over {few[0] / 2**20:.3g} MiB"


EVERY = (*MODELS, "BAC")
UPDATES = {"an update of BPG-var to one of BPG":
           (("seconds", "update of BPG"), ("seconds", "update of BPG-var"))}  # fmt: skip
CLAIMS = (
    Row("covariance-cost", "covariance-cost",
        "the covariance of the gradient comes at little extra cost (M = {M})",
        "ratio of times, with covariance to without", times,
        _compared(MEAN, MOMENTS, *MODELS) | UPDATES, below=1.1),
    Row("bac-natural-cost", "bac-natural-cost",
        "BAC's natural gradient comes at little extra cost ({M} steps)",
        "ratio of times, with natural gradient to without", times,
        _compared(MEAN, NATURAL, "BAC"), below=1.1),
    Row("sparse-time", "sparse-both", "a dictionary makes BPG and BAC significantly faster",
        "ratio of times, full system to dictionary", times, _compared(SPARSE, MEAN, *EVERY),
        above=2),
    Row("sparse-memory", "sparse-both", "a dictionary saves BPG and BAC most of the memory",
        "ratio of memory, full system to dictionary", _memory,
        _compared(SPARSE, MEAN, *EVERY, of="bytes"), above=2),
)  # fmt: skip
judge = functools.partial(claims.judge, CLAIMS)


def _figure(taken: dict[str, np.ndarray]):
    figure, axes = plots.sheet(1, 1, width=8, height=4.4)
    axes[0, 0].barh(list(taken), [1e3 * np.median(of) for of in taken.values()])
    axes[0, 0].invert_yaxis()
    axes[0, 0].set(xscale="log", xlabel="milliseconds")
    return figure
