"""Bandit and LQR: closed forms against finite differences and against a million paths."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from bayespg import scores
from bayespg._support.random import fast_key
from bayespg.environments import LQR, Bandit, exact_gradient, lqr
from bayespg.environments.trajectories import returns
from bayespg.paths.rollout import rollout
from bayespg.policies import BoundedLinearGaussian, Gaussian, LinearGaussian

CASES = {
    "bandit": (Bandit(lambda a: a**2 - a), Gaussian(0.3, 0.8)),
    "noisy bandit": (Bandit(jnp.sin, reward_noise=0.5), Gaussian(-0.2, 1.1)),
    "lqr": (LQR(), LinearGaussian(-0.4, 0.6)),
    "lqr, kappa": (LQR(reward_noise=1.0), BoundedLinearGaussian(np.array([-0.5, 0.3]))),
    "lqr, drifting": (LQR(offset=0.1, state_gain=0.9, discount=0.9), LinearGaussian(-0.4, 0.6)),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def in_float64(policy):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), policy)


def test_the_paper_s_optimum_costs_0_3067():
    with jax.enable_x64(True):
        cost = -LQR().expected_return(in_float64(LinearGaussian(-0.92, 0.001)))
    assert abs(cost - 0.3067) < 5e-5


def test_exact_gradient_is_the_finite_difference_of_the_exact_return(case):
    environment, policy = case
    with jax.enable_x64(True):
        theta, rebuild = ravel_pytree(in_float64(policy))
        h = 1e-5

        @jax.jit
        def value(t):
            return environment.expected_return(rebuild(t))

        differences = [
            (value(theta + step) - value(theta - step)) / (2 * h)
            for step in h * jnp.eye(theta.size)
        ]
        exact = exact_gradient(environment, rebuild(theta))
    np.testing.assert_allclose(exact, differences, rtol=1e-6, atol=1e-8)


@pytest.mark.slow("noisy bandit", "lqr", "lqr, kappa", "lqr, drifting")
@pytest.mark.usefixtures("optimised")
def test_exact_return_gradient_and_fisher_agree_with_many_paths(case):
    environment, policy = case
    batches, size = 40, 5_000

    @jax.jit
    def batch(key):
        paths = rollout(environment, policy, key, size)
        R, U = returns(paths, environment.discount), scores.of_paths(policy, paths)
        return R.mean(), (R[:, None] * U).mean(0), U.T @ U / size

    with jax.enable_x64(True):
        policy = in_float64(policy)
        found = jax.lax.map(batch, jax.random.split(fast_key(1), batches))
        exact = (
            environment.expected_return(policy),
            exact_gradient(environment, policy),
            environment.fisher(policy),
        )
    for samples, truth in zip(found, exact, strict=True):
        error = np.std(samples, 0, ddof=1) / np.sqrt(batches)
        assert np.all(np.abs(np.mean(samples, 0) - truth) < 4.5 * error + 1e-9)


def test_bandit_expectation_is_exact_for_polynomials():
    with jax.enable_x64(True):
        fourth = Bandit(lambda a: a**4).expected_return(in_float64(Gaussian(0.0, 1.0)))
    assert abs(fourth - 3.0) < 1e-12


def test_reward_noise_leaves_the_expected_return_alone():
    policy = LinearGaussian(-0.2, 1.0)
    assert LQR(reward_noise=2.0).expected_return(policy) == LQR().expected_return(policy)


def test_maximum_likelihood_recovers_the_transition_model():
    truth = LQR(state_gain=0.8, action_gain=0.7, offset=0.2, state_noise=0.3)
    with jax.enable_x64(True):
        paths = rollout(truth, in_float64(LinearGaussian(-0.5, 0.7)), fast_key(0), 5_000)
        fitted = lqr.fit(paths, like=eqx.tree_at(lambda e: e.state_gain, truth, 0.0))
    # 10^5 transitions: standard errors of the coefficients are about 1e-3.
    for name in ("state_gain", "action_gain", "offset", "state_noise"):
        assert abs(getattr(fitted, name) - getattr(truth, name)) < 6e-3
    assert abs(fitted.initial_mean - 0.3) < 2e-3
