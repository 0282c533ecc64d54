"""How many episodes, which directions, and a posterior that prints itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from oracle import problem
from test_posterior import make

from bayespg import actor_critic, callbacks, evidence, fisher, kernels, monte_carlo, quadrature
from bayespg.agents.agent import Agent
from bayespg.agents.metrics import Evaluation
from bayespg.agents.pgpe import PGPE
from bayespg.learning.training import History, Result
from bayespg.posterior import LARGE, Influence, show
from bayespg.posterior.decisions import Episodes, episodes_needed, ratio_quantiles
from bayespg.runs.columns import Column
from bayespg.runs.store import Run


@pytest.mark.slow("20-20-9.0", "8-3-9.0", "4-3-4.0")
@pytest.mark.parametrize(
    ("M", "n", "signal"), [(20, 3, 4.0), (20, 20, 9.0), (8, 3, 9.0), (8, 10, 2.0), (4, 3, 4.0)]
)
def test_a_finite_interval_holds_the_number_that_is_needed(M, n, signal):
    """The standard error of a coverage of 0.9 over 300 batches is 0.017."""
    level = 0.999
    needed = max(np.ceil(M * scipy.stats.norm.ppf(level) ** 2 / signal - M), 0)
    x = np.random.default_rng(0).normal(size=(300, M, n)) / M
    x[..., 0] += np.sqrt(signal) / M**1.5

    @jax.jit
    @jax.vmap
    def judged(K):
        return episodes_needed(ratio_quantiles(K), M, M, level)

    found = judged(jnp.asarray(x @ x.transpose(0, 2, 1)))
    assert np.all(np.isfinite(found))
    assert np.mean((found.lower <= needed) & (needed <= found.upper)) > 0.9 - 3 * 0.017
    assert 1 / 4 < (M + np.median(found.more)) / (M + needed) < 4


def test_more_certainty_needs_more_episodes():
    U, R, G = problem(20, 3)
    posterior = monte_carlo.reinforce(U, R + U @ np.ones(3) / 2, G)
    few, many = (posterior.episodes_needed(level).more for level in (0.9, 0.999999))
    assert few <= many
    assert posterior.episodes_needed(0.3) == (0, 0, 0)
    assert np.isfinite(posterior.episodes_needed(0.9, natural=True).more)


def test_without_a_gradient_no_number_of_episodes_is_enough():
    U, _, G = problem(12, 3)
    found = quadrature.model2(U, np.full(12, 7.0), G, baseline=np.inf).episodes_needed()
    assert found.more == found.upper == np.inf


@pytest.mark.slow
def test_pure_noise_is_rarely_enough_where_parameters_outnumber_paths():
    """In about a fifth of batches; the standard error over 60 batches is 0.05."""
    M, n, rng, enough = 8, 20, np.random.default_rng(0), 0
    for _ in range(60):
        U, R = rng.normal(size=(M, n)), rng.normal(size=M)
        found = quadrature.model2(U, R, np.eye(n), noise=0.1, baseline=np.inf).episodes_needed()
        enough += found.more == 0
    assert enough / 60 < 0.2 + 3 * 0.05
    alone = monte_carlo.reinforce(U, R, baseline="mean").episodes_needed()
    np.testing.assert_allclose(found, alone, rtol=1e-9)


def test_known_directions_are_eigenvectors_of_fisher_and_rarely_wrong():
    """Of pure noise a direction is known in at most 5 % of batches; standard error 0.022."""
    rng, wrong = np.random.default_rng(0), 0
    G = problem(3, 4).fisher
    root = np.linalg.cholesky(G)
    for _ in range(100):
        U = rng.normal(size=(20, 4)) @ root.T
        found = monte_carlo.reinforce(U, rng.normal(size=20), G, baseline="mean").certain()
        wrong += len(found.slopes) > 0
    assert wrong / 100 < 0.05 + 3 * 0.022
    strong = monte_carlo.reinforce(U, U @ [3.0, 1.0, 2.0, 4.0], G, baseline="mean").certain(0.9)
    assert len(strong.slopes) > 0
    assert ((strong.lower > 0) | (strong.upper < 0)).all()
    for w in strong.directions:
        np.testing.assert_allclose(G @ w, (w @ G @ w) / (w @ w) * w, rtol=1e-6, atol=1e-8)
        assert w @ G @ w == pytest.approx(1)


def test_without_a_fisher_matrix_directions_are_parameters():
    U, R, _ = problem(20, 2)
    found = monte_carlo.reinforce(U, 100 * U[:, 0] + R, baseline="mean").certain(0.5)
    np.testing.assert_allclose(np.abs(found.directions[0]), [1, 0])


@pytest.mark.parametrize("level", [0.0, 1.0, -1, 2, np.nan])
def test_levels_lie_between_0_and_1(level):
    U, R, G = problem(5, 2)
    posterior = quadrature.model2(U, R, G)
    for ask in (posterior.episodes_needed, posterior.certain):
        with pytest.raises(ValueError, match=r"^level: "):
            ask(level)


def test_one_path_cannot_say_how_many_and_too_many_parameters_have_no_eigenvectors():
    U, R, G = problem(1, 2)
    with pytest.raises(ValueError, match="one path"):
        quadrature.model2(U, R, G).episodes_needed()
    n = LARGE + 1
    with jax.enable_x64(True):
        big = monte_carlo.average(jnp.zeros((2, n)))
    with pytest.raises(ValueError, match=r"^certain: "):
        big.certain()


def test_a_seed_serves_for_a_key():
    U, R, G = problem(5, 2)
    posterior = quadrature.model2(U, R, G)
    np.testing.assert_array_equal(posterior.sample(3, 2), posterior.sample(3, 2))
    assert (posterior.sample(3, 2) != posterior.sample(4, 2)).any()
    with pytest.raises(ValueError, match=r"^key: "):
        posterior.sample(-1, 2)


def test_a_posterior_prints_itself():
    U, R, G = problem(9, 20)
    posterior = quadrature.model2(U, R, G)
    said, shown = str(posterior), posterior._repr_html_()
    assert "20 parameters from 9 paths" in said
    assert f"probability {posterior.probability_uphill():.3g}" in said
    assert "8 parameters not shown" in said
    known = len(posterior.certain().slopes)
    assert f"{known} of 20 directions known" in said
    assert shown.count("<svg") == 12 + known
    assert "more paths" not in str(monte_carlo.reinforce(U[:1], R[:1], G))


def test_a_number_of_paths_that_may_be_zero_is_given_as_a_bound():
    """Where 0.95 is not stated yet, "0 more paths" would contradict it."""
    said = show._needed(Episodes(0.0, 0.0, 238.0), 0.79)
    assert said.startswith("at most 238 more paths until 0.95, perhaps none")
    assert show._needed(Episodes(0.0, 0.0, 0.0), 0.97) == "enough paths for 0.95"


@pytest.mark.slow
def test_one_call_chooses_and_conditions():
    U, R, G = problem(9, 3)
    choice = evidence.choose_model2(U, R, G)
    expected = quadrature.model2(
        U, R, G, noise=choice.noise, scale=choice.scale, baseline=choice.baseline
    )
    found = evidence.model2(U, R, G)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)


class Rows(Influence):
    def along(self, direction):
        return np.ones(7) * direction[0]

    def matrix(self, groups=None):
        raise NotImplementedError


@pytest.mark.slow
def test_paths_are_counted_without_writing_influences_down():
    assert make(influence=Rows()).paths == 7
    assert make(M=5).paths == 5
    U, last = problem(6, 2).scores, np.array([False, False, True] * 2)
    found = actor_critic.gradient_posterior(
        U, U, U[:, 0], fisher.LowRank(U, 1e-3), last=last, terminated=last, discount=0.9,
        state_kernel=kernels.Gaussian(1.0),
    )  # fmt: skip
    assert found.paths == 2  # although its arrays are in float64


def rows(sure, error):
    columns = {Column.SURE: sure, Column.RETURN: 1.0, Column.RETURN_ERROR: error}
    return [
        {c: float(np.broadcast_to(v, np.shape(sure))[i]) for c, v in columns.items()}
        | {Column.UPDATE: i + 1, Column.STEPS: 100 * (i + 1)}
        for i in range(len(sure))
    ]


def stopped(callback, sure, error=1.0):
    """The update after which training ends, or None."""
    agent = object.__new__(Agent)  # of which the rule takes no notice
    return next((r[Column.UPDATE] for r in rows(sure, error) if callback(agent, r) is False), None)


def test_training_ends_once_no_direction_is_uphill_and_says_why():
    said = []
    rng = np.random.default_rng(0)
    learning, learned = rng.uniform(0.4, 1.0, 60), rng.uniform(0.0, 1.0, 200)
    stop = callbacks.StopWhenSure(say=said.append)
    at = stopped(stop, np.concatenate([learning, learned]))
    assert 60 < at <= 200
    assert said == [stop.evidence]
    assert f"after update {at}, {100 * at:,} steps" in stop.evidence


def test_training_continues_while_there_is_a_gradient_and_ends_where_returns_are_constant():
    rng = np.random.default_rng(1)
    assert stopped(callbacks.StopWhenSure(), rng.choice([0.25, 0.75], 300, p=[0.1, 0.9])) is None
    assert stopped(callbacks.StopWhenSure(10, say=None), np.full(30, 0.9), error=0.0) == 10
    assert stopped(callbacks.StopWhenSure(10), np.full(30, np.nan)) is None


def test_a_search_is_not_stopped_by_its_cautious_probability():
    agent = PGPE("CartPole-v1", seed=0)
    with pytest.raises(ValueError, match="StopWhenSure would end a search that still climbs"):
        agent.learn(episodes=5, callbacks=callbacks.StopWhenSure(), progress=False)


@pytest.mark.parametrize("bad", [{"last": 1}, {"level": 0.5}, {"level": 1.0}])
def test_a_rule_that_could_not_decide_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        callbacks.StopWhenSure(**bad)


def test_results_print_themselves_in_a_line(tmp_path):
    evaluation = Evaluation(np.array([1.0, 2.0, 3.0]), np.array([1, 2, 3]))
    assert repr(evaluation) == f"Evaluation({evaluation})"
    returns = np.arange(12.0).reshape(3, 4)
    history = History(**dict.fromkeys(History._fields, returns))
    assert repr(Result(None, history)).startswith("Result(3 runs of 4 updates, mean return 4")
    run = Run.create(tmp_path, {"environment": "CartPole-v1", "steps": 5000})
    assert repr(run) == f"Run('{tmp_path}' of CartPole-v1, 5,000 steps)"


def test_a_posterior_without_a_gradient_says_so():
    found = monte_carlo.reinforce(np.ones((4, 2)), np.full(4, 500.0), np.eye(2), baseline="mean")
    assert "probability 0.5\nno gradient shows" in str(found)


@pytest.mark.slow
def test_a_number_that_the_paths_do_not_know_is_not_printed():
    """Three paths and fifty parameters: a mean that paths speak against has no number."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        U, R = rng.normal(size=(3, 50)), rng.normal(size=3)
        found = quadrature.model2(U, R, np.eye(50), baseline=np.inf)
        assert np.all(np.isfinite(found.episodes_needed()))
        against = found.probability_uphill() < 0.5
        assert ("cannot be said yet" in str(found)) == against
        assert ("if there is a gradient" in str(found)) != against
    U = rng.normal(size=(30, 3))
    sure = monte_carlo.reinforce(U, U @ [1.0, 0.3, 0.2] + rng.normal(size=30), baseline="mean")
    assert "cannot be said" not in str(sure)
