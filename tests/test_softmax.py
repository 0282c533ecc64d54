"""The softmax of Gaussian features, against its closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg.policies import Softmax, flatten, information_root, mountain_car_softmax, score

STATE = np.array([-0.4, 0.03])


@pytest.fixture
def policy(x64):
    return Softmax(jnp.array(np.random.default_rng(0).normal(size=(3, 16))))


def phi(state):
    """The paper's 16 functions, one by one."""
    x = np.array([(state[0] + 1.2) / 1.7, (state[1] + 0.07) / 0.14])
    grid = itertools.product((0, 0.25, 0.5, 1), repeat=2)
    return np.array([np.exp(-((x - c) ** 2).sum() / (2 * (1.3 * 0.25) ** 2)) for c in grid])


def test_features_are_those_of_the_paper(policy):
    np.testing.assert_allclose(policy.features(jnp.array(STATE)), phi(STATE), rtol=1e-12)


def test_probabilities_are_those_of_the_paper(policy):
    weights = np.exp(np.asarray(policy.weights) @ phi(STATE))
    log_probs = [policy(jnp.array(STATE)).log_prob(jnp.asarray(i)) for i in range(3)]
    np.testing.assert_allclose(np.exp(log_probs), weights / weights.sum(), rtol=1e-12)


def test_the_score_is_the_indicator_less_the_probability_times_the_features(policy):
    pi = jax.nn.softmax(policy(jnp.array(STATE)).logits)
    for i in range(3):
        expected = np.kron(np.eye(3)[i] - pi, phi(STATE))
        u = score(policy, jnp.array(STATE), jnp.asarray(i))
        np.testing.assert_allclose(u, expected, rtol=1e-10, atol=1e-15)


def test_the_information_is_the_expectation_of_squared_scores(policy):
    pi = jax.nn.softmax(policy(jnp.array(STATE)).logits)
    expected = np.kron(np.diag(pi) - np.outer(pi, pi), np.outer(phi(STATE), phi(STATE)))
    A = information_root(policy, jnp.array(STATE))
    np.testing.assert_allclose(A.T @ A, expected, rtol=1e-10, atol=1e-15)


def test_theta_is_the_weights_alone_action_after_action(policy):
    theta, _ = flatten(policy)
    np.testing.assert_array_equal(theta, policy.weights.reshape(-1))


def test_a_fresh_policy_chooses_evenly():
    policy = mountain_car_softmax()
    assert policy.weights.shape == (3, 16)
    A = policy(jnp.array(STATE, jnp.float32)).logits
    np.testing.assert_array_equal(A, 0.0)


def test_many_policies_at_once(x64):
    policies = mountain_car_softmax(runs=5)
    assert policies.weights.shape == (5, 3, 16)
    assert policies(jnp.array(STATE)).logits.shape == (5, 3)
    logits = jax.vmap(lambda p: p(jnp.array(STATE)).logits)(policies)
    assert logits.shape == (5, 3)


def test_features_keep_the_precision_of_the_state(x64):
    policy = Softmax(jnp.zeros((3, 16), jnp.float32))
    assert policy(jnp.array(STATE, jnp.float32)).logits.dtype == jnp.float32
