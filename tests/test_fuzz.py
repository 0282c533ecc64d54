"""Odd input to every array function, as benchmarks/fuzz.py has it: an answer, or a sentence."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import fuzz

CASES = 240
"""Their arrays are of one size, that of many other tests, which compiles once."""


@pytest.fixture(scope="module")
def cases():
    return list(fuzz.cases(CASES, sizes=[(8, 2)]))


@pytest.mark.slow
@pytest.mark.parametrize("outcome", fuzz.WRONG)
def test_nothing_is_silent_or_crashes_or_wrongly_accepted(cases, outcome):
    assert not [str(case) for case in cases if case.outcome == outcome]


@pytest.mark.slow
def test_every_function_both_answers_and_refuses(cases):
    for outcome in ("answered", "refused"):
        assert {case.function for case in cases if case.outcome == outcome} == set(fuzz.FUNCTIONS)


@pytest.mark.slow
def test_sound_arguments_are_answered(cases):
    in_order = [case for case in cases if not case.spoiled]
    assert len(in_order) > CASES / 20
    assert not [str(case) for case in in_order if case.outcome != "answered"]


def test_an_outcome_is_what_came_of_asking():
    """The fuzzer sees what it is there to see."""

    def function(x):
        return {"NaN": float("nan"), "number": 1.0}[x]

    def refuse(x):
        raise ValueError("x: expected a number" if x else "something is wrong")

    assert fuzz.outcome(function, {"x": "NaN"})[0] == "silent"
    assert fuzz.outcome(function, {"x": "number"})[0] == "answered"
    assert fuzz.outcome(function, {"x": "other"})[0] == "crashed"
    assert fuzz.outcome(function, {"x": "number"}, wrong=True)[0] == "accepted"
    assert fuzz.outcome(refuse, {"x": True}, wrong=True)[0] == "refused"
    assert fuzz.outcome(refuse, {"x": True})[0] == "refused"
    assert fuzz.outcome(refuse, {"x": False})[0] == "crashed"
