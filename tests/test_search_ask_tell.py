"""`Search`: ask, tell, decisions, files."""

import json
import tracemalloc

import numpy as np
import pytest

from bayespg import kernels
from bayespg._support.precision import in_float64
from bayespg.search import Search, ascent, gradient_posterior
from bayespg.search.search import DRAWS, WIDEST

CENTRE = np.array([0.5, -0.3, 0.2])


def bowl(theta, noise=0.0):
    return -np.sum((theta - CENTRE) ** 2) + noise


def play(search, rounds, f=bowl):
    for _ in range(rounds):
        tried = search.ask()
        search.tell(tried, [f(theta) for theta in tried])
    return search


def test_a_round_is_orthogonal_pairs_and_the_mean():
    *pairs, mean = Search(CENTRE, scale=0.1, seed=3).ask()
    first, second, third, fourth = np.array(pairs) - CENTRE
    np.testing.assert_allclose([first, second], [-third, -fourth])
    np.testing.assert_allclose(first @ second, 0, atol=1e-12)
    np.testing.assert_array_equal(mean, CENTRE)
    np.testing.assert_array_equal(Search(CENTRE, scale=0.1, seed=3).ask()[0], pairs[0])
    assert [Search(n).pairs for n in (1, 2, 23, 24, 100)] == [1, 2, 2, 3, 9]


@pytest.mark.parametrize(
    ("name", "start", "options"),
    [
        ("start", 10**400, {}), ("start", {1.0}, {}), ("start", [1.0, [2.0]], {}),
        ("start", 10**9, {}), ("start", np.ma.array([1.0, 2.0], mask=[0, 1]), {}),
        ("scale", 2, {"scale": 1e-160}), ("scale", 2, {"scale": 1e290}),
        ("start", [1e290, 0.0], {}), ("memory", 2, {"memory": 10**400}),
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
    found = play(Search(CENTRE + 1, seed=1), 3, lambda theta: unit * bowl(theta))
    same = play(Search(CENTRE + 1, seed=1), 3)
    np.testing.assert_allclose(found.mean, same.mean, rtol=1e-6)
    assert found.steps == same.steps


def test_the_best_may_be_one_that_was_tried():
    """The mean moves only so far in a round; an episode beyond it was better."""
    found = Search(3)
    X = 0.5 * np.random.default_rng(0).normal(size=(30, 3))
    X[7] = 3 * CENTRE
    returns = [bowl(x / 3) for x in X]
    found.tell(X, returns)
    np.testing.assert_array_equal(found.best, X[np.argmax(returns)])
    assert not np.array_equal(found.best, found.mean)


def test_units_may_change():
    factors = np.array([2.0, 0.1, 1.0])
    found = play(Search(3, seed=1), 4)
    mean, best, tried, asked = found.mean, found.best, found.parameters, found.ask()
    found.rescale(factors)
    for now, then in zip(
        (found.mean, found.best, found.parameters, found.ask()),
        (mean, best, tried, asked), strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(now, then * factors)
    found.tell(asked * factors, [bowl(theta) for theta in asked])
    assert found.rounds == 5
    with pytest.raises(ValueError, match=r"^factors: "):
        found.rescale(np.zeros(3))


@pytest.mark.slow
def test_it_climbs():
    found = play(Search(3, seed=1), 9)
    assert bowl(found.best) > -0.05
    assert found.episodes == 45
    assert found.posterior.mean.shape == (3,)


def test_the_unit_of_returns_does_not_matter():
    one = play(Search(3, seed=1), 3)
    other = play(Search(3, seed=1), 3, lambda theta: 1e6 * bowl(theta) - 7)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)
    np.testing.assert_allclose(one.scale, other.scale, rtol=1e-6)


@pytest.mark.slow
def test_costs_over_decades_are_no_obstacle():
    found = play(Search(3, seed=1), 9, lambda theta: -np.exp(-20 * bowl(theta)))
    assert bowl(found.best) > -0.1
    assert len(Search(16).ask()) == 5


def test_returns_come_in_any_order_and_number():
    whole, bits = play(Search(3, seed=2), 3), Search(3, seed=2)
    for _ in range(3):
        for theta in bits.ask():
            bits.tell(theta, bowl(theta))
            assert len(bits.ask()) in (1, 2, 3, 4, 5)
    np.testing.assert_allclose(whole.mean, bits.mean)
    late = Search(3, seed=2)
    asked = late.ask()
    late.tell(asked[::-1], [bowl(theta) for theta in asked[::-1]])
    assert late.rounds == 1


def test_episodes_from_elsewhere_are_used():
    X = np.random.default_rng(0).normal(size=(40, 3))
    found = Search(3)
    found.tell(X, [bowl(x) for x in X])
    assert bowl(found.mean) > bowl(np.zeros(3))
    assert found.rounds == 0


def test_failed_episodes_are_recorded_and_left_out():
    found = Search(3, seed=1)
    asked = found.ask()
    found.tell(asked, [np.nan, 1.0, 0.5, 0.2, 0.7])
    found.tell(found.ask(), [None] * 5)
    assert found.rounds == 2
    assert found.episodes == 10
    assert np.isnan(found.returns).sum() == 6
    assert np.isfinite(found.mean).all()


def test_returns_that_do_not_vary_widen_the_scale():
    found = play(Search(3), 2, lambda theta: 7.0)
    np.testing.assert_array_equal(found.mean, 0)
    assert found.scale == pytest.approx(4 * 0.2)
    with pytest.raises(ValueError, match=r"^returns: all 10 are 7"):
        _ = found.posterior


def test_the_scale_has_a_bound_that_a_file_keeps(tmp_path):
    found = play(Search(3, scale=0.5), 9, lambda theta: 7.0)
    found.save(tmp_path / "search.npz")
    found = play(Search.load(tmp_path / "search.npz"), 5, lambda theta: 7.0)
    assert found.scale == 0.5 * WIDEST


def test_a_narrow_peak_narrows_the_scale():
    found = play(Search(CENTRE, seed=1), 6, lambda theta: -np.log(1e-9 - bowl(theta)))
    assert found.scale < 0.2


def test_resumed_from_a_file_it_goes_on_exactly(tmp_path):
    search = play(Search(3, seed=5), 2)
    asked = search.ask()
    search.tell(asked[1], bowl(asked[1]))
    search.save(tmp_path / "search.npz")
    again = Search.load(tmp_path / "search.npz")
    for one in (search, again):
        left = one.ask()
        assert len(left) == 4
        one.tell(left, [np.nan, *map(bowl, left[1:])])
        play(one, 2)
    np.testing.assert_array_equal(search.mean, again.mean)
    np.testing.assert_array_equal(search.returns, again.returns)
    assert search.scale == again.scale


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
    search = play(Search(3, seed=5), 2)
    search.ask()
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
        ("best", np.zeros(4), "do not fit together"),
        ("best", np.full(3, np.nan), "best: 3 of 3 entries are NaN"),
        ("best", np.zeros(3, np.float32), "double precision"),
        ("mean", np.array([0.0, np.inf, 0.0]), "NaN or infinite"),
        ("mean", np.zeros(100_000), "do not fit together"),
        ("returns", np.full(10, np.inf), "returns: infinite"),
        ("returns", np.zeros(9), "do not fit together"),
        ("tried", np.full((10, 3), np.nan), "tried: 30 of 30 entries"),
        ("asked", np.zeros((4, 3)), "do not fit together"),
        ("axes", np.zeros((3, 4)), "do not fit together"),
        ("axes", np.diag([1.0, np.nan, 1.0]), "axes: 1 of 9 entries"),
        ("answers", [float("inf"), None, None, None, None], "infinite"),
        ("rounds", -1, "rounds: "),
        ("slope", float("nan"), "slope: "),
        ("scale", float("nan"), "scale: "),
        ("probability", 2, "probability: "),
        ("wins", [0.5] * 13, "wins: "),
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
    for start in (10**12, np.zeros(100_000)):
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
    asked = search.ask()
    search.tell(asked[0], 1.0)
    with pytest.raises(ValueError, match=f"^{name}: "):
        search.tell(parameters, returns)
    assert search.episodes == 1
    np.testing.assert_array_equal(search.ask(), asked[1:])


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
    (_, logs), (_, jacobian) = ascent.views(y)
    below = y.max() - y
    c = np.quantile(below[below > 0], 0.25)
    raw = -np.log(c + below)
    slopes = (np.log(c + below + 1e-5) - np.log(c + below - 1e-5)) / 2e-5
    np.testing.assert_allclose(logs, (raw - raw.mean()) / raw.std())
    np.testing.assert_allclose(jacobian, 3 * (np.log(slopes).mean() - np.log(raw.std())), rtol=1e-6)


def moved(X, normals, active=False):
    """The move from zero after 20 rows of X, and the views of their returns."""
    views, jacobian = ascent.views(np.array([bowl(x) for x in X[:20]]))
    padded = np.pad(views, ((0, 0), (0, 12)), constant_values=7.0)
    taken, mean, scale = np.arange(32) < 20, np.zeros(3), np.float64(0.5)
    return in_float64(ascent.move)(X, padded, jacobian, taken, mean, scale, normals, active), views


@pytest.mark.slow
def test_the_first_direction_is_the_most_probable_ascent():
    """Against the array-level posterior of the view; rows outside the mask are nothing."""
    X = np.random.default_rng(1).normal(size=(32, 3))
    found, views = moved(X, np.eye(3)[:2])
    z = views[int(found.logarithmic)]
    kernel = kernels.Scaled(kernels.Gaussian(float(found.length)), float(found.amplitude))
    posterior = gradient_posterior(
        X[:20], z, mean=np.zeros(3), scale=0.5, kernel=kernel, noise=float(found.noise)
    )
    d = np.linalg.solve(posterior.covariance, posterior.mean)
    chosen = gradient_posterior(X[:20], z, mean=np.zeros(3), scale=0.5).info
    np.testing.assert_allclose(found.length, chosen["length"])
    np.testing.assert_allclose(found.slope, np.sqrt(posterior.mean @ d), rtol=1e-4)
    assert abs(found.sure - posterior.probability_uphill()) < 0.05  # other sign patterns are drawn


def test_on_pure_noise_the_search_is_not_sure():
    """One round cannot tell a weak gradient from none, and says what the hyperprior leaves; the
    slope in standard deviations would say 0.8 on average, and often more than 0.9."""
    said = []
    for seed in range(20):
        search, rng = Search(3, seed=seed), np.random.default_rng(seed)
        for _ in range(3):
            asked = search.ask()
            search.tell(asked, rng.normal(size=len(asked)))
            said.append(search.probability)
    assert np.mean(said) < 0.75
    assert np.mean(np.array(said) > 0.9) < 0.05


@pytest.mark.slow
def test_active_draws_are_where_the_gradient_is_known_least():
    """Of three axes one was hardly explored."""
    rng = np.random.default_rng(2)
    X, normals = rng.normal(size=(32, 3)) * [1.0, 1.0, 0.05], rng.normal(size=(2, 3))
    found, _ = moved(X, normals, active=True)
    np.testing.assert_allclose(found.axes @ found.axes.T, np.eye(2), atol=1e-9)
    assert abs(found.axes[0, 2]) > 0.95


@pytest.mark.slow("active")
@pytest.mark.parametrize("draws", ["uphill", "active"])
def test_draws_are_uphill(draws):
    slope = play(Search(3, seed=5, draws=draws), 3, np.sum)
    assert (slope.ask()[:3].sum(1) > slope.mean.sum()).all()


@pytest.mark.slow("active")
@pytest.mark.parametrize("draws", DRAWS)
def test_draws_resume_exactly(draws, tmp_path):
    found = play(Search(4, seed=5, draws=draws), 2, lambda theta: bowl(theta[:3]))
    found.save(tmp_path / "search.npz")
    again = Search.load(tmp_path / "search.npz")
    np.testing.assert_array_equal(again.ask(), found.ask())
    e = (found.ask()[:4] - found.mean) / found.scale
    pairs = draws in ("orthogonal", "antithetic")
    assert np.allclose(e[2:], -e[:2]) == pairs
    products = np.abs(e @ e.T - np.diag(np.sum(e**2, 1)))
    assert (products[0, 1] < 1e-9) == (draws != "antithetic")
    assert (products.max() < 1e-9) == (not pairs)


@pytest.mark.slow
def test_few_parameters_have_both_sides():
    """One parameter has one direction, of which a round has both sides."""
    for n in (1, 2, 3):
        found = play(Search(n, seed=1), 2, lambda theta: bowl(np.resize(theta, 3)))
        e = found.ask() - found.mean
        assert len(e) == 2 * found.pairs + 1
        np.testing.assert_allclose(e[n : 2 * found.pairs], -e[: 2 * found.pairs - n])


def test_unknown_draws_are_refused():
    with pytest.raises(ValueError, match=r"^draws: "):
        Search(3, draws="random")


def angle(theta):
    """The highest return along CENTRE, whatever the length."""
    return float(theta @ CENTRE / np.linalg.norm(theta) / np.linalg.norm(CENTRE))


def test_on_a_sphere_all_parameters_are_unit_vectors():
    found = Search(3, seed=1, sphere=True)
    first = found.ask()
    np.testing.assert_allclose(first[:2], -first[2:4])
    assert not found.centred
    play(found, 9, angle)
    np.testing.assert_allclose(np.linalg.norm(found.parameters, axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm([found.mean, found.best], axis=1), 1)
    assert found.centred
    np.testing.assert_array_equal(found.ask()[-1], found.mean)
    assert angle(found.best) > 0.95


def test_on_a_sphere_a_multiple_of_the_parameters_is_the_same_episode():
    one, other = Search(3, seed=1, sphere=True), Search(3, seed=1, sphere=True)
    for _ in range(3):
        asked, same = one.ask(), other.ask()
        np.testing.assert_allclose(asked, same, rtol=1e-6)
        one.tell(asked, [angle(theta) for theta in asked])
        other.rescale(np.full(3, 3.0))
        other.tell(3.0 * same, [angle(theta) for theta in same])
    assert one.rounds == other.rounds == 3
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6)


def test_on_a_sphere_a_search_resumes_and_does_not_widen(tmp_path):
    found = play(Search(3, seed=1, sphere=True), 4, angle)
    found.save(tmp_path / "search.npz")
    again = Search.load(tmp_path / "search.npz")
    np.testing.assert_array_equal(play(found, 3, angle).mean, play(again, 3, angle).mean)
    flat = Search(3, sphere=True)
    widest = flat.scale
    assert play(flat, 2, lambda theta: 7.0).scale == widest
    with pytest.raises(ValueError, match=r"^scale: expected at most 0\.808 on a sphere"):
        Search(3, scale=1.0, sphere=True)


def test_on_a_sphere_the_mean_is_zero_again_where_episodes_say_nothing():
    rng, found, centred = np.random.default_rng(0), Search(3, seed=1, sphere=True), []
    for _ in range(12):
        play(found, 1, lambda theta: rng.normal())
        centred.append(found.centred)
    assert True in centred
    assert False in centred[centred.index(True) :]
    assert found.best.any()
