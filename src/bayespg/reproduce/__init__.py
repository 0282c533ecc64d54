"""The paper's tables and figures, one file each, with the claims the paper makes about them."""

import time
from pathlib import Path

import jax

from bayespg.reproduce import (
    bandit,
    lengths,
    lqr_fisher,
    lqr_gradient,
    lqr_noise,
    lqr_optimisation,
    lqr_rates,
    lqr_variance,
    mountain_car,
    random_walk_gradient,
    random_walk_learning,
    ship_steering,
    sparsification,
)
from bayespg.reproduce.report import Content, Experiment, Progress, Report, Settings, write

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        bandit.EXPERIMENT,
        lqr_gradient.EXPERIMENT,
        lqr_noise.EXPERIMENT,
        lqr_optimisation.EXPERIMENT,
        lqr_rates.EXPERIMENT,
        lqr_fisher.EXPERIMENT,
        lqr_variance.EXPERIMENT,
        random_walk_gradient.EXPERIMENT,
        random_walk_learning.TUNING,
        random_walk_learning.EXPERIMENT,
        mountain_car.EXPERIMENT,
        ship_steering.TUNING,
        ship_steering.EXPERIMENT,
        sparsification.EXPERIMENT,
        lengths.EXPERIMENT,
    )
}


def make(experiment: Experiment, settings: Settings, out: Path, progress: Progress) -> Content:
    """Run one experiment, write its results to `out`, and return the content of its JSON file."""
    started = time.perf_counter()
    with jax.enable_x64(True):
        report = experiment.run(settings, progress)
    return write(experiment, settings, report, out, time.perf_counter() - started)


__all__ = ["EXPERIMENTS", "Experiment", "Report", "Settings", "make"]
