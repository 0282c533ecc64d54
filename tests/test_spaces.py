"""Spaces of Gymnasium as vectors, and draws of a policy as actions inside a space."""

import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given

from bayespg.environments import spaces

OBSERVED = {
    "box": (gym.Box(-1, 1, (3,)), 3),
    "image": (gym.Box(0, 255, (2, 3, 1), np.uint8), 6),
    "scalar": (gym.Box(-1, 1, ()), 1),
    "discrete": (gym.Discrete(4), 4),
    "discrete from 3": (gym.Discrete(4, start=3), 4),
    "multi-discrete": (gym.MultiDiscrete([2, 3]), 5),
    "multi-binary": (gym.MultiBinary([2, 2]), 4),
    "tuple": (gym.Tuple([gym.Discrete(2), gym.Box(0, 1, (3,))]), 5),
    "dict": (gym.Dict(a=gym.MultiBinary(2), b=gym.Dict(c=gym.Box(0, 1, (1, 2)))), 4),
    "text": (gym.Text(3), 3),
}


@pytest.mark.parametrize("name", OBSERVED)
def test_an_observation_becomes_a_vector_of_the_length_announced(name):
    space, size = OBSERVED[name]
    observations = spaces.Observations(space)
    assert observations.size == size
    space.seed(0)
    for _ in range(5):
        vector = observations.encode(space.sample())
        assert vector.shape == (size,)
        assert vector.dtype == np.float32


def test_an_observation_of_a_box_is_itself_and_of_a_choice_is_one_hot():
    box = spaces.Observations(gym.Box(-9, 9, (2, 2)))
    np.testing.assert_array_equal(box.encode([[1, 2], [3, 4]]), [1, 2, 3, 4])
    choice = spaces.Observations(gym.Discrete(3, start=5))
    np.testing.assert_array_equal(choice.encode(6), [0, 1, 0])


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (gym.Box(-1, 1, (2,)), np.zeros(3)),
        (gym.Box(-1, 1, (2,)), np.zeros((1, 2))),
        (gym.Tuple([gym.Box(-1, 1, (2,)), gym.Discrete(2)]), (np.zeros(3), 1)),
        (gym.Dict(a=gym.Box(-1, 1, (1,))), {"a": np.zeros(2)}),
    ],
)
def test_an_observation_of_another_shape_is_refused(space, wrong):
    with pytest.raises(ValueError, match="observation"):
        spaces.Observations(space).encode(wrong)


NESTED = gym.Dict(a=gym.Box(-1, 1, (2,)), b=gym.Tuple([gym.Discrete(2), gym.MultiBinary(2)]))


@pytest.mark.parametrize(
    ("space", "wrong", "says"),
    [
        (gym.Discrete(3), -1, r"observation -1, the space says 0 to 2"),
        (gym.Discrete(3), 3, r"observation 3, the space says 0 to 2"),
        (gym.Discrete(3), 1.0, r"observation 1.0, the space says"),
        (gym.Discrete(3), "1", r"observation '1', the space says"),
        (gym.Discrete(3), [1, 2], r"observation \[1, 2\], the space says"),
        (gym.MultiDiscrete([2, 3]), [1, 3], r"observation 3, the space says 0 to 2"),
        (gym.MultiDiscrete([2, 3]), [1], r"observation of shape \(1,\), the space says \(2,\)"),
        (gym.MultiBinary(2), [0, 2], r"observation \[0, 2\], the space says MultiBinary"),
        (NESTED, np.zeros(6), r"the space says keys \['a', 'b'\]"),
        (NESTED, {"a": np.zeros(2)}, r"keys \['a'\], the space says keys \['a', 'b'\]"),
        (NESTED, {"a": 0, "b": 0, "c": 0}, r"keys \['a', 'b', 'c'\], the space says"),
        (
            NESTED,
            {"a": np.zeros((1, 2)), "b": (0, [0, 0])},
            r"observation\['a'\] of shape \(1, 2\)",
        ),
        (NESTED, {"a": np.zeros(2), "b": 0}, r"observation\['b'\] 0, the space says a tuple of 2"),
        (NESTED, {"a": np.zeros(2), "b": (2, [0, 0])}, r"observation\['b'\]\[0\] 2, the space"),
        (gym.Box(-1, 1, (2,)), ["1", "2"], "observation of type <U1, expected numbers"),
        (gym.Box(-1, 1, (2,)), [1j, 2], "observation of type complex128, expected numbers"),
        (gym.Box(-1, 1, (2,)), {"a": 1}, "observation of type object, expected numbers"),
    ],
)
def test_an_observation_that_does_not_fit_its_space_is_named(space, wrong, says):
    with pytest.raises(ValueError, match=says):
        spaces.Observations(space).encode(wrong)


@pytest.mark.parametrize("name", OBSERVED)
def test_vectors_are_those_of_gymnasium(name):
    space, _ = OBSERVED[name]
    space.seed(1)
    for _ in range(5):
        sample = space.sample()
        expected = np.ravel(gym.flatten(space, sample))
        np.testing.assert_array_equal(spaces.Observations(space).encode(sample), expected)


def test_bytes_in_a_dictionary_keep_numbers_that_bytes_cannot_hold():
    """Gymnasium's own `flatten` would turn NaN into 0 here."""
    space = gym.Dict(a=gym.Box(0, 255, (1,), np.uint8))
    assert np.isnan(spaces.Observations(space).encode({"a": np.array([np.nan])})[0])


def test_draws_that_are_not_finite_are_the_policy_s():
    for space in (gym.Box(-1, 1, (2,)), gym.Box(-np.inf, np.inf, (2,))):
        with pytest.raises(ValueError, match="policy: drew an action that holds nan"):
            spaces.actions(space).decode(np.array([[0.0, np.nan]]))


@pytest.mark.parametrize(
    "space", [gym.Box(-1, 1, ()), gym.Box(-1, 1, (2,)), gym.Box(0, 9, (), int)]
)
def test_a_space_contains_the_actions_that_are_drawn_in_it(space):
    drawn = np.array([[0.5] * spaces.actions(space).size, [-3.0] * spaces.actions(space).size])
    for action in spaces.actions(space).decode(drawn):
        assert isinstance(action, np.ndarray)
        assert space.contains(action)


UNSUPPORTED = {
    "Text": gym.Text(5),
    "Sequence": gym.Sequence(gym.Discrete(2)),
    "Graph": gym.Graph(gym.Box(0, 1, (2,)), None),
    "Tuple": gym.Tuple([gym.Discrete(2)]),
    "Dict": gym.Dict(a=gym.Discrete(2)),
    "Box": gym.Box(0, 1, (0,)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_actions_that_no_policy_draws_are_named(name):
    with pytest.raises(ValueError, match=f"environment: actions {name}.*not supported"):
        spaces.actions(UNSUPPORTED[name])


@pytest.mark.parametrize("name", ["Sequence", "Graph"])
def test_observations_of_no_fixed_length_are_named(name):
    with pytest.raises(ValueError, match=f"environment: observations {name}.*no fixed length"):
        spaces.Observations(UNSUPPORTED[name])
    with pytest.raises(ValueError, match="no fixed length"):
        spaces.Observations(gym.Dict(a=gym.Discrete(2), b=UNSUPPORTED[name]))


def test_observations_without_numbers_are_refused():
    with pytest.raises(ValueError, match="hold no number"):
        spaces.Observations(gym.Box(0, 1, (0,)))


CHOSEN = {
    "discrete": (gym.Discrete(3), (3,), True),
    "discrete from -2": (gym.Discrete(3, start=-2), (3,), True),
    "discrete of one": (gym.Discrete(1), (1,), True),
    "multi-discrete": (gym.MultiDiscrete([2, 5]), (2, 5), False),
    "multi-discrete from": (gym.MultiDiscrete([2, 5], start=[-1, 7]), (2, 5), False),
    "multi-discrete in rows": (gym.MultiDiscrete([[2, 3], [4, 1]]), (2, 3, 4, 1), False),
    "multi-binary": (gym.MultiBinary(3), (2, 2, 2), False),
    "multi-binary in rows": (gym.MultiBinary([2, 1]), (2, 2), False),
}


@pytest.mark.parametrize("name", CHOSEN)
@given(st.integers(0, 2**31))
def test_every_choice_is_inside_its_space(name, seed):
    space, sizes, scalar = CHOSEN[name]
    actions = spaces.actions(space)
    assert (actions.sizes, actions.scalar) == (sizes, scalar)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, sizes, (4, len(sizes))).astype(np.int32)
    told = actions.decode(drawn[:, 0] if scalar else drawn)
    assert len(told) == 4
    assert all(space.contains(a) for a in told)


def test_choices_reach_both_ends_of_their_space():
    assert spaces.actions(gym.Discrete(3, start=-2)).decode(np.array([0, 2])) == [-2, 0]
    told = spaces.actions(gym.MultiDiscrete([2, 5], start=[-1, 7])).decode(np.array([[0, 4]]))
    np.testing.assert_array_equal(told, [[-1, 11]])


INFINITE = np.inf
BOXES = {
    "finite": gym.Box(np.array([-0.1, 3.0], np.float32), np.array([0.7, 3.5], np.float32)),
    "above": gym.Box(0.3, INFINITE, (2,)),
    "below": gym.Box(-INFINITE, 0.3, (2,)),
    "infinite": gym.Box(-INFINITE, INFINITE, (2, 1)),
    "huge": gym.Box(-3e38, 3e38, (2,)),
    "double": gym.Box(-1e308, 1e308, (2,), np.float64),
    "mixed": gym.Box(np.array([-1, -INFINITE]), np.full(2, INFINITE), dtype=np.float64),
    "point": gym.Box(0.1, 0.1, (2,)),
    "bytes": gym.Box(0, 255, (2,), np.uint8),
    "integers above": gym.Box(0, INFINITE, (2,), np.int32),
}
draws = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2)


@pytest.mark.parametrize("name", BOXES)
@given(draws)
def test_every_draw_becomes_an_action_inside_its_box(name, draw):
    space = BOXES[name]
    (told,) = spaces.actions(space).decode(np.array([draw], np.float32))
    assert space.contains(told)


@given(draws)
def test_a_component_without_both_bounds_stays_itself_within_the_one_it_has(draw):
    x = np.array([draw], np.float32)
    for name, expected in {
        "infinite": x,
        "above": np.maximum(x, np.float32(0.3)),
        "below": np.minimum(x, np.float32(0.3)),
        "integers above": np.maximum(np.rint(x), 0),
    }.items():
        (told,) = spaces.actions(BOXES[name]).decode(x)
        np.testing.assert_array_equal(told.reshape(-1), expected[0])


@given(st.floats(-3, 3, width=32))
def test_one_unit_of_a_draw_is_half_the_range(x):
    space = gym.Box(-1, 5, (1,))
    told = spaces.actions(space).decode(np.array([[x]]))[0][0]
    assert told == pytest.approx(2 + 3 * np.clip(x, -1, 1), abs=1e-6)


def test_integers_of_a_box_are_the_nearest_ones():
    decode = spaces.actions(gym.Box(-4, 4, (1,), np.int8)).decode
    draws = np.array([[-1.0], [-0.9], [-0.2], [0.1], [0.2], [0.9], [1.0]])
    np.testing.assert_array_equal(np.ravel(decode(draws)), [-4, -4, -1, 0, 1, 4, 4])
