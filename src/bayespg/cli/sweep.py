"""bayespg sweep: combinations of some settings, all of them or a search, over seeds."""

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import typer

from bayespg._support import checks
from bayespg._support.files import read_json, refuse_link, write_json
from bayespg._support.version import __version__
from bayespg.agents import load, trials
from bayespg.agents.jobs import Runs
from bayespg.agents.trials import SHARES, Choice, Range, Trial
from bayespg.cli import continuing
from bayespg.cli.common import MaybeAddress, app, say, sentence, table
from bayespg.cli.options import IMPORTS, RAY, argument, dashed, option, registered, setting, value
from bayespg.runs import curves, importance, overview, plots
from bayespg.runs import seeds as folders
from bayespg.runs.columns import Column
from bayespg.runs.numbers import over_seeds, shown
from bayespg.runs.store import CONFIG, Run

NAMES = ("policy", "estimator", "update")
"""What can be varied besides the settings of agents."""
TABLE, PICTURE, PAGE = "sweep.json", "importance.png", "report.html"
"""The returns of every seed, which settings mattered, and the curves, in the folder of the
sweep."""
CURVES = 6
"""The number of combinations that the page of a search shows."""


@app.command(cls=MaybeAddress)
def sweep(
    environment: str = argument("A name listed by 'bayespg environments'."),
    varied: list[str] = option(
        "A setting and its values, or a range LOW..HIGH; repeat it for more settings. Also policy, "
        "estimator and update.", ..., "--set", metavar="NAME=VALUE,VALUE...",
    ),
    steps: int = option("Environment steps per run.", 100_000, min=1),
    number: int | None = option(
        "Combinations to try.", None, "--trials", min=1, shown="all, without ranges"
    ),
    search: str | None = option(
        "How --trials are chosen: random, or optuna, which learns from earlier ones.",
        shown="optuna if it is installed, else random",
    ),
    early: bool | None = option(
        "Stop a combination that is below the median after a quarter or half of the steps.",
        None, "--early-stopping/--no-early-stopping", shown="with --trials",
    ),
    seeds: int = option("Seeds of every combination.", 8, min=1),
    seed: int = option("The first seed.", 0, min=0),
    jobs: int = option("Runs side by side.", 1, min=1),
    ray: str | None = RAY,
    out: Path | None = option("Folder.", shown="runs/ENVIRONMENT-sweep"),
    imports: list[str] | None = IMPORTS,
) -> None:  # fmt: skip
    """Train combinations of settings over several seeds, and compare them: every combination, or
    with --trials a search.

    The same command finishes a sweep that was stopped; with more values, trials or seeds it trains
    what is missing. A combination that fails does not end the others; the same command tries it
    again. Each combination is a folder of seeds, as 'bayespg train' writes it.
    """
    task = registered(environment, imports or [])
    space = parsed(varied)
    if number is None and search is not None:
        raise ValueError("search: says how --trials are chosen; give both, or none for a grid")
    chosen = search or ("optuna" if trials.optuna_is_installed() else "random")
    checks.one_of("search", chosen, ("random", "optuna"))
    if search == "optuna" and not trials.optuna_is_installed():
        raise ValueError(
            "search: optuna is not installed; pip install 'bayespg[sweep]', or give random"
        )
    out = out or Path("runs") / f"{environment.rpartition(':')[2].replace('/', '-')}-sweep"
    early = number is not None if early is None else early
    batch = _Sweep(
        out, task, steps, range(seed, seed + seeds), jobs, ray, imports or [],
        SHARES if early else SHARES[-1:],
    )  # fmt: skip
    at_once = max(1, jobs // seeds)
    for more in trials.batches(space, batch.tried, number, chosen, seed, at_once):
        batch.train(more)
    batch.report(grid=number is None)


def parsed(varied: list[str]) -> trials.Space:
    """The settings that vary, from ``name=value,value`` and ``name=low..high``."""
    space: trials.Space = {}
    for text in varied:
        name, equals, rest = text.partition("=")
        name = setting(name.strip())
        if not equals or not rest:
            raise ValueError(
                "set: expected NAME=VALUE,VALUE as in limit=0.01,0.03, or NAME=LOW..HIGH, found "
                f"{text!r}"
            )
        if name in space or name in ("seed", "workers", "episode_timeout", "environment"):
            raise ValueError(f"set: {name} cannot be varied here, or was given twice")
        low, dots, high = rest.partition("..")
        if dots:
            ends = [value(name, end.strip()) for end in (low, high)]
            if name in NAMES or any(type(end) not in (int, float) for end in ends):
                raise ValueError(f"set: {name} needs numbers for a range, found {rest!r}")
            space[name] = Range(*ends)
            continue
        words = [word.strip() for word in rest.split(",")]
        space[name] = Choice(tuple(word if name in NAMES else value(name, word) for word in words))
    return space


def _word(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclasses.dataclass
class _Sweep:
    """The folder of a sweep and what is trained in it."""

    out: Path
    task: str
    steps: int
    seeds: range
    jobs: int
    ray: str | None
    imports: list[str]
    shares: tuple[float, ...]
    """After which of them combinations are compared."""

    def __post_init__(self) -> None:
        self.tried = self.stored()
        self._configs: dict[str, dict[str, Any]] = {}

    def name(self, trial: Trial) -> str:
        return ", ".join(f"{dashed(k)}={_word(v)}" for k, v in trial.settings.items())

    def folder(self, trial: Trial) -> Path:
        return self.out / self.name(trial).replace("/", "-")

    def stored(self) -> list[Trial]:
        """The combinations of a sweep that was begun in this folder."""
        path = self.out / TABLE
        if not path.exists():
            return []
        kept = read_json(path, (dict,))
        for name, mine in (("environment", self.task), ("steps", self.steps)):
            if kept.get(name, mine) != mine:
                raise ValueError(
                    f"out: {path} is of a sweep with {name} {kept[name]!r}, not {mine!r}; give "
                    "another folder"
                )
        return [
            Trial(
                {k: tuple(v) if isinstance(v, list) else v for k, v in one["settings"].items()},
                stopped_at=one.get("stopped_at") if len(self.shares) > 1 else None,
            )
            for one in kept.get("combinations", [])
        ]

    def train(self, more: list[Trial]) -> None:
        """Train new combinations, and those in the folder that are not finished, all at once, with
        a comparison after each share of the steps."""
        self.tried += more
        if not self.tried:
            return
        self._refuse(more)
        for trial in (t for t in self.tried if not t.failed):
            refuse_link(self.folder(trial))
            folders.plan(self.folder(trial), self.seeds, self._config(trial))
        self._write()
        judged = [t for t in self.tried if not t.stopped and self._missing([t], self.steps)]
        for point, share in enumerate(self.shares):
            until = round(share * self.steps)
            live = [
                t for t in self.tried
                if not t.failed and (t.stopped_at is None or share <= t.stopped_at)
            ]  # fmt: skip
            missing = self._missing(live, until)
            if missing:
                say(
                    (self.task, "bold"),
                    f": {len(live)} combinations, {len(self.seeds)} seeds each, {len(missing)} "
                    f"runs to train up to {until:,} steps. Folder: ",
                    (str(self.out), "bold"),
                )
            continuing.train_runs(
                missing, self.jobs, "Every run keeps its whole updates; the same command finishes "
                "the sweep.", address=self.ray, imports=self.imports, until=until,
                failed=self._failed,
            )  # fmt: skip
            for trial in live:
                if not trial.failed and len(trial.scores) == point:
                    trial.scores.append(self._score(trial, until))
            if share < 1:
                trials.stop_poor(self.tried, [t for t in judged if t in live], point)
            self._write()

    def _refuse(self, more: list[Trial]) -> None:
        """ValueError if new settings are refused before anything is trained. Settings that are
        refused later, in a search that is under way, have failed."""
        begun = any(trial.scores for trial in self.tried)
        for trial in (t for t in self.tried if not t.failed):
            try:
                self._config(trial)
            except ValueError as problem:
                if trial in more and not begun:
                    raise ValueError(f"set: {self.name(trial)} is refused: {problem}") from problem
                trial.fail(_line(problem))

    def _failed(self, run: str, error: Exception) -> list[str]:
        """Mark the combination of a run that has failed, and return the names of its runs."""
        name, _, seed = run.rpartition(", seed ")
        trial = next(trial for trial in self.tried if self.name(trial) == name)
        trial.fail(f"seed {seed}: {_line(error)}")
        say((run, "bold"), f" failed: {_line(error)}")
        return [f"{name}, seed {k}" for k in self.seeds]

    def _config(self, trial: Trial) -> dict[str, Any]:
        """The configuration of a trial's first seed."""
        name = self.name(trial)
        if name not in self._configs:
            first = {"environment": self.task} | trial.settings | {"seed": self.seeds[0]}
            self._configs[name] = load.made(first).config | {"steps": self.steps}
        return self._configs[name]

    def _missing(self, of: list[Trial], until: int) -> Runs:
        """The runs of these trials that have fewer steps."""
        runs = {
            f"{self.name(trial)}, seed {k}": (
                folders.directory(self.folder(trial), k).absolute(),
                self._config(trial) | {"seed": k},
            )
            for trial in of
            for k in self.seeds
        }
        return {name: one for name, one in runs.items() if not _done(one[0], until)}

    def _score(self, trial: Trial, until: int) -> float:
        """The mean return over seeds, over the last quarter of the steps so far."""
        means = []
        for run in folders.group(self.folder(trial)).runs:
            metrics = curves.logged(run)
            steps, returns = metrics[Column.STEPS], metrics[Column.RETURN]
            end = min(int(np.searchsorted(steps, until)), steps.size - 1)
            lately = (steps >= 0.75 * until) & (np.arange(steps.size) <= end)
            means.append(float(returns[lately].mean()) if lately.any() else float(returns[end]))
        return float(np.mean(means))

    def _write(self) -> None:
        kept = []
        for trial in self.tried:
            one: dict[str, Any] = {"settings": trial.settings}
            if trial.failed:
                one["failed"] = trial.failed
            elif trial.scores:
                last, mean = self._returns(trial)
                one |= {
                    "returns_at_the_end": last.round(3).tolist(),
                    "returns_over_the_run": mean.round(3).tolist(),
                }
            kept.append(one | ({"stopped_at": trial.stopped_at} if trial.stopped_at else {}))
        settings = {"environment": self.task, "steps": self.steps}
        seeds = [self.seeds[0], self.seeds[-1]]
        content = settings | {"seeds": seeds, "combinations": kept, "version": __version__}
        write_json(self.out / TABLE, content)

    def _returns(self, trial: Trial) -> tuple[np.ndarray, np.ndarray]:
        """Of each seed at the end, and over the run."""
        drawn = curves.of(folders.group(self.folder(trial))).returns
        return drawn[:, -1], drawn.mean(1)

    def report(self, *, grid: bool) -> None:
        """Show the combinations side by side, in the order of their success if they were searched
        for and those that failed last, and write the page and the picture."""
        order = np.arange(len(self.tried)) if grid else np.argsort(-trials.places(self.tried))
        ordered = [self.tried[i] for i in order]
        able, failed = ([t for t in ordered if bool(t.failed) == bad] for bad in (False, True))
        rows, ends = [], []
        for trial in able:
            last, mean = self._returns(trial)
            ends.append(-np.inf if trial.stopped else float(last.mean()))
            note = " (stopped early)" if trial.stopped else ""
            rows.append([
                self.name(trial) + note, shown(last.mean())[0], over_seeds(last),
                shown(mean.mean())[0],
            ])  # fmt: skip
        rows += [[f"{self.name(t)} (failed: {t.failed})", "", "", ""] for t in failed]
        table(["settings", "return at the end", "over seeds", "mean over the run"], rows)
        if failed:
            say(f"{len(failed)} of {len(ordered)} combinations failed; the same command tries them "
                "again.")  # fmt: skip
        if not able:
            why = f"the first, {self.name(failed[0])}, with: {failed[0].failed}"
            typer.echo(sentence(f"bayespg: sweep: all combinations failed; {why}"), err=True)
            raise typer.Exit(1)
        best = rows[int(np.argmax(ends))][0]
        say("Best at the end: ", (best, "bold"), ". Its seeds were used to choose it; train it on "
            "others before you report it.")  # fmt: skip
        drawn = [self.folder(trial) for trial in able]
        page = overview.write(drawn if grid else drawn[:CURVES], self.out / PAGE)
        say("Page: ", (str(page), "bold"), ". Numbers: ", (str(self.out / TABLE), "bold"))
        self._picture()

    def _picture(self) -> None:
        figure = importance.draw(
            {dashed(k): [trial.settings.get(k) for trial in self.tried]
             for k in self.tried[0].settings},
            trials.places(self.tried),
            [np.nan if trial.failed else trial.scores[-1] for trial in self.tried],
            [trial.stopped for trial in self.tried], f"which settings mattered: {self.task}",
        )  # fmt: skip
        if figure is not None:
            plots.save(figure, self.out / PICTURE)
            say("Which settings mattered: ", (str(self.out / PICTURE), "bold"))


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...").rstrip(":")


def _done(path: Path, until: int) -> bool:
    """Whether a run has this many steps."""
    if not (path / CONFIG).exists():
        return False
    steps = curves.logged(Run.open(path)).get(Column.STEPS)
    return steps is not None and bool(steps[-1] >= until)
