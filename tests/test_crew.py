"""A crew's rules with workers of this process, how a process says that it ended, and Ray without a
cluster."""

import signal
import sys
import types

import cloudpickle
import pytest

from bayespg._support import cluster, processes, workers


class Here(workers.Worker):
    """Answers at once, in this process, until it is `lost`."""

    def __init__(self, make, name):
        self.name, self.lost, self.ended = name, False, False
        self._served, self._order = workers.Served(make), 0

    def ask(self, order, shared, request):
        known, self._order = order == self._order, order
        self._found = self._served(order, None if known else shared, request)

    def answer(self):
        if self.lost:
            raise workers.Lost(f"{self.name} is gone")
        return self._found

    def end(self, patience=0.0):
        self.ended = True


class Crew(workers.Crew):
    def hire(self, name):
        return Here(self._make, name)

    def wait(self, workers, seconds):
        return list(workers)


def crew(answer, count=2):
    return Crew(cloudpickle.dumps(lambda: answer), count, None)


def power(shared, request):
    return None if request is None else request**shared


def test_answers_have_the_order_of_the_requests_and_workers_are_kept():
    found = crew(power)
    assert found.answers(2, [3, 1, 2]) == [9, 1, 4]
    before = list(found.workers)
    assert found.answers(3, [2, 1]) == [8, 1]
    assert found.workers == before
    found.close()
    assert not found.workers
    assert all(worker.ended for worker in before)


def test_a_lost_worker_is_replaced():
    found = crew(power)
    found.answers(1, [0, 0])
    lost = found.workers[0]
    lost.lost = True
    assert found.answers(2, [5, 6, 7]) == [25, 36, 49]
    assert lost.ended
    assert lost not in found.workers


def test_what_fails_every_time_is_raised_with_its_number():
    def answer(shared, request):
        shared.append(request)
        if request == "bad":
            raise KeyError(len(shared))

    with pytest.raises(workers.Failed) as failure:
        crew(answer, 1).answers([], ["good", "bad"])
    assert failure.value.number == 1
    assert isinstance(failure.value.problem, KeyError)
    assert failure.value.problem.args[0] == 2 + workers.ATTEMPTS  # the first was to prepare


def test_what_cannot_be_sent_back_is_said():
    with pytest.raises(workers.Failed, match="generator cannot be sent"):
        crew(lambda _, request: None if request is None else (x for x in [1])).answers(0, [1])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (None, "closed its connection"),
        (-signal.SIGKILL, "a lack of memory"),
        (-signal.SIGTERM, "signal 15"),
        (3, "exit code 3"),
    ],
)
def test_how_a_process_ended_is_said(code, says):
    assert says in processes._last_words(code)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'bayespg\[ray\]'"):
        cluster.connect("ray")


def test_an_address_where_nobody_listens_is_named_at_once(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "ray", types.SimpleNamespace(is_initialized=lambda: False, init=pytest.fail)
    )
    with pytest.raises(ValueError, match="no Ray cluster at 'localhost:1'"):
        cluster.connect("localhost:1")


def test_the_newest_that_each_task_said_is_heard_once():
    ear = cluster.Ear()
    for said in (("a", 0.1, "begun"), ("b", 0.5, "half"), ("a", 0.9, "nearly")):
        ear.hear(*said)
    assert ear.heard() == [("a", 0.9, "nearly"), ("b", 0.5, "half")]
    assert ear.heard() == []


def test_an_actor_answers_as_a_process_does():
    remote = cluster.Remote(cloudpickle.dumps(lambda: power), sys.path)
    packed = remote.answer(1, cloudpickle.dumps(2), cloudpickle.dumps(7))
    assert cloudpickle.loads(packed) == (True, 49)


def test_only_large_messages_go_by_way_of_the_store(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(put=lambda _: "kept"))
    actors = cluster.Actors(b"", 1, None)
    assert actors.put(b"small") == b"small"
    assert actors.put(bytes(cluster.LARGE + 1)) == "kept"
