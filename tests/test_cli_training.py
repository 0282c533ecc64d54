"""bayespg train, evaluate, plot, watch and environments, as a user meets them."""

import json
import re
import shutil
import sys
from typing import get_args

import gymnasium
import numpy as np
import pytest
import typer
from PIL import Image
from rich.markup import escape
from typer.testing import CliRunner

from bayespg.agents import load
from bayespg.agents.agent import Agent
from bayespg.agents.describe import default, meanings
from bayespg.agents.imports import resuming
from bayespg.agents.settings import DEFAULTS, FIELDS
from bayespg.cli import app, main
from bayespg.environments import classic
from bayespg.runs import seeds
from bayespg.runs.store import METRICS, Run

COLUMNS = ("update", "steps", "return", "sure")


def bayespg(*arguments):
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    small = ("--steps", 150, "--episodes", 2, "--seeds", 2, "--tensorboard", "--live")
    quick = ("--policy", "linear", "--estimator", "fitted")  # to compile
    done = bayespg("train", "CartPole-v1", *quick, *small, "--out", folder)
    assert done.exit_code == 0, done.output
    assert "10 parameters" in done.output
    return folder


def test_a_run_directory_holds_everything(run):
    for seed in (0, 1):
        found = Run.open(run / f"seed-{seed}")
        assert found.config["environment"] == "CartPole-v1"
        assert found.config["seed"] == seed
        assert found.metrics()["steps"][-1] >= 150
        assert list((run / f"seed-{seed}" / "tensorboard").iterdir())
    assert Image.open(run / "plots" / "learning.png").size[0] > 800
    page = (run / "live.html").read_text()
    assert "How certain the gradients were" in page
    assert "http-equiv" not in page


def test_evaluate_tells_episodes_from_seeds(run, tmp_path):
    shown = bayespg("evaluate", run, "--episodes", 3, "--out", tmp_path / "numbers.json").output
    assert "95 % over 3 episodes" in shown
    assert "Mean over 2 seeds" in shown
    assert "2 seeds: " in shown
    found = json.loads((tmp_path / "numbers.json").read_text())
    assert found["episodes"] == 3
    assert [len(one["returns"]) for one in found["runs"].values()] == [3, 3]


def test_plot_compares_runs(run, tmp_path):
    bayespg("plot", run, run / "seed-1", "--out", tmp_path / "both.png")
    assert np.asarray(Image.open(tmp_path / "both.png")).std() > 0


def test_several_runs_are_drawn_beside_them_and_of_one_task_only(tmp_path):
    folders = [logged(tmp_path / name / "seed-0").parent for name in ("one", "two")]
    bayespg("plot", *folders)
    assert (tmp_path / "one-and-two.png").exists()
    assert not (tmp_path / "one" / "plots").exists()
    logged(tmp_path / "other" / "seed-0", environment="B-v0")
    with pytest.raises(ValueError, match=r"different tasks \(A-v0, B-v0\).*bayespg report"):
        bayespg("plot", folders[0], tmp_path / "other")
    bayespg("report", folders[0], tmp_path / "other", "--out", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("Learning on") == 4


def test_without_its_package_tensorboard_leaves_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    words = ("train", "CartPole-v1", "--policy", "linear", "--tensorboard", "--out", tmp_path / "x")
    assert "pip install 'bayespg[tensorboard]'" in said(monkeypatch, capsys, *words)
    assert not (tmp_path / "x").exists()


def test_a_task_that_needs_a_screen_says_what_to_set(run, tmp_path, monkeypatch):
    problem = type("FatalError", (Exception,), {"__module__": "mujoco"})

    def play(*_):
        raise problem("no OpenGL")

    monkeypatch.setattr("bayespg.agents.film._play", play)
    done = CliRunner().invoke(app, ["watch", str(run), "--out", str(tmp_path / "film.gif")])
    assert "MUJOCO_GL to egl or osmesa (no OpenGL)" in str(done.exception)


def test_watch_writes_a_film(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    bayespg("watch", run, "--out", tmp_path / "film.gif")
    assert Image.open(tmp_path / "film.gif").n_frames > 5


def test_a_finished_run_has_nothing_to_resume(run):
    assert bayespg("train", "--resume", run).output.count("done") == 2


@pytest.mark.slow
def test_a_finished_run_is_trained_for_longer(tmp_path):
    folder = tmp_path / "run"
    small = ("--steps", 30, "--episodes", 1, "--seeds", 2, "--out", folder)
    bayespg("train", "CartPole-v1", *small)
    with pytest.raises(ValueError, match=r"seed-0 has \d+ steps.* 20 more give --steps \d"):
        bayespg("train", "--resume", folder, "--steps", 20)
    done = bayespg("train", "--resume", folder, "--steps", 60)
    assert done.exit_code == 0, done.output
    for seed in (0, 1):
        found = Run.open(folder / f"seed-{seed}")
        assert (found.config["steps"], found.config["extended"]) == (60, [30])
        assert found.metrics()["steps"][-1] >= 60
    assert "seed-1" in bayespg("evaluate", folder, "--best", "--episodes", 2).output


@pytest.mark.slow
def test_resuming_begins_the_seeds_that_had_not_begun(tmp_path, monkeypatch):
    folder = tmp_path / "three"
    learn = Agent.learn

    def interrupted(self, *arguments, **keywords):
        learn(self, *arguments, **keywords)
        self.interrupted = self.settings.seed == 1
        return self

    quick = ("--steps", 30, "--episodes", 1, "--policy", "linear", "--estimator", "gpomdp")
    small = (*quick, "--seeds", 3, "--out", folder)
    with monkeypatch.context() as patched:
        patched.setattr(Agent, "learn", interrupted)
        done = bayespg("train", "CartPole-v1", *small)
    assert done.exit_code == 130
    assert "Not started: seed 2." in done.output
    assert f"--resume {folder}" in done.output.replace("\n", "")
    assert not (folder / "seed-2").exists()
    done = bayespg("train", "--resume", folder)
    assert done.exit_code == 0, done.output
    assert Run.open(folder / "seed-2").config["seed"] == 2
    assert "3 seeds" in done.output
    with pytest.raises(ValueError, match="holds seeds with steps 30, not 40"):
        bayespg("train", "CartPole-v1", *quick, "--steps", 40, "--seed", 5, "--out", folder)


@pytest.mark.slow
def test_search_in_the_space_of_parameters_has_a_budget_of_episodes(tmp_path):
    given = ("CartPole-v1", "--algorithm", "pgpe", "--max-episodes", 6, "--out", tmp_path / "run")
    shown = bayespg("train", *given).output
    assert "4 parameters, 5 episodes per update" in " ".join(shown.split())
    assert Run.open(tmp_path / "run" / "seed-0").metrics()["episodes"].tolist() == [5, 10]
    bayespg("train", "--resume", tmp_path / "run")
    assert Run.open(tmp_path / "run" / "seed-0").metrics()["episodes"].tolist() == [5, 10]
    with pytest.raises(ValueError, match=r"^max_episodes: "):
        bayespg("train", "CartPole-v1", "--max-episodes", 6)


def test_environments_lists_the_paper_s_and_gymnasium_s():
    shown = bayespg("environments").output
    assert "mountain-car" in shown
    assert "CartPole-v1" in shown
    listed = bayespg("environments", "jax/").output
    assert listed.count("Gymnasium's, in JAX") == len(classic.NAMES)
    assert "<function" not in shown


# Names and files of all kinds.


def logged(path, columns=COLUMNS, environment="A-v0", rows=5):
    """A run that was never trained, quickly."""
    with Run.create(path, {"environment": environment, "steps": 100}) as run:
        for i in range(1, rows + 1):
            run.log(dict.fromkeys(columns, float(i)))
    return path


def said(monkeypatch, capsys, *words):
    """What the command says in one sentence, when it fails."""
    monkeypatch.setattr(sys, "argv", ["bayespg", *map(str, words)])
    monkeypatch.setattr("bayespg._support.compilation.remember", lambda: None)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert len(told.strip().splitlines()) == 1 + sum(str(word).count("\n") for word in words)
    return told


NAMES = ["x[/bold] $\\bad$", "_[red]x[/bold]$\\bad$\\", "\x1b[31mred\nline\udcff"]


@pytest.mark.slow("_[red]x[/bold]$\\\\bad$\\\\")
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_folder_may_have_any_name(tmp_path, name):
    folder = tmp_path / name
    logged(folder / "seed-0", environment=name)
    for words in (("plot",), ("plot", "--out", folder / "[/bold].svg"), ("report",)):
        done = bayespg(words[0], folder, *words[1:])
        assert done.exit_code == 0
        assert "\x1b" not in done.output
    for made in ("plots/learning.png", "[/bold].svg", "report.html"):
        assert (folder / made).stat().st_size > 1000
    if name.isprintable():
        assert name in done.output


def test_training_in_a_folder_of_any_name(tmp_path):
    folder = tmp_path / "x[/bold]$\\bad$"
    quick = ("--policy", "linear", "--estimator", "gpomdp", "--steps", 5, "--episodes", 1)
    done = bayespg("train", "CartPole-v1", *quick, "--out", folder)
    assert done.exit_code == 0
    assert f"Run: {folder}" in done.output
    assert f"Picture: {folder / 'plots' / 'learning.png'}" in done.output
    done = bayespg("train", "--resume", folder)
    assert f"{folder / 'seed-0'}: done" in done.output


@pytest.mark.parametrize("name", NAMES)
def test_an_error_names_any_file(tmp_path, name, monkeypatch, capsys):
    told = said(monkeypatch, capsys, "evaluate", tmp_path / name)
    assert "no run is here" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("command", ["plot", "report"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("update,steps,sure\n1,2,3\n", "has no column return, only update, steps"),
        ("update,return\n1,2\n", "has no column steps"),
        ("a,b\n1,2\n", "line 1 must name the columns"),
        ("update,steps,return,sure\n1,x,3,4\n", "column steps must hold numbers"),
        ("update,steps,return,sure\n1,nan,3,4\n", "steps must hold numbers that"),
        ("update,steps,return,sure\n1,9,3,4\n2,8,3,4\n", "numbers that grow"),
        ("update,steps\n1\n", "line 2 has 1 cells, expected 2"),
        ("", "no update has been logged yet"),
    ],
)
def test_metrics_that_cannot_be_drawn_are_named(
    tmp_path, command, content, says, monkeypatch, capsys
):
    folder = tmp_path / "run"
    logged(folder / "seed-0")
    (folder / "seed-0" / METRICS).write_text(content)
    told = said(monkeypatch, capsys, command, folder)
    assert says in told
    assert METRICS in told or not content


def test_a_report_leaves_out_what_was_not_logged(tmp_path):
    logged(tmp_path / "run" / "seed-0")
    logged(tmp_path / "run" / "seed-1", rows=0)
    assert bayespg("report", tmp_path / "run").exit_code == 0
    own = (tmp_path / "run" / "report.html").read_text()
    assert "seed-1" in own
    logged(tmp_path / "other" / "seed-0")
    assert bayespg("report", tmp_path / "run", tmp_path / "other").exit_code == 0
    assert "other" in (tmp_path / "run-and-other.html").read_text()
    assert (tmp_path / "run" / "report.html").read_text() == own


def test_a_picture_of_no_known_kind_is_refused(tmp_path, monkeypatch, capsys):
    logged(tmp_path / "run")
    for name in ("picture", "picture.doc"):
        told = said(monkeypatch, capsys, "plot", tmp_path / "run", "--out", tmp_path / name)
        assert "expected a picture such as learning.png" in told


def test_a_folder_that_is_no_seed_is_named(tmp_path, monkeypatch, capsys):
    logged(tmp_path / "run" / "seed-0")
    (tmp_path / "run" / "seed-notes").mkdir()
    assert bayespg("plot", tmp_path / "run").exit_code == 0
    logged(tmp_path / "run" / "seed-abc")
    for command in ("plot", "report", "evaluate", "watch"):
        told = said(monkeypatch, capsys, command, tmp_path / "run")
        assert "seed-abc: is a run, but its name is not seed- and a number; rename it" in told
    told = said(monkeypatch, capsys, "train", "--resume", tmp_path / "run")
    assert "seed-abc" in told


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[0, ", "damaged"),
        ("{}", "expected a list of seeds and its sha256, found {}"),
        ('{"seeds": [0, 1], "sha256": "0"}', "wrong checksum, it was changed"),
        ("3", "expected a JSON object or list, found 3"),
        ("[9223372036854775808]", "expected a list of seeds, found 9223372036854775808"),
        ('["a"]', "expected a list of seeds, found 'a'"),
        ("[-1]", "expected a list of seeds, found -1"),
        ("[true]", "expected a list of seeds, found True"),
        ("[" * 100_000, "damaged"),
    ],
)
def test_a_damaged_plan_is_named(run, tmp_path, content, says, monkeypatch, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / "seeds.json").write_text(content)
    told = said(monkeypatch, capsys, "train", "--resume", folder)
    assert f"seeds.json: {says}" in told


def test_every_flipped_bit_of_the_plan_is_found_or_does_not_matter(tmp_path):
    seeds.plan(tmp_path, [0, 5, 12], {})
    content = (tmp_path / "seeds.json").read_bytes()
    assert json.loads(content)["seeds"] == [0, 5, 12]
    for at in range(8 * len(content)):
        changed = bytearray(content)
        changed[at // 8] ^= 1 << at % 8
        (tmp_path / "seeds.json").write_bytes(changed)
        try:
            assert seeds.waiting(tmp_path) == [0, 5, 12]  # a space became another
        except ValueError as problem:
            assert "seeds.json" in str(problem)  # noqa: PT017
    (tmp_path / "seeds.json").write_text("[3, 1]\n")  # as written by hand
    assert seeds.waiting(tmp_path) == [1, 3]
    seeds.plan(tmp_path, [2], {})
    assert seeds.waiting(tmp_path) == [1, 2, 3]


def test_a_seed_that_the_caller_gave_is_not_blamed_on_the_configuration(run):
    with pytest.raises(ValueError, match=r"^seed: expected a whole number from 0, found -1"):
        load.reopen(run / "seed-0", seed=-1)


def test_seeds_are_not_trained_through_a_link(run, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    victim = shutil.move(folder / "seed-0", tmp_path / "victim")
    (folder / "seed-0").symlink_to(victim)
    before = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    for jobs in ((), ("--jobs", 1)):
        words = ("train", "--resume", folder, "--steps", 300, *jobs)
        assert "seed-0: is a symbolic link" in said(monkeypatch, capsys, *words)
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == before
    assert bayespg("plot", folder).exit_code == 0  # which only reads there
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "episodes=2").symlink_to(victim)
    words = ("sweep", "CartPole-v1", "--set", "episodes=2", "--out", tmp_path / "sweep")
    assert "episodes=2: is a symbolic link" in said(monkeypatch, capsys, *words)


def test_pictures_are_not_drawn_through_a_link(tmp_path, monkeypatch, capsys):
    logged(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "plots").symlink_to(tmp_path / "elsewhere")
    assert "plots: is a symbolic link" in said(monkeypatch, capsys, "plot", tmp_path / "run")
    (tmp_path / "victim").write_text("precious")
    for name in ("report.html", ".report.html.partial"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "victim")
    assert bayespg("report", tmp_path / "run").exit_code == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert not list((tmp_path / "elsewhere").iterdir())


# Saved agents and modules.


@pytest.mark.slow
def test_a_saved_agent_says_how_it_is_trained_on(run, tmp_path, monkeypatch, capsys):
    load.load(run / "seed-0").save(tmp_path / "kept")
    told = said(monkeypatch, capsys, "train", "--resume", tmp_path / "kept")
    assert "is a saved agent" in told
    assert ".learn(STEPS, run='NEW FOLDER')" in told
    again = load.load(tmp_path / "kept").learn(1, run=tmp_path / "new", progress=False)
    done = bayespg("train", "--resume", tmp_path / "new")
    assert f"done, {int(again.state.steps):,} steps" in done.output


@pytest.mark.parametrize("steps", ["many", -3, True, [1], None, float("nan")])
def test_steps_that_are_no_number_are_named(run, tmp_path, steps, monkeypatch, capsys):
    folder = shutil.copytree(run / "seed-0", tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"steps": steps}))
    told = said(monkeypatch, capsys, "train", "--resume", folder)
    assert "saved agent" in told if steps is None else "config.json: steps must be a number" in told


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with an environment, which leaves a trace where it is imported."""
    trace = tmp_path / "trace"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_tasks.py").write_text(
        "import gymnasium, pathlib\n"
        f"pathlib.Path({str(trace)!r}).touch()\n"
        "gymnasium.register('Own-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    yield trace
    sys.modules.pop("own_tasks", None)
    gymnasium.registry.pop("Own-v0", None)


def test_a_module_that_a_run_names_is_imported_only_with_consent(
    run, module, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("bayespg.agents.film.record", lambda *_: [1.0])
    folder = shutil.copytree(run / "seed-0", tmp_path / "downloaded")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"environment": "own_tasks:Own-v0"}))
    commands = (
        ("evaluate", folder, "--episodes", 1),
        ("watch", folder),
        ("train", "--resume", folder),
    )
    for words in commands:
        told = said(monkeypatch, capsys, *words)
        assert "config.json: asks to import the module 'own_tasks'" in told
        assert "--import own_tasks" in told
    for words in (("plot", folder), ("report", folder)):
        assert bayespg(*words).exit_code == 0
    assert not module.exists()
    for words in commands:
        assert bayespg(*words, "--import", "own_tasks").exit_code == 0
    assert module.exists()


@pytest.mark.slow
def test_a_module_that_the_user_types_is_imported(module, tmp_path):
    out = tmp_path / "run"
    small = ("--steps", 5, "--episodes", 1, "--out", out)
    assert bayespg("train", "Own-v0", "--import", "own_tasks", *small).exit_code == 0
    assert Run.open(out / "seed-0").config["environment"] == "own_tasks:Own-v0"
    shutil.rmtree(out)
    assert bayespg("train", "own_tasks:Own-v0", *small).exit_code == 0
    agent, found = load.resume(out / "seed-0", imports="own_tasks")
    assert resuming(found.path, agent.config).endswith(f"{out / 'seed-0'} --import own_tasks")


def test_a_module_that_is_not_there_is_named(run, monkeypatch, capsys):
    for words in (("evaluate", run), ("train", "CartPole-v1")):
        told = said(monkeypatch, capsys, *words, "--import", "no_such_module")
        assert "import: no_such_module cannot be imported" in told


def test_every_setting_is_an_option_of_train_with_its_own_text():
    options = {one.name: one for one in typer.main.get_command(app).commands["train"].params}
    assert set(FIELDS) < set(options)
    assert options["lambda_"].opts == ["--lambda"]
    for name, field in FIELDS.items():
        assert options[name].help == escape(meanings()[name])
        assert options[name].show_default == default(field)
        flag = bool in get_args(field.type)
        assert options[name].secondary_opts == ([f"--no-{name}"] if flag else [])
        assert name in (Agent.__doc__ or "")
        assert meanings()[name] in " ".join((Agent.__doc__ or "").split())


def test_the_help_of_train_states_the_defaults_in_force():
    """Of every setting that has one, and of the policy for choices, continuous actions and
    estimators of the paper."""
    shown = {
        option.name: option.show_default
        for option in typer.main.get_command(app).commands["train"].params
    }
    for name, value in DEFAULTS.items():
        words = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert re.match(rf"{re.escape(words)}\b", shown[name]), name
    agents = {
        "choices": Agent("CartPole-v1"), "continuous": Agent("Pendulum-v1"),
        "without a metric": Agent("CartPole-v1", estimator="mcpg"),
    }  # fmt: skip
    for kind, agent in agents.items():
        assert re.search(rf"{agent.config['policy']} for [^,;]*{kind}", shown["policy"]), kind
    assert shown["episodes"].startswith(str(agents["choices"].config["episodes"]))
    assert f"{agents['without a metric'].episodes} where" in shown["episodes"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train"], "give an environment"),
        (["train", "CartPol-v1"], "did you mean 'CartPole"),
        (["train", "CartPole-v1", "--policy", "linera"], "did you mean 'linear'"),
        (["train", "CartPole-v1", "--algorithm", "bca"], "did you mean 'bac'"),
        (["train", "CartPole-v1", "--algorithm", "bac", "--estimator", "mc"], "one of the two"),
        (["train", "--resume", "there", "--policy", "mlp"], "policy: a resumed run keeps its"),
        (["train", "CartPole-v1", "--hidden", "big"], "expected widths"),
        (["sweep", "CartPole-v1", "--set", "hidden=abc"], "hidden: expected widths such as 64x64"),
        (["train", "CartPole-v1", "--discount", "2"], "discount: expected a number from 0 to 1"),
        (["train", "CartPole-v1", "--hidden", "64,64"], "hidden: (64, 64) would have no effect"),
        (["train", "CartPole-v1", "--rate", "0.1"], "rate: 0.1 would have no effect"),
        (["train", "CartPole-v1", "--lambda", "big"], "lambda_: expected a number from 0 to 1"),
        (["sweep", "CartPole-v1", "--set", "lambda=big"], "lambda_: expected a number from 0 to 1"),
        (["train", "CartPole-v1", "--seed", "1.5"], "seed: expected a whole number"),
        (["train", "mountain-car", "--masks"], "masks: True would have no effect"),
        (["train", "mountain-car", "--policy", "mlp"], "policy: 'mlp' would have no effect"),
        (["train", "mountain-car", "--horizon", "7"], "horizon: 7 would have no effect"),
        (["train", "CartPole-v1", "--algorithm", "bpg", "--estimator", "bac"], "one of the two"),
        (["train", "--resume", "there", "--seed", "0"], "seed: a resumed run keeps its settings"),
        (["train", "--resume", "nowhere"], "no run is here"),
        (["evaluate", "nowhere"], "no run is here"),
    ],
)
def test_a_wrong_word_gets_one_sentence(words, says, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bayespg", *words])
    monkeypatch.setattr("bayespg._support.compilation.remember", lambda: None)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert says in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
