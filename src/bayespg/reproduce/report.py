"""What an experiment is, and what it writes: a JSON file, the samples of every run, and figures."""

import dataclasses
import itertools
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayespg._support.files import make_directory, write_json
from bayespg._support.version import __version__
from bayespg.reproduce.claims import Claim
from bayespg.reproduce.parts import Progress
from bayespg.reproduce.samples import Samples
from bayespg.reproduce.sentences import checked
from bayespg.runs import plots

Content = dict[str, Any]
"""The content of an experiment's JSON file."""
KEYS = {
    "experiment", "item", "title", "configuration", "versions", "device", "seconds", "table",
    "claims", "curves", "notes",
}  # fmt: skip
CLAIM_KEYS = {
    "id", "says", "effect", "effects", "verdict", "kind", "confirmable", "sentence", "reading",
    "above", "below", "place", "measured",
}  # fmt: skip
EFFECT_KEYS = {"where", "value", "low", "high", "words"}
"""The keys that the content of every experiment, each of its claims and their effects has."""
PROGRAM = "bayespg reproduce"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to compute."""

    runs: int
    seed: int = 0
    quick: bool = False
    """Smaller sizes, to check that the experiment works."""
    paper: bool = False
    """The sizes and the number of runs of the paper."""
    parts: Path | None = None
    """Folder that keeps finished parts, so that an interrupted experiment resumes."""

    @property
    def configuration(self) -> dict[str, Any]:
        """What the numbers depend on."""
        return {name: getattr(self, name) for name in ("runs", "seed", "quick", "paper")}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A series over x with standard errors over runs."""

    panel: str
    label: str
    look: str
    x: list[float]
    mean: list[float]
    standard_error: list[float]

    @classmethod
    def through(
        cls, panel: str, label: str, look: str, x: Iterable[float], samples: Iterable[np.ndarray]
    ) -> "Curve":
        """Through the means of the samples at each x."""
        mean, error = zip(*map(summarise, samples), strict=True)
        return cls(panel, label, look, list(x), list(map(float, mean)), list(map(float, error)))

    def per_cent(self) -> "Curve":
        """The same curve with fractions converted to percentages."""
        mean, error = ([100 * v for v in of] for of in (self.mean, self.standard_error))
        return dataclasses.replace(self, mean=mean, standard_error=error)


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome of an experiment."""

    columns: list[str]
    rows: list[list[str]]
    curves: list[Curve]
    figure: Callable[[], Figure]
    samples: Samples = dataclasses.field(default_factory=lambda: Samples({}))
    """What the claims are judged by."""
    notes: list[str] = dataclasses.field(default_factory=list)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


def no_claims(samples: Samples) -> list[Claim]:
    """An experiment without claims."""
    return []


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper, or one of our own in the same form."""

    name: str
    item: str
    """Table 2, Figure 1, ..."""
    title: str
    runs: int
    """Default number of runs, chosen to finish within a few minutes on two cores."""
    quick_runs: int
    paper_runs: int
    run: Callable[[Settings, Progress], Report]
    judge: Callable[[Samples], list[Claim]] = no_claims
    """The claims, from the samples of any run of this experiment."""
    minutes: float = 1
    """Approximate time at the paper's size on a GPU. When several experiments run at once, the
    longest start first."""
    timed: bool = False
    """Whether the experiment measures times, so that nothing else may run beside it."""
    program: str = PROGRAM
    """The command that runs it, which comes before its name."""

    def settings(
        self, runs: int | None, seed: int, quick: bool, paper: bool, parts: Path | None = None
    ) -> Settings:
        default = self.quick_runs if quick else self.paper_runs if paper else self.runs
        runs = default if runs is None else runs
        if parts is not None:
            size = "quick" if quick else "paper" if paper else "default"
            parts = parts / f"{self.name}-{size}-{runs}-{seed}"
        return Settings(runs, seed, quick, paper, parts)


def summarise(samples: np.ndarray) -> tuple[Any, Any]:
    """Mean over runs and its standard error."""
    samples, count = np.asarray(samples, float), len(samples)
    spread = samples.std(0, ddof=1) if count > 1 else np.full(samples.shape[1:], np.nan)
    return samples.mean(0), spread / np.sqrt(count)


def cell(samples: np.ndarray, form: str = "{:.4f} ± {:.4f}") -> str:
    """Mean and standard error as text; `form` has a placeholder for each."""
    return form.format(*summarise(samples))


def draw_panels(axes: Iterable[Axes], curves: Sequence[Curve], **settings: Any) -> None:
    """Draw each panel on its own axes, with bands of two standard errors, and hide unused axes.

    Curves of 40 points or more have no markers, which would overlap.
    """
    names = dict.fromkeys(c.panel for c in curves)
    for axis, name in itertools.zip_longest(axes, names):
        if name is None:
            axis.set_visible(False)
            continue
        for c in curves:
            if c.panel == name:
                plots.curve(
                    axis, c.x, c.mean, c.standard_error, label=c.label, look=c.look,
                    markers=len(c.x) < 40,
                )  # fmt: skip
        axis.set(title=name, **settings)


def read(path: Path, claims: bool = True) -> Content | None:
    """Read an experiment's JSON file; None if it is damaged or has the format of another version,
    that of its claims included if they are wanted."""
    try:
        content = json.loads(path.read_text("utf-8"))
        judged, configuration = content["claims"] if claims else [], content["configuration"]
        current = (
            content.keys() >= KEYS
            and configuration.keys() >= Settings(0).configuration.keys()
            and content["versions"].keys() >= {"bayespg", "jax"}
            and content["table"].keys() >= {"columns", "rows"}
            and all(claim.keys() >= CLAIM_KEYS for claim in judged)
            and all(of.keys() >= EFFECT_KEYS for claim in judged for of in claim["effects"])
        )
        for claim in judged if current else []:
            if claim["sentence"]:
                checked(claim["sentence"], claim["reading"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return {"program": PROGRAM} | content if current else None


def done(experiment: Experiment, settings: Settings, out: Path) -> bool:
    """Whether a folder already holds all files of this experiment, computed by this version of the
    library with these settings."""
    paths = [out / f"{experiment.name}{suffix}" for suffix in (".json", ".npz", ".svg", ".png")]
    content = read(paths[0]) if all(path.exists() for path in paths) else None
    return content is not None and (
        (content["configuration"], content["versions"]["bayespg"])
        == (settings.configuration, __version__)
    )


def write(
    experiment: Experiment, settings: Settings, report: Report, out: Path, seconds: float
) -> Content:
    """Write <out>/<name>.json, .npz, .svg and .png, each atomically."""
    make_directory(out)
    path = out / f"{experiment.name}.json"
    with plots.styled():
        figure = report.figure()
        for suffix in (".svg", ".png"):
            plots.save(figure, path.with_suffix(suffix))
    report.samples.save(path.with_suffix(".npz"))
    content: Content = {
        "experiment": experiment.name,
        "program": experiment.program,
        "item": experiment.item,
        "title": experiment.title,
        "configuration": settings.configuration,
        "versions": {
            "bayespg": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": jax.devices()[0].device_kind,
        "seconds": round(seconds, 1),
        "table": {"columns": report.columns, "rows": report.rows},
        "claims": [],
        "curves": [dataclasses.asdict(curve) for curve in report.curves],
        "notes": report.notes,
        **report.extra,
    }
    return _judged(experiment, report.samples, content, path)


def judge_again(experiment: Experiment, out: Path) -> Content:
    """The claims of an experiment from the samples that an earlier run left in a folder; the JSON
    file is written again with them."""
    path, again = out / f"{experiment.name}.json", f"run '{experiment.program} {experiment.name}'"
    if not (path.exists() and path.with_suffix(".npz").exists()):
        raise ValueError(
            f"--judge: {out} does not hold both {experiment.name}.json and {experiment.name}.npz; "
            f"{again} first"
        )
    content = read(path, claims=False)
    if content is None:
        raise ValueError(f"{path}: damaged, or from another version; {again} again")
    content["program"] = experiment.program
    samples = path.with_suffix(".npz")
    try:
        return _judged(experiment, Samples.load(samples), content, path)
    except LookupError as problem:
        raise ValueError(
            f"{samples}: does not hold what the claims compare ({problem}); {again} again"
        ) from problem


def _judged(experiment: Experiment, samples: Samples, content: Content, path: Path) -> Content:
    """The content with its claims, written last, so that the file implies the others."""
    content["claims"] = [claim.content() for claim in experiment.judge(samples)]
    write_json(path, content)
    return json.loads(path.read_text("utf-8"))
