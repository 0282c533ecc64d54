"""The best policy of a run, judged by the episodes it was trained with, so that it costs none.

A few episodes say little about one policy, and the luckiest of many updates is not the best. So an
update counts as the best so far if it ends the ten updates with the highest mean return. The return
of those ten is an optimistic figure for that policy: it was chosen for being high. Evaluate it.
"""

import math
from collections import deque
from collections.abc import Iterable

WINDOW = 10
"""Updates whose mean return is compared."""


class Best:
    """Tells, update by update, whether the newest is the best so far. Before there are `WINDOW`
    updates it is, and of equally good ones the newest is."""

    def __init__(self, returns: Iterable[float] = ()):
        self._recent, self._highest = deque[float](maxlen=WINDOW), -math.inf
        for value in returns:
            self(value)

    def __call__(self, mean_return: float) -> bool:
        self._recent.append(mean_return)
        if len(self._recent) < WINDOW:
            return True
        mean = math.fsum(self._recent) / WINDOW
        if mean < self._highest:
            return False
        self._highest = mean
        return True
