"""The random walk: exact answers against NumPy, finite differences and many rollouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg import scores
from bayespg._support.random import fast_key
from bayespg.environments import RandomWalk, exact_gradient
from bayespg.environments.trajectories import returns
from bayespg.learning.estimators import draw
from bayespg.paths.rollout import rollout
from bayespg.policies import Tabular, score

WALK = RandomWalk()
PAPER = np.full(9, np.log(41 / 9))
UNEVEN = np.array([0.3, 1.4, -0.2, 0.9, 2.0, 0.1, 0.7, 1.1, 0.4])


@pytest.fixture(params=["paper", "uneven"])
def logits(request, x64):
    return {"paper": PAPER, "uneven": UNEVEN}[request.param]


def chain(logits):
    """P of the transient states, entry by entry."""
    n = len(logits)
    P = np.zeros((n, n))
    for x in range(n):
        p = 1 / (1 + np.exp(-logits[x]))
        P[x, max(x - 1, 0)] += 1 - p
        if x + 1 < n:
            P[x, x + 1] += p
    return P


def test_the_paper_s_policy_goes_right_with_probability_0_82(x64):
    np.testing.assert_allclose(Tabular(jnp.array(PAPER)).right, 0.82, rtol=1e-12)


def test_the_walk_moves_as_told_and_is_retained_by_both_ends():
    states = jnp.array([0, 0, 4, 4, 8, 8, 9, 9], jnp.int32)
    actions = jnp.array([0, 1, 0, 1, 0, 1, 0, 1], jnp.int32)
    following, rewards, absorbing = RandomWalk(reward_noise=0.0).step(fast_key(0), states, actions)
    np.testing.assert_array_equal(following, [0, 1, 3, 5, 7, 9, 9, 9])
    np.testing.assert_array_equal(rewards, [-1, -1, -1, -1, -1, -1, 0, 0])
    np.testing.assert_array_equal(absorbing, following == 9)
    assert following.dtype == jnp.int32


@pytest.mark.slow
def test_rewards_have_the_stated_noise():
    states = jnp.zeros(100_000, jnp.int32)
    _, rewards, _ = WALK.step(fast_key(1), states, states)
    assert abs(rewards.mean() + 1) < 4 * 0.1 / np.sqrt(1e5)
    assert abs(rewards.std() - 0.1) < 4 * 0.1 / np.sqrt(2e5)


def test_expected_return_is_that_of_value_iteration(logits):
    P, V = chain(logits), np.zeros(9)
    for _ in range(4000):
        V = -1 + 0.99 * P @ V
    policy = Tabular(jnp.array(logits))
    np.testing.assert_allclose(WALK.values(policy), V, rtol=1e-10)
    np.testing.assert_allclose(WALK.expected_return(policy), V[0], rtol=1e-10)


def test_action_values_satisfy_bellman_s_equation(logits):
    policy = Tabular(jnp.array(logits))
    Q, p = WALK.action_values(policy), policy.right
    V = np.append((1 - p) * Q[:, 0] + p * Q[:, 1], 0.0)
    np.testing.assert_allclose(V[:-1], WALK.values(policy), rtol=1e-12)
    for x in range(9):
        np.testing.assert_allclose(
            Q[x], [-1 + 0.99 * V[max(x - 1, 0)], -1 + 0.99 * V[x + 1]], rtol=1e-12
        )


def test_occupancy_is_the_sum_over_time_of_the_distribution(logits):
    policy = Tabular(jnp.array(logits))
    for discount in (None, 1.0, 0.5):
        gamma = 0.99 if discount is None else discount
        P, now, total = chain(logits), np.eye(9)[0], np.zeros(9)
        for t in range(4000):
            total += gamma**t * now
            now = now @ P
        np.testing.assert_allclose(WALK.occupancy(policy, discount), total, rtol=1e-9)


@pytest.mark.slow("paper")
def test_the_gradient_is_that_of_the_policy_gradient_theorem(logits):
    """Eq. 7: sum_x nu(x) sum_a mu(a|x) u(x, a) Q(x, a)."""
    policy = Tabular(jnp.array(logits))

    @jax.jit
    def ask(policy):
        return WALK.occupancy(policy), WALK.action_values(policy), exact_gradient(WALK, policy)

    nu, Q, exact = ask(policy)
    p = policy.right
    x, a = (z.reshape(-1) for z in np.indices((9, 2)))
    u = jax.vmap(lambda x, a: score(policy, x, a))(x, a)
    theorem = (nu[x] * jnp.where(a, p[x], 1 - p[x]) * Q[x, a]) @ u
    eta = jax.jit(jax.vmap(lambda t: WALK.expected_return(Tabular(t))))
    h = 1e-5 * np.eye(9)
    differences = (eta(logits + h) - eta(logits - h)) / 2e-5
    np.testing.assert_allclose(exact, theorem, rtol=1e-10)
    np.testing.assert_allclose(exact, differences, rtol=1e-5, atol=1e-8)


def test_fisher_matrices_of_a_table_are_diagonal(logits):
    policy = Tabular(jnp.array(logits))
    variance = policy.right * (1 - policy.right)
    for G, discount in ((WALK.fisher(policy), 1.0), (WALK.step_fisher(policy), 0.99)):
        expected = np.diag(WALK.occupancy(policy, discount) * variance)
        np.testing.assert_allclose(G, expected, rtol=1e-10, atol=1e-15)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_exact_answers_agree_with_many_rollouts(logits):
    """Within 4.5 standard errors, from 20 batches of 1000; one path in 10^10 is cut off."""
    batches, size, walk = 20, 1000, RandomWalk(horizon=250)
    policy = Tabular(jnp.array(logits))
    gammas = 0.99 ** jnp.arange(walk.horizon)

    @jax.jit
    def batch(key):
        paths = rollout(walk, policy, key, size)
        R, u = returns(paths, 0.99), scores.of_paths(policy, paths)
        here = (paths.states[..., None] == jnp.arange(9)) & paths.mask[..., None]
        visits = here.sum(1) / size
        p = policy.right
        squared = jnp.where(paths.actions[..., None] == 1, (1 - p) ** 2, p**2)
        step_fisher = jnp.diag(gammas @ (here * squared).sum(1) / size)
        return (
            R.mean(),
            (R[:, None] * u).mean(0),
            gammas @ visits,
            visits.sum(0),
            step_fisher,
            u.T @ u / size,
            (paths.lengths > 20).mean(),
        )

    found = jax.lax.map(batch, jax.random.split(fast_key(3), batches))
    exact = (
        WALK.expected_return(policy),
        exact_gradient(WALK, policy),
        WALK.occupancy(policy),
        WALK.occupancy(policy, 1.0),
        WALK.step_fisher(policy),
        WALK.fisher(policy),
        WALK.tail(policy, 20),
    )
    for samples, truth in zip(found, exact, strict=True):
        error = np.std(samples, 0, ddof=1) / np.sqrt(batches)
        assert np.all(np.abs(np.mean(samples, 0) - truth) < 4.5 * error + 1e-9)


@pytest.mark.parametrize("steps", [0, 1, 8, 9, 37, 1000])
def test_the_tail_is_a_power_of_the_chain(logits, steps):
    expected = np.linalg.matrix_power(chain(logits), steps)[0].sum()
    tail = WALK.tail(Tabular(jnp.array(logits)), steps)
    np.testing.assert_allclose(tail, expected, rtol=1e-9, atol=1e-15)


def test_the_tail_of_a_million_steps_survives_single_precision():
    """Absorption about once in a million steps: 1 - Pr is of the size of a rounding error."""
    logits = np.full(9, -1.45)
    expected = np.linalg.matrix_power(chain(logits), 10**6)[0].sum()
    tail = jax.jit(lambda policy: WALK.tail(policy, 10**6))(Tabular(jnp.array(logits)))
    assert tail.dtype == jnp.float32
    assert 0.01 < expected < 0.99
    np.testing.assert_allclose(tail, expected, rtol=1e-4)


def test_the_optimum_is_reached_as_the_logits_grow(x64):
    policy = Tabular(jnp.full(9, 50.0))
    assert abs(WALK.expected_return(policy) - WALK.optimum) < 1e-9
    assert abs(WALK.optimum + (1 - 0.99**9) / 0.01) < 1e-12
    assert np.all(np.isfinite(WALK.fisher(policy)))
    assert WALK.expected_return(Tabular(jnp.array(PAPER))) < WALK.optimum


def answers(policy):
    return (
        WALK.expected_return(policy),
        WALK.fisher(policy),
        WALK.step_fisher(policy),
        WALK.occupancy(policy),
        WALK.action_values(policy),
        WALK.tail(policy, 50),
        exact_gradient(WALK, policy),
    )


def test_answers_keep_the_precision_of_the_policy(x64):
    shapes = jax.eval_shape(answers, Tabular(jnp.array(PAPER, jnp.float32)))
    assert {shape.dtype for shape in shapes} == {jnp.dtype(jnp.float32)}


@pytest.mark.slow
def test_answers_for_many_policies_at_once(x64):
    together = jax.jit(jax.vmap(answers))(Tabular(jnp.stack([PAPER, UNEVEN])))
    alone = jax.jit(answers)
    for i, logits in enumerate((PAPER, UNEVEN)):
        for many, one in zip(together, alone(Tabular(jnp.array(logits))), strict=True):
            np.testing.assert_allclose(many[i], one, rtol=1e-9)


def test_a_walk_of_another_size_and_discount(x64):
    walk = RandomWalk(size=4, discount=0.9)
    logits = np.array([0.2, -0.3, 0.5])
    expected = -np.linalg.inv(np.eye(3) - 0.9 * chain(logits)).sum(1)[0]
    np.testing.assert_allclose(walk.expected_return(Tabular(logits)), expected, rtol=1e-12)


def test_paths_are_drawn_and_summed_in_the_precision_asked_for(x64):
    policy = Tabular(jnp.array(PAPER))
    for dtype in (jnp.float32, jnp.float64):
        sample = jax.eval_shape(
            lambda key, dtype=dtype: draw(WALK, policy, key, 5, dtype), fast_key(0)
        )
        assert all(found.dtype == jnp.float64 for found in sample.summed)
