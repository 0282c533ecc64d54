"""A contract over every estimator, and the squared errors that mathematics promises."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from bayespg import actor_critic, evidence, fisher, kernels, monte_carlo
from bayespg import estimators as E
from bayespg._support.precision import in_float64, to_numpy
from bayespg._support.random import fast_key
from bayespg.algebra.sparse import Rows
from bayespg.environments import LQR, RandomWalk, ShipSteering, exact_gradient
from bayespg.paths import scores
from bayespg.policies import CMAC, LinearGaussian, Policy, Tabular

FLAT = float("inf")
ESTIMATORS = {
    "model 1": E.Model1(fisher=E.exact),
    "model 2": E.Model2(fisher=E.exact),
    "model 2, baseline": E.Model2(baseline=FLAT),
    "model 2, evidence": E.Model2(noise=None, baseline=FLAT),
    "model 2, Monte Carlo Fisher": E.Model2(fisher=E.monte_carlo_fisher),
    "model 2, maximum likelihood": E.Model2(fisher=E.maximum_likelihood),
    "reinforce": E.Reinforce(fisher=E.exact),
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


# Estimators that look at single steps.

STATES = np.arange(9.0)[:, None]
VALUES = kernels.Nystrom(kernels.Gaussian(3.0), STATES)
PAPER = np.full(9, np.log(41 / 9))
NOISE, SCALE = 0.1, 0.01
BAC = E.BACPaper(VALUES, NOISE, SCALE)
ONE_SAMPLE = {
    "bac": BAC,
    "bac, the limit ends paths": E.BACPaper(VALUES, NOISE, SCALE, limit_ends=True),
    "bac, noise on rewards": E.BACPaper(
        VALUES, NOISE, SCALE, state_map=lambda states: 8.0 - states, lambda_=0.0
    ),
    "gpomdp": E.GPOMDP(),
    "fitted": E.FittedValues(VALUES, NOISE),
    "compatible": E.CompatibleLeastSquares(VALUES, NOISE),
    "enac": E.ENAC(),
}


@pytest.fixture(scope="module")
def one_sample():
    """Twelve walks of at most 14 steps, some of them cut off, and every answer to them."""

    @jax.jit
    def run(key):
        sample = E.draw(RandomWalk(horizon=14), Tabular(jnp.asarray(PAPER)), key, 12, scores=False)
        answers = {name: estimator(sample) for name, estimator in ONE_SAMPLE.items()}
        still = eqx.tree_at(lambda s: s.paths.rewards, sample, 0 * sample.paths.rewards)
        answers["nothing"] = E.BACPaper(VALUES, noise=None)(still)
        G = E.steps_integrated_out(sample), E.g_est(sample).G, E.g_est_as_printed(sample).G
        return answers, sample, scores.of_steps(sample.policy, sample.paths), G

    with jax.enable_x64(True):
        return to_numpy(run(fast_key(0)))


def laid_out(sample, U, limit_ends=False):
    """The steps taken, path after path."""
    paths = sample.paths
    taken, lengths = paths.mask.T, paths.mask.sum(0)
    last = np.arange(taken.shape[1]) == lengths[:, None] - 1
    ended = paths.terminated | limit_ends
    return {
        "states": paths.states.T[taken],
        "scores": U.swapaxes(0, 1)[taken],
        "rewards": paths.rewards.T[taken],
        "last": last[taken],
        "terminated": (last & ended[:, None])[taken],
        "discount": 0.99,
    }


def test_this_sample_has_paths_of_both_kinds(one_sample):
    terminated = one_sample[1].paths.terminated
    assert 0 < terminated.sum() < 12


@pytest.mark.parametrize("name", [name for name in ONE_SAMPLE if name.startswith("bac")])
def test_bac_is_the_gradient_posterior_of_the_steps_laid_out_by_hand(one_sample, name):
    answers, sample, U, (G, _, _) = one_sample
    steps = laid_out(sample, U, ONE_SAMPLE[name].limit_ends)
    lambda_ = ONE_SAMPLE[name].lambda_
    if lambda_ == 0:
        steps["states"] = 8.0 - steps["states"]
    expected = actor_critic.gradient_posterior(
        **steps, fisher=G, state_kernel=VALUES, noise=NOISE, fisher_scale=SCALE, lambda_=lambda_,
        form="weight",
    )  # fmt: skip
    found = answers[name]
    for field in ("mean", "covariance", "influence", "explained", "freedom"):
        np.testing.assert_allclose(
            getattr(found, field), getattr(expected, field), rtol=1e-6, atol=1e-9
        )
    assert found.info["evidence"] == pytest.approx(float(expected.info["evidence"]))
    assert found.info["observations"] == expected.info["observations"]
    assert found.biased == expected.biased == (lambda_ < 1)
    if found.biased:
        np.testing.assert_allclose(found.unbiased, NOISE * expected.unbiased, rtol=1e-6, atol=1e-9)


def test_gpomdp_is_that_of_padded_arrays(one_sample):
    answers, sample, U, _ = one_sample
    rewards = np.where(sample.paths.mask, sample.paths.rewards, 0).T
    expected = monte_carlo.gpomdp(U.swapaxes(0, 1), rewards, discount=0.99)
    np.testing.assert_allclose(answers["gpomdp"].mean, expected.mean, rtol=1e-6)
    np.testing.assert_allclose(answers["gpomdp"].covariance, expected.covariance, rtol=1e-6)


def residual_maker(sample, steps):
    """C of Eq. 34 with the state kernel alone, and the rewards-to-go."""
    X = np.asarray(steps["states"], float)
    Kxz = np.exp(-0.5 * ((X[:, None] - STATES[:, 0]) / 3) ** 2)
    Kzz = np.exp(-0.5 * ((STATES - STATES.T) / 3) ** 2)
    K = Kxz @ np.linalg.pinv(Kzz, rcond=1e-10) @ Kxz.T
    H, used = oracle.temporal_differences(steps["last"], steps["terminated"], 0.99)
    S = H @ (K + NOISE * np.eye(len(X))) @ H.T
    return H.T @ np.linalg.solve(S, H), H.T @ np.linalg.solve(S, steps["rewards"][used])


def test_fitted_values_credit_each_action_with_what_the_states_do_not_explain(one_sample):
    """s^2 C y is the residual of regression on states, tails included."""
    answers, sample, U, _ = one_sample
    steps = laid_out(sample, U)
    _, alpha = residual_maker(sample, steps)
    times = np.broadcast_to(np.arange(14), (12, 14))[sample.paths.mask.T]
    expected = (0.99**times * NOISE * alpha) @ steps["scores"] / 12
    np.testing.assert_allclose(answers["fitted"].mean, expected, rtol=1e-5, atol=1e-7)


def test_compatible_least_squares_has_no_prior_on_the_advantages(one_sample):
    """w minimises the generalised squares of y - U w, states accounted for."""
    answers, sample, U, (G, _, _) = one_sample
    steps = laid_out(sample, U)
    C, alpha = residual_maker(sample, steps)
    w = np.linalg.lstsq(steps["scores"].T @ C @ steps["scores"], steps["scores"].T @ alpha)[0]
    np.testing.assert_allclose(answers["compatible"].mean, G.G @ w, rtol=1e-3, atol=1e-4)


def test_enac_regresses_returns_on_discounted_scores_of_paths(one_sample):
    answers, sample, U, _ = one_sample
    weights = 0.99 ** np.arange(14)[:, None] * sample.paths.mask
    expected = monte_carlo.enac(np.einsum("tmn,tm->mn", U, weights), sample.returns)
    np.testing.assert_allclose(answers["enac"].mean, expected.mean, rtol=1e-6, atol=1e-9)


def test_fisher_matrices_of_steps_are_those_of_the_steps_in_a_row(one_sample):
    _, sample, U, (_, expected, printed) = one_sample
    steps = laid_out(sample, U)
    for G, as_printed in ((expected, False), (printed, True)):
        found = fisher.g_est(steps["scores"], steps["last"], 0.99, as_printed=as_printed)
        np.testing.assert_allclose(found.G, G, rtol=1e-9, atol=1e-12)


def test_where_there_is_no_reward_the_evidence_finds_no_gradient(one_sample):
    nothing = one_sample[0]["nothing"]
    np.testing.assert_array_equal(nothing.mean, 0)
    np.testing.assert_array_equal(nothing.influence, 0)


def test_scores_of_paths_that_were_not_summed_along_the_way_are_found_when_asked_for(one_sample):
    _, sample, U, _ = one_sample
    with jax.enable_x64(True):
        summed = eqx.filter_jit(lambda sample: sample.scores)(sample)
    np.testing.assert_allclose(summed, U.sum(0), atol=1e-5)


# A policy of which few parameters act at a state.


class Written(Policy):
    """A CMAC that does not say so: its scores are dense."""

    cmac: CMAC

    def __call__(self, state):
        return self.cmac(state)


@pytest.mark.slow
def test_a_sparse_policy_gets_the_answers_of_the_same_policy_written_densely():
    """Voyages to a goal so large that a few steps suffice for some; G is damped by 1e-6."""
    ship = ShipSteering(horizon=25, goal_radius=80.0)
    weights = np.random.default_rng(0).normal(size=2 * 2 * 2 * 4 * 2)
    kernel = kernels.Gaussian(0.5)
    contenders = {
        "bac": E.BACPaper(kernel, NOISE, state_map=ship.unit),
        "bac, noise on rewards": E.BACPaper(kernel, NOISE, state_map=ship.unit, lambda_=0.0),
        "gpomdp": E.GPOMDP(),
        "fitted": E.FittedValues(kernel, NOISE, state_map=ship.unit),
        "enac": E.ENAC(),
    }

    @jax.jit
    def run(key):
        sparse = CMAC(jnp.asarray(weights), tiles=(2, 2, 4, 2), tilings=2, displacement=(1,) * 4)
        paths = E.draw(ship, sparse, key, 8, scores=False)
        written = eqx.tree_at(lambda s: s.policy, paths, Written(sparse))
        assert isinstance(paths.step_scores(), Rows)
        assert not isinstance(written.step_scores(), Rows)
        return (
            {name: [e(paths).mean, e(written).mean] for name, e in contenders.items()},
            paths.returns,
            E.g_est(paths).matrix() - E.g_est(written).matrix(),
        )

    with jax.enable_x64(True):
        answers, returns, away = to_numpy(run(fast_key(0)))
    assert 0 < returns.sum() < 8
    np.testing.assert_allclose(away, 1e-6 * np.eye(64), atol=1e-12)
    for name, (sparse, dense) in answers.items():
        size = np.abs(dense).max()
        assert size > 0
        np.testing.assert_allclose(sparse, dense, atol=1e-3 * size, err_msg=name)


# Squared errors on the random walk of Section 8.1.

REWARDS = E.BACPaper(VALUES, noise=None, lambda_=0.0)
RIVALS = {
    "gpomdp": E.GPOMDP(),
    "fitted": E.FittedValues(VALUES, NOISE),
    "enac": E.ENAC(),
}
TRIALS = 150
LONG = RandomWalk(horizon=60)


def walk_errors(contenders, paths: int, trials: int = TRIALS):
    """Means, squared errors and the truth."""

    def run(key):
        sample = E.draw(LONG, Tabular(jnp.asarray(PAPER)), key, paths, scores=False)
        return {name: estimator(sample).mean for name, estimator in contenders.items()}

    with jax.enable_x64(True):
        means = to_numpy(jax.jit(jax.vmap(run))(jax.random.split(fast_key(1), trials)))
        truth = np.asarray(exact_gradient(LONG, Tabular(jnp.asarray(PAPER))))
    return means, {name: np.sum((m - truth) ** 2, -1) for name, m in means.items()}, truth


@pytest.fixture(scope="module")
def ten_paths():
    return walk_errors(RIVALS | {"bac": BAC, "rewards": REWARDS}, 10)


def surely_below(less, more) -> bool:
    """By four standard errors of the mean difference, over the same samples."""
    away = more - less
    return away.mean() > 4 * away.std() / np.sqrt(len(away))


@pytest.mark.slow
@pytest.mark.parametrize("rival", RIVALS)
def test_bac_errs_less_than_its_rivals(ten_paths, rival):
    """200 runs of 10 paths: 1.31 (standard error 0.02), against 20.0 (1.0) for GPOMDP, 2.4 (0.2)
    with fitted values and 5.4 (0.5) for eNAC."""
    errors = ten_paths[1]
    assert surely_below(errors["bac"], errors[rival])


@pytest.mark.slow
@pytest.mark.parametrize("rival", [*RIVALS, "bac"])
def test_noise_on_the_rewards_and_evidence_err_least_of_all(ten_paths, rival):
    """0.17 (0.01): the walk's transitions are deterministic."""
    errors = ten_paths[1]
    assert surely_below(3 * errors["rewards"], errors[rival])


@pytest.mark.slow
def test_gpomdp_is_unbiased(ten_paths):
    """Each component within 4 standard errors of the truth."""
    means, _, truth = ten_paths
    found = means["gpomdp"]
    error = found.std(0) / np.sqrt(TRIALS)
    assert np.all(np.abs(found.mean(0) - truth) < 4 * error)


@pytest.mark.slow
def test_the_printed_weight_of_the_last_pair_spoils_the_gradient():
    """200 runs of 50 paths: 0.48 (0.02) corrected and 3.5 (0.2) as printed."""
    corrected, printed = (
        E.BACPaper(VALUES, NOISE, SCALE, fisher=G) for G in (E.g_est, E.g_est_as_printed)
    )
    errors = walk_errors({"corrected": corrected, "printed": printed}, 50, 60)[1]
    assert surely_below(3 * errors["corrected"], errors["printed"])


# Hyperparameters by evidence.


@pytest.fixture(scope="module", params=[1.0, 0.8, 0.0])
def choice(request):
    """Log evidence as a function of factors on the three variances chosen, and by BAC itself."""

    @jax.jit
    def run(key, factors):
        sample = E.draw(LONG, Tabular(jnp.asarray(PAPER)), key, 40, scores=False)
        steps = E.steps(sample, lambda_=request.param)
        G = E.steps_integrated_out(sample)
        prior, noise = evidence.chosen(steps, actor_critic.Prior(VALUES, G, 1.0))

        def at(a, c, s2):
            kernel = kernels.Scaled(VALUES, a)
            found = actor_critic.of_steps(steps, actor_critic.Prior(kernel, G, c), s2)
            return found.info["evidence"]

        chosen = jnp.array([prior.state_kernel.scale, prior.scale, noise])
        by_itself = E.BACPaper(VALUES, noise=None, lambda_=request.param)(sample).info["evidence"]
        variances = jnp.concatenate([chosen * factors, jnp.array(ARBITRARY)])
        return jax.vmap(lambda v: at(*v))(variances), chosen, by_itself

    with jax.enable_x64(True):
        found = to_numpy(run(fast_key(2), FACTORS))
    return found[0][: len(FACTORS)], found[0][len(FACTORS) :], *found[1:]


FACTORS = np.concatenate([np.ones((1, 3)), 1 + 0.1 * np.eye(3), 1 - 0.1 * np.eye(3)])
ARBITRARY = [[1.0, 1.0, 1.0], [1.0, SCALE, NOISE], [100.0, 0.1, 10.0], [0.01, 10.0, 0.01]]


@pytest.mark.slow
def test_the_variances_chosen_have_more_evidence_than_any_nearby(choice):
    """10 per cent more or less of any one of them; they are not at the end of their range."""
    nearby, _, (_, c, s2), by_itself = choice
    assert c > 1.01 * evidence.SIGNAL / 40 * s2
    assert np.all(nearby[1:] < nearby[0])
    assert by_itself == pytest.approx(nearby[0], rel=1e-9)


@pytest.mark.slow
def test_the_variances_chosen_have_more_evidence_than_arbitrary_ones(choice):
    nearby, arbitrary, *_ = choice
    assert np.all(arbitrary < nearby[0])


@pytest.mark.slow
@pytest.mark.parametrize("model", [E.Model1, E.Model2])
def test_noise_on_rewards_counts_the_steps_of_each_path(model):
    """Var[R] = sigma_r^2 sum_t gamma^(2t) over the steps that a path has, not over the horizon."""
    environment, policy = RandomWalk(size=4, horizon=30), Tabular(np.zeros(3))
    sigma, base = 2.0, 0.5
    sample = in_float64(E.draw)(environment, policy, fast_key(0), 12)
    lengths = sample.paths.lengths
    assert len(set(lengths.tolist())) > 3
    variances = sigma**2 * np.array([sum(0.99 ** (2 * t) for t in range(T)) for T in lengths])
    np.testing.assert_allclose(E.return_noise(sample, sigma), variances, rtol=1e-5)
    G = np.asarray(E.exact(sample).matrix())
    U = sample.scores
    noise = base + (variances[:, None] * U**2 if model is E.Model1 else variances)
    expected = getattr(oracle, model.__name__.lower())(U, sample.returns, G, noise)
    found = in_float64(model(base, fisher=E.exact, reward_noise=sigma).__call__)(sample)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-4)


@pytest.mark.parametrize(("given", "name"), [({"scale": 0.1}, "scale"), ({"noise": None}, "noise")])
def test_a_scale_that_the_advantage_determines_is_refused(given, name):
    with pytest.raises(ValueError, match=f"{name}: .* no effect.* use estimators.BACPaper"):
        E.BAC(**given)
