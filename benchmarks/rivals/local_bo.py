"""GIBO and MPD, local Bayesian optimisation with posteriors of the gradient, rebuilt in NumPy.

GIBO (Müller, von Rohr and Trimpe 2021) evaluates the current parameters and then, n times, the
point of the box theta +- `REACH` that lowers the trace of the gradient's posterior covariance
most; it then takes a step of fixed length along the mean of the gradient. MPD (Nguyen et al. 2022)
chooses points by the expected probability of descent after them, and moves along the most probable
ascent S^-1 mu in short steps while the probability is at least 0.65. Both model the return by a
Gaussian process with a squared exponential kernel, refitted by maximum a posteriori every iteration
to the latest `KEPT` evaluations.

What differs from the authors' programs: one length for all parameters, on a grid; the acquisition
is maximised over random candidates rather than by gradient steps; in place of their normalisation
of states, observations have the units that `Gains` gives to every rival.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

REACH, STEP = 0.2, 0.25
"""Half the width of the box, and GIBO's step, in units of the box's root n."""
SHORT, STEPS, QUANTILE = 0.05, 20, 0.385
"""MPD's steps, in the same units, how many at most, and the quantile of 0.65."""
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


def local_bo(
    task: Any, seed: int, budget: int, probable: bool
) -> Iterator[tuple[int, int, np.ndarray]]:
    """GIBO, or MPD where `probable`: episodes, steps and parameters after every iteration."""
    rng, theta = np.random.default_rng(seed), np.zeros(task.n)
    tried, returns, steps = [], [], 0

    def play(x: np.ndarray) -> int:
        value, length = task.play(x, 1000 * seed + len(returns))
        tried.append(x.copy())
        returns.append(value)
        return length

    def process() -> Process:
        return Process(np.array(tried[-KEPT:]), np.array(returns[-KEPT:]))

    while len(returns) < budget:
        steps += play(theta)
        if len(returns) == 1:
            steps += play(theta + REACH * rng.uniform(-1, 1, size=task.n))
        for _ in range(task.n):
            steps += play(process().choose(theta, rng, probable))
        found, unit = process(), REACH * np.sqrt(task.n)
        if probable:
            for _ in range(STEPS):
                mu, S = found.gradient(theta)
                d = np.linalg.solve(S, mu)
                if mu @ d < QUANTILE**2:
                    break
                theta = theta + SHORT * unit * d / np.linalg.norm(d)
        else:
            mu, _ = found.gradient(theta)
            theta = theta + STEP * unit * mu / (np.linalg.norm(mu) or 1.0)
        yield len(returns), steps, theta
