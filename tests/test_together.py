"""Experiments side by side."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from bayespg.reproduce import together


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
    with pytest.raises((ValueError, RuntimeError), match=says):
        next(found)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_processes_end_with_the_command(how, tmp_path):
    command = [sys.executable, "-m", "bayespg", "reproduce", "all", "--quick", "--jobs", "2"]
    only = ["--only", "calibration", "--only", "lqr-noise", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command + only, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    time.sleep(6)
    os.kill(process.pid, how)
    process.wait(30)
    for _ in range(50):
        if not _alive(process.pid):
            break
        time.sleep(0.2)
    assert not _alive(process.pid)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert b"Traceback" not in process.stdout.read()


def _alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
