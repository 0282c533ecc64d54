"""Verdicts follow from intervals, and intervals hold what they say as often as they say."""

import json
import math

import lengths
import numpy as np
import pytest

from bayespg.reproduce import claims
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
        lambda rng: lengths.ratios_of_ratios({"": (paired(rng), paired(rng)[::-1])}),
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
        claims.Row("one", "Figure 1", "says", "level", claims.means,
                   {"at {M}": (("final", "b"),)}, (10, 20), below=32, kind="check"),
        claims.Row("none", "", "says", "gap", claims.differences, claims.pair("final", "a", "b"),
                   (20,)),
    ]  # fmt: skip
    first, second = claims.judge(table, samples)
    assert [(e.where, e.value) for e in first.effects] == [("M = 5", 0.0), ("M = 10", 20.0)]
    assert [(e.where, e.value) for e in second.effects] == [("at 10", 31.0)]
    assert (second.place, second.below, second.kind) == ("Figure 1", 32, "check")
    (doubled, _) = claims.judge(table, samples, lambda of, *cell: 2 * of[cell])
    assert doubled.effects[1].value == 40.0
