"""Processes of their own: whatever happens to one of them, a sentence says so and the next call is
right."""

import multiprocessing
import os
import signal
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from test_host import Counting, by_state

from bayespg.environments import workers
from bayespg.environments.host import EnvironmentFailure, Host
from bayespg.paths.rollout import play

SEEDS = [5, 3, 8, 9]


class Unreliable(Counting):
    """Its seed says what goes wrong at the second step."""

    RAISES, KILLED, EXITS = 1001, 1002, 1003

    def __init__(self):
        super().__init__(6)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed)

    def step(self, action):
        if self.time == 1:
            if self.seed == self.RAISES:
                raise KeyError("wheel")
            if self.seed == self.KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.seed == self.EXITS:
                sys.exit(3)
        return super().step(action)


def assert_right(host):
    """The paths are those of environments in this process."""
    expected = play(Host(Unreliable, lanes=2), by_state, SEEDS)
    found = play(host, by_state, SEEDS)
    for one, other in zip(vars(found).values(), vars(expected).values(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """Workers that are forked from a clean process which has imported everything start in a
    fraction of the time; one test below starts them as users do."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bayespg.environments.host"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "CONTEXT", context)
        yield


@pytest.fixture(scope="module")
def host():
    made = Host(Unreliable, lanes=2, processes=True)
    yield made
    processes = [worker._process for worker in made._workers]
    made.close()
    assert not any(process.is_alive() for process in processes)


def test_spawned_workers_know_this_process_s_environments_and_never_hear_of_ctrl_c(monkeypatch):
    """A terminal sends Ctrl-C to all processes, also to those that are just starting."""
    monkeypatch.setattr(workers, "CONTEXT", multiprocessing.get_context("spawn"))
    gymnasium.register("OnlyHere-v0", entry_point=Unreliable)
    try:
        host = Host("OnlyHere-v0", lanes=1, processes=True)
    finally:
        del gymnasium.registry["OnlyHere-v0"]
    os.kill(host._workers[0]._process.pid, signal.SIGINT)
    assert_right(host)
    os.kill(host._workers[0]._process.pid, signal.SIGINT)
    assert_right(host)
    host.close()


@pytest.fixture
def pids(host):
    assert_right(host)
    return [worker._process.pid for worker in host._workers]


def now(host):
    return [worker._process.pid for worker in host._workers]


@pytest.mark.parametrize(
    ("seed", "says"),
    [(Unreliable.RAISES, "KeyError: 'wheel'"), (Unreliable.EXITS, "SystemExit: 3")],
)
def test_a_failure_in_one_leaves_all_in_step(host, pids, seed, says):
    for seeds in ([seed, 5, 3], [5, 3, seed], [seed, seed]):
        with pytest.raises(
            EnvironmentFailure, match=f"^Unreliable, episode of seed {seed}, step 2: {says}$"
        ):
            play(host, by_state, seeds)
        assert_right(host)
    assert now(host) == pids


def test_one_killed_in_a_step_is_named_and_started_again(host, pids):
    says = (
        rf"^Unreliable, episode of seed {Unreliable.KILLED}, step 2: WorkerEnded: worker 1 "
        rf"\(process {pids[1]}\) was killed by SIGKILL"
    )
    with pytest.raises(EnvironmentFailure, match=says):
        play(host, by_state, [5, Unreliable.KILLED])
    assert_right(host)
    assert now(host)[0] == pids[0]
    assert now(host)[1] != pids[1]


def test_one_killed_between_calls_is_named_and_started_again(host, pids):
    os.kill(pids[0], signal.SIGTERM)
    host._workers[0]._process.join()
    says = rf"step 0: WorkerEnded: worker 0 \(process {pids[0]}\) was killed by signal 15"
    with pytest.raises(EnvironmentFailure, match=says):
        play(host, by_state, SEEDS)
    assert_right(host)


def test_an_interrupt_between_question_and_answer_ends_those_that_have_not_answered(
    host, pids, monkeypatch
):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(host._workers[1], "answer", interrupted)
    old = host._workers[1]._process
    with pytest.raises(KeyboardInterrupt):
        play(host, by_state, SEEDS)
    assert not old.is_alive()
    monkeypatch.undo()
    assert_right(host)
    assert now(host)[0] == pids[0]


def test_an_answer_to_another_question_is_not_taken(host, pids):
    """What an interrupt in the middle of a call would leave in the pipe."""
    worker = host._workers[0]
    worker._pipe.send_bytes(cloudpickle.dumps((0, ("reset", 0, 3))))
    with pytest.raises(EnvironmentFailure, match="worker 0 answered request 0 where"):
        play(host, by_state, SEEDS)
    assert_right(host)


def test_a_question_whose_answer_nobody_fetched_is_forgotten(host, pids):
    host._workers[0].ask(("reset", 0, 3))
    assert host._workers[0].owes
    assert_right(host)


class Elsewhere(Counting):
    """Another environment in another process."""

    def __init__(self, fault, home=os.getpid()):
        super().__init__(6)
        if os.getpid() != home:
            if fault == "made":
                raise RuntimeError("no display")
            self.action_space = type(self.action_space)(-2, 2, (1,))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("made", "^Elsewhere, episode of seed 5, step 0: RuntimeError: no display$"),
        ("spaces", "^Elsewhere, episode of seed 5, step 0: .*the action space is Box.* where it"),
    ],
)
def test_an_environment_that_is_another_in_its_process_is_refused(fault, says):
    home = os.getpid()
    host = Host(lambda: Elsewhere(fault, home), lanes=1, processes=True)
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match=says):
            play(host, by_state, [5])
    host.close()


class Stubborn(Counting):
    """Cannot be closed, and does not listen."""

    def reset(self, *, seed=None, options=None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().reset(seed=seed)

    def close(self):
        signal.pause()


def test_one_that_cannot_be_closed_is_ended_all_the_same(monkeypatch):
    monkeypatch.setattr("bayespg.environments.workers.PATIENCE", 0.2)
    host = Host(Stubborn, lanes=1, processes=True)
    play(host, by_state, [5])
    process = host._workers[0]._process
    host.environments.clear()  # that of this process would hang
    host.close()
    assert process.exitcode == -signal.SIGKILL
