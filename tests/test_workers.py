"""Episodes played elsewhere: the numbers of one process, whatever happens to the workers."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from test_host import Counting

from bayespg._support import processes, workers
from bayespg.agents.agent import Agent
from bayespg.agents.pgpe import PGPE
from bayespg.environments.host import EnvironmentFailure
from bayespg.paths.players import WorkersLost
from bayespg.paths.worlds import InWorkers, world
from bayespg.policies import named

COMPILE_QUICKLY = True


class Unreliable(Counting):
    """What a file says goes wrong at the second step, once if the file says so."""

    def __init__(self, fault: Path):
        super().__init__(6)
        self.fault = fault

    def step(self, action):
        what = self.fault.read_text() if self.time == 1 and self.fault.exists() else ""
        if "once" in what:
            self.fault.unlink()
        match what.split():
            case ["kill", count] if count.isdigit() and int(count) > 0:
                self.fault.write_text(f"kill {int(count) - 1}")
                os.kill(os.getpid(), signal.SIGKILL)
            case ["raise", *_]:
                raise KeyError("wheel")
            case ["kill"] | ["kill", "once"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["hang", *_]:
                time.sleep(1000)
        return super().step(action)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def fault(tmp_path):
    return tmp_path / "fault"


@pytest.fixture(scope="module")
def policy():
    actions = world(Counting, lanes=1).actions
    return named.make("linear", 2, actions, jax.random.key(0), ())


@pytest.fixture
def made(fault):
    """Worlds with workers or without; the workers end with the test."""
    found = []

    def make(count, **settings):
        where = world(lambda: Unreliable(fault), workers=count, **{"lanes": 2} | settings)
        found.append(where)
        return where

    yield make
    for where in found:
        if isinstance(where, InWorkers):
            where.players.close()


def pids(where):
    return [worker.pid for worker in where.players.pool.workers]


def draw(where, policy, **options):
    """Five episodes fill two lanes in three waves."""
    return where.play(policy, jax.random.key(2), [5, 3, 8, 9, 12], **options)


def test_an_agent_with_any_number_of_workers_that_are_killed_learns_what_one_process_learns(
    fault, caplog
):
    """Observations are normalised, so that every update depends on what those before have seen."""
    agents = [
        Agent(lambda: Unreliable(fault), "linear", "gpomdp", episodes=5, workers=count)
        for count in (None, 1, 2)
    ]
    for update in range(1, 4):
        for agent in agents:
            if agent.settings.workers == 2:
                fault.write_text("kill once")
            agent.update()
            assert not fault.exists()
            assert_same(agent.state.policy, agents[0].state.policy)
            assert_same(agent.state.normaliser, agents[0].state.normaliser)
        assert len([r for r in caplog.records if "killed by SIGKILL" in r.message]) == update
    for agent in agents[1:]:
        agent.world.players.close()


@pytest.mark.slow
def test_eight_workers_learn_what_one_process_learns(fault):
    agents = [
        Agent(lambda: Unreliable(fault), "linear", "gpomdp", episodes=16, workers=count)
        for count in (None, 8)
    ]
    for _ in range(2):
        for agent in agents:
            agent.update()
        assert_same(agents[1].state.policy, agents[0].state.policy)
    agents[1].world.players.close()


@pytest.mark.slow("mlp")
@pytest.mark.parametrize("name", ["fourier", "mlp"])
def test_a_row_of_the_program_does_not_depend_on_the_others(name):
    """A policy with wide layers, whose rows may be vectorised together."""
    here, there = (world("Pendulum-v1", lanes=5, horizon=20, workers=count) for count in (None, 2))
    inputs = here.observation.shape[0]
    policy = named.make(name, inputs, here.actions, jax.random.key(0), (48, 48))
    policy = jax.tree.map(lambda w: w + 0.3 * jax.random.normal(jax.random.key(1), w.shape), policy)
    drawn = [w.play(policy, jax.random.key(2), list(range(7))) for w in (here, there)]
    there.players.close()
    assert_same(*drawn)


@pytest.mark.slow
def test_a_search_plays_its_round_there_too():
    agents = [PGPE(Counting, seed=0, workers=count) for count in (None, 2)]
    for agent in agents:
        agent.update()
    agents[1].world.players.close()
    assert_same(agents[0].state.policy, agents[1].state.policy)


@pytest.mark.slow
def test_what_goes_wrong_once_is_played_again(made, fault, policy):
    expected, where = draw(made(None), policy), made(2, episode_timeout=5.0)
    for what in ("raise once", "kill once", "hang once"):
        fault.write_text(what)
        assert_same(draw(where, policy), expected)
        assert not fault.exists()
    before = pids(where)
    os.kill(before[0], signal.SIGKILL)
    assert_same(draw(where, policy), expected)
    assert before[0] not in pids(where)


FAILURES = {
    "raise": r"^Unreliable, episode of seed \d+, step 2: KeyError: 'wheel'$",
    "kill": r"^Unreliable, episode of seed \d+: worker \d+ \(process \d+\) was killed by SIGKILL",
    "hang": r"seed \d+: worker .* took longer than 1 seconds; episode_timeout= sets the limit$",
}


@pytest.mark.slow
def test_what_goes_wrong_every_time_is_one_sentence(made, fault, policy, monkeypatch):
    monkeypatch.setattr(workers, "PAUSE", 0.01)
    where = made(2, episode_timeout=1.0)
    for what, says in FAILURES.items():
        fault.write_text(what)
        with pytest.raises(EnvironmentFailure, match=says):
            draw(where, policy)
    fault.unlink()
    assert_same(draw(where, policy), draw(made(None), policy))


@pytest.mark.parametrize("saved", [True, False])
def test_where_workers_are_lost_for_good_it_is_said_how_to_resume(tmp_path, saved):
    agent, run = Agent(Counting, "linear", "gpomdp", seed=3), tmp_path / "run"
    draw = agent.draw

    def once():
        if agent.state.updates == 1:
            raise WorkersLost("Counting, episode of seed 5: worker 2 was lost")
        return draw()

    agent.draw = once
    says = f"train --resume {run}" if saved else "call learn again to continue"
    match = f"^Counting, episode of seed 5: .*after update 1.*{says}$"
    with pytest.raises(WorkersLost, match=match):
        agent.learn(10**6, run=run if saved else None, progress=False)
    agent.draw = draw
    agent.learn(1, run=run if saved else None, progress=False)
    assert agent.state.updates == 2


def test_an_interrupt_ends_the_workers_that_are_busy_and_no_others(made, fault, policy):
    where = made(2)
    expected, before = draw(where, policy), pids(where)
    fault.write_text("hang once")
    waiting = where.players.pool.wait

    def interrupted(workers, seconds):
        found = waiting(workers, 2.0)
        if not found:
            raise KeyboardInterrupt
        return found

    where.players.pool.wait = interrupted
    with pytest.raises(KeyboardInterrupt):
        draw(where, policy)
    assert len(set(before) & set(pids(where))) == 1
    where.players.pool.wait = waiting
    assert_same(draw(where, policy), expected)


# What is sent.


def test_an_environment_registered_in_this_process_alone_is_known_there():
    gymnasium.register("OnlyHere-v0", entry_point=Counting)
    try:
        found = world("OnlyHere-v0", lanes=1, workers=1)
    finally:
        del gymnasium.registry["OnlyHere-v0"]
    policy = named.make("linear", 2, found.actions, jax.random.key(0), ())
    assert found.play(policy, jax.random.key(0), [0, 1]).mask.any()
    found.players.close()


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def make():
        assert lock
        return Counting()

    with pytest.raises(ValueError, match=r"^workers: the function .* uses 'lock', which cannot be"):
        Agent(make, workers=1)
    with pytest.raises(ValueError, match="workers: give an id, or a function"):
        Agent(Counting(), workers=1)


class Elsewhere(Counting):
    """Another environment in another process."""

    def __init__(self, fault, home):
        super().__init__(6)
        if os.getpid() != home:
            if fault == "made":
                raise RuntimeError("no display")
            self.action_space = type(self.action_space)(-2, 2, (1,))


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("made", RuntimeError, "^no display$"),
        ("spaces", EnvironmentFailure, "^Elsewhere, .*, step 0: .*the action space is Box.* where"),
    ],
)
def test_an_environment_that_is_another_in_its_process_is_refused(fault, error, says):
    home = os.getpid()
    agent = Agent(lambda: Elsewhere(fault, home), workers=1)
    with pytest.raises(error, match=says):
        agent.draw()
    agent.world.players.close()


# How they end.


class Stubborn(Counting):
    """Cannot be closed, and does not listen."""

    def __init__(self, home):
        super().__init__()
        self.home = home

    def reset(self, *, seed=None, options=None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().reset(seed=seed)

    def close(self):
        if os.getpid() != self.home:
            signal.pause()


def test_one_that_cannot_be_closed_is_ended_all_the_same(monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    monkeypatch.setattr(workers, "PATIENCE", 0.2)
    home = os.getpid()
    agent = Agent(lambda: Stubborn(home), workers=1)
    agent.draw()
    worker = agent.world.players.pool.workers[0]
    agent.world.players.close()
    worker._process.join(60)  # on a busy machine it takes longer than that patience
    assert worker._process.exitcode == -signal.SIGKILL


SCRIPT = """
import os, signal, sys, time
import gymnasium
from bayespg import Agent

class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        print(os.getpid(), flush=True)
        return self.observation_space.low, {}
    def step(self, action):
        time.sleep(1000)

agent = Agent(Slow, workers=2)
agent.update()
"""


@pytest.mark.slow("9")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_behind_by_a_script_without_a_guard(tmp_path, how):
    """Its workers hang in a step when it ends."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    driver = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    playing = [int(driver.stdout.readline()) for _ in range(2)]
    driver.send_signal(how)
    driver.communicate(timeout=60)
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in playing) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in playing if Path(f"/proc/{pid}").exists()]
    assert driver.pid not in playing


@pytest.fixture(scope="module")
def ray():
    found = pytest.importorskip("ray")
    yield found
    found.shutdown()


@pytest.mark.slow
def test_on_ray_the_numbers_are_the_same_and_a_lost_actor_is_replaced(ray, made, fault, policy):
    expected, where = draw(made(None), policy), made("ray")
    for what in ("raise once", "kill once"):
        fault.write_text(what)
        assert_same(draw(where, policy), expected)
        assert not fault.exists()
    fault.write_text("kill 5")
    assert_same(draw(where, policy), expected)
    assert fault.read_text() == "kill 0"
