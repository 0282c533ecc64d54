"""What was asked of the default on the suite, and what its stored runs do.

    python benchmarks/suite.py goals docs/results/suite.jsonl docs/results/suite-rivals.jsonl \\
        docs/results/suite-sac.jsonl docs/results/suite-random.jsonl

Where a goal is a return, "a / b" is that of the policy as it explores and of its most likely
actions, medians over seeds; it is met if one of the two is.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import suite_report
from rivals import sb3
from suite_report import Line, Runs
from suite_tasks import FORMS, TASKS

OURS, ON_POLICY, PEERS = "bayespg", ("trpo", "ppo", "a2c", "ars"), ("trpo", "ppo")
CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")
WITHIN = {
    "MountainCar-v0": (-110, 68_000), "Swimmer-v5": (100, 40_000), "Hopper-v5": (1000, 90_000),
    "InvertedDoublePendulum-v5": (5000, 100_000), "Reacher-v5": (-8, 60_000),
    "InvertedPendulum-v5": (950, 20_000),
}  # fmt: skip
"""Returns, and the steps within which the median run should reach them."""
BEFORE = {
    "CartPole-v1": 4046, "Acrobot-v1": 7034, "MountainCarContinuous-v0": 3176,
    "Pendulum-v1": 22_000,
}  # fmt: skip
"""Steps of an earlier default, of which at most a tenth may be lost."""
AHEAD, ENDS, KEEPS, SLOWER = 1.25, 0.9, 0.95, 1.1


class Goal(NamedTuple):
    task: str
    asked: str
    measured: str
    met: bool


def show(files: Sequence[Path]) -> None:
    print(table(suite_report.stored(files)))


def table(found: Runs) -> str:
    rows = [(*goal[:-1], "yes" if goal.met else "no") for goal in goals(found)]
    return suite_report.table(("task", "goal", "measured", "met"), rows)


def goals(found: Runs) -> Iterator[Goal]:
    """Every goal that the runs can tell of."""
    ours = {task: found.get(OURS, {}).get(task, []) for task in TASKS}
    if missing := [task for task, lines in ours.items() if not lines]:
        raise SystemExit(f"no runs of {OURS} on {', '.join(missing)} in these files")
    yield from _scores(found, ours)
    ends = {}
    for task in ours:
        peers = [found[peer][task] for peer in PEERS if task in found.get(peer, {})]
        if peers:
            mine, best = _end(task, ours[task]), max(_end(task, lines) for lines in peers)
            ends[task] = f"{mine:.2f} and {best:.2f}", mine >= ENDS * best
    yield _everywhere(f"ends at {ENDS:g} of the better of PPO and TRPO", ends)
    solved = {}
    for task in CLASSIC:
        met = [_first(line, TASKS[task].threshold) < math.inf for line in ours[task]]
        solved[task] = f"{sum(met)} of {len(met)}", all(met)
    yield _everywhere("every seed of a classic task is solved", solved)
    for task, (level, within) in WITHIN.items():
        reached = [_middle([_first(line, level, form) for line in ours[task]]) for form in FORMS]
        asked, said = f"{level:,} within {within:,} steps", " / ".join(map(_steps, reached))
        yield Goal(task, asked, said, min(reached) <= within)
    for task, steps in BEFORE.items():
        reached = _middle([_first(line, TASKS[task].threshold) for line in ours[task]])
        asked = f"solved within {SLOWER * steps:,.0f} steps"
        yield Goal(task, asked, _steps(reached), reached <= SLOWER * steps)
    kept = {task: float(np.mean([*map(suite_report.kept, of)])) for task, of in ours.items()}
    yield _everywhere(
        f"{KEEPS:.0%} of runs keep what they learned",
        {
            task: (f"{share:.0%}{_constant(ours[task])}", share >= KEEPS)
            for task, share in kept.items()
        },
    )
    below = [line for of in found[OURS].values() for line in of if _below(line)]
    total = sum(map(len, found[OURS].values()))
    yield Goal("all", "no run ends below its start", f"{len(below)} of {total}", not below)


def _scores(found: Runs, ours: dict[str, list[Line]]) -> Iterator[Goal]:
    """Against each rival on the tasks that both have, over the whole budget or its first fifth."""
    early = [label for label in found if label.startswith("sac")]
    for label in [*(rival for rival in ON_POLICY if rival in found), *early]:
        until = suite_report.EARLY if label in early else 1.0
        both = [task for task in found[label] if task in ours]
        mine, theirs = (
            suite_report.method_score([
                [suite_report.score(line, until) for line in of[task]] for task in both
            ])[0]
            for of in (ours, found[label])
        )  # fmt: skip
        factor, rival = 1.0 if label in early else AHEAD, label.split()[0].upper()
        asked = f"score {factor:g} times that of {rival}"
        asked = f"score of the first fifth above that of {rival}" if label in early else asked
        said = f"{mine:.3f} and {theirs:.3f}"
        yield Goal(f"{len(both)} tasks", asked, said, mine >= factor * theirs)


def _everywhere(asked: str, by_task: dict[str, tuple[str, bool]]) -> Goal:
    """A goal of many tasks, with what was measured on those that miss it."""
    missed = [f"{task} {said}" for task, (said, met) in by_task.items() if not met]
    count = f"on {len(by_task) - len(missed)} of {len(by_task)}"
    return Goal(f"{len(by_task)} tasks", asked, "; ".join([count, *missed]), not missed)


def _constant(lines: list[Line]) -> str:
    """What the errors of the evaluations alone leave of the goal."""
    share = np.mean([suite_report.constant_kept(line) for line in lines])
    return f" (a constant policy {share:.0%})"


def _end(task: str, lines: list[Line]) -> float:
    """The normalised return at the end, the mean of both forms."""
    finals = [np.median([suite_report.final(line, form) for line in lines]) for form in FORMS]
    return float(suite_report.normalised(task, finals).mean())


def _first(line: Line, level: float, form: str | None = None) -> float:
    """Steps to the first of two evaluations in a row at a return, of one form or the sooner."""
    forms = FORMS if form is None else (form,)
    steps = [sb3.steps_to(level, line["steps"], line[form]) for form in forms]
    return min(math.inf if at is None else at for at in steps)


def _middle(steps: list[float]) -> float:
    return sorted(steps)[(len(steps) - 1) // 2]


def _steps(steps: float) -> str:
    return f"{steps:,.0f}" if math.isfinite(steps) else "never"


def _below(line: Line) -> bool:
    return any(suite_report.ends(line, form)[2] < -suite_report.CLEARLY for form in FORMS)
