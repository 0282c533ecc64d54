"""A pool's rules with workers of this process, how a process says that it ended, and Ray without a
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
        self._handler = workers.RequestHandler(make)

    def ask(self, shared, request):
        self._found = self._handler(shared, request)

    def answer(self):
        if self.lost:
            raise workers.Lost(f"{self.name} is gone")
        return self._found

    def end(self, patience=0.0):
        self.ended = True


class WorkerPool(workers.WorkerPool):
    def start(self, name):
        return Here(self._make, name)

    def wait(self, workers, seconds):
        return list(workers)


def pool(answer, count=2):
    return WorkerPool(cloudpickle.dumps(lambda: answer), count, None)


def power(shared, request):
    return None if request is None else request**shared


def test_answers_have_the_order_of_the_requests_and_workers_are_kept():
    found = pool(power)
    assert found.answers(2, [3, 1, 2]) == [9, 1, 4]
    before = list(found.workers)
    assert found.answers(3, [2, 1]) == [8, 1]
    assert found.workers == before
    found.close()
    assert not found.workers
    assert all(worker.ended for worker in before)


def test_a_lost_worker_is_replaced():
    found = pool(power)
    found.answers(1, [0, 0])
    lost = found.workers[0]
    lost.lost = True
    assert found.answers(2, [5, 6, 7]) == [25, 36, 49]
    assert lost.ended
    assert lost not in found.workers


class Taken(WorkerPool):
    """A pool whose workers are lost as `loses(number of the question, request)` says."""

    def __init__(self, loses, count=2, answer=lambda _, request: request):
        super().__init__(cloudpickle.dumps(lambda: answer), count, None)
        self._loses, self.asked = loses, []

    def start(self, name):
        pool, worker = self, super().start(name)
        ask = worker.ask

        def asked(shared, request):
            what = cloudpickle.loads(request)
            pool.asked.append(what)
            worker.lost = pool._loses(len(pool.asked), what)
            ask(shared, request)

        worker.ask = asked
        return worker


@pytest.fixture
def pauses(monkeypatch):
    """Seconds slept, on a clock that only sleeping moves."""
    slept = []
    clock = types.SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(workers, "time", clock)
    monkeypatch.setattr(WorkerPool, "wait", lambda _, workers, seconds: list(workers))
    return slept


def test_while_others_succeed_requests_are_repeated_however_often_their_workers_are_lost(
    pauses, monkeypatch
):
    """Six requests lose twelve workers each, while others are answered in a second."""
    monkeypatch.setattr(
        WorkerPool, "wait", lambda _, workers, s: pauses.append(1.0) or list(workers)
    )
    losses = dict.fromkeys(range(6), 12)

    def loses(_, request):
        losses[request] = losses.get(request, 0) - 1
        return losses[request] >= 0

    requests = [*range(6), *["steady"] * 800]
    assert Taken(loses, 3).answers(None, requests) == requests
    assert max(losses[i] for i in range(6)) < 0


def test_a_request_that_alone_loses_its_workers_is_given_up(pauses):
    pool = Taken(lambda _, request: request == "bad")
    with pytest.raises(workers.Failed, match="is gone") as failure:
        pool.answers(None, ["good", "bad", *["good"] * 100])
    assert failure.value.number == 1
    assert pool.asked.count("bad") == workers.LOSSES
    assert sum(pauses) == pytest.approx(workers.PAUSE * (2 ** (workers.LOSSES - 1) - 1))


def test_where_nothing_succeeds_the_crew_gives_up(pauses):
    pool = Taken(lambda _, request: request is not None)
    with pytest.raises(workers.Failed):
        pool.answers(None, list(range(5)))
    assert max(pool.asked.count(i) for i in range(5)) == workers.LOSSES


def test_workers_that_are_lost_while_they_start_are_started_again_after_a_pause(pauses):
    pool = Taken(lambda asked, _: asked <= 40, 8)
    assert pool.answers(None, list(range(9))) == list(range(9))
    assert len(pauses) == 5
    pool = Taken(lambda *_: True, 8)
    with pytest.raises(workers.Lost):
        pool.answers(None, list(range(9)))
    assert len(pool.asked) == 8 * workers.LOSSES


def test_what_fails_every_time_is_raised_with_its_number():
    def answer(shared, request):
        shared.append(request)
        if request == "bad":
            raise KeyError(len(shared))

    with pytest.raises(workers.Failed) as failure:
        pool(answer, 1).answers([], ["good", "bad"])
    assert failure.value.number == 1
    assert isinstance(failure.value.problem, KeyError)
    assert failure.value.problem.args[0] == 2 + workers.ATTEMPTS  # the first was to prepare


def test_what_cannot_be_sent_back_is_said():
    with pytest.raises(workers.Failed, match="generator cannot be sent"):
        pool(lambda _, request: None if request is None else (x for x in [1])).answers(0, [1])


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
    assert says in processes._exit_reason(code)


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
    listener = cluster.ProgressListener()
    for said in (("a", 0.1, "begun"), ("b", 0.5, "half"), ("a", 0.9, "nearly")):
        listener.record(*said)
    assert listener.messages() == [("a", 0.9, "nearly"), ("b", 0.5, "half")]
    assert listener.messages() == []


def test_an_actor_answers_as_a_process_does():
    remote = cluster.Remote(cloudpickle.dumps(lambda: power), sys.path)
    packed = remote.answer(cloudpickle.dumps(2), cloudpickle.dumps(7))
    assert cloudpickle.loads(packed) == (True, 49)


def test_only_large_messages_go_by_way_of_the_store(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(put=lambda _: "kept"))
    actors = cluster.Actors(b"", 1, None)
    assert actors.put(b"small") == b"small"
    assert actors.put(bytes(cluster.LARGE + 1)) == "kept"
