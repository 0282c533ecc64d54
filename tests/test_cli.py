"""The command line, as a user meets it."""

import functools
import json
import operator
import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import experiments
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from bayespg._support.version import with_jax
from bayespg.cli import app, common, demo, main
from bayespg.cli.common import bars, some_columns
from bayespg.reproduce import EXPERIMENTS, bandit
from bayespg.reproduce.samples import Samples

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def bayespg(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_help_names_the_commands():
    done = bayespg("--help")
    assert done.exit_code == 0
    for command in app.registered_commands:
        assert command.callback.__name__ in done.output


def test_the_demo_judges_a_direction_by_a_short_step():
    class State(eqx.Module):
        policy: jax.Array

    class Judge:  # the return is highest a third of a step ahead
        state = State(jnp.zeros(2))

        def evaluate(self, episodes, seed):
            return SimpleNamespace(mean=-abs(float(self.state.policy[0]) - 1 / 3))

    before = State(jnp.zeros(2))
    found = [demo.uphill(Judge(), before, State(jnp.array([x, 2.0]))) for x in (1.0, -1.0, 10.0)]
    assert found == [1.0, 0.0, 0.0]
    assert demo.uphill(Judge(), before, State(jnp.array([0.0, 2.0]))) == 0.5
    assert np.isnan(demo.uphill(Judge(), before, before))
    with jax.enable_x64(True):
        double = [State(jnp.array(x)) for x in ([0.0, 0.0], [1.0, 2.0])]
    with warnings.catch_warnings():  # JAX would say that it truncates them
        warnings.simplefilter("error")
        assert demo.uphill(Judge(), *double) == 1.0


def test_reproduce_without_a_name_lists_the_experiments():
    shown = bayespg("reproduce").output
    for name in ("bandit", "lqr-gradient", "lqr-variance"):
        assert name in shown


def test_a_typo_gets_a_suggestion(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bayespg", "reproduce", "lqr-gradeint"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "did you mean 'lqr-gradient'?" in capsys.readouterr().err


def test_a_command_s_typo_gets_a_suggestion():
    assert "Did you mean 'reproduce'?" in bayespg("reproduse").output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--quick", "--paper"], "contradict"),
        (["--again"], "--again: works with"),
        (["--jobs", "2"], "--jobs: works with"),
        (["--judge", "--runs", "5"], "--judge: takes a name and --out only"),
        (["--judge", "--out", "nowhere"], "--judge: nowhere does not hold both"),
        (["--only", "bandit"], "--only: works with 'all' only"),
        (["--quick", "--out", "/dev/null/x"], "/x: this directory cannot be created (Not a d"),
    ],
)
def test_an_error_is_one_sentence(options, says, monkeypatch, capsys):
    fails(["reproduce", "bandit", *options], says, monkeypatch, capsys)


def fails(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bayespg", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr().err
    assert stop.value.code == 2
    assert says in " ".join(shown.split())
    assert "Traceback" not in shown


def test_bad_names_folders_and_files_of_results_get_a_sentence(tmp_path, monkeypatch, capsys):
    def wrong(says, *arguments):
        fails(arguments, says, monkeypatch, capsys)

    none = tmp_path / "none"
    wrong("'figure-3' is a sentence of the paper, not an exp", "reproduce", "figure-3")
    wrong("did you mean 'walk-robust'?", "reproduce", "walk-robst")
    wrong("none: there is no such directory", "report", none)
    wrong("holds no samples (.npz)", "reproduce", "all", "--judge", "--out", none)
    assert not none.exists()
    for kind in ("json", "npz"):
        shutil.copy(RESULTS / f"lqr-rates.{kind}", tmp_path)
        shutil.copy(RESULTS / f"random-walk-rates.{kind}", tmp_path)
    judge = ("reproduce", "lqr-rates", "--judge", "--out", tmp_path)
    stored = (tmp_path / "lqr-rates.json").read_text("utf-8")
    (tmp_path / "lqr-rates.json").write_text(stored[: len(stored) // 2], "utf-8")
    wrong("lqr-rates.json: damaged, or from another version; run 'bayespg", *judge)
    shown = bayespg("report", str(tmp_path))
    assert shown.exit_code == 0
    assert "Left out, because damaged or from another version: lqr-rates.json." in shown.output
    for path, value in ((("configuration",), {}), (("claims", 0, "effects", 0), {}),
                        (("claims", 0, "sentence"), "figure-33")):  # fmt: skip
        other = json.loads(stored)
        functools.reduce(operator.getitem, path[:-1], other)[path[-1]] = value
        (tmp_path / "lqr-rates.json").write_text(json.dumps(other), "utf-8")
        shown = bayespg("report", str(tmp_path))
        assert "or from another version: lqr-rates.json." in shown.output
    (tmp_path / "lqr-rates.json").write_text(stored, "utf-8")
    own = (tmp_path / "lqr-rates.npz").read_bytes()
    shutil.copy(RESULTS / "bandit.npz", tmp_path / "lqr-rates.npz")
    wrong("lqr-rates.npz: does not hold what the claims compare", *judge)
    (tmp_path / "lqr-rates.npz").write_bytes(own)
    content = (tmp_path / "lqr-rates.npz").read_bytes()
    for damaged in (content[:1000], content[:2000] + bytes(99) + content[2099:]):
        (tmp_path / "lqr-rates.npz").write_bytes(damaged)
        wrong("lqr-rates.npz: not a file of samples, or damaged", *judge)


def test_the_command_line_counts_sentences_and_says_why_nothing_is_decided(tmp_path):
    for name in ("random-walk-rates", "random-walk-learning"):
        for kind in ("json", "npz"):
            shutil.copy(RESULTS / f"{name}.{kind}", tmp_path)
    shown = bayespg("reproduce", "all", "--judge", "--out", str(tmp_path)).output
    words = " ".join(shown.split())
    assert re.search(r"Sentences of the paper with results in .*: 1 hold as printed, 1 hold", words)
    samples = Samples.load(tmp_path / "random-walk-rates.npz")
    Samples({k: v for k, v in samples.items() if k[2] == 1}).save(
        tmp_path / "random-walk-rates.npz"
    )
    shown = bayespg("reproduce", "random-walk-rates", "--judge", "--out", str(tmp_path)).output
    assert "No claim can be judged at these sizes; --paper has those of the paper." in shown


def test_reproduce_writes_numbers_and_a_page_and_skips_what_is_done(tmp_path, monkeypatch):
    judged = {name: bandit.ESTIMATORS[name] for name in ("MC", "BQ")}  # quick to compile
    monkeypatch.setattr(bandit, "ESTIMATORS", judged)
    command = ("reproduce", "all", "--only", "bandit, bandit", "--runs", "50", "--out")
    first, second = bayespg(*command, str(tmp_path)), bayespg(*command, str(tmp_path))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    assert "Already done" not in first.output
    assert "Already done (--again repeats them): bandit" in second.output
    assert "six orders of magnitude" in (tmp_path / "report.html").read_text("utf-8")
    content = json.loads((tmp_path / "bandit.json").read_text())
    assert content["configuration"]["runs"] == 50
    assert {"jax", "bayespg"} <= content["versions"].keys()
    assert (tmp_path / "bandit.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_experiments_of_our_own_are_run_and_shown_as_those_of_the_paper(tmp_path):
    run = functools.partial(CliRunner().invoke, experiments.app, obj=experiments.EXPERIMENTS)
    assert "uphill-tasks" in run([]).output
    for kind in ("json", "npz", "svg"):
        shutil.copy(RESULTS / f"calibration.{kind}", tmp_path)
    stored = (tmp_path / "calibration.json").read_bytes()
    judged = run(["calibration", "--judge", "--out", str(tmp_path)])
    assert judged.exit_code == 0, judged.output
    assert (tmp_path / "calibration.json").read_bytes() == stored
    (tmp_path / "report.html").unlink()
    assert bayespg("report", str(tmp_path)).exit_code == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "python benchmarks/experiments.py calibration --paper --runs 10000 --seed 0" in page
    assert experiments.EXPERIMENTS.keys().isdisjoint(EXPERIMENTS)


@pytest.mark.parametrize("name", sorted({**EXPERIMENTS, **experiments.EXPERIMENTS}))
def test_an_experiment_can_be_sent_to_another_process(name):
    experiment = {**EXPERIMENTS, **experiments.EXPERIMENTS}[name]
    assert pickle.loads(pickle.dumps(experiment)).name == name


def test_importing_starts_no_device_and_changes_no_setting():
    script = (
        "import jax; before = dict(jax.config.values);"
        "import bayespg; from jax._src import xla_bridge;"
        "assert not xla_bridge.backends_are_initialized();"
        "assert dict(jax.config.values) == before"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_small_pool_is_avoided_and_a_user_s_own_size_respected():
    script = (
        "import os, bayespg._support.threads as t; t.cores = lambda: 2;"
        "os.environ.pop('NPROC', None); t.protect(); assert os.environ['NPROC'] == '8';"
        "os.environ['NPROC'] = '1'; t.protect(); assert os.environ['NPROC'] == '1'"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.slow
def test_many_batched_factorisations_at_once_do_not_freeze():
    program = """
import bayespg, jax, jax.numpy as jnp
def one(key):
    A = jax.random.normal(key, (64, 30, 30))
    return jnp.linalg.cholesky(A @ A.mT + 30 * jnp.eye(30)).sum()
many = jax.jit(lambda keys: [one(key) for key in keys])
for i in range(50):
    jax.block_until_ready(many(jax.random.split(jax.random.key(i), 6)))
"""
    clean = {k: v for k, v in os.environ.items() if k != "NPROC"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=clean)


def test_a_file_gets_lines_while_a_command_runs(capsys, monkeypatch):
    """The first and the last of each name, and one every few seconds, each at once."""
    now = [0.0]
    monkeypatch.setattr(common.time, "monotonic", lambda: now[0])
    with bars() as advance:
        advance("a", 0.0, "")
        assert capsys.readouterr().out == "a    0%  0 s\n"
        for second in range(1, 9):
            now[0] = float(second)
            advance("a", second / 10, f"return {second}")
        advance("b", 0.5, "")
        advance("a", 1.0, "return 9")
        advance("a", 1.0, "")
    assert capsys.readouterr().out.splitlines() == [
        "a   50%  return 5  5 s  about 5 s left", "b   50%  8 s", "a  100%  return 9  8 s"
    ]  # fmt: skip


def test_a_wide_table_shows_its_ends_and_some_between():
    assert some_columns(5) == [0, 1, 2, 3, 4]
    shown = some_columns(21)
    assert shown[:2] == [0, 1]
    assert shown[-1] == 20
    assert len(shown) == 7 == len(set(shown))


def test_the_version_is_shown_without_loading_jax():
    code = (
        "import sys; sys.argv[1:] = ['--version']; from bayespg.cli import main; main(); "
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout == with_jax() + "\n"
