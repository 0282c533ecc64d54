"""Returns as text: with as many decimals as they need, and over seeds."""

import math

import numpy as np

from bayespg._support.statistics import student_interval

FEWEST = 3
"""Seeds from which an interval is shown: that of two reaches far beyond what is possible."""
ENOUGH = 8
"""Seeds from which an interval ends at the lowest and the highest of them: the centre of a
symmetric distribution lies beyond n values with probability 2^(1-n), less than 1 % here, and a
return beyond all that were seen may be impossible."""
PLAIN = 0.01, 1e9
"""Numbers of these sizes are written in full."""


def shown(*values: float) -> list[str]:
    """Numbers that belong together, with as many decimals as the largest needs: one from 10 on,
    two from 1 on, three below. Where the largest is outside `PLAIN`, three digits of each."""
    sizes = [abs(v) for v in values if math.isfinite(v)]
    largest = max(sizes, default=0.0)
    if largest and not PLAIN[0] <= largest < PLAIN[1]:
        return [f"{value:.3g}" for value in values]
    decimals = 1 if largest >= 10 or largest == 0 else 2 if largest >= 1 else 3
    return [f"{value:,.{decimals}f}" for value in values]


def over_seeds(means: np.ndarray) -> str:
    """Student's interval of the mean over seeds; of two seeds, their returns; of one, nothing."""
    count = np.size(means)
    if count < 2:
        return ""
    if count < FEWEST:
        return f"{count} seeds: {' and '.join(shown(*np.sort(means)))}"
    low, high = student_interval(means)
    if count >= ENOUGH:
        low, high = max(low, np.min(means)), min(high, np.max(means))
    low, high = shown(low, high)
    return f"95 % over {count} seeds {low} to {high}"
