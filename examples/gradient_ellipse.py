"""What a posterior of the gradient is: the paper's LQR, two parameters, more and more episodes.

The arrow is the exact gradient. Each ellipse should hold its tip with probability 95 %; the dot is
the estimate, the small crosses are what Monte Carlo says from the same episodes.

    python examples/gradient_ellipse.py [picture.png]
"""

import sys
from pathlib import Path

import jax
import numpy as np
import scipy.stats

from bayespg import plots
from bayespg.environments import LQR, exact_gradient
from bayespg.estimators import Model2, Reinforce, draw
from bayespg.policies import LinearGaussian
from bayespg.posterior import region_statistics

SIZES, SEED = (5, 10, 20, 100), 1


def ellipse(posterior, level=0.95):
    """The border of the robust region, a ball in the metric G^-1, as `contains` has it."""
    _, scale, rank, freedom = (
        float(x) for x in region_statistics(posterior, np.asarray(posterior.mean))
    )
    radius = np.sqrt(scale * scipy.stats.f.ppf(level, rank, freedom))
    root = np.linalg.cholesky(np.asarray(posterior.fisher.matrix()))
    angle = np.linspace(0, 2 * np.pi, 200)
    centre = np.asarray(posterior.mean / posterior.explained)
    return centre + radius * np.stack([np.cos(angle), np.sin(angle)], 1) @ root.T


def main(path: Path) -> None:
    environment, policy = LQR(), LinearGaussian(-0.2, 1.0)
    with jax.enable_x64(True):
        truth = np.asarray(exact_gradient(environment, policy))
        sample = draw(environment, policy, jax.random.key(SEED), max(SIZES))
        found = []
        for M in SIZES:
            few = type(sample)(
                sample.environment, sample.policy,
                jax.tree.map(lambda x, M=M: x[:, :M] if x.ndim > 1 else x[:M], sample.paths),
                sample.returns[:M], sample.scores[:M],
            )  # fmt: skip
            ours = Model2(noise=None, baseline=float("inf"))(few)
            found.append((M, ours, ellipse(ours), np.asarray(Reinforce()(few).mean)))
    with plots.styled():
        figure, axes = plots.sheet(1, len(SIZES), width=11, height=3.2, sharex=True, sharey=True)
        for axis, (M, ours, border, monte_carlo) in zip(axes[0], found, strict=True):
            axis.fill(*border.T, color="#c2410c", alpha=0.15, lw=0)
            axis.plot(*border.T, color="#c2410c", lw=1)
            axis.plot(*np.asarray(ours.mean), "o", color="#c2410c", label="posterior mean")
            axis.plot(*monte_carlo, "x", color="#777777", label="Monte Carlo")
            axis.annotate(
                "", truth, (0, 0), arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.5}
            )
            axis.set(title=f"{M} episodes", xlabel="∂η/∂λ")
        axes[0, 0].set_ylabel("∂η/∂σ")
        plots.legend_below(figure, axes[0, 0], 2)
        plots.save(figure, path)
    print(f"written to {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "gradient_ellipse.png"))
