"""``episodes="auto"``: the number of episodes of the next update, from how far those of recent
updates agree.

`confirmed` is the share of the slope of an update that its other episodes confirm, a running mean.
If one episode has the squared signal-to-noise ratio q, the share with M episodes is about
M q / (1 + M q). The next update plays the smallest number M of `SIZES` for which the share is at
least 1 / M. More episodes make the share larger, which asks for fewer again, so that the number
settles. docs/calibration.md shows where that pays.
"""

from typing import Any

from bayespg.learning.estimators import BAC, Estimator
from bayespg.policies import SparsePolicy

AUTO = "auto"
SIZES = (2, 4, 8, 16)
"""There are few, because every number is a compiled program."""


def episodes(asked: int | str, confirmed: Any) -> int:
    """How many episodes the next update plays: the number asked for, or by the rule."""
    if asked != AUTO:
        return int(asked)
    return next((M for M in SIZES if M * float(confirmed) >= 1), SIZES[-1])


def refuse(asked: int | str, estimator: Estimator, policy: Any) -> None:
    """ValueError for "auto" where nothing measures how far episodes agree."""
    measured = isinstance(estimator, BAC) and estimator.advantage is not None
    measured = measured and not estimator.needs.older  # which are kept in one size
    if asked == AUTO and (not measured or isinstance(policy, SparsePolicy)):
        raise ValueError(
            f"episodes: {AUTO!r} needs the share of the slope that other episodes confirm, which "
            "the estimators bac and bac-returns measure, except for sparse policies such as tiles; "
            "give a number"
        )
