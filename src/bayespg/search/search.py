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
from bayespg._support.precision import in_float64
from bayespg.posterior import GradientPosterior
from bayespg.search import ascent
from bayespg.search.smoothed import BLOCK, check_distances, check_mean, gradient_posterior

Array = np.ndarray
MEMORY = 96
"""The number of latest episodes that decisions use, which bounds their cost."""
SCALE = 0.2
"""The standard deviation of the first perturbations."""
REACH = 1.4
"""On a sphere, the typical length of the first perturbations before they are brought back to it; it
does not get longer, as even these directions are nearly independent of the mean's."""
WIDEST = 1000.0
"""The largest scale that the search adapts to, in units of the first. Without a bound it would
double for as long as all returns are equal, until parameters overflow."""
UNKNOWN = 0.1
"""On a sphere the mean becomes zero again if the slope is less than this many standard deviations
of its posterior and the scale is still the first: these episodes say nothing about where to go."""
LATEST = 12
"""The number of latest perturbations from which the scale adapts."""
NARROWER, WIDER = 0.8, 1.25
"""The factors of the scale: the first applies if none of these perturbations did better than the
mean, as on a peak that is narrower than the scale; the second if nearly all did. On a slope or on
noise about half of them do, and the scale stays."""
LEAST, PER_PAIR = 2, 12
"""A round has one pair of perturbations, and one more per `PER_PAIR` parameters, but at least
`LEAST` pairs (fewer where there are fewer parameters)."""
DRAWS = ("uphill", "active", "orthogonal", "antithetic")
"""How perturbations are drawn; the first is the default."""
ROUNDING = 1e-12
"""How far the length of a unit vector may be from one."""
MOST = 10**8
"""The most numbers in the directions of a round, 800 MB."""
FORMAT = "bayespg-search-3"


class Search:
    """Search for parameters of high return, by the posterior of the gradient.

    `start` is the number of parameters (the search then starts at zero) or the vector to start
    from. `scale` is the standard deviation of the first perturbations, in the units of the
    parameters; it adapts, to at most `WIDEST` times the first. A round tries perturbations of the
    mean, and the mean itself. Parameters should have comparable units: a change of `scale` in each
    should matter about equally.

    `draws` says how the perturbations of a round are chosen: "antithetic" ones are pairs
    mean +- scale e along independent random directions e, "orthogonal" ones are pairs along
    orthogonal directions, "uphill" ones (the default) are twice as many orthogonal directions, each
    on the side where the posterior has the higher return, and "active" ones are the same near the
    directions in which the gradient is known least. The first round is of pairs in any case.

    `sphere` says that the return depends on the direction of the parameters alone, as where a
    policy takes the choice of the highest linear score. All parameters are then unit vectors. As
    long as the mean is zero, which has no direction, a round has a random one in its place.
    """

    def __init__(
        self,
        start: int | Float[Array, " n"],
        *,
        scale: float | None = None,
        memory: int = MEMORY,
        draws: str = DRAWS[0],
        sphere: bool = False,
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
        if math.prod(_axes(mean.size)) > MOST:
            raise ValueError(
                f"start: {mean.size:,} parameters are too many, the directions of one round would "
                f"be {math.prod(_axes(mean.size)):,} numbers, and at most {MOST:,} are supported"
            )
        self.sphere = checks.flag("sphere", sphere)
        self.mean = self._placed(mean)
        """Where perturbations are centred now."""
        self._best = self.mean.copy()
        reach = REACH / math.sqrt(self.n)
        if scale is None:
            scale = reach if self.sphere else SCALE
        self.scale = checks.deviation("scale", scale)
        self._widest = reach if self.sphere else WIDEST * self.scale
        check_mean("start", self.mean, self.scale)
        if self.scale > self._widest:
            raise ValueError(
                f"scale: expected at most {self._widest:.3g} on a sphere of {self.n} dimensions, "
                f"found {self.scale:g}; perturbations of that size have any direction already"
            )
        self.memory = checks.whole("memory", memory, 6)
        self.draws = checks.one_of("draws", draws, DRAWS)
        self.seed = checks.whole("seed", seed, 0)
        self.rounds = 0
        """The number of complete rounds."""
        self.steps, self.slope = 0, 0.0
        """The number of steps after the last round, and the slope along the first of them in
        standard deviations of its posterior. It is optimistic, because the same episodes chose the
        direction."""
        self.probability = 0.5
        """The probability of going uphill along the gradient at the mean before the last round's
        steps, judged by episodes that did not choose it. Decisions do not use it."""
        self._tried, self._returns = np.empty((0, self.n)), np.empty(0)
        self._asked = np.empty((0, self.n))
        """The current round."""
        self._answers: list[float | None] = []
        self._wins: list[float] = []
        self._axes = np.full(_axes(self.n), np.nan)
        """Uphill directions for the next round; NaN where there are none yet."""

    @property
    def n(self) -> int:
        """Number of parameters."""
        return self.mean.size

    @property
    def pairs(self) -> int:
        """Pairs of perturbations per round."""
        return _pairs(self.n)

    @property
    def episodes(self) -> int:
        """Episodes told, failed ones included."""
        return len(self._returns)

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
        """The parameters to use: those of greatest smoothed return by the posterior, among the mean
        and all parameters in memory."""
        return self._best.copy()

    @property
    def posterior(self) -> GradientPosterior:
        """The posterior of the gradient of E[R(theta)], theta ~ N(mean, scale^2 I), at the mean,
        from the episodes in memory. Raises ValueError while there are too few of them, or if all
        their returns are equal."""
        X, y = self._memory()
        if y.size < 2:
            raise ValueError(f"returns: {y.size} episodes that did not fail, two are the least")
        return gradient_posterior(X, y, mean=self.mean, scale=self.scale)

    def ask(self) -> Float[Array, "k n"]:
        """The parameters of the current round that have not been told yet: perturbations of the
        mean, and the mean. Until they are told, `ask` returns the same parameters."""
        if not self._answers:
            e = self._normals()
            lengths = np.linalg.norm(e, axis=1, keepdims=True)
            if not np.isnan(self._axes).any():
                e = lengths * self._axes
            else:
                e, lengths = e[: self.pairs], lengths[: self.pairs]
                if self.draws != "antithetic":
                    e = lengths * np.linalg.qr(e.T)[0].T
            e = np.concatenate([e, -e])[: 2 * self.pairs]
            centre = self.mean if self.centred else self._normals()[-1]
            self._asked = self._placed(np.stack([*(self.mean + self.scale * e), centre]))
            self._answers = [None] * len(self._asked)
        return self._asked[[answer is None for answer in self._answers]]

    @property
    def centred(self) -> bool:
        """Whether the next round tries the mean too."""
        return not self.sphere or bool(self.mean.any())

    def _placed(self, parameters: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """The parameters as they are, or on the sphere. Zero stays zero, and a unit vector stays
        exactly what it is."""
        if not self.sphere:
            return parameters.copy()
        lengths = np.linalg.norm(parameters, axis=-1, keepdims=True)
        away = (lengths > 0) & (np.abs(lengths - 1) > ROUNDING)
        return parameters / np.where(away, lengths, 1.0)

    def _normals(self) -> Float[Array, "d n"]:
        """The random numbers of the next round."""
        return np.random.default_rng([self.seed, self.rounds]).normal(size=self._axes.shape)

    def tell(self, parameters: Float[Array, "*k n"], returns: float | Float[Array, " k"]) -> None:
        """What episodes returned: one vector and a number, or rows and one number per row.

        NaN means that the episode failed: it is recorded and otherwise ignored. Parameters that
        did not come from `ask` are accepted too, also before the first `ask`.
        Once the whole round is told, the mean and the scale move. Either all is taken or, with a
        ValueError, nothing.
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
        placed = self._placed(X.reshape(-1, self.n))
        check_distances("parameters", placed, self.mean, self.scale)
        self._tried = np.concatenate([self._tried, placed])
        self._returns = np.append(self._returns, y)
        for theta, value in zip(placed, y.reshape(-1), strict=True):
            for i, asked in enumerate(self._asked):
                if self._answers[i] is None and np.array_equal(asked, theta):
                    self._answers[i] = float(value)
                    break
        if None not in self._answers:
            self._decide()

    def _decide(self) -> None:
        """Move the mean and adapt the scale, after a round or after episodes from elsewhere."""
        X, y = self._memory()
        self.steps, self.slope, self.probability = 0, 0.0, 0.5
        self._axes[:] = np.nan
        self.rounds += bool(self._answers)
        if y.size and np.ptp(y) > 0:
            padding = -y.size % BLOCK
            taken = np.arange(y.size + padding) < y.size
            views, jacobian = ascent.views(y)
            move = in_float64(ascent.move)(
                np.pad(X, ((0, padding), (0, 0))), np.pad(views, ((0, 0), (0, padding))), jacobian,
                taken, self.mean, np.float64(self.scale), self._normals(),
                self.draws == "active",
            )  # fmt: skip
            centred = self.centred
            if np.isfinite(move.mean).all():
                self.mean, self._best = map(self._placed, np.array([move.mean, move.best]))
                if self.draws in ("uphill", "active"):
                    self._axes = np.array(move.axes)
                self.steps = int(move.steps)
                self.slope, self.probability = float(move.slope), float(move.sure)
            if centred:
                self._adapt()
            if self.sphere and self.slope < UNKNOWN and self.scale == self._widest:
                self.mean = np.zeros(self.n)
        elif y.size:  # equal returns carry no information; look further away
            self._scaled(2.0)
        self._asked, self._answers = self._asked[:0], []

    def _adapt(self) -> None:
        """Adapt the scale to the fraction of perturbations that did better than the mean."""
        if not self._answers:
            return
        *pair, centre = (float("nan") if a is None else a for a in self._answers)
        won = [np.nan if np.isnan(r - centre) else 0.5 + 0.5 * np.sign(r - centre) for r in pair]
        self._wins = [*self._wins, *(w for w in won if not np.isnan(w))][-LATEST:]
        if len(self._wins) == LATEST:
            share = float(np.mean(self._wins))
            self._scaled(NARROWER if share == 0 else WIDER if share > 0.8 else 1.0)

    def _scaled(self, factor: float) -> None:
        self.scale = min(self.scale * factor, self._widest)

    def restart(self) -> None:
        """Discard what was asked but not told; the next `ask` begins a new round."""
        self.rounds += bool(self._answers)
        self._asked, self._answers = self._asked[:0], []
        self._axes[:] = np.nan

    def rescale(self, factors: Float[Array, " n"]) -> None:
        """Change the units of the parameters: the mean and everything asked or tried are multiplied
        by `factors`. The scale stays; it now holds in the new units."""
        factors = checks.positive("factors", factors, ((self.n,),))
        with np.errstate(over="ignore"):
            mean, best, tried, asked = (
                checks.sound("factors", self._placed(theta * factors))
                for theta in (self.mean, self._best, self._tried, self._asked)
            )
        check_mean("factors", mean, self.scale)
        check_distances("factors", np.vstack([mean, best, tried, asked]), mean, self.scale)
        self.mean, self._best, self._tried, self._asked = mean, best, tried, asked

    def arrays(self) -> dict[str, Array]:
        """Between two rounds, everything that decisions depend on, in arrays of fixed shapes."""
        X, y = self._memory()
        left, wins = self.memory - y.size, LATEST - len(self._wins)
        return {
            "tried": np.pad(X, ((0, left), (0, 0))),
            "returns": np.pad(y, (0, left), constant_values=np.nan),
            "wins": np.pad(self._wins, (0, wins), constant_values=np.nan),
            "mean": self.mean.copy(), "best": self._best.copy(), "scale": np.array(self.scale),
            "axes": self._axes.copy(),
            "rounds": np.array(self.rounds), "slope": np.array(self.slope),
        }  # fmt: skip

    def take(self, arrays: dict[str, Array]) -> None:
        """Continue from `arrays`."""
        known, wins = ~np.isnan(arrays["returns"]), np.asarray(arrays["wins"])
        self._tried, self._returns = (np.array(arrays[k])[known] for k in ("tried", "returns"))
        self._wins = wins[~np.isnan(wins)].tolist()
        self.mean, self._best = np.array(arrays["mean"]), np.array(arrays["best"])
        self.scale, self._axes = float(arrays["scale"]), np.array(arrays["axes"])
        self.rounds, self.slope = int(arrays["rounds"]), float(arrays["slope"])
        self._asked, self._answers = self._asked[:0], []

    def _memory(self) -> tuple[Array, Array]:
        """The latest episodes that did not fail."""
        kept = np.flatnonzero(~np.isnan(self._returns))[-self.memory :]
        return self._tried[kept], self._returns[kept]

    def save(self, path: str | Path) -> None:
        """Write the search to one .npz file, atomically and without pickling."""
        header = {
            "format": FORMAT, "memory": self.memory, "draws": self.draws, "sphere": self.sphere,
            "seed": self.seed, "rounds": self.rounds, "scale": self.scale, "steps": self.steps,
            "widest": self._widest,
            "slope": self.slope, "wins": self._wins, "answers": self._answers,
            "probability": self.probability,
        }  # fmt: skip
        file = io.BytesIO()
        np.savez(
            file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), mean=self.mean,
            best=self._best, axes=self._axes, tried=self._tried, returns=self._returns,
            asked=self._asked,
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
            n, M, k = stored["mean"].size, stored["returns"].size, len(header["answers"])
            shapes = {
                "mean": (n,), "best": (n,), "axes": _axes(n), "tried": (M, n), "returns": (M,),
                "asked": (k, n),
            }  # fmt: skip
            if {name: array.shape for name, array in stored.items()} != shapes:
                raise ValueError("its arrays do not fit together")
            if any(array.dtype != np.float64 for array in stored.values()):
                raise ValueError("its arrays are not of double precision")
            if not np.isnan(stored["axes"]).all():
                checks.array("axes", stored["axes"])
            search = cls(
                stored["mean"], scale=header["scale"], memory=header["memory"],
                draws=header["draws"], sphere=header.get("sphere", False), seed=header["seed"],
            )  # fmt: skip
            search._best, search._axes = checks.array("best", stored["best"]), stored["axes"]
            search._tried = checks.array("tried", stored["tried"])
            search._asked = checks.array("asked", stored["asked"])
            search._returns = _returns(stored["returns"])
            search._answers = [
                None if r is None else float(_returns(checks.number("answers", r)))
                for r in header["answers"]
            ]
            search.rounds = checks.whole("rounds", header["rounds"], 0)
            search.steps = checks.whole("steps", header["steps"], 0)
            search._widest = checks.real("widest", header.get("widest", search._widest), above=0)
            search.slope = checks.real("slope", header["slope"])
            search.probability = checks.fraction("probability", header.get("probability", 0.5))
            search._wins = [checks.fraction("wins", w) for w in header["wins"]]
            if len(search._wins) > LATEST:
                raise ValueError(f"wins: expected at most {LATEST}, found {len(search._wins)}")
        except Exception as problem:  # a damaged file can raise almost anything
            raise ValueError(f"{path}: not a saved Search ({problem}); use a copy") from problem
        return search


def _pairs(n: int) -> int:
    """Pairs of perturbations per round of a search among n parameters."""
    return min(n, max(LEAST, 1 + n // PER_PAIR))


def _axes(n: int) -> tuple[int, int]:
    """The shape of the directions that a search keeps for its next round."""
    return min(2 * _pairs(n), n), n


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
