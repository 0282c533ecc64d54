"""Contracts of vectors of actions, of features and heads, of tiles, and of policies by name."""

import itertools
from typing import get_args

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given
from oracle import standard_errors

from bayespg.agents.build import default_policy
from bayespg.environments import spaces
from bayespg.learning.estimators import Needs
from bayespg.policies import flatten, information_root, named, score, sparse_score, tiles
from bayespg.policies.distributions import Categoricals, Gaussians
from bayespg.policies.features import MLP, Fourier, Linear, _waves, learns_features
from bayespg.policies.features import Gaussians as Bumps
from bayespg.policies.heads import Choice, Composed, Normals
from bayespg.policies.masked import masked

SIZES = (2, 3, 1)
KEY = jax.random.key(0)
LOGITS = np.array([0.3, -1.2, 0.9, 0.0, 2.0, 0.7])
EVERY = np.array(list(itertools.product(*map(range, SIZES))), np.int32)


@pytest.fixture(scope="module")
def enumerated():
    """Probabilities and scores of every action, a root, and the mode."""

    @jax.jit
    def ask(logits):
        at, every = Categoricals(logits, SIZES), jnp.asarray(EVERY)
        score = jax.grad(lambda q, a: Categoricals(q, SIZES).log_prob(a))
        U = jax.vmap(lambda a: score(logits, a))(every)
        return jnp.exp(jax.vmap(at.log_prob)(every)), U, at.fisher_root(), at.mode()

    with jax.enable_x64(True):
        return [np.asarray(x) for x in ask(jnp.asarray(LOGITS))]


def test_probabilities_of_choices_multiply(enumerated):
    p = enumerated[0]
    first, second, third = (np.exp(l) / np.exp(l).sum() for l in np.split(LOGITS, [2, 5]))
    np.testing.assert_allclose(p, [first[i] * second[j] * third[k] for i, j, k in EVERY])
    assert p.sum() == pytest.approx(1)


def test_the_score_of_choices_has_mean_zero_and_the_root_s_covariance(enumerated):
    p, U, A, _ = enumerated
    np.testing.assert_allclose(p @ U, 0, atol=1e-14)
    np.testing.assert_allclose(A.T @ A, (U.T * p) @ U, atol=1e-14)


def test_the_mode_of_choices_is_their_likeliest_action(enumerated):
    p, _, _, mode = enumerated
    np.testing.assert_array_equal(mode, EVERY[np.argmax(p)])
    assert mode.dtype == np.int32


def test_choices_are_drawn_independently_with_their_frequencies(enumerated):
    """Within 4 standard errors, cell by cell."""
    k = 40_000
    logits = jnp.asarray(np.tile(LOGITS, (k, 1)), jnp.float32)
    drawn = np.asarray(jax.jit(lambda q, key: q.sample(key))(Categoricals(logits, SIZES), KEY))
    assert drawn.dtype == np.int32
    assert drawn.shape == (k, 3)
    p = enumerated[0]
    found = np.array([np.mean(np.all(drawn == a, 1)) for a in EVERY])
    assert np.all(np.abs(found - p) <= 4 * np.sqrt(p * (1 - p) / k))


MEAN, LOG_SCALE = np.array([0.4, -3.0]), np.array([-1.0, 0.7])


def test_gaussians_have_the_density_of_independent_normals(x64):
    a = np.array([0.1, -2.0])
    z = (a - MEAN) / np.exp(LOG_SCALE)
    expected = np.prod(np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / np.exp(LOG_SCALE))
    at = Gaussians(jnp.asarray(MEAN), jnp.asarray(LOG_SCALE))
    assert np.exp(at.log_prob(jnp.asarray(a))) == pytest.approx(expected)
    np.testing.assert_array_equal(jax.grad(at.log_prob)(at.mode()), 0)


def test_gaussian_scores_have_mean_zero_and_the_root_s_covariance():
    """Within 4 standard errors, that of a second moment estimated from its terms."""
    k = 40_000
    at = Gaussians(*(jnp.asarray(np.tile(x, (k, 1)), jnp.float32) for x in (MEAN, LOG_SCALE)))

    @jax.jit
    def ask(at):
        drawn, one = at.sample(jax.random.key(1)), jax.tree.map(lambda x: x[0], at)
        U = jax.vmap(lambda a: jax.grad(lambda q: q.log_prob(a))(one))(drawn)
        return drawn, jnp.concatenate([U.mean, U.log_scale], 1), one.fisher_root()

    drawn, U, A = (np.asarray(x, float) for x in ask(at))
    assert standard_errors(drawn, MEAN, np.diag(np.exp(2 * LOG_SCALE))) < 4
    squares = np.einsum("ki,kj->kij", U, U)
    assert np.all(np.abs(U.mean(0)) < 4 * U.std(0) / np.sqrt(k))
    assert np.all(np.abs(squares.mean(0) - A.T @ A) < 4 * squares.std(0) / np.sqrt(k))


# Features and heads.

INPUTS = 2
X = np.array([0.3, -0.8], np.float32)
FEATURES = {
    "linear": (Linear(INPUTS), 3),
    "fourier": (Fourier(INPUTS, 5), 8),
    "bumps": (Bumps(INPUTS, 3), 10),
    "network": (MLP(INPUTS, (4, 3), key=jax.random.key(0)), 4),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_have_the_size_they_announce_and_end_in_a_constant(name):
    features, size = FEATURES[name]
    phi = features(jnp.asarray(X))
    assert phi.shape == (features.size,) == (size,)
    assert phi.dtype == jnp.float32
    assert phi[-1] == 1


def test_only_networks_have_parameters():
    counts = {name: sum(x.size for x in jax.tree.leaves(f)) for name, (f, _) in FEATURES.items()}
    assert counts == {"linear": 0, "fourier": 0, "bumps": 0, "network": 2 * 4 + 4 + 4 * 3 + 3}


def test_a_policy_learns_features_where_a_network_is_among_its_parts():
    for name, (features, size) in FEATURES.items():
        policy = Composed(features, Choice(size, (2,), True))
        for each in (policy, masked(policy, 2)):
            assert learns_features(each) == (name == "network")
    assert learns_features(eqx.nn.MLP(INPUTS, 3, 4, 1, key=jax.random.key(0)))


def test_the_default_policy_depends_on_the_actions():
    for space, name in (
        (gym.Discrete(2), "fourier"), (gym.MultiDiscrete([2, 3]), "fourier"),
        (gym.Box(-1, 1, (2,)), "mlp"),
    ):  # fmt: skip
        assert default_policy(spaces.actions(space), Needs(recent=True)) == name


def test_fourier_features_approach_the_gaussian_kernel(x64):
    """An average of k products of cosines, each at most 2 and of variance at most 1: a standard
    error of 1 / sqrt(k)."""
    k, scale = 4000, 0.7
    features = Fourier(INPUTS, k, scale)
    x, y = jnp.array([0.3, -0.8]), jnp.array([-0.4, 0.1])
    found = features(x)[:k] @ features(y)[:k]
    expected = np.exp(-np.sum((x - y) ** 2) / (2 * scale**2 * INPUTS))
    assert abs(found - expected) < 4 / np.sqrt(k)
    np.testing.assert_array_equal(features(x)[k:], [0.3, -0.8, 1])


def test_fourier_features_follow_from_their_seed():
    one, other = (Fourier(INPUTS, 5, seed=s)(jnp.asarray(X)) for s in (0, 1))
    np.testing.assert_array_equal(one, Fourier(INPUTS, 5)(jnp.asarray(X)))
    assert not np.allclose(one, other)


def test_bumps_are_one_at_their_centres():
    features = Bumps(INPUTS, 3)
    for i, centre in enumerate(itertools.product((-2.0, 0.0, 2.0), repeat=2)):
        phi = features(jnp.array(centre))
        assert phi[i] == 1
        assert np.argmax(phi[:-1]) == i


def shaken(policy, seed=0):
    """With parameters drawn at random."""
    theta, rebuild = flatten(policy)
    return rebuild(theta + 0.7 * jax.random.normal(jax.random.key(seed), theta.shape))


HEADS = {
    "choice": lambda size: Choice(size, (3,), True),
    "choices": lambda size: Choice(size, SIZES, False),
    "normals": lambda size: Normals(size, 2, 0.5),
}


@pytest.fixture(scope="module")
def composed():
    """Weights of a quadrature, scores, a root of the information and more, for networks with each
    head. Choices are enumerated, Gaussians integrated by Gauss and Hermite: both exact."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    grid = np.array(list(itertools.product(nodes, repeat=2)))
    normal = np.prod(list(itertools.product(weights / weights.sum(), repeat=2)), 1)

    @jax.jit
    def ask(policies):
        found = {}
        x = jnp.asarray(X, jnp.float64)
        for kind, policy in policies.items():
            at = policy(x)
            if kind == "normals":
                actions, p = at.mean + jnp.exp(at.log_scale) * grid, jnp.asarray(normal)
            else:
                actions = jnp.arange(3, dtype=jnp.int32) if kind == "choice" else jnp.asarray(EVERY)
                p = jnp.exp(jax.vmap(at.log_prob)(actions))
            U = jax.vmap(lambda a, policy=policy: score(policy, x, a))(actions)
            logs = jax.vmap(at.log_prob)(actions), at.log_prob(at.mode())
            found[kind] = (p, U, information_root(policy, x), actions, at.mode(), *logs)
        return found

    features, size = FEATURES["network"]
    with jax.enable_x64(True):
        policies = {kind: shaken(Composed(features, HEADS[kind](size))) for kind in HEADS}
        return ask(jax.tree.map(lambda x: x.astype(jnp.float64), policies))


@pytest.mark.parametrize("kind", HEADS)
def test_a_composed_policy_s_score_has_mean_zero_and_its_information(composed, kind):
    p, U, A, *_ = (np.asarray(x) for x in composed[kind])
    assert U.shape[1] == 27 + {"choice": 12, "choices": 24, "normals": 10}[kind]
    np.testing.assert_allclose(p.sum(), 1)
    np.testing.assert_allclose(p @ U, 0, atol=1e-12)
    np.testing.assert_allclose(A.T @ A, (U.T * p) @ U, atol=1e-12)


@pytest.mark.parametrize("kind", HEADS)
def test_the_mode_of_a_head_is_the_likeliest_of_its_actions(composed, kind):
    _, _, _, actions, mode, logs, highest = (np.asarray(x) for x in composed[kind])
    assert np.all(logs <= highest)
    if kind != "normals":
        np.testing.assert_array_equal(mode, actions[np.argmax(logs)])


# Tiles.

TILED = tiles.Tiles(
    jnp.asarray(np.random.default_rng(0).normal(size=tiles.size(2, 3, 4, 8)), jnp.float32),
    inputs=2, outputs=3, sizes=(3,), scalar=True, tiles=4,
)  # fmt: skip
ask_tiles = eqx.filter_jit(lambda policy, x: (policy.active(x), policy(x).logits))
states = st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=2)


@given(states)
def test_as_many_tiles_act_as_there_are_tilings_and_outputs_all_distinct(state):
    active, logits = ask_tiles(TILED, jnp.array(state, jnp.float32))
    assert active.shape == (8 * 3,)
    assert np.unique(active).size == active.size
    assert active.min() >= 0
    assert active.max() < TILED.weights.size
    expected = np.asarray(TILED.weights)[active].reshape(8, 3).sum(0)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_every_tile_can_be_reached():
    ticks = np.linspace(-2.5, 2.5, 81)
    grid = np.array(list(itertools.product(ticks, repeat=2)), np.float32)
    seen = np.unique(jax.vmap(TILED.active)(grid))
    assert seen.size == TILED.weights.size


def test_states_beyond_the_grid_act_as_its_edge():
    for far, edge in [((99.0, 0.3), (2.5, 0.3)), ((-1.0, -99.0), (-1.0, -2.5))]:
        one, other = (ask_tiles(TILED, jnp.array(x))[1] for x in (far, edge))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["scalar", "choices", "gaussians"])
def test_tiles_given_their_weights_act_as_the_policy(kind):
    sizes = {"scalar": (3,), "choices": SIZES, "gaussians": ()}[kind]
    outputs = sum(sizes) or 2
    weights = np.random.default_rng(1).normal(size=tiles.size(2, outputs))
    policy = tiles.Tiles(jnp.asarray(weights, jnp.float32), 2, outputs, sizes, kind == "scalar")

    @jax.jit
    def ask(policy, key):
        x = jnp.asarray(X)
        local = policy.local(policy.weights[policy.active(x)], x)
        action = policy(x).sample(key)
        where, what = sparse_score(policy, x, action)
        sparse = jnp.zeros(policy.weights.size).at[where].set(what)
        return local, policy(x), sparse, score(policy, x, action)

    local, whole, sparse, dense = ask(policy, jax.random.key(0))
    for one, other in zip(jax.tree.leaves(local), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_allclose(sparse, dense, atol=1e-6)


# By name.

ACTIONS = {
    "discrete": gym.Discrete(3, start=2),
    "multi-discrete": gym.MultiDiscrete([2, 3]),
    "multi-binary": gym.MultiBinary(3),
    "box": gym.Box(-2, 2, (2,)),
}
NAMES = get_args(named.Name)


@pytest.fixture(scope="module")
def started():
    """For each name and kind: five draws at a state, their log probabilities and the first's
    distribution."""

    @eqx.filter_jit
    def ask(policies, key):
        def one(policy):
            drawn = jax.vmap(policy)(jnp.tile(X, (5, 1))).sample(key)
            at = policy(jnp.asarray(X))
            return drawn, jax.vmap(at.log_prob)(drawn), at

        return {which: one(policy) for which, policy in policies.items()}

    policies = {
        (name, kind): named.make(name, INPUTS, spaces.actions(space), jax.random.key(0), (4,))
        for name in NAMES
        for kind, space in ACTIONS.items()
    }
    assert {flatten(policy)[0].dtype for policy in policies.values()} == {np.dtype("float32")}
    found = [
        ask({(name, kind): policies[name, kind] for name in NAMES}, jax.random.key(1))
        for kind in ACTIONS
    ]
    return {which: answer for part in found for which, answer in part.items()}


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_policy_of_any_name_draws_actions_that_the_space_contains(started, name, kind):
    drawn, logs, _ = started[name, kind]
    told = spaces.actions(ACTIONS[kind]).decode(np.asarray(drawn))
    assert len(told) == 5
    assert all(ACTIONS[kind].contains(a) for a in told)
    assert np.isfinite(logs).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_starts_with_all_choices_equally_likely_and_means_in_the_middle(started, name):
    for kind in ("discrete", "multi-discrete", "multi-binary"):
        np.testing.assert_array_equal(started[name, kind][2].logits, 0)
    drawn = started[name, "box"][2]
    np.testing.assert_array_equal(drawn.mean, 0)
    scale = tiles.SCALE if name == "tiles" else 1 / np.sqrt(len(drawn.log_scale))
    np.testing.assert_allclose(np.exp(drawn.log_scale), scale, rtol=1e-6)


@pytest.mark.parametrize(
    ("typo", "meant"), [("lineer", "linear"), ("tile", "tiles"), ("mpl", "mlp"), ("MLP", "mlp")]
)
def test_an_unknown_name_is_answered_with_the_nearest(typo, meant):
    with pytest.raises(ValueError, match=f"policy: no policy is called '{typo}'.*{meant}"):
        named.make(typo, 2, spaces.actions(gym.Discrete(2)), jax.random.key(0))


@pytest.mark.parametrize(("name", "most"), [("gaussian", 3), ("tiles", 4)])
def test_a_grid_covers_few_dimensions_and_says_what_to_take_instead(name, most):
    actions = spaces.actions(gym.Discrete(2))
    assert flatten(named.make(name, most, actions, jax.random.key(0)))[0].size > 0
    with pytest.raises(ValueError, match=f"at most {most} dimensions.*has {most + 1}.*'mlp'"):
        named.make(name, most + 1, actions, jax.random.key(0))


@pytest.mark.parametrize("hidden", [(), (4, 0)])
def test_a_network_needs_a_layer(hidden):
    with pytest.raises(ValueError, match="hidden: expected widths of at least 1, found"):
        named.make("mlp", 2, spaces.actions(gym.Discrete(2)), jax.random.key(0), hidden)


def test_waves_with_few_degrees_of_freedom_have_many_lengths():
    """Of frequencies with Student's distribution more are several times the typical one."""
    inputs, count = 3, 2000
    lengths = []
    for freedom in (np.inf, 3.0):
        W, _ = _waves(inputs, count, 1.0, 0, freedom)
        lengths.append(np.linalg.norm(W, axis=1))
    normal, student = (np.mean(x > 3 * np.median(x)) for x in lengths)
    assert normal < 0.001
    assert 0.02 < student < 0.1
