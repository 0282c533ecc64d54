"""The Fisher information matrix G: something one multiplies by and solves with.

    G = E[u(xi) u(xi)']                                                         (Eq. 24)
    G = sum_t gamma^t E[u(z_t) u(z_t)']                                         (Eq. 40)

for paths and for steps; the second is not normalised, as Algorithm 3 estimates it.

`matrices.py` and `structured.py` have the forms of G, `estimates.py` the ways to obtain it, and
`distributions.py` computes it from plain arrays. With G from outer products of the sampled scores
Model 2 is equivalent to Monte Carlo; `actions_integrated_out` needs no more samples and no model,
and keeps its advantage.
"""

from bayespg.fisher.distributions import of_gaussian, of_softmax
from bayespg.fisher.estimates import (
    actions_integrated_out,
    exact,
    g_est,
    g_est_weights,
    leave_one_out,
    maximum_likelihood,
    monte_carlo,
    of_states,
    of_step_scores,
    places,
    recursive,
    recursive_inverse,
    step_weights,
)
from bayespg.fisher.inputs import checked, checked_matrix, checked_problem
from bayespg.fisher.matrices import Damped, Dense, Fisher, as_dense, carried, reached, readout
from bayespg.fisher.networks import Network, network
from bayespg.fisher.structured import (
    Implicit,
    Inverse,
    Isotropic,
    LowRank,
    Sparse,
    Spectral,
    as_fisher,
    directions,
    overlap,
    rank,
)

__all__ = [
    "Damped",
    "Dense",
    "Fisher",
    "Implicit",
    "Inverse",
    "Isotropic",
    "LowRank",
    "Network",
    "Sparse",
    "Spectral",
    "actions_integrated_out",
    "as_dense",
    "as_fisher",
    "carried",
    "checked",
    "checked_matrix",
    "checked_problem",
    "directions",
    "exact",
    "g_est",
    "g_est_weights",
    "leave_one_out",
    "maximum_likelihood",
    "monte_carlo",
    "network",
    "of_gaussian",
    "of_softmax",
    "of_states",
    "of_step_scores",
    "overlap",
    "places",
    "rank",
    "reached",
    "readout",
    "recursive",
    "recursive_inverse",
    "step_weights",
]


def __dir__() -> list[str]:
    return sorted(__all__)
