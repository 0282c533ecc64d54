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
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path
from typing import NamedTuple

import experiments
import front
import matplotlib as mpl
import model_based
import model_parts
import numpy as np
import pytest
import time_limits
import uphill_gymnasium

from bayespg import training
from bayespg.agents import base
from bayespg.fisher.networks import SUBSET
from bayespg.learning.metric import DAMPING, SHARE
from bayespg.paths.observations import BATCHES, KEPT
from bayespg.policies.named import HIDDEN
from bayespg.reproduce import EXPERIMENTS, lqr_learning, sentences
from bayespg.reproduce import page as paper
from bayespg.reproduce.samples import Samples

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
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
    "docs/how-to/simulator.md",
    "docs/model-based.md",
    "docs/partial-observation.md",
    "docs/search.md",
    "docs/training.md",
    "docs/tutorial/decide.md",
    "docs/tutorial/judge.md",
    "docs/tutorial/train.md",
    "docs/algorithms/quadrature.md",
    "docs/how-to/jax.md",
    "docs/future-work.md",
)
@pytest.mark.parametrize("page", WITH_CODE, ids=relative)
def test_code_of_a_page_runs(page, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(mpl.rcParams, "backend", "agg")
    run(page.read_text("utf-8"), relative(page))


@functools.cache
def notebooks():
    """The names of docs/notebooks.py."""
    return runpy.run_path(str(ROOT / "docs" / "notebooks.py"))


@pytest.mark.parametrize("part", notebooks()["PARTS"])
def test_a_notebook_is_that_of_its_page(part):
    page = (notebooks()["TUTORIAL"] / f"{part}.md").read_text("utf-8")
    stored = (notebooks()["TUTORIAL"] / f"{part}.ipynb").read_text("utf-8")
    assert stored == notebooks()["notebook"](page), "run python docs/notebooks.py"
    assert [block.code.strip() for block in blocks(page)] == cells(stored)


def cells(notebook: str) -> list[str]:
    """The code of a notebook."""
    found = json.loads(notebook)["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("part", notebooks()["PARTS"])
def test_a_notebook_runs_as_it_stands(part, tmp_path):
    """With its own budgets, in a fresh process and directory, within five minutes."""
    code = cells((notebooks()["TUTORIAL"] / f"{part}.ipynb").read_text("utf-8"))
    subprocess.run([sys.executable, "-c", "\n".join(code)], cwd=tmp_path, timeout=300, check=True)


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


def test_every_film_of_the_gallery_is_small_and_has_its_commands():
    gallery = ROOT / "docs" / "gallery"
    page, films = (gallery / "index.md").read_text("utf-8"), sorted(gallery.glob("*.gif"))
    assert len(films) == 6
    for film in films:
        (row,) = [line for line in page.splitlines() if f"]({film.name})" in line]
        assert film.stat().st_size < 300_000, film.name
        (folder,) = re.findall(r"`bayespg train .* --out (runs/[\w-]+)`<br>", row)
        assert re.search(rf"`bayespg watch {folder} .*--out docs/gallery/{film.name}`", row)


def broken(page: Path, text: str) -> list[str]:
    """Links and pictures of a page that lead nowhere."""
    found = []
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for match in LINK.finditer(text):
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            continue
        path = Path(os.path.normpath(page.parent / target.split("#")[0]))
        if not (path.exists() or result(path)):
            found.append(f"{relative(page)}: {target}")
    return found


def result(path: Path) -> bool:
    """Whether experiments make it: a picture of one, or the report."""
    known = {"report", *EXPERIMENTS, *experiments.EXPERIMENTS}
    return path.parent == ROOT / "docs" / "results" and path.stem in known


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_and_pictures_of_a_page_are_there(page):
    assert broken(page, page.read_text("utf-8")) == []


def sections(page: Path) -> set[str]:
    """What links to a page may name behind "#": headings as GitHub writes them, and marks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]
    return {*plain, *re.findall(r'<a id="([\w-]+)">', text)}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=relative)
def test_links_lead_to_sections_that_there_are(page):
    missing = []
    for target in LINK.findall(page.read_text("utf-8")):
        name, _, section = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if section and there.suffix == ".md" and "://" not in target:
            missing += [] if section in sections(there) else [target]
    assert missing == []


def test_a_broken_link_is_found():
    page = ROOT / "docs" / "index.md"
    assert broken(page, "[a](nothing.md) and ![b](pictures/nothing.svg)") == [
        "docs/index.md: nothing.md",
        "docs/index.md: pictures/nothing.svg",
    ]


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(set(listed))
    docs = ROOT / "docs"
    there = {page.relative_to(docs).as_posix() for page in PAGES if docs in page.parents}
    assert set(listed) == there


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "api").glob("*.md")), ids=relative)
def test_what_a_page_of_the_reference_lists_is_there_and_complete(page):
    """mkdocstrings leaves out a name that does not exist, without a word."""
    text = page.read_text("utf-8")
    for module, listed in re.findall(r"^::: (\S+)\n(?: +\S.*\n)*? +members: \[(.*)\]$", text, re.M):
        names, found = listed.split(", "), importlib.import_module(module)
        assert [name for name in names if not hasattr(found, name)] == []
        public = getattr(found, "__all__", [])
        own = [n for n in public if getattr(getattr(found, n), "__module__", "") == module]
        assert set(own) <= set(names), module


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
        ([np.inf, np.inf], "never"),
        ([0.0], "0 (0 to 0)"),
    ],
)
def test_a_median_of_an_even_number_of_runs_is_the_mean_of_the_middle_two(steps, says):
    assert benchmark()["_median"](steps) == says


def test_the_tables_of_runs_are_those_of_the_stored_runs():
    render = runpy.run_path(str(ROOT / "docs" / "render.py"))
    pages = [(ROOT / name).read_text("utf-8") for name in ("README.md", "docs/benchmarks.md")]
    assert all(page == render["with_runs"](page) for page in pages), "run python docs/render.py"
    assert all(f"<!-- {name} -->" in "".join(pages) for name in render["tables_of_runs"]())


def test_the_scores_of_the_readme_are_those_of_the_stored_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import suite_report

    found = suite_report.stored([RESULTS / "suite.jsonl", RESULTS / "suite-rivals.jsonl"])
    readme = (ROOT / "README.md").read_text("utf-8")

    def scores_of(method, until):
        of_tasks = found[method].values()
        return [[suite_report.score(line, until) for line in lines] for lines in of_tasks]

    early, late = (
        [suite_report.method_score(scores_of(name, until))[0] for name in ("bayespg", "ppo")]
        for until in (suite_report.EARLY, 1.0)
    )
    says = "ours {:.2f} and PPO {:.2f}; over the first fifth of the steps {:.2f} and {:.2f}"
    assert says.format(*late, *early) in readme
    met = {
        task: sum(np.isfinite(suite_report.first_met(line, "deterministic")[0]) for line in lines)
        for task, lines in found["bayespg"].items()
    }
    assert (met["MountainCar-v0"], met["Swimmer-v5"]) == (3, 5)
    assert {len(lines) for lines in found["bayespg"].values()} == {5}
    assert "three of five runs reach −110 on MountainCar" in readme
    assert "those of all five 300 on Swimmer" in readme


def test_what_runs_keep_is_that_of_the_stored_runs(monkeypatch, capsys):
    stored = str(RESULTS / "plateau.jsonl")
    monkeypatch.setattr("sys.argv", ["learning.py", "kept", "--out", stored])
    benchmark()["main"]()
    table = capsys.readouterr().out
    assert table.count("\n") == 2 + 3 * 2
    page = (ROOT / "docs" / "calibration.md").read_text("utf-8")
    assert f"<!-- kept -->\n{table}<!-- /kept -->" in page


def test_the_tables_of_partial_observation_are_those_of_the_stored_results():
    stored = json.loads((RESULTS / "partial-observation.json").read_text("utf-8"))
    rows = {}
    for policy, _, end, *_ in stored["table"]["rows"]:
        rows.setdefault(policy, []).append(end)
    page = (ROOT / "docs" / "partial-observation.md").read_text("utf-8")
    for policy, ends in rows.items():
        assert f" | {' | '.join(ends)} |" in page, policy


def test_every_stored_result_has_the_size_of_the_paper():
    """So that `bayespg reproduce all --paper` repeats it."""
    other = {"uphill"}
    for name, experiment in (EXPERIMENTS | experiments.EXPERIMENTS).items():
        stored = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["configuration"]
        wanted = experiment.settings(None, 0, False, True).configuration
        assert stored == wanted or name in other, name


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
    drawn = [r for r in stored if r["kind"] == "arrays" and r["signal"] is None]
    apart = [cell["said"] - cell["counted"] for cell in drawn]
    assert max(apart) < 0.02
    page = " ".join((ROOT / "docs" / "calibration.md").read_text("utf-8").split())
    low = sum(value < -0.05 for value in apart)
    said = "{} of {} were more than 0.05 too low and none more than 0.02 too high"
    assert said.format(low, len(drawn)) in page
    for name in dict.fromkeys(cell["estimator"] for cell in drawn):
        parts = np.array([cell["parts"] for cell in drawn if cell["estimator"] == name])
        count, stated, seen = np.moveaxis(parts, 2, 0)
        shown = [
            f"{k @ s / k.sum():.2f} / {k @ c / k.sum():.2f} ({k.sum():.0f})"
            for k, s, c in zip(count.T, stated.T, seen.T, strict=True)
        ]
        assert f"| {name} | {' | '.join(shown)} |" in page


def test_the_table_of_coverage_is_that_of_the_stored_results():
    """Per cent at nominal 95 with 5, 20 and 100 paths."""
    table = json.loads((RESULTS / "calibration.json").read_text("utf-8"))["table"]
    assert table["columns"][5] == "95 %"
    cells = {}
    for task, paths, bars, _, _, held, _ in table["rows"]:
        if int(paths) in (5, 20, 100):
            cells.setdefault(task, {}).setdefault(bars, []).append(held)
    page = (ROOT / "docs" / "calibration.md").read_text("utf-8").replace("**", "")
    for task, of in cells.items():
        assert f"| {task} | {' | '.join(', '.join(held) for held in of.values())} |" in page


def test_the_table_of_components_is_that_of_the_stored_lines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    stored = map(json.loads, (RESULTS / "components.jsonl").read_text("utf-8").splitlines())
    table = importlib.import_module("components").table(list(stored))
    page = (ROOT / "docs" / "calibration.md").read_text("utf-8")
    (shown,) = re.findall(r"<!-- components -->\n(.*)\n<!-- /components -->", page, re.DOTALL)
    assert len(shown.splitlines()) == 2 + 4
    assert set(shown.splitlines()) <= set(table.splitlines())


@pytest.mark.parametrize(
    "name",
    ["sure", "sure_simulated", "sure_runs", "decisions", "paired", "biased", "biased_normal"],
)
def test_the_tables_of_calibration_are_those_of_the_stored_runs(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    stored = (RESULTS / f"{name.replace('_', '-')}.jsonl").read_text("utf-8").splitlines()
    module = importlib.import_module(name.removesuffix("_normal"))
    table = module.table([json.loads(line) for line in stored])
    assert table in (ROOT / "docs" / "calibration.md").read_text("utf-8")


def test_the_table_of_error_bars_on_tasks_is_that_of_the_stored_cells(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    cells = json.loads((RESULTS / "uphill-tasks.json").read_text("utf-8"))["cells"]
    table = importlib.import_module("uphill_tasks").overview(cells)
    assert table in (ROOT / "docs" / "calibration.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["settings", "smaller-house-fresh"])
def test_the_tables_of_settings_are_those_of_the_stored_cells(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    cells = str(RESULTS / f"{name}.jsonl")
    monkeypatch.setattr("sys.argv", ["settings.py", "table", "--out", cells])
    importlib.import_module("settings").main()
    table = capsys.readouterr().out.strip()
    assert table.splitlines()[0].count(", ") == 5
    assert table in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


@pytest.mark.parametrize("also", [[], ["--mean"]])
def test_the_tables_of_waves_in_values_are_those_of_the_stored_cells(also, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    cells = str(RESULTS / "settings-values.jsonl")
    monkeypatch.setattr("sys.argv", ["settings.py", "table", *also, "--out", cells])
    importlib.import_module("settings").main()
    table = capsys.readouterr().out.strip()
    assert "waves of one length" in table
    assert table in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


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
        (runs.table, "search-fresh"), (parts.policies_table, "search-policies"),
    ):  # fmt: skip
        assert shows(RESULTS / f"{results}.jsonl") in page, results


def test_the_table_of_locomotion_is_that_of_the_stored_lines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = importlib.import_module("locomotion").table(RESULTS / "locomotion.jsonl")
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert f"<!-- locomotion -->\n{table}\n<!-- /locomotion -->" in page
    lines = [json.loads(line) for line in (RESULTS / "locomotion.jsonl").read_text().splitlines()]
    speed = {line.get("episodes", "ppo"): line["steps_per_s"] for line in lines}
    rows = {line.get("episodes", "ppo"): line["rows"] for line in lines}
    assert f"makes {speed[2048] / speed['ppo']:.1f} times as many steps per second as PPO" in page
    passed = next(steps for steps, value in rows["ppo"] if value > 2000)
    assert f"PPO passes 2,000 after {passed / 1e6:.1f} million" in page


def test_the_tables_of_thousands_of_runs_are_those_of_the_stored_lines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables = importlib.import_module("thousands").table(RESULTS / "thousands.jsonl").split("\n\n")
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    names = ("cpu", "first", "gpu", "gpu-others")
    for name, table in zip(names, tables, strict=True):
        assert f"<!-- thousands {name} -->\n{table}\n<!-- /thousands {name} -->" in page, name
    lines = map(json.loads, (RESULTS / "thousands.jsonl").read_text("utf-8").splitlines())
    of = {
        (line["device"] == "cpu", line["task"], line["learner"]): line
        for line in lines if line["what"] == "learn"
    }  # fmt: skip
    cost = {key: line["cpu_s"] / line["seeds"] for key, line in of.items()}
    cartpole, acrobot = (True, "CartPole-v1"), (True, "Acrobot-v1")
    ours, network, rejax, pure = (
        cost[*cartpole, name] for name in ("ours", "network", "rejax", "PureJaxRL")
    )
    each = [cost[*acrobot, name] / of[*acrobot, name]["steps"] for name in ("ours", "rejax")]
    slow, fast = of[False, "Pendulum-v1", "rejax"], of[False, "CartPole-v1", "rejax"]
    half, most = (
        [of[False, "CartPole-v1", name][share] for name in ("ours", "rejax", "PureJaxRL")]
        for share in ("half_s", "most_s")
    )
    for said in (
        f"On CartPole our default takes {rejax / ours:.1f} times less time than rejax, "
        f"and {pure / ours:.1f} times less than PureJaxRL",
        f"are there in {half[0] / half[1]:.1f} times rejax's time and "
        f"{half[0] / half[2]:.1f} times PureJaxRL's, nine in ten in "
        f"{most[0] / most[1]:.1f} and {most[0] / most[2]:.1f} times",
        f"takes {network / ours:.1f} times as long on CartPole: {rejax / network:.1f} times less",
        f"each step costs {each[0] / each[1]:.1f} times as much",
        f"{slow['steps']:,.0f} steps, more than the 150,000 of its settings; the mean return is "
        f"then {slow['rows'][-1][-1]:.0f}",
        f"PPO makes {fast['steps_per_s'] / 1e6:.0f} million steps per second",
        f"rejax took {fast['compile_s']:.0f} and {slow['compile_s']:.0f} s to compile",
    ):
        assert said in page, said


RIVALS = ("PPO", "A2C", "TRPO", "DQN", "ARS")


def test_the_table_of_time_limits_is_that_of_the_stored_rows(capsys):
    time_limits.table(RESULTS / "time-limits.jsonl")
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert f"<!-- time limits -->\n{capsys.readouterr().out}<!-- /time limits -->" in page


def test_the_table_of_gymnasium_tasks_that_go_uphill_is_that_of_the_stored_batches():
    files = [RESULTS / f"uphill-{name}.jsonl" for name in ("hopper", "gymnasium")]
    found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    page = (ROOT / "docs" / "calibration.md").read_text("utf-8")
    table = uphill_gymnasium.table(found)
    assert f"<!-- uphill gymnasium -->\n{table}\n<!-- /uphill gymnasium -->" in page


def test_the_table_of_learned_models_is_that_of_the_stored_runs(capsys):
    page = (ROOT / "docs" / "model-based.md").read_text("utf-8")
    for name, mark in (("table", ""), ("fallback", " fallback"), ("ends", " ends")):
        model_based.TABLES[name](RESULTS / "model-based.jsonl")
        table = f"<!-- model-based{mark} -->\n{capsys.readouterr().out}<!-- /model-based{mark} -->"
        assert table in page
    parts = ("table", "parts", "parts"), ("calibrated", "calibrated", "parts")
    for name, mark, file in (*parts, ("costs", "costs", "parts"), ("units", "units", "units")):
        model_parts.TABLES[name](RESULTS / f"model-{file}.jsonl")
        table = f"<!-- model {mark} -->\n{capsys.readouterr().out}<!-- /model {mark} -->"
        assert table in page


def test_the_readme_s_steps_to_solve_a_task_are_medians_of_the_stored_runs():
    tasks = {
        "CartPole-v1": "475", "Acrobot-v1": "-100", "MountainCarContinuous-v0": "90",
        "Pendulum-v1": "-200", "Swimmer-v5": "100",
    }  # fmt: skip
    found, modes = {}, {}
    for file, name in (("ours", "settings_name"), ("rivals", "algorithm")):
        for line in map(json.loads, (RESULTS / f"{file}.jsonl").read_text().splitlines()):
            if line["task"] in tasks:
                for kept, actions in ((found, "stochastic"), (modes, "deterministic")):
                    steps = line["steps_to_threshold"][actions][tasks[line["task"]]]
                    kept.setdefault((line["task"], line[name]), []).append(steps or np.inf)
    medians, likely = (
        {key: float(np.median(steps)) for key, steps in of.items()} for of in (found, modes)
    )
    tuned = found["Swimmer-v5", "tuned"]
    swimmer = (
        f"{np.isfinite(tuned).sum()} of {len(tuned)} runs reach 100, in {np.median(tuned):,.0f} "
        f"steps in the median; ARS needs {medians['Swimmer-v5', 'ARS']:,.0f}, PPO "
        f"{medians['Swimmer-v5', 'PPO']:,.0f}"
    )
    del tasks["Swimmer-v5"]
    (ours, best), (ours_likely, best_likely) = (
        (
            [of[task, "defaults"] for task in tasks],
            [min(of.get((task, rival), np.inf) for rival in RIVALS) for task in tasks],
        )
        for of in (medians, likely)
    )
    numbers = ", ".join(4 * ["{:,.0f}"])
    said = f"ours {numbers}; the best of {', '.join(RIVALS)} with tuned settings {numbers}"
    assert all(a < b for a, b in zip(ours, best, strict=True))
    readme = (ROOT / "README.md").read_text("utf-8")
    also = f"With the most likely actions: ours {numbers}; the best of them {numbers}. "
    assert f"{said.format(*ours, *best)}. {also.format(*ours_likely, *best_likely)}" in readme
    assert swimmer in readme
    assert (
        f"SAC, which learns from old steps too, needs {medians['Pendulum-v1', 'SAC']:,.0f}"
        in readme
    )


def test_the_first_table_and_picture_of_the_readme_are_those_of_the_stored_runs(tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    scores = front.scores()
    front.draw(scores, tmp_path / "front.svg", dark=False)
    drawn = (tmp_path / "front.svg").read_text("utf-8")
    # Versions of Matplotlib differ in the last digits of a path, and not in the letters of a text.
    for name in ("front.svg", "front-dark.svg"):
        assert f"docs/results/{name}" in readme
        stored = (RESULTS / name).read_text("utf-8")
        assert all(drawn.count(mark) == stored.count(mark) for mark in ("<path", "<use"))


def test_the_speed_of_a_dictionary_is_that_of_the_stored_claim():
    claims = json.loads((RESULTS / "sparsification.json").read_text("utf-8"))["claims"]
    (faster,) = [c for c in claims if c["says"].startswith("sparsification makes Algorithm 1")]
    ratios = [effect["value"] for effect in faster["effects"]]
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert f"Algorithm 1 {min(ratios):.0f} to {max(ratios):.0f} times faster than its M x M" in page


def test_the_readme_s_numbers_about_the_paper_are_those_of_the_stored_results():
    readme = (ROOT / "README.md").read_text("utf-8")
    lqr, walk, car = (
        Samples.load(RESULTS / f"{name}.npz")
        for name in ("lqr-gradient", "random-walk-gradient", "mountain-car")
    )
    names = ("MC", "MC, best baseline", "Model 1", "Model 2 + baseline, actions integrated out")
    said = (
        "Monte Carlo {:,.0f}, with the best baseline {:,.0f}; Model 1 {:.0f}; ours, which needs no "
        "model, {:.0f} |"
    )
    assert said.format(*(lqr["square", name, 100].mean() for name in names)) in readme
    names = ("GPOMDP", "MC, fitted values", "BAC", "BAC, noise on rewards, evidence")
    said = "GPOMDP {:.1f}; Monte Carlo less fitted values {:.2f}; BAC {:.2f}, ours {:.2f} |"
    assert said.format(*(walk["square", name, 10].mean() for name in names)) in readme
    names = ("MCPG", "MC, fitted values", "BAC, G-EST", "BAC, ours")
    said = "MCPG {:.1f}; Monte Carlo less fitted values {:.1f}; BAC {:.1f}, ours {:.1f} |"
    after = [int(np.argmax(car["updates", name, 5] >= 100)) for name in names]
    steps = [car["curve", name, 5][:, i].mean() for name, i in zip(names, after, strict=True)]
    assert said.format(*steps) in readme
    rows = json.loads((RESULTS / "calibration.json").read_text("utf-8"))["table"]["rows"]
    held = [
        [int(row[5]) for row in rows if row[0].startswith("LQR") and row[2] == bars]
        for bars in ("paper's choice", "evidence", "robust")
    ]
    said = "paper's choice {} to {} %, evidence {} to {} %, robust {} to {} % |"
    assert said.format(*(number for of in held for number in (min(of), max(of)))) in readme


def test_what_findings_say_of_rates_and_forms_is_in_the_stored_samples():
    page = " ".join((ROOT / "docs" / "findings.md").read_text("utf-8").split())
    rates, walk, car = (
        Samples.load(RESULTS / f"{name}.npz")
        for name in ("lqr-rates", "random-walk-learning", "mountain-car")
    )
    errors = []
    for M in (10, 20, 40):
        ahead = rates["rate 1", "BPG", M].astype(float) - rates["rate 1", "MCPG", M]
        errors.append(ahead.mean() / (ahead.std(ddof=1) / len(ahead) ** 0.5))
    said = "lower by {:.1f}, {:.1f} and {:.1f} standard errors at M = 10, 20 and 40"
    assert said.format(*errors) in page
    costs = [
        walk["average", name, M].mean()
        for M in (1, 25)
        for name in ("BPG, actions integrated out", "MCPG")
    ]
    assert "({:.2f} against {:.2f} and {:.2f} against {:.2f})".format(*costs) in page
    spreads = [
        car["final", name, M].std(ddof=1)
        for name in ("BAC, G-EST as printed", "BAC, G-EST")
        for M in (5, 10, 20, 40)
    ]
    four = "{:.1f}, {:.1f}, {:.1f} and {:.1f}"
    said = f"standard deviations of {four} steps at M = 5, 10, 20 and 40, against {four})"
    assert said.format(*spreads) in page


def readings_table():
    """The final costs of Figures 3 and 5 in every cell of Sigma and start, at M = 5 to 40."""
    samples = Samples.load(RESULTS / "lqr-readings.npz")
    rows = {}
    for name in samples.names("final"):
        method, reading = name.split(", ", 1)
        sigma, start = reading.split(" I, ", 1)
        label = method if method == "MCPG" else f"{method}, {sigma} I"
        ends = [lqr_learning.OPTIMUM + samples["final", name, M].mean() for M in (5, 10, 20, 40)]
        rows.setdefault(label, {})[start] = ", ".join(f"{end:.3f}" for end in ends)
    starts = list(rows["MCPG"])
    table = [f"| | {' | '.join(starts)} |", "|---|---|---|"]
    table += [f"| {label} | {' | '.join(of[s] for s in starts)} |" for label, of in rows.items()]
    return "\n".join(table)


def test_the_table_of_readings_is_that_of_the_stored_samples():
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert f"<!-- readings -->\n{readings_table()}\n<!-- /readings -->" in page


def test_what_findings_say_of_figure_5_is_in_the_stored_samples():
    page = " ".join((ROOT / "docs" / "findings.md").read_text("utf-8").split())
    stored = Samples.load(RESULTS / "lqr-variance.npz")

    def ends(name, M):
        return stored["final", name, M].mean(dtype=float)

    other = f", {lqr_learning.UNIFORM}"
    gaps = [ends(f"BPG{other}", M) - ends(f"BPG-var{other}", M) for M in (5, 10, 20, 40)]
    assert "BPG is {:.3f}, {:.3f}, {:.3f} and {:.3f} at M = 5, 10, 20 and 40".format(*gaps) in page
    optimum = lqr_learning.OPTIMUM
    wide, narrow = (
        (optimum + ends(f"BPG{end}", 40)) / (optimum + ends(f"BPG-var{end}", 40))
        for end in (other, "")
    )
    assert f"ratio at M = 40 is {wide:.2f} ({narrow:.2f} from N(0, I))" in page
    excess = ends(f"BPG{other}", 40) / ends(f"BPG-var{other}", 40)
    assert f"As a ratio of costs above the optimum it is {excess:.2f}:" in page


def test_what_findings_say_of_other_paths_and_long_episodes_is_in_the_stored_samples():
    page = " ".join((ROOT / "docs" / "findings.md").read_text("utf-8").split())
    stored = Samples.load(RESULTS / "lqr-fisher-readings.npz")
    ml, mc = (
        lqr_learning.OPTIMUM
        + stored["final", f"BPG-{of}, other paths, Σ = 0.1 I, {lqr_learning.UNIFORM}", 5].mean()
        for of in ("ML", "MC")
    )
    assert f"maximum-likelihood G ends at {ml:.3f}, outer products at {mc:.3f}, and" in page
    content = json.loads((RESULTS / "random-walk-lengths.json").read_text("utf-8"))
    vary = next(claim for claim in content["claims"] if claim["id"] == "lengths-vary")
    ratios = [effect["value"] for effect in vary["effects"]]
    assert f"by a factor of {min(ratios):.0f} to {max(ratios):.0f}." in page
    first, last = (
        next(e["value"] for e in vary["effects"] if e["where"] == f"BQ, Model 1, right {p}")
        for p in (0.9, 0.6)
    )
    columns = content["table"]["columns"]
    assert f"from {first:.0f} to {last:.0f} for Model 1" in page
    assert f"from {columns[1].split()[0]} to {columns[-1].split()[0]} steps (1,000 runs" in page
    assert content["configuration"]["runs"] == 1_000


def effects(experiment, claim):
    """Those of a stored claim."""
    content = json.loads((RESULTS / f"{experiment}.json").read_text("utf-8"))
    return next(of["effects"] for of in content["claims"] if of["id"] == claim)


def test_what_findings_say_of_claims_near_their_bound_is_in_the_stored_claims():
    page = " ".join((ROOT / "docs" / "findings.md").read_text("utf-8").split())
    for end, claim in (("", "car-forty-printed"), ("-long", "car-forty-long")):
        (e,) = effects(f"mountain-car{end}", claim)
        assert f"by {e['value']:.2f} [{e['low']:.2f}, {e['high']:.2f}] with" in page
    alike, *apart = effects("lqr-fisher-form", "fisher-form")
    ends = [re.findall(r"[\d.]+", e["words"])[:2] for e in apart]
    wrong, right = ([f"{float(e[i]):.3g}" for e in ends] for i in (1, 0))
    assert "BPG-ML ends at {}, {} and {} at M = 10, 20 and 40".format(*wrong) in page
    assert "right one at {}, {} and {}.".format(*right) in page
    near, other = re.findall(r"[\d.]+", alike["words"])[:2]
    assert f"alike ({other} and {near}, 10⁴ runs" in page
    assert alike["low"] < 0 < alike["high"]
    faster = [
        e["value"]
        for rival in ("mcpg", "bpg")
        for e in effects("random-walk-printed", f"walk-bac-printed-{rival}")
    ]
    assert f"by factors of {min(faster):.1f} to {max(faster):.0f})" in page
    (learned,) = effects("ship-steering-printed", "ship-printed-mcpg")
    end, begin = re.findall(r"[\d.]+", learned["words"])
    assert f"MCPG does not learn ({begin} % at the start and {end} % after" in page
    (ended,) = effects("ship-steering-printed", "ship-printed-bac")
    assert f"BAC ends at {ended['words'].split()[0]} %" in page
    (endless,) = effects("random-walk-printed", "walk-endless-rate-printed")
    assert f"and in {endless['words'].split()[0]} with Algorithm 3's G as printed." in page
    for end, claim, says in (
        ("", "lqr-2-angular", "by a factor of {:.2f} at M = 5"),
        ("-readings", "lqr-2-angular-1", "({:.2f} with Σ = I;"),
    ):
        of = effects(f"lqr-gradient{end}", claim)
        assert [e["where"] for e in of if e["value"] < 1] == ["M = 5", "M = 10"]
        assert says.format(1 / of[0]["value"]) in page
    gain, cost, _ = lqr_learning.optimum()
    assert f"| LQR, optimum | λ* ≈ −0.92 | −{-gain:.3f}; η is {cost:.4f} at both |" in page


def test_the_constants_of_networks_in_the_pages_are_those_of_the_code():
    page = (ROOT / "docs" / "algorithms" / "actor-critic.md").read_text("utf-8")
    assert rf"$D = G + {DAMPING}\,\frac" in page
    assert rf"the factor is ${SHARE}\,n$ in place of {DAMPING}:" in page
    assert f"at these {BATCHES * KEPT} states" in page
    assert f"in the metric of {SUBSET} of the states" in page
    rivals = (ROOT / "docs" / "guides" / "stable-baselines3.md").read_text("utf-8")
    assert f"a network of {' x '.join(map(str, HIDDEN))} for continuous actions" in rivals


def judged():
    """The paper's sentences, judged from the stored results."""
    return sentences.fold(paper.read(RESULTS, list(EXPERIMENTS)))


def test_the_verdicts_of_readme_and_ledger_are_those_of_the_stored_results():
    counts = sentences.counts(judged())
    words = ", ".join(f"{count} {sentences.OUTCOMES[of]}" for of, count in counts.items())
    total = sum(counts.values())
    ledger, readme = ((ROOT / page).read_text() for page in ("docs/reproduction.md", "README.md"))
    assert f"{total} sentences about its experiments and conclusions: {words}" in readme
    assert f"| sentences of the paper | {total} |" in ledger
    for outcome, count in counts.items():
        assert f"| {outcome} | {count} |" in ledger


def test_findings_say_of_every_sentence_that_is_not_decided_what_would_decide_it():
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    table = page.split("## What would decide the rest\n")[1].split("\n## ")[0]
    named = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)))
    assert sorted(named) == sorted(of.name for of in judged() if of.verdict == "not decided")


def test_the_ledger_is_that_of_the_stored_results():
    ledger = runpy.run_path(str(ROOT / "docs" / "render.py"))["ledger"]
    stored = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    assert stored == ledger(paper.read(RESULTS, list(EXPERIMENTS))), "run python docs/render.py"


def test_every_stored_claim_is_one_that_its_samples_give():
    """The files were judged again after the last change of a claim."""
    for name, experiment in (EXPERIMENTS | experiments.EXPERIMENTS).items():
        stored = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["claims"]
        found = experiment.judge(Samples.load(RESULTS / f"{name}.npz"))
        keys = ("id", "sentence", "reading", "says", "verdict")
        assert [[claim[k] for k in keys] for claim in stored] == [
            [claim.content()[k] for k in keys] for claim in found
        ], name


def test_every_proposition_has_tests_that_there_are():
    ledger = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    for number in range(1, 8):
        (row,) = re.findall(rf"^\| Proposition {number} \|.*", ledger, re.MULTILINE)
        named = re.findall(r"`(tests/\w+\.py)::(\w+)`", row)
        assert named
        for file, test in named:
            assert f"def {test}(" in (ROOT / file).read_text("utf-8"), test


def test_no_page_judges_a_direction_by_the_paths_that_chose_it():
    """Except the one that says why not."""
    optimistic = re.compile(r"probability_uphill\(posterior\.|\[.sure.\]")
    for page in [*PAGES, *(ROOT / "examples").glob("*.py")]:
        if page.name != "decide.md":
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
