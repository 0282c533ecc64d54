"""The number of episodes of the next update, from how far those of recent updates agree.

`confirmed` is the share of the slope of an update that its other episodes confirm, a running mean.
If one episode has the squared signal-to-noise ratio q, the share with M episodes is about
M q / (1 + M q). With ``episodes="auto"``, the default, the next update plays the smallest number M
of `SIZES` for which M times the share is at least `ENOUGH`. More episodes make the share larger,
which asks for fewer again, so that the number settles. While there is much to learn, two episodes
agree on it, and more of them would only cost steps; near an optimum they no longer agree, and a
policy that follows two of them loses what it has learned. docs/calibration.md shows both.
"""

from typing import Any

from bayespg.learning.estimators import BAC, Estimator
from bayespg.policies import SparsePolicy

AUTO = "auto"
SIZES = (2, 4, 8, 16)
"""There are few, because every number is a compiled program."""
ENOUGH = 0.4
"""Two episodes are enough while they confirm a fifth of the slope."""


def episodes(asked: int | str, confirmed: Any) -> int:
    """How many episodes the next update plays: the number asked for, or by the rule."""
    if asked != AUTO:
        return int(asked)
    return next((M for M in SIZES if M * float(confirmed) >= ENOUGH), SIZES[-1])


def resolved(asked: int | str | None, estimator: Estimator, policy: Any) -> int | str:
    """What was asked for; unless stated otherwise "auto", or two episodes where nothing measures
    how far they agree. `policy` may be a name. ValueError for "auto" there."""
    measured = isinstance(estimator, BAC) and estimator.advantage is not None
    measured = measured and policy != "tiles" and not isinstance(policy, SparsePolicy)
    if asked is None:
        return AUTO if measured else SIZES[0]
    if asked == AUTO and not measured:
        raise ValueError(
            f"episodes: {AUTO!r} needs the share of the slope that other episodes confirm, which "
            "the estimators bac and bac-returns measure, except for sparse policies such as tiles; "
            "give a number"
        )
    return asked
