"""What real episodes say about a learned model: what it promised, and whether to go on with it."""

import dataclasses

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from bayespg.models.data import Transitions

WINDOW = 20
"""Updates whose real returns are compared, those of the first half with those of the second."""
NOTHING = 0.1
"""A model that predicts a smaller share of the variance of changes of the state, in new
transitions, is of no use unless returns are rising."""
NOISY = 0.3, 0.6
"""Shares of noise in what a model learns from, beyond which it is in doubt: `BAC` plays and learns
until there is less. In changes of the state it is below 0.1 on tasks without hidden states. In sums
of rewards it is below one half after an episode or two where they are paid late, and above 0.7
where they are random; in both it is near one where the model is useless."""
POOR, JUDGED = 0.8, 5
"""A model that predicts less than this share of the variance of changes of the state, in the median
over at least `JUDGED` updates, predicts them poorly."""
TRIED, SHARE = 4, 0.5
"""Updates of a policy after which what real episodes gained is compared with what the model had
promised, and the share of it below which a policy is given up for one from scratch. The model now
knows the episodes that it was wrong about, but cannot improve a policy that it believes in."""
MISSES = 5
"""Policies in a row that were given up like that, after which the model is."""
COST = 1e-4
"""The rounding, as a share of the largest reward, up to which a reward is a function of the
action."""


class Record(eqx.Module):
    """What real episodes said about the model. Numbers that are not there yet are NaN."""

    returns: Float[np.ndarray, " w"]
    """Returns of the last updates, the newest last."""
    predicted: Float[np.ndarray, "w 2"]
    """The shares of the variance of their changes of state, and of their rewards, that the model
    before had predicted."""
    base: Float[np.ndarray, ""]
    """The discounted return of the first update."""
    promise: Float[np.ndarray, ""]
    """The discounted return that the model promises for the next one."""
    tried: Float[np.ndarray, "t 2"]
    """What it promised and what came, in the last updates of this policy."""
    misses: Int[np.ndarray, ""]
    """Policies in a row that gained too little of what was promised."""
    doubts: Int[np.ndarray, ""]
    """Updates in which the model was in doubt, less those after them in which it was not."""
    useless: Bool[np.ndarray, ""]
    """Whether the model was given up."""

    @property
    def plain(self) -> bool:
        """Whether `BAC` plays and learns, for now or for good."""
        return bool(self.useless or self.doubts > 0)

    @property
    def poor(self) -> bool:
        """Whether the model predicts changes of the state poorly."""
        known = self.predicted[np.isfinite(self.predicted[:, 0]), 0]
        return len(known) >= JUDGED and bool(np.median(known) < POOR)

    @property
    def kept(self) -> float:
        """What real episodes gained over the first update, as a share of what the model promised;
        NaN as long as it is not known, and where nothing was promised."""
        promised, came = self.tried.mean(0) - self.base
        return float(came / promised) if promised > 0 else np.nan

    @property
    def missed(self) -> bool:
        """Whether that is too little."""
        return self.kept < SHARE

    def after(
        self,
        value: float,
        predicted: tuple[float, float],
        came: float,
        noise: tuple[float, float] = (0.0, 0.0),
    ) -> "Record":
        """With another update, its mean return and its discounted one, and the shares of noise in
        what the model has learned from. The model is given up after `WINDOW` updates in doubt; if
        `MISSES` policies in a row gained too little of what it promised; or if the second half of
        `WINDOW` updates returned no more than the first, by two standard errors, and it predicted
        `NOTHING` of the changes of the state."""
        returns = np.append(self.returns[1:], value)
        shares = np.concatenate([self.predicted[1:], [predicted]])
        useless = (
            np.isfinite(returns).all()
            and _mean(shares[:, 0]) < NOTHING
            and not _risen(*np.split(returns, [WINDOW // 2]))
        )
        new = dataclasses.replace(
            self, returns=returns, predicted=shares,
            base=np.where(np.isnan(self.base), came, self.base),
            tried=np.concatenate([self.tried[1:], [[self.promise, came]]]),
        )  # fmt: skip
        misses = self.misses + 1 if new.missed else self.misses * np.isnan(new.kept)
        noisy = noise[0] > NOISY[0] or noise[1] > NOISY[1]
        doubts = self.doubts + 1 if noisy else max(self.doubts - 1, 0)
        useless = useless or misses >= MISSES or doubts >= WINDOW
        return dataclasses.replace(
            new, misses=np.asarray(misses), doubts=np.asarray(doubts), useless=np.asarray(useless)
        )

    def promising(self, promise: float, begun: bool) -> "Record":
        """With what is promised for the next update. A policy that has just `begun` is judged by
        its own updates."""
        tried = np.full_like(self.tried, np.nan) if begun else self.tried
        return dataclasses.replace(self, promise=np.asarray(promise), tried=tried)


def _mean(x: np.ndarray) -> float:
    """The mean of those that are known."""
    return float(np.nanmean(x)) if np.isfinite(x).any() else np.nan


def _risen(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether the mean has, by two standard errors."""
    error = np.sqrt(sum(x.var(ddof=1) / len(x) for x in (before, after)))
    return bool(after.mean() > before.mean() + 2 * error)


def begin() -> Record:
    """Nothing is known yet."""
    return Record(
        np.full(WINDOW, np.nan), predicted=np.full((WINDOW, 2), np.nan), base=np.asarray(np.nan),
        promise=np.asarray(np.nan), tried=np.full((TRIED, 2), np.nan), misses=np.asarray(0),
        doubts=np.asarray(0), useless=np.asarray(False),
    )  # fmt: skip


def silent(data: Transitions) -> bool:
    """Whether rewards have said nothing about states: each is what the action costs, a sum of
    functions b a + d a^2 + e |a| of its numbers. As long as no episode ended by itself there may be
    a constant as well. Until then episodes are simulated that go where the model is uncertain,
    whatever they cost: doing nothing would look best, and a goal would never be seen."""
    n = data.count
    ended, choices = bool(data.terminated[:n].any()), data.inputs.sizes is not None
    A, rewards = np.asarray(data.actions[:n], float), np.asarray(data.rewards[:n], float)
    level = np.full((n, 1), 0.0 if ended else 1.0)
    # The numbers of a choice sum to one.
    terms = np.concatenate([level, *(() if ended and choices else (A, A**2, np.abs(A)))], 1)
    left = rewards - terms @ np.linalg.lstsq(terms, rewards, rcond=None)[0]
    return bool(np.abs(left).max() <= COST * max(np.abs(rewards).max(), 1e-300))
