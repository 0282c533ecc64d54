"""Verdicts follow from intervals, and intervals hold what they say as often as they say."""

import json
import math

import numpy as np
import pytest

from bayespg.reproduce import claims, sentences
from bayespg.reproduce.claims import Claim, Effect


def claim(*intervals, above=0.0, below=math.inf):
    effects = tuple(Effect("", (a + b) / 2, a, b) for a, b in intervals)
    return Claim("id", "", "says", "effect", effects, above, below)


@pytest.mark.parametrize(
    ("intervals", "bounds", "verdict"),
    [
        ([(1, 2), (0.1, 5)], {}, "holds"),
        ([(1, 2), (-0.1, 5)], {}, "not decided"),
        ([(1, 2), (-3, -0.1), (-1, 1)], {}, "does not hold"),
        ([(0.9, 1.1)], {"above": 0.8, "below": 1.2}, "holds"),
        ([(0.9, 1.3)], {"above": 0.8, "below": 1.2}, "not decided"),
        ([(1.2, 1.3)], {"above": 0.8, "below": 1.2}, "does not hold"),
        ([(-9.0, 1.0)], {"above": -math.inf, "below": 1.5}, "holds"),
    ],
)
def test_a_verdict_follows_from_all_intervals(intervals, bounds, verdict):
    assert claim(*intervals, **bounds).verdict == verdict


def test_what_is_written_down_is_json():
    content = claim((1, 2)).content()
    assert json.loads(json.dumps(content)) == content | {"effects": list(content["effects"])}
    assert (content["above"], content["below"], content["verdict"]) == (0.0, None, "holds")


RUNS, REPEATS = 60, 600


def paired(rng):
    """Two positive samples with something in common, means 2 and 3."""
    common = rng.gamma(4.0, 0.25, RUNS)
    return 2 * common * rng.gamma(9.0, 1 / 9, RUNS), 3 * common * rng.gamma(16.0, 1 / 16, RUNS)


KINDS = {
    "difference": (lambda rng: claims.differences({"": paired(rng)}), 1.0),
    "ratio": (lambda rng: claims.ratios({"": paired(rng)}), 1.5),
    "ratio of ratios": (
        lambda rng: claims.ratios_of_ratios({"": (paired(rng), paired(rng)[::-1])}),
        1.5**2,
    ),
    "spread": (
        lambda rng: claims.spreads({"": (rng.normal(size=RUNS), 3 * rng.normal(size=RUNS))}),
        3.0,
    ),
    "mean": (lambda rng: claims.means({"": paired(rng)[1]}), 3.0),
    "share": (lambda rng: claims.shares({"": (int(rng.binomial(200, 0.3)), 200)}), 0.3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_intervals_hold_the_truth_as_often_as_they_say(kind):
    draw, truth = KINDS[kind]
    rng = np.random.default_rng(0)
    found = [draw(rng)[0] for _ in range(REPEATS)]
    held = np.mean([e.low <= truth <= e.high for e in found])
    assert 0.91 <= held <= 0.985
    assert all(e.low <= e.value <= e.high for e in found)


def test_many_effects_share_the_confidence():
    rng = np.random.default_rng(1)
    a, b = paired(rng)
    (alone,) = claims.ratios({"one": (a, b)})
    together = claims.ratios({str(i): (a, b) for i in range(20)})[0]
    assert together.high - together.low > 1.3 * (alone.high - alone.low)


def test_words_and_shares_of_runs_are_said():
    (effect,) = claims.differences(
        {"M = 5": (np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 1.0]))},
        "{a:.1f} against {b:.1f}, lower in {share:.0f} %",
    )
    assert effect.words == "2.0 against 2.0, lower in 67 %"
    assert effect.value == pytest.approx(0.0)


def test_a_table_of_claims_compares_what_its_rows_name_at_the_sizes_there_are():
    pairs = {("final", name, M): np.array([M, M + 1.0, M + 2.0]) for name in "ab" for M in (5, 10)}
    samples = pairs | {("final", "b", 10): np.array([30.0, 32.0, 31.0])}
    table = [
        claims.Row("all", "", "says", "gap", claims.differences, claims.pair("final", "a", "b")),
        claims.Row("one", "figure-6", "says", "level", claims.means,
                   {"at {M}": (("final", "b"),)}, (10, 20), below=32, kind="check"),
        claims.Row("none", "", "says", "gap", claims.differences, claims.pair("final", "a", "b"),
                   (20,)),
    ]  # fmt: skip
    first, second = claims.judge(table, samples)
    assert [(e.where, e.value) for e in first.effects] == [("M = 5", 0.0), ("M = 10", 20.0)]
    assert [(e.where, e.value) for e in second.effects] == [("at 10", 31.0)]
    assert (second.sentence, second.below, second.kind) == ("figure-6", 32, "check")
    (doubled, _) = claims.judge(table, samples, lambda of, *cell: 2 * of[cell])
    assert doubled.effects[1].value == 40.0


PRINTED, CORRECTED = sentences.ALGORITHM3


def content(*judged, paper=True):
    """An experiment with claims about BAC's gradient: (reading, verdict), or with a kind."""
    claims = [
        {"sentence": "bac-accurate", "reading": of[0], "verdict": of[1], "kind": [*of, "paper"][2]}
        for of in judged
    ]
    return {"configuration": {"paper": paper}, "claims": claims}


@pytest.mark.parametrize(
    ("contents", "verdict"),
    [
        ([content((PRINTED, "holds"), (CORRECTED, "does not hold"))], "holds as printed"),
        ([content((PRINTED, "does not hold"), (CORRECTED, "holds"))],
         "holds under an admissible reading"),
        ([content((CORRECTED, "holds"))], "holds under an admissible reading"),
        ([content((PRINTED, "does not hold"), (CORRECTED, "does not hold"))],
         "does not hold under any reading tried"),
        ([content((PRINTED, "does not hold"), (CORRECTED, "not decided"))], "not decided"),
        ([content((PRINTED, "holds"), (PRINTED, "does not hold"))],
         "does not hold under any reading tried"),
        ([content((PRINTED, "holds"), ("", "not decided"))], "not decided"),
        ([content((PRINTED, "does not hold"), (CORRECTED, "holds", "ours"))],
         "does not hold under any reading tried"),
        ([content((PRINTED, "does not hold")), content((CORRECTED, "holds"), paper=False)],
         "does not hold under any reading tried"),
        ([content((PRINTED, "holds"), paper=False)], "holds as printed"),
        ([], "not decided"),
    ],
)  # fmt: skip
def test_a_sentence_is_judged_from_its_readings(contents, verdict):
    judged = {of.name: of for of in sentences.fold(contents)}
    assert judged["bac-accurate"].verdict == verdict
    assert sum(sentences.counts(list(judged.values())).values()) == len(sentences.SENTENCES)


def test_a_sentence_whose_choice_is_not_printed_does_not_hold_as_printed():
    claim = {
        "sentence": "ship-end",
        "reading": sentences.SHIP_TUNED,
        "verdict": "holds",
        "kind": "paper",
    }
    (judged,) = sentences.tested([{"configuration": {"paper": True}, "claims": [claim]}])
    assert judged.verdict == "holds under an admissible reading"


@pytest.mark.parametrize(
    ("sentence", "reading", "says"),
    [
        (
            "figure-33",
            "",
            "no sentence of the paper is called 'figure-33'; did you mean 'figure-3'",
        ),
        (
            "figure-6",
            "Algorithm 3, last weight 2",
            "'figure-6' has no reading 'Algorithm 3, last w",
        ),
    ],
)
def test_a_claim_names_a_sentence_and_a_reading_that_there_are(sentence, reading, says):
    with pytest.raises(ValueError, match=says):
        Claim("id", sentence, "says", "effect", (), reading=reading)


def test_every_sentence_is_tested_or_says_why_not():
    for name, sentence in sentences.SENTENCES.items():
        assert bool(sentence.readings) != bool(sentence.untested), name
        assert not any(r.startswith(sentences.PRINTED) for r in sentence.readings[1:]), name
