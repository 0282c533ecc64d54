"""Mistakes are named, and odd but legal input is answered rightly."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import oracle
import pytest
from foreign import OnlyArray, OnlyDLPack
from hypothesis import given
from hypothesis import strategies as st
from oracle import problem

from bayespg import evidence, quadrature
from bayespg import fisher as fishers
from bayespg.algebra.sparsification import Sparsify
from bayespg.evidence import choose_model1, choose_model2
from bayespg.fisher import Dense
from bayespg.monte_carlo import enac, gpomdp, reinforce
from bayespg.quadrature import model1, model2

INF, NAN = float("inf"), float("nan")
M, n = 8, 2
U, R, G = problem(M, n)
ESTIMATES = [model1, model2, choose_model1, choose_model2, reinforce]
MODELS = [model1, model2]


def broken(array, at, value):
    copy = array.copy()
    copy[at] = value
    return copy


SCORES = {
    "NaN": broken(U, (3, 1), NAN),
    "infinite": broken(U, (0, 0), INF),
    "flat": U[:, 0],
    "three axes": U[None],
    "no paths": np.zeros((0, n)),
    "no parameters": np.zeros((M, 0)),
    "ragged": [[1, 2], [3]],
    "text": [["a", "b"]] * M,
    "None": None,
    "complex": U + 0j,
    "masked": np.ma.array(U, mask=U > 1),
    "masked rows": [np.ma.array(row, mask=row > 1) for row in U],
}
RETURNS = {
    "NaN": broken(R, 2, NAN),
    "infinite": broken(R, 2, -INF),
    "too few": R[:-1],
    "too many": np.append(R, 0),
    "a column": R[:, None],
    "one number": 1.0,
    "None": None,
    "words": ["high"] * M,
    "masked": np.ma.array(R, mask=np.arange(M) == 2),
}
FISHER = {
    "NaN": broken(G, (0, 0), NAN),
    "not symmetric": np.array([[2, 1], [0, 2.0]]),
    "indefinite": np.array([[1, 2], [2, 1.0]]),
    "negative": -np.eye(n),
    "too large": np.eye(n + 1),
    "a vector": np.ones(n),
    "not square": np.ones((n, n + 1)),
    "no information where there are scores": np.diag([1.0, 0.0]),
    "text": "identity",
    "an object of another size": Dense(jnp.eye(n + 1)),
    "an operator of another size": lx.MatrixLinearOperator(jnp.eye(n + 1)),
    "an object with NaN": Dense(jnp.full((n, n), jnp.nan)),
}


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_bad_arrays_are_named(estimate):
    for scores in SCORES.values():
        with pytest.raises(ValueError, match=r"^scores: "):
            estimate(scores, R, G)
    for returns in RETURNS.values():
        with pytest.raises(ValueError, match=r"^returns: "):
            estimate(U, returns, G)
    for fisher in FISHER.values():
        with pytest.raises(ValueError, match=r"^fisher: "):
            estimate(U, R, fisher)


@given(
    which=st.sampled_from(["scores", "returns", "fisher"]),
    value=st.sampled_from([NAN, INF, -INF]),
    index=st.integers(0, 10_000),
    estimate=st.sampled_from(ESTIMATES),
)
def test_one_bad_entry_anywhere_is_found(which, value, index, estimate):
    arrays = {"scores": U, "returns": R, "fisher": G}
    at = np.unravel_index(index % arrays[which].size, arrays[which].shape)
    arrays[which] = broken(arrays[which], at, value)
    with pytest.raises(ValueError, match=rf"^{which}: 1 of "):
        estimate(*arrays.values())


@given(eigenvalue=st.floats(-1e6, -1e-3), angle=st.floats(0, 3.1))
def test_a_negative_direction_of_fisher_is_found(eigenvalue, angle):
    v = np.array([np.cos(angle), np.sin(angle)])
    with pytest.raises(ValueError, match=r"^fisher: not positive semi-definite"):
        model2(U, R, np.eye(2) + (eigenvalue - 1) * np.outer(v, v))


@pytest.mark.parametrize("estimate", [model1, model2, choose_model1, choose_model2])
def test_the_fisher_matrix_cannot_be_left_out(estimate):
    with pytest.raises(ValueError, match=r"^fisher: None, but this estimate needs"):
        estimate(U, R, None)
    with pytest.raises(ValueError, match=r"^fisher: None, but this estimate needs"):
        jax.jit(lambda U: estimate(U, R, None))(U)


def test_an_array_whose_mask_hides_nothing_is_an_array():
    found = reinforce(np.ma.array(U), np.ma.array(R, mask=np.zeros(M, bool)))
    np.testing.assert_array_equal(found.mean, reinforce(U, R).mean)


WRONG = {
    "noise": [
        -1e-3, NAN, INF, broken(np.ones(M), 3, -1), np.ones(M + 1), np.ones((1, M, M)), "low", None
    ],
    "scale": [0.0, -1.0, NAN, INF, np.ones(n + 1), "big"],
    "form": ["primal"],
    "sparsify": [0.1, True, {"threshold": 0.1}, "yes"],
    "baseline": [-1.0, NAN, "flat", None, [1.0, 2.0]],
}  # fmt: skip
OTHERS = [
    (evidence.choose_model2, "baseline", [1.0, -1.0, NAN, "flat"]),
    (reinforce, "baseline", ["median"]),
    (enac, "ridge", [NAN, INF, -1.0, "x", None, [1e-6, 1e-6]]),
]


@pytest.mark.parametrize(
    ("function", "name", "values"),
    [(model1, *of) for of in WRONG.items() if of[0] != "baseline"]
    + [(model2, *of) for of in WRONG.items()]
    + OTHERS,
)
def test_a_bad_option_is_named(function, name, values):
    given = (U, R) if function is enac else (U, R, G)
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name}: "):
            function(*given, **{name: value})


def test_noise_that_paths_share_must_be_a_covariance():
    for noise in (np.ones((M, M)) - 2 * np.eye(M), np.triu(np.ones((M, M)))):
        with pytest.raises(ValueError, match=r"^noise: "):
            model2(U, R, G, noise=noise)


@pytest.mark.parametrize("options", [{"form": "weight"}, {"sparsify": Sparsify(0.1)}])
def test_noise_that_paths_share_has_no_weight_space_form(options):
    with pytest.raises(ValueError, match=r"^noise: "):
        model2(U, R, G, noise=np.eye(M), **options)


@pytest.mark.parametrize("options", [{}, {"form": "weight"}, {"sparsify": Sparsify(0.1)}])
@pytest.mark.parametrize("model", MODELS)
def test_a_singular_system_without_noise_is_refused(model, options):
    """Every path twice."""
    with pytest.raises(ValueError, match=r"^noise: .*singular"):
        model(np.repeat(U[:4], 2, 0), R, G, noise=0.0, **options)


@given(seed=st.integers(0, 10_000))
def test_more_noiseless_paths_than_parameters_are_refused(seed):
    with pytest.raises(ValueError, match=r"^noise: .*singular"):
        model2(*problem(n + 1, n, seed), noise=0.0)


def test_no_ridge_needs_enough_paths():
    few = problem(3, 6)
    with pytest.raises(ValueError, match=r"^ridge: 0, but 3 paths do not determine all 6"):
        enac(*few[:2], ridge=0)
    assert np.isfinite(enac(*few[:2]).mean).all()
    away = U - U.mean(0)
    w = np.linalg.lstsq(away, R - R.mean(), rcond=None)[0]
    np.testing.assert_allclose(enac(U, R, ridge=0).mean, U.T @ U @ w / M, rtol=1e-9)


@pytest.mark.parametrize("ridge", [1e-300, 1e-14])
def test_a_ridge_below_the_rounding_of_g_is_no_ridge(ridge):
    few = problem(3, 6)
    with pytest.raises(ValueError, match=rf"^ridge: {ridge:g}, but 3 paths do not determine all 6"):
        enac(*few[:2], ridge=ridge)
    np.testing.assert_allclose(enac(U, R, ridge=ridge).mean, enac(U, R, ridge=0).mean, rtol=1e-9)


@pytest.mark.parametrize("estimate", [enac, reinforce])
def test_one_path_says_nothing_of_its_own_spread(estimate):
    found = estimate(U[:1], R[:1])
    assert np.isinf(np.diag(found.covariance)).all()
    assert found.explained == 0


@pytest.mark.parametrize("settings", [(-1.0,), (NAN,), ("small",), (0.1, 0), (0.1, 2.5)])
def test_bad_settings_of_a_dictionary_are_named(settings):
    with pytest.raises(ValueError, match=r"^sparsify: "):
        Sparsify(*settings)


def test_a_bad_question_to_a_posterior_is_named():
    posterior = model2(U, R, G)
    asked = {
        "level": (
            [0, 1, -0.5, 95, NAN, "high", None],
            [posterior.interval, lambda level: posterior.contains([0, 0], level)],
        ),
        "gradient": ([[1, 2, 3], 1.0, [NAN, 1], None], [posterior.contains]),
        "direction": ([[1, 2, 3], 1.0, [NAN, 1], [0, 0]], [posterior.probability_uphill]),
        "robust": (
            [0.0, 1, "1.0", NAN, None, np.ones(2), {True}, [], 10**400],
            [
                lambda robust: posterior.interval(robust=robust),
                lambda robust: posterior.contains([0, 0], robust=robust),
                lambda robust: posterior.probability_uphill(robust=robust),
                lambda robust: posterior.probability_uphill([1, 0], robust=robust),
            ],
        ),
        "key": ([None, 0.0, [0, 1], "0", -1, 10**400], [lambda key: posterior.sample(key, 2)]),
        "k": ([0, 2.5, "2", None, 10**12, 10**400], [lambda k: posterior.sample(0, k)]),
    }
    for name, (values, questions) in asked.items():
        for value in values:
            for ask in questions:
                with pytest.raises(ValueError, match=rf"^{name}: "):
                    ask(value)


@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("length", [1.7e308, 1e-320])
def test_the_length_of_a_direction_does_not_matter(length, robust):
    posterior = model2(U, R, G)
    expected = posterior.probability_uphill([1, -1], robust=robust)
    found = posterior.probability_uphill([length, -length], robust=robust)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


STEPS, REWARDS = np.ones((M, 3, n)), np.ones((M, 3))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("step_scores", (U, REWARDS)),
        ("step_scores", (np.zeros((0, 3, n)), np.zeros((0, 3)))),
        ("step_scores", (STEPS * NAN, REWARDS)),
        ("rewards", (STEPS, REWARDS.T)),
        ("rewards", (STEPS, REWARDS * INF)),
        ("fisher", (STEPS, REWARDS, -np.eye(n))),
    ],
)
def test_what_is_wrong_with_steps_is_named(name, arguments):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        gpomdp(*arguments)


@pytest.mark.parametrize("discount", [-0.1, 1.1, NAN, 10**400])
def test_a_bad_discount_is_named(discount):
    with pytest.raises(ValueError, match=r"^discount: "):
        gpomdp(STEPS, REWARDS, discount=discount)


K3, B3, Y3 = np.eye(3), np.ones(3), np.arange(3.0)


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("y", (K3, [], B3, 4.0), {}),
        ("y", (K3, K3, B3, 4.0), {}),
        ("y", (K3, [0, NAN, 1], B3, 4.0), {}),
        ("K", (np.eye(2), Y3, B3, 4.0), {}),
        ("K", (-K3, Y3, B3, 4.0), {}),
        ("K", (np.triu(np.ones((3, 3))), Y3, B3, 4.0), {}),
        ("b", (K3, Y3, np.ones(2), 4.0), {}),
        ("b", (K3, Y3, np.ones((1, 1, 3)), 4.0), {}),
        ("b0", (K3, Y3, B3, np.eye(2)), {}),
        ("b0", (K3, Y3, np.ones((2, 3)), 4.0), {}),
        ("noise", (K3, Y3, B3, 4.0), {"noise": -1.0}),
        ("noise", (K3, Y3, B3, 4.0), {"noise": np.ones(2)}),
        ("noise", (np.ones((3, 3)), Y3, B3, 4.0), {}),
        ("prior_mean", (K3, Y3, B3, 4.0), {"prior_mean": np.ones(2)}),
        ("prior_mean", (K3, Y3, B3, 4.0), {"prior_mean": NAN}),
        ("prior_integral", (K3, Y3, B3, 4.0), {"prior_integral": np.ones(2)}),
    ],
)
def test_what_is_wrong_with_an_integral_is_named(name, arguments, options):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        quadrature.integral(*arguments, **options)


VECTOR = (np.eye(2)[:, :, None, None] * K3, np.ones((3, 2)), np.ones((2, 2, 3)), 99 * np.eye(2))


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [("K", 0, K3), ("K", 0, VECTOR[0] * NAN), ("y", 1, VECTOR[1] * NAN), ("b", 2, B3)],
)
def test_what_is_wrong_with_a_vector_integral_is_named(name, position, value):
    arguments = list(VECTOR)
    arguments[position] = value
    with pytest.raises(ValueError, match=rf"^{name}: "):
        quadrature.vector_integral(*arguments)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("noise", {"noise": np.ones(2)}),
        ("noise", {"noise": -1.0}),
        ("prior_mean", {"prior_mean": np.ones((3, 3))}),
    ],
)
def test_bad_options_of_a_vector_integral_are_named(name, options):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        quadrature.vector_integral(*VECTOR, **options)


POINTS = np.linspace(-1, 1, 3)[:, None]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("points", {"points": POINTS[:, 0]}),
        ("mean", {"mean": [0.0, 1.0]}),
        ("covariance", {"covariance": [[-1.0]]}),
        ("length_scale", {"length_scale": 0.0}),
        ("length_scale", {"length_scale": [1.0, 2.0]}),
        ("scale", {"scale": -1.0}),
    ],
)
def test_what_is_wrong_with_bayes_hermite_is_named(name, change):
    options = {"points": POINTS, "mean": [0.0], "covariance": [[1.0]], "length_scale": 1.0}
    with pytest.raises(ValueError, match=rf"^{name}: "):
        quadrature.bayes_hermite(np.ones(3), **(options | change))


# Odd, legal and answered.


WRAPPERS = {
    "list": lambda a: a.tolist(),
    "__array__": OnlyArray,
    "dlpack": OnlyDLPack,
    "fortran": np.asfortranarray,
    "read-only": lambda a: np.broadcast_to(a, a.shape),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("estimate", ESTIMATES)
def test_anything_like_an_array_gives_the_same_answer(estimate, wrap):
    found, expected = estimate(wrap(U), wrap(R), wrap(G)), estimate(U, R, G)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("convert", [np.float32, jnp.asarray], ids=["float32", "jax"])
@pytest.mark.parametrize("estimate", ESTIMATES)
def test_single_precision_is_answered_for_the_numbers_it_holds(estimate, convert):
    single = [convert(array) for array in (U, R, G)]
    found, expected = estimate(*single), estimate(*(np.asarray(a, np.float64) for a in single))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("model", ["model1", "model2"])
def test_integers_are_numbers(model):
    scores, returns = np.rint(3 * U).astype(int), np.rint(3 * R).astype(int)
    found = getattr(quadrature, model)(scores, returns, np.diag([2, 3]))
    expected = getattr(oracle, model)(1.0 * scores, 1.0 * returns, np.diag([2.0, 3.0]))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_the_callers_arrays_are_left_alone(model):
    arrays = [a.copy() for a in (U, R, G)]
    model(*arrays)
    for a, b in zip(arrays, (U, R, G), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("baseline", [0.0, INF])
def test_repeated_paths_count_as_one_with_less_noise(baseline):
    """Two paths with the same score and noise s^2 are one, their mean return, with s^2 / 2."""
    twice = np.repeat(np.arange(4), 2)
    found = model2(U[twice], R, G, noise=0.1, baseline=baseline)
    expected = oracle.model2(U[:4], R.reshape(4, 2).mean(1), G, 0.05, baseline)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-9)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-9, atol=1e-12)


def test_all_paths_the_same_are_answered():
    for model in ("model1", "model2"):
        same = np.repeat(U[:1], M, 0), np.full(M, 2.0), G
        found = getattr(quadrature, model)(*same)
        expected = getattr(oracle, model)(*same)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6)
        assert np.isfinite(found.influence).all()


def test_constant_returns_have_no_gradient_under_a_flat_baseline():
    posterior = model2(U, np.full(M, 7.0), G, baseline=INF)
    np.testing.assert_allclose(posterior.mean, 0, atol=1e-10)
    np.testing.assert_allclose(posterior.influence, 0, atol=1e-10)
    lower, upper = posterior.interval()  # unknown, not known to be zero
    assert np.isneginf(lower).all()
    assert np.isposinf(upper).all()
    assert posterior.contains(np.ones(n))


def test_zero_scores_leave_the_prior():
    for baseline in (0.0, INF):
        posterior = model2(0 * U, R, G, baseline=baseline)
        np.testing.assert_array_equal(posterior.mean, 0)
        np.testing.assert_array_equal(posterior.influence, 0)
        np.testing.assert_allclose(posterior.covariance, G, rtol=1e-9)
        assert posterior.explained == 0
    model_interval, robust_interval = (posterior.interval(robust=r) for r in (False, True))
    np.testing.assert_allclose(robust_interval, model_interval)


def test_zero_scores_exclude_nothing_near_the_prior_mean():
    posterior = model2(0 * U, R, G)
    assert np.isfinite(posterior.robust_covariance).all()
    assert posterior.contains([0, 0])


def test_zero_scores_have_no_gradient_in_model1():
    posterior = model1(0 * U, R, G)
    np.testing.assert_array_equal(posterior.mean, 0)
    assert not np.isnan(posterior.interval()).any()  # no path says anything: unknown


def test_one_path_under_a_flat_baseline_says_nothing():
    """The path tells the constant; nothing is left for the gradient."""
    posterior = model2(U[:1], R[:1], G, baseline=INF)
    np.testing.assert_allclose(posterior.mean, 0, atol=1e-12)
    np.testing.assert_allclose(posterior.covariance, G, rtol=1e-9)
    assert np.isfinite(posterior.influence).all()


def test_one_path_under_a_flat_baseline_has_the_priors_interval():
    posterior = model2(U[:1], R[:1], G, baseline=INF)
    np.testing.assert_allclose(posterior.interval(), posterior.interval(robust=False), atol=1e-9)
    assert posterior.probability_uphill([1.0, 0.0]) == pytest.approx(0.5)


def test_zero_returns_can_be_chosen_for_and_estimated():
    choice = choose_model2(U, 0 * R, G)
    posterior = model2(
        U, 0 * R, G, scale=choice.scale, noise=choice.noise, baseline=choice.baseline
    )
    np.testing.assert_array_equal(posterior.mean, 0)


@given(
    magnitude=st.sampled_from([1e-150, 1e-30, 1e30, 1e100]),
    model=st.sampled_from(MODELS),
)
def test_returns_of_any_magnitude_are_answered(magnitude, model):
    found, expected = model(U, magnitude * R, G), model(U, R, G)
    np.testing.assert_allclose(found.mean / magnitude, expected.mean, rtol=1e-9)


@pytest.mark.parametrize("estimate", [*ESTIMATES, lambda U, R, G: enac(U, R)])
def test_what_float64_cannot_hold_is_refused(estimate):
    with pytest.raises(ValueError, match=r"^(scores, )?returns: "):
        estimate(U, 1e300 * R, G)
    with pytest.raises(ValueError, match=r"^scores"):
        estimate(1e200 * U, R, G)


@pytest.mark.parametrize("choose", [choose_model1, choose_model2])
@pytest.mark.parametrize("magnitude", [1e-140, 1e-20, 1e140])
def test_the_choice_is_in_the_units_of_the_returns(choose, magnitude):
    found, expected = choose(U, magnitude * R, G), choose(U, R, G)
    np.testing.assert_allclose(found.scale / magnitude / magnitude, expected.scale, rtol=1e-6)
    np.testing.assert_allclose(found.noise / magnitude / magnitude, expected.noise, rtol=1e-6)


@pytest.mark.parametrize("choose", [choose_model1, choose_model2])
def test_a_choice_for_returns_whose_squares_are_beyond_float64_is_refused(choose):
    for magnitude in (1e-170, 1e160):
        with pytest.raises(ValueError, match=r"^(scores, )?returns: "):
            choose(U, magnitude * R, G)


def test_zero_scores_can_be_chosen_for_and_estimated():
    choice = choose_model2(0 * U, R, G)
    assert choice.noise == pytest.approx(R.var(ddof=1))
    posterior = model2(0 * U, R, G, scale=choice.scale, noise=choice.noise, baseline=INF)
    np.testing.assert_array_equal(posterior.mean, 0)
    assert np.isfinite(choose_model1(0 * U, R, G).log_evidence)


@pytest.mark.parametrize("magnitude", [1e-160, 1e150])
@pytest.mark.parametrize("baseline", ["none", "best"])
def test_the_rivals_error_bars_do_not_overflow(magnitude, baseline):
    """Fourth powers of influences, whatever their units."""
    found, expected = (reinforce(U, c * R, baseline=baseline) for c in (magnitude, 1.0))
    np.testing.assert_allclose(
        np.divide(found.interval(), magnitude), expected.interval(), rtol=1e-9
    )
    for gradient in ([0.0, 0.0], [3.0, 3.0], [1.0, 0.5]):
        inside = expected.contains(gradient)
        assert found.contains(np.multiply(gradient, magnitude)) == inside
    assert found.probability_uphill([1.0, 0.0]) == pytest.approx(
        expected.probability_uphill([1.0, 0.0])
    )


@pytest.mark.parametrize("paths", [3, 5, 6, 9])
@pytest.mark.parametrize("magnitude", [1.0, 1e2, 1e4])
def test_scores_of_any_magnitude_get_model1_s_exact_answer(magnitude, paths):
    """Model 1 has six features of two parameters. In exact fractions, because K's condition number
    is up to 1e20."""
    U = np.random.default_rng(9).normal(size=(paths, 2)) * magnitude
    R = np.arange(1.0, paths + 1)
    expected = in_fractions(U, R, 1e-3)
    np.testing.assert_allclose(model1(U, R, np.eye(2)).mean, expected, rtol=1e-5)


def in_fractions(U, R, noise):
    """Y C b with G = I."""
    rows = [[Fraction(float(x)) for x in row] for row in U]

    def inner(a, b):
        return 1 + sum(x * y for x, y in zip(a, b, strict=True))

    A = [
        [inner(a, b) ** 2 + (Fraction(noise) if i == j else 0) for j, b in enumerate(rows)]
        + [inner(a, a)]
        for i, a in enumerate(rows)
    ]
    for i in range(len(A)):  # Gauss and Jordan
        A[i] = [x / A[i][i] for x in A[i]]
        for k in range(len(A)):
            if k != i:
                A[k] = [x - A[k][i] * y for x, y in zip(A[k], A[i], strict=True)]
    weights = [row[-1] * Fraction(float(r)) for row, r in zip(A, R, strict=True)]
    return [float(sum(w * row[j] for w, row in zip(weights, rows, strict=True))) for j in range(2)]


# One layout of steps, and the sentence that helps.

EPISODES = [np.ones((2, 3)), np.ones((4, 3))]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: evidence.model2(EPISODES, [1.0, 2.0], np.eye(3)), r"^scores: a list of 2 arrays "
         r"of 2 to 4 rows; join them: np.concatenate\(scores\), .*np.stack"),
        (lambda: evidence.model2(np.ones((2, 4, 3)), [1.0, 2.0], np.eye(3)), r"found \(2, 4, "
         r"3\); for one row per episode: np.stack"),
        (lambda: evidence.model2(np.ones((2, 30)), np.ones(30), np.eye(2)), "^scores: 2 rows and "
         "30 columns for 30 returns; rows are episodes: give scores.T"),
        (lambda: evidence.model2(np.ones((30, 2)), np.ones((30, 1)), np.eye(2)),
         r"^returns: .* found \(30, 1\); give np.ravel\(returns\)"),
        (lambda: quadrature.model2(np.ones((3, 20)), np.ones(3), fishers.Isotropic(1, 20)),
         r"the order is Isotropic\(parameters, scale\)"),
        (lambda: gpomdp(np.ones((6, 3)), np.ones(6)),
         r"found \(6, 3\); for \(N, n\), .* give last="),
        (lambda: fishers.of_step_scores(np.ones((6, 3))), "^last: expected flags"),
    ],
)  # fmt: skip
def test_a_likely_mistake_is_answered_with_what_to_do(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_steps_in_a_row_are_the_same_as_episodes_side_by_side():
    rng = np.random.default_rng(0)
    U, r = rng.normal(size=(6, 3)), rng.normal(size=6)
    last = np.array([False, True, False, False, False, True])
    padded, rewards = np.zeros((2, 4, 3)), np.zeros((2, 4))
    padded[0, :2], padded[1], rewards[0, :2], rewards[1] = U[:2], U[2:], r[:2], r[2:]
    found = gpomdp(U, r, last=last, discount=0.9)
    np.testing.assert_allclose(found.mean, gpomdp(padded, rewards, discount=0.9).mean, rtol=1e-10)
    weights = 0.9 ** np.arange(4)[:, None] * (np.arange(4)[:, None] < [2, 4])
    G = fishers.of_step_scores(U, last=last, discount=0.9).matrix()
    with jax.enable_x64(True):
        expected = fishers.of_step_scores(padded.swapaxes(0, 1), weights).matrix()
    np.testing.assert_allclose(G, expected, rtol=1e-10)
