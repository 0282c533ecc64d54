"""A contract over every estimator, and the squared errors that mathematics promises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg import estimators as E
from bayespg.environments import LQR, exact_gradient
from bayespg.policies import LinearGaussian
from bayespg.random import fast_key
from bayespg.sparsification import Sparsify

FLAT = float("inf")
ESTIMATORS = {
    "model 1": E.Model1(fisher=E.exact),
    "model 1, sparse": E.Model1(sparsify=Sparsify(1e-6, 8)),
    "model 1, evidence": E.Model1(noise=None),
    "model 1, noisy rewards": E.Model1(reward_noise=1.0),
    "model 2": E.Model2(fisher=E.exact),
    "model 2, baseline": E.Model2(baseline=FLAT),
    "model 2, evidence": E.Model2(noise=None, baseline=FLAT),
    "model 2, Monte Carlo Fisher": E.Model2(fisher=E.monte_carlo_fisher),
    "model 2, maximum likelihood": E.Model2(fisher=E.maximum_likelihood),
    "reinforce": E.Reinforce(fisher=E.exact),
    "reinforce, mean": E.Reinforce("mean", E.exact),
    "reinforce, best": E.Reinforce("best", E.exact),
    "gpomdp": E.GPOMDP(E.exact),
}
RUNS, M = 400, 20


@pytest.fixture(scope="module")
def found():
    environment = LQR()
    with jax.enable_x64(True):
        policy = LinearGaussian(jnp.asarray(-0.2), jnp.asarray(1.0))

        def run(key):
            sample = E.draw(environment, policy, key, M)
            return {name: estimator(sample) for name, estimator in ESTIMATORS.items()}

        posteriors = jax.jit(jax.vmap(run))(jax.random.split(fast_key(0), RUNS))
        truth = exact_gradient(environment, policy)
    return jax.tree.map(np.asarray, posteriors), np.asarray(truth)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_answers_with_a_sound_posterior(found, name):
    posterior = jax.tree.map(lambda leaf: leaf[0], found[0][name])
    assert posterior.mean.shape == (2,)
    assert posterior.covariance.shape == (2, 2)
    assert posterior.influence.shape == (M, 2)
    assert np.linalg.eigvalsh(posterior.covariance)[0] >= -1e-9
    lower, upper = posterior.interval(0.9)
    assert np.all(lower < upper)
    np.testing.assert_allclose(posterior.fisher.G @ posterior.natural, posterior.mean, rtol=1e-9)
    assert 0 <= posterior.probability_uphill(posterior.mean) <= 1


def error(found, name):
    posteriors, truth = found
    return np.mean(np.sum((posteriors[name].mean - truth) ** 2, -1))


def test_model_1_errs_ten_times_less_than_monte_carlo(found):
    assert 10 * error(found, "model 1") < error(found, "reinforce")


def test_a_flat_baseline_and_integrated_actions_beat_the_best_baseline(found):
    assert 2 * error(found, "model 2, baseline") < error(found, "reinforce, best")


def test_with_outer_products_for_the_fisher_matrix_the_gain_is_gone(found):
    assert error(found, "model 2, Monte Carlo Fisher") > 0.5 * error(found, "reinforce")


def test_maximum_likelihood_is_as_good_as_exact(found):
    assert error(found, "model 2, maximum likelihood") < 1.2 * error(found, "model 2")


def test_maximum_likelihood_refuses_what_is_not_linear_gaussian():
    from bayespg.environments import Bandit
    from bayespg.policies import Gaussian

    bandit, policy = Bandit(jnp.sin), Gaussian()
    sample = E.draw(bandit, policy, fast_key(0), 5)
    with pytest.raises(TypeError, match="linear-Gaussian"):
        E.maximum_likelihood(sample)
