"""`Search`: ask for parameters to try, tell what they returned.

    >>> search = Search(16, seed=0)
    >>> while search.episodes < 100:
    ...     parameters = search.ask()
    ...     search.tell(parameters, [play(theta) for theta in parameters])
    >>> search.best

Nothing here plays episodes: the returns may come from a robot, at a later time, and in any order.
"""

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bayespg._support import checks, files
from bayespg.posterior import LARGE, GradientPosterior
from bayespg.search import process
from bayespg.search.smoothed import (
    certainty,
    check_distances,
    check_mean,
    gradient_posterior,
)

Array = np.ndarray
MEMORY = 500
"""The number of latest episodes that a search remembers."""
NEAR, LATEST = 96, 24
"""The number of remembered episodes that decisions use, which bounds their cost: the latest ones,
and of all others those nearest to the mean."""
SCALE = 0.2
"""The standard deviation of the first perturbations."""
REACH = 1.4
"""On a sphere, the typical length of the first perturbations before they are brought back to it; it
does not get longer, as even these directions are nearly independent of the mean's."""
WIDEST = 1000.0
"""The largest scale that the search adapts to, in units of the first. Without a bound it would
double for as long as all returns are equal, until parameters overflow."""
STEP = 0.15
"""Length of a step of the mean, in units of scale sqrt(n), the typical length of a perturbation."""
STEPS = 8
"""The most steps after one `tell`; else there is one for each episode."""
CONFIDENCE = 0.385
"""The mean stays where the slope is less than this many standard deviations of its posterior, which
is where a step would go uphill with a probability of less than 0.65."""
SIGNAL = 0.5
"""A step is shorter where the slope times the scale is less than this many standard deviations of
the noise: most directions look uphill to the episodes that chose them, and noise would carry the
mean away."""
UNKNOWN = 0.1
"""On a sphere the mean becomes zero again if the slope is less than this many standard deviations
of its posterior and the scale is still the first: these episodes say nothing about where to go."""
DIRECTIONS, LENGTHS = 8, 7
"""Candidates lie in this many directions, at this many distances in each."""
DISTANCES = (0.5, 1.5)
"""The least and the greatest distance in units of scale sqrt(n). Candidates close to the mean would
return nearly the same, and noise would hide the difference."""
OPTIMISM = 3.0
"""A candidate's promise is its mean plus this many standard deviations."""
WON, LOW, HIGH = 12, 0.05, 0.8
"""The scale follows the share of the latest `WON` episodes that returned more than is expected of
the mean: it narrows from `LOW` on, as on a peak that is narrower than the scale, and widens from
`HIGH` on. On a slope or on noise about half of them do."""
NARROWER, WIDER = 0.8, 1.25
"""The factors of the scale."""
TIES = 3
"""The highest return counts as more than expected only until this many episodes have had it: on a
task that is solved nothing is better."""
REFIT = 8
"""From `SEVERAL` episodes on, lengths and noise of the process are weighed again after every
`REFIT` episodes."""
SEVERAL = 24
ROUNDING = 1e-12
"""How far lengths may be from the radius, relative to it."""
MOST = 10**8
"""The most numbers in the covariance of a gradient, 800 MB."""
FORMAT = "bayespg-search-6"


class Search:
    """Search for parameters of high return, by the posterior of the return.

    `start` is the number of parameters (the search then starts at zero) or the vector to start
    from. `scale` is the standard deviation of the first perturbations, in the units of the
    parameters; it adapts, to at most `WIDEST` times the first. Parameters should have comparable
    units: a change of `scale` in each should matter about equally.

    The first parameters to try are `start`. Then a Gaussian process models the returns. After every
    episode the mean makes a short step along the most probable ascent. The next parameters lie some
    way from it, in a direction drawn from the posterior of the gradient: of a few directions and
    distances the one whose return is highest by the posterior's mean plus three deviations.
    Parameters that were asked for and not told yet are taken into account: their returns are
    unknown, but another episode near them would say little. So any number of episodes may be under
    way.

    `sphere` says that the return depends on the direction of the parameters alone, as where a
    policy takes the choice of the highest linear score. All parameters are then unit vectors, and
    the first is random where `start` is zero. `radius` says that vectors which are longer act like
    those of this length, as where actions are limited: longer ones are shortened. Among actions at
    their limits all directions look alike, and a search that got there would stay.
    """

    def __init__(
        self,
        start: int | Float[Array, " n"],
        *,
        scale: float | None = None,
        memory: int = MEMORY,
        sphere: bool = False,
        radius: float | None = None,
        seed: int = 0,
    ):
        if isinstance(start, int | float | np.number):
            mean = np.broadcast_to(0.0, checks.whole("start", start, 1))
        else:
            mean = checks.array("start", start)
            if mean.ndim != 1 or not mean.size:
                raise ValueError(
                    "start: expected a number of parameters or a vector of them, found shape "
                    f"{mean.shape}"
                )
        if mean.size**2 > MOST:
            raise ValueError(
                f"start: {mean.size:,} parameters are too many, the covariance of their "
                f"gradient would be {mean.size**2:,} numbers, and at most {MOST:,} are supported"
            )
        self.sphere = checks.flag("sphere", sphere)
        self.radius = math.inf if radius is None else checks.real("radius", radius, above=0)
        if self.sphere and radius is not None:
            raise ValueError(f"radius: {radius:g} has no effect on a sphere; give one of the two")
        self.mean = self.placed(mean)
        """Where perturbations are centred now."""
        reach = REACH / math.sqrt(self.n)
        if scale is None:
            scale = reach if self.sphere else SCALE
        self.scale = checks.deviation("scale", scale)
        wide = min(WIDEST * self.scale, max(self.radius / math.sqrt(self.n), self.scale))
        self._widest = reach if self.sphere else wide
        check_mean("start", self.mean, self.scale)
        if self.scale > self._widest:
            raise ValueError(
                f"scale: expected at most {self._widest:.3g} on a sphere of {self.n} dimensions, "
                f"found {self.scale:g}; perturbations of that size have any direction already"
            )
        self.memory = checks.whole("memory", memory, 6)
        self.seed = checks.whole("seed", seed, 0)
        self._tried, self._returns = np.empty((0, self.n)), np.empty(0)
        self._waiting: list[Array] = []
        """Asked for and not told yet."""
        self._asked = 0
        """How often a random vector was drawn."""
        self._weights: process.Weights | None = None
        """What the evidence said of lengths and noise when it was last weighed."""
        self._process: process.Process | None = None
        self._unit = (reach if self.sphere else self.scale) * math.sqrt(self.n)
        """Lengths are in units of the typical distance of the first perturbations."""
        self._anchor = self.mean.copy()
        """The mean before the latest decision, which used the episodes near it."""
        self._best = self.mean.copy()
        self._wins: list[float] = []
        """Whether the latest episodes returned more than was expected of the mean."""

    @property
    def n(self) -> int:
        """Number of parameters."""
        return self.mean.size

    @property
    def episodes(self) -> int:
        """Episodes told, failed ones included."""
        return self._returns.size

    @property
    def parameters(self) -> Float[Array, "M n"]:
        """All parameters told, in the order in which they were told."""
        return self._tried.copy()

    @property
    def returns(self) -> Float[Array, " M"]:
        """Their returns; NaN for failed episodes."""
        return self._returns.copy()

    @property
    def best(self) -> Float[Array, " n"]:
        """The parameters to use: those of greatest expected smoothed return by the posterior, of
        the mean and all that decisions use."""
        return self._best.copy()

    @property
    def posterior(self) -> GradientPosterior:
        """The posterior of the gradient of E[R(theta)], theta ~ N(mean, scale^2 I), at the mean,
        from the episodes that decisions use. Raises ValueError while there are too few of them, or
        if all their returns are equal."""
        X, y = self._near()
        if y.size < 2:
            raise ValueError(
                f"returns: {y.size} known, and a posterior needs two or more; tell more of them"
            )
        return gradient_posterior(X, y, mean=self.mean, scale=self.scale)

    def certainty(self) -> tuple[float, float]:
        """`smoothed.certainty` of the gradient at the mean: a slope in standard deviations, and the
        probability of going uphill. They are 0 and 0.5 while there is no posterior, and beyond
        2048 parameters; decisions use neither."""
        if self._process is None or self.n > LARGE:
            return 0.0, 0.5
        X, y = self._near()
        return certainty(X, y, mean=self.mean, scale=self.scale)

    @property
    def return_at_best(self) -> float:
        """The return of the latest episode with the best parameters so far; NaN before it."""
        same = (self._tried == self._best).all(1) & ~np.isnan(self._returns)
        return float(self._returns[same][-1]) if same.any() else math.nan

    def ask(self, k: int = 1) -> Float[Array, "k n"]:
        """The k parameters to try now: those that were asked for and not told yet, and as many new
        ones as are missing. Until they are told, `ask` returns the same parameters."""
        k = checks.whole("k", k, 1)
        while len(self._waiting) < k:
            self._waiting.append(self._next())
        return np.array(self._waiting[:k])

    def _next(self) -> Float[Array, " n"]:
        """The most promising candidate, given what was told and what is waiting."""
        if not self.episodes and not self._waiting and (self.mean.any() or not self.sphere):
            return self.mean.copy()
        rng = np.random.default_rng([self.seed, self._asked])
        self._asked += 1
        if self._process is None:  # equal returns, or none: look both ways
            opposite = self._asked % 2 == 0 and not self.sphere
            rng = np.random.default_rng([self.seed, self._asked - 2]) if opposite else rng
            e = rng.normal(size=self.n)
            away = (-e if opposite else e) * self.scale
            return self.placed(e if self.sphere else self.mean + away)
        return self._promising(rng)

    def _promising(self, rng: np.random.Generator) -> Float[Array, " n"]:
        """Of directions drawn from the posterior of the gradient, at several distances, the one of
        the highest bound."""
        model = self._process
        assert model is not None
        if self._waiting:
            model = model.expecting(np.array(self._waiting))
        part = int(rng.choice(len(model.share), p=model.share))
        D = model.slope(self.mean, 0.0, part).drawn(rng.normal(size=(DIRECTIONS, self.n)))
        if self.sphere:
            D = D - np.outer(D @ self.mean, self.mean)
        sizes = np.linalg.norm(D, axis=1, keepdims=True)
        D = D / np.where(sizes > 0, sizes, 1.0)
        distances = np.linspace(*DISTANCES, LENGTHS)[:, None, None]
        away = distances * self.scale * math.sqrt(self.n) * D
        candidates = self.placed((self.mean + away).reshape(-1, self.n))
        return candidates[np.argmax(model.bound(candidates, OPTIMISM))]

    def placed(self, parameters: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """The parameters as they are, no longer than the radius, or on the sphere. Zero stays zero,
        and what was placed stays exactly what it is."""
        if not self.sphere and self.radius == math.inf:
            return parameters.copy()
        lengths = np.linalg.norm(parameters, axis=-1, keepdims=True)
        limit = 1.0 if self.sphere else self.radius
        away = lengths - limit > ROUNDING * limit
        if self.sphere:
            away |= (lengths > 0) & (1 - lengths > ROUNDING)
        return parameters / np.where(away, lengths / limit, 1.0)

    def tell(self, parameters: Float[Array, "*k n"], returns: float | Float[Array, " k"]) -> None:
        """What episodes returned: one vector and a number, or rows and one number per row.

        NaN or None means that the episode failed: it is recorded and otherwise ignored. Parameters
        that did not come from `ask` are accepted too, also before the first `ask`. Either all is
        taken or, with a ValueError, nothing.
        """
        X = checks.array("parameters", parameters)
        y = _returns(returns)
        if X.shape[-1:] != (self.n,) or X.ndim > 2:
            raise ValueError(
                f"parameters: expected shape ({self.n},) or (k, {self.n}), found {X.shape}"
            )
        if y.shape != X.shape[:-1]:
            raise ValueError(
                f"returns: expected shape {X.shape[:-1]}, one per row of parameters, found "
                f"{y.shape}"
            )
        placed = self.placed(X.reshape(-1, self.n))
        check_distances("parameters", placed, self.mean, self.scale)
        self._tried = np.concatenate([self._tried, placed])
        self._returns = np.append(self._returns, y)
        for theta in placed:
            for i, waiting in enumerate(self._waiting):
                if np.array_equal(waiting, theta):
                    del self._waiting[i]
                    break
        new = int(np.sum(~np.isnan(y)))
        if new:
            self._decide(new)

    def _decide(self, new: int) -> None:
        """Fit the process, adapt the scale, move the mean and choose the best parameters, after
        `new` episodes that did not fail."""
        self._anchor = self.mean.copy()
        X, y = self._near()
        if y.min() == y.max():  # equal returns carry no information; look further away
            self._process = None
            if self.sphere:
                self.mean = self._best = X[-1].copy()
            elif y.size > 2 and y.size % 2:  # the start, and pairs of opposite perturbations
                self._scaled(2.0)
            return
        self._fit(X, y)
        assert self._process is not None
        self._adapt(y, new)
        for _ in range(min(new, STEPS)):
            self._climb()
        known = np.concatenate([self.mean[None], X])
        self._best = known[np.argmax(self._process.smoothed(known, self.scale))]

    def _adapt(self, y: Float[Array, " M"], new: int) -> None:
        """Adapt the scale to the share of episodes that returned more than expected of the mean."""
        assert self._process is not None
        won = self._process.returns[-new:] > self._process.mean(self.mean[None])
        if np.sum(y == y.max()) >= TIES:
            won &= y[-new:] < y.max()
        self._wins = [*self._wins, *won.astype(float)][-WON:]
        share = float(np.mean(self._wins))
        if len(self._wins) == WON and not LOW < share < HIGH:
            self._scaled(NARROWER if share <= LOW else WIDER)
            self._wins = self._wins[WON // 2 :]

    def _climb(self) -> None:
        """A step along the most probable ascent of the smoothed return."""
        assert self._process is not None
        part = self._process.likely
        slope = self._process.slope(self.mean, self.scale, part)
        d, deviations = slope.ascent()
        length, size = np.linalg.norm(d), np.linalg.norm(slope.mean)
        if deviations < UNKNOWN and self.sphere and self.scale == self._widest:
            self.mean = np.zeros(self.n)
        elif deviations >= CONFIDENCE and length > 0:
            signal = self.scale * size / math.sqrt(self._process.noise[part])
            step = STEP * self.scale * math.sqrt(self.n) * min(1.0, signal / SIGNAL)
            self.mean = self.placed(self.mean + step / length * d)

    def _fit(self, X: Float[Array, "M n"], y: Float[Array, " M"], again: bool = False) -> None:
        """The process of returns, `again` with the weights of the latest decision."""
        rest = again or (y.size >= SEVERAL and self.episodes % REFIT > 0)
        if self._weights is None or not rest:
            self._weights = process.weigh(X - self._anchor, y, self._unit)
        self._process = process.fit(X, y, self._anchor, self._unit, self._weights)

    def _scaled(self, factor: float) -> None:
        self.scale = min(self.scale * factor, self._widest)

    def rescale(self, factors: Float[Array, " n"]) -> None:
        """Change the units of the parameters: the mean and everything asked or tried are multiplied
        by `factors`. The scale stays; it now holds in the new units."""
        factors = checks.positive("factors", factors, ((self.n,),))
        rows = np.array([self.mean, self._best, self._anchor, *self._waiting])
        rows = np.concatenate([rows, self._tried])
        with np.errstate(over="ignore"):
            rows = checks.sound("factors", self.placed(rows * factors))
        check_mean("factors", rows[0], self.scale)
        check_distances("factors", rows, rows[0], self.scale)
        first = 3 + len(self._waiting)
        (self.mean, self._best, self._anchor), self._tried = rows[:3], rows[first:]
        self._waiting = list(rows[3:first])
        if self._process is not None:
            self._fit(*self._near(), again=True)

    def arrays(self) -> dict[str, Array]:
        """While nothing is waiting, everything that decisions depend on, in arrays of fixed
        shapes."""
        X, y = self._remembered()
        left, won = self.memory - y.size, WON - len(self._wins)
        view, weights = self._weighed
        return {
            "tried": np.pad(X, ((0, left), (0, 0))),
            "returns": np.pad(y, (0, left), constant_values=np.nan),
            "mean": self.mean.copy(), "best": self._best.copy(), "anchor": self._anchor.copy(),
            "wins": np.pad(self._wins, (0, won), constant_values=np.nan),
            "scale": np.array(self.scale), "weights": weights,
            "counts": np.array([self._asked, view]),
        }  # fmt: skip

    @property
    def _weighed(self) -> process.Weights:
        """What the evidence said of lengths and noise; a view of -1 before it was asked."""
        return self._weights or process.Weights(-1, np.zeros(process.PRIOR.shape))

    def take(self, arrays: dict[str, Array]) -> None:
        """Continue from `arrays`."""
        known, wins = ~np.isnan(arrays["returns"]), np.asarray(arrays["wins"])
        self._tried = np.array(arrays["tried"])[known]
        self._returns = np.array(arrays["returns"])[known]
        self.mean, self._anchor = np.array(arrays["mean"]), np.array(arrays["anchor"])
        self._best, self._wins = np.array(arrays["best"]), wins[~np.isnan(wins)].tolist()
        self.scale = float(arrays["scale"])
        self._asked, view = map(int, arrays["counts"])
        self._waiting = []
        self._again(view, np.array(arrays["weights"]))

    def _again(self, view: int, weights: Float[Array, "l r"]) -> None:
        """The process of the latest decision."""
        self._weights = None if view < 0 else process.Weights(view, weights)
        X, y = self._near()
        self._process = None
        if self._weights is not None and y.size and y.min() < y.max():
            self._fit(X, y, again=True)

    def _remembered(self) -> tuple[Array, Array]:
        """The latest episodes that did not fail."""
        kept = np.flatnonzero(~np.isnan(self._returns))[-self.memory :]
        return self._tried[kept], self._returns[kept]

    def _near(self) -> tuple[Array, Array]:
        """Of these, the ones that decisions use."""
        X, y = self._remembered()
        if y.size <= NEAR:
            return X, y
        away = np.sum((X[:-LATEST] - self._anchor) ** 2, 1)
        nearest = np.sort(np.argpartition(away, NEAR - LATEST)[: NEAR - LATEST])
        kept = np.r_[nearest, np.arange(y.size - LATEST, y.size)]
        return X[kept], y[kept]

    def save(self, path: str | Path) -> None:
        """Write the search to one .npz file, atomically and without pickling."""
        header = {
            "format": FORMAT, "memory": self.memory, "sphere": self.sphere, "seed": self.seed,
            "radius": None if self.radius == math.inf else self.radius,
            "scale": self.scale, "unit": self._unit, "widest": self._widest,
            "asked": self._asked,
            "view": self._weighed.view, "wins": self._wins,
        }  # fmt: skip
        file = io.BytesIO()
        np.savez(
            file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), mean=self.mean,
            best=self._best, anchor=self._anchor, tried=self._tried, returns=self._returns,
            waiting=np.array(self._waiting).reshape(-1, self.n), weights=self._weighed.of,
        )  # fmt: skip
        files.write_whole(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "Search":
        """A search as it was saved; it continues exactly as the original would have.

        The file may come from anywhere: nothing in it is decompressed or unpickled, and the sizes
        and values of all arrays are checked before anything is made of them."""
        content = files.read(Path(path))
        try:
            stored = files.read_arrays(content)
            header = json.loads(stored.pop("header").tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']!r:.40}")
            n, M, k = stored["mean"].size, stored["returns"].size, len(stored["waiting"])
            shapes = {
                "mean": (n,), "best": (n,), "anchor": (n,), "tried": (M, n), "returns": (M,),
                "waiting": (k, n), "weights": process.PRIOR.shape,
            }  # fmt: skip
            if {name: array.shape for name, array in stored.items()} != shapes:
                raise ValueError("its arrays do not fit together")
            if any(array.dtype != np.float64 for array in stored.values()):
                raise ValueError("its arrays are not of double precision")
            search = cls(
                stored["mean"], scale=header["scale"], memory=header["memory"],
                sphere=header["sphere"], radius=header["radius"], seed=header["seed"],
            )  # fmt: skip
            search._anchor = checks.array("anchor", stored["anchor"])
            search._best = checks.array("best", stored["best"])
            search._wins = [checks.fraction("wins", w) for w in header["wins"]]
            if len(search._wins) > WON:
                raise ValueError(f"wins: expected at most {WON}, found {len(search._wins)}")
            search._unit = checks.deviation("unit", header["unit"])
            search._tried = checks.array("tried", stored["tried"])
            search._waiting = list(checks.array("waiting", stored["waiting"]))
            search._returns = _returns(stored["returns"])
            search._widest = checks.real("widest", header["widest"], above=0)
            search._asked = checks.whole("asked", header["asked"], 0)
            view = checks.whole("view", header["view"], -1, 1)
            search._again(view, checks.array("weights", stored["weights"]))
        except Exception as problem:  # a damaged file can raise almost anything
            raise ValueError(f"{path}: not a saved Search ({problem}); use a copy") from problem
        return search


def _returns(given: Any) -> Array:
    """Returns in float64, NaN and None allowed and infinity not."""
    values = checks.unmasked("returns", given)
    if values.dtype == object:
        entries = [np.nan if r is None else r for r in values.reshape(-1)]
        values = checks.numbers("returns", entries).reshape(values.shape)
    values = checks.numbers("returns", values)
    if np.isinf(values).any():
        raise ValueError(
            "returns: infinite; give NaN for an episode that failed, or the lowest possible return"
        )
    return values
