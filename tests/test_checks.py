import jax
import jax.numpy as jnp
import numpy as np
import pytest
from foreign import Attached, OnlyArray, OnlyDLPack

from bayespg._support import checks

VALUES = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    "value",
    [
        VALUES.tolist(),
        VALUES.astype(np.float32),
        VALUES.astype(int),
        VALUES.astype(np.float16),
        np.asfortranarray(VALUES),
        OnlyDLPack(VALUES),
        OnlyArray(VALUES),
        Attached(VALUES),
    ],
    ids=["list", "float32", "int", "float16", "fortran", "dlpack", "__array__", "detach"],
)
def test_anything_like_an_array_becomes_float64(value):
    found = checks.array("x", value)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, VALUES)


@pytest.mark.parametrize(
    "value",
    [
        "text", ["a", "b"], None, {"a": 1}, {1.0, 2.0}, [1, [2, 3]], [1j], object(), [b"1"],
        np.array(["2020"], "M8[D]"), np.array([(1.0,)], [("value", float)]), [10**400], 10**400,
    ],
)  # fmt: skip
def test_what_is_not_numbers_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"^x: not an array of numbers"):
        checks.array("x", value)


def test_half_precision_of_jax_is_numbers():
    found = checks.array("x", jnp.asarray(VALUES, jnp.bfloat16))
    np.testing.assert_array_equal(found, VALUES)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda row: row,
        lambda row: [row, VALUES[0]],
        lambda row: ([VALUES[0]], [row]),
        lambda row: [1.0, np.ma.masked],
    ],
    ids=["array", "rows", "nested", "constant"],
)
def test_masked_entries_are_refused_however_deep(wrap):
    with pytest.raises(ValueError, match=r"^x: 1 entries are masked"):
        checks.array("x", wrap(np.ma.array([1.0, 2.0], mask=[False, True])))


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["400", "-400", "5000"])
def test_integers_of_any_length_are_refused_in_a_short_message(value):
    for check in (checks.number, checks.real, checks.discount, checks.probability):
        name = () if check is checks.discount else ("x",)
        with pytest.raises(ValueError, match=r"^(x|discount): expected") as refused:
            check(*name, value)
        assert len(str(refused.value)) < 200
    with pytest.raises(ValueError, match=r"^x: expected a whole number"):
        checks.whole("x", value, 1)


@pytest.mark.parametrize("value", [5e-324, 1e-160, 1e-71, 1e71, 1e290])
def test_a_deviation_whose_square_float64_cannot_hold_is_refused(value):
    with pytest.raises(ValueError, match=r"^scale: expected a number from 1e-70 to 1e\+70"):
        checks.deviation("scale", value)


def test_a_key_is_a_seed_or_a_key_of_jax():
    for value in (3, np.int64(3), jax.random.key(3), jax.random.PRNGKey(3)):
        np.testing.assert_array_equal(
            jax.random.key_data(checks.key("key", value)), jax.random.key_data(jax.random.key(3))
        )
    keys = jax.random.split(jax.random.key(0))
    for value in (None, 0.0, [0, 1], -1, 2**64, 10**400, "0", True, np.ones(2), {}, keys):
        with pytest.raises(ValueError, match=r"^key: expected"):
            checks.key("key", value)


def test_the_first_bad_entry_is_located_and_all_are_counted():
    with pytest.raises(ValueError, match=r"x: 2 of 6 .* first at index \(1, 0\) \(nan\)"):
        checks.array("x", [[0, 1], [np.nan, 3], [4, np.inf]])
    with pytest.raises(ValueError, match=r"^x: expected a finite number, found nan"):
        checks.array("x", float("nan"))
    with pytest.raises(ValueError, match=r"x: 1 of 3 .* first at index 2 \(-inf\)"):
        checks.array("x", [0, 1, -np.inf])


def test_asymmetry_is_located():
    with pytest.raises(
        ValueError, match=r"G: not symmetric, entry \(0, 1\) is 2 but \(1, 0\) is 3"
    ):
        checks.psd("G", [[9, 2], [3, 9]], 2)


def test_symmetric_to_rounding_is_symmetric_enough_and_comes_back_exactly_so():
    found = checks.psd("G", [[2, 1 + 1e-12], [1, 2]], 2)
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.parametrize("units", [1e-12, 1.0, 1e12])
def test_definiteness_does_not_depend_on_units(units):
    D = np.diag([1, units])
    checks.psd("G", D @ [[1, 1], [1, 1]] @ D, 2)
    with pytest.raises(ValueError, match=r"G: not positive semi-definite, .* eigenvalue -0.01"):
        checks.psd("G", D @ [[1, 1.01], [1.01, 1]] @ D, 2)


def test_a_zero_matrix_is_positive_semi_definite():
    checks.psd("G", np.zeros((2, 2)), 2)


def test_a_negative_diagonal_is_named():
    with pytest.raises(ValueError, match="G: not positive semi-definite, diagonal entry 1 is -2"):
        checks.psd("G", np.diag([1, -2]), 2)


def test_off_diagonal_noise_may_be_negative():
    noise = np.array([[1, -0.5], [-0.5, 1]])
    np.testing.assert_array_equal(checks.nonnegative("noise", noise, ((2, 2),)), noise)


@pytest.mark.parametrize("value", [0, -1, [1.0, 0.0]])
def test_a_prior_variance_must_be_positive(value):
    with pytest.raises(ValueError, match=r"^scale: "):
        checks.positive("scale", value, ((2,),))


@pytest.mark.parametrize("value", [0, 1.5, float("inf"), np.float32(2), np.array(3.0)])
def test_a_baseline_runs_from_zero_to_infinity(value):
    assert checks.variance_or_infinity("baseline", value) == float(value)


@pytest.mark.parametrize("value", [-1, float("nan"), None, "flat", [1, 2], 1j])
def test_any_other_baseline_is_refused(value):
    with pytest.raises(ValueError, match=r"^baseline: "):
        checks.variance_or_infinity("baseline", value)


@pytest.mark.parametrize("value", [0, 1, -0.1, 95, float("nan"), None, [0.5, 0.9]])
def test_a_probability_is_strictly_between_zero_and_one(value):
    with pytest.raises(ValueError, match=r"^level: "):
        checks.probability("level", value)
