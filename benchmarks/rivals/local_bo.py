"""GIBO, MPD, MinUCB and TuRBO, rebuilt in NumPy.

GIBO (Müller, von Rohr and Trimpe 2021) evaluates the current parameters and then, n times, the
point of the box theta +- `REACH` that lowers the trace of the gradient's posterior covariance
most; it then takes a step of fixed length along the mean of the gradient. MPD (Nguyen et al. 2022)
chooses points by the expected probability of descent after them, and moves along the most probable
ascent S^-1 mu in short steps while the probability is at least 0.65. MinUCB (Fan et al. 2024)
explores as GIBO does and then goes where the mean less `BETA` standard deviations is highest. TuRBO
(Eriksson et al. 2019) draws from the posterior in a box that grows and shrinks. All model the
return by a Gaussian process with a squared exponential kernel, refitted by maximum a posteriori to
the latest `KEPT` evaluations.

What differs from the authors' programs: one length for all parameters, on a grid; the acquisition
is maximised over random candidates rather than by gradient steps; in place of their normalisation
of states, observations have the units that `Gains` gives to every rival.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

REACH, STEP = 0.2, 0.5
"""Half the width of the box, and GIBO's step, in units of the box's root n."""
SHORT, STEPS, QUANTILE = 0.1, 20, 0.385
"""MPD's steps, in the same units, how many at most, and the quantile of 0.65."""
BETA = 0.5
"""MinUCB's number of standard deviations."""
SIDE, DESIGN, SUCCESSES = 1.6, 1, 3
"""TuRBO's first box, the episodes of its first design per parameter, and after how many successes
the box grows."""
KEPT, CANDIDATES = 80, 128
LENGTHS = np.geomspace(0.2, 8.0, 10)
NOISES = np.geomspace(1e-4, 1.0, 9)


class Process:
    """A Gaussian process on standardised returns, and its gradient at a point."""

    def __init__(self, X: np.ndarray, y: np.ndarray):
        self.X, n = X, X.shape[1]
        z = (y - y.mean()) / (y.std() or 1.0)
        away = np.sum((X[:, None] - X) ** 2, -1)
        best = -np.inf
        for length in LENGTHS * REACH * np.sqrt(n):
            values, Q = np.linalg.eigh(np.exp(-0.5 * away / length**2))
            values, q = np.maximum(values, 0.0), Q.T @ z
            for noise in NOISES:
                w = values + noise
                amplitude = max(float(np.mean(q**2 / w)), 1e-6)
                # Priors: lengths near the size of the box, noise that is not tiny.
                prior = -0.5 * np.log(length / (REACH * np.sqrt(n)) / 2) ** 2
                found = -0.5 * (z.size * np.log(amplitude) + np.sum(np.log(w))) + prior
                if found > best:
                    best, self.length2, self.amplitude = found, length**2, amplitude
                    noise_now, Q_now, w_now = noise, Q, w
        self.noise = self.amplitude * noise_now
        self.inverse = (Q_now / w_now) @ Q_now.T / self.amplitude
        self.alpha = self.inverse @ z

    def slopes(self, at: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Covariance of the gradient at `at` with the values at rows of X."""
        away = X - at
        kernel = self.amplitude * np.exp(-0.5 * np.sum(away**2, -1) / self.length2)
        return kernel[:, None] * away / self.length2

    def gradient(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        B = self.slopes(at, self.X)
        S = self.amplitude / self.length2 * np.eye(at.size) - B.T @ self.inverse @ B
        return B.T @ self.alpha, S + 1e-9 * self.amplitude / self.length2 * np.eye(at.size)

    def values(self, C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the values at rows of C."""
        away = np.sum((C[:, None] - self.X) ** 2, -1)
        kernel = self.amplitude * np.exp(-0.5 * away / self.length2)
        squares = np.sum(C**2, 1)
        between = np.maximum(squares[:, None] + squares - 2 * C @ C.T, 0.0)
        prior = self.amplitude * np.exp(-0.5 * between / self.length2)
        return kernel @ self.alpha, prior - kernel @ self.inverse @ kernel.T

    def sampled(self, C: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The row of C that is highest in a sample of the process."""
        mean, covariance = self.values(C)
        root = np.linalg.cholesky(covariance + 1e-6 * self.amplitude * np.eye(len(C)))
        return C[np.argmax(mean + root @ rng.normal(size=len(C)))]

    def highest_bound(self, at: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Where the mean less `BETA` standard deviations is highest, by random steps from the
        point `at` and the rows tried; each of `STEPS` starts from the best so far."""

        def bound(C: np.ndarray) -> np.ndarray:
            mean, covariance = self.values(C)
            return mean - BETA * np.sqrt(np.maximum(np.diag(covariance), 0.0))

        C = np.concatenate([at[None], self.X])
        for k in range(STEPS):
            best = C[np.argmax(bound(C))]
            steps = rng.normal(size=(CANDIDATES, at.size)) * REACH * 0.8**k
            C = np.concatenate([best[None], best + steps])
        return C[np.argmax(bound(C))]

    def choose(self, at: np.ndarray, rng: np.random.Generator, probable: bool) -> np.ndarray:
        """The candidate after which the gradient is best known, or descent most probable."""
        C = at + REACH * rng.uniform(-1, 1, size=(CANDIDATES, at.size))
        kernel = self.amplitude * np.exp(
            -0.5 * np.sum((C[:, None] - self.X) ** 2, -1) / self.length2
        )
        gain = kernel @ self.inverse
        variance = self.amplitude - np.sum(gain * kernel, -1) + self.noise
        lowered = self.slopes(at, C) - gain @ self.slopes(at, self.X)
        lowered = lowered / np.sqrt(np.maximum(variance, 1e-12))[:, None]
        if not probable:
            return C[np.argmax(np.sum(lowered**2, -1))]
        # E[mu' S_new^-1 mu] with S_new = S - v v' and the new mean's variance v v'.
        mu, S = self.gradient(at)
        solved = np.linalg.solve(S, lowered.T).T
        spread = np.sum(lowered * solved, -1)
        along = (lowered @ np.linalg.solve(S, mu)) ** 2
        left = np.maximum(1 - spread, 1e-9)
        return C[np.argmax(along / left + spread / left)]


def episodes_of(task: Any, seed: int) -> tuple[list[np.ndarray], list[float], list[int], Any]:
    """Lists of the parameters tried, their returns and lengths, and the function that plays."""
    tried, returns, lengths = [], [], []

    def play(x: np.ndarray) -> None:
        value, length = task.play(x, 1000 * seed + len(returns))
        tried.append(x.copy())
        returns.append(value)
        lengths.append(length)

    return tried, returns, lengths, play


def local_bo(task: Any, seed: int, budget: int, rule: str) -> Iterator[tuple[int, int, np.ndarray]]:
    """ "gibo", "mpd" or "minucb": episodes, steps and parameters after every iteration."""
    rng, theta = np.random.default_rng(seed), np.zeros(task.n)
    tried, returns, lengths, play = episodes_of(task, seed)

    def process() -> Process:
        return Process(np.array(tried[-KEPT:]), np.array(returns[-KEPT:]))

    while len(returns) < budget:
        play(theta)
        if len(returns) == 1:
            play(theta + REACH * rng.uniform(-1, 1, size=task.n))
        for _ in range(task.n):
            play(process().choose(theta, rng, rule == "mpd"))
        found, unit = process(), REACH * np.sqrt(task.n)
        if rule == "mpd":
            for _ in range(STEPS):
                mu, S = found.gradient(theta)
                d = np.linalg.solve(S, mu)
                if mu @ d < QUANTILE**2:
                    break
                theta = theta + SHORT * unit * d / np.linalg.norm(d)
        elif rule == "gibo":
            mu, _ = found.gradient(theta)
            theta = theta + STEP * unit * mu / (np.linalg.norm(mu) or 1.0)
        else:
            theta = found.highest_bound(theta, rng)
        yield len(returns), sum(lengths), theta


def turbo(task: Any, seed: int, budget: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """TuRBO with one region: Thompson sampling among points of a box around the best parameters,
    which doubles after `SUCCESSES` better ones in a row and halves after max(n, 4) that are not."""
    rng, side, won, lost = np.random.default_rng(seed), SIDE, 0, 0
    tried, returns, lengths, play = episodes_of(task, seed)
    play(np.zeros(task.n))
    for _ in range(min(DESIGN * task.n, budget - 1)):  # the first design
        play(rng.uniform(-1, 1, size=task.n))
    since = 0
    """The episode from which the current region counts."""
    while True:
        best = since + int(np.argmax(returns[since:]))
        yield len(returns), sum(lengths), tried[int(np.argmax(returns))]
        if len(returns) >= budget:
            return
        latest = slice(max(since, len(returns) - KEPT), None)
        found = Process(np.array(tried[latest]), np.array(returns[latest]))
        C = np.repeat(tried[best][None], CANDIDATES, 0)
        changed = rng.random(C.shape) < min(1.0, 20 / task.n)
        changed[np.arange(len(C)), rng.integers(task.n, size=len(C))] = True
        C = np.clip(C + changed * side / 2 * rng.uniform(-1, 1, size=C.shape), -1, 1)
        play(found.sampled(C, rng))
        better = returns[-1] > returns[best] + 1e-3 * abs(returns[best])
        won, lost = (won + 1, 0) if better else (0, lost + 1)
        if won == SUCCESSES:
            side, won = min(2 * side, 3.2), 0
        elif lost == max(task.n, 4):
            side, lost = side / 2, 0
        if side < 0.5**6:  # begin again elsewhere
            side, won, lost, since = SIDE, 0, 0, len(returns)
            for _ in range(min(DESIGN * task.n, max(budget - len(returns), 1))):
                play(rng.uniform(-1, 1, size=task.n))
