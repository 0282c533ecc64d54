"""Training runs as a page: learning curves, certainty of the gradients, settings."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayespg.runs import certainty, curves, page, plots, promises, seeds
from bayespg.runs.certainty import Metrics
from bayespg.runs.columns import ON_PAGE, TOTALS, Column
from bayespg.runs.numbers import over_seeds, shown
from bayespg.runs.page import Markup, fill


def write(paths: Sequence[Path], out: Path, *, reload: int | None = None) -> Path:
    """One page for all runs: first together, then each separately. With `reload` it reloads itself
    every `reload` seconds."""
    groups = [seeds.group(path) for path in paths]
    drawn = [(group.name, curves.of(group)) for group in groups]
    tasks = {group.task: [] for group in groups}
    for group, named in zip(groups, drawn, strict=True):
        tasks[group.task].append(named)
    title = ", ".join(sorted(tasks))
    body: list[Markup] = [
        fill("<h1>Training on {}</h1>", title),
        Markup("<p>Bands are 95 % bootstrap intervals of the mean over seeds.</p>"),
        *(_picture(curves.draw(of, task), f"Learning on {task}", f"all-{task}")
          for task, of in tasks.items()),
        page.table(["run", "seeds", "steps", "return at the end", "over seeds"],
                   [_row(name, curve) for name, curve in drawn]),
    ]  # fmt: skip
    for group, (name, curve) in zip(groups, drawn, strict=True):
        body.append(fill('<h2 id="{name}">{name}</h2>', name=name))
        if len(groups) > 1:
            body.append(_picture(curves.draw([(name, curve)], name), name, f"figure-{name}"))
        config = [[k, str(v)] for k, v in sorted(group.runs[0].config.items())]
        settings = page.details("Settings", page.table(["setting", "value"], config))
        logged = {run.path.name: curves.logged(run) for run in group.runs}
        body += [*_certainty(name, logged), *_promises(name, logged), *_seeds(logged), settings]
    return page.write(out, f"bayespg: {title}", *body, reload=reload)


Logged = Mapping[str, Metrics]
"""The metrics of each run of a group, by its name."""


def _certainty(name: str, logged: Logged) -> list[Markup]:
    """How certain the run was of its gradients."""
    metrics = certainty.known([*logged.values()])
    if not metrics:
        return []
    note = (
        "The run in fifths, all seeds together. The probability of going uphill follows "
        "from how far episodes have agreed so far: it is 0.5 where there is nothing to learn. "
        "Confirmed is the share of the squared gradient that is signal. "
        "How many episodes per update would make a step 95 % sure follows from both, for the "
        "gradient as it was estimated: a bias that all episodes share is not in these two columns. "
        "Directions known: in how many the episodes of an update determine the gradient."
    )
    return [
        Markup("<h3>How certain the gradients were</h3>"),
        _picture(certainty.draw(metrics, name), f"Certainty of {name}", f"certainty-{name}"),
        page.table(*certainty.table(metrics)),
        page.note(note),
        page.table(*certainty.counted(metrics)),
        page.note(
            "What was stated about the direction of an update, and by how much the return of the "
            "next update differed. Both returns are means of a few episodes, so the share of "
            "higher ones is nearer to 0.5 than the share of steps that went uphill; the mean "
            "change has no such error. Predicted: the confirmed share of the slope along the "
            "step, times the length of an episode. It supposes that the slope and the length of "
            "episodes stay the same all along the step: where they grow a step gains more, and "
            "where it is too long less."
        ),
    ]


def _promises(name: str, logged: Logged) -> list[Markup]:
    """What the model of MBAC had promised, and what came."""
    metrics = promises.known([*logged.values()])
    if not metrics:
        return []
    note = (
        "Promised is the mean discounted return of simulated episodes at the end of the update "
        "before, from first states; where they are cut off they count a fitted value. "
        "Predicted is the share of the variance of new transitions that the model predicted, and "
        "inside the share of states inside its 95 % intervals ten steps ahead, both counted on "
        "real episodes before the model learned from them."
    )
    return [
        Markup("<h3>What the model promised</h3>"),
        _picture(promises.draw(metrics, name), f"Promises of {name}", f"promises-{name}"),
        page.note(note),
    ]


def _row(name: str, curve: curves.Curves) -> list[str]:
    last = curve.returns[:, -1]
    mean = shown(last.mean())[0]
    return [name, str(last.size), f"{curve.steps[-1]:,.0f}", mean, over_seeds(last)]


def _seeds(logged: Logged) -> list[Markup]:
    rows = [[name, *(_last(column, of) for column in ON_PAGE)] for name, of in logged.items()]
    note = (
        "Return, sure and divergence: last tenth. Sure is the probability that following the "
        "gradient goes uphill, given how far episodes have agreed so far."
    )
    return [page.table(["seed", *ON_PAGE], rows), page.note(note)]


def _last(column: Column, metrics: Metrics) -> str:
    """The last value of a total, the mean of any other column over the last tenth of the updates;
    empty if there is no such column."""
    if column not in metrics:
        return ""
    rows = 1 if column in TOTALS else max(1, metrics[column].size // 10)
    return column.show(metrics[column][-rows:].mean())


def _picture(figure: Any, caption: str, id: str) -> Markup:
    return page.figure(plots.svg(figure), caption, id)


class Live:
    """A callback of `learn` that keeps the page of a run up to date while it trains.

    The page is a file that is rewritten every few seconds and reloads itself: no server and no
    further package, and it can be looked at over a shared folder.
    """

    EVERY = 5.0
    """Seconds between two versions of the page, at the least."""
    SHARE = 0.05
    """Share of the time that may be spent on drawing."""

    def __init__(self, folder: Path, page: Path):
        self.folder, self.page, self._next = folder, page, 0.0

    def __call__(self, agent: Any, row: dict[str, float]) -> None:
        if (begun := time.monotonic()) >= self._next:
            write([self.folder], self.page, reload=round(self.EVERY))
            now = time.monotonic()
            self._next = now + max(self.EVERY, (now - begun) / self.SHARE)

    def end(self, agent: Any) -> None:
        """The last version, which does not reload itself."""
        write([self.folder], self.page)
