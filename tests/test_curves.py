"""Learning curves: what of the metrics is drawn, and where."""

import numpy as np

from bayespg.runs import curves, seeds
from bayespg.runs.columns import DRAWN
from bayespg.runs.store import Run


def metrics(steps, returns, sure=0.75):
    """The columns that are drawn."""
    steps = np.array(steps)
    columns = (steps, np.array(returns, float), np.broadcast_arrays(sure, steps)[0])
    return dict(zip(DRAWN, columns, strict=True))


def test_curves_lie_where_every_seed_has_been():
    found = curves.of_metrics([metrics([10, 20, 40], [0, 1, 2]), metrics([15, 30], [5, 6])])
    assert (found.steps[0], found.steps[-1], found.steps.size) == (15, 30, curves.POINTS)
    assert found.returns.shape == found.sure.shape == (2, curves.POINTS)
    # 0 and 1 at 10 and 20 steps is 0.5 at 15; 1 and 2 at 20 and 40 is 1.5 at 30.
    np.testing.assert_allclose(found.returns[:, [0, -1]], [[0.5, 1.5], [5, 6]])


def test_a_seed_that_ended_before_another_began_leaves_one_point():
    found = curves.of_metrics([metrics([10, 20], [1, 2]), metrics([50, 60], [5, 6])])
    assert set(found.steps) == {20}
    np.testing.assert_allclose(found.returns[:, 0], [2, 5])


def test_updates_that_state_nothing_are_left_out_of_the_probability():
    found = curves.of_metrics([metrics([1, 2, 3], [0, 0, 0], sure=[0.75, np.nan, 0.75])])
    np.testing.assert_allclose(found.sure, 0.75)
    assert np.isnan(curves.of_metrics([metrics([1, 2], [0, 0], sure=np.nan)]).sure).all()


def test_a_running_mean_looks_back_over_a_thirtieth_of_the_updates():
    x = np.random.default_rng(0).normal(size=95)
    naive = [x[max(0, i - 2) : i + 1].mean() for i in range(x.size)]
    np.testing.assert_allclose(curves.smoothed(x), naive)
    np.testing.assert_allclose(curves.smoothed(x[:59]), x[:59])


def test_seeds_without_an_update_are_left_out(tmp_path):
    for seed, rows in ((0, 2), (1, 0)):
        with Run.create(seeds.directory(tmp_path, seed), {"environment": "A-v0"}) as run:
            for i in range(rows):
                run.log({"update": i} | dict.fromkeys(DRAWN, i + 1))
    group = seeds.group(tmp_path)
    assert (len(group.runs), group.task) == (2, "A-v0")
    assert len(curves.of(group).returns) == 1


def test_a_figure_has_a_curve_for_each_run_a_line_for_each_seed_and_the_threshold():
    found = curves.of_metrics([metrics([1, 2], [k, k]) for k in range(3)])
    figure = curves.draw([("one", found)], "A-v0", threshold=475)
    above, below = figure.axes
    mean, *each, threshold = (line.get_ydata() for line in above.lines)
    assert (mean[0], sorted(y[0] for y in each), threshold[0]) == (1, [0, 1, 2], 475)
    assert figure.legends[0].get_texts()[0].get_text() == "one (3 seeds)"
    both, _ = curves.draw([("one", found), ("two", found)], "A-v0").axes
    assert len(both.lines) == 2
    assert below.lines[0].get_ydata()[0] == 0.75
    assert "uphill" in below.get_title(loc="left")


def test_a_legend_shows_a_name_as_it_is():
    found = curves.of_metrics([metrics([1, 2], [0, 0])])
    figure = curves.draw([("_$x^2$", found)], "$title$")
    figure.canvas.draw()
    (text,) = figure.legends[0].get_texts()
    assert text.get_text() == r" _\$x^2\$ (1 seed)"


def test_directions_that_went_uphill_are_counted_beside_what_was_stated():
    found = curves.of_metrics([metrics([1, 2], [0, 0])])
    stated, went = [0.95, 0.97, 0.8, 0.5], [1.0, 0.5, 0.0, np.nan]  # 3 of 0.8 are few
    updates = metrics([1, 2, 3, 4], [0] * 4, stated) | {curves.UPHILL: np.array(went)}
    figure = curves.draw_judged([("one", found)], "A-v0", 475, 3 * [updates])
    *_, counted = figure.axes
    heights = [bar.get_height() for bar in counted.patches]
    np.testing.assert_allclose(heights, [0.96, 0.75])
    (label,) = counted.get_xticklabels()
    assert label.get_text() == "0.9 to 1\n6 updates"
