"""What an experiment is, and the files it writes: JSON, SVG and PNG."""

import dataclasses
import itertools
import json
import math
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayespg.reproduce.claims import Claim
from bayespg.runs import plots
from bayespg.runs.store import write_whole

Content = dict[str, Any]
"""The content of an experiment's JSON file."""
KEYS = {
    "experiment", "item", "title", "configuration", "versions", "device", "seconds", "table",
    "claims", "curves", "notes",
}  # fmt: skip
"""The keys that the content of every experiment has."""
Progress = Callable[[float, str], None]
"""Called with the fraction done and a short description of the current step."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to compute."""

    runs: int
    seed: int = 0
    quick: bool = False
    """Smaller sizes, to check that the experiment works."""
    paper: bool = False
    """The sizes and the number of runs of the paper."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A series over x with standard errors over runs."""

    panel: str
    label: str
    look: str
    x: list[float]
    mean: list[float]
    standard_error: list[float]

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
    claims: list[Claim]
    figure: Callable[[], Figure]
    notes: list[str] = dataclasses.field(default_factory=list)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper."""

    name: str
    item: str
    """Table 2, Figure 1, ..."""
    title: str
    runs: int
    """Default number of runs, chosen to finish within a few minutes on two cores."""
    quick_runs: int
    paper_runs: int
    run: Callable[[Settings, Progress], Report]
    minutes: float = 1
    """Approximate time at the paper's size on a GPU. When several experiments run at once, the
    longest start first."""
    timed: bool = False
    """Whether the experiment measures times, so that nothing else may run beside it."""

    def settings(self, runs: int | None, seed: int, quick: bool, paper: bool) -> Settings:
        default = self.quick_runs if quick else self.paper_runs if paper else self.runs
        return Settings(default if runs is None else runs, seed, quick, paper)


def summarise(samples: np.ndarray, axis: int = 0) -> tuple[Any, Any]:
    """Mean over runs and its standard error."""
    samples = np.asarray(samples, float)
    count = samples.shape[axis]
    spread = samples.std(axis, ddof=1) if count > 1 else np.full(samples.mean(axis).shape, np.nan)
    return samples.mean(axis), spread / np.sqrt(count)


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


def read(path: Path) -> Content | None:
    """Read an experiment's JSON file; None if it is damaged or has the format of another
    version."""
    try:
        content = json.loads(path.read_text("utf-8"))
        current = content.keys() >= KEYS and all("effects" in claim for claim in content["claims"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return content if current else None


def done(experiment: Experiment, settings: Settings, out: Path) -> bool:
    """Whether a folder already holds all files of this experiment, computed by this version of the
    library with these settings."""
    from bayespg import __version__

    paths = [out / f"{experiment.name}{suffix}" for suffix in (".json", ".svg", ".png")]
    content = read(paths[0]) if all(path.exists() for path in paths) else None
    return content is not None and (
        (content["configuration"], content["versions"]["bayespg"])
        == (dataclasses.asdict(settings), __version__)
    )


def write(
    experiment: Experiment, settings: Settings, report: Report, out: Path, seconds: float
) -> Content:
    """Write <out>/<name>.json, .svg and .png, each atomically."""
    from bayespg import __version__

    out.mkdir(parents=True, exist_ok=True)
    content: Content = {
        "experiment": experiment.name,
        "item": experiment.item,
        "title": experiment.title,
        "configuration": dataclasses.asdict(settings),
        "versions": {
            "bayespg": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": jax.devices()[0].device_kind,
        "seconds": round(seconds, 1),
        "table": {"columns": report.columns, "rows": report.rows},
        "claims": [claim.content() for claim in report.claims],
        "curves": [dataclasses.asdict(curve) for curve in report.curves],
        "notes": report.notes,
        **report.extra,
    }
    path = out / f"{experiment.name}.json"
    with plots.styled():
        figure = report.figure()
        for suffix in (".svg", ".png"):
            plots.save(figure, path.with_suffix(suffix))
    write_whole(path, readable(content).encode())  # last, so that its presence implies the others
    return json.loads(path.read_text("utf-8"))


def readable(content: Content) -> str:
    """JSON with six digits per number, null for numbers that are not finite, and each list of
    numbers on one line."""
    text = json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\s([^][{}\"]+)\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(of) for key, of in value.items()}
        case list() | tuple():
            return [_plain(of) for of in value]
        case str() | bool() | int() | None:
            return value
        case _:
            number = float(value)
            return float(f"{number:.6g}") if math.isfinite(number) else None
