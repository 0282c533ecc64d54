"""The documents do what they say: their code runs, their links lead somewhere.

Blocks of a page run in order in one namespace and in an empty directory. Set-up that a reader need
not see stands in a comment, `<!-- test: ... -->`; a block after `<!-- not executed: reason -->` is
left out. Budgets are cut: a page may train for as long as it likes.
"""

import functools
import importlib
import json
import os
import re
import runpy
import textwrap
import traceback
from pathlib import Path
from typing import NamedTuple

import experiments
import matplotlib as mpl
import model_based
import numpy as np
import pytest
import time_limits

from bayespg import training
from bayespg.agents import base
from bayespg.fisher.networks import SUBSET
from bayespg.learning.metric import DAMPING, SHARE
from bayespg.learning.observations import BATCHES, KEPT
from bayespg.policies.named import HIDDEN
from bayespg.reproduce import EXPERIMENTS

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
MADE = {ROOT / "docs" / name for name in ("results.md", "reproduction.md")}
"""By docs/render.py, from experiments that may not have run here."""
STEPS, EPISODES, UPDATES = 200, 4, 6
"""What training, evaluation and JAX training are cut to."""

PIECE = re.compile(
    r"^<!-- test:(?P<hidden>.*?)-->|"
    r"(?:^<!-- not executed:(?P<reason>.*?)-->\n)?^```python\n(?P<shown>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    code: str
    line: int
    """Of the page, where the code begins."""
    skipped: str | None
    """The reason, where it is not to run."""


def blocks(text: str) -> list[Block]:
    found = []
    for piece in PIECE.finditer(text):
        part = "hidden" if piece["hidden"] is not None else "shown"
        line = text.count("\n", 0, piece.start(part)) + 1
        found.append(Block(piece[part], line, piece["reason"]))
    return found


def run(text: str, name: str) -> None:
    """All blocks of a page; one that fails is named with its line."""
    namespace = {"__name__": "__main__"}
    for block in blocks(text):
        if block.skipped is not None:
            assert block.skipped.strip(), f"{name}:{block.line}: not executed, and no reason given"
            continue
        code = "\n" * (block.line - 1) + textwrap.dedent(block.code)
        try:
            exec(compile(code, name, "exec", dont_inherit=True), namespace)
        except Exception as error:
            lines = [at.lineno for at in traceback.extract_tb(error.__traceback__)]
            files = [at.filename for at in traceback.extract_tb(error.__traceback__)]
            at = [n for n, file in zip(lines, files, strict=True) if file == name]
            line = at[-1] if at else getattr(error, "lineno", block.line)
            pytest.fail(f"{name}:{line}: {type(error).__name__}: {error}")


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def small(monkeypatch):
    """Budgets that tell whether code runs, not whether it learns."""

    def least(owner, name, position, argument, most):
        whole = getattr(owner, name)

        @functools.wraps(whole)
        def cut(*args, **kwargs):
            if argument in kwargs:
                kwargs[argument] = min(kwargs[argument], most)
            elif position < len(args):
                args = (*args[:position], min(args[position], most), *args[position + 1 :])
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, name, cut)

    least(base.BaseAgent, "learn", 1, "steps", STEPS)
    least(base.BaseAgent, "evaluate", 1, "episodes", EPISODES)
    least(training, "train", 99, "updates", UPDATES)


WITH_CODE = [page for page in PAGES if blocks(page.read_text("utf-8"))]


@pytest.mark.slow(
    "docs/algorithms/actor-critic.md",
    "docs/algorithms/bpg.md",
    "docs/algorithms/evidence.md",
    "docs/algorithms/fisher.md",
    "docs/algorithms/gptd.md",
    "docs/algorithms/monte-carlo.md",
    "docs/algorithms/more.md",
    "docs/algorithms/sparsification.md",
    "docs/how-to/environment.md",
    "docs/how-to/estimator.md",
    "docs/how-to/policy.md",
    "docs/how-to/scores.md",
    "docs/how-to/uncertainty.md",
    "docs/model-based.md",
    "docs/partial-observation.md",
    "docs/search.md",
    "docs/training.md",
    "docs/tutorial.md",
    "docs/algorithms/quadrature.md",
    "docs/how-to/jax.md",
)
@pytest.mark.parametrize("page", WITH_CODE, ids=relative)
def test_code_of_a_page_runs(page, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(mpl.rcParams, "backend", "agg")
    run(page.read_text("utf-8"), relative(page))


def test_a_failing_block_is_named_with_its_line():
    text = "# Title\n\n```python\na = 1\n```\n\n```python\nb = a\n\nassert b == 2, 'no'\n```\n"
    with pytest.raises(pytest.fail.Exception, match=r"page\.md:10: AssertionError: no"):
        run(text, "page.md")


def test_a_block_is_left_out_only_for_a_reason():
    text = "<!-- not executed:{} -->\n```python\nraise RuntimeError\n```\n"
    run(text.format(" needs a rocket"), "page.md")
    with pytest.raises(AssertionError, match="no reason"):
        run(text.format(""), "page.md")


def test_hidden_set_up_runs_first():
    run("<!-- test:\nx = 3\n-->\n\n```python\nassert x == 3\n```\n", "page.md")


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_no_block_is_overlooked(page):
    """One that is indented, or a comment that its block does not follow at once."""
    text = page.read_text("utf-8")
    found = list(PIECE.finditer(text))
    for mark, part in (("<!-- test:", "hidden"), ("<!-- not executed:", "reason")):
        marked = len(re.findall(rf"(?<!`){mark}", text))
        assert marked == sum(piece[part] is not None for piece in found), mark
    assert text.count("```python") == sum(piece["shown"] is not None for piece in found)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_scripts_that_a_page_names_are_there(page):
    named = re.findall(r"\b(?:examples|benchmarks|docs)/\w+\.py\b", page.read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_picture_names_the_script_that_draws_it():
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    for picture in sorted((ROOT / "docs" / "pictures").iterdir()):
        command = f"python examples/{picture.stem}.py docs/pictures/{picture.name}"
        assert command in pages, picture.name
        assert f"](pictures/{picture.name})" in pages, picture.name


def broken(page: Path, text: str) -> list[str]:
    """Links and pictures of a page that lead nowhere."""
    found = []
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for match in LINK.finditer(text):
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            continue
        path = Path(os.path.normpath(page.parent / target.split("#")[0]))
        if not (path.exists() or path in MADE or result(path)):
            found.append(f"{relative(page)}: {target}")
    return found


def result(path: Path) -> bool:
    """Whether experiments make it: a picture of one, or the report."""
    known = {"report", *EXPERIMENTS, *experiments.EXPERIMENTS}
    return path.parent == ROOT / "docs" / "results" and path.stem in known


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_and_pictures_of_a_page_are_there(page):
    assert broken(page, page.read_text("utf-8")) == []


def test_a_broken_link_is_found():
    page = ROOT / "docs" / "index.md"
    assert broken(page, "[a](nothing.md) and ![b](pictures/nothing.svg)") == [
        "docs/index.md: nothing.md",
        "docs/index.md: pictures/nothing.svg",
    ]


def test_every_page_is_in_the_navigation():
    """Except the results, which the report shows."""
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(set(listed))
    docs = ROOT / "docs"
    there = {page.relative_to(docs).as_posix() for page in PAGES if docs in page.parents}
    assert set(listed) == (there | {page.name for page in MADE}) - {"results.md"}


# Numbers that stand in a page are those of the stored runs.

RESULTS = ROOT / "docs" / "results"


@functools.cache
def benchmark():
    """The names of benchmarks/learning.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return runpy.run_path(str(ROOT / "benchmarks" / "learning.py"))


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([5.0] * 3, "5 (5 to 5)"),
        ([4.0, 10.0], "7 (4 to 10)"),
        ([1.0, 2.0, 4.0, np.inf], "3 (1 to never)"),
        ([1.0, np.inf], "never (1 to never)"),
        ([np.inf, np.inf], "never (never to never)"),
        ([0.0], "0 (0 to 0)"),
    ],
)
def test_a_median_of_an_even_number_of_runs_is_the_mean_of_the_middle_two(steps, says):
    assert benchmark()["_median"](steps) == says


def test_the_tables_of_learning_are_those_of_the_stored_runs(monkeypatch, capsys):
    files = ["--out", str(RESULTS / "ours.jsonl"), "--rivals", str(RESULTS / "rivals.jsonl")]
    monkeypatch.setattr("sys.argv", ["learning.py", "table", *files])
    benchmark()["main"]()
    tables = re.findall(
        r"^(\S+, return \S+)\n\n((?:\|.*\n)+)", capsys.readouterr().out, re.MULTILINE
    )
    assert len(tables) == 7
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for title, table in tables:
        assert f"**{title}**\n\n{table}" in page, title


def test_the_returns_on_other_tasks_are_those_of_the_stored_runs(monkeypatch, capsys):
    files = ["others.jsonl", "others-rivals.jsonl"]
    ours, rivals = (str(RESULTS / file) for file in files)
    monkeypatch.setattr("sys.argv", ["learning.py", "returns", "--out", ours, "--rivals", rivals])
    benchmark()["main"]()
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + 4 * 4
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert f"<!-- others -->\n{table}<!-- /others -->" in page


def test_what_runs_keep_is_that_of_the_stored_runs(monkeypatch, capsys):
    stored = str(RESULTS / "plateau.jsonl")
    monkeypatch.setattr("sys.argv", ["learning.py", "kept", "--out", stored])
    benchmark()["main"]()
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + 3 * 2
    page = (ROOT / "docs" / "calibration.md").read_text("utf-8")
    assert f"<!-- kept -->\n{table}<!-- /kept -->" in page


def test_the_steps_on_other_seeds_are_medians_of_the_stored_runs():
    found = {}
    for line in map(json.loads, (RESULTS / "ours-fresh.jsonl").read_text().splitlines()):
        (steps,) = line["steps_to_threshold"]["stochastic"].values()
        found.setdefault(line["task"].split("-")[0], []).append(np.inf if steps is None else steps)
    assert {len(runs) for runs in found.values()} == {10}
    assert not any(np.isinf(runs).any() for runs in found.values())
    car, pendulum = (np.median(found[t]) for t in ("MountainCarContinuous", "Pendulum"))
    said = f"{car:,.0f} steps on MountainCarContinuous and {pendulum:,.0f} on Pendulum"
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert f"{said}, and all of the twenty runs reach" in page


def test_every_experiment_has_stored_results_and_samples():
    missing = [
        f"{name}.{kind}"
        for name in (*EXPERIMENTS, *experiments.EXPERIMENTS)
        for kind in ("json", "npz", "svg")
        if not (RESULTS / f"{name}.{kind}").exists()
    ]
    assert missing == []


def test_what_is_stated_of_drawn_gradients_is_that_of_the_stored_cells():
    """What calibration.md says of gradients drawn from the hyperprior."""
    stored = json.loads((RESULTS / "uphill.json").read_text("utf-8"))["reliability"]
    rows = ["| estimator | mean | up to 0.7 | 0.7 to 0.9 | above 0.9 |", "|---|---|---|---|---|"]
    drawn = [r for r in stored if r["kind"] == "arrays" and r["signal"] is None]
    assert max(cell["said"] - cell["counted"] for cell in drawn) < 0.05
    for name in dict.fromkeys(r["estimator"] for r in drawn):
        of = [r for r in drawn if r["estimator"] == name]
        cells = [np.mean([[r["said"], r["counted"]] for r in of], 0)]
        for part in range(3):
            count, said, counted = np.array([r["parts"][part] for r in of]).T
            cells.append(np.array([count @ said, count @ counted]) / count.sum())
        rows.append(f"| {name} | " + " | ".join(f"{s:.2f} / {c:.2f}" for s, c in cells) + " |")
    assert "\n".join(rows) in (ROOT / "docs" / "calibration.md").read_text("utf-8"), "\n".join(rows)


@pytest.mark.parametrize("name", ["sure", "sure_simulated", "paired", "biased"])
def test_the_tables_of_calibration_are_those_of_the_stored_runs(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    stored = (RESULTS / f"{name.replace('_', '-')}.jsonl").read_text("utf-8").splitlines()
    table = importlib.import_module(name).table([json.loads(line) for line in stored])
    assert table in (ROOT / "docs" / "calibration.md").read_text("utf-8")


def test_the_counts_of_error_bars_on_tasks_are_those_of_the_stored_claims():
    rows = ["| gradient | cells | more than 0.05 above | the most |", "|---|---|---|---|"]
    for claim in json.loads((RESULTS / "uphill-tasks.json").read_text("utf-8"))["claims"]:
        apart = [effect["value"] for effect in claim["effects"]]
        above, words = sum(value > 0.05 for value in apart), claim["says"].split(": ")[0]
        rows.append(f"| {words} | {len(apart)} | {above} | {max(apart):+.2f} |")
    assert "\n".join(rows) in (ROOT / "docs" / "calibration.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["settings", "smaller-house"])
def test_the_tables_of_settings_are_those_of_the_stored_cells(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    cells = str(RESULTS / f"{name}.jsonl")
    monkeypatch.setattr("sys.argv", ["settings.py", "table", "--out", cells])
    importlib.import_module("settings").main()
    tables = re.findall(r"^(\S+), return \S+\n\n((?:\|.*\n)+)", capsys.readouterr().out, re.M)
    assert len(tables) == 5
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for task, table in tables:
        assert table in page, task


def test_the_table_of_gradient_errors_is_that_of_the_stored_trials(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = importlib.import_module("gradient_error").table(RESULTS / "gradient-error.jsonl")
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert table.split("\n\n")[-1] in page


def test_the_tables_of_the_search_are_those_of_the_stored_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    runs, parts = map(importlib.import_module, ("search", "search_parts"))
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for shows, results in (
        (runs.table, "search-fresh"), (runs.table, "search-swimmer"),
        (parts.policies_table, "search-policies"),
    ):  # fmt: skip
        assert shows(RESULTS / f"{results}.jsonl") in page, results


RIVALS = ("PPO", "A2C", "TRPO", "DQN", "ARS")


def test_the_table_of_time_limits_is_that_of_the_stored_rows(capsys):
    time_limits.table(RESULTS / "time-limits.jsonl")
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert f"<!-- time limits -->\n{capsys.readouterr().out}<!-- /time limits -->" in page


def test_the_table_of_learned_models_is_that_of_the_stored_runs(capsys):
    model_based.table(RESULTS / "model-based.jsonl")
    page = (ROOT / "docs" / "model-based.md").read_text("utf-8")
    assert capsys.readouterr().out.strip() in page


def test_the_readme_s_steps_to_solve_a_task_are_medians_of_the_stored_runs():
    tasks = {
        "CartPole-v1": "475", "Acrobot-v1": "-100", "MountainCarContinuous-v0": "90",
        "Pendulum-v1": "-200", "Swimmer-v5": "100",
    }  # fmt: skip
    found = {}
    for file, name in (("ours", "settings_name"), ("rivals", "algorithm")):
        for line in map(json.loads, (RESULTS / f"{file}.jsonl").read_text().splitlines()):
            if line["task"] in tasks:
                steps = line["steps_to_threshold"]["stochastic"][tasks[line["task"]]]
                found.setdefault((line["task"], line[name]), []).append(steps or np.inf)
    medians = {key: float(np.median(steps)) for key, steps in found.items()}
    tuned = found["Swimmer-v5", "tuned"]
    swimmer = (
        f"{np.isfinite(tuned).sum()} of {len(tuned)} runs do, in {np.median(tuned):,.0f} steps; "
        f"ARS needs {medians['Swimmer-v5', 'ARS']:,.0f}, PPO {medians['Swimmer-v5', 'PPO']:,.0f}"
    )
    del tasks["Swimmer-v5"]
    ours = [medians[task, "defaults"] for task in tasks]
    best = [min(medians.get((task, rival), np.inf) for rival in RIVALS) for task in tasks]
    numbers = ", ".join(4 * ["{:,.0f}"])
    said = f"ours {numbers}; the best of {', '.join(RIVALS)} with tuned settings {numbers}"
    assert all(a < b for a, b in zip(ours, best, strict=True))
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"{said.format(*ours, *best)}. " in readme
    assert swimmer in readme
    assert (
        f"SAC, which learns from old steps too, needs {medians['Pendulum-v1', 'SAC']:,.0f}"
        in readme
    )


def test_the_speed_of_a_dictionary_is_that_of_the_stored_claim():
    claims = json.loads((RESULTS / "sparsification.json").read_text("utf-8"))["claims"]
    (faster,) = [c for c in claims if c["says"].startswith("sparsification makes Algorithm 1")]
    ratios = [effect["value"] for effect in faster["effects"]]
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert f"Algorithm 1 {min(ratios):.0f} to {max(ratios):.0f} times faster than its M x M" in page


def test_the_constants_of_networks_in_the_pages_are_those_of_the_code():
    page = (ROOT / "docs" / "algorithms" / "actor-critic.md").read_text("utf-8")
    assert rf"$D = G + {DAMPING}\,\frac" in page
    assert rf"the factor is ${SHARE}\,n$ in place of {DAMPING}:" in page
    assert f"at these {BATCHES * KEPT} states" in page
    assert f"in the metric of {SUBSET} of the states" in page
    rivals = (ROOT / "docs" / "guides" / "stable-baselines3.md").read_text("utf-8")
    assert f"a network of {' x '.join(map(str, HIDDEN))} for continuous actions" in rivals


def test_the_readme_s_verdicts_are_those_of_the_ledger():
    kinds = ("holds", "does not hold", "not decided")
    ledger, readme = ((ROOT / page).read_text() for page in ("docs/reproduction.md", "README.md"))
    rows = [re.search(rf"^\| {k} \| (\d+) ", ledger, re.MULTILINE) for k in kinds]
    counts = [int(row[1]) for row in rows if row is not None]
    said = re.search(
        r"(\d+) of its claims were tested.*: (\d+) hold, (\d+) do not, (\d+) are not decided",
        readme,
    )
    assert said is not None
    assert [int(number) for number in said.groups()] == [sum(counts), *counts]


def test_no_page_judges_a_direction_by_the_paths_that_chose_it():
    """Except the one that says why not."""
    optimistic = re.compile(r"probability_uphill\(posterior\.|\[.sure.\]")
    for page in [*PAGES, *(ROOT / "examples").glob("*.py")]:
        if page.name != "uncertainty.md":
            assert optimistic.findall(page.read_text("utf-8")) == [], page


def test_the_table_of_damping_is_that_of_the_stored_lines():
    """With every damping, for each problem: length of the mean, and coverage in per cent."""
    page = (ROOT / "docs" / "how-to" / "scores.md").read_text()
    found = list(map(json.loads, (ROOT / "docs/results/damping.jsonl").read_text().splitlines()))

    def row(problem, way, values):
        of = [x for x in found if x["problem"] == problem and x["way"] == way]
        of = [x for x in of if x["damping"] in values]
        return [[x[name] for x in of] for name in ("length", "held", "region")]

    every = {1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0}
    length, held, _ = row("0.09 I", "read out with G", every)
    said = (
        f"{min(length):.2f} to {max(length):.2f} | {100 * min(held):.0f} to {100 * max(held):.0f} %"
    )
    assert said in page
    length, held, region = row("0.09 I", "read out with D", {0.1, 1.0, 100.0})
    assert "| {:.2f}, {:.2f}, {:.1f} |".format(*length) in page
    assert "| {:.0f}, {:.0f}, {:.0f} % |".format(*(100 * np.array(held))) in page
    assert "| {:.0f}, {:.0f}, {:.0f} % |".format(*(100 * np.array(region))) in page
    others = [name for name in dict.fromkeys(x["problem"] for x in found) if name != "0.09 I"]
    for name in others:
        length, held, _ = row(name, "read out with G", every)
        assert min(held) > 0.945
        if "0.09" not in name:
            span = f"{min(length):.2f} to {max(length):.2f} | {100 * min(held):.0f} to "
            assert span in page
