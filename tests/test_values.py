"""Values fitted to a batch, and advantages, against loops over single steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.environments.trajectories import Trajectories, returns_to_go
from bayespg.learning import values
from bayespg.learning.values import Values
from bayespg.policies.features import Fourier, Linear

T, D = 6, 2
LENGTHS = np.array([6, 4, 4, 1, 1])
TERMINATED = np.array([False, True, False, True, False])
M = len(LENGTHS)
MASK = np.arange(T)[:, None] < LENGTHS
WEIGHTS = np.array([0.7, -1.3, 0.4])


@pytest.fixture(scope="module")
def paths() -> Trajectories:
    """Whole, ended and cut off, the last two of one step, with rubbish in the padding."""
    rng = np.random.default_rng(0)
    states, rewards = rng.normal(size=(T, M, D)), rng.normal(size=(T, M))
    return Trajectories(
        jnp.asarray(np.where(MASK[..., None], states, 1e6), jnp.float32),
        jnp.zeros((T, M), jnp.int32),
        jnp.asarray(np.where(MASK, rewards, 1e9), jnp.float32),
        jnp.asarray(MASK), jnp.asarray(TERMINATED),
        jnp.asarray(rng.normal(size=(M, D)), jnp.float32),
    )  # fmt: skip


LINEAR = Values(Linear(D), jnp.asarray(WEIGHTS, jnp.float32), jnp.asarray(True))
advantages = eqx.filter_jit(values.advantages)
fit = eqx.filter_jit(values.fit)
conditioned = eqx.filter_jit(values.conditioned)


def value(x) -> float:
    """The constant has prior variance 10, so its feature is the root of that."""
    return float(WEIGHTS @ np.array([*x, np.sqrt(10.0)]))


def naive(paths, i, t, discount, lambda_) -> float:
    """Each delta on its own, then their discounted sum."""
    end, total = LENGTHS[i], 0.0
    for s in range(t, end):
        if s + 1 < end:
            following = value(paths.states[s + 1, i])
        else:
            following = 0.0 if TERMINATED[i] else value(paths.final[i])
        delta = float(paths.rewards[s, i]) + discount * following - value(paths.states[s, i])
        total += (discount * lambda_) ** (s - t) * delta
    return total


@pytest.mark.parametrize(("discount", "lambda_"), [(0.9, 0.8), (1.0, 1.0), (0.9, 0.0), (0.0, 0.8)])
def test_advantages_are_discounted_sums_of_temporal_differences(paths, discount, lambda_):
    expected = np.zeros((T, M))
    for i in range(M):
        for t in range(LENGTHS[i]):
            expected[t, i] = naive(paths, i, t, discount, lambda_)
    found = advantages(paths, LINEAR, discount, lambda_)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_without_smoothing_the_values_between_cancel(paths):
    """sum_s gamma^(s-t) r_s + gamma^(T-t) V(x_T) - V(x_t)."""
    found = np.asarray(advantages(paths, LINEAR, 0.9, 1.0))
    togo = np.asarray(returns_to_go(paths, 0.9))
    for i in range(M):
        for t in range(LENGTHS[i]):
            left = 0.0 if TERMINATED[i] else 0.9 ** (LENGTHS[i] - t) * value(paths.final[i])
            expected = togo[t, i] + left - value(paths.states[t, i])
            assert found[t, i] == pytest.approx(expected, abs=1e-4)


def test_before_the_first_fit_advantages_are_returns_to_go(paths):
    nothing = values.start(Linear(D))
    assert not nothing.fitted
    found = advantages(paths, nothing, 0.9, 1.0)
    np.testing.assert_allclose(found, returns_to_go(paths, 0.9), rtol=1e-5, atol=1e-6)


def test_a_fit_recovers_a_linear_value_function():
    """Within 4 standard errors sqrt((1 + |x|^2) / N), |x| < 4; the prior pulls by some 0.3 / N."""
    rng = np.random.default_rng(1)
    N = 2000
    states = jnp.asarray(rng.normal(size=(N, D)), jnp.float32)
    truth = 3.0 * states[:, 0] - states[:, 1] + 20.0
    noisy = truth + jnp.asarray(rng.normal(size=N), jnp.float32)
    found = fit(values.start(Linear(D)), states, noisy, jnp.ones(N, bool))
    assert found.fitted
    np.testing.assert_allclose(found(states), truth, atol=4 * np.sqrt(17 / N))


def test_a_fit_is_the_posterior_mean_of_a_gaussian_process(x64):
    """K (K + noise I)^-1 y over the steps taken, in the units of the targets."""
    rng = np.random.default_rng(2)
    N, features = 30, Fourier(D, 40)
    states, y = jnp.asarray(rng.normal(size=(N, D))), rng.normal(size=N)
    taken = np.arange(N) % 3 > 0
    start = Values(features, jnp.zeros(features.size), jnp.asarray(False))
    found = fit(start, states, jnp.asarray(np.where(taken, y, 1e3)), jnp.asarray(taken))
    Psi = np.asarray(values.basis(features, states))
    K = Psi @ Psi[taken].T
    alpha = np.linalg.solve(K[taken] + values.NOISE * np.eye(taken.sum()), y[taken])
    np.testing.assert_allclose(found(states), K @ alpha, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1.0, 1e8, 1e15])
@pytest.mark.parametrize("kind", ["constant", "varied"])
def test_no_size_of_targets_makes_a_value_that_is_not_finite(kind, scale):
    rng = np.random.default_rng(3)
    N = 200
    states = jnp.asarray(rng.normal(size=(N, D)), jnp.float32)
    y = np.ones(N) if kind == "constant" else np.asarray(states[:, 0])
    found = fit(values.start(Linear(D)), states, jnp.asarray(scale * y, jnp.float32), TAKEN)
    assert found.fitted
    np.testing.assert_allclose(found(states), scale * y, atol=0.05 * scale)


TAKEN = jnp.ones(200, bool)


def test_a_fit_to_what_is_not_finite_shows_it():
    """The learner then keeps the values it had (tests/test_learner.py)."""
    states = jnp.asarray(np.random.default_rng(4).normal(size=(200, D)), jnp.float32)
    found = fit(LINEAR, states, jnp.full(200, jnp.nan, jnp.float32), TAKEN)
    assert np.isnan(found.weights).all()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_means_of_squares_and_spreads_follow_the_units(size):
    x = jnp.asarray(size * np.array([1.0, 2.0, 3.0, 9.0]), jnp.float32)
    taken = jnp.array([True, True, True, False])
    np.testing.assert_allclose(values.root_mean_square(x, taken) / size, np.sqrt(14 / 3), rtol=1e-6)
    away, spread = values.centred(x, taken)
    np.testing.assert_allclose(away / size, [-1, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(spread / size, np.sqrt(2 / 3), rtol=1e-6)
    assert values.centred(x * 0 + x[0], taken)[1] == 0


@pytest.mark.parametrize("scale", [0.0, 1e8])
def test_advantages_of_huge_or_no_rewards_are_finite(paths, scale):
    huge = eqx.tree_at(lambda p: p.rewards, paths, scale * paths.rewards)
    states = paths.states.reshape(-1, D)
    togo = advantages(huge, values.start(Linear(D)), 0.9, 1.0)
    V = fit(values.start(Linear(D)), states, togo.reshape(-1), paths.mask.reshape(-1))
    found = np.asarray(advantages(huge, V, 0.9, 0.8))
    assert np.isfinite(found).all()
    assert np.all(found == 0) == (scale == 0)
    np.testing.assert_array_equal(found[~MASK], 0)


def test_states_may_have_several_axes_in_front():
    states = jnp.asarray(np.random.default_rng(5).normal(size=(3, 4, D)), jnp.float32)
    flat = LINEAR(states.reshape(-1, D))
    np.testing.assert_allclose(LINEAR(states, 2), flat.reshape(3, 4), rtol=1e-6)
    assert jax.tree.leaves(LINEAR)[0].dtype == jnp.float32


def test_values_of_two_batches_are_those_of_all_their_steps(x64, monkeypatch):
    """If nothing is forgotten: the posterior of the weights given both batches at once."""
    monkeypatch.setattr(values, "FORGOTTEN", 0.0)
    rng = np.random.default_rng(4)
    features, variances = Linear(D), jnp.asarray([2.0, 0.5, 30.0])
    found, batches = values.carried(features, jnp.float64), []
    assert found is not None
    for N in (7, 12):
        Psi, y = jnp.asarray(rng.normal(size=(N, D + 1))), jnp.asarray(rng.normal(size=N))
        root = values.widened(found, variances)
        found = conditioned(found, root, Psi, y - Psi @ found.weights)
        batches.append((Psi, y))
    Psi, y = (np.concatenate(each) for each in zip(*batches, strict=True))
    covariance = np.linalg.inv(Psi.T @ Psi + np.diag(1 / np.asarray(variances)))
    np.testing.assert_allclose(found.root @ found.root.T, covariance, rtol=1e-9)
    np.testing.assert_allclose(found.weights, covariance @ Psi.T @ y, rtol=1e-9)


def test_what_is_forgotten_makes_weights_uncertain_again(x64):
    """A share of the prior variance is added to no variance at all, and none to all of it."""
    variances = jnp.asarray([2.0, 0.5, 30.0])
    before = values.carried(Linear(D), jnp.float64)
    nothing = jnp.diag(jnp.sqrt(variances))
    for known, expected in ((0.0 * nothing, values.FORGOTTEN), (nothing, 1.0)):
        now = eqx.tree_at(lambda v: (v.fitted, v.root), before, (jnp.asarray(True), known))
        root = values.widened(now, variances)
        np.testing.assert_allclose(root @ root.T, expected * jnp.diag(variances), atol=1e-12)


@pytest.mark.parametrize("left", [np.zeros(5), np.full(5, np.nan)])
def test_a_batch_without_news_leaves_values_as_they_are(left):
    before = values.carried(Linear(D), jnp.float32)
    assert before is not None
    root = values.widened(before, jnp.ones(D + 1))
    after = conditioned(before, root, jnp.ones((5, D + 1)), jnp.asarray(left, jnp.float32))
    assert not after.fitted
    np.testing.assert_array_equal(after.weights, before.weights)


@pytest.mark.parametrize("smaller", [1e2, 1e4, 1e8])
def test_values_are_carried_to_returns_that_vary_far_less(smaller):
    """In single precision: a policy that has learned to hold still earns a hundredth of before."""
    rng = np.random.default_rng(0)
    known = rng.normal(size=(D + 1, D + 1)).astype(np.float32)
    before = values.Values(Linear(D), jnp.zeros(D + 1), jnp.asarray(True), jnp.asarray(known))
    variances = jnp.full(D + 1, 1 / smaller**2, jnp.float32)
    root = values.widened(before, variances)
    assert jnp.all(jnp.isfinite(root))
    assert jnp.all((root**2).sum(1) <= 1.01 * values.WIDEST * variances)


def test_values_of_large_observations_are_not_carried():
    assert values.carried(Linear(values.MOST), jnp.float32) is None
