"""Training runs as a page: learning curves, certainty of the gradients, settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bayespg.runs import certainty, curves, page, plots, promises, seeds
from bayespg.runs.columns import ON_PAGE, TOTALS, Column
from bayespg.runs.numbers import over_seeds, shown
from bayespg.runs.page import Markup, fill
from bayespg.runs.seeds import Group


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
        body += [*_certainty(group), *_promises(group), *_seeds(group), settings]
    return page.write(out, f"bayespg: {title}", *body, reload=reload)


def _certainty(group: Group) -> list[Markup]:
    """How certain the run was of its gradients."""
    metrics = certainty.known([curves.logged(run) for run in group.runs])
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
        _picture(
            certainty.draw(metrics, group.name), f"Certainty of {group.name}",
            f"certainty-{group.name}",
        ),
        page.table(*certainty.table(metrics)),
        page.note(note),
        page.table(*certainty.counted(metrics)),
        page.note(
            "What was stated about the step of an update, and by how much the return of the next "
            "update differed. Both returns are means of a few episodes, so the share of higher "
            "ones is nearer to 0.5 than the share of steps that went uphill; the mean change has "
            "no such error. Predicted: the confirmed share of the slope along the step, in units "
            "of what the estimator's gradient is of (by default a mean over steps: times the "
            "length of an episode it is about the change of the return)."
        ),
    ]  # fmt: skip


def _promises(group: Group) -> list[Markup]:
    """What the model of MBAC had promised, and what came."""
    metrics = promises.known([curves.logged(run) for run in group.runs])
    if not metrics:
        return []
    note = (
        "Promised is the mean return of the last simulated episodes of the update before; half of "
        "these begin at any observed state, and they are cut off after 200 steps or where the "
        "model does not know enough, so that compare how both rise rather than their levels. "
        "Predicted is the share of the variance of new transitions that the model predicted, and "
        "inside the share of states inside its 95 % intervals ten steps ahead, both counted on "
        "real episodes before the model learned from them."
    )
    return [
        Markup("<h3>What the model promised</h3>"),
        _picture(
            promises.draw(metrics, group.name), f"Promises of {group.name}",
            f"promises-{group.name}",
        ),
        page.note(note),
    ]  # fmt: skip


def _row(name: str, curve: curves.Curves) -> list[str]:
    last = curve.returns[:, -1]
    mean = shown(last.mean())[0]
    return [name, str(last.size), f"{curve.steps[-1]:,.0f}", mean, over_seeds(last)]


def _seeds(group: Group) -> list[Markup]:
    rows = []
    for run in group.runs:
        metrics = curves.logged(run)
        rows.append([run.path.name, *(_last(column, metrics) for column in ON_PAGE)])
    note = (
        "Return, sure and divergence: last tenth. Sure is the probability that following the "
        "gradient goes uphill, given how far episodes have agreed so far."
    )
    return [page.table(["seed", *ON_PAGE], rows), page.note(note)]


def _last(column: Column, metrics: dict[str, Any]) -> str:
    """The last value of a total, the mean of any other column over the last tenth of the updates;
    empty if there is no such column."""
    if column not in metrics:
        return ""
    rows = 1 if column in TOTALS else max(1, metrics[column].size // 10)
    return column.show(metrics[column][-rows:].mean())


def _picture(figure: Figure, caption: str, id: str) -> Markup:
    return page.figure(plots.svg(figure), caption, id)
