"""How certain a run was of its gradients, from its metrics."""

import math

import numpy as np
import pytest
from scipy import special

from bayespg.runs import certainty


def metrics(d, updates=4000, episodes=2, seed=0):
    """A run whose gradient is d standard errors long in every update."""
    rng = np.random.default_rng(seed)
    t = d + rng.normal(size=updates)
    steps = np.arange(1, updates + 1)
    return {
        "steps": 100 * steps, "episodes": episodes * steps, "return": steps / updates,
        "slope": 3.0 * t, "slope_error": np.full(updates, 3.0), "sure": special.ndtr(t),
        "confirmed": np.full(updates, 0.5),
    }  # fmt: skip


@pytest.mark.parametrize("d", [0.25, 1.0])
def test_episodes_are_needed_as_the_confirmed_slope_asks(d):
    found = metrics(d)
    assert certainty.strength(found) == pytest.approx(0.5 * d, rel=0.1)
    needed = certainty.episodes_needed(0.5 * d, 2)
    assert special.ndtr(0.5 * d * math.sqrt(needed / 2)) == pytest.approx(0.95)


def test_where_nothing_shows_a_gradient_or_nothing_is_measured_no_number_is_given():
    assert certainty.episodes_needed(-0.1, 2) == math.inf
    assert math.isnan(certainty.strength(metrics(1.0) | {"confirmed": np.ones(4000)}))
    assert certainty.table([metrics(-1.0)])[1][0][-1] == "over 100,000"


def test_the_table_has_the_run_in_equal_parts():
    columns, rows = certainty.table([metrics(1.0), metrics(1.0, seed=1)])
    assert len(rows) == certainty.PARTS
    assert rows[-1][0] == "400,000"
    assert all(len(row) == len(columns) for row in rows)
    known = columns.index("directions known")
    assert [row[known] for row in rows] == [""] * certainty.PARTS
    with_known = [metrics(1.0) | {"known": np.full(4000, 2.54)}]
    assert certainty.table(with_known)[1][0][known] == "2.5"
    slope, reach = map(float, rows[0][2].split(" ± "))
    assert slope == pytest.approx(3.0, abs=2 * reach)
    assert reach == pytest.approx(1.96 * 3.0 / math.sqrt(1600), rel=0.05)


def test_runs_that_lack_a_column_are_left_out_and_nan_is_no_trouble():
    lacking, nan = metrics(1.0, 20), metrics(1.0, 20)
    del lacking["sure"]
    nan["sure"][3] = nan["slope"][5] = np.nan
    assert certainty.known([lacking, nan]) == [nan]
    assert certainty.draw([nan], "run").axes
    assert "nan" not in "".join(certainty.table([nan])[1][0])


def test_what_was_stated_stands_beside_what_the_next_update_returned():
    run = metrics(1.0, 7)
    run["sure"] = np.array([0.5, 0.95, 0.7, np.nan, 0.99, 0.6, 0.8])
    run["return"] = np.array([0.0, 1.0, 3.0, 2.0, 2.0, 6.0, 0.0])
    run |= {"slope": np.full(7, 2.0), "confirmed": np.full(7, 0.5), "length": np.full(7, 3.0)}
    columns, rows = certainty.counted([run, run])
    assert [row[:4] for row in rows] == [
        ["up to 0.7", "6", "0.60", "0.33"], ["0.9 to 1", "4", "0.97", "1.00"],
    ]  # fmt: skip
    changed = columns.index("return changed by, 95 %")
    assert [float(row[changed].split(" ± ")[0]) for row in rows] == [-2.0, 3.0]
    assert {row[-1] for row in rows} == {"3"}
    assert certainty.counted([metrics(1.0, 2)])[1]


def test_the_picture_shows_the_predicted_and_the_real_improvement_of_an_update():
    run = metrics(1.0, 40) | {"length": np.full(40, 10.0), "slope": np.full(40, 0.4)}
    run["return"] = 2.0 * np.arange(40)  # 0.5 of 0.4 in each of 10 steps
    figure = certainty.draw([run], "run")
    above = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    for label in ("predicted, with its 95 % interval", "real (1 seed)"):
        np.testing.assert_allclose(above[label], 2.0)
    del run["confirmed"]
    assert len(certainty.draw([run], "run").axes[0].lines) == 2  # what is real, and zero
