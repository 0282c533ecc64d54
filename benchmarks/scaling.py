"""Time and memory of `model1` and `model2` against M and n, and of the dense dual beside them."""

from typing import NamedTuple

import jax
import numpy as np
from measure import Table, Timing, best_of, once, peak_memory, slope

from bayespg import posterior, quadrature
from bayespg.fisher import LowRank

MODELS = {"model1": quadrature.model1, "model2": quadrature.model2}
PARAMETERS, PATHS, RANK = 10, 500, 50
MANY, QUICK_MANY = (1000, 4000, 10_000, 30_000, 100_000), (1000, 10_000)
DUAL, QUICK_DUAL = (500, 1000, 2000, 4000), (500, 1000)
SIZES, QUICK_SIZES = (100, 300, 1000, 3000, 10_000, 40_500), (1000, 3000)
COLUMNS = ["s", "CPU s", "call s", "compile s", "temp MB", "answer MB"]
MEANING = (
    "call: the public function on NumPy arrays, checks and copies included. "
    "temp: XLA's buffers besides arguments and answer."
)


class Cost(NamedTuple):
    compiled: Timing
    public: Timing
    """The call on NumPy arrays, with its checks and copies."""
    compiling: Timing
    temporary: float
    """MB that XLA's buffers need besides arguments and answer."""
    answer: float

    def row(self) -> list[float]:
        return [*self.compiled, self.public.wall, self.compiling.wall, self.temporary, self.answer]


def run(quick: bool) -> list[Table]:
    with jax.enable_x64(True):
        if quick:
            return [*_against_M(QUICK_MANY, QUICK_DUAL), *_against_n(QUICK_SIZES)]
        return [*_against_M(MANY, DUAL), *_against_n(SIZES)]


def _cost(model, U, R, fisher, form: str) -> Cost:
    function = jax.jit(lambda U, R, G: model(U, R, G, form=form))
    compiling, compiled = once(lambda: function.lower(U, R, fisher).compile())
    memory = compiled.memory_analysis()
    arguments = jax.device_put((U, R, fisher))
    return Cost(
        best_of(3, lambda: compiled(*arguments)),
        best_of(2, lambda: model(U, R, fisher, form=form)),
        compiling,
        memory.temp_size_in_bytes / 1e6,
        memory.output_size_in_bytes / 1e6,
    )


def _exponents(what: str, found: dict[tuple[str, str, int], Cost], notes: list[str]) -> Table:
    """Least squares over the three largest sizes, where the cost of a call no longer counts."""
    rows = []
    for name, form in dict.fromkeys((name, form) for name, form, _ in found):
        tail = sorted(size for n, f, size in found if (n, f) == (name, form))[-3:]
        costs = [found[name, form, size] for size in tail]
        time, memory = (
            slope(tail, [of(c) for c in costs])
            for of in (lambda c: c.compiled.work, lambda c: c.temporary)
        )
        rows.append([name, form, f"{tail[0]:,} to {tail[-1]:,}", f"{time:.2f}", f"{memory:.2f}"])
    return Table(f"Exponents of {what}", ["", "form", what, "time", "memory"], rows, notes)


def _against_M(many: tuple[int, ...], dual: tuple[int, ...]) -> list[Table]:
    """Weight space, chosen by itself, for all M; the dense dual as far as it goes."""
    rng = np.random.default_rng(0)
    found, rows, notes = {}, [], []
    for form, sizes in (("auto", many), ("dual", dual)):
        for name, model in MODELS.items():
            for M in sizes:
                U, R = rng.standard_normal((M, PARAMETERS)), rng.standard_normal(M)
                cost = _cost(model, U, R, np.eye(PARAMETERS), form)
                found[name, form, M] = cost
                square = 8e-6 * M**2
                rows.append([name, form, M, *cost.row(), square, cost.temporary / square])
        notes.append(f"Peak memory so far, after form {form!r}: {peak_memory():,.0f} MB.")
    M = max(set(many) & set(dual))
    for name in MODELS:
        ratio = found[name, "dual", M].compiled.wall / found[name, "auto", M].compiled.wall
        notes.append(f"{name} at M = {M:,}: the dual takes {ratio:,.0f} times as long.")
    notes.append(MEANING)
    title = f"Cost against the number of paths, n = {PARAMETERS}"
    columns = ["", "form", "M", *COLUMNS, "8 M^2 MB", "temp / 8 M^2"]
    return [Table(title, columns, rows, []), _exponents("M", found, notes)]


def _against_n(sizes: tuple[int, ...]) -> list[Table]:
    rng = np.random.default_rng(1)
    found, rows = {}, []
    for name, model in MODELS.items():
        for n in sizes:
            U, R = rng.standard_normal((PATHS, n)), rng.standard_normal(PATHS)
            fisher = LowRank(rng.standard_normal((RANK, n)) / RANK**0.5, 1.0)
            cost = found[name, "auto", n] = _cost(model, U, R, fisher, "auto")
            kind = "array" if n <= posterior.LARGE else "operator"
            square = 8e-6 * n**2
            rows.append([name, n, *cost.row(), square, cost.temporary / square, kind])
    title = f"Cost against the number of parameters, M = {PATHS}, G of rank {RANK} plus diagonal"
    columns = ["", "n", *COLUMNS, "8 n^2 MB", "temp / 8 n^2", "covariance"]
    notes = [f"Peak memory so far: {peak_memory():,.0f} MB.", MEANING]
    return [Table(title, columns, rows, []), _exponents("n", found, notes)]
