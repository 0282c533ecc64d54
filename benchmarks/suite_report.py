"""What the runs of benchmarks/suite.py amount to: scores, tables, pictures, starts and ends."""

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rivals import sb3
from suite_tasks import FORMS, TASKS, steps_of

Line = dict[str, Any]
Runs = dict[str, dict[str, list[Line]]]
"""Runs by label, then by task."""
EARLY, LAST = 0.2, 0.2
"""The shares of the budget that are its first and its last part."""
KEPT = 0.9
CLEARLY = 3.0
"""Standard errors of a difference that is no accident: one in 700 for a normal difference."""
LOOKS = ("BAC", "BQ variant", "compatible", "MC, best baseline", "GPOMDP", "eNAC", "BQ natural",
         "MC", "ours exact", "BAC as printed", "ours fixed")  # fmt: skip


def show(options: argparse.Namespace) -> None:
    found = stored(options.files, options.tasks)
    match options.do:
        case "table":
            print("\n\n".join(tables(found).values()))
        case "plot":
            plot(found, options.picture)
        case _:
            start_end(found)


def stored(files: Sequence[Path], tasks: Sequence[str] | None = None) -> Runs:
    """The runs of some files. Those of a part of the budget have a label of their own, because
    their scores are those of another task; so have those of `sb3.py learn`."""
    found: Runs = {}
    for path in files:
        if not path.exists():
            raise SystemExit(f"{path}: no such file")
        for line in sb3.read(path):
            if "algorithm" in line:
                line = to_its_threshold(line)
            if line and (tasks is None or line["task"] in tasks):
                share, label = line["budget"] / steps_of(line["task"]), line["label"]
                label += f" ({share:.0%} of the budget)" if round(share, 3) != 1 else ""
                found.setdefault(label, {}).setdefault(line["task"], []).append(line)
    for label, of_tasks in found.items():
        for task, lines in of_tasks.items():
            seeds = [line["seed"] for line in lines]
            if len(set(seeds)) < len(seeds):
                raise SystemExit(f"{label}, {task}: a seed occurs twice in these files")
    return found


def to_its_threshold(run: Line) -> Line | None:
    """A run of `sb3.py learn` on a task of the suite as a line of the suite. It ended where it met
    its thresholds, so that its last evaluation stands for the rest of the budget, and whether it
    keeps what it learned is not known."""
    if run["task"] not in TASKS or run["budget"] < steps_of(run["task"]):
        return None
    budget = steps_of(run["task"])
    steps = [at for at in run["evaluated_at"] if at <= budget]
    every = sb3.TASKS[run["task"]].every
    rest = range(steps[-1] + every, budget + 1, every)
    method, seen = run["algorithm"].lower(), len(steps)
    steps = [*steps, *rest]
    return {
        "label": f"{method}, stopped when solved", "method": method, "held": True, "error": None,
        "task": run["task"], "seed": run["seed"], "budget": budget, "steps": steps,
        "train_seconds": run["train_seconds"],
        "seconds": [run["train_seconds"] * at / run["steps"] for at in steps],
        **{
            form: run[name][:seen] + run[name][seen - 1 : seen] * len(rest)
            for form, name in zip(FORMS, ("stochastic", "deterministic"), strict=True)
        },
    }  # fmt: skip


# The score.


def normalised(task: str, returns: Any) -> np.ndarray:
    """0 for random actions and 1 for the threshold."""
    _, threshold, chance = TASKS[task]
    return (np.asarray(returns, float) - chance) / (threshold - chance)


def level(line: Line) -> np.ndarray:
    """The normalised return at every evaluation, the average of both forms; not clipped."""
    return normalised(line["task"], [line[form] for form in FORMS]).mean(0)


def score(line: Line, until: float = 1.0) -> float:
    """The mean over the evaluations of training, up to a share of the budget, of the normalised
    return, clipped for each form to [0, 1]. The evaluation before training does not count."""
    of_forms = normalised(line["task"], [line[form] for form in FORMS]).clip(0, 1)
    steps = np.array(line["steps"])
    counted = (steps > 0) & (steps <= until * steps_of(line["task"]) + 1e-9)
    return float(of_forms[:, counted].mean()) if counted.any() else math.nan


def interquartile_mean(values: Any) -> Any:
    """The mean of the middle half along the last axis: a quarter of the values, rounded down, is
    left out at either end."""
    ordered = np.sort(np.asarray(values, float), -1)
    n = ordered.shape[-1]
    return ordered[..., n // 4 : n - n // 4].mean(-1)


def method_score(of_tasks: Sequence[Any], resamples: int = 2000) -> tuple[float, float, float]:
    """The mean over tasks of the interquartile mean over seeds, and its 95 % bootstrap interval:
    seeds are drawn again on each task."""
    rng = np.random.default_rng(0)
    drawn = np.zeros(resamples)
    for values in of_tasks:
        values = np.asarray(values, float)
        again = rng.integers(0, values.size, (resamples, values.size))
        drawn += interquartile_mean(values[again]) / len(of_tasks)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(np.mean([interquartile_mean(v) for v in of_tasks])), float(low), float(high)


def last_part(line: Line) -> np.ndarray:
    """The positions of the evaluations in the last fifth of the budget."""
    return np.flatnonzero(np.array(line["steps"]) > (1 - LAST) * line["budget"] - 1e-9)


def final(line: Line, form: str) -> float:
    """The median return of the last fifth."""
    return float(np.median(np.array(line[form])[last_part(line)]))


def kept(line: Line) -> bool:
    """Whether the mean of the last three evaluations is at least 0.9 of the best such mean, in
    normalised return that is not clipped above."""
    return _lasting(level(line).clip(0))


def _lasting(level: np.ndarray) -> bool:
    three = np.convolve(level, np.ones(3) / 3, "valid") if level.size >= 3 else level
    return bool(three[-1] >= KEPT * three.max())


def constant_kept(line: Line, curves: int = 2000) -> float:
    """How often `kept` would be true of a policy that never changes: of curves with the mean
    return of the last fifth and normal errors as large as those of its evaluations."""
    rng, last, level = np.random.default_rng(0), last_part(line), 0.0
    for form in FORMS:
        mean, error = (np.array(line[name])[last] for name in (form, f"{form}_errors"))
        noise = rng.standard_normal((curves, len(line["steps"]) - 1))
        level = level + normalised(line["task"], mean.mean() + np.median(error) * noise) / 2
    return float(np.mean([_lasting(of) for of in np.clip(level, 0, None)]))


def first_met(line: Line, form: str) -> tuple[float, float]:
    """Steps and seconds of training to the first of two evaluations in a row at or above the
    threshold; infinity where there are none."""
    steps = sb3.steps_to(TASKS[line["task"]].threshold, line["steps"], line[form])
    if steps is None:
        return math.inf, math.inf
    return steps, line["seconds"][line["steps"].index(steps)]


# Tables.


def tables(found: Runs) -> dict[str, str]:
    """By name: the scores over all tasks, those of each task over the budget and over its first
    part, steps and seconds to the thresholds, and then a table for each task."""
    listed = {label: _of_suite(of_tasks) for label, of_tasks in found.items()}
    listed = {label: of_tasks for label, of_tasks in listed.items() if of_tasks}
    if not listed:
        raise SystemExit("no runs of the suite's tasks in these files")
    made = {
        "all tasks": _all_tasks(listed),
        "score": _by_task("score", listed, lambda lines: _interval([lines])),
        "early": _by_task(f"first {EARLY:.0%}", listed, lambda lines: _interval([lines], EARLY)),
        "threshold": _by_task(f"steps to threshold, {FORMS[0]} (seconds of one core)", listed,
                              _to_threshold),
    }  # fmt: skip
    for task in TASKS:
        if of := {label: of_tasks[task] for label, of_tasks in listed.items() if task in of_tasks}:
            made[task] = _task_table(task, of)
    return made


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = [head, *rows]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0].replace("|  |", "| |"), "|" + "---|" * len(head), *lines[1:]])


def _all_tasks(listed: Runs) -> str:
    ours = next((label for label in listed if label.startswith("bayespg")), next(iter(listed)))
    rows = []
    for label, of_tasks in listed.items():
        same = {task: listed[ours][task] for task in of_tasks if task in listed[ours]}
        runs = list(itertools.chain(*of_tasks.values()))
        counts = sorted({len(lines) for lines in of_tasks.values()})
        rows.append([
            label, *_scores(of_tasks), f"{len(of_tasks)} of {len(TASKS)}",
            *(_scores(same) if len(same) == len(of_tasks) else ("", "")),
            _kept(runs),
            " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1]))),
        ])  # fmt: skip
    first = f"first {EARLY:.0%}".replace("%", " %")
    return table(
        ["", "score", first, "tasks", f"{ours} on these tasks", first, "kept", "seeds"], rows
    )


def _kept(lines: list[Line]) -> str:
    known = [kept(line) for line in lines if not line.get("held")]
    return f"{np.mean(known):.0%}" if known else ""


def _by_task(name: str, listed: Runs, cell: Callable[[list[Line]], str]) -> str:
    rows = (
        [task, *(cell(of[task]) if task in of else "" for of in listed.values())]
        for task in TASKS if any(task in of for of in listed.values())
    )  # fmt: skip
    return table([name, *listed], rows)


def _to_threshold(lines: list[Line]) -> str:
    """The medians of steps and seconds, and how many runs met the threshold."""
    steps, seconds = zip(*(first_met(line, FORMS[0]) for line in lines), strict=True)
    count = f"{sum(map(math.isfinite, steps))} of {len(lines)}"
    taken = _median(seconds)
    return f"{_median(steps)}{'' if taken == 'never' else f' ({taken} s)'}, {count}"


def _of_suite(of_tasks: dict[str, list[Line]]) -> dict[str, list[Line]]:
    return {task: of_tasks[task] for task in TASKS if task in of_tasks}


def _scores(of_tasks: dict[str, list[Line]]) -> tuple[str, str]:
    return _interval(of_tasks.values()), _interval(of_tasks.values(), EARLY)


def _interval(of_tasks: Any, until: float = 1.0) -> str:
    mean, low, high = method_score([[score(line, until) for line in lines] for lines in of_tasks])
    if math.isnan(mean):
        return "not evaluated"
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def _task_table(task: str, found: dict[str, list[Line]]) -> str:
    budget, threshold, chance = TASKS[task]
    rows = []
    for label, lines in found.items():
        cells = [label, _interval([lines]), _interval([lines], EARLY)]
        cells += [f"{np.median([final(line, form) for line in lines]):,.1f}" for form in FORMS]
        met = {form: [first_met(line, form) for line in lines] for form in FORMS}
        for form in FORMS:
            count = sum(math.isfinite(steps) for steps, _ in met[form])
            cells.append(f"{_median([steps for steps, _ in met[form]])} ({count} of {len(lines)})")
        cells.append(_median([seconds for _, seconds in met[FORMS[0]]]))
        cells.append(_median([line["train_seconds"] for line in lines]))
        cells.append(_kept(lines))
        failed = sum(line["error"] is not None for line in lines)
        rows.append([*cells, f"{len(lines)}" + (f", {failed} ended by an error" * (failed > 0))])
    head = ["", "score", "first 20 %", "final, exploring", "final, deterministic",
            "steps to threshold, exploring", "deterministic", "seconds to threshold",
            "seconds of training", "kept", "seeds"]  # fmt: skip
    about = f"{task}: {budget:,} steps, threshold {threshold:g}, random {chance:g}"
    return f"{about}\n\n{table(head, rows)}"


def _median(values: Sequence[float]) -> str:
    """The lower of the middle two where their number is even, so that it exists where half of the
    runs never met a threshold."""
    middle = sorted(values)[(len(values) - 1) // 2]
    return f"{middle:,.0f}" if math.isfinite(middle) else "never"


# Pictures.


def plot(found: Runs, path: Path) -> None:
    """Returns against steps, a panel per task, and the performance profiles of all methods."""
    from bayespg.runs import plots

    looks = _looks(found)
    tasks = list(dict.fromkeys(t for t in [*TASKS, *itertools.chain(*found.values())]))
    tasks = [task for task in tasks if any(task in of_tasks for of_tasks in found.values())]
    columns = min(5 if len(tasks) > 11 else 4, len(tasks) + 1)
    rows = -(-(len(tasks) + 1) // columns)
    with plots.styled():
        figure, axes = plots.sheet(rows, columns, width=3.1 * columns, height=2.5 * rows + 0.5)
        panels = iter(axes.flat)
        for task in tasks:
            _draw_task(plots, next(panels), task, found, looks)
        profile = next(panels)
        _draw_profiles(plots, profile, found, looks)
        for axis in panels:
            axis.set_axis_off()
        handles = {}
        for axis in axes.flat:
            handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=min(8, len(handles))
        )
        plots.save(figure, path)
    print(f"Picture: {path}")


def _looks(found: Runs) -> dict[str, str]:
    """The first label of ours in its colour, each other one in another."""
    ours = next((label for label in found if label.startswith("bayespg")), None)
    others = itertools.cycle(LOOKS)
    return {label: "ours" if label == ours else next(others) for label in found}


def _draw_task(plots: Any, axis: Any, task: str, found: Runs, looks: dict[str, str]) -> None:
    """The interquartile mean over seeds of both forms of the policy, with the middle half."""
    for label, of_tasks in found.items():
        lines = of_tasks.get(task, [])
        for points in {len(line["steps"]) for line in lines}:
            same = [line for line in lines if len(line["steps"]) == points]
            curves = np.mean([[line[form] for form in FORMS] for line in same], 1)
            plots.curve(
                axis, np.array(same[0]["steps"]) / 1000, interquartile_mean(curves.T),
                label=plots.plain(label), look=looks[label], markers=False,
                band=tuple(np.quantile(curves, (0.25, 0.75), axis=0)),
            )  # fmt: skip
    axis.set(title=task, xlabel="thousand steps")
    if task in TASKS:
        _, threshold, chance = TASKS[task]
        axis.axhline(threshold, color="#444444", linestyle=":", linewidth=1)
        low, high = axis.get_ylim()
        axis.set_ylim(max(low, chance - 0.3 * (threshold - chance)), max(high, threshold))


def _draw_profiles(plots: Any, axis: Any, found: Runs, looks: dict[str, str]) -> None:
    """The share of runs whose score is above a bound, against the bound; all tasks weigh the
    same."""
    bounds = np.linspace(0, 1, 101)
    for label, of_tasks in found.items():
        listed = _of_suite(of_tasks)
        if listed:
            shares = np.mean([profile(lines, bounds) for lines in listed.values()], 0)
            plots.curve(
                axis, bounds, shares, label=plots.plain(label), look=looks[label], markers=False
            )
    axis.set(title="Performance profiles", xlabel="score τ, each on its own tasks")
    axis.set_ylabel("runs with score > τ")
    axis.set_ylim(0, 1.02)


def profile(lines: Sequence[Line], bounds: np.ndarray) -> np.ndarray:
    """The share of runs whose score is above each bound."""
    return (np.array([score(line) for line in lines])[:, None] > bounds).mean(0)


# Starts and ends.


def ends(line: Line, form: str) -> tuple[tuple[float, float], tuple[float, float], float]:
    """The return before training and that of the last fifth, each with its standard error over
    episodes, and the difference in standard errors: of the last fifth or, where that is worse, of
    the last evaluation alone. Evaluations that several points share count once."""
    means, errors = (np.array(line[name]) for name in (form, f"{form}_errors"))
    pairs = list(dict.fromkeys((means[i], errors[i]) for i in last_part(line)))
    mean = float(np.mean([m for m, _ in pairs]))
    error = float(np.sqrt(np.sum([e**2 for _, e in pairs])) / len(pairs))
    start = float(means[0]), float(errors[0])
    away = min(
        _in_errors(mean - start[0], math.hypot(error, start[1])),
        _in_errors(float(means[-1]) - start[0], math.hypot(float(errors[-1]), start[1])),
    )
    return start, (mean, error), away


def _in_errors(difference: float, error: float) -> float:
    """A difference in standard errors; one that is not finite counts as lost."""
    if not math.isfinite(difference):
        return -math.inf
    return 0.0 if difference == 0 else difference / max(error, 1e-12)


def start_end(found: Runs) -> None:
    """Per run the return before training and at the end; runs that end clearly below."""
    lost = []
    print("| | form | start (median) | end (median) | worst, in standard errors | clearly below |")
    print("|" + "---|" * 6)
    for label, of_tasks in found.items():
        for task, lines in of_tasks.items():
            for form in FORMS:
                each = [ends(line, form) for line in lines]
                below = [k for k, (_, _, away) in enumerate(each) if away < -CLEARLY]
                lost += [
                    (form, f"{label}, {task}, seed {lines[k]['seed']}", each[k]) for k in below
                ]
                print(
                    f"| {label}, {task} | {form} | {np.median([s for (s, _), _, _ in each]):,.1f} "
                    f"| {np.median([e for _, (e, _), _ in each]):,.1f} "
                    f"| {min(away for *_, away in each):.1f} | {len(below)} of {len(lines)} |"
                )
    print()
    for form, name, ((start, error), (end, end_error), away) in lost:
        print(
            f"{name}, {form}: from {start:,.1f} ± {error:,.1f} to {end:,.1f} ± {end_error:,.1f}, "
            f"{away:.1f} standard errors"
        )
    print("\n".join(below_start(found)))


def below_start(found: Runs) -> list[str]:
    """For each form of the policy, how many runs end below the return of the untrained one."""
    lines = [line for of_tasks in found.values() for lines in of_tasks.values() for line in lines]
    return [
        f"{form}: {sum(ends(line, form)[2] < -CLEARLY for line in lines)} of {len(lines)} runs end "
        f"more than {CLEARLY:g} standard errors below the return of their untrained policy"
        for form in FORMS
    ]
