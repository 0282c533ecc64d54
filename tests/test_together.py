"""Work side by side in processes of its own: experiments of `bayespg reproduce all`."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import pytest

from bayespg._support import command, together


def square(name, x, advance):
    advance(0.5, "half")
    return x * x, os.getpid()


def trouble(name, x, advance):
    if x == 1:
        raise ValueError("one is too few")
    if x == 2:
        os._exit(7)
    return x


def test_each_has_its_process_and_says_how_far_it_is():
    said = []
    found = dict(together.run({"a": (2,), "b": (3,)}, square, 2, lambda *news: said.append(news)))
    assert {name: value for name, (value, _) in found.items()} == {"a": 4, "b": 9}
    assert len({pid for _, pid in found.values()} | {os.getpid()}) == 3
    assert sorted(said) == [("a", 0.5, "half"), ("b", 0.5, "half")]


@pytest.mark.parametrize(("x", "says"), [(1, "one is too few"), (2, "a: .* status 7")])
def test_an_error_is_told_when_the_others_have_ended(x, says):
    found = together.run({"a": (x,), "b": (3,)}, trouble, 2, print)
    assert next(found) == ("b", 3)
    with pytest.raises((ValueError, ChildProcessError), match=says):
        next(found)
    assert not multiprocessing.active_children()


def test_an_error_may_be_told_at_once_and_drop_others():
    told = []

    def failed(name, error):
        told.append((name, str(error)))
        return ["c"]

    work = {"a": (1,), "b": (3,), "c": (3,), "d": (4,)}
    assert dict(together.run(work, trouble, 1, print, failed)) == {"b": 3, "d": 4}
    assert told == [("a", "one is too few")]


# Ctrl-C and other ends of the command. Output is read to its end, which comes when the last
# process that shares it has ended.

ONLY = ["reproduce", "all", "--quick", "--jobs", "2", "--only", "lqr-gradient,lqr-noise"]


def forever(name, experiment, settings, out, advance):
    """Experiments that say when they have begun and never end."""
    print("begun", flush=True)
    threading.Event().wait()


@pytest.fixture
def start(tmp_path):
    """Starts Python with the arguments of the command, its output in a pipe."""
    begun = []

    def call(*arguments, **variables):
        path = os.pathsep.join([str(tmp_path), os.path.dirname(__file__), *filter(None, sys.path)])
        process = subprocess.Popen(
            [sys.executable, *arguments, *ONLY, "--out", str(tmp_path / "out")],
            start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | variables | {"PYTHONPATH": path},
        )  # fmt: skip
        begun.append(process)
        return process

    yield call
    for process in begun:
        with contextlib.suppress(ProcessLookupError):  # else the test has failed
            os.killpg(process.pid, signal.SIGKILL)


PATIENT = """
import sys
import test_together
from bayespg.cli import experiments, main
if __name__ == "__main__":
    experiments.make_named = test_together.forever
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_processes_end_with_the_command(how, start):
    process = start("-c", PATIENT)
    for _ in range(2):
        assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, how) if how == signal.SIGINT else process.kill()
    said, _ = process.communicate()
    if how == signal.SIGINT:  # to all of them, as in a terminal
        assert process.returncode == 130
        assert "Interrupted. Files already written are complete." in said
        assert "Traceback" not in said


PRESS = """
import os, signal, sys

class Press:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["PRESS_AT"]:
            if os.environ["PRESS_IN"] == "command":
                os.kill(os.getpid(), signal.SIGINT)
            elif "--multiprocessing-fork" in sys.orig_argv:
                os.killpg(os.getpgrp(), signal.SIGINT)

sys.meta_path.insert(0, Press())
"""


@pytest.mark.slow("command-bayespg.cli.reproducing", "child-jax")
@pytest.mark.parametrize(
    ("where", "module"),
    [("command", "jax"), ("command", "bayespg.cli.reproducing"), ("child", "jax")],
)
def test_ctrl_c_while_modules_are_imported_is_an_interrupt_like_any_other(
    where, module, start, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(PRESS)
    process = start("-m", "bayespg", PRESS_AT=module, PRESS_IN=where)
    said, _ = process.communicate()
    assert process.returncode == 130
    assert "Interrupted." in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "begun", "is_command"),
    [
        (["-m"], ["python", "-u", "-m", "bayespg", "train"], True),
        (["-m"], ["python", "-m", "pytest", "bayespg"], False),
        (["/usr/bin/bayespg", "train"], ["python", "/usr/bin/bayespg", "train"], True),
        (["experiment.py"], ["python", "experiment.py"], False),
        ([""], ["python"], False),
    ],
)
def test_only_the_command_has_its_own_ctrl_c_while_it_is_imported(
    arguments, begun, is_command, monkeypatch
):
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(sys, "orig_argv", begun)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        command.begin()
        assert (signal.getsignal(signal.SIGINT) is command._leave) == is_command
        command.ready()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        command.begin()
        command.ready()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
