"""One sentence of advice where training goes nowhere."""

import math

import numpy as np

from bayespg.runs.columns import Column
from bayespg.runs.numbers import shown

AFTER = 100
"""Updates after which returns should have moved."""
RICHER = {
    "linear": 'a richer policy may help: policy="fourier" or "mlp"',
    "fourier": 'a network may help: policy="mlp"; so may more episodes per update',
    "gaussian": 'another policy may help: "fourier" or "mlp"',
    "tiles": 'another policy may help: "fourier" or "mlp"',
}
EQUAL = 20
"""Updates whose episodes all returned the same after which a hint is given."""
ROUNDING = 1e-6
"""Returns that differ by this share are the same."""
STANDARD_ERRORS = 3.0
FAINT, LONG = 0.05, 50
"""If other episodes confirm less of the slope than this, the limit of a step is a tenth or less of
what it was; and the number of such updates in a row after which the hint is given."""


class Stuck:
    """Called with the row of every update of a run from its first on. Gives a sentence once, after
    `AFTER` updates, if the ranks of the returns of the last third are within three standard errors
    of those of the first third: a few returns that are far from the others change no rank much."""

    def __init__(self, policy: str | None):
        self._advice, self._returns = RICHER.get(policy or ""), []

    def __call__(self, row: dict[str, float]) -> str | None:
        if self._advice is None or row[Column.UPDATE] != len(self._returns) + 1:
            return None
        self._returns.append(row[Column.RETURN])
        if len(self._returns) != AFTER:
            return None
        third = AFTER // 3
        first, last = np.array(self._returns[:third]), np.array(self._returns[-third:])
        # Mann and Whitney: the share of pairs in which the later return is the greater.
        share = np.mean(np.sign(last - first[:, None]) / 2 + 0.5)
        error = math.sqrt((2 * third + 1) / 12) / third
        if np.ptp([*first, *last]) == 0 or abs(share - 0.5) > STANDARD_ERRORS * error:
            return None
        before, now = shown(float(np.median(first)), float(np.median(last)))
        return (
            f"After {AFTER} updates the return has not moved ({before} at first, {now} now): "
            f"{self._advice}."
        )


class Constant:
    """Called with the row of every update of a run from its first on. Gives a sentence once, after
    `EQUAL` updates, if all their episodes returned the same."""

    def __init__(self):
        self._first, self._count = math.nan, 0

    def __call__(self, row: dict[str, float]) -> str | None:
        mean, error = row[Column.RETURN], row[Column.RETURN_ERROR]
        self._first = mean if row[Column.UPDATE] == 1 else self._first
        apart = abs(mean - self._first) + (error if error > 0 else 0.0)
        if row[Column.UPDATE] != self._count + 1 or not apart <= ROUNDING * abs(mean):
            return None
        self._count += 1
        if self._count != EQUAL:
            return None
        return (
            f"Every episode of the first {EQUAL} updates returned {shown(mean)[0]}, which says "
            "nothing about the actions: check the rewards, or whether a goal can be reached."
        )


class Unconfirmed:
    """Called with the row of every update. Gives a sentence once, after `LONG` updates in a row
    whose episodes hardly agreed, if each had the same number of `episodes`."""

    def __init__(self, episodes: int | str | None):
        self._episodes, self._count, self._said = episodes, 0, False

    def __call__(self, row: dict[str, float]) -> str | None:
        self._count = self._count + 1 if row.get(Column.CONFIRMED, 1.0) < FAINT else 0
        if self._said or self._count < LONG or not isinstance(self._episodes, int):
            return None
        self._said = True
        return (
            f"In the last {LONG} updates the {self._episodes} episodes of an update hardly agreed "
            "on a direction, so steps are short. If the return should be higher, try more of them: "
            f"episodes={4 * self._episodes}."
        )
