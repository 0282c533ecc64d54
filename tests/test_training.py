"""Algorithm 2: whole runs, many at once, stopping, and runs that go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from bayespg import fisher, kernels, policies, updates
from bayespg.environments import LQR, MountainCar, RandomWalk, check_solved, exact_gradient
from bayespg.estimators import BAC, Model2, Reinforce
from bayespg.policies import BoundedLinearGaussian, Tabular
from bayespg.random import fast_key
from bayespg.training import train

OURS = Model2(baseline=float("inf"))
RATE = updates.conventional(updates.hyperbolic(np.array([0.1, 0.3])))


def learn(estimator=OURS, update=RATE, runs=8, **kwargs):
    kappa = np.random.default_rng(0).normal(size=(runs, 2))
    settings = {"key": fast_key(0), "updates": 30, "paths": 20, "runs": runs, **kwargs}
    return train(LQR(), BoundedLinearGaussian(kappa), estimator, update, **settings)


@pytest.fixture(scope="module")
def learned():
    return learn()


def test_bpg_learns_lqr(learned):
    cost = -learned.history.expected_return
    assert cost[:, -1].mean() < 0.45 < cost[:, 0].mean()


def test_the_final_policy_follows_the_last_recorded_one(learned):
    assert learned.policy.kappa.shape == (8, 2)
    assert not np.array_equal(learned.policy.kappa, learned.history.parameters[:, -1])


def test_the_answer_is_float64_and_jax_s_setting_is_untouched(learned):
    assert learned.history.expected_return.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_progress_is_reported_and_changes_nothing(learned):
    calls = []
    again = learn(progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (30, 30)
    np.testing.assert_allclose(again.history.parameters, learned.history.parameters, rtol=1e-9)


def test_one_run_alone_equals_nothing_else_than_a_run():
    single = train(
        LQR(), BoundedLinearGaussian(np.array([0.1, 0.2])), OURS, RATE,
        key=fast_key(3), updates=5, paths=20,
    )  # fmt: skip
    assert single.history.parameters.shape == (5, 2)
    assert single.policy.kappa.shape == (2,)


def test_a_step_that_is_too_short_is_taken_and_is_the_last():
    """Algorithm 4, lines 7 and 8."""
    stopped = learn(stop=1e6, updates=4)
    np.testing.assert_array_equal(stopped.history.running, [[True, False, False, False]] * 8)
    start, after = stopped.history.parameters[:, 0], stopped.history.parameters[:, 1:]
    assert np.all(np.linalg.norm(after[:, 0] - start, axis=-1) > 0)
    np.testing.assert_array_equal(after, stopped.policy.kappa[:, None].repeat(3, 1))


def test_a_run_whose_step_is_not_finite_keeps_its_parameters():
    wild = learn(estimator=Reinforce(), update=updates.conventional(float("inf")), updates=5)
    assert np.isfinite(wild.policy.kappa).all()
    assert not wild.history.running[:, -1].any()


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="updates"):
        learn(updates=0)
    with pytest.raises(ValueError, match="paths"):
        learn(paths=0)
    with pytest.raises(ValueError, match="runs"):
        learn(runs=4) and train(
            LQR(), BoundedLinearGaussian(np.zeros((3, 2))), OURS, RATE,
            key=fast_key(0), updates=1, paths=5, runs=4,
        )  # fmt: skip


# The actor-critic on the random walk.

STOP = 0.175


def walk(policy, key, runs=None):
    values = kernels.Nystrom(kernels.Gaussian(3.0), np.arange(9.0)[:, None])
    return train(
        RandomWalk(horizon=60), policy, BAC(values, 0.1, 0.01), updates.conventional(0.5),
        key=key, updates=40, paths=10, runs=runs, stop=STOP,
    )  # fmt: skip


@pytest.fixture(scope="module")
def walked():
    return walk(Tabular(np.full((4, 9), np.log(41 / 9))), fast_key(0), 4)


def test_bac_learns_the_random_walk(walked):
    returns = walked.history.expected_return
    assert np.all(returns[:, -1] > returns[:, 0])
    assert returns[:, -1].mean() > returns[:, 0].mean() + 0.5


def test_bac_s_parameters_are_frozen_once_it_has_stopped(walked):
    running, parameters = walked.history.running, walked.history.parameters
    assert np.all(running[:, 1:] <= running[:, :-1])
    stopped = ~running[:, -1]
    assert stopped.any()
    steps = np.linalg.norm(np.diff(parameters, axis=1), axis=-1)
    for i in np.flatnonzero(stopped):
        at = running[i].argmin()
        assert steps[i, at - 1] < STOP <= steps[i, : at - 1].min()
        np.testing.assert_array_equal(parameters[i, at:], parameters[i, at:][:1].repeat(40 - at, 0))
        np.testing.assert_array_equal(walked.policy.logits[i], parameters[i, at])


def test_a_run_among_many_is_the_run_alone_with_its_key(walked):
    key = jax.random.split(fast_key(0), 4)[1]
    alone = walk(Tabular(np.full(9, np.log(41 / 9))), key)
    np.testing.assert_allclose(
        alone.history.parameters, walked.history.parameters[1], rtol=1e-6, atol=1e-9
    )


class Affine(policies.Policy):
    weights: Float[Array, " 2"]

    def __call__(self, state):
        return policies.Normal(self.weights[0] + self.weights[1] * state, jnp.asarray(0.5))


def test_a_policy_of_one_s_own_trains_where_only_others_have_exact_answers():
    policy = Affine(jnp.array([0.0, -0.2]))
    update = updates.conventional(1e-3)
    result = train(LQR(), policy, OURS, update, key=fast_key(0), updates=2, paths=5)
    assert np.isnan(result.history.expected_return).all()
    assert np.isfinite(result.history.sample_return).all()
    with pytest.raises(TypeError, match="with gain and scale, which Affine does not have"):
        exact_gradient(LQR(), policy)
    with pytest.raises(TypeError, match="which Affine does not have"):
        fisher.exact(LQR(), policy)
    with pytest.raises(TypeError, match="MountainCar has no closed form"):
        check_solved(MountainCar(), policy)
