"""Experiments of our own, in the form of those of the paper: claims, samples of all runs, figures.

    python benchmarks/experiments.py                                    # lists them
    python benchmarks/experiments.py uphill --paper --out docs/results

The options are those of `bayespg reproduce`. `bayespg report docs/results` shows the results beside
those of the paper.
"""

import dataclasses
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU is shared; first of all

import calibration
import lengths
import partial_observation
import search_gradients
import typer
import uphill
import uphill_tasks

from bayespg.cli import commands, reproducing

EXPERIMENTS = {
    experiment.name: dataclasses.replace(experiment, program="python benchmarks/experiments.py")
    for experiment in (
        lengths.EXPERIMENT,
        partial_observation.TUNING,
        partial_observation.EXPERIMENT,
        calibration.EXPERIMENT,
        uphill.EXPERIMENT,
        uphill_tasks.EXPERIMENT,
        search_gradients.EXPERIMENT,
    )
}
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
app.command(cls=reproducing.WithContext, help="Run an experiment of our own by its name, or all.")(
    reproducing.reproduce
)

if __name__ == "__main__":
    commands.main(lambda: app(obj=EXPERIMENTS))
