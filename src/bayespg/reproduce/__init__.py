"""The paper's tables and figures, one file each, with the claims the paper makes about them."""

import time
from functools import partial
from pathlib import Path

import jax

from bayespg.reproduce import (
    bandit,
    costs,
    lqr_gradient,
    lqr_learning,
    lqr_noise,
    mountain_car,
    random_walk_gradient,
    random_walk_learning,
    ship_steering,
    sparsification,
)
from bayespg.reproduce.report import Content, Experiment, Progress, Report, Settings, write

TABLE = (
    Experiment("bandit", "Table 2", "The gradient of a bandit, Monte Carlo and Bayesian quadrature",
               10_000, 500, 10 * bandit.PAPER_RUNS, bandit.run, bandit.judge),
    Experiment("lqr-gradient", "Figure 1",
               "Error of the gradient on LQR against the number of paths",
               4_000, 200, 10_000, lqr_gradient.run, lqr_gradient.judge),
    Experiment("lqr-gradient-readings", "Figure 1",
               "Error of the gradient on LQR with other noise levels", 4_000, 200, 10_000,
               lqr_gradient.run_readings, lqr_gradient.judge_readings),
    Experiment("lqr-noise", "Figure 2", "The effect of noise in the rewards on the LQR gradient",
               4_000, 200, 10_000, lqr_noise.run, lqr_noise.judge, minutes=3),
    Experiment("lqr-optimisation", "Figure 3", "Learning LQR: BPG and BPNG against MCPG",
               1_000, 50, 10_000, partial(lqr_learning.run, lqr_learning.FIGURE3),
               lqr_learning.judge),
    Experiment("lqr-rates", "Table 3", "Learning LQR at equal rates, and each method at its best",
               400, 20, 2_000, lqr_learning.tune, lqr_learning.judge_rates),
    Experiment("lqr-fisher", "Figure 4", "Learning LQR with an estimated Fisher matrix",
               500, 50, 10_000, partial(lqr_learning.run, lqr_learning.FIGURE4),
               lqr_learning.judge_fisher),
    Experiment("lqr-variance", "Figure 5",
               "Learning LQR with steps scaled by the posterior covariance",
               1_000, 50, 10_000, partial(lqr_learning.run, lqr_learning.FIGURE5),
               lqr_learning.judge_variance, minutes=2),
    Experiment("lqr-readings", "Figures 3 and 5",
               "Learning LQR with other noise levels and initial policies", 200, 20, 1_000,
               partial(lqr_learning.run, lqr_learning.READINGS, whole=False),
               lqr_learning.judge_readings, minutes=5),
    Experiment("lqr-fisher-readings", "Figure 4",
               "Learning LQR with other noise levels, initial policies and Fisher matrices",
               200, 20, 1_000, partial(lqr_learning.run, lqr_learning.FISHER_READINGS, whole=False),
               lqr_learning.judge_fisher_readings, minutes=5),
    Experiment("lqr-fisher-form", "Figure 4",
               "Learning LQR with a Fisher matrix from a model of the wrong form", 500, 50, 10_000,
               partial(lqr_learning.run, lqr_learning.FORM), lqr_learning.judge_form),
    Experiment("random-walk-gradient", "Figure 6",
               "Error of the gradient on the random walk against the number of episodes",
               400, 40, 1_000, random_walk_gradient.run, random_walk_gradient.judge, minutes=4),
    Experiment("random-walk-rates", "Table 4",
               "Learning rates for the random walk, tuned for all methods alike",
               4, 2, 50, random_walk_learning.tune, random_walk_learning.judge_rates, minutes=3),
    Experiment("random-walk-learning", "Figure 7", "Learning the random walk",
               4, 2, 1_000, random_walk_learning.run, random_walk_learning.judge, minutes=6),
    Experiment("random-walk-printed", "Figure 7",
               "Learning the random walk with Algorithm 3 as printed", 4, 2, 1_000,
               random_walk_learning.run_printed, random_walk_learning.judge_printed, minutes=4),
    Experiment("random-walk-lengths", "Section 7",
               "Variance of the random walk's gradient against the length of episodes",
               100, 20, 1_000, random_walk_gradient.run_lengths,
               random_walk_gradient.judge_lengths),
    Experiment("mountain-car", "Figure 8", "Learning the mountain car",
               4, 2, 100, mountain_car.run, mountain_car.judge, minutes=5),
    Experiment("mountain-car-long", "Figure 8",
               "Learning the mountain car with training episodes of up to 1,000 steps",
               4, 2, 100, mountain_car.run_long, mountain_car.judge_long, minutes=3),
    Experiment("ship-steering-rates", "Table 6",
               "Learning rates for ship steering, tuned for all methods alike",
               2, 2, 8, ship_steering.tune, minutes=2),
    Experiment("ship-steering", "Figure 9", "Learning to steer a ship",
               2, 2, 100, ship_steering.run, ship_steering.judge, minutes=8),
    Experiment("ship-steering-printed", "Figure 9", "Learning to steer a ship at Table 6's rates",
               2, 2, 100, ship_steering.run_printed, ship_steering.judge_printed, minutes=8),
    Experiment("sparsification", "Section 4.4", "What sparsification and the natural gradient cost",
               4_000, 200, 10_000, sparsification.run, sparsification.judge, timed=True),
    Experiment("costs", "Section 10", "What covariances, natural gradients and full systems cost",
               10, 3, 60, costs.run, costs.judge, timed=True),
)  # fmt: skip
"""Name, item of the paper, title, and runs: default, --quick and --paper."""
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in TABLE}


def make(experiment: Experiment, settings: Settings, out: Path, progress: Progress) -> Content:
    """Run one experiment, write its results to `out`, and return the content of its JSON file."""
    started = time.perf_counter()
    with jax.enable_x64(True):
        report = experiment.run(settings, progress)
    return write(experiment, settings, report, out, time.perf_counter() - started)


__all__ = ["EXPERIMENTS", "Experiment", "Report", "Settings", "make"]
