"""Time and memory of `model1` and `model2` against M and n, and of the dense dual in the same run."""

import jax
import numpy as np
from measure import Table, best_of, once, peak_memory, slope

from bayespg import quadrature
from bayespg.fisher import LowRank

MODELS = {"model1": quadrature.model1, "model2": quadrature.model2}
PARAMETERS, PATHS, RANK = 10, 500, 50


def run(quick: bool) -> list[Table]:
    many = (1000, 3000, 10_000) if quick else (1000, 3000, 10_000, 30_000, 100_000)
    dual = (500, 1000, 2000) if quick else (500, 1000, 2000, 4000)
    sizes = (100, 1000, 3000) if quick else (100, 300, 1000, 3000, 10_000)
    with jax.enable_x64(True):
        return [_against_n(sizes), _against_M(many, dual)]


def _measure(model, U, R, fisher, form: str) -> list[float]:
    """Compiled seconds, seconds of the public call, compile seconds, temporary and argument MB."""
    function = jax.jit(lambda U, R, G: model(U, R, G, form=form))
    compiling, compiled = once(lambda: function.lower(U, R, fisher).compile())
    memory = compiled.memory_analysis()
    device = jax.device_put((U, R, fisher))
    inside = best_of(3, lambda: compiled(*device))
    public = best_of(2, lambda: model(U, R, fisher, form=form))
    return [inside.wall, inside.cpu, public.wall, compiling.wall,
            memory.temp_size_in_bytes / 1e6, memory.output_size_in_bytes / 1e6]  # fmt: skip


COLUMNS = ["s", "CPU s", "public call s", "compile s", "temporary MB", "answer MB"]


def _against_M(many: tuple[int, ...], dual: tuple[int, ...]) -> Table:
    """Weight space for all M; the dense dual as far as it goes."""
    rng = np.random.default_rng(0)
    n = PARAMETERS
    rows, notes, found = [], [], {}
    for form, sizes in (("auto", many), ("dual", dual)):
        for name, model in MODELS.items():
            for M in sizes:
                U, R = rng.standard_normal((M, n)), rng.standard_normal(M)
                found[name, form, M] = _measure(model, U, R, np.eye(n), form)
                used = found[name, form, M]
                shown = "weight" if form == "auto" else form
                rows.append([name, shown, M, *used, 8e-6 * M * M, used[4] / (8e-6 * M * M)])
            for k, what in ((1, "CPU time"), (4, "temporary memory")):
                tail = sizes[-3:]
                exponent = slope(tail, [found[name, form, M][k] for M in tail])
                notes.append(
                    f"{name}, {shown}: {what} ~ M^{exponent:.2f} over M = {tail[0]:,} to {tail[-1]:,}."
                )
        notes.append(f"Process or device peak after the {shown} form: {peak_memory():,.0f} MB.")
    for name in MODELS:
        M = max(set(many) & set(dual) or {dual[-1]})
        if ("auto", M) not in {(f, m) for _, f, m in found}:
            U, R = rng.standard_normal((M, n)), rng.standard_normal(M)
            found[name, "auto", M] = _measure(MODELS[name], U, R, np.eye(n), "auto")
        a, b = found[name, "dual", M], found[name, "auto", M]
        notes.append(f"{name} at M = {M:,}: the dual takes {b and a[0] / b[0]:,.0f} times as long.")
    return Table(
        f"Against the number of paths, n = {n}",
        ["", "form", "M", *COLUMNS, "8 M^2 MB", "temporary / 8 M^2"], rows, notes,
    )  # fmt: skip


def _against_n(sizes: tuple[int, ...]) -> Table:
    rng = np.random.default_rng(1)
    rows, notes = [], []
    for name, model in MODELS.items():
        found = {}
        for n in sizes:
            U, R = rng.standard_normal((PATHS, n)), rng.standard_normal(PATHS)
            fisher = LowRank(rng.standard_normal((RANK, n)) / RANK**0.5, 1.0)
            found[n] = _measure(model, U, R, fisher, "auto")
            kind = "array" if n <= quadrature.LARGE else "operator"
            rows.append([name, n, *found[n], 8e-6 * n * n, found[n][4] / (8e-6 * n * n), kind])
        tail = sizes[-3:]
        exponent = slope(tail, [found[n][1] for n in tail])
        notes.append(f"{name}: CPU time ~ n^{exponent:.2f} over n = {tail[0]:,} to {tail[-1]:,}.")
    notes.append(f"Process or device peak: {peak_memory():,.0f} MB.")
    return Table(
        f"Against the number of parameters, M = {PATHS}, Fisher matrix of rank {RANK} plus diagonal",
        ["", "n", *COLUMNS, "8 n^2 MB", "temporary / 8 n^2", "covariance"], rows, notes,
    )  # fmt: skip
