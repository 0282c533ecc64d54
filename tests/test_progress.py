"""The bar beside training, and Ctrl-C during it."""

import signal
import threading

import pytest
import rich.progress

from bayespg.runs import progress

ROW = {"steps": 300.0, "return": 21.04, "divergence": 0.01, "sure": 0.93}


def test_the_bar_shows_steps_return_and_divergence_and_no_optimistic_probability():
    with rich.progress.Progress(disable=True) as shown:
        bar = progress.Bar(shown, progress.Goal(500, begun=100))
        bar(ROW)
        task = shown.tasks[0]
    assert (task.completed, task.total) == (200, 500)
    assert task.description == "300 steps"
    assert task.fields["what"] == "return 21.0  divergence 0.01"


def test_a_budget_in_episodes_is_counted_in_episodes():
    goal = progress.Goal(40, begun=10, counted=progress.Column.EPISODES)
    row = ROW | {"episodes": 30.0}
    assert (goal.done(row), goal.share(row), goal.reached(row)) == (20.0, 0.5, "30 episodes")


def test_a_bar_that_is_not_wanted_shows_nothing_and_still_says_what_it_must(capsys):
    with progress.bar(progress.Goal(500), wanted=False) as bar:
        bar(ROW)
        assert capsys.readouterr().out == ""
        bar.say("Interrupted [bold] at \x1b[31m.")
    assert capsys.readouterr().out.startswith("Interrupted [bold] at ")


def test_a_file_gets_the_first_row_one_every_few_seconds_and_the_last(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.bar(progress.Goal(500, 100), wanted=True) as shown:
        for second in range(13):
            now[0] = float(second)
            shown(ROW | {"steps": 101.0 + second})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" steps")[0] for line in lines] == ["101", "106", "111", "113"]
    assert lines[-1].endswith("3%  return 21.0  divergence 0.01  12 s")


def test_a_notebook_gets_one_line_without_further_packages(capsys):
    lines = progress.Lines(progress.Goal(600), overwrite=True, every=0.0)
    lines(ROW)
    lines(ROW | {"steps": 600.0})
    lines.end()
    out = capsys.readouterr().out
    assert out.count("\r") == 2
    assert out.count("\n") == 1
    assert out.split("\r")[1].startswith(f"[{'#' * 10}{' ' * 10}] 300 steps")


def test_the_first_interrupt_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with progress.after_this_update() as stop:
        assert not stop.asked
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_after_training_an_interrupt_means_what_it_meant_before():
    before = signal.getsignal(signal.SIGINT)
    with progress.after_this_update():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_nothing_is_changed():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with progress.after_this_update() as stop:
            seen.extend([stop.asked, signal.getsignal(signal.SIGINT) is before])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]
