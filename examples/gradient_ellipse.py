"""What a posterior of the gradient is: the paper's LQR, two parameters, more and more episodes.

The arrow is the exact gradient. The outer ellipse should hold its tip with probability 95 %, the
inner one with 50 %; grey is what Monte Carlo says of the same episodes, with its own 95 %.

    python examples/gradient_ellipse.py [picture.svg]
"""

import sys
from pathlib import Path

import jax
import numpy as np
import scipy.stats

from bayespg import estimators, evidence, fisher, monte_carlo, quadrature
from bayespg.environments import LQR, exact_gradient
from bayespg.policies import LinearGaussian
from bayespg.posterior import region_statistics
from bayespg.runs import plots

SIZES, SEED = (10, 30, 100, 300), 0
OURS, RIVAL = "#c2410c", "#8a8a8a"


def border(posterior, level):
    """Of the joint region: a ball in the metric G^-1, as `posterior.contains` has it."""
    with jax.enable_x64(True):
        statistics = jax.jit(region_statistics)(posterior, np.asarray(posterior.mean))
    _, scale, rank, freedom = map(float, statistics)
    radius = np.sqrt(scale * scipy.stats.f.ppf(level, rank, freedom))
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    root = np.linalg.cholesky(np.asarray(posterior.fisher.matrix()))
    return centre(posterior) + radius * circle @ root.T


def centre(posterior):
    """The mean, less what the prior pulls it towards zero."""
    kept = posterior.explained if posterior.retained is None else posterior.retained
    return np.asarray(posterior.mean / kept)


def panel(axis, truth, ours, rival):
    axis.plot(*border(rival, 0.95).T, "--", color=RIVAL, lw=0.9)
    axis.plot(*centre(rival), "x", color=RIVAL, mew=1.6, ms=6, label="Monte Carlo and its 95 %")
    for level, shade in ((0.95, 0.14), (0.5, 0.22)):
        edge = border(ours, level)
        axis.fill(*edge.T, color=OURS, alpha=shade, lw=0)
        axis.plot(*edge.T, color=OURS, lw=1)
    axis.plot(*centre(ours), "o", color=OURS, ms=5, label="Model 2 with its 50 % and 95 %")
    head = {"arrowstyle": "-|>", "color": "#111111", "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", truth, (0, 0), arrowprops=head)
    axis.plot(0, 0, ".", color="#111111", ms=4)
    axis.plot([], [], "-", color="#111111", label="the exact gradient")


def main(path: Path) -> None:
    environment, policy = LQR(), LinearGaussian(-0.2, 1.0)
    with jax.enable_x64(True):
        truth = np.asarray(exact_gradient(environment, policy))
    drawn = jax.jit(lambda key: estimators.draw(environment, policy, key, max(SIZES)))
    sample = drawn(jax.random.key(SEED))
    print("exact gradient", truth.round(1))
    with plots.styled():
        figure, axes = plots.sheet(1, len(SIZES), width=11, height=3.5, sharex=True, sharey=True)
        for axis, M in zip(axes[0], SIZES, strict=True):
            paths = jax.tree.map(lambda x, M=M: x[:, :M] if x.ndim > 1 else x[:M], sample.paths)
            U, R = np.asarray(sample.scores[:M]), np.asarray(sample.returns[:M])
            G = fisher.actions_integrated_out(policy, paths)
            choice = evidence.choose_model2(U, R, G, baseline=float("inf"))
            ours = quadrature.model2(
                U, R, G, noise=choice.noise, scale=choice.scale, baseline=choice.baseline
            )
            rival = monte_carlo.reinforce(U, R, G)
            panel(axis, truth, ours, rival)
            axis.set(title=f"{M} episodes", xlabel="∂η/∂λ", xlim=(-480, 180), ylim=(-400, 260))
            axis.set_aspect("equal")
            print(
                f"{M:4d} episodes: Model 2 {centre(ours).round(1)}, error "
                f"{np.linalg.norm(centre(ours) - truth):.1f}; Monte Carlo "
                f"{np.asarray(rival.mean).round(1)}, error {np.linalg.norm(rival.mean - truth):.1f}"
            )
        axes[0, 0].set_ylabel("∂η/∂σ")
        plots.legend_below(figure, axes[0, 0], 3)
        plots.save(figure, path)
    print(f"Picture: {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gradient_ellipse.svg"))
