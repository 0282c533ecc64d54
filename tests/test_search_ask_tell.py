"""`Search`: ask, tell, decisions, files."""

import json
import tracemalloc

import numpy as np
import pytest

from bayespg import kernels
from bayespg.search import Search, gradient_posterior, process, smoothed
from bayespg.search.search import NEAR, WIDEST

CENTRE = np.array([0.5, -0.3, 0.2])


def bowl(theta, noise=0.0):
    return -np.sum((theta - CENTRE) ** 2) + noise


def play(search, episodes, f=bowl, k=1):
    """Tell the returns of `episodes` episodes, k at a time."""
    for _ in range(episodes // k):
        tried = search.ask(k)
        search.tell(tried, [f(theta) for theta in tried])
    return search


@pytest.mark.parametrize(
    ("name", "start", "options"),
    [
        ("start", 10**400, {}), ("start", {1.0}, {}), ("start", [1.0, [2.0]], {}),
        ("start", 10**9, {}), ("start", np.ma.array([1.0, 2.0], mask=[0, 1]), {}),
        ("scale", 2, {"scale": 1e-160}), ("scale", 2, {"scale": 1e290}),
        ("start", [1e290, 0.0], {}), ("memory", 2, {"memory": 10**400}),
        ("radius", 2, {"radius": 0.0}), ("radius", 2, {"radius": 1.0, "sphere": True}),
    ],
)  # fmt: skip
def test_what_a_search_cannot_begin_with_is_named(name, start, options):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        Search(start, **options)


@pytest.mark.parametrize(
    ("name", "parameters", "returns"),
    [
        ("parameters", None, 1.0),
        ("parameters", np.ma.array(np.ones(3), mask=[0, 0, 1]), 1.0),
        ("parameters", [np.ma.array(np.ones(3), mask=[0, 0, 1])], [1.0]),
        ("parameters", [1e290, 0.0, 0.0], 1.0),
        ("returns", np.ones((2, 3)), np.ma.array([1.0, 2.0], mask=[0, 1])),
        ("returns", np.ones((2, 3)), [1.0, [2.0]]),
        ("returns", np.ones(3), 10**400),
        ("returns", np.ones(3), {1.0}),
        ("returns", np.ones(3), "1.0"),
        ("returns", np.ones((1, 3)), np.array([(1.0,)], [("value", float)])),
    ],
)
def test_what_cannot_be_told_is_named_and_nothing_is_taken(name, parameters, returns):
    found = play(Search(3), 1)
    before = found.episodes
    with pytest.raises(ValueError, match=rf"^{name}: "):
        found.tell(parameters, returns)
    assert found.episodes == before


@pytest.mark.parametrize("unit", [1e-310, 1e307])
def test_returns_of_any_size_move_the_mean(unit):
    found = play(Search(CENTRE + 1, seed=1), 8, lambda theta: unit * bowl(theta))
    same = play(Search(CENTRE + 1, seed=1), 8)
    np.testing.assert_allclose(found.mean, same.mean, rtol=1e-6)
    assert not np.array_equal(found.mean, CENTRE + 1)


def test_the_best_has_the_greatest_expected_return():
    """Of all that were tried, and one lucky episode is not enough."""
    found, X = Search(3), 0.5 * np.random.default_rng(0).normal(size=(30, 3))
    X[7] = CENTRE
    returns = np.array([bowl(x) for x in X])
    found.tell(X, returns)
    np.testing.assert_array_equal(found.best, X[7])
    noisy, worst = Search(3), X[np.argmin(returns)]
    lucky = np.append(returns, 0.5)
    noisy.tell(np.r_[X, worst[None], [worst] * 4], np.append(lucky, [returns.min()] * 4))
    assert not np.array_equal(noisy.best, worst)


def test_the_unit_of_returns_does_not_matter():
    one = play(Search(3, seed=1), 8)
    other = play(Search(3, seed=1), 8, lambda theta: 1e6 * bowl(theta) - 7)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)
    np.testing.assert_allclose(one.scale, other.scale, rtol=1e-6)


def test_episodes_from_elsewhere_are_used():
    X = np.random.default_rng(0).normal(size=(40, 3))
    found = Search(3)
    found.tell(X, [bowl(x) for x in X])
    assert bowl(found.mean) > bowl(np.zeros(3))
    assert found.episodes == 40


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "search.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a saved Search"):
        Search.load(path)
    np.savez(path, mean=np.array([{}], object))
    with pytest.raises(ValueError, match="not a saved Search"):
        Search.load(path)


def forged(path, **changes):
    """A saved search of which some arrays or entries of the header are others."""
    search = play(Search(3, seed=5), 10)
    search.ask(4)
    search.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(arrays.pop("header").tobytes())
    for name, value in changes.items():
        (arrays if name in arrays else header)[name] = value
    np.savez(path, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    return path


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("mean", np.zeros(4), "do not fit together"),
        ("mean", np.zeros(3, np.float32), "double precision"),
        ("mean", np.array([0.0, np.inf, 0.0]), "NaN or infinite"),
        ("mean", np.zeros(100_000), "do not fit together"),
        ("returns", np.full(10, np.inf), "returns: infinite"),
        ("returns", np.zeros(9), "do not fit together"),
        ("tried", np.full((10, 3), np.nan), "tried: 30 of 30 entries"),
        ("waiting", np.zeros((4, 2)), "do not fit together"),
        ("waiting", np.full((4, 3), np.nan), "waiting: 12 of 12 entries"),
        ("asked", -1, "asked: "),
        ("wins", [0.5] * 13, "wins: "),
        ("best", np.full(3, np.nan), "best: 3 of 3 entries"),
        ("view", 2, "view: "),
        ("weights", np.zeros(3), "do not fit together"),
        ("radius", -1.0, "radius: "),
        ("scale", float("nan"), "scale: "),
        ("widest", -1.0, "widest: "),
    ],
)
def test_a_file_with_other_arrays_is_refused(tmp_path, name, value, says):
    assert Search.load(forged(tmp_path / "sound.npz")).episodes == 10
    with pytest.raises(ValueError, match=f"search.npz: not a saved Search .*{says}.*use a copy"):
        Search.load(forged(tmp_path / "search.npz", **{name: value}))


def test_a_file_is_not_decompressed(tmp_path):
    """It would be 80 MB."""
    with np.load(forged(tmp_path / "x.npz", tried=np.zeros((10, 1_000_000)))) as file:
        np.savez_compressed(tmp_path / "small.npz", **file)
    assert (tmp_path / "small.npz").stat().st_size < 100_000
    tracemalloc.start()
    with pytest.raises(ValueError, match="a member is compressed"):
        Search.load(tmp_path / "small.npz")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10**6


def test_a_search_among_too_many_parameters_takes_no_memory():
    for start in (10**12, np.zeros(1_000_000)):
        with pytest.raises(ValueError, match=r"^start: [\d,]+ parameters are too many"):
            Search(start)


WRONG = [
    ("parameters", np.zeros(2), 1.0),
    ("parameters", np.zeros((1, 1, 3)), 1.0),
    ("parameters", np.full(3, np.nan), 1.0),
    ("returns", np.zeros(3), [1.0]),
    ("returns", np.zeros((2, 3)), [1.0]),
    ("returns", np.zeros(3), np.inf),
    ("returns", np.zeros(3), "high"),
]


@pytest.mark.parametrize(("name", "parameters", "returns"), WRONG)
def test_bad_input_is_named_and_nothing_is_lost(name, parameters, returns):
    search = Search(3)
    asked = search.ask(5)
    search.tell(asked[0], 1.0)
    with pytest.raises(ValueError, match=f"^{name}: "):
        search.tell(parameters, returns)
    assert search.episodes == 1
    np.testing.assert_array_equal(search.ask(4), asked[1:])


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("start", {"start": 0}), ("start", {"start": np.zeros((2, 2))}),
        ("start", {"start": [np.nan]}), ("scale", {"start": 3, "scale": 0.0}),
        ("memory", {"start": 3, "memory": 2}), ("seed", {"start": 3, "seed": -1}),
        ("sphere", {"start": 3, "sphere": "no"}),
    ],
)  # fmt: skip
def test_bad_settings_are_named(name, given):
    with pytest.raises(ValueError, match=f"^{name}: "):
        Search(**given)


def test_a_view_has_the_density_of_its_returns():
    """The logarithm of the Jacobian, by finite differences."""
    y = np.array([3.0, 1.0, 3.5, -500.0])
    (_, logs), (_, jacobian) = process.views(y)
    below = y.max() - y
    c = np.quantile(below[below > 0], 0.25)
    raw = -np.log(c + below)
    slopes = (np.log(c + below + 1e-5) - np.log(c + below - 1e-5)) / 2e-5
    np.testing.assert_allclose(logs, (raw - raw.mean()) / raw.std())
    np.testing.assert_allclose(jacobian, 3 * (np.log(slopes).mean() - np.log(raw.std())), rtol=1e-6)


def test_the_start_is_tried_first_and_then_perturbations():
    found = Search(CENTRE, scale=0.1, seed=3)
    np.testing.assert_array_equal(found.ask(), [CENTRE])
    _, first, second = found.ask(3)
    np.testing.assert_allclose(first - CENTRE, CENTRE - second)
    assert 0.01 < np.linalg.norm(first - CENTRE) < 0.6


def test_until_it_is_told_the_same_is_asked_and_what_is_missing_is_new():
    found = play(Search(3, seed=2), 6)
    three = found.ask(3)
    np.testing.assert_array_equal(found.ask(3), three)
    np.testing.assert_array_equal(found.ask(), three[:1])
    found.tell(three[1], bowl(three[1]))
    now = found.ask(3)
    np.testing.assert_array_equal(now[:2], three[[0, 2]])
    assert not (now[2] == three).all(1).any()
    with pytest.raises(ValueError, match=r"^k: "):
        found.ask(0)


def test_returns_come_in_any_order():
    one, other = (play(Search(3, seed=2), 9) for _ in range(2))
    asked = one.ask(4)
    np.testing.assert_array_equal(other.ask(4), asked)
    for theta in asked:
        one.tell(theta, bowl(theta))
    other.tell(asked[::-1], [bowl(theta) for theta in asked[::-1]])
    assert one.episodes == other.episodes == 13
    np.testing.assert_allclose(bowl(one.mean), bowl(other.mean), atol=0.1)


def test_what_is_under_way_is_not_asked_again():
    """Eight at a time lie further apart than eight that each believe to be the only one."""

    def apart(X):
        away = np.linalg.norm(X[:, None] - X, axis=-1)
        return np.mean(np.min(away + 9 * np.eye(8), 1))

    def rough(theta):
        return bowl(theta) + 0.3 * np.sin(40 * theta.sum())

    together, alone = [], []
    for seed in range(6):
        found, each = play(Search(3, seed=seed), 12, rough), []
        together.append(apart(found.ask(8)))
        for _ in range(8):
            found._waiting = []
            each.append(found.ask()[0])
        alone.append(apart(np.array(each)))
    assert np.mean(together) > 1.2 * np.mean(alone)


@pytest.mark.parametrize("k", [1, 8])
def test_it_climbs(k):
    """Also with eight episodes under way, of which the oldest ends last."""
    found = Search(3, seed=1)
    while found.episodes < 48:
        theta = found.ask(k)[-1]
        found.tell(theta, bowl(theta))
    assert bowl(found.best) > -0.02
    assert found.posterior.mean.shape == (3,)


def test_costs_over_decades_are_no_obstacle():
    found = play(Search(3, seed=1), 45, lambda theta: -np.exp(-20 * bowl(theta)))
    assert bowl(found.best) > -0.1


def test_failed_episodes_are_recorded_and_left_out():
    found = Search(3, seed=1)
    found.tell(found.ask(5), [np.nan, 1.0, 0.5, 0.2, 0.7])
    found.tell(found.ask(5), [None] * 5)
    assert found.episodes == 10
    assert np.isnan(found.returns).sum() == 6
    assert np.isfinite(found.ask(3)).all()
    before, scale = found.mean, found.scale
    found.tell(found.ask(), [np.nan])  # nothing to decide from
    np.testing.assert_array_equal(found.mean, before)
    assert (found.scale, found.episodes) == (scale, 11)
    assert np.isnan(found.return_at_best) or found.return_at_best in (1.0, 0.5, 0.2, 0.7)


def test_returns_that_do_not_vary_widen_the_scale():
    """After the start, twice for each two perturbations."""
    found = play(Search(3), 5, lambda theta: 7.0)
    np.testing.assert_array_equal(found.mean, 0)
    assert found.scale == pytest.approx(4 * 0.2)
    assert found.certainty() == (0.0, 0.5)
    with pytest.raises(ValueError, match=r"^returns: all 5 are 7"):
        _ = found.posterior


def test_the_scale_has_a_bound_that_a_file_keeps(tmp_path):
    found = play(Search(3, scale=0.5), 20, lambda theta: 7.0)
    found.save(tmp_path / "search.npz")
    found = play(Search.load(tmp_path / "search.npz"), 10, lambda theta: 7.0)
    assert found.scale == 0.5 * WIDEST


def test_on_a_solved_task_the_perturbations_become_small():
    """Where nothing does strictly better, training returns reach those of the best."""
    found = play(Search(CENTRE, seed=1), 100, lambda theta: min(bowl(theta), -0.01))
    assert np.mean(found.returns[-20:]) > -0.011
    choice = play(Search(3, seed=1, sphere=True), 100, lambda theta: min(angle(theta), 0.9))
    assert np.mean(choice.returns[-20:] == 0.9) >= 0.9
    assert choice.scale < 0.5 * choice._widest


def test_resumed_from_a_file_it_continues_exactly(tmp_path):
    search, X = Search(3, seed=5), np.random.default_rng(0).normal(size=(100, 3))
    search.tell(X, [bowl(x) for x in X])  # more than decisions use
    play(search, 14)
    asked = search.ask(3)
    search.tell(asked[1], bowl(asked[1]))
    search.save(tmp_path / "search.npz")
    again = Search.load(tmp_path / "search.npz")
    for one in (search, again):
        left = one.ask(3)
        one.tell(left, [np.nan, *map(bowl, left[1:])])
        play(one, 4)
    np.testing.assert_array_equal(search.mean, again.mean)
    np.testing.assert_array_equal(search.returns, again.returns)
    assert search.scale == again.scale


def test_units_may_change():
    factors = np.array([2.0, 0.1, 1.0])
    found = play(Search(3, seed=1), 12)
    mean, best, tried, asked = found.mean, found.best, found.parameters, found.ask(2)
    found.rescale(factors)
    for now, then in zip(
        (found.mean, found.best, found.parameters, found.ask(2)),
        (mean, best, tried, asked), strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(now, then * factors)
    found.tell(asked * factors, [bowl(theta) for theta in asked])
    assert not found._waiting
    with pytest.raises(ValueError, match=r"^factors: "):
        found.rescale(np.zeros(3))


def test_decisions_use_the_latest_episodes_and_the_nearest_of_the_others():
    found, X = Search(3), np.random.default_rng(0).normal(size=(300, 3))
    found.tell(X, [bowl(x) for x in X])
    near, _ = found._near()
    assert len(near) == NEAR
    np.testing.assert_array_equal(near[-24:], X[-24:])
    away = np.linalg.norm(X - found.mean, axis=1)
    closest = X[np.argsort(away)[:20]]
    assert all((near == x).all(1).any() for x in closest)


def test_the_bound_is_that_of_the_conditional_distributions():
    """Mean and bound, against a plain transliteration; an episode that returns what is expected
    changes the deviations alone."""
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(12, 3)), rng.normal(size=(2, 3))
    y = np.sin(X[:, 0]) + X[:, 1] ** 2
    weights = process.weigh(X, y, 1.0)
    found = process.fit(X, y, X[0], 1.0, weights)
    z = process.views(y)[0][weights.view]
    np.testing.assert_allclose([weights.of.sum(), found.share.sum()], 1.0)

    def conditional(l, a, v):
        both = np.r_[X, Z]
        away = np.sum((both[:, None] - both) ** 2, -1)
        joint = a * np.exp(-0.5 * away / l**2) + 1e6 * a
        solved = np.linalg.solve(joint[:12, :12] + v * np.eye(12), np.c_[z, joint[:12, 12:]])
        variance = np.diag(joint[12:, 12:] - joint[12:, :12] @ solved[:, 1:])
        return np.stack([joint[12:, :12] @ solved[:, 0], np.sqrt(variance)])

    parts = zip(found.length, found.amplitude, found.noise, strict=True)
    mean, deviation = np.tensordot(found.share, [conditional(*part) for part in parts], 1)
    np.testing.assert_allclose(found.mean(Z), mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.bound(Z, 1.3), mean + 1.3 * deviation, rtol=1e-3, atol=1e-3)
    after = found.expecting(Z[:1])
    np.testing.assert_allclose(after.mean(Z), found.mean(Z), atol=1e-9)
    assert (after.bound(Z, 1.0) - after.mean(Z))[0] < 0.9 * (found.bound(Z, 1.0) - mean)[0]


@pytest.mark.parametrize("n", [3, 30])
def test_the_slope_is_that_of_the_posterior(n):
    """Of the array level, also with fewer episodes than parameters; its draws have the mean and
    covariance."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(12, n))
    y = X[:, 0] + 0.1 * rng.normal(size=12)
    weights = process.weigh(X, y, 1.0)
    found = process.fit(X, y, X[0], 1.0, weights)
    part, at = found.likely, X[1] + 0.1
    slope = found.slope(at, 0.5, part)
    kernel = kernels.Scaled(kernels.Gaussian(found.length[part]), found.amplitude[part])
    posterior = gradient_posterior(
        X, found.returns, mean=at, scale=0.5, kernel=kernel, noise=found.noise[part]
    )
    mean, covariance = np.asarray(posterior.mean), np.asarray(posterior.covariance)
    np.testing.assert_allclose(slope.Q @ slope.mean, mean, rtol=1e-4, atol=1e-6)
    d = np.linalg.solve(covariance, mean)
    np.testing.assert_allclose(slope.ascent()[0], d, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(slope.ascent()[1], np.sqrt(mean @ d), rtol=1e-4)
    root = slope.drawn(np.eye(n)) - slope.drawn(np.zeros((1, n)))
    np.testing.assert_allclose(root.T @ root, covariance, atol=1e-3 * np.trace(covariance))


def test_no_parameters_are_longer_than_the_radius():
    found = play(Search(3, seed=1, radius=0.5), 30)
    lengths = np.linalg.norm(found.parameters, axis=1)
    assert lengths.max() <= 0.5 * (1 + 1e-12)
    assert bowl(found.best) > -0.04  # the highest is at 0.5 / 0.62 of the centre: -0.0135
    found.tell(10 * CENTRE, 1.0)
    np.testing.assert_allclose(found.parameters[-1], 0.5 * CENTRE / np.linalg.norm(CENTRE))
    assert len(np.unique(found.parameters, axis=0)) == found.episodes  # what was told is not asked


@pytest.mark.slow
def test_the_certainty_is_that_of_the_posterior():
    found = play(Search(3, seed=1), 20)
    slope, probability = found.certainty()
    posterior = found.posterior
    mu, S = np.asarray(posterior.mean), np.asarray(posterior.covariance)
    np.testing.assert_allclose(slope, np.sqrt(mu @ np.linalg.solve(S, mu)), rtol=1e-4)
    np.testing.assert_allclose(probability, posterior.probability_uphill(), atol=0.02)


def test_on_pure_noise_the_search_is_not_sure():
    """One round cannot tell a weak gradient from none, and says what the hyperprior leaves; the
    slope in standard deviations would say 0.8 on average, and often more than 0.9."""
    said, rng = [], np.random.default_rng(1)
    for _ in range(60):
        X = 0.2 * rng.normal(size=(12, 3))
        given = {"mean": np.zeros(3), "scale": 0.2}
        said.append(smoothed.certainty(X, rng.normal(size=12), **given)[1])
    assert np.mean(said) < 0.75
    assert np.mean(np.array(said) > 0.9) < 0.05


def angle(theta):
    """The highest return along CENTRE, whatever the length."""
    return float(theta @ CENTRE / np.linalg.norm(theta) / np.linalg.norm(CENTRE))


def test_on_a_sphere_all_parameters_are_unit_vectors():
    found = play(Search(3, seed=1, sphere=True), 40, angle)
    np.testing.assert_allclose(np.linalg.norm(found.parameters, axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm([found.mean, found.best], axis=1), 1)
    assert angle(found.best) > 0.98


def test_on_a_sphere_a_multiple_of_the_parameters_is_the_same_episode():
    one, other = Search(3, seed=1, sphere=True), Search(3, seed=1, sphere=True)
    for _ in range(8):
        asked, same = one.ask(), other.ask()
        np.testing.assert_allclose(asked, same, rtol=1e-5)
        one.tell(asked, [angle(theta) for theta in asked])
        other.rescale(np.full(3, 3.0))
        other.tell(3.0 * same, [angle(theta) for theta in same])
    assert not other._waiting
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)


def test_on_a_sphere_a_search_resumes_and_does_not_widen(tmp_path):
    found = play(Search(3, seed=1, sphere=True), 12, angle)
    found.save(tmp_path / "search.npz")
    again = Search.load(tmp_path / "search.npz")
    np.testing.assert_array_equal(play(found, 6, angle).mean, play(again, 6, angle).mean)
    flat = Search(3, sphere=True)
    widest = flat.scale
    assert play(flat, 7, lambda theta: 7.0).scale == widest
    with pytest.raises(ValueError, match=r"^scale: expected at most 0\.808 on a sphere"):
        Search(3, scale=1.0, sphere=True)
