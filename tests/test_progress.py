"""The bar beside training, and Ctrl-C during it."""

import signal
import threading

import pytest
import rich.progress

from bayespg.runs import progress

ROW = {"steps": 300.0, "return": 21.04, "divergence": 0.01, "sure": 0.93}


def test_the_bar_shows_steps_return_and_divergence_and_no_optimistic_probability():
    with rich.progress.Progress(disable=True) as shown:
        bar = progress.Bar(shown, begun=100, steps=500)
        bar(ROW)
        task = shown.tasks[0]
    assert (task.completed, task.total) == (200, 500)
    assert task.description == "300 steps"
    assert task.fields["what"] == "return 21.0  divergence 0.01"


def test_a_bar_that_is_not_wanted_shows_nothing_and_still_says_what_it_must(capsys):
    with progress.bar(0, 500, wanted=False) as bar:
        bar(ROW)
        assert capsys.readouterr().out == ""
        bar.say("Interrupted [bold] at \x1b[31m.")
    assert capsys.readouterr().out.startswith("Interrupted [bold] at ")


def test_a_bar_that_is_wanted_ends_with_what_the_last_row_said(capsys):
    with progress.bar(0, 500, wanted=True) as bar:
        bar(ROW)
    assert "300 steps" in capsys.readouterr().out


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
