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
STANDARD_ERRORS = 3.0


class Stuck:
    """Called with the row of every update of a run from its first on. Gives a sentence once, after
    `AFTER` updates, if the returns of the last third are within three standard errors of those of
    the first third."""

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
        error = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / third)
        if error == 0 or abs(last.mean() - first.mean()) > STANDARD_ERRORS * error:
            return None
        before, now = shown(float(first.mean()), float(last.mean()))
        return (
            f"After {AFTER} updates the return has not moved ({before} at first, {now} now): "
            f"{self._advice}."
        )
