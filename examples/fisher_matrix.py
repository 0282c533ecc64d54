"""Why the actions are integrated out of the Fisher matrix: the paper's LQR, a few hundred runs.

Left, two estimates of G from the same 20 episodes, as often as there are runs; right, the error of
Model 2 with a flat baseline for each of them, beside Monte Carlo with the best constant baseline.

    python examples/fisher_matrix.py [picture.svg]
"""

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespg import estimators
from bayespg.environments import LQR, exact_gradient
from bayespg.policies import LinearGaussian
from bayespg.runs import plots

SIZES, SHOWN, RUNS, SEED = (5, 10, 20, 40, 80), 20, 300, 0
environment, policy = LQR(), LinearGaussian(-0.2, 1.0)
CHOICES = {
    "outer products of scores": (estimators.monte_carlo_fisher, "BQ"),
    "actions integrated out": (estimators.actions_integrated_out, "ours"),
    "exact": (estimators.exact, "ours exact"),
}


@eqx.filter_jit
def one_size(keys, M, policy):
    """Gradients by Model 2 for each G, the G themselves, and Monte Carlo: all from one sample."""

    def one(key):
        sample = estimators.draw(environment, policy, key, M)
        estimates = {}
        for name, (choice, _) in CHOICES.items():
            model = estimators.Model2(noise=1e-3, baseline=float("inf"), fisher=choice)
            estimates[name] = model(sample).mean, choice(sample).matrix()
        return estimates, estimators.Reinforce("best")(sample).mean

    return jax.vmap(one)(keys)


def main(path: Path) -> None:
    errors = {name: [] for name in (*CHOICES, "Monte Carlo, best baseline")}
    with jax.enable_x64(True):
        here = LinearGaussian(jnp.asarray(-0.2), jnp.asarray(1.0))
        truth = np.asarray(exact_gradient(environment, here))
        for M in SIZES:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(SEED), M), RUNS)
            estimates, plain = jax.tree.map(np.asarray, one_size(keys, M, here))
            for name, gradient in {
                **{name: gradient for name, (gradient, _) in estimates.items()},
                "Monte Carlo, best baseline": plain,
            }.items():
                errors[name].append(np.mean(np.sum((gradient - truth) ** 2, 1)))
            if M == SHOWN:
                matrices = {name: G for name, (_, G) in estimates.items()}
    for name, row in errors.items():
        print(f"{name:28s}" + "".join(f"{error:10.0f}" for error in row))
    with plots.styled():
        figure, (axes,) = plots.sheet(1, 2, width=9, height=4.0)
        exact = matrices.pop("exact")[0]
        for name, G in matrices.items():
            colour = plots.LOOKS[CHOICES[name][1]]["color"]
            ratio = np.stack([G[:, 0, 0] / exact[0, 0], G[:, 1, 1] / exact[1, 1]])
            axes[0].plot(*ratio, ".", color=colour, ms=5, alpha=0.5, mew=0)
            axes[0].plot([], [], "o", color=colour, label=name)
        axes[0].plot(1, 1, "+", color="#111111", ms=12, mew=1.4, label="exact")
        axes[0].set(
            title=f"G from {SHOWN} episodes, {RUNS} times", xscale="log", yscale="log",
            xlabel="λλ entry, relative to the exact one", ylabel="σσ entry",
        )  # fmt: skip
        for axis, ticks in ((axes[0].xaxis, (0.3, 1, 3)), (axes[0].yaxis, (0.3, 0.5, 1, 2, 3))):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_ticks([], minor=True)
        axes[0].legend(loc="lower right")
        for name, row in errors.items():
            look = CHOICES[name][1] if name in CHOICES else "MC, best baseline"
            label = f"Model 2, G: {name}" if name in CHOICES else name
            plots.curve(axes[1], SIZES, row, label=label, look=look)
        axes[1].set(title="Error of the gradient", xlabel="episodes", xscale="log", yscale="log")
        axes[1].set_ylabel("mean squared error")
        axes[1].set_xticks(SIZES, map(str, SIZES))
        axes[1].minorticks_off()
        plots.legend_below(figure, axes[1], 2)
        plots.save(figure, path)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "fisher_matrix.svg"))
