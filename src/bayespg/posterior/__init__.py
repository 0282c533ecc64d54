"""The posterior distribution of a policy gradient: `GradientPosterior`.

The covariance of the model is right if the model is right; on real returns, whose noise grows with
the score, it is too small. The `robust_covariance` needs no noise model: `influence` holds the
exact change of the mean when each path is left out, and the sum of its outer products is the
jackknife, or leverage-corrected sandwich. Three corrections bring its intervals close to nominal
coverage (docs/calibration.md):

- the prior shrinks the mean, so intervals are centred on the mean divided by the fraction
`retained`, or `explained`, and what the paths leave of the prior's variance is part of their width;
- influences have heavy tails, so quantiles are Student's t with degrees of freedom from their
kurtosis (Satterthwaite);
- where the Fisher matrix is an average over the same paths, each path is also left out of that
average.
"""

from bayespg.posterior.agreement import Weights, no_weights
from bayespg.posterior.decisions import Certain, Episodes
from bayespg.posterior.gradient import GradientPosterior, Interval, rescaled
from bayespg.posterior.operators import (
    LARGE,
    Covariance,
    Damped,
    Diagonal,
    Downdate,
    Influence,
    Invertible,
    Multiple,
    of_gradient,
)
from bayespg.posterior.statistics import (
    believed,
    component_statistics,
    direction_statistics,
    influences,
    region_statistics,
    uphill,
)

__all__ = [
    "LARGE",
    "Certain",
    "Covariance",
    "Damped",
    "Diagonal",
    "Downdate",
    "Episodes",
    "GradientPosterior",
    "Influence",
    "Interval",
    "Invertible",
    "Multiple",
    "Weights",
    "believed",
    "component_statistics",
    "direction_statistics",
    "influences",
    "no_weights",
    "of_gradient",
    "region_statistics",
    "rescaled",
    "uphill",
]


def __dir__() -> list[str]:
    return sorted(__all__)
