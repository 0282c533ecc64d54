"""The columns of metrics.csv: what each holds, and how it is shown.

To add a column, add a line here, and either an entry in `bayespg.agents.metrics` or a field of
the same name in `bayespg.learning.advance.Record`.
"""

import enum
import math

from bayespg.runs.numbers import shown


class Column(enum.StrEnum):
    """The name of a column, with its meaning and how its numbers are formatted."""

    meaning: str
    form: str

    def __new__(cls, name: str, form: str, meaning: str):
        self = str.__new__(cls, name)
        self._value_, self.form, self.meaning = name, form, meaning
        return self

    UPDATE = "update", ",.0f", "updates so far"
    STEPS = "steps", ",.0f", "environment steps so far"
    EPISODES = "episodes", ",.0f", "episodes so far"
    SECONDS = "seconds", ",.0f", "time spent on drawing and learning so far"
    RETURN = "return", "return", "mean undiscounted return of the episodes"
    RETURN_ERROR = "return_error", "return", "its standard error; NaN for one episode"
    LENGTH = "length", ".1f", "mean number of steps of the episodes"
    TERMINATED = "terminated", ".2f", "share of the episodes that ended before the horizon"
    GRADIENT_NORM = "gradient_norm", ".3g", "length of the gradient"
    SLOPE = "slope", ".3g", "the gradient along the step that was taken"
    SLOPE_ERROR = "slope_error", ".3g", "its standard error, computed by leaving episodes out"
    FREEDOM = "freedom", ".0f", "degrees of freedom of that standard error"
    DIVERGENCE = "divergence", ".3g", "Kullback-Leibler, old to new policy, mean over states"
    CONFIRMED = "confirmed", ".2f", "share of the squared gradient that is signal, so far"
    KNOWN = "known", ".1f", "directions in which the episodes determine the gradient"
    PERSISTENCE = "persistence", ".2f", "probability that exploration kept a step's random numbers"
    STEP_NORM = "step_norm", ".3g", "length of the step"
    EXPLAINED = "explained", ".2f", "share of the returns' variance that earlier values explain"
    SOUND = "sound", ".0f", "1: every number of the update was finite"
    SURE = "sure", ".2f", "probability of going uphill, given the agreement of episodes so far"
    SECONDS_DRAWING = "seconds_drawing", ".2f", "time spent on drawing the episodes"
    SECONDS_LEARNING = "seconds_learning", ".2f", "time spent on learning from them"
    RETURN_AT_BEST = "return_at_best", "return", "PGPE: return of the best parameters when played"
    PROMISED = "promised", "return", "MBAC: discounted return that the update before promised"
    CAME = "came", "return", "MBAC: mean discounted return of the episodes"
    KEPT = "kept", ".2f", "MBAC: gains of the last updates as a share of what was promised"
    AHEAD = "ahead", ".1f", "MBAC: mean number of steps of simulated episodes"
    PREDICTED = "predicted", ".2f", "MBAC: share of their variance that the model predicted"
    INSIDE = "inside", ".2f", "MBAC: share of states inside its 95 % intervals 10 steps ahead"
    SCALE = "scale", ".3g", "PGPE: standard deviation of the parameters that are tried"

    def show(self, value: float) -> str:
        """Empty for what is not known."""
        if math.isnan(value):
            return ""
        if self.form == "return":
            return shown(float(value))[0]
        return format(float(value), self.form)


C = Column
TOTALS = (C.UPDATE, C.STEPS, C.EPISODES, C.SECONDS)
"""Totals since the beginning of the run; the other columns describe one update."""
ON_BAR = (C.RETURN, C.DIVERGENCE)
"""What the progress bar shows besides the steps."""
ON_PAGE = (C.STEPS, C.UPDATE, C.RETURN, C.SURE, C.DIVERGENCE, C.SECONDS)
"""What a report shows of each seed."""
GROUPS = {
    "rollout": (C.EPISODES, C.RETURN, C.RETURN_ERROR, C.LENGTH, C.TERMINATED),
    "gradient": (C.GRADIENT_NORM, C.SLOPE, C.SLOPE_ERROR, C.FREEDOM, C.CONFIRMED, C.KNOWN, C.SURE),
    "time": (C.UPDATE, C.SECONDS, C.SECONDS_DRAWING, C.SECONDS_LEARNING),
}
"""Groups of the columns in TensorBoard; the others are in "train"."""


def tag(name: str) -> str:
    """The name of a column in TensorBoard."""
    return f"{next((group for group, of in GROUPS.items() if name in of), 'train')}/{name}"


def familiar(row: dict[str, float]) -> dict[str, float]:
    """A row under the names that Stable-Baselines3 has in TensorBoard, beside ours."""
    curves = {
        "rollout/ep_rew_mean": row.get(C.RETURN), "rollout/ep_len_mean": row.get(C.LENGTH),
        "time/total_timesteps": row.get(C.STEPS),
    }  # fmt: skip
    if row.get(C.SECONDS, 0) > 0 and C.STEPS in row:
        curves["time/fps"] = row[C.STEPS] / row[C.SECONDS]
    return {name: value for name, value in curves.items() if value is not None}


DRAWN = (C.STEPS, C.RETURN, C.SURE)
"""What learning curves are drawn from."""
