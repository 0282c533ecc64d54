"""The demonstration: LQR learned from five paths an update, each gradient with error bars."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from bayespg import plots, updates
from bayespg.environments import LQR, exact_gradient
from bayespg.estimators import Estimator, Model1, Model2, Reinforce, draw
from bayespg.policies import BoundedLinearGaussian
from bayespg.precision import to_numpy
from bayespg.random import fast_key
from bayespg.training import train

PATHS, UPDATES = 5, 60
OPTIMUM = 0.3067
RATE = np.array((0.1, 0.2))
"""One learning rate for all, large enough that noisy gradients hurt."""
METHODS: dict[str, tuple[Estimator, str]] = {
    "Monte Carlo": (Reinforce(), "MC"),
    "Monte Carlo, best baseline": (Reinforce("best"), "MC, best baseline"),
    "Model 1": (Model1(), "BQ"),
    "Model 2 + baseline": (Model2(noise=None, baseline=float("inf")), "ours"),
}


@dataclasses.dataclass(frozen=True)
class Demo:
    """Learning curves, and the gradient along one run with its error bars."""

    costs: dict[str, np.ndarray]
    visited: np.ndarray
    """Gradients along one run of the last method: estimate, lower, upper, exact, each (N, n)."""
    columns: list[str]
    rows: list[list[str]]
    summary: str


def run(runs: int, seed: int, progress: Callable[[float, str], None]) -> Demo:
    environment = LQR()
    key_start, key_run, key_along = jax.random.split(fast_key(seed), 3)
    with jax.enable_x64(True):
        kappa = jax.random.normal(key_start, (runs, 2))
    costs, parameters = {}, np.zeros((0, 2))
    for k, (name, (estimator, _)) in enumerate(METHODS.items()):
        progress(k / (len(METHODS) + 1), name)
        history = train(
            environment,
            BoundedLinearGaussian(kappa),
            estimator,
            updates.conventional(updates.hyperbolic(RATE)),
            key=key_run,
            updates=UPDATES,
            paths=PATHS,
            runs=runs,
            progress=lambda j, N, k=k: progress((k + j / N) / (len(METHODS) + 1), ""),
        ).history
        costs[name] = -np.asarray(history.expected_return)
        middle = np.argsort(costs[name][:, 0])[runs // 2]  # the run with the median start
        assert history.parameters is not None
        parameters = np.asarray(history.parameters[middle])
    progress(len(METHODS) / (len(METHODS) + 1), "error bars")
    visited = _along(environment, parameters, key_along)
    return Demo(costs, visited, *_summary(costs, visited, runs))


def _along(environment: LQR, parameters: np.ndarray, key) -> np.ndarray:
    """Posteriors at the policies a run visited."""
    estimator = METHODS["Model 2 + baseline"][0]

    def look(kappa, key):
        policy = BoundedLinearGaussian(kappa)
        sample = draw(environment, policy, key, PATHS)
        return estimator(sample), exact_gradient(environment, policy)

    with jax.enable_x64(True):
        keys = jax.random.split(key, len(parameters))
        posteriors, exact = to_numpy(jax.jit(jax.vmap(look))(parameters, keys))
    rows = []
    for i in range(len(parameters)):
        posterior = jax.tree.map(lambda leaf, i=i: leaf[i], posteriors)
        lower, upper = posterior.interval(0.95)
        rows.append((posterior.mean, lower, upper, exact[i]))
    return np.array(rows).transpose(1, 0, 2)


def _summary(costs, visited, runs):
    rows = []
    for name, cost in costs.items():
        final = cost[:, -1]
        error = final.std(ddof=1) / np.sqrt(runs)
        solved = np.mean(final < 1.2 * OPTIMUM)
        rows.append(
            [
                name,
                f"{cost[:, 0].mean():.3f}",
                f"{final.mean():.3f} ± {error:.3f}",
                f"{np.median(final):.3f}",
                f"{100 * solved:.0f} %",
            ]
        )
    _, lower, upper, exact = visited
    held = np.mean((lower <= exact) & (exact <= upper))
    columns = [
        "estimator",
        "cost at the start",
        f"after {UPDATES} updates",
        "median",
        "within 20 % of optimal",
    ]
    summary = (
        f"Cost {OPTIMUM} is optimal; {PATHS} paths an update, {runs} runs from random policies, "
        "one learning rate for all.\nAlong one run the 95 % intervals held "
        f"{100 * held:.0f} % of the exact gradient's components."
    )
    return columns, rows, summary


def picture(demo: Demo, path: Path) -> Path:
    """Learning curves left, the gradient with error bars right."""
    with plots.styled():
        figure, axes = plots.sheet(1, 3, width=11.5, height=3.9, width_ratios=(1.25, 1, 1))
        for name, cost in demo.costs.items():
            excess = cost - OPTIMUM
            plots.curve(
                axes[0, 0],
                np.arange(UPDATES) * PATHS,
                excess.mean(0),
                label=name,
                look=METHODS[name][1],
                markers=False,
                band=plots.bootstrap(excess),
            )
        axes[0, 0].set(
            yscale="log", xlabel="paths drawn", ylabel="expected cost above the optimum",
            title="Learning LQR",
        )  # fmt: skip
        axes[0, 0].set_ylim(bottom=0.04)
        axes[0, 0].legend(loc="lower left")
        _, lower, upper, exact = demo.visited
        steps = np.arange(UPDATES)
        for j, (axis, symbol) in enumerate(
            zip(axes[0, 1:], ("κ₁ (gain)", "κ₂ (noise)"), strict=True)
        ):
            centre = (lower + upper)[:, j] / 2
            axis.errorbar(
                steps, centre, (upper - lower)[:, j] / 2, fmt="o", ms=2.5, lw=0, elinewidth=1.0,
                color="#c2410c", ecolor="#e8a987", label="95 % interval",
            )  # fmt: skip
            axis.plot(steps, exact[:, j], color="black", lw=1.3, label="exact gradient")
            spread = np.percentile(np.abs(np.r_[lower[:, j], upper[:, j]]), 85)
            reach = 1.3 * max(spread, np.abs(exact[:, j]).max())
            axis.set(xlabel="update", title=f"Gradient in {symbol}", ylim=(-reach, reach))
        axes[0, 2].legend(loc="upper right")
        plots.save(figure, path)
    return path
