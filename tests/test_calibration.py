"""Error bars hold the truth about as often as they say."""

import numpy as np
import pytest
import scipy.stats

from bayespg import calibration
from bayespg.environments import LQR
from bayespg.estimators import Model1, Model2, exact
from bayespg.policies import LinearGaussian
from bayespg.random import fast_key

ESTIMATORS = {
    "paper": Model1(fisher=exact),
    "evidence": Model2(noise=None, baseline=float("inf")),
}


@pytest.fixture(scope="module")
def rows():
    found = calibration.coverage(
        LQR(), LinearGaussian(-0.2, 1.0), ESTIMATORS, paths=20, runs=600, key=fast_key(0)
    )
    return {(row.estimator, row.robust, row.level): row for row in found}


def test_robust_regions_are_near_nominal(rows):
    # The standard error of a coverage of 0.95 over 600 runs is 0.009.
    assert 0.90 < rows["evidence", True, 0.95].region < 0.99
    assert 0.84 < rows["evidence", True, 0.9].region < 0.96


def test_the_model_s_own_regions_are_overconfident(rows):
    assert rows["evidence", False, 0.95].region < 0.75
    assert rows["paper", False, 0.95].region < 0.05


def test_higher_levels_hold_more(rows):
    assert rows["evidence", True, 0.5].region < rows["evidence", True, 0.9].region
    assert np.all(np.less(rows["evidence", True, 0.5].width, rows["evidence", True, 0.9].width))


def test_binomial_interval_is_clopper_pearson():
    for successes in (0, 3, 10):
        expected = scipy.stats.binomtest(successes, 10).proportion_ci(0.95, "exact")
        np.testing.assert_allclose(calibration.binomial_interval(successes, 10), expected)
